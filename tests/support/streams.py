"""What generated streams are made of."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

#: The arguments of a call.
objects = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=6), st.booleans(), st.none()), max_size=4
)


@cache
def _places(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=4)


def chop(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces, some of them empty."""
    marks = sorted(draw(_places(len(text))))
    return [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
