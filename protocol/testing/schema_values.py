"""Values that a JSON Schema allows, for the schemas that tools have: what a model may send as arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.testing.strategies import json_values, texts

#: Lists and texts that a schema does not bound: long enough to be interesting, short enough to be read.
MAX_ITEMS: Final = 4
MAX_TEXT: Final = 20
#: A text as long as this tells whether a bound on its length in the code is met; longer ones only take time.
MAX_HINTED_LENGTH: Final = 5_000
#: Values of one argument that are tried one by one, and how deep they are varied within lists and objects.
MAX_BOUNDARIES: Final = 200
_BOUNDARY_DEPTH: Final = 6
#: Texts that code forgets: blank, a line feed, NUL, beyond ASCII, beyond 16 bits, a path upwards, a very long one.
_ODD_TEXTS: Final = ("", " ", "\n", "\x00", "\u00e9", "\U0001f600", "0", "-1", "../..", "x" * 1_000)
_ODD_INTEGERS: Final = (0, 1, -1, 2, 10, 100, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))
_ODD_NUMBERS: Final = (0.0, 1.0, -1.0, 0.5, -0.0, 1e-9, 1e15, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308)
Schema = Mapping[str, Any]
Hints = Sequence[str | int | float]
"""Values that the code compares with (tool_literals.py): drawn as often as all others together, where they fit."""


def schema_values(schema: Schema, root: Schema | None = None, hints: Hints = ()) -> st.SearchStrategy[Any]:
    """Values that are valid by `schema`. Raises UsageError for a keyword that it cannot follow."""
    whole = schema if root is None else root
    if "$ref" in schema:
        return st.deferred(lambda: schema_values(_referred(schema["$ref"], whole), whole, hints))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return st.one_of([schema_values(option, whole, hints) for option in schema[union]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([schema_values({**schema, "type": one}, whole, hints) for one in kind])
    if kind is None:
        return json_values()
    if kind not in _BY_TYPE:
        raise UsageError(f"a schema of type {kind!r} is not JSON Schema: {dict(schema)!r:.200}")
    drawn = _BY_TYPE[kind](schema, whole, hints)
    fitting = [value for value in _hinted(kind, hints) if _fits(value, schema)]
    return drawn | st.sampled_from(fitting) if fitting else drawn


def boundary_values(schema: Schema, root: Schema, hints: Hints = (), depth: int = _BOUNDARY_DEPTH) -> list[Any]:
    """The values at the edges of what `schema` allows: bounds, members of enums, odd ones, and the hints that fit."""
    if "$ref" in schema:
        return boundary_values(_referred(schema["$ref"], root), root, hints, depth - 1) if depth else []
    if "const" in schema or "enum" in schema:
        return list(schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf", schema.get("oneOf")):
        return [value for option in options for value in boundary_values(option, root, hints, depth)]
    kinds = schema.get("type", "")
    values: Iterable[Any] = ()
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        values = [*values, *_boundaries_of(kind, schema, root, hints, depth)]
    return list(islice((value for value in values if _fits(value, schema)), MAX_BOUNDARIES))


def _boundaries_of(kind: str, schema: Schema, root: Schema, hints: Hints, depth: int) -> Iterator[Any]:
    yield from _hinted(kind, hints)
    if kind == "string" and "format" not in schema:
        yield from _ODD_TEXTS
        yield from ("x" * schema[bound] for bound in ("minLength", "maxLength") if bound in schema)
    elif kind in ("integer", "number"):
        for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if bound in schema:
                yield from (schema[bound], schema[bound] + 1, schema[bound] - 1)
        yield from _ODD_INTEGERS if kind == "integer" else _ODD_NUMBERS
    elif kind == "boolean":
        yield from (False, True)
    elif kind == "null":
        yield None
    elif kind == "array" and depth and "prefixItems" not in schema:
        items = boundary_values(schema.get("items", {}), root, hints, depth - 1)
        yield from ([], items[:2], *([item] for item in items))
    elif kind == "object" and depth:
        yield from _object_boundaries(schema, root, hints, depth)


def _object_boundaries(schema: Schema, root: Schema, hints: Hints, depth: int) -> Iterator[Any]:
    """Each property at each of its edges, the others plain."""
    parts = schema.get("properties", {})
    edges = {name: boundary_values(part, root, hints, depth - 1) for name, part in parts.items()}
    required = schema.get("required", ())
    if all(edges.get(name) for name in required):
        plain = {name: edges[name][0] for name in required}
        yield plain
        yield from ({**plain, name: value} for name, values in edges.items() for value in values)


def _hinted(kind: str, hints: Hints) -> Iterator[Any]:
    """What the hints suggest for a type: themselves, their neighbours, and texts of about that length."""
    numbers = [hint for hint in hints if not isinstance(hint, str)]
    if kind == "string":
        yield from (hint for hint in hints if isinstance(hint, str))
        yield from ("x" * (n + 1) for n in numbers if isinstance(n, int) and 8 <= n < MAX_HINTED_LENGTH)
    elif kind == "integer":
        whole = [n for n in numbers if isinstance(n, int) or n.is_integer()]
        yield from (int(n) + step for n in whole for step in (0, 1, -1))
    elif kind == "number":
        yield from (float(n) + step for n in numbers for step in (0, 1, -1) if abs(n) < 2**53)


def _fits(value: Any, schema: Schema) -> bool:
    """Does a value keep the bounds of its schema? Of the right type it is already."""
    if isinstance(value, str):
        in_bounds = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        matches = "pattern" not in schema or re.search(_python_pattern(schema["pattern"]), value) is not None
        return in_bounds and matches and "format" not in schema
    if isinstance(value, int | float) and not isinstance(value, bool):
        step = schema.get("multipleOf")
        return (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and (isinstance(value, float) or -(2**63) <= value < 2**63)
            and (step is None or value % step == 0)
        )
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    return True


def _python_pattern(pattern: str) -> str:
    """In JSON Schema `$` is the very end; in Python it also matches before a last line feed."""
    return re.sub(r"(?<!\\)\$$", r"\\Z", pattern)


def _referred(pointer: str, root: Schema) -> Schema:
    place: Any = root
    for name in pointer.removeprefix("#/").split("/"):
        if not isinstance(place, Mapping) or name not in place:
            raise UsageError(f"the schema refers to {pointer!r}, which it does not define")
        place = place[name]
    return place  # type: ignore[no-any-return]


def _objects(schema: Schema, root: Schema, hints: Hints) -> st.SearchStrategy[Any]:
    properties = {name: schema_values(part, root, hints) for name, part in schema.get("properties", {}).items()}
    required = [name for name in schema.get("required", ()) if name in properties]
    known = st.fixed_dictionaries(
        {name: properties[name] for name in required},
        optional={name: part for name, part in properties.items() if name not in required},
    )
    extra = schema.get("additionalProperties")
    if properties or not isinstance(extra, Mapping):
        return known
    return st.dictionaries(texts(8), schema_values(extra, root, hints), max_size=MAX_ITEMS)


def _arrays(schema: Schema, root: Schema, hints: Hints) -> st.SearchStrategy[Any]:
    least = schema.get("minItems", 0)
    if "prefixItems" in schema:
        return st.tuples(*(schema_values(part, root, hints) for part in schema["prefixItems"])).map(list)
    items = schema_values(schema.get("items", {}), root, hints)
    unique_by = repr if schema.get("uniqueItems") else None
    return st.lists(items, min_size=least, max_size=schema.get("maxItems", least + MAX_ITEMS), unique_by=unique_by)


def _strings(schema: Schema, root: Schema, hints: Hints) -> st.SearchStrategy[Any]:
    if "pattern" in schema:
        return st.from_regex(_python_pattern(schema["pattern"]), alphabet=st.characters(codec="utf-8"))
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]()
    least = schema.get("minLength", 0)
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=schema.get("maxLength", max(least, MAX_TEXT)))


def _integers(schema: Schema, root: Schema, hints: Hints) -> st.SearchStrategy[Any]:
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


def _numbers(schema: Schema, root: Schema, hints: Hints) -> st.SearchStrategy[Any]:
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
_BY_TYPE: Final[Mapping[str, Callable[[Schema, Schema, Hints], st.SearchStrategy[Any]]]] = {
    "object": _objects,
    "array": _arrays,
    "string": _strings,
    "integer": _integers,
    "number": _numbers,
    "boolean": lambda schema, root, hints: st.booleans(),
    "null": lambda schema, root, hints: st.none(),
}
