"""What the encoders of all APIs share in laying out a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from callboard.protocol.content import AssistantPart, Image, Message, SystemMessage, ToolCall
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import WireRequest
from callboard.providers.history import sent_arguments, sent_arguments_object

#: OpenAI and Anthropic take these names for tools and calls; it is within what Gemini takes.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH: Final = 64

#: Anthropic and Gemini refuse a blank text, and a conversation that begins with the model (the rest was cut off).
BLANK_USER: Final = "(empty message)"
TRIMMED_START: Final = "(The beginning of this conversation was left out.)"


def split_system(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """(instructions, the rest): the system messages at the start, joined. Later ones are notes in the conversation."""
    start = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    leading = [message.text for message in messages[:start] if isinstance(message, SystemMessage)]
    return "\n\n".join(text for text in leading if text.strip()), messages[start:]


def checked_url(base_url: str | None, default: str) -> str:
    """An adapter's address without a slash at its end. Raises UsageError for what is none."""
    url = base_url or default
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"base_url must start with http:// or https://, not {url!r}.")
    return url.rstrip("/")


def json_headers(request: ModelRequest, own: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request without its credential: what the body is, the adapter's `own`, what is expected back."""
    accept = "text/event-stream" if request.stream else "application/json"
    return {"content-type": "application/json", **own, "accept": accept}


def check_tool_names(tools: Sequence[ToolDefinition]) -> None:
    """Raises UsageError for a tool's name that no API takes."""
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise UsageError(f"tool name {tool.name!r} is taken by no API; it must match {_NAME.pattern}")


def called_name(call: ToolCall) -> str:
    """A call's name as APIs take it in a history: a model may have called a tool whose name cannot exist."""
    if _NAME.fullmatch(call.name):
        return call.name
    return _ILLEGAL.sub("_", call.name)[:_MAX_NAME_LENGTH] or "unknown_tool"


def arguments_object(call: ToolCall) -> Any:
    """A call's arguments for the APIs that take an object: the very text, so that no long integer loses digits.

    Raises UsageError for a complete call whose arguments are none.
    """
    return object_text(sent_arguments(call), sent_arguments_object(call))


def object_text(text: str, value: Any) -> Any:
    """JSON `text`, to be put into a body as it is.

    Where only a forgiving parser could read it (NaN, half of a surrogate pair): `value`, what was read.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return value
    return orjson.Fragment(text)


def own_replay(part: AssistantPart, origin: str) -> Mapping[str, Any] | None:
    """The part's replay data where it came from `origin`, else None: another provider's is left out."""
    replay = part.replay
    return replay.data if replay is not None and replay.origin == origin else None


def image_bytes(image: Image) -> tuple[str, str]:
    """(media type, base64) of an image without a url. Raises UsageError where it has neither."""
    if not image.data_base64 or not image.media_type:
        raise UsageError("an image needs a url, or data_base64 together with its media_type (e.g. image/png)")
    return image.media_type, image.data_base64


def image_url(image: Image) -> str:
    """The URL of an image, as `data:` where its bytes are given. Raises UsageError where it has neither."""
    if image.url:
        return image.url
    media_type, data = image_bytes(image)
    return f"data:{media_type};base64,{data}"


def post(url: str, headers: Mapping[str, str], body: Mapping[str, Any], notes: Sequence[str]) -> WireRequest:
    """The finished request. Raises UsageError for text that is no Unicode (half of a surrogate pair)."""
    try:
        return WireRequest("POST", url, headers, orjson.dumps(body), tuple(notes))
    except TypeError as error:
        raise UsageError(f"the request cannot be written as JSON: {error}") from None
