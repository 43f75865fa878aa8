"""The token estimate against the real tokenizers, and what providers' counts make of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from random import Random
from typing import Final

import pytest
import quicktok  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.protocol.limits import MIN_RATIO_TOKENS
from callboard.protocol.prompt_tokens import PromptSize, estimate_tokens, measured_ratio


def _texts() -> dict[str, str]:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "token_texts.py"
    spec = importlib.util.spec_from_file_location("token_texts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["token_texts"] = module
    spec.loader.exec_module(module)
    return dict(module.texts())


TEXTS: Final = _texts()
#: It takes seconds to make them; quicktok keeps what it has made.
TOKENIZERS: Final = ("o200k_base", "cl100k_base", "llama3", "qwen3")


def true_tokens(text: str) -> int:
    """The largest count of a real tokenizer."""
    return max(quicktok.get_encoding(name).count(text) for name in TOKENIZERS)


@pytest.mark.parametrize("kind", TEXTS)
def test_no_kind_of_text_is_estimated_too_low(kind: str) -> None:
    assert estimate_tokens(TEXTS[kind]) >= 0.95 * true_tokens(TEXTS[kind])


@pytest.mark.parametrize("kind", ["English", "Python", "Python library", "Markdown", "JSON", "German", "Chinese"])
def test_prose_and_code_are_not_estimated_absurdly_high(kind: str) -> None:
    assert estimate_tokens(TEXTS[kind]) <= 1.8 * true_tokens(TEXTS[kind])


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(st.sampled_from(sorted(TEXTS)), st.integers(100, 400)), min_size=3, max_size=8), st.randoms())
def test_mixed_texts_are_not_estimated_too_low(parts: list[tuple[str, int]], random: Random) -> None:
    text = ""
    for kind, length in parts:
        at = random.randrange(max(len(TEXTS[kind]) - length, 1))
        text += TEXTS[kind][at : at + length]
    assert estimate_tokens(text) >= 0.95 * true_tokens(text)


@given(st.text(st.characters()))
def test_any_text_has_an_estimate_that_grows_with_it(text: str) -> None:
    """Half surrogate pairs too. Never negative, 0 only for nothing, and no longer text has fewer."""
    counted = estimate_tokens(text)
    assert (counted == 0) == (text == "")
    assert estimate_tokens(text + text) >= counted
    assert counted <= len(text.encode("utf-8", "surrogatepass")) * 2


def test_text_that_was_counted_goes_by_the_count_and_new_text_is_never_taken_for_less() -> None:
    size = PromptSize()
    size.add(2_000)
    assert size.measured(1_000)
    assert size.tokens == 1_000
    size.add(100)
    assert size.tokens == 1_100, "half a token of a token held for the text it was measured on"
    size.remove(1_000, is_measured=True)
    assert size.tokens == 600
    assert size.own_count == 1_100


def test_a_tokenizer_that_makes_more_tokens_counts_for_new_text_too() -> None:
    size = PromptSize()
    size.add(2_000)
    assert size.measured(3_000)
    size.add(100)
    assert size.tokens == 3_150
    size.remove(1_000, is_measured=True)
    assert size.tokens == 2_150, "what is cut is never taken for more than it surely was"


@pytest.mark.parametrize("told", [0, -5, 399, 10**30, float("nan"), "many", None])
def test_a_count_that_cannot_be_true_changes_nothing(told: object) -> None:
    size = PromptSize(1.25)
    size.add(2_000)
    assert not size.measured(told)  # type: ignore[arg-type]
    assert (size.tokens, size.own_count) == (2_500, 2_000)
    assert measured_ratio(told, 2_000) is None  # type: ignore[arg-type]


def test_a_short_prompt_tells_nothing_of_other_texts() -> None:
    """A provider's own instructions for tools outweigh it."""
    size = PromptSize()
    size.add(100)
    assert size.measured(800)
    size.add(100)
    assert size.tokens == 900
    assert measured_ratio(MIN_RATIO_TOKENS, MIN_RATIO_TOKENS - 1) is None
    assert measured_ratio(2 * MIN_RATIO_TOKENS, MIN_RATIO_TOKENS) == 2.0
    assert measured_ratio(3 * MIN_RATIO_TOKENS + 999, MIN_RATIO_TOKENS) == 3.0


@given(
    st.floats(1.0, 3.0),
    st.lists(
        st.tuples(st.sampled_from(["add", "count", "cut"]), st.integers(1, 5_000), st.floats(0.4, 3.0)), max_size=12
    ),
)
def test_a_prompt_is_never_taken_for_less_than_it_has(ratio: float, story: list[tuple[str, int, float]]) -> None:
    """Whatever each piece has really, from 0.4 to 1.0 of our count, as with a tokenizer that ours never falls below."""
    size = PromptSize(ratio)
    pieces: list[tuple[int, float, bool]] = []
    for what, count, real in story:
        if what == "add":
            pieces.append((count, count * min(real, 1.0), False))
            size.add(count)
        elif what == "count" and pieces:
            if size.measured(round(sum(true for _, true, _ in pieces))):
                pieces = [(ours, true, True) for ours, true, _ in pieces]
        elif pieces:
            ours, _, is_measured = pieces.pop(0)
            size.remove(ours, is_measured=is_measured)
        uncounted = sum(ours for ours, _, is_measured in pieces if not is_measured)
        assert size.tokens >= uncounted, "text that was not counted is taken for our count at least"
        assert size.own_count == sum(ours for ours, _, _ in pieces)
