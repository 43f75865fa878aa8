"""An exception that another thread raises in this one, at a chosen one of the points at which CPython looks for it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: CPython looks after a call, at the begin of a function and at the end of a loop's round, and nowhere else.
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "CALL_INTRINSIC_1", "RESUME", "JUMP_BACKWARD"} | {
    f"POP_JUMP_BACKWARD_IF_{each}" for each in ("FALSE", "TRUE", "NONE", "NOT_NONE")
}
#: Python itself calls these, while it lets go of an object or compares classes: what they raise reaches nobody.
OF_PYTHON = ("_weakrefset.py", "<frozen abc>")


class Late(BaseException):
    """What is raised."""


class Strike:
    """Raises `Late` once, at the `at`-th point that counts, on the thread that has armed it."""

    def __init__(self, at: int, counts: Callable[[FrameType], bool], ends: Callable[[FrameType], bool]) -> None:
        """`counts`: in this frame; `ends`: nothing is raised once this frame is entered."""
        self._left = at
        self._counts = counts
        self._ends = ends
        self._last: dict[FrameType, int] = {}
        self.has_struck = self.is_over = False
        self.where = ""
        """It has struck."""

    def arm(self) -> None:
        """From here on, in the frames that are there already too."""
        frame: FrameType | None = sys._getframe(1)
        sys.settrace(self._trace)
        while frame is not None:
            frame.f_trace, frame.f_trace_opcodes = self._trace, True
            self._last[frame] = frame.f_lasti
            frame = frame.f_back

    def _trace(self, frame: FrameType, event: str, _: TracebackType | Any) -> Callable[..., Any] | None:
        if self.is_over:
            return None
        if event == "call":
            if self._ends(frame):
                self.is_over = True
                return None
            if frame.f_code.co_filename.endswith(OF_PYTHON):
                return None
            frame.f_trace_opcodes = True
        elif event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            before, self._last[frame] = self._last.get(frame, -1), frame.f_lasti
            if before >= 0 and self._is_look(frame, before):
                self._strike(frame)
        return self._trace

    def _is_look(self, frame: FrameType, at: int) -> bool:
        return dis.opname[frame.f_code.co_code[at]] in LOOKS and self._counts(frame)

    def _strike(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left < 0:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            self.has_struck = self.is_over = True
            raise Late
