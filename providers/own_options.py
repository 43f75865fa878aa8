"""How the options of one API (protocol/provider_options.py) are written: a table for each, and how they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from callboard.protocol.errors import UsageError
from callboard.protocol.provider_options import (
    AnthropicOptions,
    BedrockOptions,
    ExtraFields,
    GeminiOptions,
    OpenAIOptions,
    OpenRouterOptions,
    ProviderOptions,
)
from callboard.protocol.values import repr_without
from callboard.providers.json_values import Body

_Written = Callable[[object], object]


class OptionTable(Struct, frozen=True):
    """What one API takes."""

    api: str
    """Its name, for messages."""
    kind: type[ProviderOptions] | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    """Field -> its place in the body, as names with dots between them."""
    written: Mapping[str, _Written] = field(default_factory=dict)
    """Field -> its value as the API has it, where it is another one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Field -> the header that lists its names."""
    implied: Mapping[str, Callable[[object], Iterable[str]]] = field(default_factory=dict)
    """Field -> names of betas that its value needs."""
    in_place_of: Mapping[str, str] = field(default_factory=dict)
    """Field -> what is taken out of the body for it: it comes from a neutral option, and would contradict."""

    def takes(self, options: ProviderOptions) -> bool:
        return self.kind is not None and isinstance(options, self.kind)

    def missing(self, options: ProviderOptions) -> list[str]:
        """Fields that are set and that the API has not."""
        return [name for name in _given(options) if name not in self.places and name not in self.headers]


def _given(options: ProviderOptions) -> Iterable[str]:
    return (name for name in options.__struct_fields__ if getattr(options, name) not in (None, (), {}))


class OwnFields(Struct):
    """What the options of a request add to it."""

    body: Body = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """In the place of those of the same name."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    """Headers that list names: these are added."""
    taken_out: list[str] = field(default_factory=list)
    """Places in the body, as names with dots between them."""
    notes: list[str] = field(default_factory=list)

    __repr__ = repr_without("body", "headers")

    def in_body(self, body: Body) -> Body:
        """The body with them."""
        for place in self.taken_out:
            body = _without(body, place.split("."))
        return merged(body, self.body) if self.body else body

    def in_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers with them; their names are the same in any case."""
        mine = {name.lower() for name in self.headers}
        found = {name: text for name, text in headers.items() if name.lower() not in mine} | self.headers
        for listed, names in self.lists.items():
            there = [text for name, text in found.items() if name.lower() == listed]
            asked = [name.strip() for text in there for name in text.split(",") if name.strip()]
            found = {name: text for name, text in found.items() if name.lower() != listed}
            found[listed] = ",".join(dict.fromkeys([*asked, *names]))
        return found


def own_fields(table: OptionTable, provider: str, options: Sequence[ProviderOptions]) -> OwnFields:
    """What is sent to this provider, and a note on what is not: the options of other APIs, fields that it has not."""
    own = OwnFields()
    for each in sorted(options, key=lambda each: isinstance(each, ExtraFields)):  # those last
        kind = type(each).__name__
        if isinstance(each, ExtraFields):
            if each.provider in ("", provider):
                own.body = merged(own.body, each.body)
                own.headers.update(each.headers)
            else:
                own.notes.append(f"extra_body and extra_headers: they are for {each.provider}; left out")
        elif table.takes(each):
            _write(table, each, own)
            own.notes += [f"{kind}.{name}: {table.api} has none; left out" for name in table.missing(each)]
        else:
            own.notes.append(f"{kind}: they are of another API; left out")
    return own


def _write(table: OptionTable, options: ProviderOptions, own: OwnFields) -> None:
    for name in _given(options):
        value = getattr(options, name)
        if name in table.in_place_of:
            own.taken_out.append(table.in_place_of[name])
        if needed := table.implied.get(name):
            own.lists.setdefault(BETA_HEADER, []).extend(needed(value))
        if header := table.headers.get(name):
            own.lists.setdefault(header, []).extend(value)
        elif place := table.places.get(name):
            if write := table.written.get(name):
                value = write(value)
            for key in reversed(place.split(".")):
                value = {key: value}
            own.body = merged(own.body, value)


def merged(body: Mapping[str, object], more: Mapping[str, object]) -> Body:
    """Both: an object of `more` goes into the object of the same name, anything else takes its place."""
    result = dict(body)
    for name, value in more.items():
        there = result.get(name)
        result[name] = merged(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return result


def _without(body: Mapping[str, object], path: Sequence[str]) -> Body:
    first, *rest = path
    there = body.get(first)
    left = {name: value for name, value in body.items() if name != first}
    return {**left, first: _without(there, rest)} if rest and isinstance(there, Mapping) else left


def check_own(table: OptionTable, options: Iterable[ProviderOptions]) -> None:
    """Raise UsageError for an option of this API's kind that it has not."""
    for each in options:
        if table.takes(each) and (names := table.missing(each)):
            raise UsageError(f"provider_options: {type(each).__name__}.{names[0]}: {table.api} has none; leave it out")


def _thinking(value: object) -> object:
    return {"type": "enabled", "budget_tokens": value} if isinstance(value, int) else {"type": value}


#: platform.claude.com, "Context editing" and "Compaction": the beta of each kind of edit, by the beginning of its name.
_EDIT_BETAS: Final = {"clear_": "context-management-2025-06-27", "compact_": "compact-2026-01-12"}


def _context_betas(value: object) -> list[str]:
    edits = value.get("edits") if isinstance(value, Mapping) else None
    kinds = [str(edit.get("type")) for edit in edits or () if isinstance(edit, Mapping)]
    return [beta for begin, beta in _EDIT_BETAS.items() if any(kind.startswith(begin) for kind in kinds)]


def _settings(value: object) -> object:
    assert isinstance(value, Mapping)
    return [{"category": category, "threshold": threshold} for category, threshold in value.items()]


def _same(prefix: str, *names: str) -> dict[str, str]:
    return {name: f"{prefix}{name}" for name in names}


#: The names of features that are not in the API's stable version yet.
BETA_HEADER: Final = "anthropic-beta"
#: Of an adapter that has none of its own.
NO_OPTIONS: Final = OptionTable("this API")
_OPENAI: Final = _same(
    "", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "user", "metadata"
)  # fmt: skip
RESPONSES_OPTIONS: Final = OptionTable(
    "the Responses API",
    OpenAIOptions,
    {
        **_OPENAI,
        **_same("", "truncation", "max_tool_calls", "context_management"),
        "verbosity": "text.verbosity",
        "reasoning_summary": "reasoning.summary",
    },
)
CHAT_OPTIONS: Final = OptionTable(
    "Chat Completions",
    OpenAIOptions,
    {**_OPENAI, **_same("", "verbosity", "frequency_penalty", "presence_penalty", "logit_bias", "prediction")},
    {"prediction": lambda text: {"type": "content", "content": text}},
)
MESSAGES_OPTIONS: Final = OptionTable(
    "the Messages API",
    AnthropicOptions,
    {
        **_same("", "thinking", "top_k", "container", "context_management", "inference_geo", "speed"),
        "thinking_display": "thinking.display",
        "effort": "output_config.effort",
        "user_id": "metadata.user_id",
    },
    {"thinking": _thinking},
    {"betas": BETA_HEADER},
    {"context_management": _context_betas},
    {"thinking": "thinking"},
)
GEMINI_OPTIONS: Final = OptionTable(
    "Gemini",
    GeminiOptions,
    {
        "safety_settings": "safetySettings",
        "thinking_budget": "generationConfig.thinkingConfig.thinkingBudget",
        "thinking_level": "generationConfig.thinkingConfig.thinkingLevel",
        "include_thoughts": "generationConfig.thinkingConfig.includeThoughts",
        "top_k": "generationConfig.topK",
        "presence_penalty": "generationConfig.presencePenalty",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        "media_resolution": "generationConfig.mediaResolution",
        "cached_content": "cachedContent",
        "labels": "labels",
    },
    {"safety_settings": _settings},
    in_place_of=dict.fromkeys(("thinking_budget", "thinking_level"), "generationConfig.thinkingConfig"),
)
OPENROUTER_OPTIONS: Final = OptionTable(
    "OpenRouter",
    OpenRouterOptions,
    {
        **_same("", "models", "transforms", "plugins", "verbosity", "user"),
        **_same(
            "provider.", "order", "only", "ignore", "quantizations", "allow_fallbacks", "require_parameters", "sort",
            "data_collection", "zdr", "max_price",
        ),
        "exclude_reasoning": "reasoning.exclude",
    },
)  # fmt: skip
BEDROCK_OPTIONS: Final = OptionTable(
    "Bedrock Converse",
    BedrockOptions,
    {
        "guardrail_id": "guardrailConfig.guardrailIdentifier",
        "guardrail_version": "guardrailConfig.guardrailVersion",
        "latency": "performanceConfig.latency",
        "request_metadata": "requestMetadata",
        "model_fields": "additionalModelRequestFields",
    },
)
