"""Items of the Responses API to messages: what a client sends as `input`, and what it sends back of an output.

The items of one turn (reasoning, message, calls) become one message. A call that ran here (`mcp_call`) carries its
result with it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Final, Literal

import orjson
from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.daemon.body_models import ApiBody
from callboard.actors.daemon.client_media import file_of, image_of
from callboard.actors.daemon.client_question import request_of_call
from callboard.protocol.compaction import compacted_message
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Document,
    Image,
    Media,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.providers.openai.responses_items import found_tools

#: Whose searches for tools clients bring back.
_SEARCHED_BY: Final = "openai-responses"


class _TextPart(ApiBody):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class _RefusalPart(ApiBody):
    type: Literal["refusal"]
    refusal: str


class _ImagePart(ApiBody):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None


class _FilePart(ApiBody):
    type: Literal["input_file"]
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


_Part = Annotated[_TextPart | _RefusalPart | _ImagePart | _FilePart, Field(discriminator="type")]


class _Said(ApiBody):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_Part]


class _Call(ApiBody):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str
    arguments: str


class _CallOutput(ApiBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[_Part]


class _Reasoning(ApiBody):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[_TextPart] = Field(default_factory=list)
    content: list[_TextPart] | None = None
    encrypted_content: str | None = None


class _Compaction(ApiBody):
    type: Literal["compaction"]
    encrypted_content: str


class _CallHere(ApiBody):
    type: Literal["mcp_call"]
    id: str = Field(min_length=1)
    name: str
    arguments: str
    output: str | None = None
    error: object = None


class _ToolSearch(ApiBody):
    """OpenAI's own search for tools, and what it has loaded: from an answer of its API."""

    type: Literal["tool_search_call", "tool_search_output"]
    call_id: str | None = None
    tools: list[dict[str, object]] = Field(default_factory=list)


def _kind(item: object) -> str:
    """Messages may come without a type."""
    return str(item.get("type", "message")) if isinstance(item, dict) else ""


_Item = Annotated[
    Annotated[_Said, Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_CallOutput, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")]
    | Annotated[_CallHere, Tag("mcp_call")]
    | Annotated[_ToolSearch, Tag("tool_search_call")]
    | Annotated[_ToolSearch, Tag("tool_search_output")]
    | Annotated[_Compaction, Tag("compaction")],
    Discriminator(_kind),
]
_AnyItem = _Said | _Call | _CallOutput | _Reasoning | _CallHere | _ToolSearch | _Compaction
_ITEM: TypeAdapter[_AnyItem] = TypeAdapter(_Item, config={"defer_build": True})
Items = Sequence[dict[str, object]]
OpenSummary = Callable[[str], str | None]
"""The summary in the `encrypted_content` of a compaction; None where it is none of ours."""


def no_summary(content: str) -> str | None:
    """Where no compaction is known."""
    return None


def items_of(given: str | Items) -> Items:
    """The items of an input, which may be a text alone."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


def requests_of(items: Items) -> set[str]:
    """The requests whose calls the client gives back."""
    return {request_of_call(str(item.get("call_id"))) for item in items if item.get("type") == "function_call"} - {""}


def messages_of(
    items: Items, recorded: Set[str] = frozenset(), open_summary: OpenSummary = no_summary
) -> Iterator[Message]:
    """The messages that the items make. Raises ApiError, naming the field.

    `recorded`: requests whose turns are known here: of their items, only the calls for the client count, since the
    recorded turn brings the rest.
    """
    turn, results = list[AssistantPart](), list[ToolMessage]()
    for place, given in enumerate(items):
        if _is_of(str(given.get("id", "")), recorded) and given.get("type") != "function_call":
            continue
        item, param = _read(given, place), f"input.{place}"
        if isinstance(item, _Said) and item.role != "assistant":
            yield from _turn_of(turn, results)
            yield _said(item, param)
        elif isinstance(item, _Compaction):
            yield from _turn_of(turn, results)
            yield _compacted(item, param, open_summary)
        elif isinstance(item, _CallOutput):
            if not any(isinstance(part, ToolCall) for part in turn):  # the call is in the previous response
                yield from _turn_of(turn, results)
            results.append(_result(item, param))
        else:
            if results and (isinstance(item, _Said | _Reasoning) or _are_all_answered(turn, results)):
                yield from _turn_of(turn, results)
            turn += _parts_of(item, given)
            if isinstance(item, _CallHere):
                said = item.output if item.output is not None else _error_text(item.error)
                failed = item.output is None
                results.append(ToolMessage(CallId(item.id), ToolName(item.name), said, failed))
    yield from _turn_of(turn, results)


def _read(given: dict[str, object], place: int) -> _AnyItem:
    try:
        return _ITEM.validate_python(given)
    except ValidationError as error:
        fault = max(error.errors(include_url=False, include_context=False), key=lambda each: len(each["loc"]))
        if fault["type"].startswith("union_tag"):
            kinds = "message, function_call, function_call_output, reasoning, mcp_call, compaction, tool_search_call"
            kinds += ", tool_search_output"
            raise bad_field(f"input.{place}.type", f"input.{place}.type must be one of: {kinds}") from None
        path = ".".join([f"input.{place}", *(str(step) for step in fault["loc"][1:])])
        raise bad_field(path, f"{path}: {fault['msg']}") from None


def _turn_of(turn: list[AssistantPart], results: list[ToolMessage]) -> Iterator[Message]:
    """What was gathered of a turn, which is over."""
    if turn:
        yield AssistantMessage(tuple(turn))
    yield from results
    turn.clear()
    results.clear()


def _are_all_answered(turn: Iterable[AssistantPart], results: Iterable[ToolMessage]) -> bool:
    known = {result.call_id for result in results}
    waiting = [part for part in turn if isinstance(part, ToolCall) and part.call_id not in known]
    is_only_ours = all(not request_of_call(result.call_id) and result.call_id.startswith("mcp_") for result in results)
    return not waiting and not is_only_ours


def _is_of(item_id: str, requests: Set[str]) -> bool:
    return request_of_item(item_id) in requests


def request_of_item(item_id: str) -> str:
    """Ids of items are KIND_REQUEST_NUMBER."""
    return item_id.partition("_")[2].rpartition("_")[0]


def referred_id(item: Mapping[str, object]) -> str:
    """The id of the item that this one stands for; "": it is one itself."""
    is_reference = item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"type", "id"})
    return str(item.get("id", "")) if is_reference else ""


def _said(item: _Said, param: str) -> Message:
    if item.role != "user":
        return SystemMessage(_text_in(item.content, f"{param}.content"))
    if isinstance(item.content, str):
        return UserMessage((Text(item.content),))
    return UserMessage(tuple(_part(part, f"{param}.content.{place}") for place, part in enumerate(item.content)))


def _compacted(item: _Compaction, param: str, open_summary: OpenSummary) -> Message:
    summary = open_summary(item.encrypted_content)
    if summary is None:
        said = "was not made by this server for this tenant, or was changed; send the conversation itself"
        raise bad_field(f"{param}.encrypted_content", f"{param}.encrypted_content {said}")
    return compacted_message(summary)


def _text_in(content: str | list[_Part], param: str) -> str:
    if isinstance(content, str):
        return content
    if not all(isinstance(part, _TextPart) for part in content):
        raise bad_field(param, f"{param}: instructions are text")
    return "\n\n".join(part.text for part in content if isinstance(part, _TextPart))


def _part(part: _Part, param: str) -> UserPart:
    match part:
        case _TextPart():
            return Text(part.text)
        case _RefusalPart():
            return Text(part.refusal)
        case _ImagePart(file_id=str() as file_id) if file_id:
            return Image(file_id=file_id)
        case _ImagePart(image_url=str() as url):
            return image_of(url, f"{param}.image_url")
        case _FilePart(file_id=str() as file_id) if file_id:
            return Document(file_id=file_id, name=part.filename or "")
        case _FilePart(file_url=str() as url) if url:
            return Document(url=url, name=part.filename or "")
        case _FilePart(file_data=str() as data) if data:
            return file_of(data, part.filename or "", f"{param}.file_data")
    raise bad_field(param, f"{param} needs its bytes, an address or a file_id")


def _result(item: _CallOutput, param: str) -> ToolMessage:
    call_id, name = CallId(item.call_id), ToolName("")
    if isinstance(item.output, str):
        return ToolMessage(call_id, name, item.output)
    parts = [_part(part, f"{param}.output.{place}") for place, part in enumerate(item.output)]
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    return ToolMessage(call_id, name, text, False, tuple(part for part in parts if isinstance(part, Media)))


def _parts_of(
    item: _Said | _Call | _Reasoning | _CallHere | _ToolSearch, given: dict[str, object]
) -> Iterator[AssistantPart]:
    match item:
        case _Said(content=str() as text):
            yield Text(text)
        case _Said(content=list() as content):
            for part in content:
                if isinstance(part, _TextPart | _RefusalPart):
                    yield Text(part.text if isinstance(part, _TextPart) else part.refusal)
        case _Call():
            yield ToolCall(CallId(item.call_id), ToolName(item.name), item.arguments or "{}")
        case _CallHere():
            yield ToolCall(CallId(item.id), ToolName(item.name), item.arguments or "{}")
        case _ToolSearch():
            found = found_tools(given)
            own = Replay(_SEARCHED_BY, given)
            yield ServerTool(item.type, own, "tool_search", item.call_id or "", ", ".join(found), found)
        case _Reasoning():
            text = "\n\n".join(part.text for part in (*item.summary, *(item.content or ())))
            replay = opened(item.encrypted_content or "")
            if text or replay is not None:
                yield Thinking(text, replay)


def _error_text(error: object) -> str:
    return error if isinstance(error, str) else orjson.dumps(error).decode()


# -- what a provider needs back with its thinking


def closed(replay: Replay) -> str:
    """As `encrypted_content`. It is no secret of ours: it belongs to the model's provider, which has sealed it."""
    return base64.b64encode(orjson.dumps([replay.origin, dict(replay.data)])).decode()


def opened(content: str) -> Replay | None:
    """What `closed` has written; None for anything else, such as what another server has written."""
    try:
        found = orjson.loads(base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        return None
    match found:
        case [str() as origin, dict() as data]:
            return Replay(origin, data)
    return None
