"""What one API refuses in a schema of a tool or an answer, as its documents and public threads have it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import ToolDefinition
from callboard.providers.provider_registry import adapter_for
from callboard.providers.schema_dialects import CEREBRAS, CEREBRAS_STRICT, GEMINI, OPENAI, OPENAI_STRICT
from callboard.providers.schema_forms import named_by
from callboard.providers.tool_schema import adapt_schema

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com"


def of_x(x: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": {"x": x}, "required": ["x"], **more}


def asked(provider: str, model: str, schema: Schema, *, strict: bool = False) -> tuple[Schema, tuple[str, ...]]:
    """The tool as it goes over the wire, and the notes."""
    adapter = adapter_for(provider, api_key="k", base_url=BEDROCK if provider == "bedrock" else None)
    tool = ToolDefinition(ToolName("f"), "Does it.", schema, strict)
    wire = adapter.encode(ModelRequest(model, (UserMessage.of("Hi"),), tools=(tool,)))
    body = json.loads(wire.body)
    sent = (body.get("tools") or body["toolConfig"]["tools"])[0]
    sent = sent.get("functionDeclarations", [sent])[0]
    return sent.get("function", sent.get("toolSpec", sent)), wire.notes


def within(schema: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
    for value in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from within(value)


# inference-docs.cerebras.ai, "Structured Outputs", "Union types": "The shorthand "type": [ ... ] is not supported".
@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "string", "nullable": True}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": ["string", "integer", "boolean"]}, {"anyOf": [TEXT, WHOLE, {"type": "boolean"}]}),
        (
            {"type": ["string", "null"], "enum": ["a", None], "description": "which"},
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}], "description": "which"},
        ),
        (
            {"type": ["object", "null"], "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
            {
                "anyOf": [
                    {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
                    {"type": "null"},
                ]
            },
        ),
        ({"type": ["array", "null"], "items": WHOLE}, {"anyOf": [{"type": "array", "items": WHOLE}, {"type": "null"}]}),
        ({"type": ["number", "null"], "minimum": 0}, {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]}),
        (
            {"type": ["number", "string"], "enum": [1, 1.5, "a"]},
            {"anyOf": [{"type": "number", "enum": [1, 1.5]}, {"type": "string", "enum": ["a"]}]},
        ),
        ({"type": ["string", "integer"], "const": "a"}, {"type": "string", "enum": ["a"]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", [CEREBRAS, CEREBRAS_STRICT], ids=lambda each: each.name)
def test_cerebras_gets_no_list_of_types(dialect: Any, given: Schema, written: Schema) -> None:
    found = adapt_schema(of_x(given), dialect)
    assert found.schema["properties"]["x"] == written
    assert found.losses == ()
    assert found.strict is dialect.closed


def test_values_of_no_type_are_no_list_of_types_either() -> None:
    found = adapt_schema(of_x({"enum": ["a", "b", 3, None]}), CEREBRAS_STRICT)  # Literal["a", "b", 3, None]
    branches = [{"type": "string", "enum": ["a", "b"]}, {"type": "integer", "enum": [3]}, {"type": "null"}]
    assert found.strict
    assert found.schema["properties"]["x"] == {"anyOf": branches}


def test_types_beside_a_choice_are_said_in_words() -> None:
    found = adapt_schema(of_x({"type": ["string", "null"], "anyOf": [{"minLength": 1}, {"maxLength": 3}]}), CEREBRAS)
    assert found.schema["properties"]["x"]["description"] == '(type: ["string","null"])'
    assert [loss.keyword for loss in found.losses] == ["type"]


# docs.aws.amazon.com, Nova, "Defining a tool"; pydantic-ai 1623; zed-industries/zed#28521.
DEFS = {
    "E": {"type": "string", "enum": ["a", "b"]},
    "N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}},
}


@pytest.mark.parametrize("model", ["amazon.nova-pro-v1:0", "us.amazon.nova-2-lite-v1:0"])
@pytest.mark.parametrize(
    "schema",
    [
        of_x(TEXT, additionalProperties=False),
        of_x({"$ref": "#/$defs/E", "description": "which"}, **{"$defs": DEFS}),
        of_x({"$ref": "#/definitions/E"}, definitions=DEFS),
        of_x({"$ref": "#/$defs/N"}, **{"$defs": DEFS}),
        of_x(TEXT, description="All of it.", title="T", default={}, examples=[]),
        of_x(TEXT, **{"$id": "https://x/y", "$schema": "http://json-schema.org/draft-07/schema#", "$comment": "c"}),
        of_x(TEXT, anyOf=[{"required": ["x"]}]),
        of_x(TEXT, additionalProperties={"type": "string"}, minProperties=1),
        {"$ref": "#/$defs/R", "$defs": {"R": of_x(TEXT)}},
        {"type": "object"},
    ],
    ids=str,
)
@pytest.mark.parametrize("strict", [False, True])
def test_nova_gets_three_keywords_at_the_root_and_no_references(model: str, schema: Schema, strict: bool) -> None:
    sent, notes = asked("bedrock", model, schema, strict=strict)
    parameters = sent["inputSchema"]["json"]
    assert set(parameters) <= {"type", "properties", "required"}
    assert not [each for each in within(parameters) if "$ref" in each or "$defs" in each]
    assert "strict" not in sent
    assert ("tool f: strict: the API has no such flag; left out" in notes) is strict


def test_what_nova_is_not_told_at_the_root_is_in_the_description_of_the_tool() -> None:
    schema = of_x(TEXT, description="All of it.", additionalProperties={"type": "integer"})
    sent, notes = asked("bedrock", "amazon.nova-lite-v1:0", schema)
    assert sent["description"] == 'Does it.\nAll of it.\n(additionalProperties: {"type":"integer"})'
    assert notes == ("tool f: /: additionalProperties: amazon nova takes none at the root of an object",)


def test_nova_is_told_what_a_reference_names() -> None:
    sent, _ = asked("bedrock", "amazon.nova-lite-v1:0", of_x({"$ref": "#/$defs/E"}, **{"$defs": DEFS}))
    assert sent["inputSchema"]["json"]["properties"] == {"x": DEFS["E"]}


# "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'" is an answer of Claude's only.
@pytest.mark.parametrize("name", ["a b", "$ref", "é", "x" * 65, "a/b"])
def test_only_claude_has_a_rule_for_the_names_of_parameters(name: str) -> None:
    schema = {"type": "object", "properties": {name: TEXT}, "required": [name]}
    for model in ("amazon.nova-pro-v1:0", "us.meta.llama4-maverick-17b-instruct-v1:0", "openai.gpt-oss-120b-1:0"):
        for strict in (False, True):
            assert asked("bedrock", model, schema, strict=strict)[0]["inputSchema"]["json"]["required"] == [name]
    with pytest.raises(UsageError, match="anthropic takes no parameter named"):
        asked("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", schema)


# console.groq.com, "Structured Outputs", "Supported models".
@pytest.mark.parametrize(
    ("model", "strict"),
    [
        ("openai/gpt-oss-20b", True),
        ("openai/gpt-oss-120b", True),
        ("openai/gpt-oss-safeguard-20b", False),
        ("moonshotai/kimi-k2-instruct-0905", False),
        ("meta-llama/llama-4-scout-17b-16e-instruct", False),
        ("meta-llama/llama-4-maverick-17b-128e-instruct", False),
    ],
)
def test_groq_holds_two_models_to_the_schema_of_an_answer(model: str, strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": WHOLE}, "required": ["a"]}
    request = ModelRequest(model, (UserMessage.of("Hi"),), response_schema=schema)
    answer = json.loads(adapter_for("groq", api_key="k").encode(request).body)["response_format"]["json_schema"]
    assert answer["strict"] is strict
    assert answer["schema"]["required"] == (["a", "b"] if strict else ["a"])


# developers.openai.com, "Structured Outputs", "All fields must be required": "it is possible to emulate an optional
# parameter by using a union type with null".
STRICT_ONLY_WITH_ALL = [
    ("openai", "gpt-5.5"),
    ("openai-chat", "gpt-5.5"),
    ("groq", "openai/gpt-oss-120b"),
    ("cerebras", "gpt-oss-120b"),
]


@pytest.mark.parametrize(("provider", "model"), STRICT_ONLY_WITH_ALL)
@pytest.mark.parametrize(
    "b",
    [
        WHOLE,
        {"type": "string", "enum": ["x", "y"]},
        {"$ref": "#/$defs/E"},
        {"anyOf": [TEXT, WHOLE]},
        {"type": "array", "items": TEXT},
        {"type": "object", "properties": {"c": TEXT}, "required": ["c"]},
    ],
    ids=str,
)
def test_a_model_need_not_make_up_what_may_be_left_out(provider: str, model: str, b: Schema) -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": b}, "required": ["a"], "$defs": DEFS}
    sent, notes = asked(provider, model, schema, strict=True)
    assert not sent.get("strict")
    assert sent["parameters"]["required"] == ["a"]
    assert [note for note in notes if "/properties/b may be left out and takes no null" in note]


@pytest.mark.parametrize(("provider", "model"), STRICT_ONLY_WITH_ALL)
@pytest.mark.parametrize(
    "b",
    [
        {"type": ["integer", "null"]},
        {"type": "integer", "nullable": True},
        {"type": "integer", "default": 3},
        {"anyOf": [WHOLE, {"type": "null"}]},
        {"$ref": "#/$defs/O"},
        {"enum": ["x", None]},
        {"const": None},
    ],
    ids=str,
)
def test_what_has_a_default_or_takes_null_is_strict(provider: str, model: str, b: Schema) -> None:
    defs = {"O": {"oneOf": [TEXT, {"type": "null"}]}}
    schema = {"type": "object", "properties": {"a": TEXT, "b": b}, "required": ["a"], "$defs": defs}
    sent, notes = asked(provider, model, schema, strict=True)
    assert sent["strict"]
    assert sent["parameters"]["required"] == ["a", "b"]
    assert notes == ()


def test_an_answer_may_always_give_what_it_may_leave_out() -> None:
    found = adapt_schema({"type": "object", "properties": {"a": TEXT}}, OPENAI_STRICT)
    assert found.strict
    assert found.made_up == "/properties/a"


def test_whether_null_is_taken_is_looked_for_within_a_bound() -> None:
    many = {"E": {"anyOf": [TEXT] * 3_000}}
    schema = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/E"} for n in range(900)}, "$defs": many}
    assert adapt_schema(schema, OPENAI_STRICT).made_up == "/properties/p0"


# ai.google.dev, "GenerateContentRequest": `enum` is for "strings and numbers"; "enum[3]: cannot be empty"
# (Smana/runlore#40, Bobsilvio/ha-claude#32).
@pytest.mark.parametrize(
    ("given", "written", "is_lost"),
    [
        (
            {"type": "string", "enum": ["a", ""]},
            {"type": "string", "enum": ["a"], "description": '(enum: ["a",""])'},
            True,
        ),
        ({"type": "string", "enum": [""]}, {"type": "string", "description": '(enum: [""])'}, True),
        ({"enum": [{"a": 1}, {"a": 2}]}, {"description": '(enum: [{"a":1},{"a":2}])'}, True),
        ({"type": "boolean", "enum": [True]}, {"type": "boolean", "description": "(enum: [true])"}, True),
        (
            {"type": ["string", "null"], "enum": ["x", None]},
            {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
            False,
        ),
        ({"enum": ["a", 1, None]}, {"anyOf": [{"enum": ["a", 1]}, {"type": "null"}]}, False),
        ({"enum": [None]}, {"type": "null"}, False),
        (
            {"enum": ["a", "", None], "description": "d"},
            {"anyOf": [{"enum": ["a"]}, {"type": "null"}], "description": 'd\n(enum: ["a","",null])'},
            True,
        ),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}, False),
        ({"const": ""}, {"description": '(enum: [""])'}, True),
    ],
    ids=str,
)
def test_gemini_gets_texts_and_numbers_as_values(given: Schema, written: Schema, is_lost: bool) -> None:
    found = adapt_schema(of_x(given), GEMINI)
    assert found.schema["properties"]["x"] == written
    assert [loss.keyword for loss in found.losses] == ["enum"] * is_lost


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf", "not", "if", "enum"])
def test_words_about_a_root_without_properties_reach_gemini(keyword: str) -> None:
    value = {"oneOf": [of_x(TEXT)], "anyOf": [of_x(TEXT)], "not": of_x(TEXT), "if": of_x(TEXT), "enum": [{"x": "a"}]}
    sent, notes = asked("gemini", "gemini-3.8-flash", {"type": "object", keyword: value[keyword]})
    assert "parametersJsonSchema" not in sent
    assert sent["description"].startswith(f"Does it.\n({keyword}: ")
    assert '"x"' in sent["description"]
    assert notes == (f"tool f: /: {keyword}: gemini takes none at the root of an object",)


# RFC 6901, section 6: a fragment is decoded first ("%5B"), then "~1" and "~0"; JSON Schema 2020-12 core, 8.2.2.
@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ("#/$defs/List%5Bint%5D", "List[int]"),
        ("#/$defs/Box[int]", "Box[int]"),
        ("#/$defs/a~1b", "a/b"),
        ("#/$defs/a%7E1b", "a/b"),
        ("#/$defs/c%25d", "c%d"),
        ("#/$defs/i%5Cj", "i\\j"),
        ("#/$defs/k%22l", 'k"l'),
        ("#/$defs/%20", " "),
        ("#/$defs/m~0n", "m~n"),
        ("#/$defs/%C3%A9", "é"),
        ("#here", "N"),
        ("https://x/y#/$defs/N", "N"),
    ],
)
@pytest.mark.parametrize("dialect", [OPENAI, OPENAI_STRICT, CEREBRAS, GEMINI], ids=lambda each: each.name)
def test_a_reference_in_any_spelling_names_a_plain_definition(dialect: Any, reference: str, key: str) -> None:
    target = {"type": "array", "items": WHOLE, **({"$anchor": "here"} if reference == "#here" else {})}
    schema = of_x({"$ref": reference}, **{"$id": "https://x/y", "$defs": {key: target, "other": TEXT}})
    found = adapt_schema(schema, dialect).schema
    written = found["properties"]["x"]["$ref"]
    assert written.removeprefix("#/$defs/").isascii()
    assert not set(written[2:]) & set('%~[]\\" ')
    assert found["$defs"][written.rpartition("/")[2]]["items"] == WHOLE


def test_two_keys_that_are_plain_alike_stay_two() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A[b]"}, "b": {"$ref": "#/$defs/A(b)"}},
        "$defs": {"A[b]": TEXT, "A(b)": WHOLE},
    }
    found = adapt_schema(schema, OPENAI).schema
    assert found["$defs"] == {"A_b_": TEXT, "A_b__2": WHOLE}
    assert [each["$ref"] for each in found["properties"].values()] == ["#/$defs/A_b_", "#/$defs/A_b__2"]


def test_an_anchor_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="not '#nowhere'"):
        adapt_schema(of_x({"$ref": "#nowhere"}, **{"$defs": {"N": {"$anchor": "here"}}}), OPENAI)


def test_a_name_that_is_there_as_it_stands_is_meant() -> None:
    assert named_by("#/$defs/a%20b", {"$defs": {"a%20b": TEXT, "a b": WHOLE}}) == TEXT
