"""How many tokens a text has: the real tokenizer, in a child process.

Loading its vocabulary takes 0.4 s of native code that holds the GIL: here, it would stall every thread of the host,
its loop too (measured: imports beside it stood still until it was done). In a child it loads beside them.
A round trip over a pipe takes 0.1 ms, for however many texts: so they are counted together. Should the child be lost,
this process loads the vocabulary after all; where that cannot be loaded, tokens are estimated, rather too many than
too few.

Counts are compared with budgets. A token has a byte at least: what has no more bytes than it may have tokens is not
counted, so that a few small files are answered about without the vocabulary.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar

import orjson

from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.providers.tokenizers import counter_in

#: The encoding of current OpenAI models; others differ by under 1% on code.
ENCODING: Final = "o200k_base"
#: For a child on a busy machine to load and answer; then this process counts by itself.
ANSWER_SECONDS: Final = 20.0
#: Of candidates of which the first mostly will do.
FIRST_COUNTED: Final = 4
#: Answers about folders that hold less hardly need a count.
FEW_BYTES: Final = 500
Candidate = TypeVar("Candidate")


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Exact counts in o200k, in one round trip; only in a run of more than 16,000 characters without a word a few
    tokens more."""
    counts = _child().count([text if text.isascii() else _bytes(text).decode() for text in texts])
    return list(map(counter_in(ENCODING) or estimate_tokens, texts)) if counts is None else counts


def most_tokens(texts: Iterable[str]) -> list[int]:
    """Their bytes: none has more tokens."""
    return [len(_bytes(text)) for text in texts]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def counted(
    candidates: Iterable[Candidate], text_of: Callable[[Candidate], str], limit: int
) -> Iterator[tuple[Candidate, int]]:
    """Each with its count, for who looks for the first, or the last, that has at most `limit` tokens: a round trip for
    FIRST_COUNTED, then for twice as many each time. The first ones that have no more bytes come with these instead."""
    left, many = iter(candidates), FIRST_COUNTED
    for each in left:
        (most,) = most_tokens([text_of(each)])
        if most > limit:
            left = chain([each], left)
            break
        yield each, most
    while some := list(islice(left, many)):
        yield from zip(some, count_tokens([text_of(each) for each in some]), strict=True)
        many *= 2


def load_ahead(folders: Iterable[str | Path]) -> None:
    """Begin to load the vocabulary, unless these hold so little that it may never be asked; returns at once."""
    if not all(map(_is_small, folders)):
        _child()


def _is_small(folder: str | Path) -> bool:
    """Does it hold a few small files and nothing else?"""
    size = 0
    try:
        with os.scandir(folder) as entries:
            seen = (each for each in entries if not each.name.startswith("."))
            return not any(each.is_dir() or (size := size + each.stat().st_size) > FEW_BYTES for each in seen)
    except OSError:
        return False


class _Child:
    """The counting process. It ends when our end of its pipe closes, however this process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._helper: Helper | None = None
        with contextlib.suppress(OSError):  # an embedded interpreter without sys.executable, no more processes
            self._helper = Helper(main, quiet=True)

    def count(self, texts: Sequence[str]) -> list[int] | None:
        """None when the child cannot tell, from then on."""
        with self._lock:
            if self._helper is None:
                return None
            try:
                found: list[int] = orjson.loads(self._helper.ask(orjson.dumps(texts), ANSWER_SECONDS))
                return found
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
    """The child: texts in, their counts out, until its input ends. It ends at once where it cannot count."""
    count = counter_in(ENCODING)
    if count is not None:
        Caller().serve(lambda data: orjson.dumps(list(map(count, orjson.loads(data)))))
