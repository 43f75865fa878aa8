"""From hits to an order: words, meaning, and what kind of place it is; pure functions over rows.

The weights were chosen on questions that paraphrase (benchmarks/stranger_questions.toml, the tuning half); docstring
benchmarks reward names, such questions do not (docs/retrieval.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

from callboard.actors.index import languages
from callboard.actors.index.tokens import word_set

#: Lexical hits that are looked at more closely, and dense ones.
CANDIDATES: Final = 200
DENSE_CANDIDATES: Final = 100
#: Share of a full name match, in units of the best lexical score (.1 to .3 help; more helps docstrings only).
NAME_BOOST: Final = 0.2
#: How much meaning counts, where there are vectors; the rest is for the words.
DENSE_WEIGHT: Final = 0.55
#: A tile that has no vector yet, though it is as likely as those whose turn has come, may be nearer than its words say.
DOUBT: Final = 0.1
#: A tile that is none of the lexical hits may still hold some of the words: it counts as so much of the last one, and
#: the less the fewer there are, since all of these would have been found.
ABSENT: Final = 0.8
#: What a file of its kind is worth beside an implementation. Tests repeat every word of what they test.
TEST_PRIOR: Final = 0.42
SIDE_PRIOR: Final = 0.42
PROSE_PRIOR: Final = 0.6
#: Where a question asks for a guide, prose comes first, wherever it is.
GUIDE_PRIOR: Final = 1.3
GENERATED_PRIOR: Final = 0.5
STUB_PRIOR: Final = 0.6
#: What holds other symbols says what there is, its members say how it works; a file's own text is imports and prose.
KIND_PRIOR: Final = {
    **dict.fromkeys(("file", "module", "impl"), 0.6),
    **dict.fromkeys(("struct", "interface"), 0.6),
    **dict.fromkeys(("type", "constant", "property"), 0.65),
    **dict.fromkeys(("class", "enum", "trait"), 0.68),
}
#: What does the work is longer than what names or passes it on: `SHORTEST` for a tile without code, 1 from about 470
#: characters on. Comments do not count: a setter of one line may have twenty of them.
SHORTEST: Final = 0.5
DOUBLINGS: Final = 2.5
LENGTH_UNIT: Final = 100

_TEST_FOLDERS = word_set("test tests testing __tests__ spec specs testdata fixtures __mocks__ mocks e2e")
_TEST_NAME = re.compile(r"^(test_.*|.*_test|.*[._-]tests?|.*\.spec|conftest|.*Tests?)$")
#: Where a specification is a test: `PodSpec.java` and `input_spec.py` are none.
_SPEC_NAME = re.compile(r"(_spec\.(rb|lua|exs?|[jt]s)|Spec\.(scala|groovy|kt|hs|swift|[jt]s))$")
#: Rust keeps its tests in the file that they test.
_TEST_MODULE = re.compile(r"::tests?(::|$)")
_SIDE_FOLDERS = word_set("examples example samples sample demo demos benchmarks benchmark bench docs doc")
_VENDORED_FOLDERS = word_set(
    "vendor vendored _vendor third_party third-party thirdparty 3rdparty deps extern externals dist build generated gen"
)
#: Declarations of what is written elsewhere.
_STUB_SUFFIXES = (".pyi", ".d.ts", ".d.mts", ".d.cts")
_GENERATED_NAME = re.compile(r"(_pb2|_pb2_grpc|\.pb|\.generated|\.gen|_generated|\.designer)$", re.IGNORECASE)


PROSE_SUFFIXES: Final = word_set(".md .mdx .markdown .rst .adoc .asciidoc .html .htm .txt .ipynb")
#: How people ask for a guide: what they themselves have to do, in any sentence of the question.
_GUIDE: Final = re.compile(
    r"(^|[.?!]\s)\W*(how (do|can|could|should|would|must) (i|we|you|somebody)\b|how to\b|"
    r"what (do|must|should) (i|we|you)\b|where (do|can|should) (i|we|you)\b|"
    r"(is there|show me|give me) (a|an|some) (guide|tutorial|example|documentation))"
)


class WantedAnswer(StrEnum):
    """What kind of answer a question asks for."""

    CODE = "code"
    TESTS = "tests"
    GUIDE = "guide"

    @classmethod
    def by(cls, question: str) -> WantedAnswer:
        """Told by its words."""
        lowered = question.lower()
        if word_set("test tests testing") & set(lowered.split()):
            return cls.TESTS
        return cls.GUIDE if _GUIDE.search(lowered) else cls.CODE

    @classmethod
    def of_all(cls, questions: Sequence[str]) -> list[WantedAnswer]:
        """Of several ways to say one need: where one of them asks for a guide, the others, which may be but words, do
        too."""
        each = list(map(cls.by, questions))
        return [cls.GUIDE] * len(each) if cls.GUIDE in each else each


class RankedTile(Protocol):
    """What the order looks at."""

    @property
    def path(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def start_byte(self) -> int: ...
    @property
    def end_byte(self) -> int: ...
    @property
    def canonical_path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def code_chars(self) -> int: ...


Row = TypeVar("Row", bound=RankedTile)


@lru_cache(maxsize=100_000)
def prior(
    path: str, language_name: str, kind: str, wanted: WantedAnswer = WantedAnswer.CODE, in_test_module: bool = False
) -> float:
    """The weight of a tile by its place. `path` is relative to its root: folders above it say nothing."""
    pure = PurePosixPath(path)
    if wanted is WantedAnswer.GUIDE and pure.suffix.lower() in PROSE_SUFFIXES:
        return GUIDE_PRIOR
    folders = {part.lower() for part in pure.parts[:-1]}
    value = 1.0
    named_as_test = _TEST_NAME.match(pure.stem) or _SPEC_NAME.search(pure.name)
    if wanted is not WantedAnswer.TESTS and (in_test_module or folders & _TEST_FOLDERS or named_as_test):
        value *= TEST_PRIOR
    elif folders & _SIDE_FOLDERS:
        value *= SIDE_PRIOR
    if folders & _VENDORED_FOLDERS or _GENERATED_NAME.search(pure.stem):
        value *= GENERATED_PRIOR
    if pure.name.endswith(_STUB_SUFFIXES):
        value *= STUB_PRIOR
    language = languages.by_name(language_name)
    if not language.is_code:
        value *= PROSE_PRIOR
    return value * KIND_PRIOR.get(kind, 1.0)


def worth(tile: RankedTile, wanted: WantedAnswer = WantedAnswer.CODE) -> float:
    """How likely a tile is what a question asks for, before its text is looked at: 0 to 1."""
    relative = tile.path[len(tile.root) + 1 :]
    in_test_module = _TEST_MODULE.search(tile.canonical_path) is not None
    is_code = languages.by_name(tile.language).is_code
    size = tile.code_chars if is_code else tile.end_byte - tile.start_byte
    length = SHORTEST + (1 - SHORTEST) * math.log2(1 + size / LENGTH_UNIT) / DOUBLINGS
    return prior(relative, tile.language, tile.kind, wanted, in_test_module) * min(1.0, length)


def order(
    rows: Mapping[int, Row],
    lexical: Mapping[int, float],
    names: Mapping[int, float],
    dense: Mapping[int, float],
    *,
    wanted: WantedAnswer = WantedAnswer.CODE,
    reached: float = 0.0,
) -> list[tuple[float, Row]]:
    """Best first, with scores between 0 and about 1. All by tile.

    `lexical` holds BM25 scores; `names`, of the same tiles, the share of the question that its name covers, 0 to 1;
    `dense`, 0 to 1, how near the meaning is, of those that have a vector. `reached`: what is worth as much has had its
    turn to get one.
    """
    best = max(lexical.values(), default=1.0) or 1.0
    absent = ABSENT * min(lexical.values(), default=0.0) / best * min(1.0, len(lexical) / CANDIDATES)
    meant = _Meanings(rows, lexical, dense, reached)
    scored = []
    for tile, row in rows.items():
        score = lexical[tile] / best + NAME_BOOST * names.get(tile, 0.0) if tile in lexical else absent
        if dense:
            score = (1 - DENSE_WEIGHT) * score + DENSE_WEIGHT * meant.of(tile, score)
        scored.append((score * worth(row, wanted), row))
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].path, pair[1].start_byte))


class _Meanings:
    """How near tiles are in meaning, and what is taken for it where that is not known: no vector is no evidence."""

    def __init__(
        self, rows: Mapping[int, Row], lexical: Mapping[int, float], dense: Mapping[int, float], reached: float
    ) -> None:
        self._rows, self._dense, self._reached = rows, dense, reached
        found = [dense[tile] for tile in lexical if tile in dense]
        self._usual = math.fsum(found) / len(found) if found else 0.0

    def of(self, tile: int, by_words: float) -> float:
        """0 to 1. Where it is not known: as near as its words say, and no less than what the words found is on average.
        The likeliest tiles get their vectors first (vector_making.py): one whose turn has come and that has none is new
        or changed, and is given the benefit of DOUBT; the others have none because they are unlikely."""
        if tile in self._dense:
            return self._dense[tile]
        doubt = DOUBT if worth(self._rows[tile]) >= self._reached else 0.0
        return max(by_words, min(1.0, max(by_words, self._usual) + doubt))
