"""What was streamed so far of the turn that is under way."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.protocol import limits
from callboard.protocol.model import Restarted, StreamEvent, TextDelta


class TurnText:
    """The text of a turn, piece by piece; a stream that begins again makes void what came before."""

    __slots__ = ("_parts", "_size", "has_begun")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self.has_begun = False
        """Something was streamed."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)

    @property
    def is_too_long(self) -> bool:
        """Over the limit of an answer. In characters: the adapter counts bytes, and comes first."""
        return self._size > limits.MAX_ANSWER_BYTES

    def add(self, events: Iterable[StreamEvent]) -> None:
        """What came now."""
        self.has_begun = True
        for delta in events:
            if type(delta) is TextDelta:
                self._parts.append(delta.text)
                self._size += len(delta.text)
            elif type(delta) is Restarted:
                self._parts.clear()
                self._size = 0

    def would_be_too_long(self, events: Iterable[StreamEvent]) -> bool:
        """With these."""
        size = self._size + sum(len(delta.text) for delta in events if type(delta) is TextDelta)
        return size > limits.MAX_ANSWER_BYTES

    def forget(self, text: str = "") -> None:
        """Nothing of it counts any more, or this text in its place."""
        self._parts, self._size, self.has_begun = [text] if text else [], 0, False
