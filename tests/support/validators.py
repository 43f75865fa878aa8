"""What each API accepts, checked on the body of a request. Written from wire.md alone, not from the encoders.

Each validator returns the list of broken rules; an empty list is an accepted request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Body = dict[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}|[a-zA-Z0-9_-]{1,64}")
#: wire.md 1.4: "full JSON Schema", but these are refused or to be stripped.
GEMINI_SCHEMA_REFUSED = {"$schema", "const", "exclusiveMinimum", "exclusiveMaximum", "title", "oneOf", "allOf", "not"}


def is_object_text(text: Any) -> bool:
    """Is it the text of a JSON object?"""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            for child in value.values():
                yield from _schemas(child)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            for child in value:
                yield from _schemas(child)
        elif key in ("items", "additionalProperties", "not", "if", "then", "else"):
            yield from _schemas(value)


def _object_root(schema: Any, where: str) -> Iterator[str]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield f"{where}: the schema is not of type object"
        return
    for keyword in ("anyOf", "oneOf", "allOf", "enum", "not"):
        if keyword in schema:
            yield f"{where}: {keyword} at the root of a schema"


def _strict(schema: Any, where: str) -> Iterator[str]:
    for part in _schemas(schema):
        if part.get("type") == "object" or "properties" in part:
            if part.get("additionalProperties") is not False:
                yield f"{where}: strict, but an object is open"
            if set(part.get("required", ())) != set(part.get("properties", {})):
                yield f"{where}: strict, but not all properties are required"


# OpenAI Chat Completions (wire.md 1.1)


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
        yield from _object_root(function.get("parameters"), f"tool {function.get('name')}")
        if function.get("strict"):
            yield from _strict(function["parameters"], f"tool {function['name']}")
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


# OpenAI Responses (wire.md 1.2)

RESPONSES_CONTENT = {
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
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
    elif item.get("id") and not store:
        yield f"an item with an id of the server's, which keeps none: {item}"


def _follows_reasoning(items: Sequence[Body], position: int) -> bool:
    for item in items[position + 1 :]:
        kind = item.get("type", "message")
        if kind != "reasoning":
            return kind == "function_call" or item.get("role") == "assistant"
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
            if part.get("type") == "input_image" and not str(part.get("image_url")).startswith(("http", "data:")):
                yield f"an image without url: {part}"


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
    if not isinstance(item.get("summary"), list) or not item.get("encrypted_content"):
        yield f"reasoning that the server cannot know: {item}"


_RESPONSES_ITEMS: Mapping[str, Callable[[Body], Iterator[str]]] = {
    "message": _responses_message,
    "function_call": _responses_call,
    "function_call_output": _responses_output,
    "reasoning": _responses_reasoning,
}


def _responses_tools(body: Body) -> Iterator[str]:
    names = []
    for tool in body.get("tools", ()):
        names.append(tool.get("name"))
        if tool.get("type") != "function" or "function" in tool or "strict" not in tool:
            yield f"not a flat function tool with strict: {tool}"
        if not NAME.fullmatch(str(tool.get("name"))):
            yield f"tool name {tool.get('name')!r}"
        yield from _object_root(tool.get("parameters"), f"tool {tool.get('name')}")
        if tool.get("strict"):
            yield from _strict(tool["parameters"], f"tool {tool['name']}")
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
        yield from _object_root(answer.get("schema"), "text.format")
        if answer.get("strict"):
            yield from _strict(answer["schema"], "text.format")


# Anthropic Messages (wire.md 1.3)

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
        yield "something stands before the results"


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
        yield from _object_root(tool.get("input_schema"), f"tool {tool.get('name')}")
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


# Gemini generateContent (wire.md 1.4)

GEMINI_PARTS = {"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode"}


def gemini(body: Body) -> list[str]:
    return [*_gemini_contents(body), *_gemini_tools(body)]


def _gemini_contents(body: Body) -> Iterator[str]:
    contents = body.get("contents")
    if not contents:
        yield "contents are required"
        return
    if contents[0].get("role") != "user":
        yield "the first content is not the user's"
    asked: list[Body] = []
    for content in contents:
        role, parts = content.get("role"), content.get("parts")
        if role not in ("user", "model") or not parts:
            yield f"not a content: {content}"
            continue
        yield from _gemini_answered(asked, role, parts)
        asked = [part["functionCall"] for part in parts if "functionCall" in part]
        for part in parts:
            yield from _gemini_part(part, role)
        yield from _gemini_signatures(parts)
    if asked:
        yield f"calls without responses: {asked}"


def _gemini_answered(asked: Sequence[Body], role: str, parts: Sequence[Body]) -> Iterator[str]:
    answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
    pairs = [(call["name"], call.get("id")) for call in asked]
    if pairs != [(answer["name"], answer.get("id")) for answer in answers]:
        yield f"the responses do not answer the calls {pairs} one by one"
    if asked and role != "user":
        yield "calls are not followed by the user's content"
    if any("functionResponse" not in part for part in parts[: len(answers)]):
        yield "something stands before the responses"


def _gemini_part(part: Body, role: str) -> Iterator[str]:
    kinds = set(part) & GEMINI_PARTS
    if len(kinds) != 1 or set(part) - kinds - {"thoughtSignature", "thought"}:
        yield f"a part with {sorted(part)}"
        return
    (kind,) = kinds
    if kind == "text" and not part["text"].strip() and "thoughtSignature" not in part:
        yield "a blank text"
    if (kind == "functionCall") != (role == "model" and kind == "functionCall"):
        yield f"{kind} in a content of {role}"
    if kind == "functionCall" and not isinstance(part[kind].get("args"), dict):
        yield f"args are no object: {part}"
    if kind == "functionResponse" and not isinstance(part[kind].get("response"), dict):
        yield f"a response that is no object: {part}"
    if kind in ("functionCall", "functionResponse") and not GEMINI_NAME.fullmatch(str(part[kind].get("name"))):
        yield f"name in {part}"


def _gemini_signatures(parts: Sequence[Body]) -> Iterator[str]:
    calls = [part for part in parts if "functionCall" in part]
    if calls and not calls[0].get("thoughtSignature"):
        yield "Function call is missing a thought_signature in functionCall parts"
    for sibling in calls[1:]:
        if sibling.get("thoughtSignature") == "skip_thought_signature_validator":
            yield "the skip marker on a sibling causes empty answers"


def _gemini_tools(body: Body) -> Iterator[str]:
    names = []
    for declaration in [d for tool in body.get("tools", ()) for d in tool["functionDeclarations"]]:
        names.append(declaration["name"])
        if not GEMINI_NAME.fullmatch(declaration["name"]):
            yield f"name {declaration['name']!r}"
        schema = declaration.get("parametersJsonSchema")
        if schema is not None:
            yield from _object_root(schema, f"tool {declaration['name']}")
            yield from _gemini_schema(schema)
            if not schema.get("properties"):
                yield "an empty object schema: omit parameters"
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    if calling.get("mode", "AUTO") not in ("AUTO", "ANY", "NONE", "VALIDATED"):
        yield f"mode {calling['mode']!r}"
    allowed = calling.get("allowedFunctionNames")
    if allowed is not None and (calling["mode"] not in ("ANY", "VALIDATED") or not set(allowed) <= set(names)):
        yield f"allowedFunctionNames {allowed}"
    if "responseJsonSchema" in body.get("generationConfig", {}):
        yield from _gemini_schema(body["generationConfig"]["responseJsonSchema"])


def _gemini_schema(schema: Any) -> Iterator[str]:
    for part in _schemas(schema):
        if refused := set(part) & GEMINI_SCHEMA_REFUSED:
            yield f"Unknown name {sorted(refused)}: Cannot find field"


VALIDATORS: Mapping[str, Callable[[Body], list[str]]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
