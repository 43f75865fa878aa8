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
from urllib.parse import unquote

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.errors import UsageError
from callboard.providers import schema_forms as forms
from callboard.providers.json_values import Body, dumps
from callboard.providers.schema_dialects import MAX_SCHEMA_DEPTH, SchemaDialect

#: Schemas written out in place of references, or beside each branch of a choice; after them, references stay.
MAX_WRITTEN_OUT: Final = 3_000
#: Of what is said in words of one keyword.
_MAX_WORDS: Final = 2_000
#: They may name an object's keys: where they cannot be said, closing the object would forbid these.
_KEYS_ELSEWHERE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "patternProperties", "dependentSchemas", "dependencies"}
)
#: Words that are no loss: of a default or an encoding nothing is lost by that.
_SAID_AS_WELL: Final = frozenset({"default", "contentEncoding"})
#: What a definition may be called in a reference without being written otherwise there.
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_.-]")


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
    made_up: str = ""
    """One that must be given here, though it may be left out and takes no null: a model makes its value up."""
    optional: int = 0
    """Parameters that may be left out, and those of several types: what a strict schema costs of `StrictBudget`."""
    unions: int = 0


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
    return AdaptedSchema(written, (*opened, *walk.losses), strict, walk.is_recursive, walk.made_up, *costs)


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
    anchors: dict[str, Mapping[str, object]] | None = None
    """By "#name"; None: not looked for yet."""
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
    looked_at: int = 0
    """To find whether they take null."""
    made_up: str = ""
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
        if isinstance(root.get("additionalProperties"), bool) and "additionalProperties" in self.dialect.not_at_root:
            del root["additionalProperties"]  # arguments are checked when they come
        for keyword in [each for each in root if each in self.dialect.not_at_root]:
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
        for keyword in forms.DEFINITIONS:
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
        out = self._types_and_values(out, path)
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

    def _types_and_values(self, out: Body, path: str) -> Body:
        dialect = self.dialect
        if dialect.plain_enum and "enum" in out:
            plain, is_lost = forms.with_plain_values(out)
            if is_lost:
                self._leave_out(out, "enum", path, "takes only numbers and texts that are not empty")
                plain |= {"description": out["description"]} if "description" in out else {}
            out = plain
        if dialect.closed:
            self._give_type(out, path)
        if not dialect.type_lists and isinstance(out.get("type"), list):
            each = forms.in_one_type_each(out)
            if each is not None:
                return each
            self._leave_out(out, "type", path, "has no lists of types beside a choice")
        return out

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
            if self.dialect.all_required:
                self._must_be_given({name: child for name, child in value.items() if name not in needed}, path)
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

    def _must_be_given(self, optional: Mapping[str, object], path: str) -> None:
        """What may be left out is its default or null, where all must be given. Else its value is made up."""
        for name, child in optional.items():
            has_default = isinstance(child, Mapping) and "default" in child
            if not self.made_up and not has_default and not self._takes_null(child, path):
                self.made_up = f"{path}/{name}"

    def _takes_null(self, schema: object, path: str) -> bool:
        waiting, seen = [schema], set[str]()
        while waiting and self.looked_at < MAX_WRITTEN_OUT:
            self.looked_at += 1
            each = waiting.pop()
            if not isinstance(each, Mapping):
                continue
            kinds, values = each.get("type"), each.get("enum")
            is_nullable = "const" in each and each["const"] is None
            is_nullable |= kinds == "null" or each.get("nullable") is True
            is_nullable |= isinstance(kinds, list) and "null" in kinds
            is_nullable |= kinds is None and isinstance(values, list | tuple) and None in values
            if is_nullable:
                return True
            for keyword in ("anyOf", "oneOf"):
                waiting += each[keyword] if isinstance(each.get(keyword), list | tuple) else ()
            reference = self._end_of(each.get("$ref"), path)
            if reference is not None and reference not in seen:
                seen.add(reference)
                waiting.append(self._target(reference, path))
        return False

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
        has_room = self.written_out <= MAX_WRITTEN_OUT and depth < MAX_SCHEMA_DEPTH // 2
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
            if not isinstance(target, Mapping) or set(target) - {"$ref", *forms.DEFINITIONS} or "$ref" not in target:
                end = reference
                break
            reference = target["$ref"]
        self.ends.update(dict.fromkeys(row, end))
        return end

    def _target(self, reference: str, path: str) -> object:
        """What a reference names: a schema. Where it is none: None, or a UsageError."""
        base = self.root.get("$id")
        if isinstance(base, str) and reference.startswith(f"{base}#"):
            reference = reference[len(base) :]
        if reference.startswith("#") and reference[1:2] not in ("", "/"):
            self.anchors = forms.anchors(self.root) if self.anchors is None else self.anchors
            if reference in self.anchors:
                return self.anchors[reference]
        try:
            return forms.named_by(reference, self.root)
        except LookupError as why:
            self._anything(path, str(why))
        return None

    def _name(self, reference: str, *, writes: bool = True) -> str:
        """The name of its definition in what is written."""
        if reference not in self.names:
            last = unquote(reference.rpartition("/")[2]).replace("~1", "/").replace("~0", "~").strip("#")
            name = wanted = _NOT_IN_NAMES.sub("_", last) or "root"
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
        out: Body = {"$ref": f"#/$defs/{name}"}
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
    if dialect.plain_enum and isinstance(const, str | int | float) and not isinstance(const, bool):
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
