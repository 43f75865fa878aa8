"""Schemas of servers: any JSON becomes one that every provider takes, or a reason; and checks end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.actors.mcp.remote_schema import (
    MAX_CHECKS,
    MAX_SCHEMA_BYTES,
    Unfit,
    fit_result_schema,
    fit_schema,
    misfit,
)
from callboard.providers import schema_dialects, tool_schema

DIALECTS = (schema_dialects.OPENAI, schema_dialects.OPENAI_STRICT, schema_dialects.ANTHROPIC, schema_dialects.GEMINI)
KEYWORDS = (
    "type", "properties", "required", "items", "anyOf", "allOf", "oneOf", "not", "enum", "const", "$ref", "$defs",
    "additionalProperties", "patternProperties", "description", "minimum", "pattern", "default", "format", "title",
)  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=True), st.sampled_from(["object", "array"]),
    st.sampled_from(["#", "#/$defs/a", "#/properties/a", "http://elsewhere/x"]), st.text(max_size=5),
)  # fmt: skip
SCHEMAS = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=6),
        st.dictionaries(st.sampled_from(["a", "b", "c d", "e" * 70]), inner, max_size=3),
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS, max_size=8))
def test_any_json_is_made_fit_or_left_out_with_a_reason(schema: dict[str, Any]) -> None:
    try:
        fitted = fit_schema(schema)
    except Unfit:
        return
    assert fitted["type"] == "object"
    assert "$ref" not in json.dumps(fitted).replace('"$ref":', "")
    assert len(json.dumps(fitted)) <= MAX_SCHEMA_BYTES
    for dialect in DIALECTS:
        tool_schema.adapt_schema(fitted, dialect)


@example({"required": [[]], "properties": {}}, None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS, max_size=8), SCHEMAS)
def test_any_value_can_be_checked_by_any_schema(schema: dict[str, Any], value: object) -> None:
    fitted = fit_result_schema(schema)
    assert fitted is not None
    misfit(fitted, value)


def test_references_are_written_out_and_circles_are_cut() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "n": {"type": "integer"}}}
    fitted: Any = fit_schema(
        {"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}}
    )
    assert fitted["properties"]["tree"]["properties"] == {"left": {}, "n": {"type": "integer"}}
    assert fit_schema({"type": "object", "properties": {"a": {"$ref": "http://elsewhere/x", "description": "d"}}})[
        "properties"
    ] == {"a": {"description": "d"}}


def test_a_schema_that_doubles_at_each_level_is_bounded() -> None:
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(60)}
    fitted = fit_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs})
    assert len(json.dumps(fitted)) <= MAX_SCHEMA_BYTES


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array"}, "no object"),
        ({"type": "object", "properties": {"a b": {}}, "required": ["a b"]}, "'a b'"),
        ({"type": "object", "properties": {f"p{n}": {"description": "x" * 1_000} for n in range(40)}}, "bytes"),
    ],
    ids=["array", "name", "size"],
)
def test_what_cannot_be_offered_is_left_out_with_a_reason(schema: dict[str, object], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        fit_schema(schema)


def test_the_first_fault_is_told_with_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    wrong = misfit(schema, {"a": [1, "x"]})
    assert wrong is not None
    assert (wrong.field, wrong.received) == ("a.1", "'x'")
    missing = misfit(schema, {})
    assert missing is not None
    assert missing.received == "nothing"
    assert misfit(schema, {"a": [1]}) is None


def test_patterns_of_a_server_are_not_run_and_a_check_has_an_end() -> None:
    """`(a+)+$` over 40 letters takes Python's `re` years, and would hold the interpreter meanwhile."""
    slow = fit_result_schema({"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)+$"}}})
    assert slow is not None
    assert misfit(slow, {"s": "a" * 40 + "!"}) is None
    assert fit_result_schema({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}) == {}
    long = misfit({"items": {"type": "integer"}}, [1] * MAX_CHECKS)
    assert long is not None
    assert "steps" in long.expected
