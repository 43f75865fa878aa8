"""Older drafts and OpenAPI in the words of draft 2020-12, and two schemas as one that holds both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.examples import examples

from callboard.providers.schema_dialects import GEMINI, OPENAI, SchemaDialect
from callboard.providers.schema_forms import in_2020_12, is_plain_regex, joined, joined_all
from callboard.providers.tool_schema import adapt_schema


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        # OpenAPI 3.0, "Schema Object": nullable.
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": 1, "nullable": True}, {"enum": [1, None]}),
        (
            {"$ref": "#/$defs/A", "nullable": True, "description": "d"},
            {"description": "d", "anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        ),
        # Draft 4: bounds (Dokploy/mcp#74); drafts 4 to 2019-09: tuples; draft 3: required; protobuf: capitals.
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 0}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"items": [{}, {"type": "null"}]}, {"prefixItems": [{}, {"type": "null"}]}),
        ({"items": [{}], "additionalItems": {"type": "null"}}, {"prefixItems": [{}], "items": {"type": "null"}}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "maxItems": 1}),
        ({"prefixItems": [{}, {}], "items": False, "maxItems": 1}, {"prefixItems": [{}, {}], "maxItems": 1}),
        ({"items": True}, {"items": {}}),
        (
            {"properties": {"a": {"required": True}, "b": {}}},
            {"properties": {"a": {"required": True}, "b": {}}, "required": ["a"]},
        ),
        # Drafts 3 to 7: dependencies.
        (
            {"dependencies": {"a": ["b"], "c": {"minProperties": 2}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"minProperties": 2}}},
        ),
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "any"}, {}),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, {}),
        # A value that the type forbids anyway.
        ({"type": "string", "enum": ["a", 1, None]}, {"type": "string", "enum": ["a"]}),
        ({"type": "number", "enum": [1, 1.5]}, {"type": "number", "enum": [1, 1.5]}),
    ],
)
def test_what_other_drafts_say(schema: dict[str, Any], plain: dict[str, Any]) -> None:
    assert in_2020_12(schema) == (plain, [])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"}, {"type": 7}, {"type": []}, {"enum": "a"}, {"enum": []}, {"required": "a"}, {"anyOf": []},
        {"properties": []}, {"items": 7}, {"minimum": "1"}, {"minLength": -1}, {"minItems": 1.5}, {"pattern": 7},
        {"pattern": "?"}, {"pattern": "[a"}, {"pattern": "a{2,1}"}, {"pattern": "(?P<a"}, {"pattern": "(" * 1_000},
        {"description": ["a"]}, {"$ref": {}}, {"additionalProperties": "no"}, {"multipleOf": 0}, {"uniqueItems": 1},
        {"minimum": True}, {"format": None}, {"not": []}, {"patternProperties": 1}, {"maximum": float("inf")},
        {"dependentRequired": ["a"]}, {"dependentRequired": {"a": "b"}}, {"dependencies": []},
        {"dependencies": {"a": 1}}, {"$id": 1}, {"$anchor": []}, {"readOnly": "yes"}, {"examples": "a"},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_draft_allows_is_taken_out_and_named(schema: dict[str, Any]) -> None:
    plain, faults = in_2020_12(schema)
    assert plain == {}
    assert [keyword for keyword, _ in faults] == list(schema)


@pytest.mark.parametrize(
    "pattern", [r"\p{Lu}+", r"(?<year>\d{4})", r"\u{1F600}", r"[[a]", r"[a--b]", "[" * 100_000, "a*"]
)
def test_a_pattern_that_javascript_may_read_stays(pattern: str) -> None:
    assert in_2020_12({"pattern": pattern}) == ({"pattern": pattern}, [])


@pytest.mark.parametrize(
    ("pattern", "is_plain"),
    [
        (r"^[a-z]+@[a-z.]+$", True),
        (r"(?:ab|c)d", True),
        (r"(?i)abc", True),
        (r"(?P<year>\d{4})", True),
        (r"\(?!\)", True),  # an escaped bracket
        (r"[(?=]", True),  # a class of three characters
        (r"\\\\(a)", True),
        (r"a\\1", True),
        (r"^(?!a)", False),
        (r"(?=.*\d)", False),
        (r"(?<=a)b", False),
        (r"(?<!a)b", False),
        (r"[)](?!a)", False),
        (r"\\(?!a)", False),
        (r"(a)\1", False),
        (r"(?P<x>a)(?P=x)", False),
        (r"(?<year>\d{4})", False),  # JavaScript's name of a group
        (r"\p{Lu}+", False),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", False),  # pydantic's of a Decimal
        (r"\u{1F600}", False),
    ],
)
def test_what_an_automaton_can_follow(pattern: str, is_plain: bool) -> None:
    assert is_plain_regex(pattern) is is_plain


@pytest.mark.parametrize("start", ["[", "(?", "\\", "[\\", "[^", "(?:", "\\\\["])
def test_a_pattern_is_read_once_however_it_is(start: str) -> None:
    is_plain_regex(start * 100_000 + "(?!")


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"type": "integer"}, {"type": "number"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": ["null", "integer"]}, {"type": "null"}),
        ({"minimum": 1, "maxLength": 5}, {"minimum": 3, "maxLength": 4}, {"minimum": 3, "maxLength": 4}),
        ({"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}, {"enum": [2, 3]}),
        ({"const": 2}, {"enum": [1, 2]}, {"const": 2}),
        ({"multipleOf": 4}, {"multipleOf": 6}, {"multipleOf": 12}),
        ({"title": "A"}, {"title": "B", "description": "d"}, {"title": "A", "description": "d"}),
        ({"items": {"minimum": 1}}, {"items": {"maximum": 2}}, {"items": {"allOf": [{"minimum": 1}, {"maximum": 2}]}}),
        (
            {"properties": {"a": {}}, "required": ["a"]},
            {"properties": {"b": {}}, "required": ["b"]},
            {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        ),
        (
            {"properties": {"a": {"minLength": 1}}},
            {"properties": {"a": {"maxLength": 2}}},
            {"properties": {"a": {"allOf": [{"minLength": 1}, {"maxLength": 2}]}}},
        ),
        # What one of them forbids is not there.
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"properties": {"b": {}}},
            {"properties": {"a": {}}, "additionalProperties": False},
        ),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}, "required": ["b"]}, None),
        (
            {"additionalProperties": {"type": "string"}},
            {"properties": {"b": {"minLength": 1}}},
            {
                "properties": {"b": {"allOf": [{"type": "string"}, {"minLength": 1}]}},
                "additionalProperties": {"type": "string"},
            },
        ),
        ({"type": "string"}, {"enum": ["a", None, 1]}, {"type": "string", "enum": ["a"]}),
        # What only an `allOf` can say.
        ({"type": "string"}, {"type": "integer"}, None),
        ({"pattern": "a"}, {"pattern": "b"}, None),
        ({"const": True}, {"type": ["string", "null"]}, None),
        ({"const": 1}, {"type": "number"}, {"const": 1, "type": "number"}),
        ({"enum": [1]}, {"enum": [2]}, None),
        ({"anyOf": [{"minimum": 1}]}, {"anyOf": [{"maximum": 2}]}, None),
        ({"prefixItems": [{}]}, {"items": {"type": "null"}}, None),
    ],
)
def test_two_schemas_as_one(first: dict[str, Any], second: dict[str, Any], both: dict[str, Any] | None) -> None:
    assert joined(first, second) == both


_LEAVES = st.sampled_from(
    [{"type": "string"}, {"type": ["string", "null"]}, {"type": "integer", "minimum": 2}, {"minLength": 2}, {},
     {"enum": ["a", 1, None]}, {"const": "a"}, {"type": "number", "maximum": 4}, {"maxLength": 3}, {"multipleOf": 2}]
)  # fmt: skip
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2)},
            optional={
                "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
                "additionalProperties": st.one_of(st.booleans(), inner),
            },
        ),
        st.fixed_dictionaries({"items": inner}, optional={"minItems": st.just(1), "uniqueItems": st.booleans()}),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"allOf": each}),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
    ),
    max_leaves=8,
)
_VALUES = st.recursive(
    st.sampled_from(["a", "ab", "abcd", 1, 2, 4, 6, None, True]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)


def fits(schema: Any, value: object) -> bool:
    found: bool = Draft202012Validator(schema).is_valid(value)
    return found


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_SCHEMAS, min_size=1, max_size=4), st.lists(_VALUES, min_size=1, max_size=8))
def test_the_one_schema_takes_exactly_what_all_take(parts: list[dict[str, Any]], values: list[object]) -> None:
    plain = [{keyword: part[keyword] for keyword in part if keyword != "allOf"} for part in parts]
    out, left = joined_all([dict(part) for part in plain])
    for value in values:
        assert fits({**out, "allOf": [{}, *left]}, value) == all(fits(part, value) for part in plain)


@settings(max_examples=examples(300), deadline=None)
@given(_SCHEMAS, _SCHEMAS, st.sampled_from([OPENAI, GEMINI]), st.lists(_VALUES, min_size=1, max_size=8))
def test_what_is_sent_without_strict_forbids_nothing_that_was_allowed(
    schema: dict[str, Any], other: dict[str, Any], dialect: SchemaDialect, values: list[object]
) -> None:
    beside = {**schema, "$ref": "#/$defs/Other"}
    whole = {"type": "object", "properties": {"a": beside, "b": {"$ref": "#/$defs/Other"}}, "$defs": {"Other": other}}
    sent = adapt_schema(whole, dialect).schema
    for value in values:
        for name in "ab":
            if fits(whole, {name: value}):
                assert fits(sent, {name: value})
