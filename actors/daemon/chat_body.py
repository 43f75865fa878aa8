"""A body of Chat Completions, read (OpenAI, API reference, "Create chat completion"; types of the SDK 3.54).

docs/endpoints.md lists every field: taken, ignored, refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Final, Literal

from msgspec.structs import replace
from pydantic import Field

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.daemon.body_models import ApiBody, ModelField, RunTools, ToolNameField, read_body
from callboard.actors.daemon.client_media import file_of, image_of, sound_of, video_of
from callboard.actors.daemon.client_question import AnswerFormat, ClientQuestion, checked_messages
from callboard.actors.requests.asking import AskOptions
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Document,
    Message,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.model import Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import OpenAIOptions
from callboard.protocol.tools import ToolDefinition

# -- messages


class _TextPart(ApiBody):
    type: Literal["text"]
    text: str


class _RefusalPart(ApiBody):
    type: Literal["refusal"]
    refusal: str


class _Address(ApiBody):
    url: str


class _ImagePart(ApiBody):
    type: Literal["image_url"]
    image_url: _Address


class _VideoPart(ApiBody):
    type: Literal["video_url"]
    video_url: _Address


class _Sound(ApiBody):
    data: str
    format: str


class _AudioPart(ApiBody):
    type: Literal["input_audio"]
    input_audio: _Sound


class _File(ApiBody):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _FilePart(ApiBody):
    type: Literal["file"]
    file: _File


_UserPart = Annotated[_TextPart | _ImagePart | _VideoPart | _AudioPart | _FilePart, Field(discriminator="type")]
_AnswerPart = Annotated[_TextPart | _RefusalPart, Field(discriminator="type")]


class _System(ApiBody):
    role: Literal["system", "developer"]
    content: str | list[_TextPart]


class _User(ApiBody):
    role: Literal["user"]
    content: str | list[_UserPart]


class _Function(ApiBody):
    name: str
    arguments: str


class _Call(ApiBody):
    type: Literal["function"] = "function"
    id: str
    function: _Function


class _Assistant(ApiBody):
    role: Literal["assistant"]
    content: str | list[_AnswerPart] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Result(ApiBody):
    role: Literal["tool"]
    tool_call_id: str
    content: str | list[_TextPart]


_Said = Annotated[_System | _User | _Assistant | _Result, Field(discriminator="role")]

# -- the rest


class _Declared(ApiBody):
    name: ToolNameField
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class _Tool(ApiBody):
    type: Literal["function"]
    function: _Declared


class _Named(ApiBody):
    name: str


class _NamedTool(ApiBody):
    type: Literal["function"]
    function: _Named


class _Schema(ApiBody):
    name: ToolNameField = "answer"
    schema_: dict[str, object] = Field(default_factory=dict, alias="schema")


class _AnyText(ApiBody):
    type: Literal["text"]


class _AnyObject(ApiBody):
    type: Literal["json_object"]


class _BySchema(ApiBody):
    type: Literal["json_schema"]
    json_schema: _Schema


class _StreamOptions(ApiBody):
    include_usage: bool | None = None


class ChatBody(ApiBody):
    """What is read of a request. Fields that are not here are ignored, or refused by name (REFUSED)."""

    model: ModelField = None
    messages: list[_Said] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[_AnyText | _AnyObject | _BySchema, Field(discriminator="type")] | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_CALL_TOKENS)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_CALL_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, int] | None = None
    reasoning_effort: str | None = Field(default=None, min_length=1)
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: dict[str, str] | None = None
    n: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: dict[str, object] | None = None
    functions: list[object] | None = None
    function_call: object = None
    web_search_options: dict[str, object] | None = None
    callboard: RunTools | None = None


#: Fields that would change the answer and are not done here: what says so, by the field.
REFUSED: Final = {
    "logprobs": "log probabilities are not given here; leave logprobs out",
    "top_logprobs": "log probabilities are not given here; leave top_logprobs out",
    "audio": "answers are text here; leave audio out",
    "functions": "functions was replaced by tools; send tools",
    "function_call": "function_call was replaced by tool_choice; send tool_choice",
    "web_search_options": "the search of the model's server is not offered here; declare a tool, or leave it out",
}
#: Tiers that are the provider's default.
_USUAL_TIERS: Final = ("auto", "default")


def chat_question(body: bytes) -> ClientQuestion:
    """The question that a body asks. Raises ApiError (400), naming the field."""
    read = read_body(ChatBody, body)
    _refuse(read)
    messages = tuple(_messages(read.messages))
    leading = tuple(takewhile(lambda each: isinstance(each, SystemMessage), messages))
    instructions = "\n\n".join(each.text for each in leading if isinstance(each, SystemMessage))
    return ClientQuestion(
        read.model,
        checked_messages(messages[len(leading) :]),
        instructions if leading else None,
        tuple(_tool(each.function) for each in read.tools or ()),
        None if read.callboard is None or read.callboard.tools is None else tuple(read.callboard.tools),
        _options(read),
        _by_provider(read),
        _format(read),
        bool(read.stream),
        bool(read.stream_options and read.stream_options.include_usage),
    )


def _refuse(read: ChatBody) -> None:
    for name, why in REFUSED.items():
        if getattr(read, name) not in (None, False):
            raise bad_field(name, why)
    if read.n not in (None, 1):
        raise bad_field("n", f"n is {read.n}: one answer is given here; leave n out, or ask {read.n} times")
    if read.modalities is not None and read.modalities != ["text"]:
        raise bad_field("modalities", 'answers are text here; leave modalities out, or send ["text"]')


# -- messages


def _messages(said: Sequence[_Said]) -> Iterator[Message]:
    for place, message in enumerate(said):
        if isinstance(message, _System):
            yield SystemMessage(_text(message.content, "\n\n"))
        elif isinstance(message, _User):
            yield UserMessage(tuple(_user_parts(message.content, f"messages.{place}.content")))
        elif isinstance(message, _Assistant):
            yield AssistantMessage(tuple(_turn(message)))
        else:
            yield ToolMessage(CallId(message.tool_call_id), ToolName(""), _text(message.content, "\n"))


def _text(content: str | list[_TextPart], between: str) -> str:
    return content if isinstance(content, str) else between.join(part.text for part in content)


def _user_parts(content: str | list[_UserPart], param: str) -> Iterator[UserPart]:
    if isinstance(content, str):
        yield Text(content)
        return
    for place, part in enumerate(content):
        yield _user_part(part, f"{param}.{place}")


def _user_part(part: _UserPart, param: str) -> UserPart:
    match part:
        case _TextPart():
            return Text(part.text)
        case _ImagePart():
            return image_of(part.image_url.url, f"{param}.image_url.url")
        case _VideoPart():
            return video_of(part.video_url.url, f"{param}.video_url.url")
        case _AudioPart():
            return sound_of(part.input_audio.data, part.input_audio.format, f"{param}.input_audio.data")
    given = part.file
    if given.file_id:
        return Document(file_id=given.file_id, name=given.filename or "")
    if not given.file_data:
        raise bad_field(f"{param}.file", f"{param}.file needs file_data or file_id")
    return file_of(given.file_data, given.filename or "", f"{param}.file.file_data")


def _turn(message: _Assistant) -> Iterator[AssistantPart]:
    if message.reasoning_content:
        yield Thinking(message.reasoning_content)
    if isinstance(message.content, str):
        if message.content or not message.tool_calls:
            yield Text(message.content)
    else:
        for part in message.content or ():
            yield Text(part.text if isinstance(part, _TextPart) else part.refusal)
    if message.refusal:
        yield Text(message.refusal)
    for call in message.tool_calls or ():
        yield ToolCall(CallId(call.id), ToolName(call.function.name), call.function.arguments or "{}")


# -- the rest


def _tool(declared: _Declared) -> ToolDefinition:
    parameters = declared.parameters or {"type": "object", "properties": {}}
    name, about = ToolName(declared.name), declared.description or ""
    return ToolDefinition(name, about, parameters, bool(declared.strict))


def _format(read: ChatBody) -> AnswerFormat | None:
    match read.response_format:
        case _BySchema(json_schema=given):
            return AnswerFormat(given.schema_ or {"type": "object"}, given.name)
        case _AnyObject():
            return AnswerFormat({"type": "object"})
    return None


def _options(read: ChatBody) -> AskOptions:
    stop = (read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ())
    if not all(stop):
        raise bad_field("stop", "stop must be a text, or a list of texts, none of them empty")
    options = AskOptions(
        sampling=Sampling(
            temperature=read.temperature,
            top_p=read.top_p,
            max_output_tokens=read.max_completion_tokens or read.max_tokens,
            stop=stop,
            seed=read.seed,
            reasoning_effort=read.reasoning_effort,
        )
    )
    if read.tool_choice is not None and (read.tools or read.tool_choice != "auto"):
        options["tool_choice"] = _choice(read.tool_choice)
    if read.parallel_tool_calls is not None and read.tools:
        options["parallel_tool_calls"] = read.parallel_tool_calls
    if read.metadata:
        options["metadata"] = read.metadata
    if read.service_tier and read.service_tier not in _USUAL_TIERS:
        options["service_tier"] = read.service_tier
    return options


def _by_provider(read: ChatBody) -> Mapping[str, AskOptions]:
    """Penalties go to every model, and are refused by those that have none; hints only to OpenAI's own."""
    own = OpenAIOptions(
        frequency_penalty=read.frequency_penalty or None,
        presence_penalty=read.presence_penalty or None,
        logit_bias=read.logit_bias or {},
    )
    hints = replace(
        own,
        user=read.user,
        safety_identifier=read.safety_identifier,
        prompt_cache_key=read.prompt_cache_key,
        verbosity=read.verbosity,
    )
    found = {"": own, "openai": hints}
    return {name: AskOptions(provider_options=given) for name, given in found.items() if given != OpenAIOptions()}


def _choice(given: str | _NamedTool) -> ToolChoice:
    if isinstance(given, _NamedTool):
        return ToolChoice(ToolChoiceMode.NAMED, ToolName(given.function.name))
    return ToolChoice(ToolChoiceMode(given))
