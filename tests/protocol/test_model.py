"""What models used, added up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from callboard.protocol.model import Usage

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts)


@given(usages, usages)
def test_every_count_of_two_usages_is_added(first: Usage, second: Usage) -> None:
    pairs = zip(astuple(first), astuple(second), strict=True)
    assert astuple(first + second) == tuple(one + other for one, other in pairs)


@given(usages)
def test_the_total_is_what_went_in_and_came_out(usage: Usage) -> None:
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
