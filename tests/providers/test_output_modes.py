"""Which models take a schema of the answer, beside tools or alone, and which schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from callboard.protocol.errors import UsageError
from callboard.protocol.output import OutputMode, OutputSpec, mode_of
from callboard.providers.output_modes import forms_of, output_modes
from callboard.providers.provider_registry import PROVIDERS


class Place(BaseModel):
    name: str
    tags: list[str] = []


class Node(BaseModel):
    inner: list[Node] = []


class Pair(BaseModel):
    left: Other | None = None


class Other(BaseModel):
    right: Pair | None = None


class Shared(BaseModel):
    one: Place
    two: Place


class Named(BaseModel):
    properties: dict[str, int] = {}
    additionalProperties: int = 0


def schema(kind: Any) -> Mapping[str, object]:
    return TypeAdapter(kind).json_schema()


NATIVE, TOOL, PROMPT = OutputMode
ALL, BY_CALL = (NATIVE, TOOL, PROMPT), (TOOL, PROMPT)


@pytest.mark.parametrize(
    ("model", "modes", "alone"),
    [
        ("openai/gpt-5", ALL, False),
        ("openai/gpt-4o-mini", ALL, False),
        ("openai/gpt-4.1", ALL, False),
        ("openai/o3", ALL, False),
        ("openai-chat/gpt-4o-2024-05-13", BY_CALL, True),
        ("openai-chat/gpt-4-turbo", BY_CALL, True),
        ("openai-chat/gpt-3.5-turbo", BY_CALL, True),
        ("azure/any-name", ALL, False),
        ("anthropic/claude-sonnet-4-5", ALL, False),
        ("anthropic/claude-opus-4-6", ALL, False),
        ("anthropic/claude-haiku-4-5-20251001", ALL, False),
        ("anthropic/claude-sonnet-4-20250514", BY_CALL, True),
        ("anthropic/claude-opus-4-1", BY_CALL, True),
        ("anthropic/claude-3-7-sonnet-latest", BY_CALL, True),
        ("vertex/claude-sonnet-4-5@20250929", ALL, False),
        ("vertex/gemini-2.5-pro", ALL, True),
        ("gemini/gemini-3-pro", ALL, False),
        ("gemini/gemini-2.5-flash", ALL, True),
        ("gemini/gemma-3-27b-it", BY_CALL, True),
        ("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", ALL, False),
        ("bedrock/anthropic.claude-3-5-sonnet-20241022-v2:0", BY_CALL, True),
        ("bedrock/amazon.nova-pro-v1:0", BY_CALL, True),
        ("groq/openai/gpt-oss-120b", ALL, True),
        ("groq/llama-3.3-70b-versatile", BY_CALL, True),
        ("deepseek/deepseek-chat", BY_CALL, True),
        ("zai/glm-5", BY_CALL, True),
        ("deepseek-anthropic/deepseek-chat", BY_CALL, True),
        ("ollama/qwen3", ALL, True),
        ("llamacpp/any", ALL, True),
        ("openai-compatible/any", ALL, True),
        ("perplexity/sonar", (NATIVE, PROMPT), True),
        ("openrouter/anthropic/claude-sonnet-4.5", ALL, False),
        ("openrouter/meta-llama/llama-3", ALL, True),
        ("scripted/m", ALL, False),
        ("mine/anything", (PROMPT,), True),
    ],
)
def test_how_a_model_is_asked_for_a_plain_object(model: str, modes: tuple[OutputMode, ...], alone: bool) -> None:
    provider, _, name = model.partition("/")
    found, is_native_alone = output_modes(provider, name, schema(Place))
    assert found == modes
    if NATIVE in modes:
        assert is_native_alone == alone


@pytest.mark.parametrize(
    ("model", "kind", "is_native"),
    [
        ("anthropic/claude-sonnet-4-5", Node, False),
        ("anthropic/claude-sonnet-4-5", dict[str, int], False),
        ("bedrock/anthropic.claude-sonnet-4-5", dict[str, int], False),
        ("gemini/gemini-3-pro", Node, False),
        ("gemini/gemini-3-pro", dict[str, int], True),
        ("openai/gpt-5", Node, True),
        ("openai/gpt-5", dict[str, int], True),
    ],
)
def test_a_schema_that_an_api_cannot_say_is_asked_for_by_a_call(model: str, kind: Any, is_native: bool) -> None:
    provider, _, name = model.partition("/")
    modes, _ = output_modes(provider, name, schema(kind))
    assert modes == (ALL if is_native else BY_CALL)


def is_native(model: str, kind: Any) -> bool:
    provider, _, name = model.partition("/")
    return NATIVE in output_modes(provider, name, kind if isinstance(kind, dict) else schema(kind))[0]


def test_recursion_is_found_also_by_others_and_sharing_is_none() -> None:
    for model in ("gemini/gemini-3-pro", "anthropic/claude-sonnet-4-5"):
        assert not is_native(model, Node)
        assert not is_native(model, Pair)
        assert is_native(model, Shared)
    assert is_native("gemini/gemini-3-pro", {})


def test_open_objects_are_found_and_fields_of_such_names_are_none() -> None:
    claude = "anthropic/claude-sonnet-4-5"
    assert not is_native(claude, dict[str, int])
    assert not is_native(claude, list[dict[str, Any]])
    assert not is_native(claude, Named)
    assert is_native(claude, Place)
    closed = {
        "type": "object",
        "properties": {"additionalProperties": {"type": "string", "default": {"type": "object"}}},
    }
    assert is_native(claude, closed)


def test_every_provider_has_a_way() -> None:
    for provider in PROVIDERS:
        if provider == "offline":
            with pytest.raises(UsageError, match="answers from the code index"):
                output_modes(provider, "m", {})
        else:
            assert output_modes(provider, "m", {})[0][-1] is PROMPT
            assert forms_of(provider, "m")


def test_the_page_s_table_is_what_the_code_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structured_output.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)/(\S+)` \| (\w+) \| ([\w, ]*) ?\| (\w+) \|$", page, re.MULTILINE)
    assert len(rows) >= 20
    for provider, model, first, then, beside in rows:
        modes, alone = output_modes(provider, model, schema(Place))
        told = [first, *filter(None, then.strip().split(", "))]
        assert told == [str(mode) for mode in modes], model
        spec = OutputSpec({}, modes=modes, is_native_alone=alone)
        assert beside == mode_of(spec, modes, has_tools=True, takes_calls=True), model
