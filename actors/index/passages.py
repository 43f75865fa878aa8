"""What is embedded for a tile: its words, not its code. A model that has learnt English finds little in brackets and
keywords: with the place, the comments and then each further word once, 64 tokens say more than 128 of the code itself,
and take half the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from callboard.actors.index import languages
from callboard.actors.index.comments import split_comments
from callboard.actors.index.encodings import shown_text
from callboard.actors.index.records import digest
from callboard.actors.index.tokens import PART, word_set
from callboard.protocol.masking import mask

#: Longer texts are cut by the embedder. Twice as many cost twice the time.
MAX_TOKENS: Final = 128
#: Raised by one whenever the words below are chosen otherwise: vectors of another version are not compared with these.
VERSION: Final = "words-3"
#: Words of comments that are taken: the rest of MAX_TOKENS is for the words of the code.
MAX_COMMENT_WORDS: Final = 32
#: Of a tile's text, as much is looked at: far more than fits.
MAX_CHARS: Final = 4_000

_IDENTIFIER: Final = re.compile(r"[^\W\d]\w*")
_TAG: Final = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
#: Words of languages, not of programs.
_KEYWORDS: Final = word_set(
    """abstract and as assert async auto await begin bool break byte case catch char class const continue def default
    delete do double elif else elsif end enum err except export extends extern false final finally float fn for foreach
    from func function goto if impl implements import in include instanceof int interface is lambda let long loop match
    mod module mut namespace new nil none not null object of ok or override package pass private protected pub public
    raise ref require rescue return self short signed size_t sizeof some static str string struct super switch template
    then this throw throws trait true try type typedef typename typeof union unless unsigned use using val var virtual
    void when where while with yield"""
)


class Passage(NamedTuple):
    """A tile that may be embedded, with what tells how likely it is asked for."""

    chunk: int
    file: int
    path: str
    root: str
    start_byte: int
    end_byte: int
    canonical_path: str
    kind: str
    language: str
    encoding: str
    code_chars: int
    content_digest: bytes

    @property
    def digest(self) -> bytes:
        """Names the text that is embedded in the cache."""
        return digest(b"\0".join((self.content_digest, self.canonical_path.encode(), VERSION.encode())))

    @property
    def meant_with(self) -> int:
        """The file whose meaning it shares: what a function is for may be said in its neighbours. 0: of none, since a
        section of prose speaks for itself."""
        return self.file if languages.by_name(self.language).is_code else 0

    def text(self, content: bytes) -> str:
        """What is embedded, from the bytes of its file. What looks like a key is masked: the model may be elsewhere."""
        shown = mask(shown_text(content, self.start_byte, self.end_byte, self.encoding)[:MAX_CHARS])
        return passage_text(self.canonical_path, shown, is_code=languages.by_name(self.language).is_code)


def passage_text(canonical_path: str, text: str, *, is_code: bool) -> str:
    """The words that are embedded; of prose the text itself, without tags."""
    if not is_code:
        return f"{canonical_path}\n{_TAG.sub(' ', text)}"
    comments, code = split_comments(text)
    said = " ".join(comments.split()[:MAX_COMMENT_WORDS])
    return f"{' '.join(_words(canonical_path))}. {said}. {' '.join(_words(code))}"


def _words(text: str) -> Iterable[str]:
    """The parts of all identifiers, each once, in order."""
    parts = (part.lower() for word in _IDENTIFIER.findall(text) for part in _parts(word))
    return dict.fromkeys(part for part in parts if len(part) > 1 and part not in _KEYWORDS)


def _parts(word: str) -> list[str]:
    return PART.findall(word) if word.isascii() else [word]
