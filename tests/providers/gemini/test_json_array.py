"""The splitter of a streamed JSON array."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.providers.gemini.json_array import JsonArraySplitter

values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='a"\\[]{},\n', max_size=8), st.text(max_size=4)),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(values, max_size=4), st.sampled_from([None, 2]), st.integers(1, 30))
def test_the_elements_whatever_the_chunks(elements: list[Any], indent: int | None, size: int) -> None:
    data = b"\xef\xbb\xbf " + json.dumps(elements, indent=indent).encode() + b"\n"
    splitter = JsonArraySplitter()
    found = [element for start in range(0, len(data), size) for element in splitter.feed(data[start : start + size])]
    assert [json.loads(element) for element in found] == elements
    assert splitter.closed


def test_an_element_comes_as_soon_as_it_is_whole() -> None:
    splitter = JsonArraySplitter()
    assert splitter.feed(b'[{"a": "]"') == []
    assert splitter.feed(b'},\n{"b"') == [b'{"a": "]"}']
    assert splitter.feed(b": 1}") == []
    assert splitter.feed(b"] , more") == [b'{"b": 1}']
    assert splitter.closed
    assert splitter.feed(b"[1, 2]") == []


def test_an_element_without_end_is_refused() -> None:
    splitter = JsonArraySplitter(max_element_bytes=100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        splitter.feed(b'["' + b"x" * 200)
