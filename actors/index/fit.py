"""Whether what was found fits the question at all: by how much of the question the best places hold, and how near their
meaning is. What only one of many places holds says less than what several do, unless it holds most of the question.

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

#: So many of the best places are looked at, and the mean of those of them counts that fit best.
LOOKED_AT: Final = 10
FITTING: Final = 5
#: Or the best one alone, so much less.
ALONE: Final = 0.15
#: How much a place's share of the question counts beside its nearness.
COVERAGE_WEIGHT: Final = 0.7
#: Below the first nothing fits; from the second on it does. With vectors, and by words alone.
BORDERS: Final = {True: (0.38, 0.49), False: (0.195, 0.315)}

Nearness = Mapping[tuple[str, int], float]
"""The cosine of places, which are named by their path and first byte."""


@dataclass(frozen=True, slots=True)
class AskedWords:
    """One question as the index sees it."""

    words: Mapping[str, str]
    """Its words by their stems."""
    weights: Mapping[str, float]
    """How much each stem says: rare ones more."""
    nearness: Nearness | None
    """Of the best places; None where that is not known."""

    @classmethod
    def of(cls, question: str, lexical: LexicalIndex, nearness: Nearness | None) -> AskedWords:
        words = {stem: word for word in query_words(question) for stem in stems_of(word)}
        return cls(words, lexical.weights(words), nearness)

    def coverage(self, stems: frozenset[str]) -> float:
        """What share of the question these hold, 0 to 1."""
        total = sum(self.weights.values())
        return sum(weight for stem, weight in self.weights.items() if stem in stems) / total if total else 0.0


def stems_in(text: str) -> frozenset[str]:
    """The stems of all words of a text."""
    return frozenset(stems_of(terms_of(text)))


def fit_of(asked: Sequence[AskedWords], found: Iterable[tuple[tuple[str, int], frozenset[str]]]) -> ContextFit:
    """How well the best places, each with its stems, fit the question that they fit best."""
    places = list(found)
    if not places:
        return ContextFit.NOTHING
    return max((_fit(each, places) for each in asked), key=_ORDER.index, default=ContextFit.NOTHING)


_ORDER: Final = (ContextFit.NOTHING, ContextFit.UNSURE, ContextFit.GOOD)


def _fit(question: AskedWords, places: Sequence[tuple[tuple[str, int], frozenset[str]]]) -> ContextFit:
    near = question.nearness
    weight = 1.0 if near is None else COVERAGE_WEIGHT
    values = ((near or {}).get(place, 0.0) + weight * question.coverage(stems) for place, stems in places)
    best = sorted(values, reverse=True)[:FITTING]
    value = max(sum(best) / len(best), best[0] - ALONE)
    return _ORDER[sum(value >= border for border in BORDERS[near is not None])]


def words_in(asked: Sequence[AskedWords], stems: frozenset[str], most: int) -> tuple[str, ...]:
    """The words of the questions that a place holds, those that say most first."""
    found = {
        question.words[stem]: weight
        for question in asked
        for stem, weight in question.weights.items()
        if stem in stems and weight > 0
    }
    return tuple(sorted(found, key=lambda word: -found[word])[:most])
