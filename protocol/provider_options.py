"""What may be asked of one provider's API beyond what all of them have. Each adapter writes those of its own API.

A field that is None (or empty) leaves the provider's default. The names are the APIs' own (types of the SDKs `openai`
3.54, `anthropic` 2.12 and `google-genai` 3.4; OpenRouter, "API Reference"; AWS, "Converse").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from callboard.protocol.values import Value, repr_without


class ExtraFields(Value, frozen=True):
    """Fields and headers that callboard does not know, as they are."""

    body: Mapping[str, object] = field(default_factory=dict)
    """Merged into the request's body last: an object into the object that is there, anything else in its place."""
    headers: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""
    """By its name; to any other one they are not sent. "": to all."""

    __repr__ = repr_without("headers")


class OpenAIOptions(Value, frozen=True):
    """For OpenAI's two APIs, and for servers that speak one of them."""

    verbosity: Literal["low", "medium", "high"] | None = None
    safety_identifier: str | None = None
    """A stable name of the end user, such as a hash, by which misuse is told apart."""
    prompt_cache_key: str | None = None
    """Requests with the same one are sent where the beginning of their prompt is cached."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    user: str | None = None
    """The older name of both keys; compatible servers know it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Kept with a stored answer, and shown in OpenAI's dashboard."""
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Responses only."""
    truncation: Literal["auto", "disabled"] | None = None
    """Responses only."""
    max_tool_calls: int | None = None
    """Calls of the server's own tools in one answer. Responses only."""
    context_management: tuple[Mapping[str, object], ...] = ()
    """How the server keeps a long conversation short: {"type": "compaction", "compact_threshold": 200_000}. What it
    makes of the beginning goes back with the history. Responses only."""
    frequency_penalty: float | None = None
    """Chat Completions only, and so the rest."""
    presence_penalty: float | None = None
    logit_bias: Mapping[str, int] = field(default_factory=dict)
    prediction: str | None = None
    """A text that much of the answer will be equal to."""


class AnthropicOptions(Value, frozen=True):
    """For the Messages API, also at Vertex AI."""

    betas: tuple[str, ...] = ()
    """Names for the header `anthropic-beta`."""
    thinking: Literal["adaptive", "disabled"] | int | None = None
    """A number is a budget in tokens. In place of what `Sampling.reasoning_effort` would set."""
    thinking_display: Literal["summarized", "omitted"] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    user_id: str | None = None
    """A stable name of the end user, such as a hash."""
    top_k: int | None = None
    container: str | None = None
    context_management: Mapping[str, object] = field(default_factory=dict)
    """{"edits": [{"type": "clear_tool_uses_20250919"}]}; the betas that its kinds need are asked for. What was cleared
    is noted."""
    inference_geo: str | None = None
    speed: Literal["standard", "fast"] | None = None


class GeminiOptions(Value, frozen=True):
    """For Gemini, at Google AI Studio and at Vertex AI."""

    safety_settings: Mapping[str, str] = field(default_factory=dict)
    """Thresholds by category: {"HARM_CATEGORY_HARASSMENT": "BLOCK_ONLY_HIGH"}."""
    thinking_budget: int | None = None
    """Tokens; -1: as the model likes. In place of what `Sampling.reasoning_effort` would set."""
    thinking_level: str | None = None
    include_thoughts: bool | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    media_resolution: str | None = None
    cached_content: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Vertex AI only, for its bills."""


class OpenRouterOptions(Value, frozen=True):
    """Which of OpenRouter's providers answer, and how."""

    order: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None
    """Only providers that understand every field of the request."""
    sort: Literal["price", "throughput", "latency"] | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    """Only providers that keep nothing."""
    max_price: Mapping[str, float] = field(default_factory=dict)
    """US dollars a million tokens, by "prompt" and "completion"."""
    models: tuple[str, ...] = ()
    """To be tried after the model of the question, by OpenRouter."""
    transforms: tuple[str, ...] = ()
    plugins: tuple[Mapping[str, object], ...] = ()
    verbosity: Literal["low", "medium", "high"] | None = None
    exclude_reasoning: bool | None = None
    user: str | None = None
    """A stable name of the end user."""


class BedrockOptions(Value, frozen=True):
    """For Converse."""

    guardrail_id: str | None = None
    guardrail_version: str | None = None
    latency: Literal["standard", "optimized"] | None = None
    request_metadata: Mapping[str, str] = field(default_factory=dict)
    model_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the model's own (additionalModelRequestFields)."""


ProviderOptions = ExtraFields | OpenAIOptions | AnthropicOptions | GeminiOptions | OpenRouterOptions | BedrockOptions
