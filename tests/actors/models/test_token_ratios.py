"""What is learned of a model's tokenizer, across the requests of a runtime."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.models.token_ratios import TokenRatios
from callboard.protocol.limits import TOKEN_RATIO_BOUNDS

USUAL = "anthropic/claude"


def test_a_model_of_which_nothing_is_known_is_taken_by_our_count() -> None:
    assert TokenRatios().ratio(USUAL) == 1.0


def test_the_first_count_is_believed_and_later_ones_move_it() -> None:
    ratios = TokenRatios()
    ratios.learn(USUAL, input_tokens=3_000, own_count=2_000)
    assert ratios.ratio(USUAL) == 1.5
    for _ in range(40):
        ratios.learn(USUAL, input_tokens=2_400, own_count=2_000)
    assert 1.2 <= ratios.ratio(USUAL) < 1.21
    assert ratios.ratio("anthropic/another") == 1.0


def test_a_tokenizer_that_makes_fewer_tokens_lowers_no_other_text() -> None:
    ratios = TokenRatios()
    ratios.learn(USUAL, input_tokens=1_000, own_count=2_000)
    assert ratios.ratio(USUAL) == 1.0


@given(st.lists(st.tuples(st.integers(-(10**6), 10**12), st.integers(0, 10**6)), max_size=20))
def test_whatever_providers_report_the_ratio_is_one_that_a_request_takes(reports: list[tuple[int, int]]) -> None:
    ratios = TokenRatios()
    for input_tokens, own_count in reports:
        ratios.learn(USUAL, input_tokens, own_count)
    assert 1.0 <= ratios.ratio(USUAL) <= TOKEN_RATIO_BOUNDS[1]
