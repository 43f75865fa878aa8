"""What rendering needs for every wire API: the turn with all its gaps filled, and the interface of an API."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import orjson
from msgspec import Struct

from callboard.actors.testing.wire_double.script import Call, Fault, FaultKind, Tokens, Turn
from callboard.protocol.model import FinishReason

Document = dict[str, Any]
#: The answers of a script are the same bytes each time: no clock, no chance.
CREATED: Final = 1_760_000_000
SIGNATURE: Final = "d2lyZSBkb3VibGU="
"""What the double signs its thinking with, where the API wants a signature (base64)."""


_NOTES: Final = re.compile(r"\s*<system>\n.*?\n</system>\s*", re.DOTALL)


class Speaker(StrEnum):
    """Who wrote an entry of a request's history."""

    USER = "user"
    MODEL = "model"
    OTHER = "other"
    """System messages and tool results."""


class Said(Struct, frozen=True):
    """One entry of a request's history; `text` is what a user wrote, "" for the others."""

    speaker: Speaker
    text: str = ""


class Question(Struct, frozen=True):
    """What an answer takes from the request."""

    model: str = ""
    number: int = 0
    """Of the answer in its script."""
    streamed: bool = True
    include_usage: bool = True
    """Chat Completions: usage in a stream only where it was asked for."""
    as_array: bool = False
    """Gemini: a stream as one JSON array."""


class ResolvedCall(Struct, frozen=True):
    """A call as it is written."""

    id: str
    given_id: str
    """"" where the script leaves the id to the double."""
    name: str
    arguments: str
    whole: bool
    """False where the arguments were cut off."""

    def object(self) -> Document | None:
        """The arguments parsed; None where they are not a JSON object."""
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


class ResolvedTurn(Struct, frozen=True):
    """A turn with everything decided that a script may leave open."""

    question: Question
    text: str
    thinking: str
    calls: tuple[ResolvedCall, ...]
    finish: FinishReason
    usage: Tokens | None
    fragment: int
    endless: bool

    def text_pieces(self) -> Iterator[str]:
        """The text in pieces; without end where the turn is endless."""
        pieces = pieces_of(self.text, self.fragment)
        return itertools.cycle(pieces) if self.endless else iter(pieces)

    def thinking_pieces(self) -> list[str]:
        return pieces_of(self.thinking, self.fragment)

    def argument_pieces(self, call: ResolvedCall) -> list[str]:
        return pieces_of(call.arguments, self.fragment)

    def id(self, prefix: str) -> str:
        """An id of the answer or of a part of it."""
        return f"{prefix}_{self.question.number:04d}"


class Event(Struct, frozen=True):
    """Some bytes of a stream. `content` marks those that carry text, thinking or a call."""

    data: bytes
    content: bool = False


class WireApi(ABC):
    """How one API writes answers and errors, and how it words a history."""

    @abstractmethod
    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        """The turn as a stream."""

    @abstractmethod
    def whole(self, turn: ResolvedTurn) -> Document:
        """The turn as one document."""

    @abstractmethod
    def error(self, fault: Fault) -> Document:
        """The body of an error answer."""

    @abstractmethod
    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        """An error in the middle of a stream."""

    @abstractmethod
    def history(self, body: Document) -> Iterator[Said]:
        """The history of a request, in order."""

    def question(self, body: Document, path: str, number: int) -> Question:
        """What the answer takes from a request to `path` (with its query)."""
        usage = body.get("stream_options") or {}
        return Question(
            str(body.get("model") or ""), number, body.get("stream") is True, bool(usage.get("include_usage"))
        )

    def stream_type(self, question: Question) -> str:
        """The content type of a stream."""
        return "text/event-stream"

    def turns_before(self, body: Document) -> int:
        """Model turns that the request carries out of its sight (a response id)."""
        return 0


def resolved(turn: Turn, question: Question) -> ResolvedTurn:
    """The turn with its gaps filled; a half call is cut here."""
    kind = turn.fault.kind if turn.fault is not None else None
    calls = [_resolved_call(call, question.number, place) for place, call in enumerate(turn.calls)]
    finish = turn.finish_reason
    if kind is FaultKind.HALF_CALL:
        last = calls[-1]
        half = last.arguments[: len(last.arguments) // 2]
        calls[-1] = ResolvedCall(last.id, last.given_id, last.name, half, whole=False)
        finish = FinishReason.LENGTH
    text = turn.text
    if kind is FaultKind.ENDLESS:
        text = turn.text or "on and on "
    return ResolvedTurn(
        question, text, turn.thinking, tuple(calls), finish, turn.usage, turn.fragment, kind is FaultKind.ENDLESS
    )


def _resolved_call(call: Call, number: int, place: int) -> ResolvedCall:
    given = call.arguments
    arguments = given if isinstance(given, str) else orjson.dumps(dict(given)).decode()
    return ResolvedCall(call.id or f"call_{number}_{place}", call.id, call.name, arguments, whole=True)


def pieces_of(text: str, size: int) -> list[str]:
    """The text in pieces of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def sse(document: Mapping[str, Any], name: str = "", newline: bytes = b"\n") -> bytes:
    """One server-sent event, with its name where the API writes one."""
    head = b"event: " + name.encode() + newline if name else b""
    return head + b"data: " + orjson.dumps(document) + newline * 2


def model_turns(history: list[Said]) -> int:
    """The number of model turns after the last user message. What a model says without a pause is one turn."""
    last_user = max((place for place, said in enumerate(history) if said.speaker is Speaker.USER), default=-1)
    speakers = [said.speaker for said in history[last_user + 1 :]]
    return sum(speaker is Speaker.MODEL for speaker, _ in itertools.groupby(speakers))


def last_user_text(history: list[Said]) -> str:
    """What the user wrote last."""
    return next((said.text for said in reversed(history) if said.speaker is Speaker.USER), "")


def user_said(content: Any) -> Said:
    """What a user wrote, without the notes of a runtime that stand in it, marked, where an API takes them as the user's
    text only. A message that holds nothing else is not the user's."""
    text = text_in(content)
    asked = _NOTES.sub("", text)
    return Said(Speaker.USER, asked) if asked or not text else Said(Speaker.OTHER)


def text_in(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts of which some hold `text`."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def objects_in(value: Any) -> list[Document]:
    """The objects of a list; nothing for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
