"""Which tools are deferred, and which of them were found: a second reading, made for the rules alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson
from msgspec.structs import replace

from callboard.protocol.content import AssistantMessage, Message, ServerTool, ToolMessage
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelResponse
from callboard.protocol.testing.counted import tokens_of_tools
from callboard.protocol.testing.story import STOPPED, holds_nan, is_whole
from callboard.protocol.tool_search import ranked, search_tool
from callboard.protocol.tools import Decision, FailureCode, ToolDefinition, ToolSearch

#: Of the tools that are never deferred: the one that shows what was cleared.
_READ: Final = "read_earlier_messages"
_MOST: Final = 5


def deferred(start: RequestStarted) -> tuple[ToolDefinition, ...]:
    """The tools that the model must search for, in their order."""
    found, left, choice = [], start.options.tools_budget_tokens, start.options.tool_choice
    for offer in start.tools:
        tool = offer.definition
        if offer.decision is Decision.DENY:
            continue
        size, must_stay = tokens_of_tools([tool]), tool.name in (_READ, choice.name, *choice.allowed)
        if not must_stay and (tool.deferred or (left is not None and size > left)):
            found.append(tool)
        elif left is not None:
            left -= size
    return tuple(found)


def search_name(start: RequestStarted) -> str:
    """What the search tool is called: no other tool has the name."""
    taken = {offer.definition.name for offer in start.tools}
    taken |= {start.options.output.tool_name} if start.options.output is not None else set()
    names = ("tool_search", *(f"tool_search_{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def found_in(start: RequestStarted, messages: Sequence[Message]) -> list[str]:
    """The deferred tools that were found by the end of these messages, in order."""
    names: dict[str, None] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            for part in message.parts:
                names |= dict.fromkeys(part.found if isinstance(part, ServerTool) else ())
            names |= dict.fromkeys(call.name for call in message.tool_calls)
        if isinstance(message, ToolMessage) and message.name == search_name(start) and not message.is_error:
            try:
                names |= dict.fromkeys(each["name"] for each in orjson.loads(message.content)["tools"])
            except (ValueError, KeyError, TypeError):
                continue  # what an earlier request found, and compaction has cleared
    known = {tool.name for tool in deferred(start)}
    return [name for name in names if name in known]


def tools_now(
    start: RequestStarted, found: Sequence[str], output: tuple[ToolDefinition, ...]
) -> tuple[ToolDefinition, ...]:
    """What is offered: what was found stands last."""
    shown = [offer.definition for offer in start.tools if offer.decision is not Decision.DENY]
    hidden = {tool.name: tool for tool in deferred(start)}
    plain = [replace(tool, deferred=False) for tool in shown if tool.name not in hidden]
    if not hidden:
        return (*plain, *output)
    finds = search_tool(ToolName(search_name(start)), list(hidden))
    return (*plain, finds, *output, *(replace(hidden[ToolName(name)], deferred=False) for name in found))


def search_now(start: RequestStarted) -> ToolSearch | None:
    """What a provider with a search of its own is told."""
    tools = tuple(replace(tool, deferred=True) for tool in deferred(start))
    return ToolSearch(ToolName(search_name(start)), tools) if tools else None


def answered_calls(
    start: RequestStarted, response: ModelResponse, found: Sequence[str]
) -> dict[int, FailureCode | str]:
    """The calls of a turn that end at once, by their places: with a failure, or with this result."""
    answers: dict[int, FailureCode | str] = {}
    tools = deferred(start)
    hidden = {tool.name for tool in tools} - set(found)
    hidden -= {name for part in response.parts if isinstance(part, ServerTool) for name in part.found}
    for place, call in enumerate(() if response.finish_reason in STOPPED else response.tool_calls):
        if call.name in hidden:
            answers[place] = FailureCode.UNKNOWN_TOOL
        elif tools and call.name == search_name(start) and not is_whole(call):
            no_json = holds_nan(call.arguments)
            answers[place] = FailureCode.INVALID_ARGUMENTS if no_json else FailureCode.INCOMPLETE_CALL
        elif tools and call.name == search_name(start):
            query = orjson.loads(call.arguments).get("query")
            is_asked = isinstance(query, str) and query.strip() != ""
            answers[place] = _result(query, tools) if is_asked else FailureCode.INVALID_ARGUMENTS
    return answers


def _result(query: str, tools: Sequence[ToolDefinition]) -> str:
    best = [{"name": tool.name, "description": tool.description} for tool in ranked(query, tools)[:_MOST]]
    told = "You can call these from your next turn on."
    if not best:
        names = ", ".join(tool.name for tool in tools)
        told = f"Nothing fits. Search again in other words, or by a name. There are: {names}."
    return orjson.dumps({"ok": True, "tools": best, "message": told}).decode()
