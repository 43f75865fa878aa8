"""The processes of ours in which tools run: killed, stopped or slow, while calls run and between them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.runtime import Runtime
from callboard.actors.testing.chaos.beside import MARK, Host
from callboard.actors.testing.chaos.judging import Result, judged, neighbour_faults
from callboard.actors.testing.ways.case import OK, Blast, Case, Group, Level

#: When it happens: neighbours have begun by then.
AFTER_SECONDS: Final = 0.15
#: For the processes to be there, and between two looks.
START_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.02
#: A server that is slow is stopped for so long.
SLOW_SECONDS: Final = 2.0
#: How long the neighbours are under way.
SECONDS: Final = 1.0

Tree = Mapping[int, int]
"""The processes below this one: by process id, the id of the parent."""
Pick = Callable[[Tree], list[int]]


def processes_below(root: int) -> Tree:
    """All descendants of a process, as /proc shows them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name, in brackets, may hold anything; behind it come the state and the parent.
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    below: dict[int, int] = {}
    todo = [root]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent and pid not in below]
        below.update(dict.fromkeys(children, parent))
        todo += children
    return below


def of_a_run(pid: int) -> bool:
    """Whether a run of the suite has started it: other children of the host are not to be harmed."""
    with suppress(OSError):
        return f"{MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _has_children(tree: Tree, pid: int) -> bool:
    return pid in tree.values()


def first_of_each(tree: Tree) -> list[int]:
    """The direct children of this process: an init with its namespace, where there is one, else the fork server."""
    return [pid for pid, parent in tree.items() if parent == os.getpid() and _has_children(tree, pid)]


def servers(tree: Tree) -> list[int]:
    """The deepest processes that have children which have none: those that fork the tools' children."""
    return [
        pid
        for pid in tree
        if _has_children(tree, pid) and not any(_has_children(tree, child) for child in _children(tree, pid))
    ]


def inits(tree: Tree) -> list[int]:
    """The first processes of namespaces: above a server."""
    return [pid for pid in first_of_each(tree) if pid not in servers(tree)]


def leaves(tree: Tree) -> list[int]:
    """The processes in which tools run, and those that wait for a call."""
    return [pid for pid in tree if not _has_children(tree, pid)]


def _children(tree: Tree, pid: int) -> list[int]:
    return [child for child, parent in tree.items() if parent == pid]


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


class Harm(Struct, frozen=True):
    """A row of the table: which processes get which signal."""

    name: str
    what: str
    pick: Pick
    signal: signal.Signals
    times: int = 1
    seconds: float = 0.0
    """Until they are let go on, where they were stopped; 0 is never."""
    blast: Blast = Blast.RUNNING_CALLS


HARMS: Final = (
    Harm("server-killed", "the fork servers are killed", servers, signal.SIGKILL),
    Harm("server-killed-thrice", "the fork servers are killed three times", servers, signal.SIGKILL, 3),
    Harm("server-terminated", "the fork servers get SIGTERM", servers, signal.SIGTERM),
    Harm("server-stopped", "the fork servers are stopped (SIGSTOP)", servers, signal.SIGSTOP),
    Harm(
        "server-slow",
        f"the fork servers do nothing for {SLOW_SECONDS:g} s",
        servers,
        signal.SIGSTOP,
        seconds=SLOW_SECONDS,
        blast=Blast.NOTHING,
    ),
    Harm("init-killed", "the first processes of the namespaces are killed", inits, signal.SIGKILL),
    Harm("init-stopped", "the first processes of the namespaces are stopped", inits, signal.SIGSTOP),
    Harm("children-killed", "all children are killed", leaves, signal.SIGKILL),
    Harm("children-killed-thrice", "all children are killed three times", leaves, signal.SIGKILL, 3),
    Harm(
        "children-stopped", "all children are stopped for 1 s", leaves, signal.SIGSTOP, seconds=1.0, blast=Blast.NOTHING
    ),
    Harm("all-killed", "all of these processes are killed", list, signal.SIGKILL),
)

INFRASTRUCTURE: Final = tuple(
    Case(
        f"{Group.INFRASTRUCTURE}/{row.name}",
        Group.INFRASTRUCTURE,
        Level.PROCESS,
        row.what,
        (OK,),
        row,
        row.blast,
        SECONDS + row.seconds,
    )
    for row in HARMS
)


async def _found(pick: Pick) -> list[int]:
    """As soon as there are some, at the latest after a while: a server takes its time to start."""
    until = time.monotonic() + START_SECONDS
    while True:
        tree = {pid: parent for pid, parent in processes_below(os.getpid()).items() if of_a_run(pid)}
        if (pids := pick(tree)) or time.monotonic() > until:
            return pids
        await asyncio.sleep(LOOK_SECONDS)


async def run_harms(cases: Sequence[Case], host: Host) -> list[Result]:
    """One after the other; after each, healthy requests on the same runtime must find everything in order again."""
    return [await _run_harm(case, host) for case in cases]


async def _run_harm(case: Case, host: Host) -> Result:
    harm = case.way
    assert isinstance(harm, Harm)
    began = time.monotonic()
    met: list[int] = []
    late: list[str] = []

    async def disturb(runtime: Runtime) -> None:
        for _ in range(harm.times):
            await asyncio.sleep(AFTER_SECONDS)
            pids = await _found(harm.pick)
            met.extend(pids)
            _send(pids, harm.signal)
            if harm.seconds:
                await asyncio.sleep(harm.seconds)
                _send(pids, signal.SIGCONT)
        await asyncio.sleep(case.seconds)
        after = await host.ask_all(runtime, (), host.settings_for(None).request_timeout_seconds, called="-later")
        if strange := await host.changed(after):
            late.extend(neighbour_faults(case, after, strange) or [f"{len(strange)} later requests went wrong"])

    seen = await host.play((), (), seconds=case.seconds, disturb=disturb, changed={"tool_failure_budget": None})
    if harm.pick is inits and not met:
        return judged(case, ["there is no namespace whose first process could be lost"], time.monotonic() - began)
    faults = [*neighbour_faults(case, seen, await host.changed(seen)), *seen.faults]
    faults += [f"afterwards: {fault}" for fault in late]
    if not met:
        faults.append("no process was found to do it to")
    return judged(case, faults, time.monotonic() - began)
