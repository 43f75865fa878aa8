"""What models said when they refused a request: that they take no tools, search for none, take no schema of the answer,
that they take not this schema, or not this tool as a strict one, or how small their window is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2s
from typing import Final, TypeVar

from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.model import Error
from callboard.protocol.tools import ToolDefinition, ToolSearch

#: For so long a model is asked without tools: routes change, and servers are started with other options.
NO_TOOLS_SECONDS: Final = 3_600.0
#: For so long it is asked for an answer's form in another way than by a schema, or by this one; and for calls of a tool
#: without `strict`.
NO_SCHEMA_SECONDS: Final = 3_600.0
#: For so long a window is believed. Shorter, because a window that is too small can refuse a question: a model that was
#: loaded with a larger one (LM Studio, Ollama) is found out by asking it.
WINDOW_SECONDS: Final = 300.0
#: Models of which something is remembered, and schemas: more than any settings name.
MAX_MODELS: Final = 1_000

#: What is said of the model, whatever the schema is: OpenAI (langchain 31490), DeepSeek (litellm 31466), Groq
#: (beeai-framework 1215), Gemini (python-genai 867), Claude elsewhere than at Anthropic (litellm 27846), llama.cpp, and
#: servers that check their fields (autogen 6255). The numbers are issues of the repository named.
_OF_THE_MODEL: Final = re.compile(
    r"does(?: not|n['’]t) support (?:response[ _]format|output[ _]format|json_schema|structured outputs?)"
    r"|(?:json_schema|response_format(?: type)?)['`\"]? (?:of type \S+ )?(?:is|are) (?:not supported|unavailable)"
    r"|JSON mode is not enabled|cannot be combined with tool|with a response mime type|grammar constraints with tools"
    r"|(?:output_config(?:\.format)?|output_format): Extra inputs"
    r"|(?:Unsupported parameter|Unrecognized request argument supplied|Unknown parameter): '?(?:response_format|text\.)"
    r"|response_format[`'\"]? does(?: not|n['’]t) support streaming"  # Groq (langchain 23629)
    r"|response_format['\"]? ?: (?:one of the following must be satisfied|value is not one of)",
    re.IGNORECASE,
)
_OF_THE_ANSWER: Final = re.compile(
    r"response[ _]format|text\.format|output_config|output_format|GenerationConfig|generation_config", re.IGNORECASE
)
#: "Invalid schema for function 'x'" (OpenAI), "tools.1.custom: ..." (Anthropic; Bedrock, litellm 39115),
#: "tools[36].parameters" (OpenAI's `param`).
_OF_A_TOOL: Final = re.compile(r"(?:function|tool) ['\"`](?P<name>[\w-]{1,64})['\"`]|\btools[.\[](?P<place>\d{1,4})")

#: Of a refusal to search for tools: "Tool 'tool_search' is not supported with gpt-5.4-nano.", "tools.0.defer_loading:
#: Extra inputs are not permitted" (Oaklight/llm-rosetta #394; what Anthropic says of a field that it does not know).
_NO_SEARCH: Final = re.compile(r"tool_search|defer_loading|tool_reference")
_K = TypeVar("_K")
_T = TypeVar("_T")


class Refusals:
    """Learned by the LLM manager as models refuse, on the loop; read when a request begins, on any thread.

    It belongs to the runtime and outlives the manager. `name` is "provider/model", `now` the runtime's clock (seconds).
    """

    def __init__(self, *, remembers_no_tools: bool = True) -> None:
        """`remembers_no_tools`: not where such a refusal is to end the request, each time (ToolFallback.FAIL)."""
        self._remembers_no_tools = remembers_no_tools
        self._no_tools: dict[str, float] = {}
        """Until when it is believed."""
        self._no_schemas: dict[tuple[str, str], float] = {}
        """By model and schema; of all schemas: "" in its place."""
        self._not_strict: dict[tuple[str, str], float] = {}
        """By model and tool."""
        self._no_searches: dict[str, float] = {}
        self._windows: dict[str, tuple[int, float]] = {}

    def forget(self, *, remembers_no_tools: bool) -> None:
        """The names may stand for other models from now on."""
        self._remembers_no_tools = remembers_no_tools
        memories = (self._no_tools, self._no_schemas, self._not_strict, self._no_searches, self._windows)
        for memory in memories:
            memory.clear()

    def learn_no_tools(self, name: str, now: float) -> None:
        """The model takes no tools."""
        if self._remembers_no_tools:
            _remember(self._no_tools, name, now + NO_TOOLS_SECONDS)

    def forget_no_tools(self, name: str) -> None:
        """It refused a request without tools in the same words: they meant something else."""
        self._no_tools.pop(name, None)

    def takes_tools(self, name: str, now: float) -> bool:
        """True unless it has refused them within the hour."""
        return self._no_tools.get(name, now) <= now

    def learn_no_schema(self, name: str, now: float, schema: Mapping[str, object] | None = None) -> None:
        """The model takes no schema of the answer, or not this one."""
        _remember(self._no_schemas, (name, _print_of(schema)), now + NO_SCHEMA_SECONDS)

    def takes_schemas(self, name: str, now: float, schema: Mapping[str, object] | None = None) -> bool:
        """True unless it has refused them, or this one, within the hour."""
        until = self._no_schemas
        if not until:
            return True
        return until.get((name, ""), now) <= now and (
            schema is None or until.get((name, _print_of(schema)), now) <= now
        )

    def learn_not_strict(self, name: str, tools: Sequence[ToolDefinition], now: float) -> None:
        """The model does not take these tools as strict ones."""
        for tool in tools:
            _remember(self._not_strict, (name, f"{tool.name} {_print_of(tool.parameters)}"), now + NO_SCHEMA_SECONDS)

    def search_as_taken(self, name: str, search: ToolSearch | None, now: float) -> ToolSearch | None:
        """The deferred tools as the model takes them; None where its provider has refused to search for tools: our own
        search is among those that are not deferred."""
        if search is None or self._no_searches.get(name, now) > now:
            return None
        return replace(search, deferred=self.as_taken(name, search.deferred, now))

    def as_taken(self, name: str, tools: tuple[ToolDefinition, ...], now: float) -> tuple[ToolDefinition, ...]:
        """The tools as the model takes them: those are not strict that it has refused so within the hour."""
        if not self._not_strict:
            return tools
        return tuple(
            replace(tool, strict=False)
            if tool.strict and self._not_strict.get((name, f"{tool.name} {_print_of(tool.parameters)}"), now) > now
            else tool
            for tool in tools
        )

    def learn_no_search(self, name: str, error: Error, now: float) -> bool:
        """Does the model's provider refuse to search for deferred tools by this error, and is that news?"""
        is_news = 400 <= error.status < 500 and self._no_searches.get(name, now) <= now
        if is_news := is_news and _NO_SEARCH.search(f"{error.message} {error.raw}") is not None:
            _remember(self._no_searches, name, now + NO_TOOLS_SECONDS)
        return is_news

    def learn_window(self, name: str, tokens: int, now: float) -> None:
        """The model takes no more tokens than these, its answer included."""
        _remember(self._windows, name, (tokens, now + WINDOW_SECONDS))

    def window(self, name: str, now: float) -> int | None:
        """The window that it named not long ago, when it refused a prompt as too long; None: it has not."""
        tokens, until = self._windows.get(name, (0, now))
        return tokens if until > now else None


def is_of_the_model(message: str) -> bool:
    """Does a refusal of a schema hold for any schema? Where it is not clear, it is believed of that one alone."""
    return _OF_THE_MODEL.search(message) is not None


def names_a_tool(message: str) -> bool:
    """Is a refusal of a schema about that of a tool?"""
    return _OF_A_TOOL.search(message) is not None


def refused_as_strict(
    message: str, tools: Sequence[ToolDefinition], *, has_answer_schema: bool
) -> Sequence[ToolDefinition]:
    """The strict tools that a refusal of a schema is about: the one that it names, or all where it names none; (): it
    is about the answer's schema."""
    strict = [tool for tool in tools if tool.strict]
    if has_answer_schema and _OF_THE_ANSWER.search(message):
        return ()
    if named := _OF_A_TOOL.search(message):
        place = int(named["place"]) if named["place"] else -1
        return [tool for at, tool in enumerate(tools) if tool.strict and (tool.name == named["name"] or at == place)]
    return strict


def _print_of(schema: Mapping[str, object] | None) -> str:
    if schema is None:
        return ""
    return blake2s(json_text(schema).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _remember(memory: dict[_K, _T], name: _K, value: _T) -> None:
    memory.pop(name, None)
    memory[name] = value
    if len(memory) > MAX_MODELS:
        del memory[next(iter(memory))]
