"""What Anthropic Messages accepts (docs/wire.md 1.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from support.rules import NAME, Body, object_root

ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")

ANTHROPIC_BLOCKS = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"},
}


def anthropic(body: Body) -> list[str]:
    return [*_anthropic_messages(body), *_anthropic_tools(body), *_anthropic_thinking(body)]


def _anthropic_messages(body: Body) -> Iterator[str]:
    messages = body.get("messages")
    if not messages or not body.get("model") or not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "model, messages and max_tokens are required"
        return
    if messages[0]["role"] != "user":
        yield "the first message is not the user's"
    if "system" in body and not body["system"]:
        yield "system is empty"
    seen: set[str] = set()
    asked: list[str] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in ANTHROPIC_BLOCKS:
            yield f"role {role!r}"
            continue
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            yield f"an empty {role} message"
        for block in blocks:
            if block.get("type") not in ANTHROPIC_BLOCKS[role]:
                yield f"{block.get('type')!r} in a message of {role}"
            yield from _anthropic_block(block)
        yield from _anthropic_answered(asked, role, blocks)
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if seen & set(asked) or len(set(asked)) != len(asked):
            yield f"`tool_use` ids must be unique: {asked}"
        seen.update(asked)
    if asked:
        yield f"`tool_use` ids without `tool_result` blocks: {asked}"


def _anthropic_answered(asked: Sequence[str], role: str, blocks: Sequence[Body]) -> Iterator[str]:
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if sorted(results) != sorted(asked):
        yield f"results {results} do not answer the calls {asked} of the message before"
    if asked and role != "user":
        yield "calls are not followed by the user's message"
    if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
        yield "something comes before the results"


def _anthropic_block(block: Body) -> Iterator[str]:
    rule = _ANTHROPIC_RULES.get(block.get("type", ""))
    if rule is not None and not rule(block):
        yield f"not a legal block: {block}"


_ANTHROPIC_RULES: Mapping[str, Callable[[Body], bool]] = {
    "text": lambda block: isinstance(block.get("text"), str) and bool(block["text"].strip()),
    "image": lambda block: (
        set(block["source"]) == {"type", "url"} or set(block["source"]) == {"type", "media_type", "data"}
    ),
    "tool_result": lambda block: (
        bool(ANTHROPIC_ID.fullmatch(block["tool_use_id"])) and block.get("content") != [] and "name" not in block
    ),
    "tool_use": lambda block: (
        bool(ANTHROPIC_ID.fullmatch(block["id"]))
        and isinstance(block.get("input"), dict)
        and bool(NAME.fullmatch(block["name"]))
    ),
    "thinking": lambda block: bool(block.get("signature")) and isinstance(block.get("thinking"), str),
    "redacted_thinking": lambda block: bool(block.get("data")),
}


def _anthropic_tools(body: Body) -> Iterator[str]:
    names = []
    for tool in body.get("tools", ()):
        names.append(tool.get("name"))
        if not NAME.fullmatch(str(tool.get("name"))) or "parameters" in tool:
            yield f"not a tool: {tool}"
        yield from object_root(tool.get("input_schema"), f"tool {tool.get('name')}")
    choice = body.get("tool_choice")
    if choice is None:
        return
    if not names:
        yield "tool_choice without tools"
    if choice.get("type") not in ("auto", "any", "none", "tool"):
        yield f"tool_choice {choice}"
    if choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"tool_choice {choice} names no tool"
    if choice.get("type") == "none" and "disable_parallel_tool_use" in choice:
        yield "disable_parallel_tool_use with none"


def _anthropic_thinking(body: Body) -> Iterator[str]:
    thinking = body.get("thinking", {"type": "disabled"})
    if thinking["type"] == "disabled":
        return
    if body.get("tool_choice", {}).get("type", "auto") not in ("auto", "none"):
        yield "thinking with a forced tool"
    if body.get("temperature") not in (None, 1):
        yield "thinking with a temperature"
    if thinking["type"] != "enabled":
        return
    if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        yield f"budget {thinking['budget_tokens']} with max_tokens {body['max_tokens']}"
    last, before = body["messages"][-1], body["messages"][-2:-1]
    if before and last["content"][0]["type"] == "tool_result":
        first = before[0]["content"][0]["type"]
        if first not in ("thinking", "redacted_thinking"):
            yield f"Expected `thinking` or `redacted_thinking`, but found `{first}`"
