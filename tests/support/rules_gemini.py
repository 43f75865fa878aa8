"""What Gemini generateContent accepts (docs/wire.md 1.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from support.rules import Body, object_root, schemas

GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}|[a-zA-Z0-9_-]{1,64}")
#: docs/wire.md 1.4: "full JSON Schema", but these are refused or to be stripped.
GEMINI_SCHEMA_REFUSED = {"$schema", "const", "exclusiveMinimum", "exclusiveMaximum", "title", "oneOf", "allOf", "not"}

#: All the kinds of google-genai's Part.
GEMINI_PARTS = {
    *("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"),
    *("toolCall", "toolResponse"),
}


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
        yield "something comes before the responses"


def _gemini_part(part: Body, role: str) -> Iterator[str]:
    kinds = set(part) & GEMINI_PARTS
    if len(kinds) != 1 or set(part) - kinds - {"thoughtSignature", "thought", "videoMetadata"}:
        yield f"a part with {sorted(part)}"
        return
    (kind,) = kinds
    if kind == "text" and not part["text"].strip() and "thoughtSignature" not in part:
        yield "a blank text"
    if (kind == "functionCall") != (role == "model" and kind == "functionCall"):
        yield f"{kind} in a content of {role}"
    if kind == "functionCall" and not isinstance(part[kind].get("args"), dict):
        yield f"args are not an object: {part}"
    if kind == "functionResponse" and not isinstance(part[kind].get("response"), dict):
        yield f"a response that is not an object: {part}"
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
    for declaration in [d for tool in body.get("tools", ()) for d in tool.get("functionDeclarations", ())]:
        names.append(declaration["name"])
        if not GEMINI_NAME.fullmatch(declaration["name"]):
            yield f"name {declaration['name']!r}"
        schema = declaration.get("parametersJsonSchema")
        if schema is not None:
            yield from object_root(schema, f"tool {declaration['name']}")
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
    for part in schemas(schema):
        if refused := set(part) & GEMINI_SCHEMA_REFUSED:
            yield f"Unknown name {sorted(refused)}: Cannot find field"
