"""How many requests one model call takes, counted by a real HTTP server in another process.

Each step of a request may take `max_attempts` of them, however the answers fail, and how many models there are to ask.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.shared_double import shared_double, stall

from callboard.actors.requests.replies import ModelCallFailed, Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import (
    Answer,
    Api,
    Call,
    Fault,
    FaultKind,
    RawAnswer,
    Script,
    Turn,
    WireDouble,
)
from callboard.actors.tools import tool
from callboard.protocol.commands import Note
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.events import RequestStarted
from callboard.protocol.model import Done, FinishReason, Sampling


@tool(isolation="thread")
def double(x: int) -> int:
    return 2 * x


CALL = Call("double", {"x": 21}, "call_1")
#: The stream ends in good order, before the turn does.
TRUNCATED = RawAnswer(
    'data: {"choices":[{"index":0,"delta":{"content":"half an"}}]}\n\n', headers={"content-type": "text/event-stream"}
)
NO_TOOLS = RawAnswer({"error": {"message": "no tools", "code": "tools_not_supported"}}, 400)
#: What a server can do instead of answering. The number is how often a call is tried that is answered so each time,
#: where it may take three requests.
FAULTS: dict[str, tuple[Answer, int]] = {
    "truncated": (TRUNCATED, 3),
    "cut": (Turn("half an answer", fault=Fault(FaultKind.CUT, after=2)), 3),
    "cut-at-once": (Turn("x", fault=Fault(FaultKind.CUT, after=0)), 3),
    "cut-in-a-call": (Turn(calls=(CALL,), fault=Fault(FaultKind.CUT, after=1)), 3),
    "half-a-call": (Turn(calls=(CALL,), fault=Fault(FaultKind.HALF_CALL)), 3),
    "server-error": (Turn(fault=Fault(FaultKind.STATUS, status=500)), 3),
    "overloaded": (Turn(fault=Fault(FaultKind.STATUS, status=503, retry_after=0.1)), 3),
    "error-in-the-stream": (Turn("so", fault=Fault(FaultKind.STREAM_ERROR, status=503)), 3),
    "reset": (Turn(fault=Fault(FaultKind.RESET)), 3),
    "closed": (Turn(fault=Fault(FaultKind.CLOSE)), 3),
    "nothing": (Turn(""), 3),
    "no-tools": (NO_TOOLS, 2),
    "a-wrong-key": (RawAnswer({"error": {"message": "wrong key"}}, 401), 1),
    "a-page": (Turn(fault=Fault(FaultKind.HTML)), 1),
}
#: What closes the connection that it promises to keep, after a good answer: the next request finds it closed.
STALE = Turn("fine", fault=Fault(FaultKind.HANGUP))


def runtime_for(server: WireDouble, models: int = 1, script: str = "", **more: object) -> Runtime:
    names = [f"openai-compatible/m{number}" for number in range(models)]
    settings = Settings(
        model=names[0], fallback_models=tuple(names[1:]), base_url=server.base_url(script=script), api_key="k", **more
    )
    return Runtime(settings, tools=[double])


async def ended(runtime: Runtime, question: str) -> Reply | RequestEnded | ModelCallFailed:
    try:
        return await runtime.ask(question)
    except (RequestEnded, ModelCallFailed) as error:
        return error


async def ask_each(runtime: Runtime, questions: Sequence[str]) -> list[Reply | RequestEnded | ModelCallFailed]:
    return await asyncio.gather(*(ended(runtime, question) for question in questions))


def sent_a_step(server: WireDouble) -> Counter[tuple[str, int]]:
    """Requests by script and step, which is told by the results that they carry, in words too."""
    return Counter((asked.script, sum(map(results_in, asked.body["messages"]))) for asked in server.requests())


def results_in(message: dict[str, Any]) -> int:
    told = json.dumps(message["content"]) if message["role"] == "user" else ""
    return (message["role"] == "tool") + told.count("[double returned]") + told.count("[double failed]")


def test_a_stream_that_is_always_cut_takes_four_requests_of_four() -> None:
    """It took sixteen: the manager's tries times the session's."""
    with shared_double([TRUNCATED] * 20) as server, runtime_for(server, max_attempts=4) as runtime:
        with pytest.raises(ModelCallFailed) as caught:
            runtime.ask_sync("go")
        assert len(server.requests()) == 4
    assert caught.value.kind is ErrorKind.TRUNCATED
    assert caught.value.reply.text == "half an", "the person has read it"
    assert caught.value.reply.reason.startswith("truncated: after 4 tries: ")


def test_no_fault_takes_more_requests_than_a_call_may() -> None:
    with shared_double() as server, runtime_for(server, max_attempts=3) as runtime:
        server.play_scripts(*(Script((answer,) * 20, name=name) for name, (answer, _) in FAULTS.items()))
        asyncio.run(ask_each(runtime, [name for name in FAULTS if name != "no-tools"]))
        asyncio.run(ask_each(runtime, ["no-tools"]))  # last, since it is remembered of the model
        sent = sent_a_step(server)
    expected = {(name, 0): requests for name, (_, requests) in FAULTS.items()}
    # Half a call is told to the model when it has come three times, and that is a step.
    beyond = {key: count for key, count in sent.items() if key not in expected}
    assert {key: sent[key] for key in expected} == expected
    assert all(name == "half-a-call" and count <= 3 for (name, _), count in beyond.items())


@pytest.mark.parametrize(("max_attempts", "models"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (3, 3), (5, 3)])
def test_faults_in_any_order_with_tools_and_other_models(max_attempts: int, models: int) -> None:
    chosen = random.Random(max_attempts * 10 + models)
    fine = [STALE, Turn("fine"), Turn(calls=(CALL,)), Turn(calls=(CALL,))]
    answers = [answer for answer, _ in FAULTS.values()] + fine * 3
    scripts = [Script(tuple(chosen.choices(answers, k=60)), name=f"q{number}") for number in range(20)]
    with shared_double() as server:
        server.play_scripts(*scripts)

        def ask(name: str) -> None:  # each with a runtime of its own: what a model refused is remembered
            with runtime_for(server, models, name, max_attempts=max_attempts, max_steps=8) as runtime:
                asyncio.run(ended(runtime, "go"))

        with ThreadPoolExecutor(5) as threads:
            list(threads.map(ask, [script.name for script in scripts]))
        sent = sent_a_step(server)
    assert set(script for script, _ in sent) == {script.name for script in scripts}
    assert max(sent.values()) <= max_attempts, sent
    if max_attempts > 1:
        assert max(sent.values()) > 1, "some were tried again"


def test_a_closed_kept_connection_costs_a_request_and_no_answer() -> None:
    with shared_double([STALE] * 40) as server, runtime_for(server, max_attempts=2) as runtime:
        for _ in range(8):
            assert runtime.ask_sync("go").text == "fine"
        assert len(server.requests()) <= 9, "after the first that was closed, none is used again for a while"


def test_with_one_request_a_call_no_connection_is_used_again() -> None:
    """A kept connection that the server has closed would end a call that may not be sent twice."""
    with shared_double([STALE] * 8) as server, runtime_for(server, max_attempts=1) as runtime:
        for _ in range(8):
            assert runtime.ask_sync("go").text == "fine"
        traffic = server.traffic()
    assert (len(traffic.requests), traffic.connections) == (8, 8)


def test_the_other_model_is_asked_within_the_same_requests_and_told() -> None:
    down = [Turn(fault=Fault(FaultKind.STATUS, status=503))] * 2
    with shared_double([*down, Turn("from the other")]) as server, runtime_for(server, 2, max_attempts=3) as runtime:
        reply = runtime.ask_sync("go")
        assert [asked.body["model"] for asked in server.requests()] == ["m0", "m0", "m1"]
        metrics = runtime.metrics()
    assert reply.text == "from the other"
    assert "openai-compatible/m1 is asked now" in reply.notes[-1]
    assert (metrics.count("callboard.notes", kind="retry"), metrics.count("callboard.notes", kind="fallback")) == (1, 1)


def test_a_manager_that_is_lost_in_the_middle_gives_its_requests_back_to_nobody(
    until: Callable[[Callable[[], bool]], None],
) -> None:
    """The session counts: what was told of the lost call and one more are gone from the step's requests."""
    failed = Turn(fault=Fault(FaultKind.STATUS, status=500))
    with shared_double([failed, *[stall("thinking")] * 9]) as server, runtime_for(server, max_attempts=3) as runtime:
        with pytest.raises(RequestEnded) as caught:
            asyncio.run(_ask_and_lose_the_manager(runtime, server))
        assert len(server.requests()) == 3
    assert "after 3 tries: the model call was lost 2 times" in caught.value.reply.reason


async def _ask_and_lose_the_manager(runtime: Runtime, server: WireDouble) -> Reply:
    asking = asyncio.create_task(runtime.ask("go"))
    manager = runtime._running.system.ref("root/llm_manager")
    for sent in (2, 3):
        await asyncio.to_thread(server.wait_until, lambda traffic, sent=sent: len(traffic.requests) == sent)
        cell = manager._cell
        cell.executor.call_soon(cell.kill)
    return await asking


def test_fewer_requests_than_models_are_refused() -> None:
    names = ("offline/b", "offline/c", "offline/d", "offline/e")
    with pytest.raises(UsageError, match=r"4 requests cannot ask 5 models; set it to 5 or more, or name fewer"):
        Settings(model="offline/a", fallback_models=names)
    assert Settings(model="offline/a", fallback_models=names, max_attempts=5).max_attempts == 5


# -- what the reply says of it


def test_an_answer_that_was_cut_says_so() -> None:
    with shared_double([Turn("half an", finish=FinishReason.LENGTH)]) as server, runtime_for(server) as runtime:
        reply = runtime.ask_sync("go")
        metrics = runtime.metrics()
    assert (reply.text, reply.finish_reason) == ("half an", FinishReason.LENGTH)
    assert [note for note in reply.notes if "cut off at the limit of output tokens" in note] == [reply.reason]
    assert metrics.count("callboard.notes", kind="cut") == 1


def test_a_whole_answer_has_no_notes() -> None:
    with shared_double([Turn("all of it")]) as server, runtime_for(server) as runtime:
        reply = runtime.ask_sync("go")
    assert (reply.finish_reason, reply.notes, reply.reason) == (FinishReason.STOP, (), "")


def test_a_model_that_takes_no_tools_is_told() -> None:
    with shared_double([NO_TOOLS, Turn("without")]) as server, runtime_for(server) as runtime:
        reply = runtime.ask_sync("go")
        assert "tools" not in server.requests()[1].body
        metrics = runtime.metrics()
    assert reply.text == "without"
    assert reply.notes == ("openai-compatible/m0 takes no tools; it is asked again without them.",)
    assert metrics.count("callboard.notes", kind="tool_fallback") == 1


def test_notes_are_logged_with_the_tag_of_their_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "callboard")
    answers = [Turn(fault=Fault(FaultKind.STATUS, status=500)), Turn("half", finish=FinishReason.LENGTH)]
    with shared_double(answers) as server, runtime_for(server) as runtime:
        reply = runtime.ask_sync("go")
        runtime.metrics()  # telemetry has heard what came before it
    told = [record for record in caplog.records if record.getMessage().startswith(("retry: ", "cut: "))]
    assert [record.getMessage().partition(": ")[2] for record in told] == list(reply.notes)
    assert [(record.__dict__["request_id"], record.__dict__["step"]) for record in told] == [(reply.request_id, 1)] * 2


def test_what_the_api_cannot_express_is_told_once_and_not_at_each_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "callboard")
    with shared_double([Turn(calls=(CALL,)), Turn("It is 42.")], by_turn=True) as server:
        settings = Settings(
            model="openai/m",
            base_url=server.base_url(Api.RESPONSES),
            api_key="k",
            sampling=Sampling(seed=7),
            context_tokens=10_000,
        )
        with Runtime(settings, tools=[double]) as runtime:
            reply = runtime.ask_sync("twice 21?")
            metrics = runtime.metrics()
    assert (reply.text, len(reply.steps)) == ("It is 42.", 2)
    assert reply.notes == ("seed: the API has none; left out",)
    assert metrics.count("callboard.notes", kind="left_out") == 1
    assert [record.getMessage() for record in caplog.records if "seed" in record.getMessage()] == [
        "left_out: seed: the API has none; left out"
    ]


async def test_a_reader_sees_each_note_when_it_happens() -> None:
    with shared_double([Turn(fault=Fault(FaultKind.STATUS, status=500)), Turn("fine")]) as server:
        async with runtime_for(server) as runtime:
            seen = [item async for item in runtime.stream("go")]
    kinds = [type(item).__name__ for item in seen if not isinstance(item, RequestStarted | Done)]
    assert kinds[0] == "Error", "of the failed request"
    assert [kind for kind in kinds if kind != "Error"] == ["Note", "TextDelta", "Reply"]
    assert seen[-1].notes == tuple(item.text for item in seen if isinstance(item, Note))


def of_anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


#: Refusals that another model cures, and no retry of the same (sources: tests/providers/test_error_table.py).
CURED_ELSEWHERE: dict[str, tuple[int, Any]] = {
    "no credit, as Anthropic says it": (400, of_anthropic("Your credit balance is too low to access the API.")),
    "a limit of the month": (400, of_anthropic("You have reached your specified API usage limits. You will regain "
                                               "access on 2026-12-01 at 00:00 UTC.")),
    "credits_required": (429, {"error": {"type": "rate_limit_error", "message": "m",
                                         "details": {"error_code": "credits_required"}}}),
    "xAI's model": (400, {"code": "invalid-argument", "error": "Model not found: grok-5"}),
    "DeepSeek's model": (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}),
    "OpenRouter's model": (400, {"error": {"code": 400, "message": "x is not a valid model ID"}}),
    "llama.cpp without mmproj": (500, {"error": {"code": 500, "type": "server_error", "message":
                                                 "image input is not supported - hint: you may need the mmproj"}}),
    "Gemini's day": (429, {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}, {"retryDelay": "30s"}]}}),
    "MiniMax, inside a 200": (200, {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "no money"}}),
}  # fmt: skip


@pytest.mark.parametrize("refusal", CURED_ELSEWHERE)
def test_what_another_model_cures_is_asked_there_at_once(refusal: str) -> None:
    status, body = CURED_ELSEWHERE[refusal]
    answers = [RawAnswer(body, status, {"x-should-retry": "true"} if status == 429 else {}), Turn("from the fallback")]
    with shared_double(answers) as server, runtime_for(server, 2) as runtime:
        assert runtime.ask_sync("go").text == "from the fallback"
        assert [asked.body["model"] for asked in server.requests()] == ["m0", "m1"]


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_wait_that_only_the_words_name_is_kept(in_stream: bool) -> None:
    said = {"error": {"message": "Rate limit reached. Please try again in 700ms.", "code": "rate_limit_exceeded"}}
    stream = RawAnswer(f"data: {json.dumps(said)}\n\n", headers={"content-type": "text/event-stream"})
    with shared_double([stream if in_stream else RawAnswer(said, 429), Turn("fine")]) as server:
        with runtime_for(server) as runtime:
            reply = runtime.ask_sync("go")
        assert reply.text == "fine"
        (pause,) = [float(found[1]) for note in reply.notes if (found := re.search(r"again in ([\d.]+) s", note))]
        assert pause >= 0.7
