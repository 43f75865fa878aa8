"""Tool and answer schemas, adapted to the subset of JSON Schema that each API takes.

What an API cannot express is never dropped silently: it becomes a `SchemaLoss`, and its words go into the description,
so that the model can still follow them. Rewrites that keep the meaning (`const` as a one-element `enum`, an
`exclusiveMinimum` of an integer as `minimum` + 1) are not losses, and neither are pure annotations (`title`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.errors import UsageError
from callboard.providers.json_values import Body, dumps

#: Deeper than any hand-written schema, shallow enough for every JSON parser on the way.
MAX_SCHEMA_DEPTH: Final = 64

_SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
#: They say nothing about which values are valid, so leaving them out loses nothing.
_ANNOTATIONS: Final = frozenset(
    {"title", "$schema", "$id", "$comment", "$anchor", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"contentMediaType", "discriminator", "nullable"}
)
#: APIs refuse these beside `type: object` at the root of a tool's parameters.
_ROOT_COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")


class SchemaLoss(Struct, frozen=True):
    """One thing that an API's schema subset cannot say."""

    path: str
    """Where in the schema, as a JSON pointer ("/properties/days")."""
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.keyword}: {self.reason}"


class AdaptedSchema(Struct, frozen=True):
    """A schema in the words of one API, and what it cannot say in them."""

    schema: Body
    losses: tuple[SchemaLoss, ...] = ()
    strict: bool = False
    """Can the API enforce this schema?"""


class SchemaDialect(Struct, frozen=True):
    """What one API's subset of JSON Schema takes."""

    name: str
    keywords: frozenset[str] | None = None
    """None: every keyword is taken."""
    formats: frozenset[str] | None = None
    """Values of `format` that are taken; None: all."""
    const_as_enum: bool = False
    one_of_as_any_of: bool = False
    closed: bool = False
    """Every object must say `additionalProperties: false`."""
    all_required: bool = False
    """Every property must be required. A model then always gives the optional ones too, which is still valid."""
    bare_refs: bool = False
    """A `$ref` must have no siblings."""
    object_root: bool = True
    """The root must be `type: object` without combinators."""
    property_pattern: re.Pattern[str] | None = None
    relaxed: SchemaDialect | None = None
    """Used, and not strict, where an open object cannot be said in this dialect."""


_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref", "$defs"}
)
_NUMBER_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_STRICT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)

OPENAI: Final = SchemaDialect("openai")
OPENAI_STRICT: Final = SchemaDialect(
    "openai strict",
    keywords=_STRUCTURE | _NUMBER_BOUNDS | {"const", "definitions", "pattern", "format", "minItems", "maxItems"},
    formats=_STRICT_FORMATS,
    one_of_as_any_of=True,
    closed=True,
    all_required=True,
    bare_refs=True,
    relaxed=OPENAI,
)
_ANTHROPIC_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANTHROPIC: Final = SchemaDialect("anthropic", property_pattern=_ANTHROPIC_PROPERTY)
ANTHROPIC_STRICT: Final = SchemaDialect(
    "anthropic strict",
    keywords=_STRUCTURE | {"const", "allOf", "format", "title", "definitions"},
    formats=_STRICT_FORMATS,
    one_of_as_any_of=True,
    closed=True,
    bare_refs=True,
    property_pattern=_ANTHROPIC_PROPERTY,
    relaxed=ANTHROPIC,
)
#: The answer's schema: there is no lax mode to fall back to, and the root may be anything.
ANTHROPIC_ANSWER: Final = replace(
    ANTHROPIC_STRICT, name="anthropic structured output", object_root=False, property_pattern=None, relaxed=None
)
GEMINI: Final = SchemaDialect(
    "gemini",
    keywords=_STRUCTURE | {"prefixItems", "minItems", "maxItems", "minimum", "maximum", "format", "propertyOrdering"},
    const_as_enum=True,
    one_of_as_any_of=True,
    bare_refs=True,
)
GEMINI_ANSWER: Final = replace(GEMINI, name="gemini structured output", object_root=False)


def adapt_schema(schema: Mapping[str, object], dialect: SchemaDialect) -> AdaptedSchema:
    """`schema` in the words of `dialect`; a strict dialect falls back to its relaxed one where it must.

    Raises UsageError where it is not a JSON Schema of an object (if one is needed), is nested too deep, or holds NaN.
    """
    try:
        dumps(schema, str)
    except ValueError as error:
        raise UsageError(f"the schema is not JSON: {error}") from None
    walk = _SchemaWalk(dialect, schema)
    adapted = walk.node(walk.rooted() if dialect.object_root else schema, "", 0)
    if walk.opened and dialect.relaxed is not None:
        relaxed = adapt_schema(schema, dialect.relaxed)
        return AdaptedSchema(relaxed.schema, (*walk.opened, *relaxed.losses), strict=False)
    return AdaptedSchema(adapted, (*walk.opened, *walk.losses), strict=dialect.closed)


#: By schema object and dialect: the same few tools go into every request, and a walk takes 20-50 us. The schema is kept
#: with its result, so that its id stays its own.
_known: dict[tuple[int, str], tuple[Mapping[str, object], AdaptedSchema]] = {}
#: More schemas than this come from a caller that makes new ones for each request; remembering them is of no use.
_MAX_KNOWN: Final = 1_024


def tool_parameters(schema: Mapping[str, object], dialect: SchemaDialect) -> AdaptedSchema:
    """`adapt_schema` for the parameters of a tool, which no one changes: what is known is not made again."""
    key = id(schema), dialect.name
    if (found := _known.get(key)) is not None:
        return found[1]
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    result = adapt_schema(schema, dialect)
    _known[key] = schema, result
    return result


def _resolve(root: Mapping[str, object], ref: object) -> Mapping[str, object]:
    """The target of a local reference ("#/$defs/Name")."""
    node: object = root
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise UsageError(f"only references within the schema are possible, not {ref!r}; inline it")
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or name not in node:
            raise UsageError(f"the schema refers to {ref!r}, which it does not hold")
        node = node[name]
    if not isinstance(node, Mapping):
        raise UsageError(f"the schema refers to {ref!r}, which is not a schema")
    return node


class _SchemaWalk(Struct):
    dialect: SchemaDialect
    root: Mapping[str, object]
    losses: list[SchemaLoss] = field(default_factory=list)
    opened: list[SchemaLoss] = field(default_factory=list)
    """Open objects met by a dialect that only has closed ones."""
    inlined: list[str] = field(default_factory=list)

    def rooted(self) -> Mapping[str, object]:
        """The root as APIs take it for a tool's parameters: an object without combinators."""
        root = dict(self.root)
        if "$ref" in root:
            root = {**_resolve(self.root, root.pop("$ref")), **root}
        if root.setdefault("type", "object") != "object":
            raise UsageError(
                f"parameters must be a JSON Schema of type object, not {root['type']!r}; wrap it in an object"
            )
        for keyword in _ROOT_COMBINATORS:
            if keyword in root:
                self._describe(root, keyword, "", "takes none at the root of an object")
        return root

    def node(self, schema: object, path: str, depth: int) -> Body:
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise UsageError(f"{path or '/'} of the schema must be an object, not {type(schema).__name__}")
        if depth > MAX_SCHEMA_DEPTH:
            raise UsageError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels; flatten it")
        if self.dialect.bare_refs and "$ref" in schema and len(schema) > 1 and path:
            return self._ref(schema, path, depth)
        out = dict(schema)
        _merge_single_all_of(out, self.dialect)
        _rename(out, self.dialect)
        _integer_bounds(out, self.dialect)
        self._select(out, path)
        for keyword, value in out.items():
            out[keyword] = self._child(keyword, value, f"{path}/{keyword}", depth + 1)
        self._close(out, path)
        return out

    def _ref(self, schema: Mapping[str, object], path: str, depth: int) -> Body:
        """A reference with words beside it: inlined, or bare where that would never end."""
        ref = schema["$ref"]
        target = _resolve(self.root, ref)
        beside = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        if ref in self.inlined:
            self.losses.extend(
                SchemaLoss(path, keyword, f"{self.dialect.name} takes nothing beside a recursive $ref")
                for keyword in beside
                if keyword not in _ANNOTATIONS | {"description", "default"}
            )
            return {"$ref": ref}
        self.inlined.append(str(ref))
        merged = self.node({**target, **beside}, path, depth + 1)
        self.inlined.pop()
        return merged

    def _select(self, out: Body, path: str) -> None:
        """Leave in `out` what the dialect takes; say the rest in words and report it."""
        known, formats = self.dialect.keywords, self.dialect.formats
        if known is None:
            return
        for keyword in [k for k in out if k not in known]:
            if keyword in _ANNOTATIONS:
                del out[keyword]
            else:
                self._describe(out, keyword, path, "has no such keyword")
        if formats is not None and "format" in out and out["format"] not in formats:
            self._describe(out, "format", path, f"does not know {out['format']!r}")

    def _describe(self, out: Body, keyword: str, path: str, why: str) -> None:
        """Say in words what the dialect cannot say in keywords; of a default or an encoding nothing is lost by that."""
        text = f"({keyword}: {json_text(out.pop(keyword))})"
        said = out.get("description")
        out["description"] = f"{said}\n{text}" if said else text
        if keyword not in ("default", "contentEncoding"):
            self.losses.append(SchemaLoss(path, keyword, f"{self.dialect.name} {why}"))

    def _child(self, keyword: str, value: object, path: str, depth: int) -> object:
        if keyword in _SCHEMA_MAPS and isinstance(value, Mapping):
            pattern = self.dialect.property_pattern if keyword == "properties" else None
            for name in value:
                if pattern is not None and not pattern.fullmatch(name):
                    must = f"it must match {pattern.pattern}"
                    raise UsageError(f"{self.dialect.name} takes no parameter named {name!r}; {must}")
            return {name: self.node(child, f"{path}/{name}", depth) for name, child in value.items()}
        if keyword in _SCHEMA_LISTS and isinstance(value, list | tuple):
            return [self.node(child, f"{path}/{index}", depth) for index, child in enumerate(value)]
        if keyword in _SCHEMAS and isinstance(value, Mapping):
            return self.node(value, path, depth)
        return value

    def _close(self, out: Body, path: str) -> None:
        if not self.dialect.closed or (out.get("type") != "object" and "properties" not in out):
            return
        if out.get("additionalProperties", False) is not False or not ("properties" in out or path == ""):
            self.opened.append(SchemaLoss(path, "additionalProperties", f"{self.dialect.name} has no open objects"))
        properties = out.setdefault("properties", {})
        out["additionalProperties"] = False
        if self.dialect.all_required and isinstance(properties, Mapping):
            out["required"] = list(properties)


def _merge_single_all_of(out: Body, dialect: SchemaDialect) -> None:
    """pydantic writes `allOf: [one]` to put a description beside a reference."""
    branches = out.get("allOf")
    if dialect.keywords is not None and isinstance(branches, list) and len(branches) == 1:
        only = {} if branches[0] is True else branches[0]
        if isinstance(only, Mapping) and not (set(only) & set(out) - {"description", "allOf"}):
            del out["allOf"]
            out.update({**only, **out})
            _merge_single_all_of(out, dialect)  # it may have held another one


def _rename(out: Body, dialect: SchemaDialect) -> None:
    if dialect.one_of_as_any_of and "oneOf" in out and "anyOf" not in out:
        out["anyOf"] = out.pop("oneOf")
    const = out.get("const")
    if dialect.const_as_enum and isinstance(const, str | int | float) and not isinstance(const, bool):
        out["enum"] = [out.pop("const")]


def _integer_bounds(out: Body, dialect: SchemaDialect) -> None:
    """For integers x > 3 is x >= 4."""
    if dialect.keywords is None or "exclusiveMinimum" in dialect.keywords or out.get("type") != "integer":
        return
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = out.get(exclusive)
        if isinstance(bound, int) and not isinstance(bound, bool) and inclusive not in out:
            del out[exclusive]
            out[inclusive] = bound + step


def is_strict(schema: object) -> bool:
    """Will OpenAI take this with `strict: true`? There every object closes itself and requires all its properties."""
    if not isinstance(schema, Mapping):
        return True
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if schema.get("type") == "object" or properties:
        closed = schema.get("additionalProperties") is False
        if not closed or sorted(map(str, required)) != sorted(map(str, properties)):
            return False
    return all(is_strict(child) for keyword, value in schema.items() for child in _children(keyword, value))


def _children(keyword: str, value: object) -> Iterable[object]:
    if keyword in _SCHEMA_MAPS and isinstance(value, Mapping):
        return value.values()
    if keyword in _SCHEMA_LISTS and isinstance(value, list | tuple):
        return value
    return (value,) if keyword == "items" else ()
