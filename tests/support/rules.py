"""What several APIs ask of a request alike. Written from docs/wire.md alone, not from the encoders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Body = dict[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def is_object_text(text: Any) -> bool:
    """Is it the text of a JSON object?"""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            for child in value.values():
                yield from schemas(child)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            for child in value:
                yield from schemas(child)
        elif key in ("items", "additionalProperties", "not", "if", "then", "else"):
            yield from schemas(value)


def object_root(schema: Any, where: str) -> Iterator[str]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield f"{where}: the schema is not of type object"
        return
    for keyword in ("anyOf", "oneOf", "allOf", "enum", "not"):
        if keyword in schema:
            yield f"{where}: {keyword} at the root of a schema"


def strict_schema(schema: Any, where: str) -> Iterator[str]:
    for part in schemas(schema):
        if part.get("type") == "object" or "properties" in part:
            if part.get("additionalProperties") is not False:
                yield f"{where}: strict, but an object is open"
            if set(part.get("required", ())) != set(part.get("properties", {})):
                yield f"{where}: strict, but not all properties are required"
