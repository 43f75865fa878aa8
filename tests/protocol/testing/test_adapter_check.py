"""`check_provider_adapter`: it finds each of these broken adapters, and nothing in our own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from callboard.protocol.content import AssistantMessage, Image, Message, SystemMessage, Text, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    Done,
    Error,
    FinishReason,
    ModelRequest,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    ToolChoice,
    Usage,
)
from callboard.protocol.testing import check_provider_adapter
from callboard.protocol.testing.answers import APIS, Answer, read_events, shipped_answers, write_event
from callboard.protocol.testing.turn_summary import Summary, difference, prefix_difference, summary_of
from callboard.providers.adapter import Adapter, Decoder, WireRequest
from callboard.providers.provider_registry import adapter_for

Events = list[StreamEvent]


@pytest.mark.parametrize("api", APIS)
def test_our_own_adapters_pass(api: str) -> None:
    check_provider_adapter(adapter_for(api), examples=20)


@pytest.mark.parametrize("api", APIS)
def test_each_api_has_answers_of_every_kind(api: str) -> None:
    answers = shipped_answers(api)
    events = [event for answer in answers for event in answer.events or ()]
    reasons = {event.finish_reason for event in events if isinstance(event, Done)}
    assert len(answers) >= 12
    assert len({answer.name for answer in answers}) == len(answers)
    assert {FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.LENGTH, FinishReason.CONTENT_FILTER} <= reasons | (
        {FinishReason.CONTENT_FILTER} if api == "anthropic" else set()  # Anthropic refuses, and has no filter's reason
    )
    assert {ThinkingDelta, ToolCallStart, Error, Done} <= {type(event) for event in events}
    assert any(not answer.streaming for answer in answers)
    assert any(answer.status >= 400 for answer in answers)
    assert any(not answer.body.isascii() for answer in answers)


@pytest.mark.parametrize("api", APIS)
def test_a_stream_cut_behind_any_event_has_no_half_call(api: str) -> None:
    """Invariant I12, at the places where a cut is hardest to see: behind an event that is whole."""
    adapter, cuts = adapter_for(api), 0
    for answer in shipped_answers(api):
        whole = summary(adapter, answer, len(answer.body))
        if whole.restarted:
            continue  # what the first attempt said is void
        for end in re.finditer(rb"\r?\n(?=\r?\n)", answer.body):
            for size in (end.start(), end.end(), end.end() + len(end.group())):
                assert not prefix_difference(whole, summary(adapter, answer, size)), (answer.name, size)
                cuts += 1
    assert cuts > 50


def summary(adapter: Adapter, answer: Answer, size: int) -> Summary:
    decoder = adapter.decoder(answer.status, answer.headers, answer.streaming)
    return summary_of(decoder.feed(answer.body[:size]) + decoder.finish())


def test_events_are_written_as_they_are_read() -> None:
    for api in APIS:
        for answer in shipped_answers(api):
            assert answer.events is not None
            assert read_events([write_event(event) for event in answer.events]) == answer.events


# Broken adapters: a real one, wrapped.


@dataclass
class Wrapped:
    """An adapter whose requests, bytes or events are tampered with."""

    inner: Adapter
    request: Callable[[ModelRequest], ModelRequest] = lambda request: request
    body: Callable[[dict[str, Any]], Any] | None = None
    events: Callable[[Events, bool], Events] | None = None
    """Of each piece; with True, of the end of the body."""
    feed: Callable[[bytes], bytes] = lambda data: data
    status: Callable[[int], int] = lambda status: status

    @property
    def name(self) -> str:
        return self.inner.name

    def encode(self, request: ModelRequest, /) -> WireRequest:
        wire = self.inner.encode(self.request(request))
        if self.body is None:
            return wire
        document = orjson.loads(wire.body)
        return replace(wire, body=orjson.dumps(self.body(document) or document))

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        return WrappedDecoder(self, self.inner.decoder(self.status(status), headers, streaming))


@dataclass
class WrappedDecoder:
    adapter: Wrapped
    inner: Decoder

    def feed(self, data: bytes, /) -> Events:
        return self._told(self.inner.feed(self.adapter.feed(data)), False)

    def finish(self) -> Events:
        return self._told(self.inner.finish(), True)

    def _told(self, events: Events, end: bool) -> Events:
        return self.adapter.events(events, end) if self.adapter.events else events


def each(change: Callable[[StreamEvent], StreamEvent | None]) -> Callable[[Events, bool], Events]:
    """Every event changed, or left out where None comes back."""
    return lambda events, end: [made for event in events if (made := change(event)) is not None]


def _done_for_error(event: StreamEvent) -> StreamEvent:
    return Done(FinishReason.STOP) if isinstance(event, Error) else event


def kind(of: type[Any], **fields: Any) -> Callable[[Events, bool], Events]:
    """All events of one class, with other fields."""
    return each(lambda event: replace(event, **fields) if isinstance(event, of) else event)


def messages(change: Callable[[list[Message]], list[Message]]) -> dict[str, Any]:
    return {"request": lambda request: replace(request, messages=tuple(change(list(request.messages))))}


def swap_ids(history: list[Message]) -> list[Message]:
    """The ids of the first two results that stand behind one another."""
    for n, (one, other) in enumerate(pairwise(history)):
        if isinstance(one, ToolMessage) and isinstance(other, ToolMessage):
            history[n], history[n + 1] = replace(one, call_id=other.call_id), replace(other, call_id=one.call_id)
            break
    return history


def without_pictures(history: list[Message]) -> list[Message]:
    return [
        UserMessage(tuple(part for part in message.parts if not isinstance(part, Image)) or (Text("-"),))
        if isinstance(message, UserMessage)
        else message
        for message in history
    ]


def unsigned(history: list[Message]) -> list[Message]:
    return [
        AssistantMessage(tuple(replace(part, replay=None) for part in message.parts))  # type: ignore[type-var]
        if isinstance(message, AssistantMessage)
        else message
        for message in history
    ]


def glued(history: list[Message]) -> list[Message]:
    return [
        UserMessage.of(message.text)
        if isinstance(message, UserMessage) and all(isinstance(part, Text) for part in message.parts)
        else message
        for message in history
    ]


def tools(**fields: Any) -> dict[str, Any]:
    return {"request": lambda request: replace(request, tools=tuple(replace(t, **fields) for t in request.tools))}


def first_call() -> Callable[[Events, bool], Events]:
    """All fragments go to the call that began first."""
    return each(lambda event: replace(event, id=CallId("call_a")) if isinstance(event, ToolCallDelta) else event)


def text_again() -> Callable[[Events, bool], Events]:
    """At the end the whole text once more."""
    said: list[str] = []

    def told(events: Events, end: bool) -> Events:
        out: Events = []
        for event in events:
            if isinstance(event, TextDelta):
                said.append(event.text)
            if isinstance(event, Done | Error):
                out.append(TextDelta("".join(said)))
                said.clear()
            out.append(event)
        return out

    return told


def drops_the_second(document: dict[str, Any]) -> None:
    document["messages"] = document["messages"][:1] + document["messages"][2:]


def reverses(document: dict[str, Any]) -> None:
    document["messages"].reverse()


def all_users(document: dict[str, Any]) -> None:
    for message in document["messages"]:
        if message["role"] == "assistant":
            message["role"] = "user"


def one_tool(document: dict[str, Any]) -> None:
    document["tools"] = document.get("tools", [])[:1]


def without(field: str) -> dict[str, Any]:
    return {"body": lambda document: document.pop(field, None) and document}


def forgets(field: str, value: Any) -> dict[str, Any]:
    return {"request": lambda request: replace(request, **{field: value})}


def knob(name: str, value: Any) -> dict[str, Any]:
    return {"request": lambda request: replace(request, sampling=replace(request.sampling, **{name: value}))}


ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "drops a message": ("openai-chat", {"body": drops_the_second}, "is in the body 0 times"),
    "drops the instructions": (
        "anthropic",
        messages(lambda history: [m for m in history if not isinstance(m, SystemMessage)] or history),
        "the system text of message 0 is in the body 0 times",
    ),
    "reverses the messages": ("openai-chat", {"body": reverses}, "stands before"),
    "says a message twice": ("openai-chat", messages(lambda h: [*h, h[-1]]), "is in the body 2 times"),
    "takes the model for a person": ("openai-chat", {"body": all_users}, "tells the user's text from the model's"),
    "swaps the ids of two results": ("openai-chat", messages(swap_ids), "which is another call's"),
    "swaps the ids of two results, elsewhere": ("anthropic", messages(swap_ids), "which is another call's"),
    "loses pictures": ("gemini", messages(without_pictures), "the picture of message . is in the body 0 times"),
    "glues two texts": ("openai-chat", messages(glued), "is glued to the text before it"),
    "loses a tool's description": ("openai-chat", tools(description=""), "the description text .* is in the body 0"),
    "loses the parameters": ("gemini", tools(parameters={"type": "object"}), "the parameters of .* are not in"),
    "loses the second tool": ("openai-chat", {"body": one_tool}, "the tool's name 'MARKtoolB' is not in the body"),
    "ignores temperature": ("openai-chat", knob("temperature", None), "temperature=.* sends the same as"),
    "ignores the length limit": ("openai-responses", knob("max_output_tokens", None), "max_output_tokens=47110.* sen"),
    "ignores stop": ("gemini", knob("stop", ()), "stop=.* sends the same as"),
    "sends a fixed seed": ("openai-chat", knob("seed", 1), "seed=90210.* is not in what is sent|sends the same as"),
    "ignores tool_choice": ("anthropic", forgets("tool_choice", ToolChoice()), "tool_choice=.* sends the same as"),
    "ignores parallel_tool_calls": ("openai-chat", forgets("parallel_tool_calls", None), "parallel_tool_calls=False"),
    "ignores response_schema": ("openai-responses", forgets("response_schema", None), "response_schema=.* sends the"),
    "ignores stream": ("gemini", forgets("stream", True), "stream=False sends the same as"),
    "ignores the model": ("openai-chat", forgets("model", "m"), "model='MARKmodel' sends the same as"),
    "ignores further options": ("openai-chat", forgets("provider_options", ()), "provider_options=.* sends the sa"),
    "does not give signatures back": ("anthropic", messages(unsigned), "goes back without 'SIG-1'"),
}  # fmt: skip

DECODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "the end of the body is the end of the turn": (
        "openai-chat",
        {"events": lambda events, end: [_done_for_error(event) if end else event for event in events]},
        "it ends as Done, and its end has not come|expected Error",
    ),
    "a good body with a bad status is a success": (
        "openai-responses",
        {"status": lambda status: 200 if status == 503 else status},
        "status 503.*the status is ignored|503",
    ),
    "usage is always 0": ("openai-chat", {"events": kind(Done, usage=Usage())}, "Done.usage: expected"),
    "cached tokens are lost": (
        "openrouter",
        {"events": each(lambda e: replace(e, usage=replace(e.usage, cached_tokens=0)) if isinstance(e, Done) else e)},
        "Done.usage: expected",
    ),
    "the finish reason is always stop": (
        "openai-chat",
        {"events": kind(Done, finish_reason=FinishReason.STOP)},
        "Done.finish_reason: expected",
    ),
    "errors are swallowed": (
        "anthropic",
        {"events": each(lambda e: Done(FinishReason.STOP) if isinstance(e, Error) else e)},
        "expected Error|its end has not come",
    ),
    "thinking loses its signature": ("anthropic", {"events": kind(ThinkingDelta, replay=None)}, "must be given back"),
    "calls lose their signature": ("gemini", {"events": kind(ToolCallStart, replay=None)}, "must be given back"),
    "thinking is dropped": (
        "openai-responses",
        {"events": each(lambda e: None if isinstance(e, ThinkingDelta) else e)},
        "expected are 2",
    ),
    "parallel calls are merged": ("openai-chat", {"events": first_call()}, "has not started|expected a call|completed"),
    "429 is a success": ("openai-chat", {"status": lambda status: 200 if status == 429 else status}, "429"),
    "the wait is lost": ("gemini", {"events": kind(Error, retry_after=None)}, "Error.retry_after: expected 34.0"),
    "nothing may be tried again": ("copilot", {"events": kind(Error, retryable=False)}, "Error.retryable: expected"),
    "every error is the server's": ("openai-chat", {"events": kind(Error, kind=ErrorKind.SERVER)}, "Error.kind"),
    "errors have no message": ("openai-chat", {"events": kind(Error, message="")}, "the error has no message"),
    "it ends twice": (
        "openai-chat",
        {"events": lambda events, end: [*events, *(e for e in events if isinstance(e, Done | Error))]},
        "comes after the end",
    ),
    "it does not end": (
        "openai-responses",
        {"events": each(lambda e: None if isinstance(e, Done) else e)},
        "ends without Done or Error",
    ),
    "the text is told twice": ("openai-chat", {"events": text_again()}, "expected text"),
    "half characters are replaced": (
        "openai-chat",
        {"feed": lambda data: data.decode(errors="replace").encode()},
        "byte by byte",
    ),
    "line separators end a line": (
        "anthropic",
        {"feed": lambda data: data.replace("\u2028".encode(), b"\n")},
        "text beyond ASCII",
    ),
    "all calls have one id": (
        "openai-chat",
        {"events": each(lambda e: replace(e, id=CallId("c")) if isinstance(e, ToolCallStart) else e)},
        "another call has|has not started",
    ),
    "half calls are completed": (
        "anthropic",
        {"events": each(lambda e: ToolCallComplete(CallId("toolu_a")) if isinstance(e, Done) else e)},
        "ends without|was complete already|has not started|was completed with",
    ),
    "calls have no name": ("gemini", {"events": kind(ToolCallStart, name=ToolName(""))}, "expected a call of look"),
}  # fmt: skip


#: A third of them in each run, all in the deep stage.
BROKEN = [*ENCODERS, *DECODERS][:: 1 if os.environ.get("CALLBOARD_DEEP") else 6]


@pytest.mark.repeats
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_adapter_is_found(fault: str) -> None:
    api, broken, told = (ENCODERS | DECODERS)[fault]
    with pytest.raises(AssertionError, match=told) as caught:
        check_provider_adapter(Wrapped(adapter_for(api), **broken), examples=30)
    assert "\n" not in str(caught.value).split("assert", 1)[0].strip()


def test_texts_without_a_picture_are_always_looked_at() -> None:
    """One example is too few to draw such a message: it is among those that each check has."""
    api, broken, told = ENCODERS["glues two texts"]
    with pytest.raises(AssertionError, match=told):
        check_provider_adapter(Wrapped(adapter_for(api), **broken), examples=1)


class SharedDecoder(Wrapped):
    """All decoders write into one: what one began, the next goes on with."""

    rest = b""

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        outer, inner = self, self.inner.decoder(status, headers, streaming)

        class Leaky:
            def feed(self, data: bytes, /) -> Events:
                *lines, outer.rest = (outer.rest + data).split(b"\n\n")
                return inner.feed(b"".join(line + b"\n\n" for line in lines))

            def finish(self) -> Events:
                rest, outer.rest = outer.rest, b""
                return inner.feed(rest) + inner.finish()

        return Leaky()


class WholeWrong(Wrapped):
    """Of an answer that was not streamed it reads the text alone."""

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        calls = ToolCallStart | ToolCallDelta | ToolCallComplete
        texts = Wrapped(self.inner, events=each(lambda event: None if isinstance(event, calls) else event))
        return (self.inner if streaming else texts).decoder(status, headers, streaming)


class Raises(Wrapped):
    """Its decoder raises at the end of a body that is no JSON."""

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        inner = self.inner.decoder(status, headers, streaming)

        class Raising:
            def feed(self, data: bytes, /) -> Events:
                if data.startswith(b"<"):
                    raise ValueError("no JSON")
                return inner.feed(data)

            def finish(self) -> Events:
                return inner.finish()

        return Raising()


class RaisesForHistories(Wrapped):
    def encode(self, request: ModelRequest, /) -> WireRequest:
        if len(request.messages) > 1:
            raise KeyError("role")
        return super().encode(request)


class WritesNoJson(Wrapped):
    def encode(self, request: ModelRequest, /) -> WireRequest:
        return replace(super().encode(request), body=b"messages: []")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (RaisesForHistories, r"encode raised KeyError: 'role', for ModelRequest\("),
        (WritesNoJson, r"encode gives no JSON \(.*\), for ModelRequest\("),
    ],
)
def test_an_encoder_that_fails_is_told_with_its_request(broken: type[Wrapped], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_provider_adapter(broken(adapter_for("openai-chat")), examples=5)


class Moody(Wrapped):
    """Each request has a number."""

    count = 0

    def encode(self, request: ModelRequest, /) -> WireRequest:
        self.count += 1
        wire = super().encode(request)
        return replace(wire, body=wire.body[:-1] + b',"n":%d}' % self.count)


class Mutates(Wrapped):
    """It tidies up the schema that it was given."""

    def encode(self, request: ModelRequest, /) -> WireRequest:
        for tool in request.tools:
            tool.parameters.pop("required", None)  # type: ignore[attr-defined]
        return super().encode(request)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (SharedDecoder, "while another answer was decoded"),
        (WholeWrong, "the answer 'whole: "),
        (Raises, "the decoder raised ValueError: no JSON; it must never raise"),
        (Moody, "encode gives different bytes"),
        (Mutates, "encode changes the request it is given"),
    ],
)
def test_an_adapter_of_broken_ways_is_found(broken: type[Wrapped], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_provider_adapter(broken(adapter_for("openai-chat")), examples=30)


# Answers of a user's own.


class Lines:
    """An adapter of ten lines: `call` and `end` are a call, `done` ends, all else is text."""

    def encode(self, request: ModelRequest, /) -> bytes:
        raise UsageError("this adapter only reads")

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Any:
        return LineDecoder(status, headers or {})


class LineDecoder:
    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.rest, self.ended = b"", False
        wait = float(headers.get("retry-after", 0)) if status == 429 else None
        self.error = Error(ErrorKind.SERVER, "no", status in (429, 500, 503), wait) if status >= 400 else None

    def feed(self, data: bytes, /) -> Events:
        if self.error is not None:
            return []
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [event for line in lines for event in self._line(line)]

    def _line(self, line: bytes) -> Iterator[StreamEvent]:
        if not self.ended:
            self.ended = line == b"done"
            yield Done(FinishReason.STOP) if self.ended else TextDelta(line.decode(errors="replace"))

    def finish(self) -> Events:
        ended, self.ended = self.ended, True
        return [] if ended else [self.error or Error(ErrorKind.TRUNCATED, "cut off", True)]


def test_the_decoder_alone_with_answers_of_ones_own() -> None:
    right = (b"hello\ndone\n", [TextDelta("hello"), Done(FinishReason.STOP)])
    with pytest.raises(UsageError, match="this adapter only reads"):  # the answers are right, the rest is not there
        check_provider_adapter(Lines(), [b"w\xc3\xb6rld\ndone\n", right])
    wrong = (b"hello\ndone\n", [TextDelta("hullo"), Done(FinishReason.STOP)])
    with pytest.raises(AssertionError, match=r"the answer 'answers\[0\]': part 1 of 1: expected text 'hullo', got"):
        check_provider_adapter(Lines(), [wrong])
    named = Answer("mine", b"hello\n", (Error(ErrorKind.TRUNCATED, ""),), source="a recording")
    with pytest.raises(AssertionError, match=r"the answer 'mine' \[a recording\]: it has 1 parts"):
        check_provider_adapter(Lines(), [named])


def test_without_answers_nothing_would_be_checked() -> None:
    with pytest.raises(UsageError, match="give api= one of anthropic, copilot"):
        check_provider_adapter(Lines())
    with pytest.raises(UsageError, match="there are no answers of 'soap'"):
        shipped_answers("soap")


def test_an_unnamed_adapter_is_held_to_the_api_it_is_said_to_speak() -> None:
    with pytest.raises(AssertionError, match="the answer 'text"):
        check_provider_adapter(Lines(), api="anthropic")


def test_what_is_left_open_is_not_compared() -> None:
    expected = summary_of([ToolCallStart(CallId("?1"), ToolName("look")), Done(FinishReason.STOP)])
    found = summary_of([ToolCallStart(CallId("c7"), ToolName("look")), Done(FinishReason.STOP, "stop", model="m")])
    assert difference(expected, found) == ""
    assert "expected a call of look" in difference(
        summary_of(
            [ToolCallStart(CallId("?1"), ToolName("look")), ToolCallComplete(CallId("?1")), Done(FinishReason.STOP)]
        ),
        found,
    )
