"""A runtime's start and its ends: ready or an error, no request without an end, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.marked import processes_with

from callboard.actors.kernel import stop_child
from callboard.actors.requests import backstop, replies
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError
from callboard.protocol.ids import CallId, RequestId, ToolName
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn, echo

Until = Callable[[Callable[[], bool]], None]
#: The first of them come right after the start.
FORKS = 20 if os.environ.get("CALLBOARD_DEEP") else 5


@tool
async def hang() -> None:
    await asyncio.Event().wait()


def settings_for(script: Any = echo, **more: Any) -> Settings:
    return Settings(model="scripted/model", script=script, **more)


HANGS = [ScriptedTurn(calls=(ScriptedCall("hang"),))] * 100


OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    """Threads that earlier tests have left: a tool of theirs may still sleep in one."""
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def ours() -> list[str]:
    threads = [thread for thread in threading.enumerate() if thread not in OTHERS]
    return [thread.name for thread in threads if thread.name.startswith(("callboard", "root"))]


# -- start() returns ready or raises


def test_every_actor_runs_when_start_returns() -> None:
    with Runtime(settings_for()) as runtime:
        (root,) = runtime.tree()
        assert {child.state for child in root.children} == {"running"}


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (OSError("no disk"), RuntimeFailure, "could not start, and nothing of it is left running: .*no disk"),
        (UsageError("a bad setting"), UsageError, "^a bad setting$"),
        (SystemExit(1), RuntimeFailure, "could not start"),
    ],
)
def test_an_actor_that_cannot_start_is_told_and_nothing_is_left(
    error: BaseException, expected: type[Exception], words: str, until: Until
) -> None:
    runtime = Runtime(settings_for())
    plan_of = runtime._wiring.plan

    def broken(*arguments: Any) -> Any:
        def telemetry() -> Any:
            raise error

        return replace(plan_of(*arguments), telemetry=telemetry)

    runtime._wiring.plan = broken  # type: ignore[method-assign]
    with pytest.raises(expected, match=words):
        runtime.start()
    until(lambda: not ours())
    with pytest.raises(UsageError, match="not running"):
        runtime.statistics()
    runtime._wiring.plan = plan_of  # type: ignore[method-assign]
    with runtime:
        assert runtime.ask_sync("hello").text == "hello"


def test_a_host_without_a_thread_left_is_told_so(monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    runtime = Runtime(settings_for())

    def no_more(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        # What Thread.start calls: its name is another since Python 3.13.
        name = "_start_new_thread" if hasattr(threading, "_start_new_thread") else "_start_joinable_thread"
        patch.setattr(threading, name, no_more)
        with pytest.raises(RuntimeFailure, match=r"could not start.*can't start new thread"):
            runtime.start()
    until(lambda: not ours())
    with runtime:
        assert runtime.ask_sync("hello").text == "hello"


def test_without_asyncio_it_says_what_to_do() -> None:
    """As under trio, which runs coroutines without an asyncio loop."""
    runtime = Runtime(settings_for())
    with pytest.raises(UsageError, match=r"ask_sync.*to_thread"):
        runtime.__aenter__().send(None)
    with runtime:
        with pytest.raises(UsageError, match=r"await runtime.ask\(\.\.\.\) needs a running asyncio event loop"):
            runtime.ask("hello").send(None)
        with pytest.raises(UsageError, match="to_thread"):
            runtime.stream("hello")
        assert runtime.ask_sync("hello").text == "hello"


# -- no request without an end


def test_an_illegal_conversation_is_refused_at_once() -> None:
    """The caller waited without end."""
    orphan = Conversation((ToolMessage(CallId("c"), ToolName("t"), "1"),))

    async def ask(runtime: Runtime) -> None:
        with pytest.raises(UsageError, match="no provider would accept"):
            await runtime.ask("go", conversation=orphan)
        with pytest.raises(UsageError, match="no provider would accept"):
            runtime.stream("go", conversation=orphan)

    with Runtime(settings_for()) as runtime:
        with pytest.raises(UsageError, match="no provider would accept"):
            runtime.ask_sync("go", conversation=orphan)
        asyncio.run(ask(runtime))
        assert runtime.ask_sync("hello").text == "hello"


@pytest.mark.parametrize("name", ["telemetry", "llm_manager", "dispatcher", "sessions", "tools"])
def test_an_ask_ends_whichever_actor_is_missing(name: str, until: Until) -> None:
    with Runtime(settings_for(request_timeout_seconds=0.5)) as runtime:
        system = runtime._live().system
        stop_child(system.ref("root"), name)
        until(lambda: f"root/{name}" not in [child.name for child in runtime.tree()[0].children])
        conversation = Conversation()
        try:
            assert runtime.ask_sync("hello", conversation=conversation).text == "hello"
        except CallboardError as error:
            assert name in str(error) or "stopping" in str(error)  # noqa: PT017 - either end is one
        conversation.take(RequestId("r"))


def test_an_ask_ends_when_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "ANSWER_GRACE_SECONDS", 0.1)
    free = threading.Event()
    with Runtime(settings_for(request_timeout_seconds=0.1)) as runtime:
        runtime._live().system.scheduler.call_soon(lambda: free.wait(30))

        async def ask() -> None:
            with pytest.raises(RuntimeFailure, match="loop is blocked, or its actors were lost"):
                await runtime.ask("hello")

        try:
            with pytest.raises(RuntimeFailure, match="loop is blocked, or its actors were lost"):
                runtime.ask_sync("hello")
            asyncio.run(ask())
        finally:
            free.set()


async def test_requests_that_had_just_begun_end_as_all_others_when_the_runtime_stops() -> None:
    for _ in range(20):
        runtime = await asyncio.to_thread(Runtime(settings_for(HANGS), tools=[hang]).start)
        asking = [asyncio.create_task(runtime.ask(f"go {n}")) for n in range(10)]
        await asyncio.sleep(0)
        await asyncio.to_thread(runtime.stop)
        ends = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(end) for end in ends} == {RequestEnded}
        assert {str(end) for end in ends} == {"the runtime is stopping"}
        assert {end.reply.outcome for end in ends if isinstance(end, RequestEnded)} == {Outcome.CANCELLED}


async def test_a_stream_that_nobody_reads_costs_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_UNREAD_BYTES", 100_000)
    endless = ScriptedTurn("0123456789" * 200_000, chunk_chars=1_000)
    async with Runtime(settings_for([endless])) as runtime:
        stream = runtime.stream("go")
        await asyncio.wait({asyncio.ensure_future(stream.answer.wait_async())})
        assert stream._came_bytes - stream._read_bytes < 200_000

        async def read() -> Reply | None:
            return [item async for item in stream if isinstance(item, Reply)][-1]

        with pytest.raises(RequestEnded, match=r"has left .* of its events unread"):
            await read()


# -- dropped, forked, without descriptors


def test_a_runtime_that_is_dropped_is_told_of_and_ended(until: Until) -> None:
    runtime = [Runtime(settings_for(), tools=[hang]).start()]
    assert runtime[0].ask_sync("hello").text == "hello"
    with pytest.warns(ResourceWarning, match="dropped without stop"):
        runtime.clear()  # a runtime is in no circle of references: it goes at once
    until(lambda: not ours())


def test_a_stopped_runtime_may_be_dropped() -> None:
    runtime = Runtime(settings_for()).start()
    runtime.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del runtime
        gc.collect()


def run_script(script: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    preface = "from callboard.actors import Runtime, Settings, tool\nimport os, sys, signal\n"
    # Since Python 3.12 a fork of the script's own, which has threads by then, is warned of.
    warnings = ("-W", "always::ResourceWarning", "-W", "ignore:This process:DeprecationWarning")
    return subprocess.run(
        [sys.executable, *warnings, "-c", preface + script],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_a_runtime_left_at_the_end_of_the_process_is_told_of_and_ended(tmp_path: Path) -> None:
    """With its child processes."""
    script = tmp_path / "left.py"
    script.write_text(
        """
from callboard.actors import Runtime, Settings, tool
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

@tool
def work() -> str:
    return "ok"

if __name__ == "__main__":
    turns = [ScriptedTurn(calls=(ScriptedCall("work"),)), ScriptedTurn("done")]
    settings = Settings(model="scripted/model", script=turns, tool_environment=("MARK",))
    runtime = Runtime(settings, [work], approve=lambda question: True).start()
    print(runtime.ask_sync("go").messages[2].content, flush=True)
"""
    )
    mark = f"left-{os.getpid()}"
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", str(script)],
        env={**os.environ, "MARK": mark},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "ok\n"), ended.stderr
    assert "dropped without stop()" in ended.stderr
    assert processes_with(mark) == []


@pytest.mark.repeats
@pytest.mark.timeout(20 + 10 * FORKS)
def test_a_fork_right_after_the_start_is_no_runtime_and_ends_as_any_process() -> None:
    ended = run_script(
        f"forks = {FORKS}\n"
        """
signal.alarm(10 + 9 * forks)  # one takes 0.2 s, and 2 s beside eight processes that do something else
runtime = Runtime(Settings(model="scripted/model"), approve=lambda question: True).start()
for _ in range(forks):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        ask, cancel = (lambda: runtime.ask_sync("hello")), (lambda: runtime.cancel("x"))
        for use in (ask, cancel, runtime.tree, runtime.metrics, runtime.start):
            try:
                use()
            except Exception as error:
                assert type(error).__name__ == "UsageError", error
                assert "before its process was forked" in str(error), error
            else:
                os._exit(3)
        runtime.stop()
        sys.exit(0)  # runs the exit hooks
    assert os.waitpid(child, 0)[1] == 0
print(runtime.ask_sync("hello").text)
runtime.stop()
""",
        timeout=20 + 10 * FORKS,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "hello\n", "")


def test_a_runtime_made_before_a_fork_can_be_started_in_it() -> None:
    ended = run_script(
        """
runtime = Runtime(Settings(model="scripted/model"))
child = os.fork()
if child == 0:
    signal.alarm(20)
    with runtime:
        assert runtime.ask_sync("hello").text == "hello"
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_a_host_that_has_closed_its_standard_descriptors(tmp_path: Path, closed: tuple[int, ...]) -> None:
    said = tmp_path / "said"
    script = f"""
for descriptor in {closed}:
    os.close(descriptor)
with Runtime(Settings(model="scripted/model")) as runtime:
    text = runtime.ask_sync("hello").text
    os.write(1, b"to nowhere, and not into a socket")
    os.write(2, b"to nowhere, and not into a socket")
    text += runtime.ask_sync(" again").text
with open({str(said)!r}, "w") as file:
    file.write(text)
os._exit(0)
"""
    assert run_script(script).returncode == 0
    assert said.read_text() == "hello again"


def test_the_example_of_an_embedding_program_runs() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "embedded.py"
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        *(f"You are {name}." for name in ("Ada", "Grace", "Alan", "Edsger")),
        "4 requests were answered.",
    ]
