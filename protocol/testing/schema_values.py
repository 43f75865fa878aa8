"""Values that a JSON Schema allows, for the schemas that tools have: what a model may send as arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.testing.strategies import json_values, texts

#: Lists and texts that a schema does not bound: long enough to be interesting, short enough to be read.
MAX_ITEMS: Final = 4
MAX_TEXT: Final = 20
Schema = Mapping[str, Any]


def schema_values(schema: Schema, root: Schema | None = None) -> st.SearchStrategy[Any]:
    """Values that are valid by `schema`. Raises UsageError for a keyword that it cannot follow."""
    whole = schema if root is None else root
    if "$ref" in schema:
        return st.deferred(lambda: schema_values(_referred(schema["$ref"], whole), whole))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return st.one_of([schema_values(option, whole) for option in schema[union]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([schema_values({**schema, "type": one}, whole) for one in kind])
    if kind is None:
        return json_values()
    if kind not in _BY_TYPE:
        raise UsageError(f"a schema of type {kind!r} is not JSON Schema: {dict(schema)!r:.200}")
    return _BY_TYPE[kind](schema, whole)


def _referred(pointer: str, root: Schema) -> Schema:
    place: Any = root
    for name in pointer.removeprefix("#/").split("/"):
        if not isinstance(place, Mapping) or name not in place:
            raise UsageError(f"the schema refers to {pointer!r}, which it does not define")
        place = place[name]
    return place  # type: ignore[no-any-return]


def _objects(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    properties = {name: schema_values(part, root) for name, part in schema.get("properties", {}).items()}
    required = [name for name in schema.get("required", ()) if name in properties]
    known = st.fixed_dictionaries(
        {name: properties[name] for name in required},
        optional={name: part for name, part in properties.items() if name not in required},
    )
    extra = schema.get("additionalProperties")
    if properties or not isinstance(extra, Mapping):
        return known
    return st.dictionaries(texts(8), schema_values(extra, root), max_size=MAX_ITEMS)


def _arrays(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    least = schema.get("minItems", 0)
    if "prefixItems" in schema:
        return st.tuples(*(schema_values(part, root) for part in schema["prefixItems"])).map(list)
    items = schema_values(schema.get("items", {}), root)
    unique_by = repr if schema.get("uniqueItems") else None
    return st.lists(items, min_size=least, max_size=schema.get("maxItems", least + MAX_ITEMS), unique_by=unique_by)


def _strings(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    if "pattern" in schema:
        # In JSON Schema `$` is the very end; in Python it also matches before a last line feed.
        pattern = re.sub(r"(?<!\\)\$$", r"\\Z", schema["pattern"])
        return st.from_regex(pattern, alphabet=st.characters(codec="utf-8"))
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]()
    least = schema.get("minLength", 0)
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=schema.get("maxLength", max(least, MAX_TEXT)))


def _integers(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    # Beyond 64 bits JSON readers differ, so no model's integer gets there.
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    if "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - 1
    step = schema.get("multipleOf", 1)
    if step == 1:
        return st.integers(least, most)
    return st.integers(-(-least // step), most // step).map(lambda number: number * step)


def _numbers(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    return st.floats(
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
        allow_nan=False,
        allow_infinity=False,
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
    )


_FORMATS: Final[Mapping[str, Callable[[], st.SearchStrategy[str]]]] = {
    "date": lambda: st.dates().map(lambda day: day.isoformat()),
    "date-time": lambda: st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"),
    "uuid": lambda: st.uuids().map(str),
}
_BY_TYPE: Final[Mapping[str, Callable[[Schema, Schema], st.SearchStrategy[Any]]]] = {
    "object": _objects,
    "array": _arrays,
    "string": _strings,
    "integer": _integers,
    "number": _numbers,
    "boolean": lambda schema, root: st.booleans(),
    "null": lambda schema, root: st.none(),
}
