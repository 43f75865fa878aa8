"""Changes for tests of the journal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from callboard.actors.journal.journal_records import (
    Beginning,
    EffectWrite,
    Needs,
    NewMessage,
    RequestEnd,
    Statement,
    Write,
)
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import AssistantMessage, Message, Text, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event, ModelResponded, RequestStarted, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, FinishReason, ModelResponse, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.reports import CallReport, StepReport
from callboard.protocol.tools import FailureCode, ToolDefinition, ToolFailure

CONVERSATION = "c"
TAG = Tag(RequestId("r"), MessageId("m"))
ANSWER = ModelResponded(TAG.at_step(1), 2.0, ModelResponse((Text("done"),), usage=Usage(3, 4)), cost=0.5)

_numbers = itertools.count()


def request_id(name: str = "") -> RequestId:
    """Without a name, one that no other call gives."""
    return RequestId(name or f"request-{next(_numbers)}")


def message(text: str, *, answer: bool = False) -> Message:
    return AssistantMessage((Text(text),)) if answer else UserMessage.of(text)


def tool_offer(name: str) -> ToolOffer:
    return ToolOffer(ToolDefinition(ToolName(name), f"What {name} does."))


def started(
    name: str, *, history: tuple[Message, ...] = (), tools: tuple[ToolOffer, ...] = (), at: float = 1.0
) -> RequestStarted:
    tag = TAG._replace(request_id=request_id(name))
    return RequestStarted(tag, at, history, UserMessage.of("go"), RequestOptions("sim/model"), tools)


def begin(
    name: str,
    *,
    at: float = 1.0,
    history: tuple[Message, ...] = (),
    parent: MessageId | None = None,
    tools: tuple[ToolOffer, ...] = (),
    needs: Needs | None = None,
    metadata: Mapping[str, str] | None = None,
    conversation_id: str = CONVERSATION,
) -> Write:
    begins = Beginning(conversation_id, parent, at, "sim/model", needs or Needs(), metadata or {})
    first = started(name, history=history, tools=tools, at=at)
    return Write(request_id(name), 1, (first,), ("CallModel",), begins, conversation_id)


def finish(name: str) -> Finish:
    """With all that a Finish can hold."""
    call = CallReport(CallId("c"), ToolName("t"), FailureCode.DENIED, 0.5, 0.25, "a rule")
    step = StepReport(
        1, 1.5, True, "sim/model", Usage(1, 2), 0.25, FinishReason.STOP, ErrorKind.TIMEOUT, 1, (call,), 0.125
    )
    tag = TAG._replace(request_id=request_id(name))
    return Finish(tag, Outcome.ANSWERED, "done", Usage(1, 2), 0.25, (step,), "why", FinishReason.STOP)


def finished(name: str, number: int, *, messages: tuple[NewMessage, ...] = ()) -> Write:
    failure = ToolFailure(ToolName("t"), FailureCode.DENIED, "no", traceback="t", frames="f")
    end = RequestEnd(3.0, finish(name), ("a note",), (failure,), Error(ErrorKind.TIMEOUT, "late", True))
    return Write(request_id(name), number, (ANSWER,), (), None, CONVERSATION, messages, None, end)


def writes_of(which: RequestId, events: Iterable[Event]) -> Iterator[Write]:
    """A Write for each event; the history of the first comes with it."""
    for number, event in enumerate(events, start=1):
        if not isinstance(event, RequestStarted):
            yield Write(which, number, (event,), (f"command {number}",), None, which)
            continue
        ids = [None, *(MessageId(f"{which}-{place}") for place in range(len(event.history)))]
        messages = tuple(
            NewMessage(own, parent, each)
            for parent, own, each in zip(ids, ids[1:], event.history, strict=False)
            if own is not None
        )
        begins = Beginning(which, ids[-1], 1.0, event.options.model)
        yield Write(which, number, (event,), (f"command {number}",), begins, which, messages)


def an_effect(name: str, *statements: Statement, call: str = "call") -> EffectWrite:
    tag = Tag(request_id(name), MessageId("m"), 1, CallId(call))
    return EffectWrite(tag, ToolCallCompleted(tag, 2.5, "paid"), statements)
