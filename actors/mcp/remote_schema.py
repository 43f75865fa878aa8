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
from msgspec.structs import replace
from referencing import Registry

from callboard.protocol.errors import UsageError
from callboard.providers import schema_dialects, tool_schema
from callboard.providers.schema_forms import ASSERTIONS

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

#: A reference is written out; a pattern would be run; the others cannot be checked by what is within them alone.
_NOT_KEPT: Final = frozenset(
    {"$ref", "$defs", "definitions", "patternProperties", "dependencies", "additionalItems"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
#: What every provider takes, and what is checked: references are written out, since a server's circles would have no
#: end, and what is no schema stands for anything.
_OF_SERVERS: Final = schema_dialects.SchemaDialect(
    "a server's tool",
    keywords=ASSERTIONS - _NOT_KEPT | {"description", "default"},
    explicit=True,
    references=False,
    property_pattern=schema_dialects.ANTHROPIC.property_pattern,
    lenient=True,
    max_depth=MAX_DEPTH,
    max_nodes=MAX_NODES,
    max_text=MAX_TEXT_CHARS,
    max_values=MAX_VALUES,
)
_OF_RESULTS: Final = replace(_OF_SERVERS, name="a server's result", object_root=False, in_words=False)


class Unfit(ValueError):
    """Why a schema cannot be offered."""


def fit_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a tool as every provider takes them. Raises Unfit."""
    try:
        fitted = tool_schema.adapt_schema(schema, _OF_SERVERS).schema
        size = len(json.dumps(fitted, allow_nan=False))
    except (UsageError, ValueError, RecursionError) as error:
        raise Unfit(f"its schema cannot be sent: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise Unfit(f"its schema has {size:,} bytes, at most {MAX_SCHEMA_BYTES:,} are offered to a model")
    return fitted


def fit_result_schema(schema: Mapping[str, object] | None) -> dict[str, object] | None:
    """What is checked of a result; None: nothing."""
    try:
        return None if schema is None else tool_schema.adapt_schema(schema, _OF_RESULTS).schema
    except (UsageError, RecursionError):
        return None


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
