"""A body of the Messages API, read (Anthropic, API reference, "Create a message"; the types of the SDK 2.12).

docs/endpoints.md lists every field: taken, ignored, refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from msgspec.structs import replace
from pydantic import Field

from callboard.actors.daemon.api_errors import NO_THREADS, ApiError, bad_field
from callboard.actors.daemon.body_models import ApiBody, ModelField, RunTools, ToolNameField, read_body
from callboard.actors.daemon.client_media import checked_base64
from callboard.actors.daemon.client_question import AnswerFormat, ClientQuestion, checked_messages
from callboard.actors.requests.asking import AskOptions
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Document,
    Image,
    MediaPart,
    Message,
    Replay,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
    json_text,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.model import Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import AnthropicOptions
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.server_blocks import found_tools

#: Whose signatures clients bring back with thinking.
_SIGNED_BY: Final = "anthropic"
#: From a budget of thinking on, the effort that asks models of other makers for about as much.
_EFFORTS: Final = ((16_384, "high"), (8_192, "medium"), (0, "low"))

# -- content


class _TextBlock(ApiBody):
    type: Literal["text"]
    text: str


class _Base64(ApiBody):
    type: Literal["base64"]
    media_type: str = Field(pattern=r"^[\w.+-]+/[\w.+-]+$")
    data: str


class _Url(ApiBody):
    type: Literal["url"]
    url: str = Field(pattern=r"^https?://")


class _FileId(ApiBody):
    type: Literal["file"]
    file_id: str = Field(min_length=1)


class _PlainText(ApiBody):
    type: Literal["text"]
    data: str


_Source = Annotated[_Base64 | _Url | _FileId, Field(discriminator="type")]
_DocumentSource = Annotated[_Base64 | _Url | _FileId | _PlainText, Field(discriminator="type")]


class _ImageBlock(ApiBody):
    type: Literal["image"]
    source: _Source


class _Cites(ApiBody):
    enabled: bool = False


class _DocumentBlock(ApiBody):
    type: Literal["document"]
    source: _DocumentSource
    title: str | None = None
    citations: _Cites | None = None


class _ReferenceBlock(ApiBody):
    type: Literal["tool_reference"]
    tool_name: str


_Shown = Annotated[_TextBlock | _ImageBlock | _DocumentBlock | _ReferenceBlock, Field(discriminator="type")]


class _ResultBlock(ApiBody):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_Shown] | None = None
    is_error: bool | None = None


class _CallBlock(ApiBody):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class _ThinkingBlock(ApiBody):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class _RedactedBlock(ApiBody):
    type: Literal["redacted_thinking"]
    data: str


class _SearchBlock(ApiBody):
    """Anthropic's own search for tools, from an answer of its API."""

    type: Literal["server_tool_use"]
    id: str
    name: str = Field(pattern="^tool_search_tool_")
    input: dict[str, object]


class _FoundBlock(ApiBody):
    type: Literal["tool_search_tool_result"]
    tool_use_id: str
    content: dict[str, object]


_UserBlock = Annotated[_TextBlock | _ImageBlock | _DocumentBlock | _ResultBlock, Field(discriminator="type")]
_TurnBlock = Annotated[
    _TextBlock | _CallBlock | _ThinkingBlock | _RedactedBlock | _SearchBlock | _FoundBlock, Field(discriminator="type")
]


class _Asked(ApiBody):
    role: Literal["user"]
    content: str | list[_UserBlock]


class _Answered(ApiBody):
    role: Literal["assistant"]
    content: str | list[_TurnBlock]


# -- the rest


class _OwnTool(ApiBody):
    type: Literal["custom"] | None = None
    name: ToolNameField
    description: str | None = None
    input_schema: dict[str, object]
    strict: bool | None = None
    defer_loading: bool | None = None


class _SearchTool(ApiBody):
    """The API's search for deferred tools: callboard searches by the provider's, or by its own."""

    type: Literal[
        "tool_search_tool_regex_20251119",
        "tool_search_tool_regex",
        "tool_search_tool_bm25_20251119",
        "tool_search_tool_bm25",
    ]
    name: str


class _ToolUse(ApiBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinks(ApiBody):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1_024)


class _SchemaFormat(ApiBody):
    type: Literal["json_schema"]
    schema_: dict[str, object] = Field(alias="schema")


class _OutputConfig(ApiBody):
    effort: str | None = None
    format: _SchemaFormat | None = None


class _Metadata(ApiBody):
    user_id: str | None = None


class CountBody(ApiBody):
    """What is read of a request to count tokens."""

    model: ModelField = None
    messages: list[Annotated[_Asked | _Answered, Field(discriminator="role")]] = Field(min_length=1)
    system: str | list[_TextBlock] | None = None
    tools: list[_OwnTool | _SearchTool] | None = Field(default=None, max_length=128)
    tool_choice: _ToolUse | None = None
    thinking: _Thinks | None = None
    callboard: RunTools | None = None


class MessagesBody(CountBody):
    """What is read of a request. Fields that are not here are ignored, or refused by name (`_refuse`)."""

    max_tokens: int = Field(ge=1, le=MAX_CALL_TOKENS)
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    metadata: _Metadata | None = None
    output_config: _OutputConfig | None = None
    output_format: _SchemaFormat | None = None
    mcp_servers: list[object] | None = None
    container: object = None
    thread: object = None


#: Fields that would change the answer and are not done here.
NOT_TAKEN: Final = {
    "mcp_servers": "MCP servers are set up in the daemon; leave mcp_servers out",
    "container": "there are no containers here; leave container out",
}


def messages_question(body: bytes) -> ClientQuestion:
    """The question that a body asks. Raises ApiError (400), naming the field."""
    read = read_body(MessagesBody, body)
    for name, why in NOT_TAKEN.items():
        if getattr(read, name):
            raise bad_field(name, why)
    if read.thread is not None:
        said = "threads are not held here; send all messages, without thread"
        raise ApiError(400, NO_THREADS, said, param="thread")
    sampling = Sampling(
        temperature=read.temperature,
        top_p=read.top_p,
        max_output_tokens=read.max_tokens,
        stop=_stops(read.stop_sequences or ()),
    )
    options = AskOptions(sampling=sampling)
    if read.tool_choice is not None and (read.tools or read.tool_choice.type != "auto"):
        options["tool_choice"] = _choice(read.tool_choice)
    if read.tools and read.tool_choice is not None and read.tool_choice.disable_parallel_tool_use is not None:
        options["parallel_tool_calls"] = not read.tool_choice.disable_parallel_tool_use
    if read.metadata is not None and read.metadata.user_id:
        options["metadata"] = {"user_id": read.metadata.user_id}
    return replace(
        _question(read),
        options=options,
        only_for=_by_provider(read, sampling),
        output=_format(read),
        is_streamed=bool(read.stream),
    )


def count_question(body: bytes) -> ClientQuestion:
    """The question whose tokens are to be counted. Raises ApiError (400)."""
    return _question(read_body(CountBody, body))


def _question(read: CountBody) -> ClientQuestion:
    system = read.system
    said = system if isinstance(system, str) or system is None else "\n\n".join(block.text for block in system)
    return ClientQuestion(
        read.model,
        checked_messages(_messages(read.messages)),
        said,
        _tools(read),
        None if read.callboard is None or read.callboard.tools is None else tuple(read.callboard.tools),
    )


# -- messages


def _messages(said: Sequence[_Asked | _Answered]) -> Iterator[Message]:
    for place, message in enumerate(said):
        if isinstance(message, _Answered):
            yield AssistantMessage(tuple(_turn(message.content)))
        elif isinstance(message.content, str):
            yield UserMessage((Text(message.content),))
        else:
            yield from _asked(message.content, f"messages.{place}.content")


def _turn(content: str | list[_TurnBlock]) -> Iterator[AssistantPart]:
    for block in (_TextBlock(type="text", text=content),) if isinstance(content, str) else content:
        match block:
            case _TextBlock():
                yield Text(block.text)
            case _CallBlock():
                yield ToolCall(CallId(block.id), ToolName(block.name), json_text(block.input))
            case _ThinkingBlock():
                signed = Replay(_SIGNED_BY, {"signature": block.signature}) if block.signature else None
                yield Thinking(block.thinking, signed)
            case _RedactedBlock():
                yield Thinking("", Replay(_SIGNED_BY, {"data": block.data}))
            case _SearchBlock():
                yield ServerTool(block.type, Replay(_SIGNED_BY, block.model_dump()), block.name, block.id)
            case _FoundBlock():
                own = block.model_dump()
                found = found_tools(own)
                yield ServerTool(
                    block.type, Replay(_SIGNED_BY, own), "tool_search_tool", block.tool_use_id, ", ".join(found), found
                )


def _asked(blocks: Sequence[_UserBlock], param: str) -> Iterator[Message]:
    """Results first, as the API wants them, then what the user says."""
    parts: list[UserPart] = []
    for place, block in enumerate(blocks):
        if isinstance(block, _ResultBlock):
            yield _result(block, f"{param}.{place}.content")
        else:
            parts.append(_part(block, f"{param}.{place}.source"))
    if parts or not blocks:
        yield UserMessage(tuple(parts))


def _result(block: _ResultBlock, param: str) -> ToolMessage:
    content = block.content or ""
    texts, media = [content] if isinstance(content, str) else [], list[MediaPart]()
    for place, shown in enumerate(() if isinstance(content, str) else content):
        part = _part(shown, f"{param}.{place}.source")
        if isinstance(part, Text):
            texts.append(part.text)
        else:
            media.append(part)
    call_id = CallId(block.tool_use_id)
    return ToolMessage(call_id, ToolName(""), "\n".join(texts), bool(block.is_error), tuple(media))


def _part(block: _TextBlock | _ImageBlock | _DocumentBlock | _ReferenceBlock, param: str) -> Text | Image | Document:
    match block:
        case _TextBlock():
            return Text(block.text)
        case _ReferenceBlock():
            return Text(f"The tool {block.tool_name} can be called now.")
        case _ImageBlock():
            return Image(*_sourced(block.source, param))
    cites = block.citations is not None and block.citations.enabled
    if isinstance(block.source, _PlainText):
        return Document("text/plain", name=block.title or "", text=block.source.data, citations=cites)
    return Document(*_sourced(block.source, param), block.title or "", citations=cites)


def _sourced(source: _Base64 | _Url | _FileId, param: str) -> tuple[str, str, str, str]:
    """(media type, base64, address, file id)."""
    match source:
        case _Base64():
            return source.media_type, checked_base64(source.data, f"{param}.data"), "", ""
        case _Url():
            return "", "", source.url, ""
        case _FileId():
            return "", "", "", source.file_id


# -- the rest


def _tools(read: CountBody) -> tuple[ToolDefinition, ...]:
    """The client's tools; behind them those that its own search has found (`tool_reference`), in that order."""
    found = dict.fromkeys(_referred(read.messages))
    tools = [_tool(each, found) for each in read.tools or () if isinstance(each, _OwnTool)]
    places = {name: place for place, name in enumerate(found, 1)}
    return tuple(sorted(tools, key=lambda tool: 0 if tool.deferred else places.get(tool.name, 0)))


def _referred(said: Sequence[_Asked | _Answered]) -> Iterator[str]:
    blocks = (block for message in said if isinstance(message, _Asked) for block in message.content)
    for block in blocks:
        if isinstance(block, _ResultBlock):
            yield from (each.tool_name for each in block.content or () if isinstance(each, _ReferenceBlock))


def _tool(declared: _OwnTool, found: Container[str]) -> ToolDefinition:
    name, about = ToolName(declared.name), declared.description or ""
    is_deferred = bool(declared.defer_loading) and name not in found
    return ToolDefinition(name, about, declared.input_schema, bool(declared.strict), is_deferred)


def _stops(given: Sequence[str]) -> tuple[str, ...]:
    if not all(given):
        raise bad_field("stop_sequences", "stop_sequences must be texts, none of them empty")
    return tuple(given)


_CHOICES: Final = {"auto": ToolChoiceMode.AUTO, "any": ToolChoiceMode.REQUIRED, "none": ToolChoiceMode.NONE}


def _choice(given: _ToolUse) -> ToolChoice:
    if given.type != "tool":
        return ToolChoice(_CHOICES[given.type])
    if not given.name:
        raise bad_field("tool_choice.name", "tool_choice.name is missing: the tool that must be called")
    return ToolChoice(ToolChoiceMode.NAMED, ToolName(given.name))


def _format(read: MessagesBody) -> AnswerFormat | None:
    config = read.output_config
    given = read.output_format or (config.format if config is not None else None)
    return AnswerFormat(given.schema_) if given is not None else None


def _by_provider(read: MessagesBody, sampling: Sampling) -> Mapping[str, AskOptions]:
    """Thinking in the words of Anthropic's models; models of other makers have levels of effort in place of it."""
    effort = read.output_config.effort if read.output_config is not None else None
    own = AnthropicOptions(thinking=_thinking(read.thinking), top_k=read.top_k, effort=_own_effort(effort))
    options = AskOptions() if own == AnthropicOptions() else AskOptions(provider_options=own)
    level = _level(read.thinking, effort)
    elsewhere = AskOptions() if level is None else AskOptions(sampling=replace(sampling, reasoning_effort=level))
    return {"anthropic": options, "": elsewhere}


def _thinking(given: _Thinks | None) -> Literal["adaptive", "disabled"] | int | None:
    if given is None:
        return None
    if given.type != "enabled":
        return given.type
    if given.budget_tokens is None:
        raise bad_field("thinking.budget_tokens", "thinking.budget_tokens is missing")
    return given.budget_tokens


def _own_effort(given: str | None) -> Literal["low", "medium", "high", "xhigh", "max"] | None:
    match given:
        case None | "low" | "medium" | "high" | "xhigh" | "max":
            return given
    raise bad_field("output_config.effort", "output_config.effort must be low, medium, high, xhigh or max")


def _level(thinks: _Thinks | None, effort: str | None) -> str | None:
    """The level of effort; None: the model's own. Only "disabled" says none."""
    if thinks is None or thinks.type == "adaptive":
        return effort
    if thinks.type == "disabled":
        return None
    budget = thinks.budget_tokens or 0
    return next(level for least, level in _EFFORTS if budget >= least)
