"""The adapters of the clouds under the rules of all adapters."""

from __future__ import annotations

from typing import Any

import pytest
from support.event_frames import exception, stream

from callboard.protocol.testing import check_provider_adapter
from callboard.providers.provider_registry import adapter_for

RESOURCE: dict[str, Any] = {"base_url": "https://resource.openai.azure.com", "api_key": "azure-key"}
CONVERSE = stream(
    [
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "c2ln"}}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Wörld \u2028 🎭"}}),
        ("contentBlockStop", {"contentBlockIndex": 1}),
        ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "lookup"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":'}}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"Rome"}'}}}),
        ("contentBlockStop", {"contentBlockIndex": 2}),
        ("messageStop", {"stopReason": "tool_use"}),
        ("metadata", {"usage": {"inputTokens": 9, "outputTokens": 7, "totalTokens": 16}}),
    ]
)
FAILING = stream([("messageStart", {"role": "assistant"})]) + exception("throttlingException", "slow down")


@pytest.mark.parametrize(
    ("name", "options", "api"),
    [
        ("azure", {**RESOURCE, "api_version": "2024-10-21"}, "openai-chat"),
        ("azure", RESOURCE, "openai-chat"),
        ("azure-responses", RESOURCE, "openai-responses"),
        ("vertex", {"project": "p"}, "gemini"),
        ("vertex", {"project": "p", "publisher": "anthropic"}, "anthropic"),
    ],
)
def test_clouds_speak_the_apis_of_others(name: str, options: dict[str, Any], api: str) -> None:
    check_provider_adapter(adapter_for(name, **options), api=api, examples=20)


@pytest.mark.parametrize("model", ["us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-2-lite-v1:0"])
def test_bedrock_keeps_the_rules_of_every_adapter(model: str) -> None:
    check_provider_adapter(adapter_for("bedrock"), [CONVERSE, FAILING], examples=20, model=model)
