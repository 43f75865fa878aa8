"""What generated streams are made of."""

from __future__ import annotations

from hypothesis import strategies as st

#: The arguments of a call.
objects = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=6), st.booleans(), st.none()), max_size=4
)


def chop(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces, some of them empty."""
    marks = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
