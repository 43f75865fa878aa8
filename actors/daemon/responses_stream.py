"""What a request shows, as events and output of the Responses API (OpenAI, API reference, "Streaming events").

Each event is made once, from one item of the request: a stream sends them, a whole answer keeps the output that they
add up to. A tool that runs here is an item of the type `mcp_call`, which the API has for tools that its server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from callboard.actors.daemon.answer_pieces import AnswerStream, CallPiece, Piece, TextPiece, ThinkingPiece
from callboard.actors.daemon.responses_input import closed
from callboard.actors.requests.replies import Reply
from callboard.protocol.commands import CallOutside, RunTool
from callboard.protocol.content import Replay
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.model import Done, FinishReason, ThinkingDelta

Fields = dict[str, object]
#: The server that all tools of the daemon belong to, in the words of the API.
SERVER_LABEL: Final = "callboard"
#: Why an answer is not whole, by the reason for which the model stopped.
INCOMPLETE: Final = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}


class ResponseStream:
    """The events of one response. `output` is what they have added up to."""

    def __init__(
        self, request_id: str, *, shows_encrypted: bool = False, text_of: Callable[[Reply[object]], str | None] | None
    ) -> None:
        """`text_of`: the text of an answer that has a form, which is known at the end; None: an answer of any text."""
        self.output: list[Fields] = []
        self._request_id, self._shows_encrypted = request_id, shows_encrypted
        self._text_of = text_of
        self._pieces = AnswerStream(request_id, holds_text=text_of is not None)
        self._events = 0
        self._turn = 0
        self._open: Fields | None = None
        """The message or the reasoning that is being written."""
        self._place = (-1, 0)
        """Its turn and block, or those of the last one; none at first."""
        self._replays: dict[tuple[int, int], Replay] = {}
        self._running: dict[tuple[int, str], Fields] = {}
        """Calls that run here, by step and id."""

    def event(self, kind: str, **fields: object) -> Fields:
        """The next event of the stream."""
        made: Fields = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return made

    def feed(self, item: object) -> Iterator[Fields]:
        """The events of one item. Raises ApiError where the answer began again and says something else now."""
        match item:
            case RunTool():
                yield from self._run(item)
            case ToolCallCompleted() | ToolCallFailed() | ToolCallTimedOut() | ToolCallCancelled():
                yield from self._ran(item)
            case CallOutside(call=call):
                yield from self._write(self._pieces.call(call))
            case Reply():
                text = self._text_of(item) if self._text_of is not None else None
                yield from self._write(self._pieces.end(item.outside_calls, text))
                yield from self._close(_status(item.finish_reason))
            case _:
                yield from self._stream(item)

    def _stream(self, item: object) -> Iterator[Fields]:
        if isinstance(item, ThinkingDelta) and item.replay is not None:
            self._replays[self._turn, item.block] = item.replay
            if self._shows_encrypted and not item.text and (self._turn, item.block) != self._place:
                yield from self._write(iter((ThinkingPiece("", turn=self._turn, block=item.block),)))
        yield from self._write(self._pieces.feed(item))
        if isinstance(item, Done):
            yield from self._close(_status(item.finish_reason))
            self._turn += 1

    def _write(self, pieces: Iterator[Piece]) -> Iterator[Fields]:
        for piece in pieces:
            match piece:
                case TextPiece(text=text, turn=turn, block=block):
                    yield from self._begin("message", (turn, block))
                    yield from self._text(text)
                case ThinkingPiece(text=text, turn=turn, block=block):
                    yield from self._begin("reasoning", (turn, block))
                    yield from self._thinking(text)
                case CallPiece():
                    yield from self._close()
                    yield from self._call(piece)

    # -- items

    def _add(self, prefix: str, kind: str, **fields: object) -> tuple[Fields, Fields]:
        """A new item of the output, and the event of it."""
        index = len(self.output)
        item: Fields = {"id": f"{prefix}_{self._request_id}_{index}", "type": kind, **fields}
        self.output.append(item)
        return item, self.event("response.output_item.added", output_index=index, item=_copied(item))

    def _at(self, item: Fields) -> Fields:
        """Where the item is, as most events say it."""
        return {"item_id": item["id"], "output_index": self.output.index(item)}

    def _done(self, item: Fields) -> Fields:
        return self.event("response.output_item.done", output_index=self.output.index(item), item=_copied(item))

    def _begin(self, kind: str, place: tuple[int, int]) -> Iterator[Fields]:
        """Open an item, unless this one is open."""
        if self._open is not None and self._open["type"] == kind and self._place == place:
            return
        yield from self._close()
        self._place = place
        if kind == "reasoning":
            self._open, added = self._add("rs", kind, summary=[])
            yield added
            return
        self._open, added = self._add("msg", kind, status="in_progress", role="assistant", content=[])
        yield added
        part = _text_part("")
        self._open["content"] = [part]
        yield self.event("response.content_part.added", **self._at(self._open), content_index=0, part=dict(part))

    def _text(self, text: str) -> Iterator[Fields]:
        assert self._open is not None
        part = _parts(self._open, "content")[0]
        part["text"] = f"{part['text']}{text}"
        at = self._at(self._open)
        yield self.event("response.output_text.delta", **at, content_index=0, delta=text, logprobs=[])

    def _thinking(self, text: str) -> Iterator[Fields]:
        assert self._open is not None
        if not text:
            return
        at: Fields = {**self._at(self._open), "summary_index": 0}
        summary = _parts(self._open, "summary")
        if not summary:
            summary.append({"type": "summary_text", "text": ""})
            yield self.event("response.reasoning_summary_part.added", **at, part=dict(summary[0]))
        summary[0]["text"] = f"{summary[0]['text']}{text}"
        yield self.event("response.reasoning_summary_text.delta", **at, delta=text)

    def _close(self, status: str = "completed") -> Iterator[Fields]:
        """The open item is whole."""
        item, self._open = self._open, None
        if item is None:
            return
        at = self._at(item)
        if item["type"] == "message":
            item["status"] = status
            part = _parts(item, "content")[0]
            text = part["text"]
            yield self.event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
            yield self.event("response.content_part.done", **at, content_index=0, part=dict(part))
        else:
            for part in _parts(item, "summary"):
                text = part["text"]
                yield self.event("response.reasoning_summary_text.done", **at, summary_index=0, text=text)
                yield self.event("response.reasoning_summary_part.done", **at, summary_index=0, part=dict(part))
            replay = self._replays.get(self._place)
            if self._shows_encrypted and replay is not None:
                item["encrypted_content"] = closed(replay)
        yield self._done(item)

    def _call(self, piece: CallPiece) -> Iterator[Fields]:
        """A call for the client."""
        call = piece.call
        known: Fields = {"call_id": call.call_id, "name": call.name}
        item, added = self._add("fc", "function_call", **known, arguments="", status="in_progress")
        yield added
        yield from self._arguments("function_call", item, call.arguments)
        item["status"] = "completed"
        yield self._done(item)

    def _arguments(self, kind: str, item: Fields, arguments: str) -> Iterator[Fields]:
        at = self._at(item)
        named: Fields = {"name": item["name"]} if kind == "function_call" else {}
        yield self.event(f"response.{kind}_arguments.delta", **at, delta=arguments)
        item["arguments"] = arguments
        yield self.event(f"response.{kind}_arguments.done", **at, **named, arguments=arguments)

    # -- calls that run here

    def _run(self, command: RunTool) -> Iterator[Fields]:
        key = (command.tag.step, str(command.tag.call_id))
        if key in self._running:  # it is run a second time
            return
        yield from self._close()
        about: Fields = {"server_label": SERVER_LABEL, "name": command.name, "output": None, "error": None}
        item, added = self._add("mcp", "mcp_call", **about, arguments="", status="in_progress")
        self._running[key] = item
        yield added
        yield self.event("response.mcp_call.in_progress", **self._at(item))
        yield from self._arguments("mcp_call", item, command.arguments)

    def _ran(self, end: ToolCallEnd) -> Iterator[Fields]:
        item = self._running.get((end.tag.step, str(end.tag.call_id)))
        if item is None or item["status"] != "in_progress":
            return
        if isinstance(end, ToolCallCompleted):
            item["status"], item["output"] = "completed", end.content
        else:
            item["status"], item["error"] = "failed", _failure(end)
        yield self.event(f"response.mcp_call.{item['status']}", **self._at(item))
        yield self._done(item)


def _failure(end: ToolCallEnd) -> str:
    if isinstance(end, ToolCallFailed):
        return end.failure.message
    return "its time passed" if isinstance(end, ToolCallTimedOut) else "it was cancelled"


def _status(reason: FinishReason) -> str:
    """Of a message that the model has stopped to write for this reason."""
    return "incomplete" if reason in INCOMPLETE else "completed"


def _text_part(text: str) -> Fields:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _parts(item: Fields, name: str) -> list[Fields]:
    found = item[name]
    assert isinstance(found, list)
    return found


def _copied(item: Fields) -> Fields:
    """As it is now: the item goes on."""
    return {name: [dict(each) for each in value] if isinstance(value, list) else value for name, value in item.items()}
