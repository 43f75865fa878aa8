"""The models that examples, messages and `callboard doctor` name: in one place, since models go out of service.

As of November 2026, by the makers' own lists (OpenAI: "Deprecations", whose gpt-5 ends on 2026-12-11; Anthropic: "Model
deprecations"; Google: "Gemini deprecations"; the others' lists of models). A test holds README and docs to these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: By provider, a model that an example may name.
EXAMPLES: Final[Mapping[str, str]] = {
    "openai": "gpt-6.1-sol",
    "anthropic": "claude-sonnet-5-5",
    "gemini": "gemini-3.8-flash",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "azure": "my-deployment",
    "vertex": "claude-sonnet-5-5",
    "bedrock": "global.anthropic.claude-sonnet-5-5",
    "ollama": "qwen3",
}
#: By provider, its cheapest small model, for a call that shows that key and address are right.
CHEAPEST: Final[Mapping[str, str]] = {
    "openai": "gpt-6-luna",
    "anthropic": "claude-haiku-5-5",
    "gemini": "gemini-3.5-flash-lite",
    "openrouter": "openai/gpt-6-luna",
    "mistral": "mistral-small-latest",
    "groq": "openai/gpt-oss-20b",
    "deepseek": "deepseek-flash",
    "xai": "grok-4.7",
}


def example(provider: str) -> str:
    """A model of this provider, as `provider/model`."""
    return f"{provider}/{EXAMPLES[provider]}"
