"""The real tokenizer of a model: OpenAI's tiktoken (extra `index`) with vocabularies that ship here (vocabularies/).

tiktoken itself would fetch its vocabularies; it is given ours instead and never opens a connection. A vocabulary whose
hash is not the known one is not used: tokens are estimated then, which the log says once.
Loading a vocabulary takes 0.1 to 0.3 s, half of it native code that holds the GIL, and 30 to 45 MB. So it is loaded
when a runtime is made, never while one runs, and kept for the process. A count then takes about 0.1 ms a kB.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from callboard.protocol.errors import said
from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens

if TYPE_CHECKING:
    from tiktoken import Encoding

logger = logging.getLogger("callboard")

#: NOTICE there says where they come from.
FOLDER: Final = Path(__file__).parent / "vocabularies"

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
#: Characters counted at once. tiktoken panics on a million blanks in a row, and the time for runs of another character
#: grows faster than they do.
PIECE_CHARS: Final = 16_384
#: Where a text is cut without changing its count: no token goes on from a letter or digit to another ASCII character
#: than those (but for 's and the like), nor from the end of a line to one of them.
_SEAM: Final = re.compile(r"(?<=[A-Za-z0-9])(?=[\x00-&(-/:-@\[-`{-\x7f])|(?<=\n)(?=[A-Za-z0-9])")


class Vocabulary(Struct, frozen=True):
    """A file of tokens, and how a text is split before they are looked up."""

    file: str
    sha256: str
    pattern: str
    is_composed: bool = False
    """Are letters and their accents composed first (NFC)?"""


_CL100K: Final = Vocabulary(
    "cl100k_base.tokens.gz",
    "7ddaf85a8af321e84bd1a7e24fce9731d67319e66eaff927f8d41830b3737b79",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s",
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K: Final = Vocabulary(
    "o200k_base.tokens.gz",
    "2b839302ef57bff515a153511c4c8075610a1337ac220bc1d1bce22549de21d4",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_QWEN3: Final = Vocabulary(
    "qwen3.tokens.gz",
    "9284cc06ab25ef42b9af32ef43bff4c2e39d8943c35a43a2ebdf39e7800f094b",
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    is_composed=True,
)
#: Special tokens do not count as such in a text, so gpt-oss counts as GPT-5 does. Llama 3's vocabulary may not ship; it
#: begins with all of cl100k, which counts English and code up to 1% too high, other scripts more, and never too low.
VOCABULARIES: Final = {
    "o200k_base": _O200K,
    "o200k_harmony": _O200K,
    "cl100k_base": _CL100K,
    "llama3": _CL100K,
    "qwen3": _QWEN3,
}
#: Those that this process has.
_LOADED: Final[set[Vocabulary]] = set()


def counter_for(model: str, *, may_load: bool = True) -> TokenCounter:
    """Counts tokens as "provider/model" does, or estimates them where its tokenizer is not installed or not known.

    The first one for a vocabulary loads it (see the module), where it `may_load`; else the estimate is used for one
    that is not there yet.
    """
    encoding = encoding_of(model)
    if not encoding or not (may_load or VOCABULARIES[encoding] in _LOADED):
        return estimate_tokens
    return counter_in(encoding) or estimate_tokens


def counter_in(encoding: str) -> TokenCounter | None:
    """Counts tokens in an encoding of `VOCABULARIES`; None where it cannot be loaded, which the log says once."""
    vocabulary = VOCABULARIES[encoding]
    tokenizer = _loaded(vocabulary)
    if tokenizer is None:
        return None

    def count(text: str) -> int:
        text = text if text.isascii() else _well_formed(text)
        if vocabulary.is_composed:
            text = unicodedata.normalize("NFC", text)
        return sum(len(tokenizer.encode_ordinary(piece)) for piece in _pieces(text))

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


def _well_formed(text: str) -> str:
    """Halves of surrogate pairs, which no encoding has, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most PIECE_CHARS, cut at seams; where there is none, a cut adds a token or two."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        # The last seam in the last kilobyte: text without any is not searched from the front.
        seams = [found.start() for found in _SEAM.finditer(text, end - 1_024, end)]
        end = seams[-1] if seams else end
        yield text[start:end]
        start = end
    yield text[start:]


@cache
def _loaded(vocabulary: Vocabulary) -> Encoding | None:
    """Loaded once; so a failure is logged once, too."""
    try:
        tokenizer = _tokenizer(vocabulary, FOLDER / vocabulary.file)
    except Exception as error:  # noqa: BLE001 - a broken library fails in any way, and an estimate is enough
        if isinstance(error, ModuleNotFoundError) and error.name == "tiktoken":
            logger.info('tokens are estimated, not counted: the tokenizer (tiktoken) is in the extra "index"')
        else:
            logger.warning("tokens are estimated, because the tokenizer cannot be loaded: %s", said(error))
        return None
    _LOADED.add(vocabulary)
    return tokenizer


def _tokenizer(vocabulary: Vocabulary, path: Path) -> Encoding:
    from tiktoken import Encoding  # noqa: PLC0415 - the extra `index`

    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != vocabulary.sha256:
        raise ValueError(f"{path} is damaged: its SHA-256 is not that of this version; install callboard again")
    ranks = {token: rank for rank, token in enumerate(_tokens(gzip.decompress(data)))}
    tokenizer = Encoding(vocabulary.file, pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens={})
    # It has made tables of its own; these are needed no longer, and take 20 MB.
    ranks.clear()
    return tokenizer


def _tokens(data: bytes) -> Iterator[bytes]:
    """Each token is behind a byte that holds its length."""
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        yield data[at + 1 : end]
        at = end
