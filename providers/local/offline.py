"""The embedded default: no model, no key, no network. It looks a question up in the code index and says what is there.

A pure function of the conversation. The user's message it answers by asking for code context, the context by a text:
how sure it is, the best place whole, the next ones in a line each. It goes through the same session, dispatcher and
index as any model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

import orjson

from callboard.protocol import model
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.ids import CallId, ToolName
from callboard.providers.json_values import JsonObject, list_at, load_object

CONTEXT_TOOL: Final = ToolName("request_code_context")
#: Enough that the best place is whole: the search gives one symbol a quarter of it.
TOKEN_BUDGET: Final = 4_000
#: As many places as a person looks at.
MAX_PLACES: Final = 5
#: Of a place that holds several.
MAX_SYMBOLS: Final = 3
#: Of the best place; a longer one is cut.
MAX_LINES: Final = 80
#: What is written for people is quoted, not shown as code.
PROSE: Final = (".md", ".mdx", ".markdown", ".rst", ".adoc", ".asciidoc", ".txt")
#: How an answer begins, by how well the search says that it fits.
OPENINGS: Final = {
    "good": "{question!r} is most likely answered here:",
    "unsure": "It is not certain that this answers {question!r}; the best place comes first:",
    "nothing": "Nothing in this workspace seems to fit {question!r}. The nearest, which may have little to do with it:",
}

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
        model.ToolCallDelta(call_id, orjson.dumps({"queries": [question], "token_budget": TOKEN_BUDGET}).decode()),
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
    places = [place for each in list_at(result, "context") if isinstance(each, dict) and (place := _place(each, cwd))]
    question = " / ".join(str(query) for query in list_at(result, "queries"))
    if not places:
        return [f"Nothing was found for {question!r}. Other words may help: names from the code do best.\n"]
    fit = str(result.get("fit"))
    opening = OPENINGS.get(fit, OPENINGS["unsure"]).format(question=question)
    best = [] if fit == "nothing" else [places[0].whole()]
    folded = [place.line() for place in places[len(best) : MAX_PLACES]]
    return [f"{opening}\n", *best, *(["\n".join([*(["See also:"] if best else []), *folded, ""])] if folded else [])]


class _Place(NamedTuple):
    """One place of the answer, as a person reads it."""

    where: str
    symbols: str
    why: str
    code: str
    is_prose: bool

    def line(self) -> str:
        """The place and why it is named, without its text."""
        return "  ".join(filter(None, (self.where, self.symbols, self.why)))

    def whole(self) -> str:
        """With its text: code is indented, prose is quoted."""
        # Not splitlines: form feeds and U+2028 do not end a line of code.
        lines = self.code.expandtabs(4).strip("\n").split("\n")
        shown = lines[:MAX_LINES]
        if len(lines) > len(shown):
            shown.append(f"... {len(lines) - len(shown)} more lines")
        margin = "> " if self.is_prose else "    "
        return "\n".join([self.line(), *(f"{margin}{line}".rstrip() for line in shown), ""])


def _place(item: JsonObject, cwd: str) -> _Place | None:
    fences = [fence for fence in parse_fences(str(item.get("snippet", ""))) if isinstance(fence, CodeFence)]
    if not fences:
        return None
    path = fences[0].path
    words = ", ".join(map(str, list_at(item, "words")))
    return _Place(
        f"{_relative(path, cwd)}:{item.get('lines', '')}",
        ", ".join(map(str, list_at(item, "symbols")[:MAX_SYMBOLS])),
        f"({words})" if words else "(by its meaning)",
        fences[0].code,
        path.lower().endswith(PROSE),
    )


def _relative(file: str, cwd: str) -> str:
    return os.path.relpath(file, cwd) if cwd and file.startswith(cwd.rstrip(os.sep) + os.sep) else file
