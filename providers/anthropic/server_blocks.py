"""Blocks of tools that Anthropic runs itself: what they are called, and what a person can read of them.

A call and its result are two blocks, joined by an id. They go back as they came (`Replay`); a call without its result
is refused: "`web_search` tool use with id .. was found without a corresponding `web_search_tool_result` block".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from callboard.protocol import content
from callboard.protocol.content import json_text
from callboard.protocol.model import ServerToolEvent
from callboard.providers.json_values import Json, JsonObject, count_at

#: Of what is shown of a block.
MAX_SHOWN_CHARS: Final = 2_000
#: Not a block of the API's: the sandbox of a turn whose programs have not ended, which the next request must name.
CONTAINER: Final = "container"
#: block > result > list > entry > content: deeper there is nothing to read.
_LEVELS: Final = 6
_RESULT: Final = "_tool_result"
#: What a call asks, by the first of these that its input has; else its whole input.
_ASKED: Final = ("query", "url", "code", "command")
#: What a result says, and each of its entries.
_SAID: Final = ("title", "url", "stdout", "stderr", "text", "file_id", "tool_name", "error_code", "model")


def is_call(block: Mapping[str, object]) -> bool:
    """Is it the call of a server tool?"""
    return str(block.get("type")).endswith("_tool_use")


#: The kind of a result of the search for tools (the SDK's ToolSearchToolResultBlock).
FOUND_TOOLS: Final = "tool_search_tool_result"


def found_tools(block: Mapping[str, object]) -> tuple[str, ...]:
    """The tools that a search has found: {"content": {"tool_references": [{"tool_name": ...}]}}."""
    result = block.get("content") if block.get("type") == FOUND_TOOLS else None
    references = result.get("tool_references") if isinstance(result, Mapping) else None
    found = [each for each in references if isinstance(each, Mapping)] if isinstance(references, list) else []
    return tuple(name for each in found if isinstance(name := each.get("tool_name"), str))


def shown(block: JsonObject, origin: str) -> ServerToolEvent:
    """The event of a whole block."""
    kind = str(block["type"])
    call_id = next((word for key in ("id", "tool_use_id") if isinstance(word := block.get(key), str)), "")
    name = block.get("name") or block.get("mcp_server_name")
    if not isinstance(name, str):
        name = kind.removesuffix(_RESULT)
    found = found_tools(block)
    text = _asked(block.get("input")) if is_call(block) else "\n".join((*_lines(block), *found))
    return ServerToolEvent(kind, content.Replay(origin, block), name, call_id, text[:MAX_SHOWN_CHARS], found)


def _asked(given: Json) -> str:
    if not isinstance(given, dict):
        return ""
    asked = next((word for key in _ASKED if isinstance(word := given.get(key), str)), None)
    return asked if asked is not None else json_text(given) if given else ""


def _lines(value: Json, levels: int = _LEVELS) -> Iterator[str]:
    """A line for each entry of a result that says something."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value if levels else ():
            yield from _lines(entry, levels - 1)
    elif isinstance(value, dict):
        if line := " ".join(_words(value.get(key) for key in _SAID)):
            yield line
        if levels:
            yield from _lines(value.get("content"), levels - 1)


def _words(values: Iterable[Json]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and value.strip():
            yield value.strip()


#: The API's kinds of citations; others' are not sent to it.
_LOCATIONS: Final = frozenset(
    {"char_location", "page_location", "content_block_location", "search_result_location"}
    | {"web_search_result_location"}
)


def citation_of(raw: JsonObject) -> content.Citation:
    """What a text block rests on. It is the whole block that the source supports."""

    def word(*keys: str) -> str:
        return next((value for key in keys if isinstance(value := raw.get(key), str)), "")

    return content.Citation(
        word("url", "source"),
        word("title", "document_title"),
        word("cited_text"),
        document=count_at(raw, "document_index"),
        file_id=word("file_id"),
        raw=raw,
    )


def own_citations(citations: Iterable[content.Citation]) -> list[Mapping[str, object]]:
    """Those that this API wrote, as it wrote them."""
    return [each.raw for each in citations if str(each.raw.get("type")) in _LOCATIONS]
