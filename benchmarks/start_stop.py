"""A runtime started and stopped many times in one process, in each way in which hosts do it: is anything left behind?

    python benchmarks/start_stop.py [--cycles 200] [--ways sync async ...]

Each way runs in a process of its own. A cycle starts a runtime, asks it something and stops it. After three cycles to
warm up, and again after the last one, it counts threads, asyncio tasks, file descriptors and child processes; a way
that leaves more than it found fails, with their names, and so does this program. Also shown: milliseconds a cycle, and
by how much the memory of the process (RSS) has grown. tests/actors/test_start_stop.py runs 20 cycles of each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from callboard import Conversation, RequestEnded, Runtime, Settings, tool
from callboard.actors.testing.wire_double import Turn, WireDouble
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import ToolCallStarted
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: Cycles before the first count: what is made once a process is made in them.
WARM_UP = 3
#: For what was asked to end to be gone. A child of the lowest priority that was killed takes three seconds to die
#: beside ten busy loops on two cores.
PATIENCE_SECONDS = 60.0


@tool
def in_a_process(number: int) -> int:
    """A trivial tool."""
    return number + 1


@tool(isolation="thread")
def in_a_thread(number: int) -> int:
    """A trivial tool."""
    return number + 1


@tool
async def in_a_task(number: int) -> int:
    """A trivial tool."""
    return number + 1


@tool
def hangs(number: int) -> int:
    """Until it is killed."""
    time.sleep(3_600)
    return number


def calls(*names: str) -> Callable[[ModelRequest], ScriptedTurn]:
    """A model that calls these tools side by side, then answers."""

    def turn(request: ModelRequest) -> ScriptedTurn:
        if isinstance(request.messages[-1], ToolMessage):
            return ScriptedTurn("done")
        return ScriptedTurn(calls=tuple(ScriptedCall(name, {"number": 1}, name) for name in names))

    return turn


TOOLS = {each.name: each for each in (in_a_process, in_a_thread, in_a_task, hangs)}


def made(*names: str) -> Runtime:
    """A runtime with these tools, all of which its model calls. Those in child processes take most of the time."""
    script = calls(*names) if names else None
    return Runtime(Settings(model="scripted/model", script=script), [TOOLS[name] for name in names])


# -- the ways; each does so many cycles


def sync(cycles: int) -> None:
    """`with`, from sync code."""
    for _ in range(cycles):
        with made() as runtime:
            runtime.ask_sync("hello")


def again(cycles: int) -> None:
    """One Runtime, started again each time."""
    runtime = made("in_a_task")
    for _ in range(cycles):
        with runtime:
            runtime.ask_sync("hello")


def in_asyncio(cycles: int) -> None:
    """`async with`, all on one loop of the host."""

    async def main() -> None:
        for _ in range(cycles):
            async with made() as runtime:
                await asyncio.gather(*(runtime.ask("hello") for _ in range(5)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def new_loops(cycles: int) -> None:
    """A new event loop each time."""

    async def main() -> None:
        async with made() as runtime:
            await runtime.ask("hello")

    for _ in range(cycles):
        asyncio.run(main())


def threads(cycles: int) -> None:
    """Started, asked and stopped on a new thread each time."""
    for _ in range(cycles):
        thread = threading.Thread(target=sync, args=(1,))
        thread.start()
        thread.join()


def across_threads(cycles: int) -> None:
    """Started on one thread, asked from four others, stopped on another."""
    with ThreadPoolExecutor(4) as pool:
        for _ in range(cycles):
            runtime = pool.submit(made("in_a_thread").start).result()
            list(pool.map(runtime.ask_sync, ["hello"] * 4))
            pool.submit(runtime.stop).result()


def foreign_loop(cycles: int) -> None:
    """`start` and `stop` on a thread of a loop that runs, as a server's hooks do; asked on that loop."""

    async def main() -> None:
        for _ in range(cycles):
            runtime = await asyncio.to_thread(made("in_a_task").start)
            async for _ in runtime.stream("hello"):
                continue
            await asyncio.to_thread(runtime.stop)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def process_tools(cycles: int) -> None:
    """With calls of tools in child processes, threads and tasks."""
    for _ in range(cycles):
        with made("in_a_process", "in_a_thread", "in_a_task") as runtime:
            conversation = Conversation()
            runtime.ask_sync("hello", conversation=conversation)
            results = [message.content for message in conversation.messages if isinstance(message, ToolMessage)]
            assert results == ["2"] * 3, results


def hung_tools(cycles: int) -> None:
    """Stopped while a tool in a child process hangs, and its request is read along."""

    async def main() -> None:
        for _ in range(cycles):
            runtime = await asyncio.to_thread(made("hangs").start)
            events = aiter(runtime.stream("hello"))
            while not isinstance(await anext(events), ToolCallStarted):
                continue
            await asyncio.to_thread(runtime.stop)
            with contextlib.suppress(RequestEnded):
                async for _ in events:
                    continue
                raise AssertionError("the request has ended well")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def open_streams(cycles: int) -> None:
    """Stopped while five streams are open: of two nothing was read, of none the end."""

    async def main() -> None:
        for _ in range(cycles):
            runtime = await asyncio.to_thread(made("hangs").start)
            streams = [runtime.stream("hello") for _ in range(5)]
            begun = [aiter(stream) for stream in streams[2:]]
            for events in begun:
                await anext(events)
            await asyncio.to_thread(runtime.stop)
            del streams, begun, events
            await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)  # asyncio closes the iterators that were dropped
        assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()

    asyncio.run(main())


def http(cycles: int) -> None:
    """With a model behind HTTP: connections are closed."""
    with WireDouble([Turn("hello")], by_turn=True) as double:
        for _ in range(cycles):
            settings = Settings(model="openai-compatible/any", base_url=double.base_url(), api_key="key")
            with Runtime(settings) as runtime, ThreadPoolExecutor(4) as pool:
                list(pool.map(runtime.ask_sync, ["hello"] * 4))


def index(cycles: int) -> None:
    """With a workspace and its code index, which each cycle opens, brings up to date and closes."""

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(20):
                (Path(folder) / f"module_{number}.py").write_text(f"def retry_{number}():\n    return {number}\n")
            for cycle in range(cycles):
                (Path(folder) / "changing.py").write_text(f"def changed():\n    return {cycle}\n")
                async with Runtime(Settings(model="offline/code-context", workspace=Path(folder))) as runtime:
                    await runtime.refresh_index()
                    reply = await runtime.ask("where is retry_3?")
                    assert "module_3.py" in reply.text, reply.text

    asyncio.run(main())


def dropped(cycles: int) -> None:
    """Never stopped: the last reference goes, which ends it, with a warning."""
    for _ in range(cycles):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            runtime = made("in_a_process").start()
            runtime.ask_sync("hello")
            del runtime
        wait_until(lambda: not any(thread.name == "callboard-close" for thread in threading.enumerate()))


def failed_starts(cycles: int) -> None:
    """A start that is cancelled, as on a server that is stopped while it starts."""

    async def main() -> None:
        for _ in range(cycles):
            starting = asyncio.ensure_future(made().__aenter__())
            await asyncio.sleep(0)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting

    asyncio.run(main())


WAYS: dict[str, Callable[[int], None]] = {
    way.__name__.replace("_", "-"): way
    for way in (
        sync, again, in_asyncio, new_loops, threads, across_threads, foreign_loop,
        process_tools, hung_tools, open_streams, http, index, dropped, failed_starts,
    )
}  # fmt: skip

# -- counting


def wait_until(holds: Callable[[], object]) -> None:
    """At most PATIENCE_SECONDS."""
    until = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE_SECONDS:g} s")
        pause.wait(0.005)


@dataclass(frozen=True)
class Held:
    """What this process holds, by kind and name."""

    threads: Counter[str]
    descriptors: Counter[str]
    children: Counter[str]

    @classmethod
    def now(cls) -> Held:
        """Looked at in /proc. A socket's name is its number, so all sockets count as one name."""
        gc.collect()
        names = [_link(Path(f"/proc/self/fd/{descriptor}")) for descriptor in os.listdir("/proc/self/fd")]
        kinds = [name.partition(":")[0] if name.startswith(("socket", "pipe")) else name for name in names if name]
        children = [
            child
            for task in os.listdir("/proc/self/task")
            for child in _read(f"/proc/self/task/{task}/children").split()
        ]
        return cls(
            Counter(thread.name for thread in threading.enumerate()),
            Counter(kinds),
            Counter(_read(f"/proc/{child}/comm").strip() or "a zombie" for child in children),
        )

    def more_than(self, before: Held) -> dict[str, int]:
        """What there is now and was not before, with how many of it."""
        more = {
            "thread": self.threads - before.threads,
            "descriptor": self.descriptors - before.descriptors,
            "child": self.children - before.children,
        }
        return {f"{kind} {name}": count for kind, names in more.items() for name, count in names.items()}


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # the one that listed the folder
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has ended meanwhile
        return ""


def rss_kb() -> int:
    """The memory of this process."""
    return int(_read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def run(way: str, cycles: int) -> dict[str, object]:
    """Do it, here."""
    warnings.simplefilter("error", ResourceWarning)  # a socket or a loop that was not closed
    unraised: list[str] = []
    sys.unraisablehook = lambda told: unraised.append(repr(told.exc_value))
    WAYS[way](WARM_UP)
    settle()
    before, rss, began = Held.now(), rss_kb(), time.perf_counter()
    WAYS[way](cycles)
    seconds = time.perf_counter() - began
    with contextlib.suppress(AssertionError):  # then it is shown as left behind
        wait_until(lambda: not Held.now().more_than(before))
    left = Held.now().more_than(before)
    return {"ms": seconds / cycles * 1e3, "rss_kb": rss_kb() - rss, "left": left, "unraised": unraised}


def settle() -> None:
    """Until two looks, 50 ms apart, see the same."""
    pause = threading.Event()
    last = Held.now()
    for _ in range(int(PATIENCE_SECONDS / 0.05)):
        pause.wait(0.05)
        now = Held.now()
        if now == last:
            return
        last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--run", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run, options.cycles)))
        return
    failed = False
    print(f"{'':>14} {'cycles':>6} {'ms each':>8} {'RSS kB more':>12}  left behind")
    for way in options.ways:
        command = [sys.executable, __file__, "--run", way, "--cycles", str(options.cycles)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            failed = True
            print(f"{way:>14} failed with status {ran.returncode}", flush=True)
            continue
        seen = json.loads(ran.stdout.splitlines()[-1])
        left = ", ".join([*(f"{count} x {name}" for name, count in seen["left"].items()), *seen["unraised"]])
        failed = failed or bool(left)
        print(f"{way:>14} {options.cycles:>6} {seen['ms']:>8.1f} {seen['rss_kb']:>12}  {left or 'nothing'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
