"""Tools that a model is not shown from the beginning, and finds by searching: the deferred ones.

Deferred are the tools that are marked so (`ToolDefinition.deferred`) and, with `RequestOptions.tools_budget_tokens`,
those that do not fit into that budget. In their place the model is offered a search tool of ours, whose calls the
session answers by itself. What was found is offered from the next model call on, behind all other tools and in the
order in which it was found, and stays to the end of the request: a prompt cache keeps what stands before it. A provider
with a search of its own is asked to search by that (`ToolSearch`, and providers/request_encoding.py); what it finds
(`ServerTool.found`) counts as found here, too.

What was found follows from the messages and the calls alone, so it is the same after a crash, at another provider, and
in a later request of the conversation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import orjson
from msgspec.structs import replace

from callboard.protocol import content
from callboard.protocol.ids import ToolName
from callboard.protocol.output import AnswerCall, AnsweredCall
from callboard.protocol.prompt_tokens import TokenCounter, tools_tokens
from callboard.protocol.tools import FailureCode, ToolDefinition, ToolFailure, ToolSearch

#: The name of our search tool, where no other tool has it.
SEARCH_TOOL: Final = ToolName("tool_search")
#: Tools that one search finds. Anthropic's finds three to five (docs, "Tool search tool").
MAX_FOUND: Final = 5
#: Names that the search tool says, so that the model knows what there is: some 250 tokens.
MAX_LISTED: Final = 40
MAX_QUERY_CHARS: Final = 500
_QUERY: Final = "query"
#: Of a tool's texts so much is searched.
_MAX_TEXT_CHARS: Final = 4_000
#: A word of the name says more of a tool than one of its description.
_NAME_WEIGHT: Final = 3
#: The usual constants of BM25: how soon more of the same word counts for less, and how much long texts count for less.
_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75
#: A word of so many letters of the query also finds what it begins, where no tool has the word itself.
_MIN_PREFIX_CHARS: Final = 4

#: Words of a query that say nothing of a tool.
_OF_ANY_QUERY: Final = frozenset(
    (
        "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how",
        "i", "if", "in", "is", "it", "me", "my", "of", "on", "or", "some", "that", "the", "there",
        "this", "to", "tool", "use", "what", "when", "where", "which", "who", "with", "you", "your",
    )
)  # fmt: skip

_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: Words of several parts.
_COMPOUND: Final = re.compile(r"\b[A-Za-z0-9]*(?:[a-z][A-Z0-9]|[0-9][A-Za-z])[A-Za-z0-9]*")
#: From here on scripts are written without spaces between words: each character is searched for by itself.
_NO_SPACES_FROM: Final = "\u2e80"


class DeferredTools:
    """The deferred tools of one request, and which of them were found by now."""

    def __init__(
        self,
        definitions: Sequence[ToolDefinition],
        deferred: Collection[ToolName],
        taken: Collection[ToolName],
        history: Iterable[content.Message] = (),
    ) -> None:
        """`taken`: names that the search tool must not have. `history`: where earlier requests may have found some."""
        name, number = SEARCH_TOOL, 2
        while name in taken:
            name, number = ToolName(f"{SEARCH_TOOL}_{number}"), number + 1
        hidden = {tool.name: replace(tool, deferred=True) for tool in definitions if tool.name in deferred}
        self.told = ToolSearch(name, tuple(hidden.values()))
        self.offered = (
            *(openly(tool) for tool in definitions if tool.name not in deferred),
            search_tool(name, hidden),
        )
        """What is offered from the beginning, our search tool last."""
        self._hidden = hidden
        self._found: dict[ToolName, ToolDefinition] = {}
        self.read(history)

    @property
    def found(self) -> tuple[ToolDefinition, ...]:
        """In the order in which they were found."""
        return tuple(self._found.values())

    @property
    def hidden(self) -> Collection[ToolName]:
        """Which were not found yet."""
        return self._hidden.keys()

    def read(self, messages: Iterable[content.Message], *, with_calls: bool = True) -> bool:
        """Notice what these messages have found, or (`with_calls`) called. Was there something new?"""
        before = len(self._found)
        for message in messages:
            if isinstance(message, content.AssistantMessage):
                for part in message.parts:
                    if isinstance(part, content.ServerTool):
                        self._take(part.found)
                if with_calls:
                    self._take(call.name for call in message.tool_calls)
            elif isinstance(message, content.ToolMessage) and message.name == self.told.name and not message.is_error:
                self._take(_names_in(message.content))
        return len(self._found) > before

    def _take(self, names: Iterable[str]) -> None:
        for name in map(ToolName, names):
            if (tool := self._hidden.pop(name, None)) is not None:
                self._found[name] = openly(tool)

    def answers(self, turn: content.AssistantMessage) -> Mapping[int, AnsweredCall]:
        """The calls of a turn that are about deferred tools, by their places.

        A tool that was not found is not run: the model does not know what it does and takes. It is offered then, and
        the model reads so.
        """
        found: dict[int, AnsweredCall] = {}
        for place, call in enumerate(turn.tool_calls):
            if call.name in self._hidden:
                found[place] = AnsweredCall(AnswerCall.UNFIT, failure=_not_looked_up(call.name))
            elif call.name == self.told.name:
                found[place] = self._search(call.arguments) if call.complete else AnsweredCall(AnswerCall.UNFIT)
        return found

    def _search(self, arguments: str) -> AnsweredCall:
        query = orjson.loads(arguments).get(_QUERY)
        if not isinstance(query, str) or not query.strip():
            told = f"A search needs a {_QUERY}: a few words that say what the tool should do."
            received = content.json_text(query)[:MAX_QUERY_CHARS] if query is not None else ""
            code = FailureCode.INVALID_ARGUMENTS
            failure = ToolFailure(self.told.name, code, told, _QUERY, "a text", received)
            return AnsweredCall(AnswerCall.UNFIT, failure=failure)
        best = ranked(query[:MAX_QUERY_CHARS], self.told.deferred)[:MAX_FOUND]
        told = "You can call these from your next turn on."
        if not best:
            names = _listed([tool.name for tool in self.told.deferred])
            told = f"Nothing fits. Search again in other words, or by a name. There are: {names}."
        tools = [{"name": tool.name, "description": tool.description} for tool in best]
        result = content.json_text({"ok": True, "tools": tools, "message": told})
        return AnsweredCall(AnswerCall.FOUND, result)


def deferred_names(
    definitions: Sequence[ToolDefinition],
    budget: int | None,
    count: TokenCounter,
    always: Collection[ToolName | None],
) -> frozenset[ToolName]:
    """Which tools are deferred: those marked so and, in their order, each that the others leave no room for in the
    budget of tokens; those that are `always` shown count, too."""
    left = math.inf if budget is None else budget
    found: set[ToolName] = set()
    for tool in definitions:
        size = 0 if budget is None else tools_tokens((tool,), count)
        if tool.name in always:
            left -= size
        elif tool.deferred or size > left:
            found.add(tool.name)
        else:
            left -= size
    return frozenset(found)


def openly(tool: ToolDefinition) -> ToolDefinition:
    """As it is shown: not deferred, or not any more."""
    return replace(tool, deferred=False) if tool.deferred else tool


def search_tool(name: ToolName, names: Collection[ToolName]) -> ToolDefinition:
    """Our search tool, as the model sees it: the same all through a request."""
    told = (
        f"Finds further tools, which you are not shown yet: there are {len(names)}. What it finds you can call from "
        "your next turn on. Search before you say that you cannot do something, and before you call a tool that you "
        f"were not shown. There are: {_listed(list(names))}."
    )
    about = "A few words that say what the tool should do, or its name."
    parameters = {"type": "object", "properties": {_QUERY: {"type": "string", "description": about}}}
    return ToolDefinition(name, told, {**parameters, "required": [_QUERY], "additionalProperties": False})


def _listed(names: Sequence[ToolName]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _not_looked_up(name: ToolName) -> ToolFailure:
    told = f"{name} was not run: you were not shown yet what it does and which arguments it takes."
    hint = "It is among your tools from now on: read its description, then call it if it is what you need."
    return ToolFailure(name, FailureCode.UNKNOWN_TOOL, told, retry_hint=hint)


def _names_in(result: str) -> Iterator[str]:
    """The tools that a result of the search tool names; none where compaction has put something in its place."""
    try:
        tools = orjson.loads(result)["tools"]
        yield from [tool["name"] for tool in tools if isinstance(tool["name"], str)]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return


# The search: BM25 over the words of each tool's name, description and arguments.


def ranked(query: str, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """The tools that fit a query, the best first; equally good ones in their order."""
    counts = [_counts(tool.name, tool.description, content.json_text(_says(tool.parameters))) for tool in tools]
    asked = _asked(query, counts)
    lengths = [sum(each.values()) for each in counts]
    mean = sum(lengths) / max(len(lengths), 1) or 1.0
    scores = [0.0] * len(tools)
    for word in asked:
        holders = [place for place, each in enumerate(counts) if word in each]
        rarity = math.log1p((len(tools) - len(holders) + 0.5) / (len(holders) + 0.5))
        for place in holders:
            times, size = counts[place][word], lengths[place] / mean
            norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * size)
            scores[place] += rarity * times * (_SATURATION + 1) / (times + norm)
    named = set(query.replace(",", " ").replace('"', " ").replace("'", " ").split())
    fits = [place for place, score in enumerate(scores) if score > 0 or tools[place].name in named]
    fits.sort(key=lambda place: (tools[place].name not in named, -scores[place]))
    return [tools[place] for place in fits]


def _asked(query: str, counts: Sequence[Mapping[str, int]]) -> list[str]:
    known = dict.fromkeys(word for each in counts for word in each)
    asked: dict[str, None] = {}
    for word in _words(query):
        if word in _OF_ANY_QUERY:
            continue
        if word in known:
            asked[word] = None
        elif len(word) >= _MIN_PREFIX_CHARS:
            asked.update((each, None) for each in known if each.startswith(word))
    return list(asked)


@lru_cache(maxsize=4_096)
def _counts(name: str, description: str, arguments: str) -> Mapping[str, int]:
    found = Counter(_words(f"{description} {arguments}"[:_MAX_TEXT_CHARS]))
    for word in _words(name):
        found[word] += _NAME_WEIGHT
    return found


def _says(parameters: Mapping[str, object]) -> dict[str, object]:
    """The names of the arguments, and what is said of them."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: each.get("description") for name, each in properties.items() if isinstance(each, Mapping)}


def _words(text: str) -> Iterator[str]:
    """The words of a text as they are compared: small letters, the parts of compound names, no plural."""
    if text.isascii():
        yield from map(_stem, map(str.lower, _PART.findall(text)))
        yield from map(_stem, map(str.lower, _COMPOUND.findall(text)))  # "GitHub" is "github", too
        return
    for word in _WORD.findall(text):
        if word.isascii():
            yield from _words(word)
        elif max(word) >= _NO_SPACES_FROM:
            yield from word
        else:
            yield word.lower()


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
