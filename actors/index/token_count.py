"""How many tokens a text has: the real tokenizer, in a child process.

Loading its vocabulary takes 0.4 s of native code that holds the GIL: here, it would stall every thread of the host,
its loop too (measured: imports beside it stood still until it was done). In a child it loads beside them.
A count is one round trip over a pipe, 0.1 ms. Should the child be lost, this process loads the vocabulary after all;
where that cannot be loaded, tokens are estimated, rather too many than too few.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Final

from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.providers.tokenizers import counter_in

#: The encoding of current OpenAI models; others differ by under 1% on code.
ENCODING: Final = "o200k_base"
#: For a child on a busy machine to load and answer; then this process counts by itself.
ANSWER_SECONDS: Final = 20.0


def count_tokens(text: str) -> int:
    """Exact count in o200k; only in a run of more than 16,000 characters without a word a few tokens more."""
    counted = _child().count(text.encode("utf-8", "replace"))
    return (counter_in(ENCODING) or estimate_tokens)(text) if counted is None else counted


def load_ahead() -> None:
    """Begin to load the vocabulary; returns at once."""
    _child()


class _Child:
    """The counting process. It ends when our end of its pipe closes, however this process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._helper: Helper | None = None
        with contextlib.suppress(OSError):  # an embedded interpreter without sys.executable, no more processes
            self._helper = Helper(main, quiet=True)

    def count(self, data: bytes) -> int | None:
        """None when the child cannot tell, from then on."""
        with self._lock:
            if self._helper is None:
                return None
            try:
                return int(self._helper.ask(data, ANSWER_SECONDS))
            except (EOFError, TimeoutError):
                self.close()
                return None

    def close(self) -> None:
        with self._lock:
            helper, self._helper = self._helper, None
            if helper is not None:
                helper.close()


_starting = threading.Lock()
_children: dict[int, _Child] = {}
"""By the process they belong to: a fork of the host must not share its parent's pipe."""


def _child() -> _Child:
    with _starting:
        if (child := _children.get(os.getpid())) is None:
            child = _children[os.getpid()] = _Child()
            atexit.register(child.close)
        return child


def main() -> None:
    """The child: a text in, a count out, until its input ends. It ends at once where it cannot count."""
    count = counter_in(ENCODING)
    if count is not None:
        Caller().serve(lambda data: b"%d" % count(data.decode("utf-8", "replace")))
