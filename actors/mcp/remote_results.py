"""What a call at a server came to, as the model reads it: texts as they are, all else in words or as JSON.

Nothing that a server sends is kept beyond the size of a result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

import orjson

from callboard.actors.tools.invoke import Result, shortened
from callboard.protocol.content import byte_size, json_text
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.tools import FailureCode, ToolFailure


def shown_result(name: ToolName, result: Mapping[str, object]) -> Result:
    """The result of `tools/call`. One that the server calls an error is a failure of the tool."""
    texts = list(_texts(result.get("content")))
    structured = result.get("structuredContent")
    if structured is not None and not any(_is_json_of(text, structured) for text in texts):
        texts.append(json_text(structured))
    shown = "\n".join(texts)
    if result.get("isError") is True:
        why = shortened(shown) or "the server calls it an error, without a word"
        return ToolFailure(name, FailureCode.TOOL_ERROR, why)
    if (size := byte_size(shown)) > MAX_RESULT_BYTES:
        why = f"the result has {size:,} bytes; at most {MAX_RESULT_BYTES:,} can be sent"
        return ToolFailure(name, FailureCode.RESULT_TOO_LARGE, why)
    return shown


def shown_contents(name: ToolName, result: Mapping[str, object]) -> Result:
    """The contents of `resources/read`."""
    contents = result.get("contents")
    given = contents if isinstance(contents, list) else []
    return shown_result(name, {"content": [{"type": "resource", "resource": each} for each in given]})


def _texts(content: object) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping):
            yield _text(part)


def _text(part: Mapping[str, object]) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind} {part.get('mimeType', '')}, {_size(data)} bytes, which cannot be shown here]"
        case {"type": "resource_link", "uri": str(uri)}:
            described = " ".join(str(part[each]) for each in ("name", "description", "mimeType") if part.get(each))
            return f"[resource {uri}: {described}]"
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)}}:
            return f"[resource {uri}, {_size(data)} bytes, which cannot be shown here]"
    return f"[content of an unknown type: {part.get('type')!r:.100}]"


def _size(data: str) -> str:
    try:
        return f"{len(base64.b64decode(data, validate=True)):,}"
    except (binascii.Error, ValueError):
        return "an unknown number of"


def _is_json_of(text: str, value: object) -> bool:
    """Does the text say the same? SDKs wrap what is no object as {"result": value}, and show the value."""
    inner = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    try:
        return text == inner or orjson.loads(text) in (value, inner)
    except orjson.JSONDecodeError:
        return False
