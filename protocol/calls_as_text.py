"""Calls as text: a history for a model that takes no tools, and answers in which a model has written a call itself.

The history says in words what was called, and what came of it.

Servers that refuse `tools` refuse calls and results in the messages as well (Perplexity: "role: Input should be
'system', 'user' or 'assistant'", litellm issue 11665; the chat templates of Gemma and Llama 2 know no other roles).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Final

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Audio,
    Document,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
    Video,
)
from callboard.protocol.ids import ToolName


def calls_as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without tool calls and results: a call is a sentence of its turn, and the results of a turn are one
    user message. What a provider wants back of such a turn (signatures, reasoning) belongs to the calls, and goes too.
    """
    told: list[Message] = []
    for are_results, group in groupby(messages, lambda message: isinstance(message, ToolMessage)):
        if are_results:
            results = [result for result in group if isinstance(result, ToolMessage)]
            told.append(UserMessage(tuple(part for result in results for part in _result(result))))
        else:
            told += (_turn(message) if isinstance(message, AssistantMessage) else message for message in group)
    return tuple(told)


def _turn(turn: AssistantMessage) -> AssistantMessage:
    if not turn.tool_calls:
        return turn
    told: list[AssistantPart] = []
    for part in turn.parts:
        if isinstance(part, ToolCall):
            call = f"[Called {part.name} with {part.arguments}]"
            told.append(Text(f"\n{call}" if told else call))  # most APIs join the texts of a turn
        elif not isinstance(part, Thinking):
            told.append(Text(part.text) if isinstance(part, Text) else part)
    return AssistantMessage(tuple(told))


def _result(result: ToolMessage) -> Iterator[UserPart]:
    yield Text(f"[{result.name} {'failed' if result.is_error else 'returned'}]\n{result.content}")
    yield from (part for part in result.media if isinstance(part, Image | Document | Audio | Video))


# What a model writes where its server does not read its markup.

#: How the calls of model families begin and end ("": with the text), with the full-width bars and blocks of DeepSeek's
#: tokens as plain ones. By the parsers of vLLM (vllm/tool_parsers, vllm/parser) and SGLang (function_call), and by who
#: has seen it as an answer.
_MARKUPS: Final = (
    # Hermes, Qwen (vllm issue 40801), GLM; in these tags Qwen3-Coder's and Granite's own forms, too.
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),  # Jamba, Hunyuan
    ("<tools>", "</tools>"),  # Qwen2.5-Coder (hanXen/vllm-qwen2.5-coder-tool-parser)
    ("<function=", "</function>"),  # Qwen3-Coder without its outer tags, Llama's custom tools
    ("<function_call>", "</function_call>"),
    ("<functioncall>", "</functioncall>"),
    ("<function_calls>", "</function_calls>"),  # Claude's old form, Olmo
    ("<invoke name=", "</invoke>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),  # agent-os pull 1515
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    # DeepSeek's DSML (opensquilla issue 985, xagent issue 806, ds4-on-spark issue 20), and its tokens before that.
    ("<|DSML|tool_calls>", "</|DSML|tool_calls>"),
    ("<|DSML|function_calls>", "</|DSML|function_calls>"),
    ("<|DSML|invoke", "</|DSML|invoke>"),
    ("<|tool_calls_begin|>", "<|tool_calls_end|>"),
    ("<|tool_call_begin|>", "<|tool_call_end|>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi K2
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    ("<|tool_call|>", ""),  # Granite 3, Phi-4
    ("<|tool_call>", "<tool_call|>"),  # Gemma 4
    ("<|python_tag|>", ""),  # Llama 3
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Cohere
    ("<|action_start|>", "<|action_end|>"),  # InternLM
    ("<|channel|>commentary to=functions.", "<|call|>"),  # gpt-oss
    ("[TOOL_CALLS]", ""),  # Mistral
    ("functools[", ""),  # Phi-4-mini
    ("```tool_code", "```"),  # Gemma
    ("```tool_call", "```"),
)
#: Llama 4's calls in Python's form, with nothing around them.
_PYTHONIC: Final = re.compile(r"\[\s*[A-Za-z_][\w.]*\([^\[\]]*\)\s*\]")
#: Gemma 4's calls without their tags (openclaude issue 380).
_BARE_GEMMA: Final = re.compile(r"call:[A-Za-z_][\w.-]*\s*\{.*\}", re.DOTALL)
#: A fence around nothing but JSON.
_FENCED: Final = re.compile(r"```json\s*\n([^`]*)```")
#: A stray word on a line of its own, before Claude's markup: "court", "call" (claude-code issues 64700, 68354, 69841).
_STRAY_WORD: Final = re.compile(r"[A-Za-z]{1,20}[ \t]*\r?\n\s*(?=<invoke name=|<function_calls>)")
_WORD_CHARS: Final = 100
#: What ends a turn of Llama's or Qwen's, where its server passes it on.
_TURN_ENDS: Final = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>")
#: Where the name of the tool is, by the forms above.
_NAMES: Final = re.compile(
    r"""
      "(?:tool_)?name"\s*:\s*"(?P<json>[^"\\]+)"
    | "function"\s*:\s*"(?P<of>[^"\\]+)"
    | <function=(?P<coder>[^>\s]+)
    | invoke\s+name=["']?(?P<invoke>[^"'>\s]+)
    | <tool_call>\s*(?P<glm>[\w.-]+)
    | <\|tool_sep\|>\s*(?P<deepseek>[\w.-]+)
    | <\|tool_call_begin\|>\s*(?:functions\.)?(?P<kimi>[\w.-]+)
    | to=functions\.(?P<harmony>[\w.-]+)
    | call:(?P<gemma>[\w.-]+)
    | \[TOOL_CALLS\]\s*(?P<mistral>[\w.-]+)
    | (?P<python>[A-Za-z_][\w.]*?)(?:\.call)?\(
    """,
    re.VERBOSE,
)
#: A call names its tool near its beginning; what comes later are its arguments, or another call.
_NAME_CHARS: Final = 1_000
#: The fields of a call that is written as bare JSON (Llama 3, Qwen2.5-Coder: omlx issue 2565), at most.
_FIELDS: Final = frozenset({"name", "arguments", "parameters", "type", "id", "function"})
#: Those of a call as it is in OpenAI's messages, and of Claude's block, both with an id or without.
_OUTER_FIELDS: Final = frozenset({"type", "id", "index", "function"})
_INNER_FIELDS: Final = frozenset({"name", "arguments"})
_BLOCK_FIELDS: Final = frozenset({"type", "id", "name", "input"})
#: Longer answers are read no further for it.
_MOST_CHARS: Final = 100_000
_THOUGHT: Final = re.compile(r"<think>.*?</think>", re.DOTALL)


def written_call(text: str, offered: Collection[ToolName]) -> ToolName | None:
    """The tool of those that were offered of which the text is a call and nothing else, in some model's own markup;
    None for any other text, such as prose that quotes one."""
    if not offered or len(text) > _MOST_CHARS:
        return None
    text = text.strip()
    if text.startswith("<think>"):
        text = _THOUGHT.sub("", text, count=1).strip()
    if text[:1] not in _FIRST_CHARACTERS:
        stray = _STRAY_WORD.match(text) if "\n<" in text[:_WORD_CHARS] else None
        if stray is None and not text.startswith("call:"):
            return None  # nearly every answer
        text = text[stray.end() :] if stray is not None else text
    text = text.replace("｜", "|").replace("▁", "_").replace("||", "|")
    for end in _TURN_ENDS:
        text = text.removesuffix(end).rstrip()
    if (fenced := _FENCED.fullmatch(text)) is not None:
        text = fenced[1].strip()
        names = _bare_names(text)
    elif _is_markup(text) or _PYTHONIC.fullmatch(text) or _BARE_GEMMA.fullmatch(text):
        names = [name for found in _NAMES.finditer(text[:_NAME_CHARS]) for name in found.groups() if name]
    else:
        names = _bare_names(text)
    return next((tool for name in names for tool in (ToolName(name), _last(name)) if tool in offered), None)


#: A text that begins otherwise is none of these.
_FIRST_CHARACTERS: Final = frozenset(begin[0] for begin, _ in _MARKUPS) | {"{", "["}


def _last(name: str) -> ToolName:
    """`weather` of `default_api.weather` or `functions.weather`."""
    return ToolName(name.rpartition(".")[2].partition(":")[0])


def _is_markup(text: str) -> bool:
    """Is it calls from its beginning to its end? The last may be cut."""
    at = 0
    while at < len(text):
        found = next(((begin, end) for begin, end in _MARKUPS if text.startswith(begin, at)), None)
        if found is None:
            return False
        begin, end = found
        over = text.find(end, at + len(begin)) if end else -1
        if over < 0:
            return True
        at = over + len(end)
        while at < len(text) and text[at].isspace():
            at += 1
    return bool(text)


def _bare_names(text: str) -> list[str]:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return []
    calls = value if isinstance(value, list) else [value]
    names = [_name_of(call) if isinstance(call, dict) else "" for call in calls]
    return names if all(names) else []


def _name_of(value: dict[str, object]) -> str:
    """The tool that a JSON object is a call of, with a call's fields and no others; "" for any other object."""
    kind, inner = value.get("type"), value.get("function")
    if isinstance(inner, dict):  # OpenAI's form
        is_call = kind == "function" and value.keys() <= _OUTER_FIELDS and inner.keys() == _INNER_FIELDS
        arguments, name = inner.get("arguments"), inner.get("name")
    elif kind == "tool_use":  # Claude's
        is_call, arguments, name = value.keys() <= _BLOCK_FIELDS, value.get("input"), value.get("name")
    else:
        is_call, arguments = value.keys() <= _FIELDS, value.get("arguments", value.get("parameters"))
        name = value.get("name")
    return name if is_call and isinstance(name, str) and isinstance(arguments, dict | str) else ""
