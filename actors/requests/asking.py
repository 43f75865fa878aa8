"""What may be said with one question: the prompt, and the options in which it differs from the runtime's settings.

Nothing is sent before all of it has been read: what is wrong is a UsageError that names the option and what to do.
"""

from __future__ import annotations

import sys
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict, get_args

from msgspec.structs import asdict, replace

from callboard.actors.config_file import similar
from callboard.actors.requests.client_tools import CallResults, ClientTool
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.extra_fields import extra_fields
from callboard.actors.tools.invoke import safe_text
from callboard.protocol.codec import check_types
from callboard.protocol.content import Media, Text, UserMessage, UserPart
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import MAX_REQUEST_SECONDS
from callboard.protocol.model import (
    AudioOut,
    PromptCache,
    ResponseStorage,
    Sampling,
    ToolChoice,
    ToolChoiceMode,
    sampling_faults,
)
from callboard.protocol.options import RequestOptions
from callboard.protocol.policy import Mode
from callboard.protocol.provider_options import ProviderOptions
from callboard.protocol.server_tools import ServerToolOffer
from callboard.protocol.tools import wait_fault

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
else:
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

#: Entries and characters of a question's metadata: they go into log records and spans of each of its steps. OpenAI's
#: `metadata` has the same bounds (API reference: 16 pairs, keys of 64 characters, values of 512).
MAX_METADATA_ENTRIES: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_CHARS: Final = 512
#: Characters of a request's name, which is in each of its log records and spans.
MAX_REQUEST_ID_CHARS: Final = 256
#: Of a wrong value, in the message about it.
_MAX_VALUE_CHARS: Final = 100

Prompt = str | UserPart | Sequence[str | UserPart] | CallResults
"""A text, a part (an Image, a Document ...), or several of both in the order in which the model sees them; or, in place
of a question, the results of calls that a request has ended with."""


class AskOptions(TypedDict, total=False):
    """What one question may say besides its prompt. What it leaves out is as the runtime's Settings have it."""

    model: str
    """"provider/model", of any provider that the settings or the environment have a key for."""
    instructions: str
    """In place of those of the settings."""
    tools: Sequence[Callable[..., object] | str | ClientTool]
    """Exactly these are offered: names of the runtime's tools ("*": all of them), and tools or plain functions that
    only this question has; a ClientTool is run by the asker. () offers none."""
    sampling: Sampling
    """A field that is left out is as in Settings.sampling."""
    tool_choice: ToolChoice | str
    """"auto", "none", "required" or the name of a tool; the last two hold for the first step."""
    parallel_tool_calls: bool
    """May the model ask for several calls in one turn?"""
    timeout: float
    """Seconds from now to the end of the request, without those in which it only waits for approvals and for the
    results of deferred calls."""
    approval_timeout: float
    """Seconds for which a call waits for its approval; then it is denied."""
    mode: Mode | Literal["ask", "plan", "build"]
    """What the question is for: answers, plans or changes; in place of Settings.mode."""
    max_steps: int
    token_budget: int
    """Input and output tokens of all steps together."""
    cost_budget: float
    """US dollars of all steps together."""
    tools_budget_tokens: int
    """What the definitions of the tools may take; the model finds those beyond it by searching."""
    continue_cut_answers: int
    """How often at most an answer that was cut at the limit of output tokens is gone on with."""
    server_tools: Sequence[ServerToolOffer]
    """Tools that the provider runs itself: WebSearch(), CodeExecution() ..."""
    prompt_cache: PromptCache | str
    """"off", "5m" or "1h"."""
    storage: ResponseStorage
    """What a Responses API keeps of the answer."""
    service_tier: str
    images_out: bool
    """May the model answer with pictures?"""
    audio_out: AudioOut
    """The answer is to be spoken too."""
    provider_options: ProviderOptions | Sequence[ProviderOptions]
    """What only one API has: OpenAIOptions(...), AnthropicOptions(...) ..."""
    extra_body: Mapping[str, object]
    """Further fields for the model's provider, merged into the body of each request as they are."""
    extra_headers: Mapping[str, str]
    """Further headers for the model's provider."""
    metadata: Mapping[str, str]
    """Goes into log records and spans: at most 16 entries, keys of 64 and values of 512 characters."""
    conversation: Conversation
    """What was said before, and where the answer is recorded."""
    request_id: str
    """Names the request, so that it can be cancelled; "" makes one up."""


OPTIONS: Final = tuple(AskOptions.__annotations__)
#: What every model can be asked: the others are tried out before anything is sent.
OF_EVERY_API: Final = frozenset(
    (
        "model", "instructions", "tools", "timeout", "mode", "max_steps", "token_budget", "cost_budget", "prompt_cache",
        "continue_cut_answers", "tools_budget_tokens", "metadata", "conversation", "request_id",
    )
)  # fmt: skip


# -- the prompt


def user_message(prompt: Prompt) -> UserMessage:
    """The message that a prompt makes: one without parts of results. Raises UsageError for an empty one and for what is
    neither text nor part."""
    if isinstance(prompt, CallResults):
        return UserMessage(())
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("the question is empty; say what you want to know")
        return UserMessage((Text(sendable("the question", prompt)),))
    given = (prompt,) if isinstance(prompt, _PARTS) else prompt
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        said = wrong_calls.not_a_prompt(prompt)
        raise UsageError(f"the question must be a str, a part or a list of them, not {_a(prompt)}{said}")
    parts = tuple(_part(place, each) for place, each in enumerate(given))
    if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
        raise UsageError("the question is empty; say what you want to know")
    return UserMessage(parts)


_PARTS: Final = get_args(UserPart)
#: Characters, a multiple of four. Lines, of which base64 may be made for e-mail, are shorter.
_BASE64_LOOKED_AT: Final = 4_096


def _part(place: int, part: object) -> UserPart:
    if isinstance(part, str):
        part = Text(part)
    for kind in _PARTS:
        if isinstance(part, kind):
            found: UserPart = part
            if not isinstance(found, Text):
                _check_base64(place, found)
            check_types(found, kind, f"part {place} of the question, {kind.__name__}")
            if isinstance(found, Text):
                sendable(f"part {place} of the question", found.text)
            return found
    known = ", ".join(kind.__name__ for kind in _PARTS)
    said = wrong_calls.not_a_prompt(part)
    raise UsageError(f"part {place} of the question is {_a(part)}; it must be a str or one of {known}{said}")


def _check_base64(place: int, media: Media) -> None:
    """Raise UsageError for bytes as they are, a data: URL, a path ... by the beginning: all of a film takes 0.1 s."""
    data: object = media.data_base64
    try:
        if not isinstance(data, str) or len(data) % 4:
            raise ValueError
        a2b_base64(data[:_BASE64_LOOKED_AT], strict_mode=True)
    except ValueError:
        raise UsageError(
            f"part {place} of the question: data_base64 of {_a(media)} must be base64, as "
            "base64.b64encode(data).decode() gives it"
        ) from None


def sendable(what: str, text: str) -> str:
    """The text. Raises UsageError for half a surrogate pair, which no API can be sent."""
    if not text.isascii():  # at most: it takes a microsecond for 10,000 characters
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{what} holds {text[error.start]!r} at {error.start}, which is half a character and cannot be sent; "
                "decode the text as UTF-8"
            ) from None
    return text


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeio" else f"a {name}"


# -- the options


def check_names(options: Mapping[str, object]) -> None:
    """Raise UsageError for a keyword that is none of AskOptions."""
    for name in options:
        if name not in OPTIONS:
            known = (*OPTIONS, "output")
            hint = wrong_calls.meant(name, "question", known) or f"; known are: {wrong_calls.listed(known)}"
            raise UsageError(f"there is no option {name!r}{hint}")


def identity_of(options: AskOptions) -> tuple[str, Conversation]:
    """The request's name ("": none was given) and the conversation it belongs to. Raises UsageError."""
    request_id, conversation = options.get("request_id", ""), options.get("conversation")
    if not isinstance(request_id, str):
        raise UsageError(f"request_id must be a text, not {_a(request_id)}")
    if "/" in request_id:
        raise UsageError(f"the request id {request_id!r} has a slash in it; leave it out")
    if not request_id.isprintable() or len(request_id) > MAX_REQUEST_ID_CHARS:
        raise UsageError(f"request_id must be at most {MAX_REQUEST_ID_CHARS} characters that can be printed in a log")
    if conversation is None:
        return request_id, Conversation()
    if not isinstance(conversation, Conversation):
        raise UsageError(
            f"conversation must be a Conversation, not {_a(conversation)}; begin one with "
            "Conversation(), or take a kept one: runtime.journal.conversation(id)"
        )
    return request_id, conversation


def fields_of(options: Mapping[str, object], defaults: RequestOptions) -> dict[str, object]:
    """The fields of RequestOptions that these options set. Raises UsageError for a value that is none of its option."""
    found: dict[str, object] = {}
    for name, value in options.items():
        if (row := _READ.get(name)) is not None:
            field, read = row
            found[field] = read(name, value, defaults)
    if "extra_body" in options or "extra_headers" in options:
        provider = defaults.model.partition("/")[0]
        extra = extra_fields(options.get("extra_body", {}), options.get("extra_headers", {}), provider)
        typed = found.get("provider_options", defaults.provider_options)
        assert isinstance(typed, tuple)
        found["provider_options"] = (*typed, extra)
    return found


def check_choices(given: Mapping[str, object], options: RequestOptions, offered: Sequence[ToolName]) -> None:
    """Raise UsageError for options that contradict the tools that are `offered`."""
    choice = options.tool_choice
    if "tool_choice" in given and choice.mode is ToolChoiceMode.NAMED and choice.name not in offered:
        known = ", ".join(offered) or "none"
        hint = similar(str(choice.name), dict.fromkeys((*map(str, offered), *_MODES)))
        raise UsageError(f"tool_choice names {choice.name!r}, which is not offered{hint}; offered are: {known}")
    if "tool_choice" in given and (missing := [name for name in choice.allowed if name not in offered]):
        known = ", ".join(offered) or "none"
        raise UsageError(f"tool_choice allows {missing[0]!r}, which is not offered; offered are: {known}")
    if "tool_choice" in given and choice.mode is ToolChoiceMode.REQUIRED and not (offered or options.server_tools):
        raise UsageError("tool_choice is required, but no tool is offered; leave it out, or offer one with tools=[...]")
    storage = options.storage
    if storage is not None and storage.previous_response_id and offered and not (storage.store or storage.background):
        raise UsageError(
            "storage: with tools there are further steps, which go on from the answer before; add store=True, or offer "
            "no tools"
        )
    if "parallel_tool_calls" in given and not offered:
        raise UsageError("parallel_tool_calls is about tools, and none is offered; leave it out, or offer some")


def metadata_of(given: object) -> Mapping[str, str]:
    """Checked. Raises UsageError."""
    if not isinstance(given, Mapping):
        raise UsageError(f"metadata must be a mapping of texts to texts, not {_a(given)}")
    if len(given) > MAX_METADATA_ENTRIES:
        raise UsageError(f"metadata has {len(given)} entries; at most {MAX_METADATA_ENTRIES} go along")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"metadata must be texts by texts; the entry {key!r} is {_a(value)}")
        sendable("metadata", key + value)
        if not 0 < len(key) <= MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_CHARS:
            raise UsageError(
                f"the metadata {key[:MAX_METADATA_KEY_CHARS]!r} is too long: a key has 1 to {MAX_METADATA_KEY_CHARS} "
                f"characters, a value up to {MAX_METADATA_CHARS}"
            )
    return dict(given)


_Read = Callable[[str, object, RequestOptions], object]


def _text(name: str, value: object, _: RequestOptions) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text, not {_a(value)}")
    return sendable(name, value)


def _flag(name: str, value: object, _: RequestOptions) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r}")
    return value


def _amount(name: str, value: object, _: RequestOptions) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        unit = " (it is in seconds)" if name == "timeout" else ""
        raise UsageError(f"{name} must be a number above 0, not {safe_text(repr, value, _MAX_VALUE_CHARS)}{unit}")
    return value


def _seconds(name: str, value: object, defaults: RequestOptions) -> float:
    seconds = _amount(name, value, defaults)
    if seconds > MAX_REQUEST_SECONDS:
        raise UsageError(f"{name} must be at most {MAX_REQUEST_SECONDS:,.0f} (seconds, a year), not {seconds:g}")
    return seconds


def _wait(name: str, value: object, _: RequestOptions) -> float:
    if fault := wait_fault(name, value):
        raise UsageError(fault)
    assert isinstance(value, int | float)
    return value


def _count(name: str, value: object, _: RequestOptions) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number from 1 on, not {value!r}")
    return value


def _times(name: str, value: object, defaults: RequestOptions) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else _count(name, value, defaults)


def _sampling(name: str, value: object, defaults: RequestOptions) -> Sampling:
    if not isinstance(value, Sampling):
        raise UsageError(f"{name} must be a Sampling, not {_a(value)}; write Sampling(temperature=0.2)")
    if faults := sampling_faults(value):
        raise UsageError(f"{name}: {', '.join(faults)}")
    given = {name: found for name, found in asdict(value).items() if found not in (None, ())}
    return replace(defaults.sampling, **given)


def _choice(name: str, value: object, _: RequestOptions) -> ToolChoice:
    if isinstance(value, ToolChoice) and value.mode in _MODES.values():
        return value
    if isinstance(value, ToolChoice) and value.mode is ToolChoiceMode.NAMED and value.name:
        return value
    if not isinstance(value, str) or not value:
        raise UsageError(f'{name} must be "auto", "none", "required" or the name of a tool, not {value!r}')
    mode = _MODES.get(value)
    return ToolChoice(mode) if mode is not None else ToolChoice(ToolChoiceMode.NAMED, ToolName(value))


_MODES: Final = {str(mode): mode for mode in ToolChoiceMode if mode is not ToolChoiceMode.NAMED}


def _mode(name: str, value: object, _: RequestOptions) -> Mode:
    try:
        return Mode(str(value))
    except ValueError:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, map(str, Mode)))}, not {value!r}") from None


def _cache(name: str, value: object, _: RequestOptions) -> PromptCache:
    try:
        return PromptCache(str(value))
    except ValueError:
        raise UsageError(
            f"{name} must be one of {', '.join(map(repr, map(str, PromptCache)))}, not {value!r}"
        ) from None


def _instance(kind: type) -> _Read:
    def read(name: str, value: object, _: RequestOptions) -> object:
        if not isinstance(value, kind):
            raise UsageError(f"{name} must be {_a_kind(kind)}, not {_a(value)}")
        return value

    return read


def _a_kind(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


def _each(kinds: tuple[type, ...], *, is_one_enough: bool = False) -> _Read:
    """Several objects of these kinds, as a tuple."""

    def read(name: str, value: object, _: RequestOptions) -> object:
        given = (value,) if is_one_enough and isinstance(value, kinds) else value
        if not isinstance(given, Sequence) or isinstance(given, str):
            example = kinds[-1].__name__
            raise UsageError(f"{name} must be a list, not {_a(value)}; give objects such as {example}(...)")
        for each in given:
            if not isinstance(each, kinds):
                known = ", ".join(kind.__name__ for kind in kinds)
                what = f"the class {each.__name__}; write {each.__name__}(...)" if isinstance(each, type) else _a(each)
                raise UsageError(f"{name} takes {known}, not {what}")
        return tuple(given)

    return read


#: Option -> the field of RequestOptions that it sets, and what reads it. The others are not of the protocol.
_READ: Final[Mapping[str, tuple[str, _Read]]] = {
    "instructions": ("system_prompt", _text),
    "sampling": ("sampling", _sampling),
    "tool_choice": ("tool_choice", _choice),
    "parallel_tool_calls": ("parallel_tool_calls", _flag),
    "timeout": ("timeout_seconds", _seconds),
    "approval_timeout": ("approval_timeout_seconds", _wait),
    "mode": ("mode", _mode),
    "max_steps": ("max_steps", _count),
    "token_budget": ("token_budget", _count),
    "cost_budget": ("cost_budget", _amount),
    "tools_budget_tokens": ("tools_budget_tokens", _times),
    "continue_cut_answers": ("continue_cut_answers", _times),
    "server_tools": ("server_tools", _each(get_args(ServerToolOffer))),
    "prompt_cache": ("prompt_cache", _cache),
    "storage": ("storage", _instance(ResponseStorage)),
    "service_tier": ("service_tier", _text),
    "images_out": ("images_out", _flag),
    "audio_out": ("audio_out", _instance(AudioOut)),
    "provider_options": ("provider_options", _each(get_args(ProviderOptions), is_one_enough=True)),
}
