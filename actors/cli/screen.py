"""What `ask` and `chat` show: the answer's text on stdout as it arrives, everything else on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from callboard import Reply, RunTool, ToolProgressed
from callboard.actors.cli.columns import WordWrap, columns_of, counted, wrapped
from callboard.actors.cli.terminal import DIM, PLAIN, YELLOW, TerminalText, print_line, printable, shows_colour
from callboard.protocol.commands import Note, ReportFailure
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.masking import ForLog, for_log
from callboard.protocol.model import Restarted, TextDelta
from callboard.protocol.readers import ForDecision

#: Arguments longer than this are cut on the screen.
SHOWN_ARGUMENTS_CHARS: Final = 80
#: A question waits at most so long for what was said before it to be shown, which takes milliseconds.
ORDER_SECONDS: Final = 1.0


class Screen:
    """Shows the events of requests. `quiet` leaves stdout alone; `timed` shows how far calls are and how long they
    took. A pipe gets the answer as it is.

    A question to the person (`held`) comes from another thread: what was said before it is shown before it
    (`until_shown`), and what happens meanwhile is shown behind it.
    """

    def __init__(self, *, quiet: bool, timed: bool = False) -> None:
        self._quiet = quiet
        self._timed = timed
        self.is_coloured = shows_colour(sys.stderr)
        self._lock = threading.RLock()
        self._waiting: list[Callable[[], None]] | None = None
        """What is to be shown at the end of a question; None while there is no question."""
        self._terminal = TerminalText() if sys.stdout.isatty() else None
        self._wrap = WordWrap(lambda: columns_of(sys.stdout))
        self._at_line_start = True
        self._shown = threading.Condition(self._lock)
        self._come_to: set[Tag] = set()
        """Calls of which something was shown."""
        self._is_answering = False
        self._request: RequestId | None = None
        """That is answered; None until something of it was shown."""
        self._running: dict[Tag, tuple[str, float]] = {}
        """The name of each call, and when it was sent."""

    def show(self, event: object) -> None:
        """Show one event, if it is of a kind that people want to see."""
        match event:
            case TextDelta():
                self._say(event.text)
            case RunTool(tag, name, arguments):
                self._running[tag] = name, time.monotonic()
                shown = for_log(arguments[: 100 * SHOWN_ARGUMENTS_CHARS])  # half of a key does not look like one
                cut = "..." if len(arguments) > SHOWN_ARGUMENTS_CHARS else ""
                self.remark(f"> {name} {shown[:SHOWN_ARGUMENTS_CHARS]}{cut}", DIM)
            case ToolCallCompleted():
                self.remark(f"< {self._ended(event.tag)}: {counted(len(event.content), 'character')}", DIM)
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
        self._has_come_to(getattr(event, "tag", None))

    def end_line(self) -> None:
        """End an unfinished line, so that the next output begins a line."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(self.end_line)
                return
            self.show_rest()
            if not self._at_line_start:
                print_line("")
                self._at_line_start = True

    def show_rest(self) -> None:
        """The last word of an answer that does not go on."""
        if self._terminal is not None:
            self._write(self._wrap.feed(self._terminal.finish()) + self._wrap.finish())

    def end_interrupted(self) -> None:
        """`end_line` behind a Ctrl-C, which a terminal shows as ^C in the line that it has come to."""
        with self._lock:
            if self._waiting is None and sys.stdout.isatty():
                self._at_line_start = False
            self.end_line()

    def remark(self, text: str, style: str = YELLOW) -> None:
        """One note on stderr, without what looks like a key; at a terminal its lines wrap at words."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(lambda: self.remark(text, style))
                return
            self.end_line()
            self._tell(ForLog(wrapped(for_log(printable(text)), columns_of(sys.stderr), "  ")), style)

    def _tell(self, shown: ForLog, style: str) -> None:
        _write_error(f"{style}{shown}{PLAIN}\n" if self.is_coloured else f"{shown}\n")

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Within: an answer is shown as it comes."""
        self._is_answering, self._request = True, None
        try:
            yield
        finally:
            with self._shown:
                self._is_answering = False
                self._shown.notify_all()

    async def until_shown(self, tag: Tag) -> None:
        """A call asks something: comes back when all that was said before the call is shown. From any loop."""
        if self._is_behind(tag):
            await asyncio.to_thread(self._wait_for, tag)

    def _wait_for(self, tag: Tag) -> None:
        with self._shown:
            self._shown.wait_for(lambda: not self._is_behind(tag), ORDER_SECONDS)

    def _is_behind(self, tag: Tag) -> bool:
        """Is it yet to be shown what the request that is answered has said before this call of it?"""
        return self._is_answering and self._request in (None, tag.request_id) and tag not in self._come_to

    def _has_come_to(self, tag: Tag | None) -> None:
        if tag is not None and tag not in self._come_to:
            with self._shown:
                self._come_to.add(tag)
                self._request = self._request or tag.request_id
                self._shown.notify_all()

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[ForDecision], None]]:
        """Within: only what the given function writes is shown at the terminal."""
        with self._lock:
            self.end_line()
            self._waiting = []
        try:
            yield _write_error
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                for show in waiting or ():
                    show()

    def _say(self, text: str) -> None:
        """A piece of the answer. A pipe gets it at once and as it is."""
        with self._lock:
            if self._terminal is None:
                self._write(text)
            elif self._waiting is not None:
                self._waiting.append(lambda: self._say(text))
            else:
                self._write(self._wrap.feed(self._terminal.feed(text)))

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
