"""Schemas that come from a server: made fit for every provider, and checked against within a bound.

A server may send any JSON. What a provider would refuse would cost every request its model call, so such a schema is
made simpler: references are written out (and a circle of them becomes "anything"), what is no schema becomes
"anything", texts are cut. A tool whose arguments cannot be described so is left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Final

from jsonschema import Draft202012Validator, ValidationError, validators
from msgspec import Struct
from referencing import Registry

from callboard.protocol.errors import UsageError
from callboard.providers import tool_schema

#: Schemas within one schema after its references were written out, and levels of it.
MAX_NODES: Final = 1_000
MAX_DEPTH: Final = 24
#: Of one tool, as JSON: a model pays for it at each step.
MAX_SCHEMA_BYTES: Final = 32_768
#: Of one argument's description, and of the values of one `enum`.
MAX_TEXT_CHARS: Final = 1_024
MAX_VALUES: Final = 256
#: Keywords looked at while one value is checked. 1 MB of JSON has some 100,000 values.
MAX_CHECKS: Final = 300_000

_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES: Final = ("items", "additionalProperties", "not")
_TEXTS: Final = ("description", "format", "pattern")
_NUMBERS: Final = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems",
    "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
#: By which each provider must be able to say it.
_DIALECTS: Final = (tool_schema.OPENAI, tool_schema.OPENAI_STRICT, tool_schema.ANTHROPIC, tool_schema.GEMINI)


class Unfit(ValueError):
    """Why a schema cannot be offered."""


def fit_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a tool as every provider takes them. Raises Unfit."""
    root = _Fitting(schema).node(schema, 0)
    if root.get("type", "object") != "object":
        raise Unfit(f"its arguments are no object but {root['type']!r:.100}")
    fitted = {**root, "type": "object", "properties": root.get("properties", {})}
    try:
        size = len(json.dumps(fitted, allow_nan=False))
        for dialect in _DIALECTS:
            tool_schema.adapt_schema(fitted, dialect)
    except (UsageError, ValueError, RecursionError) as error:
        raise Unfit(f"its schema cannot be sent: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise Unfit(f"its schema has {size:,} bytes, at most {MAX_SCHEMA_BYTES:,} are offered to a model")
    return fitted


def fit_result_schema(schema: Mapping[str, object] | None) -> dict[str, object] | None:
    """What is checked of a result; None: nothing."""
    try:
        return None if schema is None else _Fitting(schema).node(schema, 0)
    except Unfit:
        return None


class _Fitting(Struct):
    root: Mapping[str, object]
    nodes: int = 0
    written_out: tuple[str, ...] = ()
    """The references that we are within."""

    def node(self, schema: object, depth: int) -> dict[str, object]:
        self.nodes += 1
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH or self.nodes > MAX_NODES:
            return {}
        if "$ref" in schema:
            return self._reference(schema, depth)
        fitted = dict(_plain_keywords(schema))
        for keyword in _LISTS:
            branches = schema.get(keyword)
            if isinstance(branches, list) and branches:
                fitted[keyword] = [self.node(each, depth + 1) for each in branches[:MAX_VALUES]]
        for keyword in _ONES:
            if isinstance(schema.get(keyword), Mapping):
                fitted[keyword] = self.node(schema[keyword], depth + 1)
        if isinstance(schema.get("additionalProperties"), bool):
            fitted["additionalProperties"] = schema["additionalProperties"]
        if "patternProperties" in schema:  # which is not kept: what it allows must not be forbidden
            fitted.pop("additionalProperties", None)
        if fitted.get("type") == "array":
            fitted.setdefault("items", {})
        self._properties(schema, fitted, depth)
        return fitted

    def _properties(self, schema: Mapping[str, object], fitted: dict[str, object], depth: int) -> None:
        given, required = schema.get("properties"), schema.get("required")
        if not isinstance(given, Mapping):
            return
        names = required if isinstance(required, list) else []
        wanted = [each for each in names if isinstance(each, str) and each in given]
        kept = {}
        for name, each in given.items():
            if tool_schema.ANTHROPIC.property_pattern is None or tool_schema.ANTHROPIC.property_pattern.fullmatch(name):
                kept[name] = self.node(each, depth + 1)
            elif name in wanted:
                raise Unfit(f"it needs an argument called {name!r:.100}, a name that not every provider takes")
        fitted["properties"] = kept
        if wanted:
            fitted["required"] = list(dict.fromkeys(wanted))

    def _reference(self, schema: Mapping[str, object], depth: int) -> dict[str, object]:
        reference, beside = schema["$ref"], dict(_plain_keywords(schema))
        target = _target(self.root, reference)
        if target is None or reference in self.written_out:
            return {name: each for name, each in beside.items() if name == "description"}
        outer, self.written_out = self.written_out, (*self.written_out, str(reference))
        try:
            return {**self.node(target, depth + 1), **beside}
        finally:
            self.written_out = outer


def _plain_keywords(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    kind = schema.get("type")
    if (isinstance(kind, str) and kind in _TYPES) or (
        isinstance(kind, list) and kind and all(isinstance(each, str) and each in _TYPES for each in kind)
    ):
        yield "type", kind
    for keyword in _TEXTS:
        value = schema.get(keyword)
        if isinstance(value, str) and value:
            yield keyword, value[:MAX_TEXT_CHARS]
    for keyword in _NUMBERS:
        value = schema.get(keyword)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield keyword, value
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_VALUES:
        yield "enum", values
    for keyword in ("const", "default"):
        if keyword in schema:
            yield keyword, schema[keyword]
    if isinstance(schema.get("uniqueItems"), bool):
        yield "uniqueItems", schema["uniqueItems"]


def _target(root: Mapping[str, object], reference: object) -> object:
    """Of a reference within the schema ("#/$defs/Name"); None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: object = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or name not in node:
            return None
        node = node[name]
    return node


# -- checking -------------------------------------------------------------------------------------------------------


class Misfit(Struct, frozen=True):
    """The first thing that is wrong with a value."""

    field: str
    expected: str
    received: str


class _TooMuch(Exception):
    """The check would take too long."""


_left: ContextVar[list[int]] = ContextVar("callboard_schema_checks_left")
_Keyword = Callable[..., Iterator[ValidationError] | None]


def _counted(check: _Keyword) -> _Keyword:
    def counted(validator: object, value: object, instance: object, schema: object) -> Iterator[ValidationError]:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooMuch
        yield from check(validator, value, instance, schema) or ()

    return counted


def _unchecked(_validator: object, _value: object, _instance: object, _schema: object) -> Iterator[ValidationError]:
    return iter(())


#: Python's own `re` may take hours over a pattern that a server chose, and holds the interpreter meanwhile; and
#: `uniqueItems` takes the square of the length.
_UNCHECKED: Final = ("pattern", "uniqueItems", "format")
_Checker: Final = validators.extend(
    Draft202012Validator,
    {
        **{name: _counted(check) for name, check in Draft202012Validator.VALIDATORS.items()},
        **dict.fromkeys(_UNCHECKED, _unchecked),
    },
)


def misfit(schema: Mapping[str, object], value: object) -> Misfit | None:
    """What is first wrong with a value, by a schema that was made fit; None where it fits."""
    _left.set([MAX_CHECKS])
    checker = _Checker(schema, registry=Registry())
    try:
        found = next(checker.iter_errors(value), None)
    except _TooMuch:
        return Misfit("", f"a value that can be checked in {MAX_CHECKS:,} steps", "more")
    except (TypeError, ValueError, RecursionError, OverflowError):  # a server's numbers may be of any size
        return None
    if found is None:
        return None
    field = ".".join(map(str, found.absolute_path))
    missing = found.validator == "required"
    return Misfit(field, found.message[:MAX_TEXT_CHARS], "nothing" if missing else f"{found.instance!r:.200}")
