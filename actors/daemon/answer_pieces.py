"""An answer in pieces, as clients of stateless APIs see it: text, thinking and the calls that they are to run.

What runs here between the turns (tools of ours and their results) is left out: those APIs have no word for it. Streams
and whole answers are made of the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.client_question import outside_call_id
from callboard.protocol.content import AssistantMessage, Message, Replay, Text, Thinking, ToolCall
from callboard.protocol.model import Done, Restarted, TextDelta, ThinkingDelta

#: Whose thinking clients of the Messages API keep with its signature.
SIGNED_BY: Final = "anthropic"


class TextPiece(Struct, frozen=True):
    """A piece of the answer."""

    text: str
    turn: int = 0
    """Of the request: from 0."""
    block: int = 0
    """Of the turn."""


class ThinkingPiece(Struct, frozen=True):
    """A piece of the model's thinking."""

    text: str
    signature: str = ""
    redacted: str = ""
    """In place of both: thinking that only its provider can read."""
    turn: int = 0
    block: int = 0


class CallPiece(Struct, frozen=True):
    """A call that the client is to run, whole, under the id by which the client knows it."""

    call: ToolCall
    turn: int = 0


Piece = TextPiece | ThinkingPiece | CallPiece


def pieces_of(turns: Iterable[Message], request_id: str, outside: Sequence[ToolCall], text: str | None) -> list[Piece]:
    """All of a whole answer: of the turns of a request, and its calls for the client. `text`: what the answer says
    where it has a form, in place of all that the turns say."""
    found: list[Piece] = []
    turn = -1
    for message in turns:
        if not isinstance(message, AssistantMessage):
            continue
        turn += 1
        for block, part in enumerate(message.parts):
            if isinstance(part, Thinking):
                found += _thinking(part.text, part.replay, turn, block)
            elif isinstance(part, Text) and part.text and text is None:
                found.append(TextPiece(part.text, turn, block))
    if text:
        found.append(TextPiece(text, max(turn, 0)))
    return [*found, *calls_of(outside, request_id, max(turn, 0))]


def calls_of(calls: Iterable[ToolCall], request_id: str, turn: int = 0, first: int = 0) -> Iterator[CallPiece]:
    """Calls for the client, from the number `first` on."""
    for number, call in enumerate(calls, first):
        yield CallPiece(replace(call, call_id=outside_call_id(request_id, number), replay=None), turn)


def _thinking(text: str, replay: Replay | None, turn: int, block: int) -> Iterator[ThinkingPiece]:
    own = replay.data if replay is not None and replay.origin == SIGNED_BY else {}
    signature, redacted = own.get("signature", ""), own.get("data", "")
    if text or signature or redacted:
        yield ThinkingPiece(text, str(signature), str(redacted), turn, block)


class AnswerStream:
    """The pieces of one answer, from the events of its request."""

    def __init__(self, request_id: str, *, holds_text: bool = False) -> None:
        """`holds_text`: only the whole answer says what its text is, since it must have a form."""
        self._request_id, self._holds_text = request_id, holds_text
        self._turn = self._calls = 0
        self._said = self._again = ""
        """Of this turn: the text so far, and what of it comes a second time after a restart."""
        self._is_thought = False
        """Was thinking shown before the turn began again? Then it is not shown twice."""
        self._thought = False

    def feed(self, item: object) -> Iterator[Piece]:
        """The pieces of one event. Raises ApiError where the answer began again and says something else now."""
        match item:
            case TextDelta(text=text, block=block) if text and not self._holds_text:
                yield from self._text(text, block)
            case ThinkingDelta(text=text, block=block, replay=replay) if not self._is_thought:
                for piece in _thinking(text, replay, self._turn, block):
                    self._thought = True
                    yield piece
            case Restarted():
                self._again, self._is_thought = self._said, self._thought
            case Done():
                self._end_turn()

    def call(self, call: ToolCall) -> Iterator[Piece]:
        """A call for the client is whole."""
        yield from calls_of((call,), self._request_id, self._turn, self._calls)
        self._calls += 1

    def end(self, outside: Sequence[ToolCall], text: str | None) -> Iterator[Piece]:
        """What is left at the end: calls that were not shown, and the text of an answer that has a form."""
        if text:
            yield TextPiece(text, self._turn)
        for call in outside[self._calls :]:
            yield from self.call(call)

    def _text(self, text: str, block: int) -> Iterator[Piece]:
        if self._again:
            known, text = text[: len(self._again)], text[len(self._again) :]
            if not self._again.startswith(known):
                raise _began_again()
            self._again = self._again[len(known) :]
        if text:
            self._said += text
            yield TextPiece(text, self._turn, block)

    def _end_turn(self) -> None:
        if self._again:
            raise _began_again()
        self._turn += 1
        self._said, self._thought, self._is_thought = "", False, False


def _began_again() -> ApiError:
    """What was sent cannot be taken back in these APIs."""
    return ApiError(502, "answer_began_again", "the model's answer broke off and began again otherwise; ask again")
