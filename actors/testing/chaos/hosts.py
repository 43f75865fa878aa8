"""What a host may do to the runtime in it. Each scenario runs in a process of its own, which it may ruin.

A scenario returns one sentence for each fault; beside it run the neighbours of all cases, whose answers must be right.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import importlib.util
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import uuid4

from msgspec import Struct, field

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Reply
from callboard.actors.runtime import Runtime
from callboard.actors.testing.chaos.beside import MARK, NEIGHBOURS, Ended, Host, Play, Victim, marked_processes
from callboard.actors.testing.chaos.judging import code_of, kind_of
from callboard.actors.testing.ways.case import OK, Case, Expected, Group, Level, known
from callboard.actors.testing.ways.healthy import HEALTHY
from callboard.actors.tools import Tool, tool
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId
from callboard.protocol.model import ModelRequest
from callboard.protocol.policy import Policy
from callboard.protocol.tools import Decision, ToolContract
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: For one scenario, with the start of its process; after this it is killed.
SCENARIO_SECONDS: Final = 60.0
#: What Python is told to run, with the name of a scenario behind it.
COMMAND: Final = "import sys; from callboard.actors.testing.chaos.hosts import main; sys.exit(main(sys.argv[1]))"
#: For processes to be gone.
GONE_SECONDS: Final = 5.0
#: Requests of the scenario about contexts.
CONTEXTS: Final = 200
_name: contextvars.ContextVar[str] = contextvars.ContextVar("callboard_chaos_host", default="nobody")


@tool(name="who", concurrency=256)
async def who() -> str:
    """The asker's own value of a context variable, after a while."""
    await asyncio.sleep(0.005)
    return _name.get()


@tool(name="dangerous", needs_approval=True)
def dangerous() -> int:
    """Somebody is asked before it runs."""
    return 1


@tool(name="hangs", timeout=30)
async def hangs() -> None:
    """Until it is cancelled."""
    await asyncio.sleep(30)


def calls_once(name: str) -> Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]:
    """A model that calls one tool and answers with its result."""

    def turn(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
        if results:
            return ScriptedTurn(results[-1].content)
        return ScriptedTurn(calls=(ScriptedCall(name),))

    return turn


class Playing:
    """A runtime of the suite, and its neighbours."""

    def __init__(self, tools: Sequence[Tool] = (), victims: Mapping[str, str] | None = None, **changed: object) -> None:
        approve = changed.pop("approve", None)
        turns = {text: Victim(text, calls_once(name)) for text, name in (victims or {}).items()}
        settings = Host().settings_for(Play(turns, (), 0.1), changed)
        self.runtime = Runtime(settings, tools=[*HEALTHY, *tools], approve=approve)  # type: ignore[arg-type]

    async def neighbours(self, allowed: Expected = (OK,)) -> list[str]:
        """Ask them all. `allowed` is what the model may be told of their calls."""
        asks = [asyncio.ensure_future(self.runtime.ask(f"live {number}")) for number in range(NEIGHBOURS)]
        await asyncio.wait(asks, timeout=25)
        faults = [fault for number, ask in enumerate(asks) for fault in _faults_of(number, ask, allowed)]
        return [f"{len(faults)} other requests went wrong, the first: {faults[0]}"] if faults else []


def _faults_of(number: int, ask: asyncio.Future[Reply], allowed: Expected) -> list[str]:
    if not ask.done():
        return [f"request {number} did not end"]
    if error := ask.exception():
        return [f"request {number} ended with {type(error).__name__}: {error}"]
    reply = ask.result()
    codes = {code_of(message.content) for message in reply.messages if isinstance(message, ToolMessage)}
    if codes - set(allowed):
        return [f"request {number} has calls that ended with {sorted(codes - set(allowed))}"]
    if codes <= {OK} and reply.text != f"live {number}: {number * 2}, {number * 3}, {number * 5}":
        return [f"request {number} was answered {reply.text!r}"]
    return []


Scenario = Callable[[], Coroutine[None, None, list[str]]]


# -- nothing left


@contextlib.contextmanager
def _few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _no_threads() -> Iterator[None]:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuses  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


async def _without(shortage: Callable[[], contextlib.AbstractContextManager[None]]) -> list[str]:
    playing = Playing(warm_workers=0)
    async with playing.runtime:
        with shortage():
            during = await playing.neighbours((OK, "overloaded"))
        return [*during, *await playing.neighbours()]


async def no_descriptors() -> list[str]:
    """EMFILE for every new pipe and socket, then enough again."""
    return await _without(_few_descriptors)


async def no_threads() -> list[str]:
    """No thread can be started, then they can again."""
    return await _without(_no_threads)


# -- forks, descriptors, signals of the host


async def fork_after_start() -> list[str]:
    """The copy may neither hang nor be broken, nor reach the original's runtime."""
    playing = Playing()
    async with playing.runtime:
        pid = os.fork()
        if pid == 0:
            os._exit(_as_copy(playing.runtime))
        faults = await playing.neighbours()
        return [*faults, *await _exit_of(pid)]


async def fork_while_asking() -> list[str]:
    """In the middle of requests."""
    playing = Playing()
    async with playing.runtime:
        asking = asyncio.ensure_future(playing.neighbours())
        await asyncio.sleep(0.05)
        pid = os.fork()
        if pid == 0:
            os._exit(_as_copy(playing.runtime))
        return [*await asking, *await _exit_of(pid)]


def _as_copy(inherited: Runtime) -> int:
    """In a fork: 0 when the runtime of the original refuses, and one of its own works."""
    signal.alarm(20)
    try:
        inherited.ask_sync("live 1")
        return 3
    except UsageError:
        inherited.stop()
    try:
        with Playing().runtime as own:
            return 0 if own.ask_sync("live 2").text == "live 2: 4, 6, 10" else 4
    except BaseException:  # noqa: BLE001 - it must not return into the copy of the scenario
        return 5


async def _exit_of(pid: int) -> list[str]:
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    return [f"the copy ended with status {status}"] if status else []


async def closed_standard_descriptors() -> list[str]:
    """0, 1 and 2 are closed, as in a daemon; new descriptors get these numbers."""
    for number in (0, 1, 2):
        os.close(number)
    playing = Playing()
    async with playing.runtime:
        return await playing.neighbours()


async def ignored_children() -> list[str]:
    """The host ignores SIGCHLD: the kernel reaps its children."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    playing = Playing()
    async with playing.runtime:
        return await playing.neighbours()


async def reaping_host() -> list[str]:
    """The host waits for any child."""
    end = threading.Event()

    def reap() -> None:
        while not end.wait(0.005):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        playing = Playing()
        async with playing.runtime:
            return await playing.neighbours()
    finally:
        end.set()
        thread.join()


async def removed_folder() -> list[str]:
    """The working directory of the host is gone."""
    folder = f"/tmp/callboard-chaos-{os.getpid()}"
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)
    playing = Playing()
    async with playing.runtime:
        return await playing.neighbours()


async def raising_log_handler() -> list[str]:
    """A handler of the host's logging raises."""

    class Raises(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise ValueError("of a log handler")

    logging.getLogger("callboard").addHandler(Raises())
    logging.getLogger("callboard").setLevel(logging.DEBUG)
    playing = Playing([exits], {"exit": "exits"})
    async with playing.runtime:
        own = asyncio.ensure_future(playing.runtime.ask("exit"))
        faults = await playing.neighbours()
        return [*faults, *await _codes(own, ("crashed", "tool_error"))]


@tool(name="exits")
def exits() -> None:
    """Something to log."""
    os._exit(3)


# -- loops and threads of the caller


def _in_a_loop_of_its_own(playing: Playing, text: str) -> str:
    return asyncio.run(playing.runtime.ask(text)).text


async def closed_loop() -> list[str]:
    """Askers whose loop is closed while they wait, and others on loops of their own."""
    playing = Playing([hangs], {"hang": "hangs"})
    async with playing.runtime:

        def abandon() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(playing.runtime.ask("hang"))
            loop.call_later(0.05, loop.stop)
            loop.run_forever()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.close()

        thread = threading.Thread(target=abandon)
        thread.start()
        faults = await playing.neighbours()
        texts = [await asyncio.to_thread(_in_a_loop_of_its_own, playing, "live 4") for _ in range(3)]
        await asyncio.to_thread(thread.join)
        return [*faults, *(f"answered {text!r}" for text in texts if text != "live 4: 8, 12, 20")]


async def many_threads() -> list[str]:
    """Twenty threads that block in ask_sync."""
    playing = Playing()
    async with playing.runtime:
        with ThreadPoolExecutor(20) as threads:
            asks = [threads.submit(playing.runtime.ask_sync, f"live {number}") for number in range(60)]
            faults = await playing.neighbours()
            texts = [await asyncio.wrap_future(ask) for ask in asks]
        wrong = [n for n, reply in enumerate(texts) if reply.text != f"live {n}: {n * 2}, {n * 3}, {n * 5}"]
        return [*faults, *(["answers of threads were mixed up"] if wrong else [])]


async def two_runtimes() -> list[str]:
    """Side by side in one process."""
    first, second = Playing(), Playing()
    async with first.runtime, second.runtime:
        faults = await asyncio.gather(first.neighbours(), second.neighbours())
        return [fault for each in faults for fault in each]


async def cancelled_asks() -> list[str]:
    """Fifty askers give up, each at another time."""
    playing = Playing([hangs], {f"hang {n}": "hangs" for n in range(50)})
    async with playing.runtime:
        asks = [asyncio.ensure_future(playing.runtime.ask(f"hang {number}")) for number in range(50)]
        loop = asyncio.get_running_loop()
        for number, ask in enumerate(asks):
            loop.call_later(number / 200, ask.cancel)
        faults = await playing.neighbours()
        ends = await asyncio.gather(*asks, return_exceptions=True)
        wrong = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
        return [*faults, *(f"a cancelled ask ended with {end!r}" for end in wrong[:1])]


async def stop_while_running() -> list[str]:
    """The runtime is stopped while requests run: each ends, and soon."""
    playing = Playing([hangs], {f"hang {n}": "hangs" for n in range(50)})
    await asyncio.to_thread(playing.runtime.start)
    asks = [asyncio.ensure_future(playing.runtime.ask(f"hang {number}")) for number in range(50)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await asyncio.to_thread(playing.runtime.stop)
    seconds = time.monotonic() - began
    _, late = await asyncio.wait(asks, timeout=5)
    faults = [f"{len(late)} asks did not end when the runtime stopped"] if late else []
    kinds = {kind_of(error) for ask in asks if ask.done() and (error := ask.exception())}
    if kinds - {"RequestEnded", "RuntimeFailure"}:
        faults.append(f"asks ended with {sorted(kinds)}")
    return [*faults, *([f"stop() took {seconds:.0f} s"] if seconds > 11 else [])]


async def contexts() -> list[str]:
    """Requests from different contexts see their own in task tools."""
    playing = Playing([who], {f"ask {n}": "who" for n in range(CONTEXTS)})
    async with playing.runtime:

        async def ask(number: int) -> bool:
            _name.set(f"context {number}")
            await asyncio.sleep(number / 2_000)
            reply = await playing.runtime.ask(f"ask {number}")
            return f"context {number}" in reply.text

        asks = [asyncio.ensure_future(ask(number)) for number in range(CONTEXTS)]
        faults = await playing.neighbours()
        mixed = [own for own in await asyncio.gather(*asks) if not own]
        return [*faults, *([f"{len(mixed)} of {CONTEXTS} requests saw another's context"] if mixed else [])]


def no_trio() -> str:
    """Why not, in one sentence."""
    return "" if importlib.util.find_spec("trio") else "trio is not installed"


async def under_trio() -> list[str]:
    """Another event loop library."""
    playing = Playing()
    async with playing.runtime:
        import trio  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - only where it is installed

        def ask_there() -> str:
            try:
                trio.run(playing.runtime.ask, "live 1")
            except UsageError:
                return ""
            except BaseException as error:  # noqa: BLE001 - any other is the fault
                return f"under trio an ask ends with {error!r}"
            return "under trio an ask was answered"

        said = await asyncio.to_thread(ask_there)
        return [*await playing.neighbours(), *([said] if said else [])]


async def left_stream() -> list[str]:
    """Readers of streams leave after the first event."""
    playing = Playing([hangs], {f"hang {n}": "hangs" for n in range(20)})
    async with playing.runtime:

        async def leave(number: int) -> None:
            stream = playing.runtime.stream(f"hang {number}")
            async for _ in stream:
                break

        leaving = [asyncio.ensure_future(leave(number)) for number in range(20)]
        faults = await playing.neighbours()
        await asyncio.gather(*leaving)
        return faults


# -- what the host gives to the runtime


async def _codes(ask: asyncio.Future[Reply], expected: Expected) -> list[str]:
    _, late = await asyncio.wait([ask], timeout=25)
    if late:
        return ["its request did not end"]
    ended = Ended(None, error) if (error := ask.exception()) else Ended(ask.result())
    if ended.error is not None:
        return [f"its request ended with {type(ended.error).__name__}: {ended.error}"]
    assert ended.reply is not None
    codes = [code_of(m.content) for m in ended.reply.messages if isinstance(m, ToolMessage)]
    return [] if set(codes) <= set(expected) else [f"the model was told {codes}"]


async def _approved_by(approve: Callable[[object], object], **changed: object) -> list[str]:
    playing = Playing([dangerous], {"danger": "dangerous"}, approve=approve, **changed)
    async with playing.runtime:
        own = asyncio.ensure_future(playing.runtime.ask("danger"))
        faults = await playing.neighbours()
        return [*faults, *await _codes(own, ("denied",))]


def _raise(error: BaseException) -> Callable[[object], object]:
    def approve(_question: object) -> object:
        raise error

    return approve


async def approver_raises() -> list[str]:
    """An approver that raises has not approved."""
    return await _approved_by(_raise(ValueError("approver")))


async def approver_exits() -> list[str]:
    """Nor has one that calls sys.exit."""
    return await _approved_by(_raise(SystemExit(3)))


async def approver_unsure() -> list[str]:
    """Nor one that returns something that is merely true."""
    return await _approved_by(lambda _question: "perhaps")


async def approver_hangs() -> list[str]:
    """One that never answers costs its own call, at the end of the time for that."""

    def approve(_question: object) -> object:
        threading.Event().wait(20)
        return True

    return await _approved_by(approve, approval_timeout_seconds=2.0)


class _BrokenPolicy(Policy):
    def decide(self, contract: ToolContract) -> Decision:
        if contract.needs_approval:
            raise ValueError("of a policy")
        return super().decide(contract)


async def policy_raises() -> list[str]:
    """A policy that raises denies."""
    playing = Playing([dangerous], {"danger": "dangerous"}, policy=_BrokenPolicy())
    async with playing.runtime:
        own = asyncio.ensure_future(playing.runtime.ask("danger"))
        return [*await playing.neighbours(), *await _codes(own, ("denied", "unknown_tool"))]


async def illegal_history() -> list[str]:
    """A conversation that no provider takes: refused at once."""
    history = (UserMessage.of("Hello"), ToolMessage(CallId("orphan"), "tool", "result"))  # type: ignore[arg-type]
    playing = Playing()
    async with playing.runtime:
        conversation = Conversation(history)
        own = asyncio.ensure_future(playing.runtime.ask("live 1", conversation=conversation))
        faults = await playing.neighbours()
        _, late = await asyncio.wait([own], timeout=2)
        if late:
            own.cancel()
            return [*faults, "an illegal history is not refused at once"]
        error = own.exception()
        return [*faults, *([] if isinstance(error, UsageError) else [f"an illegal history ends with {error!r}"])]


async def restarts() -> list[str]:
    """Started and stopped ten times: as many threads and descriptors as before."""
    before = (0, 0)
    for number in range(11):
        playing = Playing()
        async with playing.runtime:
            if faults := await playing.neighbours() if number in (0, 10) else []:
                return faults
        if number == 0:
            before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    after = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    is_flat = after[0] <= before[0] + 1 and after[1] <= before[1] + 2
    return [] if is_flat else [f"threads and descriptors were {before}, and are {after}"]


# -- ends of the host


async def dropped() -> list[str]:
    """A runtime that is forgotten without stop(): warned of, and ended."""
    mark = uuid4().hex
    os.environ[MARK] = mark
    playing = Playing()
    await asyncio.to_thread(playing.runtime.start)
    faults = await playing.neighbours()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del playing
        gc.collect()
        await _gone(mark)
    if not any(issubclass(each.category, ResourceWarning) for each in caught):
        faults.append("nobody was warned of a runtime that was dropped without stop()")
    if left := marked_processes(mark):
        faults.append(f"{len(left)} processes live on after their runtime was dropped")
    return faults


async def _gone(mark: str) -> list[int]:
    until = time.monotonic() + GONE_SECONDS
    while (left := marked_processes(mark)) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return left


async def _host_ends(how: str, number: int | None) -> list[str]:
    """Another host, which ends without stop(), or is killed by this signal."""
    mark = uuid4().hex
    command = [sys.executable, "-c", COMMAND, how]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, MARK: mark})  # noqa: ASYNC220
    try:
        assert host.stdout is not None
        line = await asyncio.to_thread(host.stdout.readline)
        faults = [] if line == b"running\n" else [f"the host said {line!r}"]
        if number is not None:
            host.send_signal(number)
        status = await asyncio.to_thread(host.wait, 15)
        if number is None and status != 0:
            faults.append(f"the host ended with status {status}")
    except subprocess.TimeoutExpired:
        faults = ["the host does not end"]
    finally:
        host.kill()
        host.communicate()
    left = await _gone(mark)
    return [*faults, *([f"{len(left)} processes live on after their host"] if left else [])]


async def exit_without_stop() -> list[str]:
    """The main thread of the host ends."""
    return await _host_ends("leaves", None)


async def killed() -> list[str]:
    """kill -9 of the host."""
    return await _host_ends("waits", signal.SIGKILL)


async def terminated() -> list[str]:
    """kill of the host."""
    return await _host_ends("waits", signal.SIGTERM)


async def _leaves() -> list[str]:
    playing = Playing()
    _kept.append(playing.runtime.start())
    faults = await playing.neighbours()
    sys.stdout.write("running\n" if not faults else f"{faults}\n")
    sys.stdout.flush()
    return []


async def _waits() -> list[str]:
    await _leaves()
    await asyncio.sleep(30)
    return []


_kept: list[Runtime] = []


class HostWay(Struct, frozen=True):
    """A row of the table."""

    name: str
    what: str
    scenario: Scenario
    expected: str = OK
    why_not: Callable[[], str] | None = None
    hidden: bool = field(default=False)


HOSTS: Final = (
    HostWay("no-descriptors", "has no descriptor left (EMFILE)", no_descriptors, "ok overloaded"),
    HostWay("no-threads", "can start no thread", no_threads, "ok overloaded"),
    HostWay("fork-after-start", "forks right after start()", fork_after_start),
    HostWay("fork-while-asking", "forks while requests run", fork_while_asking),
    HostWay("closed-descriptors", "has closed descriptors 0 to 2", closed_standard_descriptors),
    HostWay("ignores-sigchld", "ignores SIGCHLD", ignored_children),
    HostWay("reaps", "waits for any child", reaping_host),
    HostWay("removed-folder", "works in a folder that was removed", removed_folder),
    HostWay("log-handler", "has a log handler that raises", raising_log_handler, "crashed tool_error"),
    HostWay("closed-loop", "closes the loop of an asker", closed_loop),
    HostWay("threads", "asks from 20 threads", many_threads),
    HostWay("two-runtimes", "has two runtimes", two_runtimes),
    HostWay("cancelled-asks", "cancels 50 asks", cancelled_asks),
    HostWay(
        "stop-while-running",
        "stops the runtime while 50 requests run",
        stop_while_running,
        "RequestEnded RuntimeFailure",
    ),
    HostWay("contexts", "asks from 200 contexts", contexts),
    HostWay("trio", "asks under trio", under_trio, "UsageError", no_trio),
    HostWay("left-streams", "leaves 20 streams after their first event", left_stream),
    HostWay("approver-raises", "has an approver that raises", approver_raises, "denied"),
    HostWay("approver-exits", "has an approver that calls sys.exit", approver_exits, "denied"),
    HostWay("approver-unsure", "has an approver that returns a text", approver_unsure, "denied"),
    HostWay("approver-hangs", "has an approver that never answers", approver_hangs, "denied"),
    HostWay("policy-raises", "has a policy that raises", policy_raises, "denied"),
    HostWay("illegal-history", "asks with a history that no provider takes", illegal_history, "UsageError"),
    HostWay("restarts", "starts and stops ten runtimes", restarts),
    HostWay("dropped", "forgets a runtime without stop()", dropped),
    HostWay("exit", "ends without stop()", exit_without_stop),
    HostWay("killed", "is killed (SIGKILL)", killed),
    HostWay("terminated", "is terminated (SIGTERM)", terminated),
)
_HELPERS: Final[Mapping[str, Scenario]] = {"leaves": _leaves, "waits": _waits}

HOST: Final = tuple(
    Case(f"{Group.HOST}/{row.name}", Group.HOST, Level.HOST, row.what, known(row.expected), row, why_not=row.why_not)
    for row in HOSTS
)


def main(name: str) -> int:
    """Run one scenario and print its faults, as a JSON list."""
    scenarios = {row.name: row.scenario for row in HOSTS} | dict(_HELPERS)
    logging.getLogger("callboard").setLevel(logging.CRITICAL + 1)
    told = os.dup(1)
    faults = asyncio.run(scenarios[name]())
    if name not in _HELPERS:
        os.write(told, f"{json.dumps(faults)}\n".encode())
    return 0
