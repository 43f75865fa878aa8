"""The embedded default: no model, no key, no network. It looks a question up in the code index and says what is there.

A pure function of the conversation. The user's message it answers by asking for code context, the context by a text
that lists it; it goes through the same session, dispatcher and index as any model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Final

import orjson

from callboard.protocol import model
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.ids import CallId, ToolName
from callboard.providers.base_decoder import list_at
from callboard.providers.json_values import JsonObject, load_object

CONTEXT_TOOL: Final = ToolName("request_code_context")
#: Worth ten places: as many as a person reads.
TOKEN_BUDGET: Final = 2_000
#: Of each place's code, enough to recognise it.
SNIPPET_LINES: Final = 8

HOW_TO_CONFIGURE: Final = (
    "No model was asked; to ask one, choose it with --model provider/model and set its key: "
    "openai/... (OPENAI_API_KEY), anthropic/... (ANTHROPIC_API_KEY), gemini/... (GEMINI_API_KEY), "
    "or a local server without a key: ollama/..."
)


class Offline:
    """Answers from the code index alone. File names are shown relative to `cwd` where they lie below it."""

    name: Final = "offline"

    def __init__(self, cwd: str = "") -> None:
        self._cwd = cwd

    async def stream(self, request: model.ModelRequest, /) -> AsyncGenerator[list[model.StreamEvent], None]:
        """See `Provider.stream`."""
        for events in answer(request, self._cwd):
            yield events

    async def aclose(self) -> None:
        """There is nothing to close."""


def answer(request: model.ModelRequest, cwd: str = "") -> list[list[model.StreamEvent]]:
    """The batches of events that answer this request."""
    question = ""
    for message in reversed(request.messages):
        if isinstance(message, ToolMessage) and message.name == CONTEXT_TOOL:
            return _said(_report(message, cwd))
        if isinstance(message, UserMessage):
            question = message.text
            break
    offered = any(tool.name == CONTEXT_TOOL for tool in request.tools)
    if not offered or request.tool_choice.mode is model.ToolChoiceMode.NONE:
        return _said(["There is no code to search: no workspace is set up here.\n"])
    call_id = CallId("call_context")
    asked: list[model.StreamEvent] = [
        model.ToolCallStart(call_id, CONTEXT_TOOL),
        model.ToolCallDelta(call_id, orjson.dumps({"token_budget": TOKEN_BUDGET, "hint": question}).decode()),
        model.ToolCallComplete(call_id),
        model.Done(model.FinishReason.TOOL_CALLS, usage=model.Usage(), model="offline"),
    ]
    return [asked]


def _said(paragraphs: list[str]) -> list[list[model.StreamEvent]]:
    texts = [*(f"{paragraph}\n" for paragraph in paragraphs), f"{HOW_TO_CONFIGURE}\n"]
    batches: list[list[model.StreamEvent]] = [[model.TextDelta(text)] for text in texts]
    batches[-1].append(model.Done(model.FinishReason.STOP, usage=model.Usage(), model="offline"))
    return batches


def _report(message: ToolMessage, cwd: str) -> list[str]:
    result = load_object(message.content)
    if result is None:
        return ["The code search gave an answer that cannot be read.\n"]
    if message.is_error or not result.get("ok"):
        reason = str(result.get("message") or result.get("code") or "it did not say why").rstrip(".")
        return [f"The code search failed: {reason}.\n"]
    places = [place for place in list_at(result, "context") if isinstance(place, dict)]
    if not places:
        return [f"Nothing was found for {result.get('query')!r}. Other words may help: names from the code do best.\n"]
    found = f"{len(places)} place{'s' if len(places) > 1 else ''} in the code for {result.get('query')!r}:\n"
    return [found, *(_place(place, cwd) for place in places)]


def _place(place: JsonObject, cwd: str) -> str:
    where = f"{_relative(str(place.get('file', '')), cwd)}:{place.get('lines', '')}"
    name = place.get("canonical_path") or place.get("name") or ""
    lines = _code_lines(str(place.get("snippet", "")))
    shown = lines[:SNIPPET_LINES]
    if len(lines) > len(shown):
        shown.append(f"... {len(lines) - len(shown)} more lines")
    return "\n".join([f"{where}  {name}".rstrip(), *(f"    {line}".rstrip() for line in shown), ""])


def _code_lines(snippet: str) -> list[str]:
    fences = [fence for fence in parse_fences(snippet) if isinstance(fence, CodeFence)]
    code = "\n".join(fence.code for fence in fences) if fences else snippet
    # Not splitlines: form feeds and U+2028 do not end a line of code.
    return code.expandtabs(4).strip("\n").split("\n")


def _relative(file: str, cwd: str) -> str:
    return os.path.relpath(file, cwd) if cwd and file.startswith(cwd.rstrip(os.sep) + os.sep) else file
