"""What a process holds besides memory: threads, open files, child processes, tasks. What a call leaves of it is a leak.
So is what it changes of the environment.

Read from /proc, which is why the kit looks at tools on Linux alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

#: A thread or a child process that is just ending gets this long before it counts as left behind.
GRACE_SECONDS: Final = 0.1
#: A tool may make something once, for all its calls. What this many calls more leave behind each time is a leak.
REPEATS: Final = 2


class Surroundings(Struct, frozen=True):
    """What is there now, each kind as names that are the same as long as the thing exists."""

    threads: frozenset[str]
    files: frozenset[str]
    children: frozenset[str]
    tasks: frozenset[str]

    @classmethod
    def now(cls, loop: asyncio.AbstractEventLoop) -> Surroundings:
        """Of this process and its loop for tools."""
        return cls(
            frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
            _open_files(),
            frozenset(f"process {pid}" for pid in child_processes()),
            frozenset(f"{task.get_name()} ({_coroutine(task)})" for task in asyncio.all_tasks(loop)),
        )

    def left_since(self, before: Surroundings) -> dict[str, frozenset[str]]:
        """Of which kinds there are more than before, and which ones are new."""
        kinds = (
            ("thread", self.threads, before.threads),
            ("open file or socket", self.files, before.files),
            ("child process", self.children, before.children),
            ("asyncio task", self.tasks, before.tasks),
        )
        return {kind: now - then for kind, now, then in kinds if len(now) > len(then)}


def environment_change(before: Mapping[str, str]) -> str:
    """Which variables of the environment are not as they were, by name: a value may be a secret. They are put back."""
    now = dict(os.environ)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if not changed:
        return ""
    os.environ.clear()
    os.environ.update(before)
    told = ", ".join(f"{_VERBS[name in before, name in now]} {name}" for name in changed)
    return f"changes os.environ, which all of its process reads: it {told}"


#: What was done to a variable that was there before, and is now.
_VERBS: Final = {(False, True): "sets", (True, True): "changes", (True, False): "deletes"}


def leak(call: Callable[[], object], loop: asyncio.AbstractEventLoop, before: Surroundings) -> str:
    """What a call has left behind since `before`, if every further `call` leaves some more of it; else ""."""
    left = _left_for_good(loop, before)
    for _ in range(REPEATS if left else 0):
        before = Surroundings.now(loop)
        call()
        again = _left_for_good(loop, before)
        left = {kind: names for kind, names in left.items() if kind in again}
    for kind, names in left.items():
        _end_children(loop, before)
        one = sorted(names)[0]
        return f"leaves {'an' if kind[0] in 'ao' else 'a'} {kind} behind at each call: {one}"
    return ""


def child_processes() -> frozenset[int]:
    """Of this process, those that have ended and were not waited for too."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (thread / "children").read_text().split()))
        except FileNotFoundError:
            continue  # the thread has ended, or the kernel does not tell
    return frozenset(found)


def _left_for_good(loop: asyncio.AbstractEventLoop, before: Surroundings) -> dict[str, frozenset[str]]:
    left = Surroundings.now(loop).left_since(before)
    end = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < end:
        gc.collect()  # a file in a cycle of references is closed by it
        loop.run_until_complete(asyncio.sleep(GRACE_SECONDS / 10))
        left = Surroundings.now(loop).left_since(before)
    return left


def _end_children(loop: asyncio.AbstractEventLoop, before: Surroundings) -> None:
    for name in Surroundings.now(loop).children - before.children:
        pid = int(name.removeprefix("process "))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _open_files() -> frozenset[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the one that the list itself was read by
    return frozenset(found)


def _coroutine(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "a coroutine")
