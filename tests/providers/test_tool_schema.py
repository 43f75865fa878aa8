"""Schemas adapted to each API: nothing is lost without a word, and what comes out is in the API's subset."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from support.examples import examples

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import ToolDefinition
from callboard.providers.json_values import dumps
from callboard.providers.request_encoding import Encoding
from callboard.providers.schema_dialects import (
    ANTHROPIC,
    ANTHROPIC_ANSWER,
    ANTHROPIC_STRICT,
    BEDROCK_STRICT,
    CEREBRAS,
    CEREBRAS_STRICT,
    GEMINI,
    GEMINI_ANSWER,
    MAX_SCHEMA_DEPTH,
    NOVA,
    OPENAI,
    OPENAI_STRICT,
    SchemaDialect,
)
from callboard.providers.tool_schema import SchemaLoss, adapt_schema

DIALECTS = (OPENAI, OPENAI_STRICT, ANTHROPIC, ANTHROPIC_STRICT, GEMINI, CEREBRAS, BEDROCK_STRICT, NOVA)


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


# -- a schema is judged by its values ----------------------------------------------------------------------------------


def faults(schema: Any, dialect: SchemaDialect, root: dict[str, Any], path: str = "") -> list[str]:
    """What a strict compiler refuses, by the makers' documents: OpenAI's "Supported schemas", Anthropic's "JSON Schema
    limitations"."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return [] if set(schema) == {"$ref"} and name in root.get("$defs", {}) else [f"{path}: $ref"]
    found = [f"{path}: {fault}" for fault in own_faults(schema, dialect)]
    children = [
        (f"{key}/{name}", each) for key in ("properties", "$defs") for name, each in schema.get(key, {}).items()
    ]
    children += [(f"anyOf/{index}", each) for index, each in enumerate(schema.get("anyOf", ()))]
    children += [("items", schema["items"])] if isinstance(schema.get("items"), dict) else []
    return found + [fault for name, each in children for fault in faults(each, dialect, root, f"{path}/{name}")]


def own_faults(schema: Any, dialect: SchemaDialect) -> list[str]:
    assert dialect.keywords is not None
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or ["" if "anyOf" in schema else "none"]
    named, needed = sorted(schema.get("properties", ())), sorted(schema.get("required", ()))
    is_open = schema.get("additionalProperties") is not False or "properties" not in schema
    found = {
        "schema must have a 'type' key": "none" in kinds,
        "'additionalProperties' is required to be supplied and to be false": "object" in kinds and is_open,
        "'required' must name every property": "object" in kinds and dialect.all_required and named != needed,
        "array schema missing items": "array" in kinds and not schema.get("items"),
        "not a valid format": "format" in schema and schema["format"] not in (dialect.formats or ()),
        "regex lookaround is not supported": "(?!" in schema.get("pattern", ""),
        **{f"{keyword!r} is not permitted": True for keyword in set(schema) - dialect.keywords - {"$defs"}},
    }
    return [fault for fault, is_there in found.items() if is_there]


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}


NODE = {"N": an_object(kids={"type": "array", "items": {"$ref": "#/$defs/N"}})}
TWO_OBJECTS = {"allOf": [an_object(a={"type": "string"}), an_object(b={"type": "string"})]}


@pytest.mark.parametrize(
    ("schema", "is_strict"),
    [
        # A format that is none of the nine is said in words; `uri` is pydantic's of a URL.
        (of({"type": "string", "format": "uri"}), True),
        (of({"type": "string", "format": "binary"}), True),
        (of({"type": "string", "format": "int64"}), True),
        (of({"type": "array", "items": {"type": "string", "format": "uri-reference"}}), True),
        (of({"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]}), True),
        (of({"type": "string", "format": "byte", "pattern": "^a"}), True),
        # Lookarounds.
        (of({"type": "string", "pattern": "^(?!a)"}), True),
        (of({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}), True),
        # Tuples: of a known length as an array of their types, else not strict.
        (of({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}), False),
        (of({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1, "maxItems": 1}), True),
        (of({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}), True),
        (of({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}), True),
        (of({"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}), True),
        (of({"type": "array", "items": [{"type": "integer"}]}), False),
        (of({"type": "array", "prefixItems": [{}], "items": False}), False),
        # Arrays of anything, objects of any key, any value.
        (of({"type": "array"}), False),
        (of({"type": "array", "items": {}}), False),
        (of({"type": "array", "items": True}), False),
        (of({"type": ["array", "null"]}), False),
        (of({"type": "object"}), False),
        (of({"type": ["object", "null"]}), False),
        (of({"type": "object", "additionalProperties": {"type": "string"}}), False),
        (of({"type": "object", "patternProperties": {"^a": {"type": "string"}}}), False),
        (of(an_object(a={"type": "string"}) | {"patternProperties": {"^a": {"type": "string"}}}), False),
        (of({}), False),
        (of(True), False),
        (of({"description": "Whatever."}), False),
        (of({"anyOf": [{"type": "string"}, {}]}), False),
        (of({"const": "fact"}), True),
        (of({"enum": ["a", 1, None]}), True),
        (of({"enum": [{"a": 1}, {"a": 2}]}), False),
        (of({"properties": {"a": {"type": "string"}}}), True),
        # Branches of an `allOf`, and of a choice beside properties.
        (of(TWO_OBJECTS), True),
        (of({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}), True),
        (of({"allOf": [{"type": "string"}, {"minLength": 2}, {"maxLength": 5}]}), True),
        (
            of({"allOf": [an_object(a={"anyOf": [{"type": "string"}]}), an_object(a={"anyOf": [{"type": "null"}]})]}),
            True,
        ),
        (of({**an_object(kind={"type": "string"}), "anyOf": [an_object(a={"type": "string"}), an_object()]}), True),
        (of({**an_object(a={"type": "string"}), "if": {"required": ["a"]}, "then": an_object(b={})}), False),
        (of({"not": {"type": "string"}}), False),
        (of({"type": "string", "not": {"const": "a"}}), True),
        (of({"oneOf": [{"type": "string"}, {"type": "null"}]}), True),
        (of({"$ref": "#/definitions/A"}, definitions={"A": {"type": "string"}}), True),
        (of({"$ref": "#/properties/x/properties/y", **an_object(y={"type": "string"})}), False),
        (of({"type": "string", "nullable": True}), True),
        (of(TWO_OBJECTS["allOf"][0], allOf=[an_object(y={"type": "string"})]), True),
        (of({"type": "string"}, anyOf=[an_object(y={"type": "string"}), an_object(z={"type": "string"})]), False),
        (of({"type": "string"}, oneOf=[{"required": ["x"]}]), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", [OPENAI_STRICT, ANTHROPIC_STRICT, CEREBRAS_STRICT], ids=lambda each: each.name)
def test_what_is_sent_strict_is_what_the_compiler_takes(
    schema: dict[str, Any], is_strict: bool, dialect: SchemaDialect
) -> None:
    adapted = adapt_schema(schema, dialect)
    assert adapted.strict is is_strict
    if is_strict:
        assert faults(adapted.schema, dialect, adapted.schema) == []
    else:
        assert adapted.losses  # which are notes
        assert adapt_schema(schema, dialect.relaxed or dialect).schema == adapted.schema


def test_every_strict_schema_is_one_that_the_compiler_takes() -> None:
    @settings(max_examples=examples(300), deadline=None)
    @given(schemas, schemas, st.sampled_from([OPENAI_STRICT, ANTHROPIC_STRICT, CEREBRAS_STRICT]))
    def check(one: Any, other: Any, dialect: SchemaDialect) -> None:
        schema = an_object(a=one, b={"$ref": "#/$defs/O", "description": "b"}, c={"$ref": "#/$defs/O"})
        adapted = adapt_schema({**schema, "$defs": {"O": other}}, dialect)
        if adapted.strict:
            assert faults(adapted.schema, dialect, adapted.schema) == []

    check()


@pytest.mark.parametrize("dialect", [OPENAI, OPENAI_STRICT, CEREBRAS_STRICT], ids=lambda dialect: dialect.name)
def test_a_lookaround_goes_to_openai_in_words_only(dialect: SchemaDialect) -> None:
    adapted = adapt_schema(of({"type": "string", "pattern": "^(?!a)", "description": "A name."}), dialect)
    assert adapted.schema["properties"]["x"] == {"type": "string", "description": 'A name.\n(pattern: "^(?!a)")'}
    assert [(loss.path, loss.keyword) for loss in adapted.losses] == [("/properties/x", "pattern")]


def test_openai_needs_items_and_properties_without_strict_too() -> None:
    """ "array schema missing items" (langgenius/dify#32894), "object schema missing properties"."""
    sent = adapt_schema({"type": "object"}, OPENAI).schema
    assert sent == {"type": "object", "properties": {}}
    for array in ({"type": "array"}, {"type": ["array", "null"]}, {"type": "array", "prefixItems": [{}]}):
        assert adapt_schema(of(array), OPENAI).schema["properties"]["x"] == {**array, "items": {}}


@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each.references], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "reference", ["#/definitions/N", "#/properties/y", "#/$defs/N", "#/$defs/M/anyOf/0", "#/$defs/A%20B", "#/$defs/~1"]
)
def test_every_reference_names_a_definition(reference: str, dialect: SchemaDialect) -> None:
    """Gemini finds nothing else (DEEIX-AI/DEEIX-Chat#546)."""
    number = an_object(n={"type": "integer"})
    schema = {
        **an_object(x={"$ref": reference}, y=number),
        "definitions": {"N": number},
        "$defs": {"N": number, "M": {"anyOf": [number]}, "A B": number, "/": number},
    }
    adapted = adapt_schema(schema, dialect)
    (name, definition), *others = adapted.schema["$defs"].items()
    assert not others
    assert adapted.schema["properties"]["x"] == {"$ref": f"#/$defs/{name.replace('/', '~1')}"}
    assert definition["properties"] == {"n": {"type": "integer"}}
    assert "definitions" not in adapted.schema
    assert not adapted.losses


def test_what_is_required_without_being_described_may_be_anything() -> None:
    """Gemini: "required[0]: property is not defined"."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]}
    assert adapt_schema(schema, GEMINI).schema["properties"] == {"a": {"type": "string"}, "b": {}}
    for dialect in (OPENAI_STRICT, ANTHROPIC_STRICT):
        assert not adapt_schema(schema, dialect).strict
        closed = adapt_schema({**schema, "additionalProperties": False}, dialect)
        assert closed.strict
        assert closed.schema["required"] == ["a"]


def test_two_definitions_of_one_name_stay_two() -> None:
    schema = {
        **an_object(x={"$ref": "#/definitions/N"}, y={"$ref": "#/$defs/N"}),
        "definitions": {"N": {"type": "string"}},
        "$defs": {"N": {"type": "integer"}},
    }
    sent = adapt_schema(schema, GEMINI).schema
    assert sent["properties"] == {"x": {"$ref": "#/$defs/N"}, "y": {"$ref": "#/$defs/N_2"}}
    assert sent["$defs"] == {"N": {"type": "string"}, "N_2": {"type": "integer"}}


@pytest.mark.parametrize("dialect", [OPENAI_STRICT, GEMINI, ANTHROPIC_STRICT], ids=lambda dialect: dialect.name)
def test_a_reference_and_what_stands_beside_it_hold_both(dialect: SchemaDialect) -> None:
    """JSON Schema 2020-12 (openai/openai-agents-python#4354)."""
    target = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    beside = {"$ref": "#/$defs/T", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    adapted = adapt_schema(of(beside, **{"$defs": {"T": target}}), dialect)
    assert set(adapted.schema["properties"]["x"]["properties"]) == {"a", "b"}
    assert set(adapted.schema["properties"]["x"]["required"]) == {"a", "b"}
    assert not adapted.losses


def test_a_circle_at_gemini_is_in_a_property_that_may_be_left_out() -> None:
    schema = of({"$ref": "#/$defs/N"}, **{"$defs": NODE})
    adapted = adapt_schema(schema, GEMINI)
    assert adapted.schema["$defs"]["N"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/N"}
    needed = {"N": {**NODE["N"], "required": ["kids"]}}
    adapted = adapt_schema({**schema, "$defs": needed}, GEMINI)
    assert adapted.schema["$defs"]["N"]["properties"]["kids"]["items"] == {"description": "(again as described of N)"}
    assert [loss.keyword for loss in adapted.losses] == ["$ref"]


@pytest.mark.parametrize(
    "schema",
    [
        of({"$ref": "#/$defs/N"}, **{"$defs": NODE}),
        of({"$ref": "#/$defs/N", "description": "The root."}, **{"$defs": NODE}),
        of({"$ref": "#"}),
        of({"$ref": "#/$defs/A"}, **{"$defs": {"A": of({"$ref": "#/$defs/B"}), "B": of({"$ref": "#/$defs/A"})}}),
        of({"allOf": [{"$ref": "#/$defs/N"}, an_object(n={"type": "string"})]}, **{"$defs": NODE}),
        {"$ref": "#/$defs/N", "$defs": NODE},
    ],
    ids=["items", "described", "root", "two", "allOf", "at the root"],
)
def test_a_recursive_tool_is_strict_at_openai_and_not_at_anthropic(schema: dict[str, Any]) -> None:
    """ "Circular reference detected in schema definitions"."""
    assert adapt_schema(schema, OPENAI_STRICT).strict
    for dialect in (ANTHROPIC_STRICT, CEREBRAS_STRICT):
        adapted = adapt_schema(schema, dialect)
        assert not adapted.strict
        assert "refers to itself" in str(adapted.losses[0])
    assert not adapt_schema(schema, ANTHROPIC_ANSWER).strict


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (an_object(**{f"p{n}": {"type": "string"} for n in range(5_001)}), "properties"),
        (an_object(x={"enum": [str(n) for n in range(1_001)]}), "enum"),
        (an_object(**{"x" * 120_001: {"type": "string"}}), "characters"),
        (an_object(x={"enum": ["x" * 60_001, "y" * 60_000]}), "characters"),
        (an_object(x={"const": "x" * 120_001}), "characters"),
    ],
    ids=["properties", "values", "a name", "long values", "a constant"],
)
def test_what_is_too_large_for_openai_is_not_strict(schema: dict[str, Any], keyword: str) -> None:
    adapted = adapt_schema(schema, OPENAI_STRICT)
    assert not adapted.strict
    assert adapted.losses[0].keyword == keyword


def test_an_object_nested_deeper_than_openai_compiles_is_not_strict() -> None:
    schema: dict[str, Any] = an_object()
    for level in range(1, 12):
        adapted = adapt_schema(schema, OPENAI_STRICT)
        assert adapted.strict is (level <= 10)
        schema = an_object(x=schema)


def strict_tool(name: str, schema: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(ToolName(name), "", schema, strict=True)


OPTIONAL = an_object(**{f"o{n}": {"type": "string"} for n in range(10)})
NULLABLE = of({"type": ["string", "null"]})
PLAIN = of({"type": "string"})


@pytest.mark.parametrize(
    ("schemas", "strict"),
    [
        ([PLAIN] * 21, [True] * 20 + [False]),
        ([PLAIN] * 20, [True] * 20),
        ([OPTIONAL, OPTIONAL, OPTIONAL, PLAIN], [True, True, False, True]),
        ([NULLABLE] * 17 + [PLAIN], [True] * 16 + [False, True]),
        ([of({"anyOf": [{"type": "string"}, {"type": "null"}]})] * 17, [True] * 16 + [False]),
        ([an_object(**{f"o{n}": {"type": "string"} for n in range(25)}), PLAIN], [False, True]),
    ],
    ids=["21 tools", "20 tools", "optional", "nullable", "anyOf", "one alone"],
)
def test_the_budget_of_a_request_goes_to_its_first_tools(schemas: list[dict[str, Any]], strict: list[bool]) -> None:
    """platform.claude.com, "Schema complexity limits"; Bedrock: pydantic/pydantic-ai#5579."""
    tools = tuple(strict_tool(f"t{number}", schema) for number, schema in enumerate(schemas))
    for count in range(1, len(tools) + 1):  # one more tool changes none before it
        encoding = Encoding(ModelRequest("m", (UserMessage.of("?"),), tools[:count]))
        sent = encoding.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT, ANTHROPIC_ANSWER)
        assert [tool.strict for tool in sent] == strict[:count]
    left = [f"t{number}" for number, is_strict in enumerate(strict) if not is_strict]
    assert list(dict.fromkeys(note.split(":")[0].removeprefix("tool ") for note in encoding.notes)) == left


def test_the_answer_s_schema_has_the_budget_first() -> None:
    tools = (strict_tool("a", OPTIONAL), strict_tool("b", PLAIN))
    request = ModelRequest("m", (UserMessage.of("?"),), tools, response_schema=an_object(**OPTIONAL["properties"]) | {})
    encoding = Encoding(request)
    assert [tool.strict for tool in encoding.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT, ANTHROPIC_ANSWER)] == [True] * 2
    more = an_object(**{f"o{n}": {"type": "string"} for n in range(15)})
    encoding = Encoding(ModelRequest("m", (UserMessage.of("?"),), tools, response_schema=more))
    sent = encoding.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT, ANTHROPIC_ANSWER)
    assert [tool.strict for tool in sent] == [False, True]
    assert encoding.notes == [
        "tool a: strict: anthropic strict takes at most 20 strict tools, 24 parameters that may be left out and 16 of "
        "several types in one request; left out"
    ]


# -- no schema is too odd ----------------------------------------------------------------------------------------------

ALL = (*DIALECTS, ANTHROPIC_ANSWER, CEREBRAS_STRICT, GEMINI_ANSWER)
odd_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3),
        st.sampled_from(["object", "array", "#", "#/$defs/a", "#/$defs/b", "#/properties/a", "http://x/y", "(?!"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*"ab", "type", "properties", "required", "items", "anyOf", "allOf", "oneOf",
            "not", "enum", "const", "$ref", "$defs", "additionalProperties", "patternProperties", "prefixItems",
            "nullable", "definitions", "pattern", "format", "minimum", "exclusiveMinimum", "if", "then"]), inner,
            max_size=5),
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=examples(500), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b"]), odd_values), st.fixed_dictionaries({"a": odd_values, "b": odd_values})
)
def test_any_json_is_sent_or_refused_with_a_reason(properties: dict[str, Any], defs: dict[str, Any]) -> None:
    for dialect in ALL:
        try:
            adapted = adapt_schema({"properties": properties, "$defs": defs}, dialect)
        except UsageError:
            continue
        # "JSON schema is invalid. It must match JSON Schema draft 2020-12" (Anthropic)
        Draft202012Validator.check_schema(adapted.schema)
        if adapted.strict:
            assert faults(adapted.schema, dialect, adapted.schema) == []


def doubling(levels: int, level: Any) -> dict[str, Any]:
    defs = {f"d{number}": level(f"#/$defs/d{number + 1}") for number in range(levels)}
    return {**an_object(a={"$ref": "#/$defs/d0"}), "$defs": {**defs, f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(60, lambda ref: {"allOf": [{"$ref": ref}, {"$ref": ref}]}),
        doubling(60, lambda ref: {"allOf": [{"$ref": ref, "description": "x"}, {"$ref": ref, "minLength": 1}]}),
        doubling(60, lambda ref: an_object(x={"$ref": ref, "title": "x"}, y={"$ref": ref, "description": "y"})),
        doubling(60, lambda ref: {"anyOf": [{"$ref": ref, "description": str(number)} for number in range(3)]}),
        doubling(60, lambda ref: {**an_object(k={"$ref": ref}), "anyOf": [an_object(a={"$ref": ref}), an_object()]}),
        doubling(3_000, lambda ref: {"$ref": ref}),
        an_object(a={"allOf": [an_object(**{f"p{number}": {}}) for number in range(3_000)]}),
        {**an_object(a={"$ref": "#/$defs/a", "minLength": 1}), "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {**an_object(a={"$ref": "#/$defs/a"}), "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"minLength": 1}]}}},
        an_object(a={"$ref": "#"}, b={"$ref": "#", "title": "x"}, c={"allOf": [{"$ref": "#"}, {"minProperties": 1}]}),
        an_object(a={"type": "string", "pattern": "[" * 100_000}),
        an_object(a={"enum": list(range(20_000))}),
        an_object(**{f"p{number}": False for number in range(1_000)}),
    ],
    ids=["allOf", "allOf described", "beside", "choices", "choices beside", "row", "wide", "self", "self in allOf",
         "root", "pattern", "values", "false"],
)  # fmt: skip
def test_a_hostile_schema_is_bounded(schema: dict[str, Any]) -> None:
    """Written out, some of these would be 2 to the power of 60 schemas."""
    for dialect in ALL:
        sent = adapt_schema(schema, dialect)
        assert len(dumps(sent.schema)) < 3_000_000
