"""`<think>...</think>` at the start of a text, told apart from the answer. Only where a dialect asks for it."""

from __future__ import annotations

from typing import Final

from callboard.protocol.model import StreamEvent, TextDelta, ThinkingDelta

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class ThinkTags:
    """A tag may be cut anywhere: what could be the start of one is held back until it is known."""

    __slots__ = ("_block", "_held", "_state")

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""
        self._block = 0

    def feed(self, text: str, block: int, out: list[StreamEvent]) -> None:
        self._block = block
        if self._state == "after":
            out.append(TextDelta(text, block))
            return
        self._held += text
        if self._state == "before":
            self._look_for_open(out)
        if self._state == "inside":
            self._look_for_close(out)
        if self._state == "closed":
            self._skip_newlines(out)

    def finish(self, out: list[StreamEvent]) -> None:
        """The text is over: what was held back is what it looked like."""
        held, self._held = self._held, ""
        if held:
            out.append(ThinkingDelta(held, self._block) if self._state == "inside" else TextDelta(held, self._block))

    def _look_for_open(self, out: list[StreamEvent]) -> None:
        start = self._held.lstrip()
        if start.startswith(_OPEN):
            self._state, self._held = "inside", start[len(_OPEN) :]
        elif not _OPEN.startswith(start):
            self._state = "after"
            self.finish(out)

    def _look_for_close(self, out: list[StreamEvent]) -> None:
        thought, found, rest = self._held.partition(_CLOSE)
        if not found:
            keep = _overlap(thought)
            thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
        if thought:
            out.append(ThinkingDelta(thought, self._block))
        if found:
            self._state, self._held = "closed", rest

    def _skip_newlines(self, out: list[StreamEvent]) -> None:
        """Templates put empty lines between the tag and the answer."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = "after"
            self.finish(out)


def _overlap(text: str) -> int:
    """How many characters at the end of `text` could begin the closing tag."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)
