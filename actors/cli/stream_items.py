"""The events of a daemon's request (WHATWG HTML, "Server-sent events"), as what a runtime's stream gives."""

from __future__ import annotations

import codecs
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from callboard import AskApproval, RuntimeFailure, RunTool, ToolProgressed
from callboard.actors.cli.chat_partner import AnswerEnded
from callboard.protocol.commands import Note, Outcome, ReportFailure
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.model import Restarted, TextDelta

#: One event holds at most the result of one call; a daemon's own bound for those is far below.
MAX_EVENT_BYTES: Final = 64 * 1024**2


class SentEvent(Struct, frozen=True):
    """One server-sent event."""

    id: str
    name: str
    data: str


class DaemonEvent(Struct, frozen=True):
    """`error`: the daemon cannot go on with the stream."""

    message: str


async def sent_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[SentEvent]:
    """The whole events of a byte stream, without one that is cut at its end. Raises RuntimeFailure for a huge one."""
    # Lines end with LF, CR or CR LF, wherever a piece ends.
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")("replace"), translate=True)
    line: list[str] = []
    fields: dict[str, list[str]] = {}
    held_bytes = 0
    async for piece in pieces:
        held_bytes += len(piece)
        *ends, rest = decoder.decode(piece).split("\n")
        for end in ends:
            whole = "".join((*line, end))
            line = []
            if whole:
                name, _, value = whole.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
                continue
            if "data" in fields:  # else it was a comment, or nothing
                yield _event(fields)
            fields, held_bytes = {}, len(piece)
        line.append(rest)
        if held_bytes > MAX_EVENT_BYTES:
            raise RuntimeFailure(f"the daemon sent an event of more than {MAX_EVENT_BYTES:,} bytes")


def _event(fields: Mapping[str, Sequence[str]]) -> SentEvent:
    last = {name: values[-1] for name, values in fields.items()}
    return SentEvent(last.get("id", ""), last.get("event") or "message", "\n".join(fields["data"]))


def item_of(event: SentEvent) -> object | None:
    """What a person is shown of it; None for what only programs read.

    Raises RuntimeFailure for an event of a known name that has another form.
    """
    if event.name not in _FORMS and event.name not in _ENDS:
        return None
    try:
        if event.name == "reply":
            return _reply(msgspec.json.decode(event.data, type=dict[str, object]))
        if event.name == "error":
            return DaemonEvent(_error(msgspec.json.decode(event.data, type=dict[str, object])))
        fields = msgspec.json.decode(event.data, type=dict[str, object])
        if isinstance(tag := fields.get("tag"), dict):
            # A client has no use for the parent, and the daemon does not tell it.
            fields["tag"] = [tag.get("request_id"), "", tag.get("step"), tag.get("call_id")]
        return msgspec.convert(fields, _FORMS[event.name])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RuntimeFailure(
            f"the daemon's event {event.name!r} has another form than this callboard knows: {error}"
        ) from None


def _reply(fields: Mapping[str, object]) -> AnswerEnded:
    usage, cost = fields.get("usage"), fields.get("cost")
    counts = msgspec.convert(usage, dict[str, int]) if usage is not None else {}
    outcome = str(fields.get("outcome", ""))
    reason = str(fields.get("reason", ""))
    return AnswerEnded(
        counts.get("input_tokens", 0),
        counts.get("output_tokens", 0),
        cost if isinstance(cost, float | int) else None,
        "" if outcome in _ANSWERED else f"the request ended: {outcome}{f': {reason}' if reason else ''}",
    )


def _error(fields: Mapping[str, object]) -> str:
    error = fields.get("error")
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    return message or "the daemon has ended the stream"


_ENDS: Final = ("reply", "error")
#: Outcomes that leave nothing to say.
_ANSWERED: Final = ("", Outcome.ANSWERED, Outcome.CALLS_OUTSIDE)
#: By the names that the daemon gives them.
_FORMS: Final[Mapping[str, type]] = {
    "text_delta": TextDelta,
    "restarted": Restarted,
    "run_tool": RunTool,
    "tool_progressed": ToolProgressed,
    "tool_call_completed": ToolCallCompleted,
    "tool_call_failed": ToolCallFailed,
    "tool_call_timed_out": ToolCallTimedOut,
    "tool_call_cancelled": ToolCallCancelled,
    "report_failure": ReportFailure,
    "ask_approval": AskApproval,
    "note": Note,
}
