"""JSON Schema as people and libraries write it, in the words of draft 2020-12, and two schemas joined into one.

Older drafts and OpenAPI 3.0 say some things otherwise (`nullable`, `items` as a list, `exclusiveMinimum: true`); APIs
refuse those, or do not read them. A value that no draft allows (`required: "name"`, `type: "any"`) makes an API refuse
the whole request, so it is taken out. Everything here looks at one schema and not at those within it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from callboard.protocol.content import json_text
from callboard.providers.json_values import Body

TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
DEFINITIONS: Final = ("$defs", "definitions")
SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
_TEXTS: Final = frozenset(
    {"description", "title", "format", "pattern", "$ref", "$comment", "contentEncoding", "contentMediaType"}
    | {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor"}
)
#: Keywords that say which values are valid and that have no rule of their own below.
_OTHERS: Final = frozenset(
    {"type", "enum", "const", "required", "uniqueItems", "dependentRequired", "dependencies", "additionalItems"}
)
ASSERTIONS: Final = _NUMBERS | _COUNTS | _OTHERS | SCHEMA_MAPS | SCHEMA_LISTS | SCHEMAS | {"format", "pattern", "$ref"}
_COMBINE: Final = ("$ref", "allOf", "anyOf", "oneOf")
_BOTH_PROPERTIES: Final = ("properties", "additionalProperties", "required")

Faults = list[tuple[str, str]]
"""Keywords that were taken out, and why."""


def in_2020_12(schema: Mapping[str, object]) -> tuple[Body, Faults]:
    """One schema, without those within it, in the words of draft 2020-12; and what was taken out because no draft
    allows it."""
    out: Body = {keyword: value for keyword, value in schema.items() if isinstance(keyword, str)}
    faults: Faults = []
    out.pop("$schema", None)  # it may name an older draft
    if "type" in out:
        _types(out, faults)
    if "exclusiveMinimum" in out or "exclusiveMaximum" in out:
        _bounds(out)
    if "items" in out or "prefixItems" in out or "additionalItems" in out:
        _arrays(out)
    if "dependencies" in out:
        _dependencies(out, faults)
    for keyword in [each for each, value in out.items() if each in _ALLOWED and not _ALLOWED[each](value)]:
        faults.append((keyword, f"{json_text(out.pop(keyword)):.200} is no value of it"))
    if "properties" in out or "required" in out:
        _properties(out)
    if "nullable" in out:
        _nullable(out)
    if "enum" in out and "type" in out:
        _values_by_type(out)
    return out, faults


def _types(out: Body, faults: Faults) -> None:
    """Gemini and protobuf write them in capitals; "any" means that there is none."""
    kind = out.get("type")
    if isinstance(kind, str):
        out["type"] = kind = kind.lower()
        if kind == "any":
            del out["type"]
    elif isinstance(kind, list):
        known = list(dict.fromkeys(each for each in kind if isinstance(each, str) and each in TYPES))
        if known and len(known) < len(kind):
            faults.append(("type", f"{json_text(kind):.200} names what is no type"))
            out["type"] = known


def _bounds(out: Body) -> None:
    """Draft 4: `exclusiveMinimum: true` beside `minimum` (Dokploy/mcp#74, homeassistant-ai/ha-mcp#2361)."""
    for inclusive, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(exclusive), bool) and out.pop(exclusive) and _is_number(out.get(inclusive)):
            out[exclusive] = out.pop(inclusive)


def _arrays(out: Body) -> None:
    """Until draft 2019-09 a tuple was `items` as a list, with `additionalItems` for what follows."""
    items = out.get("items")
    if isinstance(items, list):
        del out["items"]
        rest = out.pop("additionalItems", True)
        if items and "prefixItems" not in out:
            out["prefixItems"] = items
        if rest is not True:
            out["items"] = rest
    elif "prefixItems" not in out:
        out.pop("additionalItems", None)  # it means nothing there
    prefix = out.get("prefixItems")
    if prefix == []:
        del out["prefixItems"]
    if out.get("items") is False:  # nothing follows the tuple
        del out["items"]
        length, most = len(prefix) if isinstance(prefix, list) else 0, out.get("maxItems")
        out["maxItems"] = min(length, most) if _is_count(most) and isinstance(most, int) else length
    elif out.get("items") is True:
        out["items"] = {}


def _dependencies(out: Body, faults: Faults) -> None:
    """Until draft 2019-09 one keyword said which names need others, and which need a schema."""
    if "dependencies" not in out:
        return
    given = out.pop("dependencies")
    names = {name: each for name, each in given.items() if _is_names(each)} if isinstance(given, Mapping) else {}
    schemas = {name: each for name, each in given.items() if _is_schema(each)} if isinstance(given, Mapping) else {}
    if not isinstance(given, Mapping) or len(names) + len(schemas) < len(given):
        faults.append(("dependencies", f"{json_text(given):.200} is no value of it"))
    for keyword, needed in (("dependentRequired", names), ("dependentSchemas", schemas)):
        if needed:
            out.setdefault(keyword, needed)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) and each in TYPES for each in value)
    return isinstance(value, str) and value in TYPES


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping | bool)


#: What Python refuses in a regex, or warns of, and JavaScript, whose regexes JSON Schema means, reads: such a pattern
#: is believed; and one that is longer than any that says something.
_IN_JAVASCRIPT: Final = re.compile(r"\\(?:[pP]\{|u\{|c[A-Za-z]|k<)|\(\?<[A-Za-z_$]|\[\^?\[|--|&&|~~|\|\|")
_MOST_REGEX_CHARS: Final = 2_000


def _is_regex(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if len(value) > _MOST_REGEX_CHARS or _IN_JAVASCRIPT.search(value):
        return True
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_ALLOWED: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_TEXTS, lambda value: isinstance(value, str)),
    **dict.fromkeys(SCHEMA_MAPS, lambda value: isinstance(value, Mapping)),
    **dict.fromkeys(SCHEMA_LISTS, lambda value: isinstance(value, list | tuple) and len(value) > 0),
    **dict.fromkeys(SCHEMAS, _is_schema),
    "pattern": _is_regex,
    "type": _is_type,
    "enum": lambda value: isinstance(value, list | tuple) and len(value) > 0,
    "required": lambda value: isinstance(value, list | tuple | bool),
    "uniqueItems": lambda value: isinstance(value, bool),
    "multipleOf": lambda value: isinstance(value, int | float) and _is_number(value) and value > 0,
    "dependentRequired": lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
    "examples": lambda value: isinstance(value, list | tuple),
    **dict.fromkeys(("readOnly", "writeOnly", "deprecated"), lambda value: isinstance(value, bool)),
}


def _properties(out: Body) -> None:
    """The names that are required, each once. Draft 3 says so at the property."""
    required, properties = out.pop("required", ()), out.get("properties")
    names = [each for each in required if isinstance(each, str)] if isinstance(required, list | tuple) else []
    if isinstance(properties, Mapping):
        names += [
            name for name, each in properties.items() if isinstance(each, Mapping) and each.get("required") is True
        ]
    if names:
        out["required"] = list(dict.fromkeys(names))


def define_required(out: Body, *, drops: bool) -> None:
    """What is required, and of which nothing is said: Gemini refuses it ("property is not defined"), and a closed
    object has no room for it. It is said that it may be anything, or dropped where it cannot be there."""
    properties, required = _mapping(out.get("properties")), _list(out.get("required"))
    missing = [name for name in required if name not in properties]
    if missing and (drops or out.get("additionalProperties") is False):
        out["required"] = [name for name in required if name in properties]
    elif missing:
        out["properties"] = {**properties, **{str(name): {} for name in missing}}
    if not out.get("required", True):
        del out["required"]


def _nullable(out: Body) -> None:
    """OpenAPI 3.0 says `nullable: true` where JSON Schema has a type of its own."""
    if out.pop("nullable", None) is not True:
        return
    if any(keyword in out for keyword in _COMBINE):
        told: Body = {keyword: out.pop(keyword) for keyword in ("title", "description", "default") if keyword in out}
        within = dict(out)
        out.clear()
        out.update(told, anyOf=[within, {"type": "null"}])
        return
    kind = out.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind) if isinstance(kind, list) else []
    if kinds and "null" not in kinds:
        out["type"] = [*kinds, "null"]
    values = [out.pop("const")] if "const" in out else out.get("enum")
    if isinstance(values, list | tuple):
        out["enum"] = [*values, *([] if None in values else [None])]


def may_be(schema: Mapping[str, object], kind: str) -> bool:
    """May a value of this schema be of this type?"""
    kinds = schema.get("type")
    if kinds is None:
        return "anyOf" not in schema and "$ref" not in schema
    return kinds == kind or (isinstance(kinds, list) and kind in kinds)


_OF_TYPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
    "object": Mapping,
    "array": (list, tuple),
}


def type_of(value: object) -> str:
    """The type of a value that is JSON."""
    if isinstance(value, bool | int):
        return "boolean" if isinstance(value, bool) else "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return next((name for name, kind in _OF_TYPE.items() if isinstance(value, kind)), "string")


def _values_by_type(out: Body) -> None:
    """Values that the type forbids anyway: OpenAI refuses a schema for them ("enum value ... does not validate")."""
    values, kind = out.get("enum"), out.get("type")
    if not isinstance(values, list | tuple) or kind is None:
        return
    kinds = _kinds_of(kind)
    fitting = [value for value in values if type_of(value) in kinds]
    if fitting and len(fitting) < len(values):
        out["enum"] = fitting


def _kinds_of(kind: object) -> set[object]:
    """The types that a `type` allows, as `type_of` names them."""
    kinds: set[object] = set(kind) if isinstance(kind, list) else {kind}
    return kinds | {"integer"} if "number" in kinds else kinds


#: Keywords that say something of values of one type only; all others go with every type.
_OF_ONE_TYPE: Final[Mapping[str, str]] = {
    **dict.fromkeys(_NUMBERS, "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"), "string"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties", "unevaluatedProperties"), "object"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), "object"),
}


def in_one_type_each(schema: Body) -> Body | None:
    """A list of types as an `anyOf`, for an API that has no such lists. None, where there is an `anyOf` already."""
    kinds, values = schema["type"], [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(kinds, list) or "anyOf" in schema:
        return None
    out = {keyword: value for keyword, value in schema.items() if keyword not in ("type", "enum", "const")}
    of_type = {keyword: out.pop(keyword) for keyword in _OF_ONE_TYPE if keyword in out}
    branches: list[Body] = []
    for kind in kinds:
        about = "number" if kind == "integer" else kind
        branch = {"type": kind} | {word: value for word, value in of_type.items() if _OF_ONE_TYPE[word] == about}
        if isinstance(values, list | tuple):
            fitting = [
                each for each in values if type_of(each) == kind or (kind == "number" and type_of(each) == "integer")
            ]
            if not fitting:
                continue
            branch |= {} if kind == "null" else {"enum": fitting}
        branches.append(branch)
    if len(branches) == 1:
        return {**out, **branches[0]}
    return {**out, "anyOf": branches} if branches else None


def with_plain_values(schema: Body) -> tuple[Body, bool]:
    """The values of an `enum` that are texts or numbers; null becomes a branch of an `anyOf`. True: a value is lost."""
    values, kind = _list(schema.get("enum")), schema.get("type")
    plain = [each for each in values if type_of(each) in ("string", "number", "integer") and each != ""]
    if len(plain) == len(values):
        return schema, False
    out = {keyword: value for keyword, value in schema.items() if keyword != "enum"}
    has_null = None in values
    is_lost = len(plain) + has_null < len(values)
    if not plain:
        return (out, True) if is_lost else ({**out, "type": "null"}, False)
    if not has_null:
        return {**out, "enum": plain}, True
    if "anyOf" in schema:
        return out, True
    rest = [each for each in _list(kind) if each != "null"]
    out.pop("type", None)
    typed: Body = {"type": rest[0] if len(rest) == 1 else rest} if rest else {}
    return {**out, "anyOf": [{**typed, "enum": plain}, {"type": "null"}]}, is_lost


#: Escapes, and classes of characters, in which "(?=" has no meaning. Each character is read once.
_PLAIN_PARTS: Final = re.compile(r"\\(?:.|$)|\[\^?(?:\\.|[^\]\\])*(?:\]|\\?$)", re.DOTALL)
_LOOKAROUND: Final = re.compile(r"\(\?(?:[=!<>]|P=)")
_ESCAPED_BACKSLASH: Final = re.compile(r"\\\\")
_BACK_OR_CLASS: Final = re.compile(r"\\(?:[1-9]|k<|[pPu]\{|c[A-Za-z])")


def is_plain_regex(pattern: str) -> bool:
    """Is this what an automaton can follow and Python reads: no lookaround, no reference back to what was read, no
    named groups or Unicode classes in JavaScript's words? OpenAI refuses any other ("... is not a 'regex'")."""
    if "(?" in pattern and _LOOKAROUND.search(_PLAIN_PARTS.sub("", pattern)):
        return False
    return "\\" not in pattern or _BACK_OR_CLASS.search(_ESCAPED_BACKSLASH.sub("", pattern)) is None


# -- two schemas joined ------------------------------------------------------------------------------------------------


def joined(first: Body, second: Body) -> Body | None:
    """One schema that holds what both hold, as `$ref` and what stands beside it do, and the branches of an `allOf`.
    What is said of the same field becomes an `allOf` there. None: that cannot be said without an `allOf`.

    Both are in draft 2020-12, and without `$ref`. Annotations of the first one count.
    """
    if ("prefixItems" in first and "items" in second) or ("items" in first and "prefixItems" in second):
        return None
    objects = _joined_objects(first, second)
    if objects is None:
        return None
    out = {**second, **first}
    for keyword in set(first) & set(second) - set(_BOTH_PROPERTIES):
        one, other = first[keyword], second[keyword]
        if one == other or keyword not in ASSERTIONS:
            continue
        both = _RULES[keyword](one, other) if keyword in _RULES else None
        if both is None:
            return None
        out[keyword] = both
    for keyword in _BOTH_PROPERTIES:
        out.pop(keyword, None)
    out.update(objects)
    return _joined_values(out)


def joined_all(parts: list[Body]) -> tuple[Body, list[Body]]:
    """All parts as one, and those that cannot be joined. Neighbours first, so that many parts take no longer."""
    left: list[Body] = []
    while len(parts) > 1:
        level = []
        for place in range(0, len(parts) - 1, 2):
            both = joined(parts[place], parts[place + 1])
            level.append(parts[place] if both is None else both)
            if both is None:
                left.append(parts[place + 1])
        parts = level + parts[len(parts) - len(parts) % 2 :]
    return dict(parts[0]), left


def _joined_objects(first: Body, second: Body) -> Body | None:
    """What both say of an object's fields. A field that one of them forbids is left out; None, if it is required."""
    fields = _mapping(first.get("properties")), _mapping(second.get("properties"))
    required = list(dict.fromkeys([*_list(first.get("required")), *_list(second.get("required"))]))
    properties: Body = {}
    for name in dict.fromkeys([*fields[0], *fields[1]]):
        said = []
        for schema, own in ((first, fields[0]), (second, fields[1])):
            more = schema.get("additionalProperties", True)
            if name in own:
                said.append(own[name])
            elif more is not True and more != {} and "patternProperties" not in schema:
                said.append(more)
        if False in [each for each in said if isinstance(each, bool)]:
            if name in required:
                return None
            continue
        properties[name] = said[0] if len(said) == 1 or said[0] == said[1] else {"allOf": said}
    out: Body = {"properties": properties} if "properties" in first or "properties" in second else {}
    more = [each["additionalProperties"] for each in (first, second) if "additionalProperties" in each]
    if more:
        rest = [each for each in more if each is not True and each != {}]
        same = len(rest) == 1 or (len(rest) > 1 and rest[0] == rest[1])
        out["additionalProperties"] = (
            True if not rest else False if False in rest else rest[0] if same else {"allOf": rest}
        )
    return {**out, "required": required} if required else out


def _joined_values(out: Body) -> Body | None:
    """A constant among values; none, where they contradict each other."""
    _values_by_type(out)
    values, kind = out.get("enum"), out.get("type")
    if "const" in out and kind is not None and type_of(out["const"]) not in _kinds_of(kind):
        return None
    if "const" in out and isinstance(values, list | tuple):
        if out["const"] not in values:
            return None
        del out["enum"]
    return out


def _types_of_both(one: object, other: object) -> object:
    kinds = [one] if isinstance(one, str) else _list(one)
    others = [other] if isinstance(other, str) else _list(other)
    both = [kind for kind in kinds if kind in others or (kind == "integer" and "number" in others)]
    both += [kind for kind in others if kind == "integer" and kind not in both and "number" in kinds]
    return both[0] if len(both) == 1 else both or None


def _values_of_both(one: object, other: object) -> object:
    texts = {json_text(value) for value in _list(other)}
    return [value for value in _list(one) if json_text(value) in texts] or None


def _least(one: object, other: object) -> object:
    return min(one, other) if isinstance(one, int | float) and isinstance(other, int | float) else None


def _greatest(one: object, other: object) -> object:
    return max(one, other) if isinstance(one, int | float) and isinstance(other, int | float) else None


def _multiple(one: object, other: object) -> object:
    return math.lcm(one, other) if isinstance(one, int) and isinstance(other, int) else None


def _all_of(one: object, other: object) -> object:
    return {"allOf": [one, other]}


_RULES: Final[Mapping[str, Callable[[object, object], object]]] = {
    "type": _types_of_both,
    "enum": _values_of_both,
    "uniqueItems": lambda one, other: one is True or other is True,
    "multipleOf": _multiple,
    **dict.fromkeys(("items", "propertyNames"), _all_of),
    **{
        keyword: _greatest if keyword.startswith(("min", "exclusiveMin")) else _least
        for keyword in _NUMBERS | _COUNTS
        if keyword not in ("multipleOf", "minContains", "maxContains")
    },
}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


# -- references --------------------------------------------------------------------------------------------------------


def anchors(root: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """The schemas within a schema that have a name of their own ("#name"): `$anchor`, and before 2019-09 `$id`."""
    found: dict[str, Mapping[str, object]] = {}
    waiting: list[object] = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping):
            continue
        for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str) and ("id" not in keyword or name.startswith("#")):
                found.setdefault(f"#{name.removeprefix('#')}", schema)
        for keyword, value in schema.items():
            if keyword in SCHEMA_MAPS and isinstance(value, Mapping):
                waiting += value.values()
            elif keyword in SCHEMAS or keyword in SCHEMA_LISTS:
                waiting += value if isinstance(value, list | tuple) else [value]
    return found


def named_by(reference: str, root: object) -> Mapping[str, object] | bool:
    """The schema that a reference within a schema names ("#/$defs/Name"). Raises LookupError, which says why not.

    It is decoded as RFC 6901, section 6 has it: "%5B" first, then "~1". A name that is there as it stands is meant."""
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(f"only references within the schema are possible, not {reference!r:.200}; inline it")
    node = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list | tuple) and name.isascii() and name.isdigit() and int(name[:9]) < len(node):
            node = node[int(name)]
            continue
        if isinstance(node, Mapping) and name not in node:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or name not in node:
            raise LookupError(f"the schema refers to {reference!r:.200}, which it does not hold")
        node = node[name]
    if not isinstance(node, Mapping | bool):
        raise LookupError(f"the schema refers to {reference!r:.200}, which is not a schema")
    return node


def in_circles(edges: Iterable[tuple[str, str]]) -> set[str]:
    """The names from which one comes to a circle, and to which one comes from one."""
    onward: dict[str, set[str]] = {}
    back: dict[str, set[str]] = {}
    for one, other in edges:
        onward.setdefault(one, set()).add(other)
        back.setdefault(other, set()).add(one)
    names = {*onward, *back}
    for there, behind in ((onward, back), (back, onward)):
        ends = [name for name in names if not there.get(name)]
        while ends:
            end = ends.pop()
            names.discard(end)
            for name in behind.pop(end, ()):
                there[name].discard(end)
                if not there[name]:
                    ends.append(name)
    return names
