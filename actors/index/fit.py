"""Whether what was found fits the question at all: by how much of the question it holds, and how near its meaning is.

Measured (docs/retrieval.md): with vectors, at the border below which nothing fits, one in ten questions that have an
answer is refused and two of three about other projects are; a question about what a project of this kind might have and
this one has not is mostly not told from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callboard.actors.index.lexical import LexicalIndex, stems_of
from callboard.actors.index.tokens import query_words, terms_of
from callboard.protocol.code_fences import ContextFit

#: So many of the best places are looked at.
LOOKED_AT: Final = 10
#: How much a place's share of the question counts beside the nearness of the nearest one.
COVERAGE_WEIGHT: Final = 0.35
#: Below the first nothing fits; from the second on it does. With vectors, and by words alone.
BORDERS: Final = {True: (0.48, 0.62), False: (0.23, 0.65)}


@dataclass(frozen=True, slots=True)
class AskedWords:
    """One question as the index sees it."""

    words: Mapping[str, str]
    """Its words by their stems."""
    weights: Mapping[str, float]
    """How much each stem says: rare ones more."""
    nearness: float | None
    """The cosine of the nearest tile; None where that is not known."""

    @classmethod
    def of(cls, question: str, lexical: LexicalIndex, nearness: float | None) -> AskedWords:
        words = {stem: word for word in query_words(question) for stem in stems_of(word)}
        return cls(words, lexical.weights(words), nearness)

    def coverage(self, stems: frozenset[str]) -> float:
        """What share of the question these hold, 0 to 1."""
        total = sum(self.weights.values())
        return sum(weight for stem, weight in self.weights.items() if stem in stems) / total if total else 0.0


def stems_in(text: str) -> frozenset[str]:
    """The stems of all words of a text."""
    return frozenset(stems_of(terms_of(text)))


def fit_of(asked: Sequence[AskedWords], texts: Iterable[frozenset[str]]) -> ContextFit:
    """How well the best places, given by their stems, fit the question that they fit best."""
    places = list(texts)
    if not places:
        return ContextFit.NOTHING
    return max((_fit(each, max(map(each.coverage, places))) for each in asked), key=_ORDER.index, default=_ORDER[0])


_ORDER: Final = (ContextFit.NOTHING, ContextFit.UNSURE, ContextFit.GOOD)


def _fit(question: AskedWords, coverage: float) -> ContextFit:
    has_vectors = question.nearness is not None
    value = coverage if question.nearness is None else question.nearness + COVERAGE_WEIGHT * coverage
    return _ORDER[sum(value >= border for border in BORDERS[has_vectors])]


def words_in(asked: Sequence[AskedWords], stems: frozenset[str], most: int) -> tuple[str, ...]:
    """The words of the questions that a place holds, those that say most first."""
    found = {
        question.words[stem]: weight
        for question in asked
        for stem, weight in question.weights.items()
        if stem in stems and weight > 0
    }
    return tuple(sorted(found, key=lambda word: -found[word])[:most])
