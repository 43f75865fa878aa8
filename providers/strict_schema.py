"""Does a JSON Schema fit OpenAI's strict mode? There every object closes itself and requires all of its properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_CHILD_MAPS: Final = ("properties", "$defs", "definitions")
_CHILD_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")


def is_strict(schema: Any) -> bool:
    """True where `strict: true` will be accepted."""
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or properties:
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    return all(is_strict(child) for child in _children(schema))


def _children(schema: Mapping[str, Any]) -> list[Any]:
    children: list[Any] = [schema.get("items")]
    for key in _CHILD_MAPS:
        children += schema.get(key, {}).values()
    for key in _CHILD_LISTS:
        children += schema.get(key, ())
    return children
