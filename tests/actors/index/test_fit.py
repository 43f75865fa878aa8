"""Whether what was found fits the question: what may never make an answer look worse, and the two ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.index.fit import AskedWords, fit_of
from callboard.protocol.code_fences import ContextFit

STEMS = ("retri", "backoff", "socket", "glacier", "token")
PLACES = st.lists(st.frozensets(st.sampled_from(STEMS)), min_size=1, max_size=12)


def key(number: int) -> tuple[str, int]:
    return f"/work/{number}.py", number


def better(fit: ContextFit, other: ContextFit) -> bool:
    """Whether one is as good as the other, or better."""
    worst_first = (ContextFit.NOTHING, ContextFit.UNSURE, ContextFit.GOOD)
    return worst_first.index(fit) >= worst_first.index(other)


@st.composite
def asked(draw: st.DrawFn, places: int) -> AskedWords:
    """A question, whose nearness to the places is known of some, of all or of none."""
    weights = draw(st.dictionaries(st.sampled_from(STEMS), st.floats(0.1, 9), min_size=1))
    cosines = draw(st.lists(st.none() | st.floats(-0.2, 1), min_size=places, max_size=places))
    nearness = {key(number): each for number, each in enumerate(cosines) if each is not None}
    return AskedWords({stem: stem for stem in weights}, weights, nearness)


@given(st.data(), PLACES)
def test_a_place_that_holds_more_or_is_nearer_never_makes_it_worse(
    data: st.DataObject, places: list[frozenset[str]]
) -> None:
    question = data.draw(asked(len(places)))
    before = fit_of([question], [(key(number), stems) for number, stems in enumerate(places)])
    which = data.draw(st.integers(0, len(places) - 1))
    richer = [stems | question.weights.keys() if number == which else stems for number, stems in enumerate(places)]
    assert better(fit_of([question], [(key(number), stems) for number, stems in enumerate(richer)]), before)
    if key(which) in question.nearness:
        nearer = replace(question, nearness={**question.nearness, key(which): 1.0})
        assert better(fit_of([nearer], [(key(number), stems) for number, stems in enumerate(places)]), before)


@given(st.data(), PLACES)
def test_the_order_of_the_places_and_questions_that_fit_less_change_nothing(
    data: st.DataObject, places: list[frozenset[str]]
) -> None:
    questions = data.draw(st.lists(asked(len(places)), min_size=1, max_size=3))
    rows = [(key(number), stems) for number, stems in enumerate(places)]
    each = [fit_of([question], rows) for question in questions]
    together = fit_of(questions, data.draw(st.permutations(rows)))
    assert together in each
    assert all(better(together, one) for one in each)


def test_nothing_fits_where_nothing_was_found_or_asked() -> None:
    question = AskedWords({"retri": "retry"}, {"retri": 3.0}, {})
    rows = [(key(0), frozenset({"retri"}))]
    assert fit_of([question], []) is ContextFit.NOTHING
    assert fit_of([], rows) is ContextFit.NOTHING
    assert fit_of([question], rows) is ContextFit.GOOD
    assert fit_of([replace(question, nearness={key(0): -0.1})], [(key(0), frozenset())]) is ContextFit.NOTHING
