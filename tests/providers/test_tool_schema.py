"""Schemas adapted to each API: nothing is lost without a word, and what comes out is in the API's subset."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from support.examples import examples

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import ToolDefinition
from callboard.providers.request_encoding import Encoding
from callboard.providers.tool_schema import (
    ANTHROPIC,
    ANTHROPIC_STRICT,
    GEMINI,
    GEMINI_ANSWER,
    MAX_SCHEMA_DEPTH,
    OPENAI,
    OPENAI_STRICT,
    SchemaDialect,
    SchemaLoss,
    adapt_schema,
)

DIALECTS = (OPENAI, OPENAI_STRICT, ANTHROPIC, ANTHROPIC_STRICT, GEMINI)


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


class Item(BaseModel):
    name: str = Field(min_length=1, description="Its name.")
    kind: Literal["a", "b"] = "a"


class Order(BaseModel):
    """An order."""

    items: list[Item]
    first: Item = Field(description="The first.")
    count: int = Field(default=1, gt=0, lt=10)
    note: str | None = None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_pydantic_model_is_taken_by_all(dialect: SchemaDialect) -> None:
    adapted = adapt_schema(Order.model_json_schema(), dialect)
    assert adapted.schema["type"] == "object"
    assert set(adapted.schema["properties"]) == {"items", "first", "count", "note"}
    assert adapted.strict == dialect.closed


def test_a_full_dialect_changes_nothing() -> None:
    schema = Order.model_json_schema()
    assert adapt_schema(schema, OPENAI).schema == schema
    assert adapt_schema(schema, OPENAI).losses == ()


def test_strict_closes_every_object_and_requires_all() -> None:
    adapted = adapt_schema(Order.model_json_schema(), OPENAI_STRICT)
    assert adapted.strict
    assert adapted.schema["required"] == ["items", "first", "count", "note"]
    assert adapted.schema["$defs"]["Item"]["additionalProperties"] is False
    # A default is no keyword of the strict subset: it is said in words.
    assert "(default: 1)" in adapted.schema["properties"]["count"]["description"]
    # A reference with words beside it is written out.
    assert adapted.schema["properties"]["first"]["description"] == "The first."
    assert "$ref" not in adapted.schema["properties"]["first"]
    assert [loss.keyword for loss in adapted.losses] == ["minLength", "minLength"]


@pytest.mark.parametrize(
    "open_object",
    [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "object"}],
)
def test_an_open_object_cannot_be_strict_and_that_is_reported(open_object: dict[str, Any]) -> None:
    schema = an_object(counts=open_object)
    for dialect in (OPENAI_STRICT, ANTHROPIC_STRICT):
        adapted = adapt_schema(schema, dialect)
        assert not adapted.strict
        assert adapted.schema == schema
        assert adapted.losses[0].path == "/properties/counts"
        assert adapted.losses[0].keyword == "additionalProperties"


def test_gemini_gets_what_it_knows_and_the_rest_in_words() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        **an_object(
            unit={"const": "C", "title": "Unit"},
            days={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 15},
            share={"type": "number", "exclusiveMinimum": 0},
            city={"type": "string", "pattern": "^[A-Z]", "description": "A city."},
            either={"oneOf": [{"type": "string"}, {"type": "integer"}]},
        ),
    }
    adapted = adapt_schema(schema, GEMINI)
    properties = adapted.schema["properties"]
    assert set(adapted.schema) == {"type", "properties"}
    assert properties["unit"] == {"enum": ["C"]}
    assert properties["days"] == {"type": "integer", "minimum": 1, "maximum": 14}
    assert properties["share"] == {"type": "number", "description": "(exclusiveMinimum: 0)"}
    assert properties["city"] == {"type": "string", "description": 'A city.\n(pattern: "^[A-Z]")'}
    assert properties["either"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert {(loss.path, loss.keyword) for loss in adapted.losses} == {
        ("/properties/share", "exclusiveMinimum"),
        ("/properties/city", "pattern"),
    }


def test_combinators_at_the_root_are_reported() -> None:
    schema = {**an_object(a={"type": "string"}), "anyOf": [{"required": ["a"]}]}
    adapted = adapt_schema(schema, ANTHROPIC)
    assert "anyOf" not in adapted.schema
    assert "anyOf" in adapted.schema["description"]
    assert adapted.losses == (SchemaLoss("", "anyOf", "anthropic takes none at the root of an object"),)
    assert str(adapted.losses[0]) == "/: anyOf: anthropic takes none at the root of an object"


def test_a_reference_at_the_root_is_followed() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": an_object(x={"type": "string"})}}
    assert adapt_schema(schema, OPENAI).schema["properties"] == {"x": {"type": "string"}}


def test_a_recursive_reference_ends() -> None:
    node = an_object(child={"$ref": "#/$defs/Node", "description": "A child."})
    schema = {**an_object(root={"$ref": "#/$defs/Node", "description": "The root."}), "$defs": {"Node": node}}
    for dialect in (OPENAI_STRICT, GEMINI, ANTHROPIC_STRICT):
        adapted = adapt_schema(schema, dialect)
        assert adapted.schema["properties"]["root"]["description"] == "The root."


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "type object"),
        ({"$ref": "https://example.org/schema"}, "inline"),
        (an_object(a={"$ref": "#/$defs/None", "description": "x"}), "does not hold"),
        (an_object(a=7), "must be an object"),
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        adapt_schema(schema, OPENAI_STRICT)


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UsageError, match="nested"):
        adapt_schema(an_object(a=schema), OPENAI)


def test_a_parameter_name_that_an_api_refuses() -> None:
    tool = ToolDefinition(ToolName("f"), "", an_object(**{"größe": {"type": "string"}}))
    encoding = Encoding(ModelRequest("m", (UserMessage.of("?"),), (tool,)))
    with pytest.raises(UsageError, match="tool 'f': anthropic takes no parameter named"):
        encoding.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT)
    assert encoding.adapted_tools(OPENAI, OPENAI_STRICT) == (tool,)


def test_the_given_schema_is_left_as_it_was() -> None:
    schema = Order.model_json_schema()
    before = repr(schema)
    for dialect in DIALECTS:
        adapt_schema(schema, dialect)
    assert repr(schema) == before


leaves = st.sampled_from(
    [
        {"type": "string", "minLength": 1},
        {"type": "string", "format": "color"},
        {"type": "integer", "exclusiveMinimum": 3},
        {"const": True},
        {"const": 1},
        {"enum": ["a", None]},
        {"type": ["string", "null"], "default": None},
        True,
    ]
)
schemas = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b"]), children, max_size=2).map(lambda p: an_object(**p)),
        children.map(lambda child: {"type": "array", "items": child, "uniqueItems": True}),
        st.lists(children, min_size=1, max_size=2).map(lambda options: {"oneOf": options}),
        st.lists(children, min_size=1, max_size=2).map(lambda options: {"allOf": options}),
        children.map(lambda child: {"type": "object", "additionalProperties": child}),
    ),
    max_leaves=6,
)


def keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {keyword for child in schema for keyword in keywords(child)}
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for name, value in schema.items():
        found |= {k for child in value.values() for k in keywords(child)} if name == "properties" else keywords(value)
    return found


@settings(max_examples=examples(100), deadline=None)
@example({"items": {"allOf": [{"allOf": [{"type": "string", "minLength": 1}]}]}, "type": "array"}, ANTHROPIC_STRICT)
@given(schemas, st.sampled_from([*DIALECTS, GEMINI_ANSWER]))
def test_what_comes_out_is_in_the_subset_and_stays(schema: Any, dialect: SchemaDialect) -> None:
    adapted = adapt_schema(an_object(x=schema), dialect)
    used = dialect if adapted.strict == dialect.closed else dialect.relaxed
    assert used is not None
    if used.keywords is not None:
        assert keywords(adapted.schema) <= used.keywords
    again = adapt_schema(adapted.schema, used)
    assert again.schema == adapted.schema
    assert again.losses == ()


@pytest.mark.parametrize("dialect", [GEMINI, OPENAI_STRICT, ANTHROPIC_STRICT], ids=lambda dialect: dialect.name)
def test_that_a_text_is_base64_is_said_in_words_where_there_is_no_keyword(dialect: SchemaDialect) -> None:
    picture = {"type": "string", "contentEncoding": "base64", "description": "PNG."}
    adapted = adapt_schema(
        {"type": "object", "properties": {"picture": picture}, "additionalProperties": False}, dialect
    )
    told = adapted.schema["properties"]["picture"]
    assert told == {"type": "string", "description": 'PNG.\n(contentEncoding: "base64")'}
    assert not adapted.losses
