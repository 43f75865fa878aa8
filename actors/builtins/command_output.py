"""What a command prints, as much of it as a model is shown: the beginning and the end, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from callboard.actors.builtins.brief_result import BriefResult
from callboard.protocol.masking import WINDOW_BYTES, mask_bytes

#: What is shown of a long output: about 2,500 tokens of its beginning and 5,000 of its end, where errors are.
HEAD_BYTES: Final = 10_000
TAIL_BYTES: Final = 20_000
#: Of each end of an output, what is read for diagnostics: more than is shown, since errors may be in the middle.
READ_BYTES: Final = 100_000

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Diagnostic(BriefResult):
    """One thing that a compiler, a linter or a test runner says of a place."""

    file: str
    """Relative to the workspace where it is in it; else as it was printed."""
    line: int | None
    """Counted from 1, as the column; left out where it was not printed."""
    column: int | None
    severity: Severity
    code: str
    """Such as `E0308`, `TS2322`, `F401`, `-Wunused-variable`, `return-value`, `ValueError`, `panic`."""
    message: str


class HeadAndTail:
    """Takes any number of bytes and keeps the first and the last, with what decides whether a key is in them."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """Bytes that were taken."""

    def add(self, data: bytes) -> None:
        """Take some more."""
        self.total += len(data)
        self._head += data[: self._head_bytes + self._tail_bytes + WINDOW_BYTES - len(self._head)]
        self._tail += data[-self._tail_bytes - WINDOW_BYTES :]
        if len(self._tail) > 2 * (self._tail_bytes + WINDOW_BYTES):
            del self._tail[: -self._tail_bytes - WINDOW_BYTES]

    @property
    def left_out(self) -> int:
        """How many bytes between beginning and end are not shown."""
        if self.total <= self._head_bytes + self._tail_bytes:
            return 0
        return self.total - len(self._shown_head()) - len(self._shown_tail())

    def text(self) -> str:
        """What is shown: keys are masked, bytes that are not UTF-8 are escapes (`\\\\xff`)."""
        if not self.left_out:
            return _decoded(mask_bytes(bytes(self._head)))
        gap = f"\n[... {self.left_out:,} bytes are left out ...]\n"
        return f"{_decoded(self._shown_head())}{gap}{_decoded(self._shown_tail())}"

    def _shown_head(self) -> bytes:
        """Not cut within a character, of which three bytes at most go on what the first begins."""
        head = bytes(self._head)
        end = self._head_bytes
        while end > self._head_bytes - 3 and head[end] & 0xC0 == 0x80:
            end -= 1
        return mask_bytes(head, 0, end)

    def _shown_tail(self) -> bytes:
        tail = bytes(self._tail)
        start = len(tail) - self._tail_bytes
        end = start + 3
        while start < end and tail[start] & 0xC0 == 0x80:
            start += 1
        return mask_bytes(tail, start)


def _decoded(shown: bytes) -> str:
    return shown.decode("utf-8", "backslashreplace")
