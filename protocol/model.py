"""What a model is asked and what it answers, in no provider's words: requests, stream events, and whole turns.

The stream events are the one language into which all providers are translated; a whole response is a collected stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import add
from typing import Final

import msgspec
from msgspec.structs import astuple, replace

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Audio,
    Citation,
    Document,
    Image,
    Message,
    Replay,
    Text,
    Thinking,
    ToolCall,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.provider_options import ProviderOptions
from callboard.protocol.server_tools import ServerToolOffer
from callboard.protocol.tools import ToolDefinition, ToolSearch
from callboard.protocol.values import Value


class CallPurpose(StrEnum):
    """What a model call is for. The answer to any but a turn is no part of the conversation, and is not streamed."""

    TURN = "turn"
    """The next turn of the conversation."""
    SUMMARY = "summary"
    """A summary of earlier messages (compaction.py)."""
    SEARCH_WORDS = "search_words"
    """Further words to search by (search_words.py)."""


class FinishReason(StrEnum):
    """Why a turn ended. The provider's own word is kept beside it as `raw_finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE = "pause_turn"
    """The provider wants the turn sent back as it is, and goes on (Anthropic server tools)."""
    ERROR = "error"
    OTHER = "other"


#: A turn that was stopped so is no answer, and asks for nothing: its calls are not run.
STOPPED_REASONS: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL})


class Usage(Value, frozen=True):
    """Tokens of one model call, or of several added up."""

    input_tokens: int = 0
    """Includes cached tokens, for every provider."""
    output_tokens: int = 0
    """Includes reasoning tokens, for every provider."""
    cached_tokens: int = 0
    """Input tokens read from the provider's cache."""
    cache_write_tokens: int = 0
    """Input tokens written to it."""
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Of the written ones, those kept for an hour: they cost more than those kept for minutes."""
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0
    web_searches: int = 0
    """Searches by the provider's own tool, which are billed by their number."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, counts_of(self), counts_of(other)))

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


#: All counts of a usage, in the order of its fields.
counts_of: Final[Callable[[Usage], tuple[int, ...]]] = astuple


#: The logarithm of a probability of zero, which JSON cannot hold: OpenAI's number (API reference, `logprobs`: "the
#: value -9999.0 is used to signify that the token is very unlikely").
NEVER_LIKELY: Final = -9999.0


class TokenLogprob(Value, frozen=True):
    """How likely a token of the answer was: natural logarithms."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens in this place, as many as were asked for."""


class TextDelta(Value, frozen=True):
    """A piece of the answer."""

    text: str
    block: int = 0
    """Deltas of one kind that follow each other with the same `block` are one part."""
    replay: Replay | None = None


class ThinkingDelta(Value, frozen=True):
    """A piece of reasoning; its `replay` (a signature or opaque data, last one wins) may come with empty text."""

    text: str
    block: int = 0
    replay: Replay | None = None


class CitationDelta(Value, frozen=True):
    """What the text of this `block` rests on; may come before, between and behind its pieces. A place counts from the
    beginning of the block, also where other parts have come between its pieces."""

    citations: tuple[Citation, ...]
    block: int = 0


class ReplayDelta(Value, frozen=True):
    """What must go back with the last text or thinking of this `block`, where other parts have followed that by now."""

    replay: Replay
    block: int = 0


class MediaDelta(Value, frozen=True):
    """A picture, sound or file of the answer, or a piece of one: the bytes of pieces that follow each other with the
    same `block` are one part. Each piece's base64 can be decoded by itself."""

    media: Image | Audio | Document
    block: int = 0


class ToolCallStart(Value, frozen=True):
    """The model begins a call; its arguments follow in deltas."""

    id: CallId
    name: ToolName
    replay: Replay | None = None


class ToolCallDelta(Value, frozen=True):
    """A piece of a call's arguments, as JSON text."""

    id: CallId
    args_delta: str


class ToolCallComplete(Value, frozen=True):
    """The provider finished this call. A call without it was cut off and is never run (I12)."""

    id: CallId


class ServerToolEvent(Value, frozen=True):
    """A block of a tool which the provider runs itself: shown, replayed, never run by us. Fields as in ServerTool."""

    kind: str
    replay: Replay
    name: str = ""
    call_id: str = ""
    text: str = ""
    found: tuple[str, ...] = ()


class Restarted(Value, frozen=True):
    """Everything emitted so far is void: the provider, or our retry, began the turn again, or the finished answer says
    otherwise than what was streamed; the turn follows from its beginning."""

    reason: str


class Done(Value, frozen=True):
    """The turn ended in good order. Exactly one Done or Error ends a stream."""

    finish_reason: FinishReason
    raw_finish_reason: str = ""
    usage: Usage | None = None
    """None where the provider did not say, or what cannot be true."""
    raw_usage: Mapping[str, object] = msgspec.field(default_factory=dict)
    model: str = ""
    """The model that answered, as the provider names it; may differ from the one asked."""
    notes: tuple[str, ...] = ()
    """What the provider's API could not express of the request, or this one could not keep of the answer."""
    response_id: str = ""
    """The provider's id of the answer."""
    provider_request_id: str = ""
    """The provider's id of the HTTP request, for its support."""
    service_tier: str = ""
    """In which of its tiers the provider served the request, in its own word."""
    logprobs: tuple[TokenLogprob, ...] = ()


class Error(Value, frozen=True):
    """The turn failed, or the stream was cut. What was emitted before it is incomplete."""

    kind: ErrorKind
    message: str
    retryable: bool = False
    retry_after: float | None = None
    """Seconds to wait, where the provider said so."""
    raw: str = ""
    """A bounded snippet of what the provider sent; never holds a secret of ours."""
    status: int = 0
    """The HTTP status, 0 where there was none."""
    code: str = ""
    """The provider's own error code."""
    at_once: bool = False
    """The next try needs no pause: what failed has been put right (a kept connection was closed, a token renewed)."""
    notes: tuple[str, ...] = ()
    """What the provider's API could not express of the request."""
    provider_request_id: str = ""
    """The provider's id of the HTTP request, for its support."""
    context_tokens: int | None = None
    """How many tokens the model takes, where the error names it (CONTEXT_LENGTH)."""


StreamEvent = (
    TextDelta
    | ThinkingDelta
    | CitationDelta
    | ReplayDelta
    | MediaDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallComplete
    | ServerToolEvent
    | Restarted
    | Done
    | Error
)


class ToolChoiceMode(StrEnum):
    """May the model call tools, and must it?"""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


class ToolChoice(Value, frozen=True):
    """Whether, and which, tool must be called."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: ToolName | None = None
    """The tool that must be called, with `NAMED`."""
    allowed: tuple[ToolName, ...] = ()
    """Of the tools on offer, those that may be called; (): all. The others stay in the prompt where the API can be told
    so, which keeps it in the provider's cache; else only these are offered."""

    def among(self, shown: Sequence[ToolName], always: Sequence[ToolName] = ()) -> ToolChoice:
        """The choice where these tools are shown; `always` may be called too, where they are."""
        if not self.allowed:
            return self
        left = tuple(name for name in shown if name in self.allowed or name in always)
        if left:
            return replace(self, allowed=left)
        return ToolChoice(ToolChoiceMode.NONE if shown else ToolChoiceMode.AUTO)


class Sampling(Value, frozen=True):
    """Knobs of generation; None leaves the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: str | None = None
    """"none", "minimal", "low", "medium" or "high"; each adapter maps it to its API's budget or level."""
    logprobs: int | None = None
    """Log probabilities of each token of the answer, and of so many others in its place (0 to 20)."""


#: What APIs take, by field: OpenAI, Gemini and OpenRouter document 0 to 2 for the temperature (Anthropic 0 to 1, and
#: says so itself); a seed is a 64-bit integer everywhere.
_SAMPLING_RANGES: Final = (
    ("temperature", 0, 2, (int, float)),
    ("top_p", 0, 1, (int, float)),
    ("max_output_tokens", 1, MAX_CALL_TOKENS, (int,)),
    ("seed", -(2**63), 2**63 - 1, (int,)),
    ("logprobs", 0, 20, (int,)),
)


def sampling_faults(sampling: Sampling) -> list[str]:
    """One sentence for each field that no API takes, with its name; empty when all can be sent."""
    faults = []
    for name, least, most, types in _SAMPLING_RANGES:
        value = getattr(sampling, name)
        if value is not None and (type(value) not in types or not least <= value <= most):
            what = "a whole number" if types == (int,) else "a number"
            faults.append(f"{name} must be {what} from {least} to {most}, got {value!r}")
    if not isinstance(sampling.stop, tuple) or not all(isinstance(text, str) and text for text in sampling.stop):
        faults.append(f"stop must be a tuple of texts, none of them empty, got {sampling.stop!r}")
    effort = sampling.reasoning_effort
    if effort is not None and (not isinstance(effort, str) or not effort):
        faults.append(f'reasoning_effort must be a word such as "low", "medium" or "high", got {effort!r}')
    return faults


class PromptCache(StrEnum):
    """How long a provider keeps the beginning of a prompt for the next request, where it must be asked to."""

    OFF = "off"
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"
    """Writing costs more (Anthropic: twice the price of input, against 1.25 times)."""


@dataclass(frozen=True, slots=True)
class ResponseStorage:
    """What the provider keeps of an answer. Only the Responses API can."""

    store: bool = False
    previous_response_id: str = ""
    """Of the last turn of the model's in the messages, which was stored: only what follows it is sent."""
    background: bool = False
    """The provider works on it without a connection; it is asked until the answer is whole. Stores the answer."""


class AudioOut(Value, frozen=True):
    """An answer that is spoken too, in the provider's words."""

    voice: str = "alloy"
    format: str = "wav"


class ModelRequest(Value, frozen=True):
    """One model call. An adapter's `encode` turns it into bytes; it repairs nothing silently."""

    model: str
    """The provider's name of the model, without the `provider/` prefix."""
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    response_schema: Mapping[str, object] | None = None
    """JSON Schema that the answer must follow (structured output)."""
    sampling: Sampling = Sampling()
    stream: bool = True
    provider_options: tuple[ProviderOptions, ...] = ()
    """What only one API has, merged into the body last. What is for other APIs is left out, with a note."""
    server_tools: tuple[ServerToolOffer, ...] = ()
    """Tools that the provider runs itself. UsageError where it has none of that kind."""
    prompt_cache: PromptCache = PromptCache.FIVE_MINUTES
    storage: ResponseStorage | None = None
    service_tier: str = ""
    """In which of its tiers the provider is to serve the request, in its own word; "": its default."""
    images_out: bool = False
    """May the model answer with pictures?"""
    audio_out: AudioOut | None = None
    tool_search: ToolSearch | None = None
    """What the model can find besides `tools`; for an API that searches itself."""
    is_last_try: bool = False
    """No other request may follow where this one fails: it is not sent over a connection that may be closed."""


class ModelResponse(Value, frozen=True):
    """One finished turn: the collected stream."""

    parts: tuple[AssistantPart, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    raw_finish_reason: str = ""
    usage: Usage | None = None
    """None where it is not known."""
    raw_usage: Mapping[str, object] = msgspec.field(default_factory=dict)
    error: Error | None = None
    model: str = ""
    notes: tuple[str, ...] = ()
    """What the provider's API could not express of the request, or this one could not keep of the answer."""
    response_id: str = ""
    """The provider's id of the answer."""
    provider_request_id: str = ""
    """The provider's id of the HTTP request, for its support."""
    service_tier: str = ""
    """In which of its tiers the provider served the request, in its own word."""
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """All text parts, joined without separator."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def thinking(self) -> str:
        """All thinking parts, joined without separator."""
        return "".join(part.text for part in self.parts if isinstance(part, Thinking))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if type(part) is ToolCall])

    @property
    def message(self) -> AssistantMessage:
        """The turn as it is in the history."""
        return AssistantMessage(self.parts)
