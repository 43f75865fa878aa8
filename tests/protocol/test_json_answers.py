"""JSON found in what a model wrote, with other text around it or without."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.json_answers import MAX_OPENINGS, first_opening, json_documents

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)
#: Words that hold no bracket and no fence.
PROSE = st.text(st.characters(blacklist_characters='{}[]`"<>', blacklist_categories=("Cs",)), max_size=40)


@given(
    OBJECTS,
    PROSE,
    PROSE,
    st.sampled_from(["plain", "fence", "bare fence", "open fence", "around", "thought", "string"]),
)
def test_a_document_is_found_whatever_stands_around_it(value: Any, before: str, after: str, form: str) -> None:
    document = json.dumps(value)
    text = {
        "plain": f"\n {document} \n",
        "fence": f"{before}\n```json\n{document}\n```\n{after}",
        "bare fence": f"{before}\n```\n{document}\n```",
        "open fence": f"{before}\n```json\n{document}",
        "around": f"{before} {document} {after}",
        "thought": f"<think>is it {{}}?</think>\n{document}",
        "string": json.dumps(document),
    }[form]
    assert json.loads(next(json_documents(text))) == value


def test_of_several_the_last_comes_first_and_fenced_ones_before_all_others() -> None:
    assert list(json_documents('{"a": 1} or {"a": 2}')) == ['{"a": 2}', '{"a": 1}', '{"a": 1} or {"a": 2}']
    assert next(json_documents('```json\n{"a": 1}\n```\nwhich is {"a": 2}')) == '{"a": 1}'


@pytest.mark.parametrize("text", ["", " ", "no", "{", "[1, 2", "```json\n{\n```", '"just a text"', "\x00"])
def test_what_is_no_json_gives_no_whole_document(text: str) -> None:
    for document in json_documents(text):
        assert document in (text.strip(), '"just a text"')


def test_a_text_of_brackets_is_given_up_after_a_few() -> None:
    """Each opening bracket may cost a reading of the rest."""
    assert list(json_documents("x" + "{" * 10 * MAX_OPENINGS)) == []
    assert list(json_documents("x" + "{ " * MAX_OPENINGS + '{"a": 1}')) == []


def test_objects_in_each_other_without_end_are_no_json() -> None:
    assert list(json_documents("x" + '{"a":' * 100_000)) == []


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    for document in json_documents(text):
        assert isinstance(document, str)
    assert first_opening(text) == min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
