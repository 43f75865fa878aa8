"""The real tokenizer of a model, where its vocabulary ships in a package (quicktok, in the extra `index`).

Loading a vocabulary takes 0.2 to 0.5 s of native code that holds the GIL, and 40 to 80 MB. So it is loaded when a
runtime is made, never while one runs, and kept for the process. A count then takes 3 us a kB, less than the estimate.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens

#: Beginnings of model names, without organisation, and the encoding they use; the longest one that fits counts. Names
#: are by the makers' own statements (OpenAI's tiktoken, the model cards of Meta and Qwen); Qwen 3.5 has another one.
ENCODINGS: Final = {
    "gpt-5": "o200k_base",
    "gpt-4o": "o200k_base",
    "gpt-4.1": "o200k_base",
    "gpt-4.5": "o200k_base",
    "chatgpt-4o": "o200k_base",
    "o1": "o200k_base",
    "o3": "o200k_base",
    "o4-mini": "o200k_base",
    "gpt-4": "cl100k_base",
    "gpt-3.5": "cl100k_base",
    "gpt-oss": "o200k_harmony",
    "llama-3": "llama3",
    "llama3": "llama3",
    "meta-llama-3": "llama3",
    "qwen2.5": "qwen3",
    "qwen-2.5": "qwen3",
    "qwen3": "qwen3",
    "qwen3.5": "",
    "qwen3.6": "",
}
#: Characters counted at once. The time for a run of one character grows with its square (1.5 s for a million dashes);
#: in pieces it does not, and each cut adds a token at most.
PIECE_CHARS: Final = 16_384


#: Encodings whose vocabulary this process has.
_LOADED: Final[set[str]] = set()


class Vocabulary(Protocol):
    """What a tokenizer package gives."""

    def count(self, text: str, /) -> int:
        """Tokens of a text."""


def counter_for(model: str, *, may_load: bool = True) -> TokenCounter:
    """Counts tokens as "provider/model" does, or estimates them where its tokenizer is not installed or not known.

    The first one for a vocabulary loads it (see the module), where it `may_load`; else the estimate is used for one
    that is not there yet.
    """
    encoding = encoding_of(model)
    vocabulary = _vocabulary(encoding) if encoding and (may_load or encoding in _LOADED) else None
    if vocabulary is None:
        return estimate_tokens

    def count(text: str) -> int:
        if len(text) <= PIECE_CHARS:
            return _count(vocabulary, text)
        pieces = (text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS))
        return sum(_count(vocabulary, piece) for piece in pieces)

    return count


def encoding_of(model: str) -> str:
    """The encoding of "provider/model"; "" where it is not known."""
    provider, _, rest = model.partition("/")
    name = rest.lower().rpartition("/")[2]
    if provider in ("offline", "scripted"):
        return ""
    fitting = (start for start in ENCODINGS if name == start or _goes_on(name, start))
    return ENCODINGS.get(max(fitting, key=len, default=""), "")


def _goes_on(name: str, start: str) -> bool:
    """Whether the name begins so, and what follows is a version, a size or a date: "o3-mini", "llama3.1:8b"."""
    return name.startswith(start) and not name[len(start)].isalnum()


def _count(vocabulary: Vocabulary, text: str) -> int:
    try:
        return int(vocabulary.count(text))
    except TypeError:  # half of a surrogate pair
        return int(vocabulary.count(text.encode("utf-8", "replace").decode()))


@cache
def _vocabulary(encoding: str) -> Vocabulary | None:
    try:
        import quicktok  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    found: Vocabulary = quicktok.get_encoding(encoding)
    _LOADED.add(encoding)
    return found
