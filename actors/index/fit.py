"""Whether what was found fits the question at all: by how near the best places are in meaning, and by how much of the
question they hold, for its length.

Measured (docs/retrieval.md), with vectors, at the border below which nothing fits: of questions that share no word with
the code one in ten that has an answer is refused, of plain ones none; two of three about other projects are told so. A
question about what a project of this kind might have and this one has not is mostly not told from the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from callboard.actors.index.lexical import LexicalIndex, stems_of
from callboard.actors.index.tokens import query_words, terms_of
from callboard.protocol.code_fences import ContextFit

#: So many of the best places are looked at, and the mean of those of them counts that are nearest, or hold most.
LOOKED_AT: Final = 10
FITTING: Final = 5
#: How much the largest share of the question that one place holds counts beside the nearness.
SHARE_WEIGHT: Final = 0.3
#: No place holds as much of a long question as of a short one, nor is as near: for each doubling of its words so much
#: is added, with vectors and by words alone.
LENGTH_WEIGHT: Final = {True: 0.104, False: 0.035}
#: Below the first nothing fits; from the second on it does. With vectors, and by words alone.
BORDERS: Final = {True: (0.665, 0.76), False: (0.29, 0.40)}
#: A place that holds this share of a question, and is not known to be far away, fits it perhaps.
WHOLE: Final = 0.999

Nearness = Mapping[tuple[str, int], float]
"""The cosine of places, which are named by their path and first byte; of those that have a vector."""


class AskedWords(Struct, frozen=True):
    """One question as the index sees it."""

    words: Mapping[str, str]
    """Its words by their stems."""
    weights: Mapping[str, float]
    """How much each stem says: rare ones more."""
    nearness: Nearness
    """Of the best places, as far as it is known."""

    @classmethod
    def of(cls, question: str, lexical: LexicalIndex, nearness: Nearness) -> AskedWords:
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
    """A place whose vector is not made yet is not far away, nor does it hold less for those beside it that have one:
    the two kinds are judged apart, and the better one counts."""
    shares = {place: question.coverage(stems) for place, stems in places}
    cosines = [cosine for place in shares if (cosine := question.nearness.get(place)) is not None]
    by_words = [share for place, share in shares.items() if place not in question.nearness]
    judged = []
    if cosines:
        judged.append(_judged(question, cosines, SHARE_WEIGHT * max(shares.values()), by_meaning=True))
    if by_words:
        judged.append(_judged(question, by_words, 0.0, by_meaning=False))
        if question.weights and max(by_words) >= WHOLE:
            judged.append(ContextFit.UNSURE)
    return max(judged, key=_ORDER.index)


def _judged(question: AskedWords, values: Sequence[float], more: float, *, by_meaning: bool) -> ContextFit:
    best = sorted(values, reverse=True)[:FITTING]
    value = math.fsum(best) / len(best) + more + LENGTH_WEIGHT[by_meaning] * math.log2(1 + len(question.weights))
    return _ORDER[sum(value >= border for border in BORDERS[by_meaning])]


def words_in(asked: Sequence[AskedWords], stems: frozenset[str], most: int) -> tuple[str, ...]:
    """The words of the questions that a place holds, those that say most first."""
    found = {
        question.words[stem]: weight
        for question in asked
        for stem, weight in question.weights.items()
        if stem in stems and weight > 0
    }
    return tuple(sorted(found, key=lambda word: -found[word])[:most])
