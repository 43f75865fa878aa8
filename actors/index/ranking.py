"""From lexical hits to an order: the name and the kind of file weigh in; pure functions over rows.

Weights are small on purpose: docstring benchmarks reward names, plain questions do not (docs/retrieval.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath

from callboard.actors.index import languages
from callboard.actors.index.store import ChunkRow
from callboard.actors.index.tokens import word_set

#: Lexical hits that are looked at more closely.
CANDIDATES = 200
#: Share of a full name match, in units of the best lexical score (.1 to .3 help; more helps docstrings only).
NAME_BOOST = 0.2
#: What a file of its kind is worth beside an implementation. Tests repeat every word of what they test.
TEST_PRIOR = 0.6
PROSE_PRIOR = 0.6
GENERATED_PRIOR = 0.5
STUB_PRIOR = 0.6
#: What holds other symbols says what there is, its members say how it works; a file's own text is imports and prose.
KIND_PRIOR = {
    **dict.fromkeys(("file", "module", "impl"), 0.6),
    **dict.fromkeys(("class", "struct", "trait", "interface", "enum"), 0.8),
}

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


@lru_cache(maxsize=100_000)
def prior(
    path: str, language_name: str, kind: str, asks_for_tests: bool = False, in_test_module: bool = False
) -> float:
    """The weight of a chunk by its place. `path` is relative to its root: folders above it say nothing."""
    pure = PurePosixPath(path)
    folders = {part.lower() for part in pure.parts[:-1]}
    value = 1.0
    named_as_test = _TEST_NAME.match(pure.stem) or _SPEC_NAME.search(pure.name)
    if not asks_for_tests and (in_test_module or folders & _TEST_FOLDERS or named_as_test):
        value *= TEST_PRIOR
    elif folders & _SIDE_FOLDERS:
        value *= PROSE_PRIOR
    if folders & _VENDORED_FOLDERS or _GENERATED_NAME.search(pure.stem):
        value *= GENERATED_PRIOR
    if pure.name.endswith(_STUB_SUFFIXES):
        value *= STUB_PRIOR
    language = languages.by_name(language_name)
    if language.prose or not language.query:
        value *= PROSE_PRIOR
    return value * KIND_PRIOR.get(kind, 1.0)


def order(candidates: Sequence[tuple[ChunkRow, float, float]], asks_for_tests: bool) -> list[tuple[float, ChunkRow]]:
    """Best first, with scores between 0 and about 1.

    A candidate is a hit, its BM25 score, and the share of the question that its name covers, 0 to 1.
    """
    best = max((lexical for _, lexical, _ in candidates), default=1.0) or 1.0
    scored = []
    for row, lexical, name_match in candidates:
        relative = row.path[len(row.root) + 1 :]
        in_test_module = _TEST_MODULE.search(row.canonical_path) is not None
        worth = prior(relative, row.language, row.kind, asks_for_tests, in_test_module)
        scored.append(((lexical / best + NAME_BOOST * name_match) * worth, row))
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].path, pair[1].start_byte))


def fuse(lexical: Sequence[float], dense: Sequence[float], dense_weight: float) -> list[float]:
    """Weighted sum of two score lists, each stretched to 0..1 first. `dense` is there for the best hits only: they keep
    their place before the others, their sums lie between the scores they had."""
    head, tail = lexical[: len(dense)], lexical[len(dense) :]
    low, high = min(head), max(head)
    pairs = zip(_stretched(head), _stretched(dense), strict=True)
    return [low + (high - low) * ((1 - dense_weight) * left + dense_weight * right) for left, right in pairs] + [*tail]


def _stretched(scores: Sequence[float]) -> list[float]:
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
