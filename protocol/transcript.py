"""What the model is shown: instructions, history, the user's message, the finished steps; cut to fit, by whole atoms.

Order of cutting, the cheapest loss first: old tool results are shortened; the oldest exchanges are dropped; the results
of this request's earlier steps are shortened; those steps are dropped; the last step's results are shortened. The
instructions, the user's message and the last step itself always stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from callboard.protocol.content import Atom, Message, SystemMessage, ToolMessage, UserMessage, split_atoms
from callboard.protocol.prompt import TokenCounter, messages_tokens

#: What stays of a shortened result: enough to see what it was.
SHORTENED_RESULT_CHARS: Final = 400
#: History is cut to this share of the limit: cutting at each step would spoil the provider's prompt cache each time.
CUT_TO: Final = 0.75


@dataclass(slots=True)
class _Piece:
    """An atom and its size, counted once."""

    messages: Atom
    tokens: int


class Transcript:
    """Grows by whole steps; `fit` cuts it, `messages` is what stands in the next model call."""

    __slots__ = ("_count", "_flat", "_head", "_limit", "_old", "_steps", "_user", "tokens")

    def __init__(
        self,
        system_prompt: str,
        history: Sequence[Message],
        user: UserMessage,
        *,
        limit_tokens: int | None,
        tools_tokens: int,
        count: TokenCounter,
    ) -> None:
        self._count = count
        self._limit = limit_tokens
        atoms = split_atoms(history)
        leading = 0
        while leading < len(atoms) and isinstance(atoms[leading][0], SystemMessage):
            leading += 1
        prompt: tuple[Message, ...] = (SystemMessage(system_prompt),) if system_prompt else ()
        self._head = self._piece(prompt + tuple(message for atom in atoms[:leading] for message in atom))
        self._old = [self._piece(atom) for atom in atoms[leading:]]
        self._user = self._piece((user,))
        self._steps: list[_Piece] = []
        self.tokens = tools_tokens + sum(piece.tokens for piece in (self._head, self._user, *self._old))
        """Of all messages and tool definitions, as estimated by the counter."""
        self._flat: list[Message] = []
        self._flatten()

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results (and the notes after them)."""
        piece = self._piece(messages)
        self._steps.append(piece)
        self._flat.extend(messages)
        self.tokens += piece.tokens

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    def messages(self) -> tuple[Message, ...]:
        """What the model is shown; only this tuple itself is built anew for each step."""
        return tuple(self._flat)

    def fit(self) -> bool:
        """Cut until the limit holds. False when not even what must stay fits."""
        if self._limit is None or self.tokens <= self._limit:
            return True
        target = int(self._limit * CUT_TO)
        self._shorten(self._old, target)
        self._drop_old(target)
        self._shorten(self._steps[:-1], self._limit)
        while len(self._steps) > 1 and self.tokens > self._limit:
            self.tokens -= self._steps.pop(0).tokens
        self._shorten(self._steps[-1:], self._limit)
        self._flatten()
        return self.tokens <= self._limit

    def _piece(self, messages: Atom) -> _Piece:
        return _Piece(messages, messages_tokens(messages, self._count))

    def _flatten(self) -> None:
        pieces = (self._head, *self._old, self._user, *self._steps)
        self._flat = [message for piece in pieces for message in piece.messages]

    def _shorten(self, pieces: Sequence[_Piece], target: int) -> None:
        for piece in pieces:
            if self.tokens <= target:
                return
            shortened = self._piece(tuple(shorten_result(message) for message in piece.messages))
            if shortened.tokens < piece.tokens:
                self.tokens += shortened.tokens - piece.tokens
                piece.messages, piece.tokens = shortened.messages, shortened.tokens

    def _drop_old(self, target: int) -> None:
        """Drop from the oldest on, and never let the rest begin with an answer to a question that is gone."""
        dropped = False
        while self._old and (self.tokens > target or (dropped and not self._begins_with_user())):
            self.tokens -= self._old.pop(0).tokens
            dropped = True

    def _begins_with_user(self) -> bool:
        return isinstance(self._old[0].messages[0], UserMessage)


def shorten_result(message: Message) -> Message:
    """A tool result cut to its beginning, still JSON; any other message, and a short result, as it is."""
    if not isinstance(message, ToolMessage) or len(message.content) <= SHORTENED_RESULT_CHARS * 2:
        return message
    shortened = {
        "shortened": True,
        "beginning": message.content[:SHORTENED_RESULT_CHARS],
        "characters_left_out": len(message.content) - SHORTENED_RESULT_CHARS,
    }
    return replace(message, content=orjson.dumps(shortened).decode())
