"""Tool and answer schemas, adapted to the subset of JSON Schema that each API takes.

What an API cannot express is never dropped silently: it becomes a `SchemaLoss`, and its words go into the description,
so that the model can still follow them. Rewrites that keep the meaning (`const` as a one-element `enum`, an
`exclusiveMinimum` of an integer as `minimum` + 1, an `allOf` as the one schema that it comes to) are not losses, and
neither are pure annotations (`title`).

A schema comes from anywhere: a tool's author, an MCP server, a client of the daemon. Definitions are written once, and
what is written out in place of a reference is bounded, so that no schema takes more than a walk over it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.errors import UsageError
from callboard.providers import schema_forms as forms
from callboard.providers.json_values import Body, dumps

#: Deeper than any hand-written schema, shallow enough for every JSON parser on the way.
MAX_SCHEMA_DEPTH: Final = 64
#: Schemas written out in place of references, or beside each branch of a choice; after them, references stay.
MAX_WRITTEN_OUT: Final = 3_000
#: Of what is said in words of one keyword.
_MAX_WORDS: Final = 2_000
#: APIs refuse these beside `type: object` at the root of a tool's parameters.
_ROOT_COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")
#: They may name an object's keys: where they cannot be said, closing the object would forbid these.
_KEYS_ELSEWHERE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "patternProperties", "dependentSchemas", "dependencies"}
)
#: Words that are no loss: of a default or an encoding nothing is lost by that.
_SAID_AS_WELL: Final = frozenset({"default", "contentEncoding"})
_DEFINITIONS: Final = ("$defs", "definitions")


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
    is_recursive: bool = False
    """Has it a definition that refers to itself?"""
    optional: int = 0
    """Parameters that may be left out, and those of several types: what a strict schema costs of `StrictBudget`."""
    unions: int = 0


class SchemaLimits(Struct, frozen=True):
    """What a strict schema may have at most; 0: as much as one likes."""

    properties: int = 0
    levels: int = 0
    """Objects within each other."""
    values: int = 0
    """Of all enums."""
    chars: int = 0
    """In names of properties and definitions, and in values."""
    bytes: int = 0
    """Of the whole schema as JSON."""


class StrictBudget(Struct, frozen=True):
    """What all strict schemas of one request may have together."""

    tools: int
    optional: int
    """Parameters that may be left out."""
    unions: int
    """Parameters of several types."""

    def __str__(self) -> str:
        return (
            f"at most {self.tools} strict tools, {self.optional} parameters that may be left out and {self.unions} of "
            "several types in one request"
        )

    def after(self, schema: AdaptedSchema, tools: int = 1) -> StrictBudget | None:
        """What is left behind this schema; None where it does not fit in."""
        left = StrictBudget(self.tools - tools, self.optional - schema.optional, self.unions - schema.unions)
        return None if min(left.tools, left.optional, left.unions) < 0 else left


class SchemaDialect(Struct, frozen=True):
    """What one API's subset of JSON Schema takes."""

    name: str
    keywords: frozenset[str] | None = None
    """None: every keyword is taken."""
    formats: frozenset[str] | None = None
    """Values of `format` that are taken; None: all."""
    any_regex: bool = True
    """A `pattern` may be what no automaton follows."""
    const_as_enum: bool = False
    one_of_as_any_of: bool = False
    explicit: bool = False
    """Every array must say `items`, and the root `properties`."""
    closed: bool = False
    """Every object must say `additionalProperties: false`, every array its items, and every schema its type."""
    all_required: bool = False
    """Every property must be required. A model then always gives the optional ones too, which is still valid."""
    bare_refs: bool = False
    """A `$ref` must have no siblings."""
    recursive: bool = True
    """A definition may refer to itself."""
    circles_optional: bool = False
    """But only within a property that may be left out."""
    references: bool = True
    """It takes `$ref`; else each definition is written out where it is used, and a circle is cut."""
    object_root: bool = True
    """The root must be `type: object` without combinators."""
    property_pattern: re.Pattern[str] | None = None
    limits: SchemaLimits = SchemaLimits()
    budget: StrictBudget | None = None
    relaxed: SchemaDialect | None = None
    """Used, and not strict, where something cannot be said in this dialect."""
    lenient: bool = False
    """For a server's schemas, of which nobody here can mend a fault: what is no schema stands for anything, and a
    property whose name is not taken is left out if it may be."""
    in_words: bool = True
    max_depth: int = MAX_SCHEMA_DEPTH
    max_nodes: int = 0
    """Schemas within it; what is beyond stands for anything. 0: all."""
    max_text: int = 0
    max_values: int = 0


_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref", "$defs"}
)
_NUMBER_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
#: developers.openai.com, "Structured Outputs", "Supported schemas": these nine, no `uri`.
_OPENAI_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
#: platform.claude.com, "Structured outputs", "JSON Schema limitations".
_ANTHROPIC_FORMATS: Final = _OPENAI_FORMATS | {"uri"}

#: Without `strict` too: "array schema missing items" (langgenius/dify#32894), "regex lookaround is not supported"
#: (9router 1556).
OPENAI: Final = SchemaDialect("openai", any_regex=False, explicit=True)
#: The guide's "Supported properties" and limits; "'allOf' is not permitted", "'oneOf' is not permitted"
#: (docker/docker-agent#4155), "schema must have a 'type' key", also of a `const` or of {}.
OPENAI_STRICT: Final = SchemaDialect(
    "openai strict",
    keywords=_STRUCTURE | _NUMBER_BOUNDS | {"const", "pattern", "format", "minItems", "maxItems"},
    formats=_OPENAI_FORMATS,
    any_regex=False,
    one_of_as_any_of=True,
    explicit=True,
    closed=True,
    all_required=True,
    bare_refs=True,
    limits=SchemaLimits(properties=5_000, levels=10, values=1_000, chars=120_000),
    relaxed=OPENAI,
)
#: inference-docs.cerebras.ai, "Structured Outputs", "Limitations": no recursion, no pattern, format, minItems and
#: maxItems, at most 5,000 characters, 500 properties, 500 values and 10 levels. Its tools take the same.
CEREBRAS_STRICT: Final = replace(
    OPENAI_STRICT,
    name="cerebras strict",
    keywords=_STRUCTURE | _NUMBER_BOUNDS | {"const"},
    recursive=False,
    limits=SchemaLimits(properties=500, levels=10, values=500, bytes=5_000),
)
_ANTHROPIC_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANTHROPIC: Final = SchemaDialect("anthropic", property_pattern=_ANTHROPIC_PROPERTY)
#: "Structured outputs" again: no recursion ("Circular reference detected"), no bounds; and "Schema complexity limits",
#: over all strict schemas of a request. Bedrock has the same (pydantic-ai 5579, strands-agents/harness-sdk 2664).
ANTHROPIC_STRICT: Final = SchemaDialect(
    "anthropic strict",
    keywords=_STRUCTURE | {"const", "format", "title"},
    formats=_ANTHROPIC_FORMATS,
    one_of_as_any_of=True,
    closed=True,
    bare_refs=True,
    recursive=False,
    property_pattern=_ANTHROPIC_PROPERTY,
    budget=StrictBudget(tools=20, optional=24, unions=16),
    relaxed=ANTHROPIC,
)
#: The answer's schema: there is no lax mode to fall back to, and the root may be anything.
ANTHROPIC_ANSWER: Final = replace(
    ANTHROPIC_STRICT, name="anthropic structured output", object_root=False, property_pattern=None, relaxed=None
)
#: ai.google.dev, "GenerateContentRequest", `parametersJsonSchema` and `responseJsonSchema`: "Cyclic references ... may
#: only be used within non-required properties", nothing beside a `$ref`. A reference to anything but a definition is
#: not found (DEEIX-AI/DEEIX-Chat#546, google-gemini/gemini-cli#13326).
GEMINI: Final = SchemaDialect(
    "gemini",
    keywords=_STRUCTURE | {"prefixItems", "minItems", "maxItems", "minimum", "maximum", "format", "propertyOrdering"},
    const_as_enum=True,
    one_of_as_any_of=True,
    bare_refs=True,
    circles_optional=True,
)
GEMINI_ANSWER: Final = replace(GEMINI, name="gemini structured output", object_root=False)


def adapt_schema(schema: Mapping[str, object], dialect: SchemaDialect) -> AdaptedSchema:
    """`schema` in the words of `dialect`; a strict dialect falls back to its relaxed one where it must.

    Raises UsageError where it is not a JSON Schema of an object (if one is needed), is nested too deep, or holds NaN.
    """
    if not dialect.lenient:
        _text_of(schema)
    walk = _SchemaWalk(dialect, schema)
    written = walk.whole()
    opened = tuple(walk.opened)
    if opened and dialect.relaxed is not None:
        relaxed = adapt_schema(schema, dialect.relaxed)
        return replace(relaxed, losses=(*opened, *relaxed.losses))
    strict = dialect.closed and not opened
    costs = (walk.optional, walk.unions) if strict else (0, 0)
    return AdaptedSchema(written, (*opened, *walk.losses), strict, walk.is_recursive, *costs)


def _text_of(schema: Mapping[str, object]) -> bytes:
    try:
        return dumps(schema, str)
    except ValueError as error:
        raise UsageError(f"the schema is not JSON: {error}") from None


#: By schema object and dialect: the same few tools go into every request, and a walk takes 50-200 us. The schema is
#: kept with its result, so that its id stays its own. And by text: a client of the daemon sends its tools each time.
_known: dict[tuple[int | bytes, str], tuple[Mapping[str, object], AdaptedSchema]] = {}
#: More schemas than this come from a caller that makes new ones for each request; remembering them is of no use.
_MAX_KNOWN: Final = 1_024
_MAX_TEXT_KNOWN: Final = 32_768


def adapted(schema: Mapping[str, object], dialect: SchemaDialect) -> AdaptedSchema:
    """`adapt_schema` for a schema that no one changes: what is known is not made again."""
    if (found := _known.get((id(schema), dialect.name))) is not None:
        return found[1]
    text = _text_of(schema)
    known = _known.get((text, dialect.name))
    result = known[1] if known is not None else adapt_schema(schema, dialect)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[id(schema), dialect.name] = schema, result
    if len(text) <= _MAX_TEXT_KNOWN:
        _known[text, dialect.name] = schema, result
    return result


class _Refers(Struct):
    """A reference that was written."""

    within: tuple[str, ...]
    """The definitions in which it stands."""
    target: str
    out: Body
    path: str
    is_optional: bool
    """Below a property that may be left out."""


class _SchemaWalk(Struct):
    dialect: SchemaDialect
    root: Mapping[str, object]
    losses: list[SchemaLoss] = field(default_factory=list)
    opened: list[SchemaLoss] = field(default_factory=list)
    """What a strict dialect cannot say, so that the schema is not strict."""
    names: dict[str, str] = field(default_factory=dict)
    """Of definitions, by the references to them."""
    taken: dict[str, int] = field(default_factory=dict)
    """These names; and how many references end with one."""
    ends: dict[str, str | None] = field(default_factory=dict)
    """Where a row of references ends, by its first one."""
    written: set[str] = field(default_factory=set)
    """References whose definitions are written, or will be."""
    waiting: list[str] = field(default_factory=list)
    refers: list[_Refers] = field(default_factory=list)
    within: tuple[str, ...] = ()
    writing_out: tuple[frozenset[str], ...] = ()
    """The references in place of which we are writing."""
    nodes: int = 0
    written_out: int = 0
    level: int = 0
    levels: int = 0
    properties: int = 0
    values: int = 0
    chars: int = 0
    optional: int = 0
    unions: int = 0
    is_recursive: bool = False

    def whole(self) -> Body:
        """The adapted schema with its definitions."""
        out = self.node(self._root(), "", 0)
        definitions: Body = {}
        for reference in self.waiting:  # which grows meanwhile
            name = self.names[reference]
            self.within, self.level = (name,), 0
            definitions[name] = self.node(self._target(reference, ""), f"/$defs/{name}", 0)
            self.chars += len(name)
        if definitions:
            out["$defs"] = definitions
        self._cut_circles()
        self._count(out)
        return out

    def _root(self) -> Body:
        """The root without a reference; for a tool's parameters, as APIs take it: an object without combinators."""
        root = self._in_one_form(self.root, "")
        if "$ref" in root or ("allOf" in root and self.dialect.object_root):
            root = self._all_in_one(root, "", writes_out=True)
            self.writing_out = ()
        if not self.dialect.object_root:
            return root
        kind = root.setdefault("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise UsageError(
                f"parameters must be a JSON Schema of type object, and this is no object but {kind!r}; wrap it in one"
            )
        root["type"] = "object"
        for keyword in _ROOT_COMBINATORS:
            if keyword in root:
                self._leave_out(root, keyword, "", "takes none at the root of an object")
        if self.dialect.explicit or self.dialect.closed:
            root.setdefault("properties", {})
        return root

    # One schema within it.

    def node(self, schema: object, path: str, depth: int, is_optional: bool = False) -> Body:
        """A schema within the whole, adapted."""
        dialect = self.dialect
        self.nodes += 1
        self.written_out += bool(self.writing_out)
        if depth > dialect.max_depth:
            return self._anything(path, f"the schema is nested deeper than {dialect.max_depth} levels; flatten it")
        if dialect.max_nodes and self.nodes > dialect.max_nodes:
            return {}
        out = self._in_one_form(schema, path)
        within, writing_out = self.within, self.writing_out
        if dialect.keywords is not None and ("$ref" in out or "allOf" in out):
            out = self._all_in_one(out, path, depth=depth)
        if "$ref" in out and (dialect.keywords is not None or len(out) == 1):
            self.within, self.writing_out = within, writing_out
            return self._reference(out, path, is_optional)
        out = self._select(out, path, depth)
        is_level = "properties" in out
        self.level += is_level
        self.levels = max(self.levels, self.level)
        if "$ref" in out:
            out.update(self._reference(out, path, is_optional))
        for keyword, value in out.items():
            out[keyword] = self._child(keyword, value, f"{path}/{keyword}", depth + 1, is_optional, out)
        self.level -= is_level
        self.within, self.writing_out = within, writing_out
        self._close(out, path)
        return out

    def _in_one_form(self, schema: object, path: str) -> Body:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, Mapping):
            return self._anything(path, f"{path or '/'} of the schema must be an object, not {type(schema).__name__}")
        out, faults = forms.in_2020_12(schema)
        for keyword in _DEFINITIONS:
            out.pop(keyword, None)  # they stand at the root, where they are referred to
        for keyword, why in faults:
            self.losses.append(SchemaLoss(path, keyword, f"{why}; left out"))
        return out

    def _anything(self, path: str, why: str) -> Body:
        """In place of what is no schema. Raises UsageError where its author can mend it."""
        if not self.dialect.lenient:
            raise UsageError(why)
        self.losses.append(SchemaLoss(path, "", why))
        return {}

    def _select(self, out: Body, path: str, depth: int) -> Body:
        """What the dialect takes of it; the rest is said in words and reported."""
        dialect, known = self.dialect, self.dialect.keywords
        pattern, form = out.get("pattern"), out.get("format")
        if not dialect.any_regex and isinstance(pattern, str) and not forms.is_plain_regex(pattern):
            self._leave_out(out, "pattern", path, "takes only a regex without lookaround")
        if known is not None:
            _rename(out, dialect)
            _integer_bounds(out, dialect)
            forms.define_required(out, drops=dialect.lenient)
            if "prefixItems" in out and "prefixItems" not in known:
                self._tuple(out, path)
            if dialect.closed and "anyOf" in out and "properties" in out:
                out = self._in_each_branch(out, path)
            for keyword in [each for each in out if each not in known]:
                if keyword in forms.ASSERTIONS or keyword in _SAID_AS_WELL:
                    self._leave_out(out, keyword, path, "has no such keyword")
                else:
                    del out[keyword]
        if dialect.formats is not None and form is not None and form not in dialect.formats and "format" in out:
            self._leave_out(out, "format", path, f"does not know {form!r}")
        if dialect.closed:
            self._give_type(out, path)
        if dialect.explicit and forms.may_be(out, "array") and "items" not in out and "type" in out:
            out["items"] = {}
        if dialect.max_text:
            self._shorten(out)
        return out

    def _leave_out(self, out: Body, keyword: str, path: str, why: str) -> None:
        """Say in words what the dialect cannot say in keywords."""
        loss = SchemaLoss(path, keyword, f"{self.dialect.name} {why}")
        text = json_text(out.pop(keyword))
        if self.dialect.in_words and '"$ref"' not in text:
            text = f"({keyword}: {text if len(text) <= _MAX_WORDS else text[:_MAX_WORDS] + '...'})"
            said = out.get("description")
            out["description"] = f"{said}\n{text}" if said else text
        if keyword == "patternProperties" and not self.dialect.closed:
            out.pop("additionalProperties", None)  # what it allows must not be forbidden
        if keyword in _KEYS_ELSEWHERE and self.dialect.closed and forms.may_be(out, "object"):
            self.opened.append(loss)
        elif keyword not in _SAID_AS_WELL:
            self.losses.append(loss)

    def _tuple(self, out: Body, path: str) -> None:
        """An array of known length whose items are each of one of the types."""
        prefix, rest, most = out["prefixItems"], out.get("items"), out.get("maxItems")
        self._leave_out(out, "prefixItems", path, "has no tuples")
        kinds = list(prefix) if isinstance(prefix, list | tuple) else []
        if rest is not None:
            kinds.append(rest)
        elif not isinstance(most, int | float) or most > len(kinds):
            return  # anything may follow
        distinct = list({json_text(kind): kind for kind in kinds}.values())
        out["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}

    def _in_each_branch(self, out: Body, path: str) -> Body:
        """A choice beside an object's own properties: closed, the object would forbid those of the choice."""
        branches = out["anyOf"]
        assert isinstance(branches, list | tuple)
        self.written_out += len(branches) * len(out)
        if self.written_out > MAX_WRITTEN_OUT:
            self._leave_out(out, "anyOf", path, "has none beside properties")
            return out
        about: Body = {keyword: out[keyword] for keyword in ("description", "title") if keyword in out}
        own = {keyword: value for keyword, value in out.items() if keyword not in ("anyOf", *about)}
        return {**about, "anyOf": [{"allOf": [own, branch]} for branch in branches]}

    def _give_type(self, out: Body, path: str) -> None:
        """A strict grammar is made of types."""
        values = [out["const"]] if "const" in out else out.get("enum")
        if isinstance(values, list | tuple) and any(isinstance(value, list | dict) for value in values):
            self._leave_out(out, "const" if "const" in out else "enum", path, "takes only plain values")
            values = None
        if "type" in out or "anyOf" in out:
            return
        if isinstance(values, list | tuple):
            kinds = list(dict.fromkeys(map(forms.type_of, values)))
        else:
            kinds = ["object"] if "properties" in out else ["array"] if "items" in out else []
        if kinds:
            out["type"] = kinds[0] if len(kinds) == 1 else kinds
        else:
            self.opened.append(SchemaLoss(path, "type", f"{self.dialect.name} has nothing that stands for any value"))

    def _shorten(self, out: Body) -> None:
        most, values = self.dialect.max_text, out.get("enum")
        for keyword in ("description", "format", "pattern"):
            if isinstance(text := out.get(keyword), str) and len(text) > most:
                out.pop(keyword) if keyword == "pattern" else out.update({keyword: text[:most]})
        if isinstance(values, list | tuple) and len(values) > self.dialect.max_values:
            del out["enum"]

    def _child(self, keyword: str, value: object, path: str, depth: int, is_optional: bool, out: Body) -> object:
        if keyword == "properties" and isinstance(value, Mapping):
            required = out.get("required")
            needed = set(required) if isinstance(required, list) else set()
            return {
                name: self.node(child, f"{path}/{name}", depth, is_optional or name not in needed)
                for name, child in value.items()
                if self._takes_name(name, name in needed)
            }
        if keyword in forms.SCHEMA_MAPS and isinstance(value, Mapping):
            return {name: self.node(child, f"{path}/{name}", depth, is_optional) for name, child in value.items()}
        if keyword in forms.SCHEMA_LISTS and isinstance(value, list | tuple):
            return [self.node(child, f"{path}/{index}", depth, is_optional) for index, child in enumerate(value)]
        if keyword in forms.SCHEMAS and isinstance(value, Mapping):
            return self.node(value, path, depth, is_optional)
        if keyword == "enum" and isinstance(value, list | tuple):
            self.values += len(value)
            self.chars += sum(len(each) for each in value if isinstance(each, str))
        elif keyword == "const" and isinstance(value, str):
            self.chars += len(value)
        return value

    def _takes_name(self, name: str, is_needed: bool) -> bool:
        pattern = self.dialect.property_pattern
        self.chars += len(name)
        if pattern is None or pattern.fullmatch(name):
            return True
        if not self.dialect.lenient or is_needed:
            raise UsageError(f"{self.dialect.name} takes no parameter named {name!r}; it must match {pattern.pattern}")
        return False

    def _close(self, out: Body, path: str) -> None:
        if not self.dialect.closed:
            return
        if forms.may_be(out, "array") and "type" in out and not out.get("items"):
            self.opened.append(SchemaLoss(path, "items", f"{self.dialect.name} has no arrays of anything"))
        kind = out.get("type")
        self.unions += isinstance(kind, list) or "anyOf" in out
        if "properties" not in out and not (forms.may_be(out, "object") and "type" in out):
            return
        if out.get("additionalProperties", False) is not False or not ("properties" in out or path == ""):
            self.opened.append(SchemaLoss(path, "additionalProperties", f"{self.dialect.name} has no open objects"))
        properties = out.setdefault("properties", {})
        out["additionalProperties"] = False
        if isinstance(properties, Mapping):
            self.properties += len(properties)
            required = out.get("required")
            self.optional += len(properties) - (len(required) if isinstance(required, list) else 0)
            if self.dialect.all_required:
                out["required"] = list(properties)

    # References.

    def _all_in_one(self, schema: Body, path: str, *, depth: int = 0, writes_out: bool = False) -> Body:
        """`$ref`, what stands beside it, and the branches of an `allOf` as one schema that holds all of them; what
        cannot be joined stays an `allOf`. A lone reference stays one, as do those of a circle."""
        own, references = self._parts(schema, path)
        writes_out = writes_out or not self.dialect.references
        if len(references) == 1 and not any(own) and not writes_out:
            return {"$ref": references[0]}
        parts, seen = list(own), set(references)
        for reference in references:  # which grows meanwhile
            target, more = self._parts(self._in_one_form(self._target(reference, path), path), path)
            parts += target
            references += [each for each in more if each not in seen]
            seen.update(more)
        key = frozenset(references)
        has_room = self.written_out <= MAX_WRITTEN_OUT and (writes_out or depth < MAX_SCHEMA_DEPTH // 2)
        if references and (key in self.writing_out or not has_room):
            return self._left_bare(own, references, path)
        out, left = forms.joined_all(parts)
        if left:
            out["allOf"] = left
        if references:
            self.writing_out = (*self.writing_out, key)
            for reference in references:
                self.refers.append(_Refers(self.within, self._name(reference, writes=False), {}, path, True))
            self.within = tuple(self.names[reference] for reference in references)
        return out

    def _parts(self, schema: Body, path: str) -> tuple[list[Body], list[str]]:
        """A schema's own keywords, then those of its `allOf`; and the references among them, each once."""
        parts, references, waiting = list[Body](), dict[str, None](), [schema]
        while waiting:
            part = dict(waiting.pop())
            branches = part.pop("allOf", ())
            reference = self._end_of(part.pop("$ref", None), path)
            if reference is not None:
                references[reference] = None
            parts.append(part)
            if isinstance(branches, list | tuple):
                waiting += [self._in_one_form(each, path) for each in reversed(branches)]
        return parts, list(references)

    def _left_bare(self, own: list[Body], references: list[str], path: str) -> Body:
        """A reference without what stands beside it, where writing it out would never end, or take too long."""
        told = next(({"description": each["description"]} for each in own if "description" in each), {})
        beside = [keyword for each in own for keyword in each if keyword in forms.ASSERTIONS]
        if not self.dialect.references:
            self.losses.append(SchemaLoss(path, "$ref", f"{self.dialect.name} has no circles; it stands for anything"))
            return dict(told)
        for keyword in [*beside, *("$ref" for _ in references[1:] if len(own) > 1)]:
            self.losses.append(SchemaLoss(path, keyword, f"{self.dialect.name} takes nothing beside a recursive $ref"))
        return {"$ref": references[0]}

    def _end_of(self, reference: object, path: str) -> str | None:
        """The reference at the end of a row of them; None where there is none, or the row is a circle."""
        row: list[str] = []
        end: str | None = None
        while isinstance(reference, str):
            if reference in self.ends:
                end = self.ends[reference]
                break
            self.ends[reference] = None
            row.append(reference)
            if (target := self._target(reference, path)) is None:
                break
            if not isinstance(target, Mapping) or set(target) - {"$ref", *_DEFINITIONS} or "$ref" not in target:
                end = reference
                break
            reference = target["$ref"]
        self.ends.update(dict.fromkeys(row, end))
        return end

    def _target(self, reference: str, path: str) -> object:
        """What a reference names: a schema. Where it is none: None, or a UsageError."""
        try:
            return forms.named_by(reference, self.root)
        except LookupError as why:
            self._anything(path, str(why))
        return None

    def _name(self, reference: str, *, writes: bool = True) -> str:
        """The name of its definition in what is written."""
        if reference not in self.names:
            name = wanted = reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~").strip("#") or "root"
            while name in self.taken:
                self.taken[wanted] += 1
                name = f"{wanted}_{self.taken[wanted]}"
            self.taken[name] = 1
            self.names[reference] = name
        if writes and reference not in self.written:
            self.written.add(reference)
            self.waiting.append(reference)
        return self.names[reference]

    def _reference(self, schema: Body, path: str, is_optional: bool) -> Body:
        """A reference as it is written."""
        reference = self._end_of(schema["$ref"], path)
        if reference is None:
            return {}
        name = self._name(reference)
        out: Body = {"$ref": f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}"}
        self.refers.append(_Refers(self.within, name, out, path, is_optional))
        return out

    def _cut_circles(self) -> None:
        """Definitions that refer to themselves, where they may not."""
        circles = forms.in_circles((within, each.target) for each in self.refers for within in each.within)
        self.is_recursive = bool(circles)
        if circles and not self.dialect.recursive:
            why = f"{self.dialect.name} takes no definition that refers to itself, as {min(circles)!r} does"
            self.opened.append(SchemaLoss("", "$ref", why))
        if not circles or not self.dialect.circles_optional:
            return
        for each in self.refers:
            if each.out and not each.is_optional and each.target in circles and not circles.isdisjoint(each.within):
                why = f"{self.dialect.name} takes a circle of definitions only in a property that may be left out"
                self.losses.append(SchemaLoss(each.path, "$ref", why))
                each.out.clear()
                each.out["description"] = f"(again as described of {each.target})"

    def _count(self, out: Body) -> None:
        limits, budget = self.dialect.limits, self.dialect.budget
        size = len(dumps(out, str)) if limits.bytes else 0
        for keyword, has, most in (
            ("properties", self.properties, limits.properties),
            ("levels", self.levels, limits.levels),
            ("enum", self.values, limits.values),
            ("characters", self.chars, limits.chars),
            ("bytes", size, limits.bytes),
            ("optional parameters", self.optional, budget and budget.optional),
            ("parameters of several types", self.unions, budget and budget.unions),
        ):
            if most and has > most:
                self.opened.append(
                    SchemaLoss("", keyword, f"{self.dialect.name} takes {most:,}, and these are {has:,}")
                )


def _rename(out: Body, dialect: SchemaDialect) -> None:
    if dialect.one_of_as_any_of and "oneOf" in out and "anyOf" not in out:
        out["anyOf"] = out.pop("oneOf")
    const = out.get("const")
    if dialect.const_as_enum and isinstance(const, str | int | float) and not isinstance(const, bool):
        out["enum"] = [out.pop("const")]
    if out.get("unevaluatedProperties") is False and not _KEYS_ELSEWHERE & set(out):
        del out["unevaluatedProperties"]  # which then means the same
        out["additionalProperties"] = False


def _integer_bounds(out: Body, dialect: SchemaDialect) -> None:
    """For integers x > 3 is x >= 4."""
    if dialect.keywords is None or "exclusiveMinimum" in dialect.keywords or out.get("type") != "integer":
        return
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = out.get(exclusive)
        if isinstance(bound, int) and not isinstance(bound, bool) and inclusive not in out:
            del out[exclusive]
            out[inclusive] = bound + step
