"""A host's trace, with OpenTelemetry's own SDK: what is below what, named and described by the GenAI conventions."""

from __future__ import annotations

import asyncio
import contextvars
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from support.shared_double import shared_double
from support.telling import CALL, LOOK, STEP, TelemetryStand, asked
from support.tracing import SpansInMemory

from callboard import Reply, Runtime, RuntimeFailure, Settings, ToolContext, UsageError, tool
from callboard.actors.kernel import ActorSystem
from callboard.actors.requests.asking import MAX_METADATA_CHARS, MAX_METADATA_ENTRIES
from callboard.actors.testing.wire_double import Call, RawAnswer, Tokens, Turn
from callboard.protocol.commands import CallModel, RunTool
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelResponded, ToolCallCompleted, ToolCallDeferred, ToolCallFailed
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, Sampling, Usage
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

linux = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")
SECRET = "the word kumquat"
KEY = "sk-proj-" + "a1B2c3D4" * 6
SEEN: dict[str, int] = {}


def current() -> int:
    """The id of the span that is current here."""
    return trace.get_current_span().get_span_context().span_id


@tool(risk="read", isolation="task")
async def on_a_task(x: str = "") -> str:
    await asyncio.sleep(0)
    SEEN["on_a_task"] = current()
    return "seen"


@tool(risk="read", isolation="thread")
def on_a_thread(x: str = "") -> str:
    SEEN["on_a_thread"] = current()
    return "seen"


@tool(risk="read")
def in_a_process(context: ToolContext) -> dict[str, Any]:
    """It has loaded OpenTelemetry, with the module that it is in."""
    own = trace.get_current_span().get_span_context()
    made = TracerProvider().get_tracer("tool").start_span("its own")
    parent = getattr(made.parent, "span_id", 0)
    return {
        "headers": dict(context.trace_headers),
        "current": own.span_id,
        "trace": own.trace_id,
        "parent": parent,
        "metadata": dict(context.metadata),
    }


@tool(risk="write", isolation="thread")
def writes(x: str = "") -> str:
    return "written"


@tool(risk="read", isolation="thread")
def fails() -> str:
    raise LookupError(SECRET)


def script(*names: str, **arguments: object) -> list[ScriptedTurn | str]:
    return [ScriptedTurn(calls=tuple(ScriptedCall(name, arguments) for name in names)), "done"]


def runtime(spans: SpansInMemory, turns: object, **more: Any) -> Runtime:
    approve = more.pop("approve", None)
    settings = Settings(model="scripted/m", script=turns, **more)  # type: ignore[arg-type]
    made = Runtime(settings, [on_a_task, on_a_thread, in_a_process, writes, fails], approve=approve)
    spans.trace(made)
    return made


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


# -- what is below what


def ask_on_a_task(made: Runtime) -> None:
    asyncio.run(_ask(made))


async def _ask(made: Runtime) -> None:
    await asyncio.create_task(_reply(made))


async def _reply(made: Runtime) -> None:
    await made.ask("go")


def ask_on_a_thread(made: Runtime) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(made.ask_sync, "go"))
    thread.start()
    thread.join()


def read_a_stream(made: Runtime) -> None:
    async def read() -> None:
        assert isinstance([item async for item in made.stream("go")][-1], Reply)

    asyncio.run(read())


@pytest.mark.parametrize("ask", [ask_on_a_task, ask_on_a_thread, Runtime.ask_sync, read_a_stream])
def test_a_request_is_a_child_of_the_callers_span_and_its_work_is_below_it(ask: Any) -> None:
    spans = SpansInMemory()
    with runtime(spans, script("on_a_task", "on_a_thread")) as made:
        with spans.provider.get_tracer("host").start_as_current_span("GET /answer") as host:
            ask(made, "go") if ask is Runtime.ask_sync else ask(made)
        made.metrics()  # telemetry has heard of the end
    tree = spans.tree()
    assert tree == {
        "GET /answer": None,
        "invoke_agent": "GET /answer",
        "chat m": "invoke_agent",
        "execute_tool on_a_task": "invoke_agent",
        "execute_tool on_a_thread": "invoke_agent",
    }
    assert {span.context.trace_id for span in spans.finished() if span.context} == {host.get_span_context().trace_id}
    assert sum(span.name == "chat m" for span in spans.finished()) == 2
    kinds = {span.name.partition(" ")[0]: span.kind.name for span in spans.finished()}
    assert kinds == {"GET": "INTERNAL", "invoke_agent": "INTERNAL", "chat": "CLIENT", "execute_tool": "INTERNAL"}


def test_what_tools_providers_and_approvers_trace_is_below_their_own_span() -> None:
    spans = SpansInMemory()

    def choose(request: ModelRequest) -> ScriptedTurn | str:
        SEEN["provider"] = current()
        return turns.pop(0)

    def approve(_: object) -> bool:
        SEEN["approver"] = current()
        return True

    turns = script("on_a_task", "on_a_thread", "writes")
    with runtime(spans, choose, approve=approve) as made:
        made.ask_sync("go")
        made.metrics()
    assert spans.tree()["callboard.approval writes"] == spans.tree()["execute_tool writes"] == "invoke_agent"
    rules = {
        name: (spans.named(f"execute_tool {name}").attributes or {}).get("callboard.rule")
        for name in ("on_a_task", "on_a_thread", "writes")
    }
    assert rules == {
        "on_a_task": "on_a_task only reads, which trust balanced allows",
        "on_a_thread": "on_a_thread only reads, which trust balanced allows",
        "writes": "the approver allowed writes once (writes makes changes; you are asked each time)",
    }
    for name, span in (
        ("on_a_task", "execute_tool on_a_task"),
        ("on_a_thread", "execute_tool on_a_thread"),
        ("approver", "callboard.approval writes"),
    ):
        context = spans.named(span).context
        assert context is not None
        assert SEEN[name] == context.span_id, name
    chats = [span.context.span_id for span in spans.finished() if span.name == "chat m" and span.context]
    assert SEEN["provider"] == chats[-1]


@linux
def test_a_process_tool_continues_the_trace() -> None:
    spans = SpansInMemory()
    with runtime(spans, script("in_a_process")) as made:
        reply = made.ask_sync("go")
        made.metrics()
    found = json.loads(next(message.content for message in reply.messages if hasattr(message, "is_error")))
    context = spans.named("execute_tool in_a_process").context
    assert context is not None
    assert found["current"] == found["parent"] == context.span_id
    assert found["trace"] == context.trace_id
    assert found["headers"]["traceparent"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


@linux
def test_without_tracing_a_tool_gets_no_headers() -> None:
    with Runtime(Settings(model="scripted/m", script=script("in_a_process")), [in_a_process]) as made:
        reply = made.ask_sync("go")
    found = json.loads(next(message.content for message in reply.messages if hasattr(message, "is_error")))
    assert (found["headers"], found["current"]) == ({}, 0)


def test_the_hosts_provider_counts_from_when_it_is_set_up() -> None:
    """It may be set up after the runtime has started."""
    spans, is_set_up = SpansInMemory(), False
    made = runtime(spans, ["one", "two"])
    tracing = spans.tracing()
    tracing._get_provider = lambda: spans.provider if is_set_up else trace.ProxyTracerProvider()
    made._wiring.begin_spans = tracing.begin
    with made:
        made.ask_sync("first")
        is_set_up = True
        reply = made.ask_sync("second")
        made.metrics()
    assert {attributes(span)["callboard.request_id"] for span in spans.finished()} == {reply.request_id}


# -- names, kinds, attributes


def test_a_model_call_says_what_was_asked_and_what_came() -> None:
    turns = [Turn(calls=(Call("on_a_thread", {}, "call_1"),), usage=Tokens(20, 5)), Turn("fine", usage=Tokens(9, 3))]
    spans = SpansInMemory()
    with shared_double(turns, by_turn=True) as server:
        sampling = Sampling(temperature=0.5, top_p=0.9, max_output_tokens=500, seed=7, stop=("END",))
        settings = Settings(
            model="groq/llama", base_url=server.base_url(), api_key="k", sampling=sampling, instructions=SECRET
        )
        made = Runtime(settings, [on_a_thread])
        spans.trace(made)
        with made:
            reply = made.ask_sync(SECRET)
            made.metrics()
        address = server.base_url()
    first, second = (span for span in spans.finished() if span.name == "chat llama")
    found = attributes(first)
    # Of a span and its step only the beginnings differ: the step begins when the session decides, before it calls. All
    # times are of one clock; a span has them in nanoseconds since 1970, of which a float holds the microseconds.
    step, first_chunk_seconds = reply.steps[0], found.pop("gen_ai.response.time_to_first_chunk")
    assert step.first_event_seconds is not None
    begun_seconds = step.seconds - (first.end_time - first.start_time) / 1e9
    assert begun_seconds >= -1e-5
    assert first_chunk_seconds == pytest.approx(step.first_event_seconds - begun_seconds, abs=1e-5)
    host, _, port = address.removeprefix("http://").partition("/")[0].partition(":")
    assert {name: value for name, value in found.items() if not name.startswith("callboard.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "groq",
        "gen_ai.request.model": "llama",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 500,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.response.id": reply.steps[0].response_id,
        "gen_ai.response.model": reply.steps[0].response_model,
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 5,
        "server.address": host,
        "server.port": int(port),
    }
    assert (found["callboard.request_id"], found["callboard.step"], found["callboard.requests"]) == (
        reply.request_id, 1, 1,
    )  # fmt: skip
    assert attributes(second)["gen_ai.response.finish_reasons"] == ("stop",)
    whole = attributes(spans.named("invoke_agent"))
    assert whole["gen_ai.operation.name"] == "invoke_agent"
    assert (whole["gen_ai.usage.input_tokens"], whole["gen_ai.usage.output_tokens"]) == (29, 8)
    assert (whole["callboard.outcome"], whole["gen_ai.request.model"]) == ("answered", "llama")
    assert SECRET not in spans.exported()


def test_a_tool_call_says_which() -> None:
    spans = SpansInMemory()
    with runtime(spans, script("on_a_thread", x=SECRET)) as made:
        reply = made.ask_sync(SECRET)
        made.metrics()
    found = attributes(spans.named("execute_tool on_a_thread"))
    assert found == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "on_a_thread",
        "gen_ai.tool.call.id": "call_0",
        "gen_ai.tool.type": "function",
        "callboard.request_id": reply.request_id,
        "callboard.parent_id": f"{reply.request_id}/user",
        "callboard.step": 1,
        "callboard.call_id": "call_0",
        "callboard.rule": "on_a_thread only reads, which trust balanced allows",
        "callboard.ending": "ok",
    }
    assert SECRET not in spans.exported()


def test_a_call_id_of_any_length_is_cut_and_escaped_in_spans_and_log_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    seen: list[str] = []
    with shared_double(
        [Turn(calls=(Call("on_a_thread", {}, "line\n" + "x" * 100_000),)), Turn("fine")], by_turn=True
    ) as server:
        spans = SpansInMemory()
        made = Runtime(Settings(model="vllm/m", base_url=server.base_url(), log_content=True), [on_a_thread])
        spans.trace(made)
        with made:
            reply = made.ask_sync("go")
            made.metrics()
    seen += [str(record.__dict__) for record in caplog.records]
    assert reply.steps[0].calls[0].code is None
    assert attributes(spans.named("execute_tool on_a_thread"))["gen_ai.tool.call.id"].startswith(r"line\nxxx")
    assert max(map(len, [*seen, spans.exported()])) < 50_000


def test_what_fails_has_its_kind_and_a_status() -> None:
    spans = SpansInMemory()
    with runtime(spans, script("fails")) as made:
        made.ask_sync("go")
        made.metrics()
    span = spans.named("execute_tool fails")
    assert (attributes(span)["error.type"], span.status.status_code.name) == ("tool_error", "ERROR")
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})["exception.type"]) == ("exception", "LookupError")
    assert spans.named("invoke_agent").status.is_unset
    assert SECRET not in spans.exported()


def test_a_refused_model_call_fails_its_request_too() -> None:
    spans = SpansInMemory()
    refused = RawAnswer({"error": {"message": SECRET}}, 401)
    with shared_double([refused]) as server:
        made = Runtime(Settings(model="vllm/m", base_url=server.base_url()))
        spans.trace(made)
        with made:
            with pytest.raises(Exception, match="kumquat"):
                made.ask_sync("go")
            made.metrics()
    chat, whole = spans.named("chat m"), spans.named("invoke_agent")
    assert (attributes(chat)["error.type"], attributes(chat)["http.response.status_code"]) == ("authentication", 401)
    assert attributes(whole)["error.type"] == "failed"
    assert {chat.status.status_code.name, whole.status.status_code.name} == {"ERROR"}
    assert SECRET not in spans.exported()


def test_a_retry_is_an_event_of_the_model_call() -> None:
    busy = ScriptedTurn(error=Error(ErrorKind.SERVER, SECRET, retryable=True, at_once=True))
    spans = SpansInMemory()
    with runtime(spans, [busy, "done"]) as made:
        made.ask_sync("go")
        made.metrics()
    span = spans.named("chat m")
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})["callboard.kind"]) == ("note", "retry")
    assert attributes(span)["callboard.requests"] == 2
    assert SECRET not in spans.exported()


def test_the_span_of_a_model_call_says_which_model_answered_it() -> None:
    spans = SpansInMemory()
    with shared_double([RawAnswer({"error": {"message": "down"}}, 503)]) as server:
        model: dict[str, Any] = {"model": "vllm/m", "base_url": server.base_url(), "max_attempts": 2}
        made = Runtime(Settings(**model, fallback_models=("scripted/other",), script=["fine"]))
        spans.trace(made)
        with made:
            assert made.ask_sync("go").model == "scripted/other"
            made.metrics()
    found = attributes(spans.named("chat m"))
    assert (found["gen_ai.request.model"], found["callboard.answered_by"]) == ("m", "scripted/other")


def test_all_metadata_that_a_question_takes_is_whole_on_every_span_and_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "callboard")
    metadata = {f"key{n}": "x" * MAX_METADATA_CHARS for n in range(MAX_METADATA_ENTRIES)}
    spans = SpansInMemory()
    with runtime(spans, script("on_a_thread")) as made:
        with pytest.raises(UsageError, match="at most 16"):
            made.ask_sync("go", metadata={**metadata, "further": ""})
        made.ask_sync("go", metadata=metadata)
        made.metrics()
    assert len(spans.finished()) == 4
    for span in spans.finished():
        assert {f"callboard.metadata.{key}": value for key, value in metadata.items()}.items() <= attributes(
            span
        ).items()
    assert [record.metadata for record in caplog.records] == [metadata] * 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_failed", [False, True])
def test_the_cost_of_a_call_and_of_the_request(simulated: ActorSystem, has_failed: bool) -> None:
    spans = SpansInMemory()
    used = Usage(9, 3, 4, 5, 2)
    answered: Any = ModelResponded(STEP, 2.0, ModelResponse(finish_reason=FinishReason.LENGTH, usage=used), 0.125)
    if has_failed:
        answered = ModelFailed(STEP, 2.0, Error(ErrorKind.TRUNCATED, "cut"), usage=used, cost=0.125)
    stand = TelemetryStand(simulated, spans.tracing().begin)
    stand.tell(asked(), CallModel(STEP, ModelRequest("bedrock/m", ()), 9.0), answered)
    found = attributes(spans.named("chat m"))
    assert found["callboard.cost_usd"] == 0.125
    assert found["gen_ai.provider.name"] == "aws.bedrock"
    assert (found["gen_ai.usage.cache_read.input_tokens"], found["gen_ai.usage.cache_creation.input_tokens"]) == (4, 5)
    assert found["gen_ai.usage.reasoning.output_tokens"] == 2


# -- times


def test_times_are_those_of_the_events_not_of_when_telemetry_came_to_them(simulated: ActorSystem) -> None:
    spans = SpansInMemory()
    stand = TelemetryStand(simulated, spans.tracing().begin)
    stand.tell(asked(), RunTool(CALL, LOOK, "{}", 9.0, "e"), at=(1.0, 2.0))
    failed = ToolCallFailed(CALL, 3.5, ToolFailure(LOOK, FailureCode.CRASHED, "x", frames="was killed"))
    metrics = stand.tell(failed, at=(60.0,))
    span = spans.named("execute_tool look")
    assert (span.end_time or 0) - (span.start_time or 0) == 1_500_000_000
    assert span.events[0].timestamp == span.end_time
    assert metrics.histogram("gen_ai.execute_tool.duration").total == 1.5


def test_a_request_begins_when_it_was_asked_and_holds_its_work() -> None:
    spans = SpansInMemory()
    with runtime(spans, script("on_a_thread")) as made:
        with spans.provider.get_tracer("host").start_as_current_span("host"):
            made.ask_sync("go")
        made.metrics()
    whole, work = spans.named("invoke_agent"), spans.named("execute_tool on_a_thread")
    host = spans.named("host")
    times = [host.start_time, whole.start_time, work.start_time, work.end_time, whole.end_time]
    assert times == sorted(times, key=lambda time: time or 0)


def test_a_deferred_call_is_one_span_until_its_result_comes_from_outside(simulated: ActorSystem) -> None:
    spans = SpansInMemory()
    stand = TelemetryStand(simulated, spans.tracing().begin)
    ran, deferred = RunTool(CALL, LOOK, "{}", 9.0, "e"), ToolCallDeferred(CALL, 2.0, 600.0, SECRET)
    stand.tell(asked(), ran, deferred, ToolCallCompleted(CALL, 61.0, "1"), at=(0.0, 1.0, 2.0, 61.0))
    span = spans.named("execute_tool look")
    assert (span.end_time or 0) - (span.start_time or 0) == 60_000_000_000
    (event,) = span.events
    assert (event.name, event.timestamp - (span.start_time or 0)) == ("call.deferred", 1_000_000_000)
    assert SECRET not in spans.exported()


def test_a_session_that_is_killed_leaves_no_span_and_no_request_open() -> None:
    spans = SpansInMemory()

    @tool(risk="read", isolation="thread", name="waits")
    def waits() -> str:
        kill()
        return "too late"

    def kill() -> None:
        assert made._running is not None
        (ref,) = made._running.sessions.values()
        ref._cell.executor.call_soon(ref._cell.kill)

    made = Runtime(Settings(model="scripted/m", script=script("waits")), [waits])
    spans.trace(made)
    with made:
        with pytest.raises(RuntimeFailure, match="lost"):
            made.ask_sync("go")
        metrics = made.metrics()
    assert metrics.counts("callboard.requests") == {("lost",): 1}
    assert metrics.count("callboard.requests.open") == 0
    endings = {span.name: attributes(span)["callboard.ending"] for span in spans.finished()}
    assert endings == {"invoke_agent": "lost", "chat m": "ok", "execute_tool waits": "cancelled"}


# -- content


@pytest.mark.parametrize("log_content", [False, True])
def test_content_is_in_the_conventions_attributes_only_where_it_is_asked_for(log_content: bool) -> None:
    spans = SpansInMemory()
    turns = [
        ScriptedTurn("thinking of it", calls=(ScriptedCall("on_a_thread", {"x": f"{SECRET} {KEY}"}),)),
        ScriptedTurn(f"It is {SECRET}."),
    ]
    with runtime(spans, turns, log_content=log_content, instructions=f"Say {SECRET}.") as made:
        made.ask_sync(f"What is {SECRET}? {KEY}")
        made.metrics()
    assert KEY not in spans.exported()
    assert (SECRET in spans.exported()) is log_content
    if not log_content:
        assert not any("messages" in name for span in spans.finished() for name in attributes(span))
        return
    _, second = (attributes(span) for span in spans.finished() if span.name == "chat m")
    asked_for = json.loads(second["gen_ai.input.messages"])
    assert [message["role"] for message in asked_for] == ["user", "assistant", "tool"]
    assert [part["type"] for part in asked_for[1]["parts"]] == ["text", "tool_call"]
    assert asked_for[2]["parts"] == [{"type": "tool_call_response", "id": "call_0", "response": "seen"}]
    assert json.loads(second["gen_ai.system_instructions"]) == [{"type": "text", "content": f"Say {SECRET}."}]
    assert json.loads(second["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": f"It is {SECRET}."}], "finish_reason": "stop"}
    ]
    call = attributes(spans.named("execute_tool on_a_thread"))
    assert SECRET in call["gen_ai.tool.call.arguments"]
    assert call["gen_ai.tool.call.result"] == "seen"


# -- a host whose tracing is broken, or samples


class Broken(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise OSError("the sampler is gone")

    def get_description(self) -> str:
        return "broken"


def test_a_sampler_that_raises_is_counted_and_costs_no_request() -> None:
    spans = SpansInMemory()
    spans.provider = TracerProvider(sampler=Broken())
    with runtime(spans, script("on_a_thread")) as made:
        assert made.ask_sync("go").text == "done"
        assert made.metrics().count("callboard.telemetry.failed") == 1
        assert made.statistics().restarts == 0


def test_what_is_not_sampled_is_not_exported_and_no_content_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = SpansInMemory()
    spans.provider = TracerProvider(sampler=ALWAYS_OFF)
    with runtime(spans, script("on_a_thread"), log_content=True) as made:
        made.ask_sync("go")
        assert made.metrics().count("callboard.telemetry.failed") == 0
    assert spans.finished() == ()


# -- a whole host, with the provider that is global


HOST = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from callboard import Runtime, Settings

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("host")

async def handler(runtime, number):
    with tracer.start_as_current_span(f"GET /{number}"):
        await runtime.ask(f"question {number}")

async def main():
    async with Runtime(Settings(model="scripted/m")) as runtime:
        await asyncio.gather(*(handler(runtime, number) for number in range(20)))
        runtime.metrics()

asyncio.run(main())
spans = exporter.get_finished_spans()
names = {span.context.span_id: span.name for span in spans}
print(json.dumps([[span.name, names.get(span.parent.span_id) if span.parent else None] for span in spans]))
"""


def test_a_program_with_a_tracer_provider_needs_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "host.py"
    program.write_text(HOST)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    tree = json.loads(done.stdout)
    assert sorted(parent for name, parent in tree if name == "invoke_agent") == sorted(f"GET /{n}" for n in range(20))
    assert [parent for name, parent in tree if name == "chat m"] == ["invoke_agent"] * 20
