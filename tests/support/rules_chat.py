"""What OpenAI Chat Completions accepts (docs/wire.md 1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from support.rules import NAME, Body, is_object_text, object_root, strict_schema


def chat(body: Body) -> list[str]:
    return list(_chat(body))


def _chat(body: Body) -> Iterator[str]:
    messages = body.get("messages")
    if not messages or not body.get("model"):
        yield "model and messages are required"
        return
    yield from _chat_messages(messages)
    names = []
    for tool in body.get("tools", ()):
        function = tool.get("function", {})
        names.append(function.get("name"))
        if tool.get("type") != "function" or not NAME.fullmatch(str(function.get("name"))):
            yield f"not a function tool: {tool}"
        yield from object_root(function.get("parameters"), f"tool {function.get('name')}")
        if function.get("strict"):
            yield from strict_schema(function["parameters"], f"tool {function['name']}")
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function" or choice["function"]["name"] not in names:
            yield f"tool_choice {choice} names no tool"
    elif choice not in (None, "auto", "none", "required"):
        yield f"tool_choice {choice!r}"
    if "tools" in body and not body["tools"]:
        yield "tools is empty"


def _chat_messages(messages: Sequence[Body]) -> Iterator[str]:
    open_ids: list[str] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            yield from _chat_result(message, open_ids)
            continue
        if open_ids:
            yield f"calls without result directly behind them: {open_ids}"
        open_ids = []
        if role == "assistant":
            yield from _chat_turn(message)
            open_ids = [call.get("id") for call in message.get("tool_calls", [])]
        elif role in ("system", "developer", "user"):
            if not isinstance(message.get("content"), str | list):
                yield f"a {role} message without content"
        else:
            yield f"role {role!r}"
    if open_ids:
        yield f"calls without result: {open_ids}"


def _chat_result(message: Body, open_ids: list[str]) -> Iterator[str]:
    if message.get("tool_call_id") not in open_ids:
        yield f"result of an unknown call {message.get('tool_call_id')!r}"
    else:
        open_ids.remove(message["tool_call_id"])
    if not isinstance(message.get("content"), str | list):
        yield "a result without content"


def _chat_turn(message: Body) -> Iterator[str]:
    calls = message.get("tool_calls", [])
    if "tool_calls" in message and not calls:
        yield "tool_calls is empty"
    if not calls and not isinstance(message.get("content"), str | list):
        yield "an assistant message without content and calls"
    for call in calls:
        yield from _chat_call(call)
    ids = [call.get("id") for call in calls]
    if len(set(ids)) != len(ids):
        yield f"ids repeat within a turn: {ids}"


def _chat_call(call: Body) -> Iterator[str]:
    if call.get("type") != "function" or not isinstance(call.get("id"), str) or not call["id"]:
        yield f"not a call: {call}"
    elif len(call["id"]) > 40:
        yield f"an id longer than 40: {call['id']}"
    if not is_object_text(call.get("function", {}).get("arguments")):
        yield f"arguments are not the text of an object: {call}"
