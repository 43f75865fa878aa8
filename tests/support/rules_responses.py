"""What OpenAI Responses accepts (docs/wire.md 1.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from support.rules import NAME, Body, is_object_text, object_root, strict_schema

RESPONSES_CONTENT = {
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
}


#: Items of the server's tools: with all their content they go back as they came, the id included.
SERVER_ITEMS = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "compaction",
}


def responses(body: Body) -> list[str]:
    return [*_responses_input(body), *_responses_tools(body)]


def _responses_input(body: Body) -> Iterator[str]:
    items = body.get("input")
    if not items or not body.get("model"):
        yield "model and input are required"
        return
    called: list[str] = []
    answered: list[str] = []
    for position, item in enumerate(items):
        kind = item.get("type", "message")
        rule = _RESPONSES_ITEMS.get(kind)
        if rule is None:
            yield f"unknown item {kind!r}"
            continue
        yield from rule(item)
        yield from _responses_remembered(items, position, body.get("store", True))
        if kind == "function_call":
            called.append(item["call_id"])
        elif kind == "function_call_output":
            answered.append(item["call_id"])
            if item["call_id"] not in called:
                yield f"No tool call found for function call output with call_id {item['call_id']}"
        elif kind == "message" and item["role"] != "assistant" and set(called) != set(answered):
            yield "a message between calls and their outputs"
        follower = items[position + 1].get("type", "message") if position + 1 < len(items) else None
        if kind == "function_call_output" and follower == "function_call" and set(called) != set(answered):
            yield "calls and outputs are interleaved"
    yield from _responses_pairs(called, answered)


def _responses_pairs(called: list[str], answered: list[str]) -> Iterator[str]:
    for ids in (called, answered):
        if len(set(ids)) != len(ids):
            yield f"call ids repeat: {ids}"
    if set(called) - set(answered):
        yield f"calls without output: {set(called) - set(answered)}"


def _responses_remembered(items: Sequence[Body], position: int, store: bool) -> Iterator[str]:
    item = items[position]
    if item.get("type") == "reasoning":
        if not _follows_reasoning(items, position):
            yield "reasoning without its required following item"
    elif item.get("id") and not store and item.get("type") not in SERVER_ITEMS:
        yield f"an item with an id of the server's, which keeps none: {item}"


def _follows_reasoning(items: Sequence[Body], position: int) -> bool:
    for item in items[position + 1 :]:
        kind = item.get("type", "message")
        if kind != "reasoning":
            return kind in {"function_call", *SERVER_ITEMS} or item.get("role") == "assistant"
    return False


def _responses_message(item: Body) -> Iterator[str]:
    allowed = RESPONSES_CONTENT.get(item.get("role", ""))
    content = item.get("content")
    if allowed is None or not isinstance(content, str | list):
        yield f"not a message: {item}"
    elif isinstance(content, list):
        for part in content:
            if part.get("type") not in allowed:
                yield f"{part.get('type')!r} in a message of {item['role']}"
            if part.get("type") == "input_image" and not _shows(part):
                yield f"an image without url: {part}"


def _shows(part: Body) -> bool:
    return bool(part.get("file_id")) or str(part.get("image_url")).startswith(("http", "data:"))


def _responses_call(item: Body) -> Iterator[str]:
    if not is_object_text(item.get("arguments")):
        yield f"arguments are not the text of an object: {item}"
    if not NAME.fullmatch(str(item.get("name"))):
        yield f"name {item.get('name')!r}"
    yield from _responses_call_id(item)


def _responses_output(item: Body) -> Iterator[str]:
    if not isinstance(item.get("output"), str | list):
        yield f"an output that is neither text nor list: {item}"
    yield from _responses_call_id(item)


def _responses_call_id(item: Body) -> Iterator[str]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= 64:
        yield f"call_id {call_id!r}"


def _responses_reasoning(item: Body) -> Iterator[str]:
    if not isinstance(item.get("summary"), list) or not (item.get("encrypted_content") or item.get("content")):
        yield f"reasoning that the server cannot know: {item}"


def _responses_server_item(item: Body) -> Iterator[str]:
    if not item.get("id"):
        yield f"an item of the server's without its id: {item}"


_RESPONSES_ITEMS: Mapping[str, Callable[[Body], Iterator[str]]] = {
    "message": _responses_message,
    "function_call": _responses_call,
    "function_call_output": _responses_output,
    "reasoning": _responses_reasoning,
    **dict.fromkeys(SERVER_ITEMS, _responses_server_item),
}


def _responses_tools(body: Body) -> Iterator[str]:
    names = []
    for tool in body.get("tools", ()):
        names.append(tool.get("name"))
        if tool.get("type") != "function" or "function" in tool or "strict" not in tool:
            yield f"not a flat function tool with strict: {tool}"
        if not NAME.fullmatch(str(tool.get("name"))):
            yield f"tool name {tool.get('name')!r}"
        yield from object_root(tool.get("parameters"), f"tool {tool.get('name')}")
        if tool.get("strict"):
            yield from strict_schema(tool["parameters"], f"tool {tool['name']}")
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function" or choice.get("name") not in names:
            yield f"tool_choice {choice} names no tool"
    elif choice not in (None, "auto", "none", "required"):
        yield f"tool_choice {choice!r}"
    for refused in ("stop", "seed", "messages", "max_tokens", "response_format"):
        if refused in body:
            yield f"unknown parameter {refused!r}"
    yield from _responses_answer(body.get("text", {}).get("format"))


def _responses_answer(answer: Body | None) -> Iterator[str]:
    if answer is not None:
        if answer.get("type") != "json_schema" or not NAME.fullmatch(str(answer.get("name"))):
            yield f"text.format {answer}"
        yield from object_root(answer.get("schema"), "text.format")
        if answer.get("strict"):
            yield from strict_schema(answer["schema"], "text.format")
