"""Arguments streamed by JSONPath."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.providers.gemini.partial_arguments import PartialArguments

names = st.one_of(st.sampled_from(["a", "b", "a b", "x.y", "it's", "[0]"]), st.text(min_size=1, max_size=4))
#: Empty containers have no piece that could tell them.
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.text(max_size=6)),
    lambda children: st.one_of(
        st.lists(children, min_size=1, max_size=3), st.dictionaries(names, children, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def pieces(value: Any, path: str) -> Iterator[dict[str, Any]]:
    """How the API would stream `value`: texts in two pieces, a character at a time or more."""
    if isinstance(value, dict):
        for name, child in value.items():
            quoted = name.replace("\\", "\\\\").replace("'", "\\'")
            yield from pieces(child, f"{path}['{quoted}']")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from pieces(child, f"{path}[{index}]")
    elif isinstance(value, str):
        yield {"jsonPath": path, "stringValue": value[:2], "willContinue": True}
        yield {"jsonPath": path, "stringValue": value[2:]}
    elif isinstance(value, bool):
        yield {"jsonPath": path, "boolValue": value}
    else:
        yield {"jsonPath": path, "numberValue": value}


def put_together(*told: dict[str, Any]) -> dict[str, Any]:
    partial = PartialArguments()
    for piece in told:
        partial.add(piece)
    return partial.value()


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(names, values, max_size=3))
def test_any_object_comes_back(arguments: dict[str, Any]) -> None:
    assert put_together(*json.loads(json.dumps(list(pieces(arguments, "$"))))) == arguments


def test_an_object_as_arguments_of_an_object() -> None:
    assert put_together({"jsonPath": "$.a.b[1].c", "nullValue": None}) == {"a": {"b": [None, {"c": None}]}}


@pytest.mark.parametrize(
    "paths",
    [
        ["a"],
        ["$"],
        ["$[0]"],
        ["$.a["],
        ["$.*"[:2]],
        ["$.a[99999]"],
        ["$.a", "$.a.b"],
        ["$.a[0]", "$.a.b"],
        ["$" + ".a" * 65],
    ],
)
def test_paths_that_make_no_sense(paths: list[str]) -> None:
    with pytest.raises(ValueError, match=r"JSONPath|object|list|place"):
        put_together(*({"jsonPath": path, "stringValue": "x"} for path in paths))


def test_arguments_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        put_together(*({"jsonPath": "$.a", "stringValue": "x" * 1_000_000} for _ in range(10)))
