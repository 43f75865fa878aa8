"""The Runtime as a host sees it: async and sync, several at once, beside the host's own loop, threads and actors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
import pykka
import pytest
from support.marked import processes_with

from callboard.actors.kernel import ActorInfo, ActorSystem, Down, NoSuchActor, Ref
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import ModelCallFailed, RequestEnded
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.commands import AskApproval, Outcome
from callboard.protocol.content import ToolMessage, UserMessage, history_faults
from callboard.protocol.errors import ErrorKind, RuntimeFailure, ToolError, UsageError
from callboard.protocol.ids import RequestId
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.model import Error, ModelRequest
from callboard.protocol.policy import TABLES, Policy, Trust
from callboard.protocol.tools import HINTS_AFTER_EFFECT, RETRY_HINTS, Decision, FailureCode, Origin, Risk
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn, echo

Until = Callable[[Callable[[], bool]], None]


@tool(isolation="thread", concurrency=64)
def double(x: int) -> int:
    return 2 * x


ENTERED: list[float] = []
"""When `wait_for_ever` began, each time: a task tool lives in this process."""


@tool
async def wait_for_ever() -> None:
    ENTERED.append(time.monotonic())
    await asyncio.Event().wait()


@tool(isolation="thread", risk="write")
def write(x: int) -> int:
    return x


def settings_for(script: Any = echo, **more: Any) -> Settings:
    return Settings(model="scripted/model", script=script, **more)


def calls_then_answer(*calls: ScriptedCall, answer: str = "done") -> Callable[[ModelRequest], ScriptedTurn]:
    """A model that makes these calls once a question, then answers."""

    def script(request: ModelRequest) -> ScriptedTurn:
        last = max(at for at, message in enumerate(request.messages) if isinstance(message, UserMessage))
        if any(isinstance(message, ToolMessage) for message in request.messages[last:]):
            return ScriptedTurn(answer)
        return ScriptedTurn(calls=calls)

    return script


HANGS = calls_then_answer(ScriptedCall("wait_for_ever"))


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def settled(runtime: Runtime) -> bool:
    statistics = runtime.statistics()
    return statistics.queued == 0 and statistics.unaccounted == 0


# -- what a model may do


def test_a_tool_is_listed_with_its_risk_and_what_the_policy_says_of_it() -> None:
    @tool(isolation="thread", risk="execute")
    def launch() -> None: ...

    policy = Policy({**TABLES[Trust.BALANCED], Risk.EXECUTE: Decision.DENY})
    with Runtime(settings_for(policy=policy), tools=[double, write, launch]) as runtime:
        offers = {offer.definition.name: (offer.contract.risk, offer.decision) for offer in runtime.tools()}
    assert offers == {
        "double": (Risk.UNDECLARED, Decision.ALLOW),
        "write": (Risk.WRITE, Decision.ASK),
        "launch": (Risk.EXECUTE, Decision.DENY),
    }


def test_tools_passed_to_a_runtime_are_its_owners_and_run_unasked() -> None:
    script = calls_then_answer(ScriptedCall("double", {"x": 4}))
    with Runtime(settings_for(script), tools=[double], approve=lambda question: False) as runtime:
        reply = runtime.ask_sync("go")
    assert double.origin is Origin.ELSEWHERE, "the tool itself is left as it was"
    assert [m.content for m in reply.messages if isinstance(m, ToolMessage)] == ["8"]


def test_an_owner_may_want_to_be_asked_about_undeclared_tools() -> None:
    asked: list[AskApproval] = []

    def approve(question: AskApproval) -> bool:
        asked.append(question)
        return True

    policy = Policy({Risk.UNDECLARED: Decision.ASK})
    script = calls_then_answer(ScriptedCall("double", {"x": 4}))
    with Runtime(settings_for(script, policy=policy), tools=[double], approve=approve) as runtime:
        runtime.ask_sync("go")
    assert [(question.name, question.risk) for question in asked] == [("double", Risk.UNDECLARED)]


def test_a_denied_tool_is_not_offered_and_a_call_of_it_is_denied() -> None:
    requests: list[ModelRequest] = []

    def script(request: ModelRequest) -> ScriptedTurn:
        requests.append(request)
        return calls_then_answer(ScriptedCall("write", {"x": 1}), ScriptedCall("nowhere"))(request)

    policy = Policy({Risk.UNDECLARED: Decision.ALLOW})
    with Runtime(settings_for(script, policy=policy), tools=[double, write], approve=lambda question: True) as runtime:
        reply = runtime.ask_sync("go")
    assert [[definition.name for definition in request.tools] for request in requests] == [["double"]] * 2
    denied, unknown = (orjson.loads(m.content) for m in reply.messages if isinstance(m, ToolMessage))
    assert (denied["code"], unknown["code"]) == ("denied", "unknown_tool")
    assert unknown["expected"] == "one of: double"


LET_GO = threading.Event()


@tool(isolation="thread", timeout=0.05)
def hangs() -> None:
    LET_GO.wait(10)


@tool
def dies(how: str) -> object:
    """In a process of its own."""
    match how:
        case "raises":
            raise OSError("no such file")
        case "tool error":
            raise ToolError("that city is not known")
        case "exits":
            os._exit(3)
        case "sys.exit":
            raise SystemExit(3)
        case "large":
            return "x" * (MAX_RESULT_BYTES + 1)
        case "NaN":
            return {"x": float("nan")}
        case _:
            return object()


def test_every_failure_of_a_real_call_says_what_to_do_next() -> None:
    hows = ("raises", "tool error", "exits", "sys.exit", "large", "NaN", "no JSON")
    calls = [
        *(ScriptedCall("dies", {"how": how}) for how in hows),
        ScriptedCall("hangs"),
        ScriptedCall("double", {"x": "two"}),
        ScriptedCall("write", {"x": 1}),
        ScriptedCall("nowhere"),
    ]
    with Runtime(settings_for(calls_then_answer(*calls)), tools=[double, write, hangs, dies]) as runtime:
        reply = runtime.ask_sync("go")
        LET_GO.set()
    told = [orjson.loads(m.content) for m in reply.messages if isinstance(m, ToolMessage)]
    assert [each["code"] for each in told] == [
        *("tool_error", "tool_error", "crashed", "crashed", "result_too_large", "invalid_result", "invalid_result"),
        *("timed_out", "invalid_arguments", "denied", "unknown_tool"),
    ]
    # What these tools do they do not say: it may be there, and a second call may do it again.
    hints = {**RETRY_HINTS, **HINTS_AFTER_EFFECT}
    assert [each["retry_hint"] for each in told] == [hints[FailureCode(each["code"])] for each in told]


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [(itertools.count(), Outcome.ANSWERED), (itertools.repeat("pending"), Outcome.REPEATED_CALLS)],
    ids=["changing", "the same"],
)
def test_a_model_may_poll_as_long_as_the_answers_change(answers: Iterator[object], outcome: Outcome) -> None:
    @tool(isolation="thread")
    def poll(job: int) -> str:
        return str(next(answers))

    def script(request: ModelRequest) -> ScriptedTurn:
        polls = sum(isinstance(message, ToolMessage) for message in request.messages)
        return ScriptedTurn("done") if polls == 12 else ScriptedTurn(calls=(ScriptedCall("poll", {"job": 1}),))

    with Runtime(settings_for(script), tools=[poll]) as runtime:
        if outcome is Outcome.ANSWERED:
            assert len(runtime.ask_sync("wait for job 1").steps) == 13
        else:
            with pytest.raises(RequestEnded) as caught:
                runtime.ask_sync("wait for job 1")
            assert caught.value.reply.outcome is outcome
            assert len(caught.value.reply.steps) == 5


# -- asking


def test_sync() -> None:
    with Runtime(settings_for(calls_then_answer(ScriptedCall("double", {"x": 21}))), tools=[double]) as runtime:
        reply = runtime.ask_sync("twice 21?")
    assert (reply.text, reply.outcome, len(reply.steps)) == ("done", Outcome.ANSWERED, 2)
    assert [type(message).__name__ for message in reply.messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
    ]
    assert reply.messages[2].content == "42"  # type: ignore[union-attr]


async def test_async() -> None:
    async with Runtime(settings_for()) as runtime:
        assert (await runtime.ask("hello")).text == "hello"


def test_any_number_of_threads_may_ask() -> None:
    with Runtime(settings_for()) as runtime:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: texts.append(runtime.ask_sync(f"from {n}").text)) for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(texts) == sorted(f"from {n}" for n in range(16))


async def test_a_thousand_requests_at_once() -> None:
    script = calls_then_answer(ScriptedCall("double", {"x": 1}), ScriptedCall("double", {"x": 2}))
    async with Runtime(settings_for(script), tools=[double]) as runtime:
        replies = await asyncio.gather(*(runtime.ask(f"question {n}") for n in range(1_000)))
        assert {reply.text for reply in replies} == {"done"}
        assert len({reply.request_id for reply in replies}) == 1_000
        assert all([m.content for m in reply.messages if isinstance(m, ToolMessage)] == ["2", "4"] for reply in replies)


async def test_a_stream_shows_what_happens_and_ends_with_the_reply() -> None:
    script = calls_then_answer(ScriptedCall("double", {"x": 1}))
    async with Runtime(settings_for(script), tools=[double]) as runtime:
        kinds = [type(item).__name__ async for item in runtime.stream("go")]
    assert kinds[-1] == "Reply"
    assert kinds.index("RunTool") < kinds.index("ToolCallStarted") < kinds.index("ToolCallCompleted")


def test_a_stream_without_a_loop_says_what_to_do() -> None:
    with Runtime(settings_for()) as runtime, pytest.raises(UsageError, match="use ask_sync"):
        runtime.stream("hello")


async def test_a_long_answer_in_tiny_pieces_arrives_whole() -> None:
    """A provider that never waits fills the session's mailbox faster than it is emptied; it is held up, not failed."""
    text = "0123456789" * 2_000
    async with Runtime(settings_for([ScriptedTurn(text, chunk_chars=1)])) as runtime:
        assert (await runtime.ask("go")).text == text
        assert runtime.statistics().restarts == 0


async def test_a_request_id_is_free_again_as_soon_as_its_answer_is_there() -> None:
    async with Runtime(settings_for()) as runtime:
        for _ in range(100):
            assert (await runtime.ask("hello", request_id="mine")).request_id == "mine"


async def test_a_request_id_in_use_and_one_with_a_slash_are_refused() -> None:
    async with Runtime(settings_for(HANGS), tools=[wait_for_ever]) as runtime:
        first = asyncio.create_task(runtime.ask("go", request_id="mine"))
        await asyncio.sleep(0)
        conversation = Conversation()
        with pytest.raises(UsageError, match="'mine' is running; choose another"):
            await runtime.ask("go", request_id="mine", conversation=conversation)
        conversation.take(RequestId("r"))
        with pytest.raises(UsageError, match="slash"):
            await runtime.ask("go", request_id="a/b")
        assert runtime.cancel("mine")
        with pytest.raises(RequestEnded):
            await first


# -- ends other than an answer


async def test_cancelling_the_waiting_task_cancels_the_request(until: Until) -> None:
    async with Runtime(settings_for(HANGS), tools=[wait_for_ever]) as runtime:
        conversation, before = Conversation(), len(ENTERED)
        asking = asyncio.create_task(runtime.ask("go", conversation=conversation))
        await asyncio.to_thread(until, lambda: len(ENTERED) > before)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(until, lambda: not sessions(runtime))
        assert conversation.messages
        assert not history_faults(conversation.messages)


def sessions(runtime: Runtime) -> list[str]:
    return [info.name for info in flat(runtime.tree()) if info.name.startswith("root/sessions/")]


def flat(tree: tuple[ActorInfo, ...]) -> list[ActorInfo]:
    return [each for info in tree for each in (info, *flat(info.children))]


async def test_cancel_by_id_ends_the_request_and_names_the_reason() -> None:
    async with Runtime(settings_for(HANGS), tools=[wait_for_ever]) as runtime:
        stream = runtime.stream("go")

        async def change_my_mind() -> None:
            async for item in stream:
                if type(item).__name__ == "ToolCallStarted":
                    assert runtime.cancel(stream.request_id, "I changed my mind")

        with pytest.raises(RequestEnded, match="I changed my mind") as caught:
            await change_my_mind()
        assert caught.value.reply.outcome is Outcome.CANCELLED
        assert not runtime.cancel("nobody")


async def test_a_failed_model_is_the_callers_exception() -> None:
    error = Error(ErrorKind.AUTHENTICATION, "bad key")
    async with Runtime(settings_for([ScriptedTurn(error=error)])) as runtime:
        with pytest.raises(ModelCallFailed, match="bad key") as caught:
            await runtime.ask("go")
    assert caught.value.kind is ErrorKind.AUTHENTICATION
    assert not caught.value.retryable


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt(), ValueError("no")])
async def test_whatever_a_provider_raises_ends_its_request_and_no_other(error: BaseException) -> None:
    def script(request: ModelRequest) -> ScriptedTurn:
        if "die" in str(request.messages):
            raise error
        return ScriptedTurn("fine")

    async with Runtime(settings_for(script)) as runtime:
        dying, living = await asyncio.gather(runtime.ask("die"), runtime.ask("live"), return_exceptions=True)
        assert isinstance(dying, ModelCallFailed)
        assert type(error).__name__ in str(dying)
        assert not isinstance(living, BaseException)
        assert (await runtime.ask("still there?")).text == "fine"


async def test_a_request_out_of_time_ends() -> None:
    async with Runtime(settings_for(HANGS, request_timeout_seconds=0.2), tools=[wait_for_ever]) as runtime:
        with pytest.raises(RequestEnded) as caught:
            await runtime.ask("go")
    assert caught.value.reply.outcome is Outcome.TIMED_OUT


# -- the caller's mistakes


@tool
def read_variables() -> list[str | None]:
    return [os.environ.get("WEATHER_KEY"), os.environ.get("OTHER_KEY")]


def test_a_tools_process_gets_the_variables_named_for_it_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "w")
    monkeypatch.setenv("OTHER_KEY", "o")
    settings = settings_for(calls_then_answer(ScriptedCall("read_variables")), tool_environment=("WEATHER_KEY", "NONE"))
    with Runtime(settings, tools=[read_variables]) as runtime:
        reply = runtime.ask_sync("which?")
    assert isinstance(reply.messages[2], ToolMessage)
    assert reply.messages[2].content == '["w",null]'


def test_a_question_that_is_no_text_is_refused() -> None:
    question: Any = 5
    with (
        Runtime(settings_for()) as runtime,
        pytest.raises(UsageError, match="must be a str, a part or a list of them, not an int"),
    ):
        runtime.ask_sync(question)


def test_an_empty_question_is_refused() -> None:
    with Runtime(settings_for()) as runtime, pytest.raises(UsageError, match="empty"):
        runtime.ask_sync("  ")


def test_asking_before_the_start_and_after_the_stop_says_what_to_do() -> None:
    runtime = Runtime(settings_for())
    with pytest.raises(UsageError, match="not running; use it as `with"):
        runtime.ask_sync("hello")
    with runtime:
        runtime.ask_sync("hello")
    for call in (lambda: runtime.ask_sync("hello"), runtime.metrics, runtime.tree, runtime.statistics):
        with pytest.raises(UsageError, match="not running"):
            call()
    assert not runtime.cancel("whatever")
    runtime.stop()


def test_a_second_start_is_refused() -> None:
    with Runtime(settings_for()) as runtime, pytest.raises(UsageError, match="running already"):
        runtime.start()


def test_two_tools_of_one_name_and_what_is_no_function_are_refused() -> None:
    with pytest.raises(UsageError, match="two tools are called 'double'"):
        Runtime(settings_for(), tools=[double, double])
    with pytest.raises(UsageError, match="put a def around it"):
        Runtime(settings_for(), tools=[len])
    for given in (3, [double], {"double": double}, int, None):
        with pytest.raises(UsageError, match="is not a tool; give a function"):
            Runtime(settings_for(), tools=[given])  # type: ignore[list-item]


def test_one_request_at_a_time_in_a_conversation_and_a_refused_one_leaves_it_free() -> None:
    conversation = Conversation()
    with Runtime(settings_for(max_concurrent_requests=1)) as runtime:
        conversation.take(RequestId("r"))
        with pytest.raises(UsageError, match="has a request running"):
            runtime.ask_sync("hello", conversation=conversation)
        conversation.release()
        assert runtime.ask_sync("hello", conversation=conversation).text == "hello"
        assert len(conversation.messages) == 2


async def test_too_many_requests_are_refused() -> None:
    async with Runtime(settings_for(HANGS, max_concurrent_requests=1), tools=[wait_for_ever]) as runtime:
        first = asyncio.create_task(runtime.ask("go"))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeFailure, match="overloaded: 1 requests"):
            await runtime.ask("me too")
        first.cancel()
        await asyncio.wait({first})


def test_a_request_refused_by_a_dead_tree_leaves_its_conversation_free() -> None:
    conversation = Conversation()
    with Runtime(settings_for()) as runtime:
        assert runtime._running is not None
        runtime._running.system.shutdown(5.0)
        with pytest.raises(RuntimeFailure, match="has ended by itself"):
            runtime.ask_sync("hello", conversation=conversation)
    conversation.take(RequestId("r"))


# -- beside the host


class HostActor(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


async def test_the_hosts_loop_threads_and_pykka_actors_are_left_alone() -> None:
    host = HostActor.start()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loop = asyncio.get_running_loop()
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(loop.time())
            await asyncio.sleep(0.001)

    heart = asyncio.create_task(beat())
    try:
        async with Runtime(settings_for()) as runtime:
            assert asyncio.get_running_loop() is loop
            before = len(beats)
            await asyncio.gather(*(runtime.ask(f"hello {n}") for n in range(50)))
            assert len(beats) > before, "the host's loop went on"
            assert {number: signal.getsignal(number) for number in handlers} == handlers
            assert [ref.actor_urn for ref in pykka.ActorRegistry.get_all()] == [host.actor_urn]
        assert host.ask("still there?", timeout=2) == "still there?"
    finally:
        heart.cancel()
        host.stop(timeout=2)


async def test_several_runtimes_in_one_process_know_nothing_of_each_other() -> None:
    async with Runtime(settings_for([ScriptedTurn("one")])) as one, Runtime(settings_for([ScriptedTurn("two")])) as two:
        first, second = await asyncio.gather(one.ask("?"), two.ask("?"))
        assert (first.text, second.text) == ("one", "two")
        await asyncio.to_thread(one.stop)
        assert two.metrics().count("callboard.requests", outcome="answered") == 1


@pytest.mark.repeats
def test_starting_and_stopping_leaves_no_thread_and_no_descriptor(until: Until) -> None:
    def once() -> None:
        with Runtime(settings_for(calls_then_answer(ScriptedCall("double", {"x": 1}))), tools=[double]) as runtime:
            assert runtime.ask_sync("go").text == "done"

    once()
    gc.collect()
    threads, descriptors = threading.active_count(), fds()
    for _ in range(50 if os.environ.get("CALLBOARD_DEEP") else 10):  # one that leaves something fails it
        once()
    gc.collect()
    until(lambda: threading.active_count() <= threads and fds() <= descriptors)


def test_a_runtime_may_be_started_again() -> None:
    runtime = Runtime(settings_for())
    for _ in range(3):
        with runtime:
            assert runtime.ask_sync("hello").text == "hello"


async def test_stopping_with_open_requests_ends_them_all(until: Until) -> None:
    runtime = Runtime(settings_for(HANGS), tools=[wait_for_ever]).start()
    begun = len(ENTERED)
    asking = [asyncio.create_task(runtime.ask(f"go {n}")) for n in range(20)]
    await asyncio.to_thread(until, lambda: len(ENTERED) == begun + 20)
    await asyncio.to_thread(runtime.stop)
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(end) for end in ends} == {RequestEnded}
    assert {end.reply.outcome for end in ends if isinstance(end, RequestEnded)} == {Outcome.CANCELLED}


async def test_requests_that_begin_while_the_runtime_stops_are_told_so() -> None:
    """Those whose session had begun are cancelled; the others never began."""
    runtime = Runtime(settings_for(HANGS), tools=[wait_for_ever]).start()
    asking = [asyncio.create_task(runtime.ask(f"go {n}")) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.to_thread(runtime.stop)
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(end) for end in ends} <= {RequestEnded, RuntimeFailure}
    assert {str(end) for end in ends} <= {
        "the runtime is stopping",
        "the request has no answer, since the runtime was stopped",
    }


async def test_stopping_while_an_approval_waits() -> None:
    asked = threading.Event()

    async def approve(question: AskApproval) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    script = calls_then_answer(ScriptedCall("write", {"x": 1}))
    runtime = Runtime(settings_for(script), tools=[write], approve=approve).start()
    asking = asyncio.create_task(runtime.ask("go"))
    assert await asyncio.to_thread(asked.wait, 5)
    await asyncio.to_thread(runtime.stop)
    with pytest.raises(RequestEnded):
        await asking


async def test_a_cancelled_start_leaves_nothing_running(until: Until) -> None:
    runtime = Runtime(settings_for())

    async def enter() -> None:
        async with runtime:
            raise AssertionError("it was cancelled before")

    entering = asyncio.create_task(enter())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    with pytest.raises(UsageError, match="not running"):
        runtime.statistics()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("callboard-loop")])


def test_a_tool_may_ask_its_own_runtime(until: Until) -> None:
    """From a thread of its pool: the loop is not the tool's, so a blocking ask is fine there."""
    runtimes: list[Runtime] = []

    @tool(isolation="thread")
    def delegate() -> str:
        return runtimes[0].ask_sync("inner").text

    def script(request: ModelRequest) -> ScriptedTurn:
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return ScriptedTurn("outer done")
        if "inner" in str(request.messages[-1]):
            return ScriptedTurn("inner done")
        return ScriptedTurn(calls=(ScriptedCall("delegate"),))

    with Runtime(settings_for(script), tools=[delegate]) as runtime:
        runtimes.append(runtime)
        reply = runtime.ask_sync("outer")
    assert reply.text == "outer done"
    assert reply.messages[2].content == "inner done"  # type: ignore[union-attr]


# -- faults of the actors of a real runtime


@pytest.mark.parametrize("name", ["dispatcher", "llm_manager", "telemetry", "tools/task-short"])
async def test_a_crashed_actor_costs_nobody_the_runtime(name: str, until: Until) -> None:
    def script(request: ModelRequest) -> ScriptedTurn:
        return HANGS(request) if "hang" in str(request.messages) else ScriptedTurn("fine")

    async with Runtime(settings_for(script), tools=[wait_for_ever]) as runtime:
        before = len(ENTERED)
        asking = asyncio.create_task(runtime.ask("hang"))
        await asyncio.to_thread(until, lambda: len(ENTERED) > before)
        assert runtime._running is not None
        cell = runtime._running.system.ref(f"root/{name}")._cell
        cell.executor.call_soon(cell.kill)
        await asyncio.to_thread(until, lambda: restarts(runtime, name) == 1)
        assert (await runtime.ask("and now?")).text == "fine"
        asking.cancel()
        await asyncio.wait({asking})


def restarts(runtime: Runtime, name: str) -> int:
    return next(info.restarts for info in flat(runtime.tree()) if info.name == f"root/{name}")


def is_up_or_dead(cell: Any) -> bool:
    return cell.state.value in ("running", "dead")


async def test_a_tree_that_gives_up_tells_everybody_and_can_be_started_anew(until: Until) -> None:
    runtime = Runtime(settings_for(HANGS), tools=[wait_for_ever]).start()
    conversation, before = Conversation(), len(ENTERED)
    asking = asyncio.create_task(runtime.ask("go", conversation=conversation))
    await asyncio.to_thread(until, lambda: len(ENTERED) > before)
    assert runtime._running is not None
    system = runtime._running.system
    for name in itertools.cycle(("telemetry", "llm_manager")):
        if not system.tree():
            break
        with contextlib.suppress(NoSuchActor):
            cell = system.ref(f"root/{name}")._cell
            cell.executor.call_soon(cell.kill)
            await asyncio.to_thread(until, partial(is_up_or_dead, cell))
    with pytest.raises(RuntimeFailure):
        await asking
    with pytest.raises(RuntimeFailure, match="has ended by itself"):
        await runtime.ask("anybody?", conversation=conversation)
    await asyncio.to_thread(runtime.stop)
    with runtime:
        first = asyncio.create_task(runtime.ask("go", conversation=conversation))
        await asyncio.to_thread(until, lambda: len(ENTERED) > before + 1)
        first.cancel()
        await asyncio.wait({first})


# -- conservation


@pytest.mark.parametrize("seed", range(int(os.environ.get("CALLBOARD_STORMS", "4"))))
def test_every_message_is_accounted_for_after_a_storm(seed: int, until: Until) -> None:
    """Starts, cancels, kills of actors and floods, at runtime level; then rest, and I9."""
    script = calls_then_answer(ScriptedCall("double", {"x": 1}), ScriptedCall("wait_for_ever"))
    chance = random.Random(seed)

    async def storm() -> None:
        async with Runtime(settings_for(script), tools=[double, wait_for_ever]) as runtime:
            assert runtime._running is not None
            system = runtime._running.system
            asking = []
            for _ in range(150):
                what = chance.choice(["ask"] * 6 + ["cancel"] * 3 + ["flood"])
                if what == "ask":
                    asking.append(asyncio.create_task(runtime.ask("go")))
                elif what == "cancel" and asking:
                    chance.choice(asking).cancel()
                elif what == "flood":
                    for _ in range(500):
                        system.ref("root/telemetry").tell("noise")
                await asyncio.sleep(0)
            for name in ("dispatcher", "llm_manager", "telemetry"):
                cell = system.ref(f"root/{name}")._cell
                cell.executor.call_soon(cell.kill)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await asyncio.to_thread(until, lambda: settled(runtime) and not sessions(runtime))
            assert runtime.statistics().unaccounted == 0  # a restarted actor may be sent more just now

    asyncio.run(storm())


def test_stopped_processes_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"stopped-{os.getpid()}"
    alive: list[int] = []

    @tool
    def work() -> str:
        return "ok"

    def script(request: ModelRequest) -> ScriptedTurn:
        if any(isinstance(message, ToolMessage) for message in request.messages):
            alive.extend(processes_with(mark))
            return ScriptedTurn("done")
        return ScriptedTurn(calls=(ScriptedCall("work"),))

    monkeypatch.setenv("MARK", mark)
    with Runtime(settings_for(script, tool_environment=("MARK",)), tools=[work]) as runtime:
        assert runtime.ask_sync("go").text == "done"
        monkeypatch.delenv("MARK")
    assert set(alive) - {os.getpid()}
    assert not set(processes_with(mark)) - {os.getpid()}


def test_a_fork_of_the_host_is_told_to_make_a_runtime_of_its_own() -> None:
    """The fork has no loop thread: `ask_sync` waited for ever."""
    with Runtime(settings_for()) as runtime:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            with contextlib.suppress(UsageError):
                runtime.ask_sync("hello?")
                os._exit(1)
            runtime.stop()
            with Runtime(settings_for()) as own:
                os.write(write_end, own.ask_sync("from the fork").text.encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.close(write_end)
        with open(read_end) as said:
            assert said.read() == "from the fork"
        assert runtime.ask_sync("still here").text == "still here"


async def test_why_a_session_died_is_told_though_it_died_before_anyone_watched_it(
    monkeypatch: pytest.MonkeyPatch, until: Callable[[Callable[[], bool]], None]
) -> None:
    """On a busy machine a request whose first record could not be written ended with "the runtime is stopping"."""

    def dies(session: RequestSession[Any]) -> None:
        raise RuntimeFailure("there is no room")

    def watched_late(system: ActorSystem, ref: Ref[Any], notify: Callable[[Down], object]) -> object:
        until(lambda: not ref.is_alive())
        return watch(system, ref, notify)

    watch = ActorSystem.watch
    async with Runtime(Settings(model="scripted/model", script=echo)) as runtime:
        monkeypatch.setattr(RequestSession, "on_start", dies)
        monkeypatch.setattr(ActorSystem, "watch", watched_late)
        with pytest.raises(RuntimeFailure, match="there is no room"):
            await runtime.ask("x", model="scripted/another")  # which is found, and so asked, beside the loop
