"""The command line at a terminal of its own, for tests of what a person sees and types."""

from __future__ import annotations

import os
import select
import subprocess
import termios
import time
from typing import Any

#: The end of a question for approval.
QUESTION_PROMPT = "[?] "


class OwnTerminal:
    """`callboard` with a terminal as its input and output."""

    def __init__(self, callboard: Any, *arguments: str, columns: int = 0, **how: Any) -> None:
        """`columns`: 0 does not say how wide it is."""
        callboard.environment.setdefault("TERM", "xterm")
        self._ours, theirs = os.openpty()
        self.resize(columns)
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process: subprocess.Popen[bytes] = callboard.start(*arguments, **streams, **how)
        os.close(theirs)
        self.shown = ""
        self._seen = 0

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._ours, (50 if columns else 0, columns))

    def next_prompt(self, prompt: str = QUESTION_PROMPT) -> str:
        """What is shown from the last prompt to the next one."""
        end, start = time.monotonic() + 50, self._seen
        while (found := self.shown.find(prompt, start)) < 0:
            assert time.monotonic() < end, f"no question was shown: {self.shown!r}"
            assert self._read(), f"no question was shown, and it ended: {self.shown!r}"
        self._seen = found + len(prompt)
        return self.shown[start : self._seen]

    def next_question(self, path: str) -> str:
        shown = self.next_prompt()
        assert f"  path: {path}\n" in shown
        return shown

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def finish(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(30)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 50)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux says EIO when the other end is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
