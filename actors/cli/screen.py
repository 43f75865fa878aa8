"""What `ask` shows: the answer's text on stdout as it arrives, everything else on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from callboard import Reply, RunTool, ToolProgressed
from callboard.actors.cli.terminal import DIM, PLAIN, YELLOW, TerminalText, print_line, printable, shows_colour
from callboard.protocol.commands import Note, ReportFailure
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import Tag
from callboard.protocol.masking import ForLog, for_log
from callboard.protocol.model import Restarted, TextDelta
from callboard.protocol.readers import ForDecision

#: Arguments longer than this are cut on the screen.
SHOWN_ARGUMENTS_CHARS: Final = 80


class Screen:
    """Shows the events of requests. `quiet` leaves stdout alone; `timed` shows how far calls are and how long they
    took. A pipe gets the answer as it is.

    A question to the person (`held`) comes from another thread: what happens meanwhile is shown behind it.
    """

    def __init__(self, *, quiet: bool, timed: bool = False) -> None:
        self._quiet = quiet
        self._timed = timed
        self.is_coloured = shows_colour(sys.stderr)
        self._lock = threading.RLock()
        self._waiting: list[tuple[str, str]] | None = None
        """Remarks that wait for the end of a question; None while there is no question."""
        self._terminal = TerminalText() if sys.stdout.isatty() else None
        self._at_line_start = True
        self._running: dict[Tag, tuple[str, float]] = {}
        """The name of each call, and when it was sent."""

    def show(self, event: object) -> None:
        """Show one event, if it is of a kind that people want to see."""
        match event:
            case TextDelta():
                self._write(event.text if self._terminal is None else self._terminal.feed(event.text))
            case RunTool(tag, name, arguments):
                self._running[tag] = name, time.monotonic()
                cut = "..." if len(arguments) > SHOWN_ARGUMENTS_CHARS else ""
                self.remark(f"> {name} {arguments[:SHOWN_ARGUMENTS_CHARS]}{cut}", DIM)
            case ToolCallCompleted():
                self.remark(f"< {self._ended(event.tag)}: {len(event.content):,} characters", DIM)
            case ToolCallFailed(failure=failure):
                self.remark(f"< {self._ended(event.tag, failure.tool)}: {failure.code}: {failure.message}")
            case ReportFailure(failure=failure):
                self._running.pop(event.tag, None)
                self.remark(f"< {failure.tool}: {failure.code}: {failure.message}")
            case ToolCallTimedOut():
                self.remark(f"< {self._ended(event.tag)}: ended at its deadline")
            case ToolCallCancelled():
                self.remark(f"< {self._ended(event.tag)}: cancelled")
            case ToolProgressed() if self._timed:
                called, _ = self._running.get(event.tag, ("tool", 0.0))
                done = "" if event.fraction is None else f" {event.fraction:.0%}"
                self.remark(f"  {called}:{done} {event.message}", DIM)
            case Note():
                self.remark(event.text)
            case Restarted():
                self.remark(f"the answer begins again ({event.reason})")
            case Reply():
                self.end_line()

    def end_line(self) -> None:
        """End an unfinished line, so that the next output begins a line."""
        if self._terminal is not None:
            self._write(self._terminal.finish())
        if not self._at_line_start:
            print_line("")
            self._at_line_start = True

    def remark(self, text: str, style: str = YELLOW) -> None:
        """One line on stderr, without what looks like a key."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append((text, style))
                return
            self.end_line()
            self._tell(for_log(printable(text)), style)

    def _tell(self, shown: ForLog, style: str) -> None:
        _write_error(f"{style}{shown}{PLAIN}\n" if self.is_coloured else f"{shown}\n")

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[ForDecision], None]]:
        """Within: only what the given function writes is shown on stderr."""
        with self._lock:
            self.end_line()
            self._waiting = []
        try:
            yield _write_error
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                for text, style in waiting or ():
                    self.remark(text, style)

    def _write(self, text: str) -> None:
        if text and not self._quiet:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")

    def _ended(self, tag: Tag, otherwise: str = "tool") -> str:
        """The name of the call, and where it is wanted how long it took."""
        name, sent = self._running.pop(tag, (otherwise, 0.0))
        return f"{name} ({time.monotonic() - sent:.1f} s)" if self._timed and sent else name


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
