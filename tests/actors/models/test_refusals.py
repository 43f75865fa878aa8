"""What models said of themselves is believed for a while, and of so many models."""

from __future__ import annotations

import pytest

from callboard.actors.models.refusals import (
    MAX_MODELS,
    NO_SCHEMA_SECONDS,
    NO_TOOLS_SECONDS,
    WINDOW_SECONDS,
    Refusals,
    is_of_the_model,
    names_a_tool,
    refused_as_strict,
)
from callboard.protocol.ids import ToolName
from callboard.protocol.tools import ToolDefinition


def test_no_tools_is_believed_for_an_hour() -> None:
    refusals = Refusals()
    assert refusals.takes_tools("a/m", 5.0)
    refusals.learn_no_tools("a/m", 10.0)
    assert NO_TOOLS_SECONDS == 3_600
    assert [refusals.takes_tools("a/m", at) for at in (10.0, 3_609.0, 3_610.0)] == [False, False, True]
    assert refusals.takes_tools("a/other", 10.0)


def test_no_schema_is_believed_for_an_hour_and_is_no_word_about_tools() -> None:
    refusals = Refusals()
    assert refusals.takes_schemas("a/m", 5.0)
    refusals.learn_no_schema("a/m", 10.0)
    assert NO_SCHEMA_SECONDS == 3_600
    assert [refusals.takes_schemas("a/m", at) for at in (10.0, 3_609.0, 3_610.0)] == [False, False, True]
    assert refusals.takes_schemas("a/other", 10.0)
    assert refusals.takes_tools("a/m", 10.0)


def test_a_refused_schema_says_nothing_of_another_one() -> None:
    refusals, url = Refusals(), {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}}
    refusals.learn_no_schema("a/m", 10.0, url)
    assert not refusals.takes_schemas("a/m", 11.0, dict(url))
    assert refusals.takes_schemas("a/m", 11.0, {"type": "object"})
    assert refusals.takes_schemas("a/m", 11.0)
    assert refusals.takes_schemas("a/other", 11.0, url)
    assert refusals.takes_schemas("a/m", 10.0 + NO_SCHEMA_SECONDS, url)
    refusals.learn_no_schema("a/m", 20.0)
    assert not refusals.takes_schemas("a/m", 21.0, {"type": "object"})
    refusals.forget(remembers_no_tools=True)
    assert refusals.takes_schemas("a/m", 21.0, url)


@pytest.mark.parametrize(
    ("message", "is_so"),
    [
        # OpenAI, DeepSeek, Groq, Gemini, Claude behind others, llama.cpp, vLLM: see `_OF_THE_MODEL`.
        ("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.", True),
        ("This response_format type is unavailable now", True),
        ("response_format.type `json_schema` is unavailable now", True),
        ("This model does not support response format `json_schema`.", True),
        ("claude-3-5-haiku does not support structured outputs", True),
        ("JSON mode is not enabled for models/gemma-3-27b-it", True),
        ("Function calling with a response mime type: 'application/json' is unsupported", True),
        ("output_config.format: Extra inputs are not permitted", True),
        ("Unsupported parameter: 'response_format'", True),
        ("Cannot use custom grammar constraints with tools.", True),
        # These are about the schema that was sent.
        ("Invalid schema for response_format 'answer': In context=('properties', 'url'), 'uri' is no format.", False),
        ("Invalid schema for response_format 'answer': In context=(), 'allOf' is not permitted.", False),
        ("Invalid JSON schema: regex lookaround is not supported.", False),
        ("Schema is too complex for compilation.", False),
        ("Schemas contains too many optional parameters (25).", False),
        ("output_config.format.schema: Invalid schema: Circular reference detected", False),
        ("The compiled grammar is too large, which would cause performance issues.", False),
        ("Failed to parse grammar", False),
        ("For 'array' type, property 'maxItems' is not supported", False),
        ("The specified schema produces a constraint that has too many states for serving.", False),
    ],
)
def test_what_is_said_of_a_schema_and_what_of_the_model(message: str, is_so: bool) -> None:
    assert is_of_the_model(message) is is_so


TOOLS = tuple(ToolDefinition(ToolName(name), "", {"type": "object"}, name != "lax") for name in ("one", "lax", "two"))


@pytest.mark.parametrize(
    ("message", "has_answer", "blamed"),
    [
        ("Invalid schema for function 'two': In context=(), 'allOf' is not permitted.", False, ["two"]),
        ("Invalid schema for function 'two': In context=(), 'allOf' is not permitted.", True, ["two"]),
        ("Invalid schema for function 'lax': In context=(), array schema missing items.", False, []),
        ("tools.2.custom: For 'array' type, property 'maxItems' is not supported", False, ["two"]),
        ("tools[0].parameters is no schema", False, ["one"]),
        ("Invalid JSON schema for tool `one`: ...", False, ["one"]),
        ("Too many strict tools (28). The maximum number of strict tools supported is 20.", False, ["one", "two"]),
        ("Schema is too complex for compilation.", False, ["one", "two"]),
        ("Schema is too complex for compilation.", True, ["one", "two"]),
        ("output_config.format.schema: Invalid schema: Circular reference detected", True, []),
        ("Invalid schema for response_format 'answer': ...", True, []),
    ],
)
def test_which_strict_tools_a_refusal_is_about(message: str, has_answer: bool, blamed: list[str]) -> None:
    assert [tool.name for tool in refused_as_strict(message, TOOLS, has_answer_schema=has_answer)] == blamed
    assert names_a_tool(message) is any(name in message for name in ("'two'", "'lax'", "`one`", "tools.2", "tools[0]"))


def test_a_tool_that_was_refused_as_strict_is_not_strict_for_an_hour() -> None:
    refusals = Refusals()
    assert refusals.as_taken("a/m", TOOLS, 10.0) is TOOLS
    refusals.learn_not_strict("a/m", TOOLS[:1], 10.0)
    assert [tool.strict for tool in refusals.as_taken("a/m", TOOLS, 11.0)] == [False, False, True]
    assert refusals.as_taken("a/other", TOOLS, 11.0) == TOOLS
    assert refusals.as_taken("a/m", TOOLS, 10.0 + NO_SCHEMA_SECONDS) == TOOLS
    other = ToolDefinition(ToolName("one"), "", {"type": "object", "properties": {}}, True)
    assert refusals.as_taken("a/m", (other,), 11.0) == (other,), "another schema by this name"


def test_a_refusal_that_meant_something_else_is_forgotten() -> None:
    refusals = Refusals()
    refusals.forget_no_tools("a/m")
    refusals.learn_no_tools("a/m", 10.0)
    refusals.forget_no_tools("a/m")
    assert refusals.takes_tools("a/m", 11.0)


def test_where_a_refusal_ends_the_request_it_is_not_remembered() -> None:
    refusals = Refusals(remembers_no_tools=False)
    refusals.learn_no_tools("a/m", 10.0)
    assert refusals.takes_tools("a/m", 11.0)


def test_the_newest_window_is_believed_for_a_while() -> None:
    refusals = Refusals()
    assert refusals.window("a/m", 0.0) is None
    refusals.learn_window("a/m", 8_192, 10.0)
    refusals.learn_window("a/m", 4_096, 20.0)
    assert refusals.window("a/m", 20.0) == 4_096
    assert refusals.window("a/m", 20.0 + WINDOW_SECONDS) is None


def test_the_models_remembered_are_bounded_and_the_oldest_goes() -> None:
    refusals = Refusals()
    for number in range(MAX_MODELS + 1):
        refusals.learn_no_tools(f"a/{number}", 10.0)
        refusals.learn_no_tools("a/0", 10.0)  # learned again, it is the newest
        refusals.learn_window(f"a/{number}", 100, 10.0)
    assert not refusals.takes_tools("a/0", 11.0)
    assert refusals.takes_tools("a/1", 11.0)
    assert refusals.window("a/0", 11.0) is None
    assert refusals.window(f"a/{MAX_MODELS}", 11.0) == 100
