"""What follows from a model's name, wherever it runs: what it wants back of its reasoning, and the options it refuses.

Rows are matched anywhere in the name, since hosts write one model in many ways: "deepseek-v4-pro",
"deepseek-ai/DeepSeek-V4-Pro", "accounts/fireworks/models/deepseek-v4-pro". Behind each row is where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.content import Replay
from callboard.protocol.model import ModelRequest, Sampling
from callboard.protocol.provider_options import AnthropicOptions, ExtraFields, OpenAIOptions, ProviderOptions


def _names(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# -- whose reasoning it is, and what a model wants back


class Family(Struct, frozen=True):
    """Models of one maker that take their own reasoning back as a text, unsigned."""

    name: str
    """As its maker's own provider is called, where callboard has one."""
    models: re.Pattern[str]
    wants_blank: bool = True
    """A turn that called tools is refused without the field, so that it is sent empty where there is no reasoning."""


#: The key of a replay's data that says whose the reasoning is, where the server alone does not.
FAMILY: Final = "family"
_DEEPSEEK: Final = Family(
    # api-docs.deepseek.com, "Thinking Mode": "the `reasoning_content` must be fully passed back to the API in all
    # subsequent requests" of turns with calls, else 400 "The `reasoning_content` in the thinking mode must be passed
    # back to the API." (earendil-works/pi#3636); V3.2: "Missing `reasoning_content` field in the assistant message"
    # (OpenHands/benchmarks#353). Without thinking it is ignored. Not R1, and not V3 before 3.2: the API of their time
    # answered 400 to the field, and their templates cut reasoning out.
    "deepseek",
    _names(r"deepseek[-_.]?(?:v(?:3[.p_-][2-9](?!\d)|[4-9]|\d\d)|chat|reasoner|flash|pro(?!ver))"),
)
_KIMI: Final = Family(
    # platform.moonshot.ai, "Use Kimi K2 Thinking Model"; 400 "thinking is enabled but reasoning_content is missing in
    # assistant tool call message at index 2" (MoonshotAI/kimi-cli#1616; behind OpenRouter: gptme/gptme#1187). Not the
    # first K2, which does not think.
    "moonshot",
    _names(
        r"kimi[-_]?(?:k2[-_]?thinking|k2[.p-]?[5-9](?!\d)|k[3-9]|latest|for|thinking)|(?:^|/)k(?:2[.p-]?[5-9]|3)(?!\d)"
    ),
)
_GLM: Final = Family(
    # docs.z.ai, "Thinking Mode": "thinking blocks should be explicitly preserved and returned together with the tool
    # results", since GLM-4.5.
    "zai",
    _names(r"(?<!chat)glm[-_.]?(?:4[.p-][5-9](?!b|\d)|[5-9]|\d\d)"),
)
_MIMO: Final = Family(
    # platform.xiaomimimo.com, "Passing back reasoning_content": 400 "The reasoning_content in the thinking mode must be
    # passed back to the API." (VicBilibily/GCMP#171)
    "xiaomi",
    _names(r"mimo[-_]v\d"),
)
_MINIMAX: Final = Family(
    # platform.minimax.io, "OpenAI API": "the complete model response must be appended"; nothing is refused.
    "minimax",
    _names(r"minimax[-_.]?m\d"),
    wants_blank=False,
)
_QWEN: Final = Family(
    # alibabacloud.com, "Deep thinking": `preserve_thinking`; templates of Qwen3 read it within a turn
    # (vllm-project/vllm PR 21655). Nothing is refused.
    "alibaba",
    _names(r"qwen[-_]?[3-9]|qwq|qwen-(?:plus|max|flash|turbo)"),
    wants_blank=False,
)
_FAMILIES: Final = (_DEEPSEEK, _KIMI, _GLM, _MIMO, _MINIMAX, _QWEN)


@lru_cache(maxsize=512)
def family_of(model: str) -> Family | None:
    """The family of a model that wants its own reasoning back; None: not known."""
    return next((family for family in _FAMILIES if family.models.search(model)), None)


def is_own(replay: Replay | None, origin: str, family: Family | None) -> bool:
    """May reasoning with this mark go to a model of this family behind the server `origin` as its own? That of the same
    model from any host, and what a client says without a mark; never that of another model."""
    if replay is None:
        return True
    told = replay.data.get(FAMILY)
    if told is not None and family is not None:
        return told == family.name
    if replay.origin == origin:
        return True
    return family is not None and replay.origin.removesuffix("-anthropic") == family.name


# -- when a model thinks


class Thinks(Enum):
    """When."""

    ASKED = auto()
    """If it is asked to."""
    UNLESS = auto()
    """Unless it is told not to."""
    ALWAYS = auto()


class ThinkingRule(Struct, frozen=True):
    """When the models of a row think."""

    models: re.Pattern[str]
    when: Thinks
    least: str = ""
    """The lowest effort, in place of "none" where it cannot be kept from thinking; "": none can be set."""


#: The first row that fits.
_THINKING: Final = (
    # API reference, "reasoning.effort": "All models before gpt-5.1 default to medium reasoning effort, and do not
    # support none. gpt-5-pro defaults to (and only supports) high", codex models none of "none"; gpt-5.1 to 5.4: none
    # by default. The chat models do not reason.
    ThinkingRule(_names(r"gpt-5(?:[.-]\d+)?-chat|gpt-oss"), Thinks.ASKED),
    ThinkingRule(_names(r"gpt-5-pro"), Thinks.ALWAYS, "high"),
    ThinkingRule(_names(r"gpt-5[.-]\d+-pro"), Thinks.ALWAYS, "medium"),
    ThinkingRule(_names(r"gpt-5.*-codex|(?:^|[/.])(?:codex|o[134](?:-|$))"), Thinks.ALWAYS, "low"),
    ThinkingRule(_names(r"gpt-5(?:-(?:mini|nano|\d{4})|$|[@:])"), Thinks.ALWAYS, "minimal"),
    ThinkingRule(_names(r"gpt-5[.-][1-4](?!\d)"), Thinks.ASKED),
    ThinkingRule(_names(r"gpt-(?:5[.-]\d+|[6-9]|\d\d)"), Thinks.UNLESS),
    # platform.claude.com, migration guides of Fable 5 and Opus 5.5: 400 `"thinking.type.disabled" is not supported for
    # this model`; Opus 5 thinks by default, and takes "disabled".
    ThinkingRule(
        _names(r"claude-(?:fable|mythos)|claude-[a-z]+-(?:5[-.][5-9](?!\d)|[6-9](?!\d))"), Thinks.ALWAYS, "low"
    ),
    ThinkingRule(_names(r"claude-[a-z]+-5(?!\d)"), Thinks.UNLESS),
    ThinkingRule(_names(r"claude"), Thinks.ASKED),
    # "Thinking Mode": on by default; deepseek-chat is the name of the mode without, deepseek-reasoner of that with.
    ThinkingRule(_names(r"deepseek-chat"), Thinks.ASKED),
    ThinkingRule(_names(r"deepseek-reasoner"), Thinks.ALWAYS),
    # Self-hosted V3.2 thinks if its template is told to (docs.sglang.io, "Reasoning Parser").
    ThinkingRule(_names(r"deepseek[-_.]?v3"), Thinks.ASKED),
    ThinkingRule(_DEEPSEEK.models, Thinks.UNLESS),
    # platform.kimi.ai, "Models overview"; K3 and K2.7 code always think (dev.to/aihubmix, "K3.1 Pro migration guide").
    ThinkingRule(_names(r"kimi[-_]?k[3-9]|(?:^|/)k3"), Thinks.ALWAYS, "low"),
    ThinkingRule(_names(r"kimi.*(?:thinking|k2[.p-]7)"), Thinks.ALWAYS),
    ThinkingRule(_KIMI.models, Thinks.UNLESS),
    # docs.z.ai, "Thinking Mode": by default from GLM-4.7 on, hybrid before; docs.together.ai, "GLM-5.3 quickstart":
    # "Thinking cannot be disabled entirely".
    ThinkingRule(_GLM.models, Thinks.UNLESS),
    ThinkingRule(_MIMO.models, Thinks.UNLESS),
    # java.agentscope.io, "MiniMax Model": "M2.x models keep thinking enabled even when disabled is requested".
    ThinkingRule(_names(r"minimax[-_.]?m2"), Thinks.ALWAYS),
    ThinkingRule(_names(r"minimax[-_.]?m[3-9]"), Thinks.UNLESS),
    # alibabacloud.com, "Deep thinking": on by default for Qwen3.5 and later and for the open Qwen3; QwQ and the
    # "thinking" ones always, "instruct" ones never.
    ThinkingRule(_names(r"qwq|qwen3.*-thinking"), Thinks.ALWAYS),
    ThinkingRule(_names(r"qwen[-_]?3[.p-]?[5-9](?!\d)|qwen3-\d+\.?\d*b(?!.*instruct)"), Thinks.UNLESS),
)  # fmt: skip


@lru_cache(maxsize=512)
def thinking_of(model: str) -> ThinkingRule | None:
    """When this model thinks; None: not known."""
    return next((rule for rule in _THINKING if rule.models.search(model)), None)


def told_to_think(request: ModelRequest) -> bool | None:
    """What the request says about thinking, by its effort or in the API's own words; None: nothing."""
    if (effort := request.sampling.reasoning_effort) is not None:
        return effort != "none"
    for options in request.provider_options:
        if isinstance(options, AnthropicOptions) and options.thinking is not None:
            return options.thinking != "disabled"
        if isinstance(options, ExtraFields) and (told := _told_in(options.body)) is not None:
            return told
    return None


def _told_in(body: Mapping[str, object]) -> bool | None:
    """What fields of other APIs' own say: `thinking`, `enable_thinking`, `reasoning`, `chat_template_kwargs`."""
    for name in ("chat_template_kwargs", "reasoning", "thinking"):
        if isinstance(inner := body.get(name), Mapping):
            if "type" in inner or "effort" in inner:
                return inner.get("type", inner.get("effort")) not in ("disabled", "none")
            if (told := _told_in(inner)) is not None:
                return told
    flags = (body.get(name) for name in ("enable_thinking", "thinking", "enabled"))
    return next((flag for flag in flags if isinstance(flag, bool)), None)


def thinks(request: ModelRequest) -> bool:
    """Will the model think?"""
    rule = thinking_of(request.model)
    if rule is not None and rule.when is Thinks.ALWAYS:
        return True
    told = told_to_think(request)
    return told if told is not None else rule is not None and rule.when is Thinks.UNLESS


# -- options that a model refuses


class RefusedOptions(Struct, frozen=True):
    """Options that the models of a row refuse: fields of Sampling, and of the options of one API. Their usual values
    are taken everywhere (`_USUAL`)."""

    models: re.Pattern[str]
    options: tuple[str, ...]
    beside: str = ""
    """Only beside this one."""
    thinking: bool = False
    """Only while it thinks."""
    at: str = ""
    """Only there: the server refuses them, not the model."""


#: Values that change nothing: "denied on 'o' reasoning models unless exactly 1" (community.openai.com, 1357054).
_USUAL: Final[Mapping[str, float]] = {
    "temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0,
}  # fmt: skip
_PENALTIES: Final = ("frequency_penalty", "presence_penalty")
_REFUSED: Final = (
    # Guide "Using GPT-5.2": temperature, top_p and logprobs only with effort none, else an error, and so with older
    # GPT-5 models; guide "Reasoning" of the o-series: the penalties and logit_bias too. 400 "Unsupported parameter:
    # 'temperature' is not supported with this model." (OpenHands/software-agent-sdk#1837)
    RefusedOptions(
        _names(r"(?:^|[/.])(?:gpt-(?:[5-9]|\d\d)(?!(?:[.-]\d+)?-chat)|o[134](?:-|$)|codex)"),
        ("temperature", "top_p", "logprobs", *_PENALTIES, "logit_bias"),
        thinking=True,
    ),
    # API reference, `stop`: "Not supported with latest reasoning models o3 and o4-mini."
    RefusedOptions(_names(r"(?:^|[/.])(?:o[34](?:-|$)|gpt-5(?!(?:[.-]\d+)?-chat))"), ("stop",), thinking=True),
    # platform.claude.com, release notes of Opus 4.1; 400 "`temperature` and `top_p` cannot both be specified for this
    # model. Please use only one." (skydiscover-ai/skydiscover#15, Vali-98/ChatterUI#564)
    RefusedOptions(_names(r"claude-[a-z]+-4[-.][1-6](?!\d)"), ("top_p",), beside="temperature"),
    # Claude 4.7 and later: 400 "`temperature` is deprecated for this model" (jin-bo/agentao PR 296; openrouter.ai,
    # "Claude 5.5": "Non-default temperature, top_p, and top_k are not supported").
    RefusedOptions(
        _names(r"claude-(?:fable|mythos)|claude-[a-z]+-(?:4[-.](?:[7-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))"),
        ("temperature", "top_p", "top_k"),
    ),
    # platform.kimi.ai, "Models overview": fixed for kimi-k2.5 and later; 400 "invalid temperature: only 1 is allowed
    # for this model" (Warma10032/VideoAdGuard#34), "invalid top_p: only 0.95" (CherryHQ/cherry-studio#12691).
    RefusedOptions(
        _names(r"kimi-(?:k2[.p-]?[5-9](?!\d)|k[3-9]|for|latest)|^k[23]"),
        ("temperature", "top_p", *_PENALTIES),
        at="moonshot",
    ),
    # docs.x.ai, "Reasoning": "presencePenalty, frequencyPenalty and stop parameters are not supported by reasoning
    # models"; grok-4 has no reasoning_effort.
    RefusedOptions(_names(r"grok-(?:3-mini|4(?!.*non-reasoning)|code)"), ("stop", *_PENALTIES)),
    RefusedOptions(_names(r"grok-(?:4(?:-0709|-latest|$)|4-fast|code)"), ("reasoning_effort",)),
)


@lru_cache(maxsize=512)
def _refused_by(model: str) -> tuple[RefusedOptions, ...]:
    return tuple(row for row in _REFUSED if row.models.search(model))


def fitted(request: ModelRequest, server: str) -> tuple[ModelRequest, list[str]]:
    """The request without what its model refuses, and a note on each option that was left out."""
    notes: list[str] = []
    rule = thinking_of(request.model)
    if request.sampling.reasoning_effort == "none" and rule is not None and rule.when is Thinks.ALWAYS:
        sent = f"sent as {rule.least!r}" if rule.least else "left out"
        notes.append(f"reasoning_effort 'none': {request.model} cannot be kept from thinking; {sent}")
        request = replace(request, sampling=replace(request.sampling, reasoning_effort=rule.least or None))
    for row in _refused_by(request.model):
        if (row.at and row.at != server) or (row.thinking and not thinks(request)):
            continue
        if row.beside and getattr(request.sampling, row.beside) is None:
            continue
        why = f" beside {row.beside}" if row.beside else " while it thinks" if row.thinking else ""
        request, left_out = _without(request, row.options)
        notes += [f"{name}: {request.model} takes none{why}; left out" for name in left_out]
    return request, notes


def is_bare(sampling: Sampling) -> bool:
    """Is nothing set that any model refuses? So it is in most requests."""
    return (
        sampling.temperature is None
        and sampling.top_p is None
        and sampling.reasoning_effort is None
        and sampling.logprobs is None
        and not sampling.stop
    )


def _without(request: ModelRequest, names: Iterable[str]) -> tuple[ModelRequest, list[str]]:
    left_out: list[str] = []
    sampling = request.sampling
    options: list[ProviderOptions] = list(request.provider_options)
    for name in names:
        sampling, found = _emptied(sampling, name)
        for place, each in enumerate(options):
            if isinstance(each, OpenAIOptions | AnthropicOptions):
                options[place], is_there = _emptied(each, name)
                found = found or is_there
        if found:
            left_out.append(name)
    if not left_out:
        return request, left_out
    return replace(request, sampling=sampling, provider_options=tuple(options)), left_out


_NOT_SET: Final[tuple[object, ...]] = (None, (), {})
_S = TypeVar("_S", bound=Struct)


def _emptied(options: _S, name: str) -> tuple[_S, bool]:
    value = getattr(options, name, None)
    if value in _NOT_SET or (name in _USUAL and value == _USUAL[name]):
        return options, False
    empty: object = () if isinstance(value, tuple) else {} if isinstance(value, Mapping) else None
    return replace(options, **{name: empty}), True


# -- forced calls


class ForcedCalls(Struct, frozen=True):
    """Models that take no forced call while they think."""

    models: re.Pattern[str]
    named: bool = False
    """Only a call of a named tool is refused."""
    at: str = ""
    """Only there."""


_NO_FORCED_CALLS: Final = (
    # "Thinking mode does not support this tool_choice" (deepseek-ai/DeepSeek-V3#1376, BerriAI/litellm PR 37470): with
    # thinking disabled both forms are taken.
    ForcedCalls(_DEEPSEEK.models),
    # "tool_choice 'specified' is incompatible with thinking enabled"; K3 takes "required"
    # (UKGovernmentBEIS/inspect_ai PR 5152, can1357/oh-my-pi#1077 and PR 5994).
    ForcedCalls(_names(r"kimi[-_]?k[3-9]|(?:^|/)k3"), named=True),
    ForcedCalls(_KIMI.models),
    # "The tool_choice parameter does not support being set to required or object in thinking mode"
    # (cloudwego/eino#994); other servers of the same models force a call by a grammar.
    ForcedCalls(_QWEN.models, at="alibaba"),
    # platform.claude.com, "Extended thinking": "Thinking isn't compatible with forced tool use"; Opus 5.5 and Fable
    # 5.1, which always think: 400.
    ForcedCalls(_names("claude")),
)


@lru_cache(maxsize=512)
def forced_calls_of(model: str) -> ForcedCalls | None:
    """The row of this model; None: it takes forced calls at any time."""
    return next((row for row in _NO_FORCED_CALLS if row.models.search(model)), None)
