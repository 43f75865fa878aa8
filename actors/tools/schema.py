"""From a function's signature and docstring to its JSON Schema, or a refusal that names the parameter."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from typing_extensions import TypedDict, TypeForm

from callboard.actors.tools.context import ToolContext
from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.tools import Deferred

if TYPE_CHECKING:
    import docstring_parser
    import pydantic
    import pydantic_core

    from callboard.actors.tools import functions, json_form, kept
    from callboard.protocol import annotation_reading
else:
    annotation_reading = lazy_module("callboard.protocol.annotation_reading")
    docstring_parser = lazy_module("docstring_parser")
    functions = lazy_module("callboard.actors.tools.functions")
    json_form = lazy_module("callboard.actors.tools.json_form")
    kept = lazy_module("callboard.actors.tools.kept")
    pydantic = lazy_module("pydantic")
    pydantic_core = lazy_module("pydantic_core")

#: Of names that are visible where a function was defined, what they stand for there.
Names = Mapping[str, object]

#: Why a kind of parameter is refused: a model sends one JSON object, so each argument needs a name of its own.
_UNNAMED: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but a model passes arguments by name; remove the `/`",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; declare one parameter of type list[...] instead",
    inspect.Parameter.VAR_KEYWORD: "takes any name; declare the parameters, or one of type dict[str, ...], instead",
}
#: Keys of a JSON Schema whose values are plain values and not schemas.
_VALUES: Final = frozenset(
    ["default", "const", "enum", "examples", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
)
#: Classes of defaults by which other libraries declare a parameter: the function would get the declaration.
_DECLARATIONS: Final = frozenset(
    ["Field", "_Field", "Depends", "Security", "OptionInfo", "ArgumentInfo", "_CountingAttr", "ModelPrivateAttr"]
)  # fmt: skip
#: What `@tool(resource=...)` opens is passed to the function by this name.
RESOURCE_PARAMETER: Final = "resource"
_WORD: Final = re.compile(r"[^\W\d]\w*")
_STRICT: Final[pydantic.ConfigDict] = {"extra": "forbid", "allow_inf_nan": False}


class _Unkept:
    """Cannot be hashed, so a type that has it beside it is in none of the caches of `typing`."""

    __hash__: ClassVar[None] = None  # type: ignore[assignment]


_UNKEPT: Final = _Unkept()


class Parameter(Struct, frozen=True):
    """One argument that the model fills."""

    name: str
    annotation: TypeForm[object]
    required: bool
    default: object = None
    description: str = ""
    aliases: tuple[str, ...] = ()
    """The names that a model may send it by, where they are not its own; its schema has the first."""

    @property
    def shown(self) -> str:
        """Its name in the schema."""
        return self.aliases[0] if self.aliases else self.name


@dataclass(frozen=True)
class Signature:
    """A tool's arguments and result as types. Plain data, so that it can be shipped to a child process."""

    parameters: tuple[Parameter, ...]
    returns: TypeForm[object] = object
    """Of its result, wherever that comes from: without `Deferred`."""
    context_parameter: str = ""
    """The parameter that gets the ToolContext; empty if there is none."""

    @cached_property
    def arguments(self) -> pydantic.TypeAdapter[dict[str, object]]:
        """Validates the arguments as one JSON object; unknown names are refused, defaults are left to the function
        unless they are those of a pydantic.Field.

        NaN and infinity are refused as well, also as the texts "NaN" and "inf", which pydantic would take for numbers.
        """
        # A TypedDict and not a model: its keys may be called "json" or "copy". Two parts and not NotRequired[...]:
        # that would keep the types.
        make_type: Any = TypedDict
        optional = {p.name: p.annotation for p in self.parameters if not p.required}
        required = {p.name: p.annotation for p in self.parameters if p.required}
        base = make_type("Arguments", optional, total=False)
        whole = type(base)("Arguments", (base,), {"__annotations__": required}, total=True)
        return json_form.adapter_of(pydantic.with_config(_STRICT)(whole))

    @cached_property
    def result(self) -> pydantic.TypeAdapter[object]:
        """Validates and serialises what the tool returns."""
        return json_form.adapter_of(self.returns)

    @cached_property
    def plain_schema(self) -> dict[str, object]:
        """The JSON Schema of the arguments by their types alone."""
        return trimmed(json_form.json_schema_of(self.arguments, "validation"))

    @cached_property
    def optional(self) -> frozenset[str]:
        """The names by which a model may send what has a default."""
        return frozenset(name for p in self.parameters if not p.required for name in (p.aliases or (p.name,)))

    def json_schema(self) -> dict[str, object]:
        """The JSON Schema of the arguments, with the docstring's descriptions and the defaults."""
        schema = {"type": "object", **self.plain_schema}
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            schema["properties"] = {p.shown: self._described(properties[p.shown], p) for p in self.parameters}
        return schema

    def _described(self, schema: dict[str, object], parameter: Parameter) -> dict[str, object]:
        extra: dict[str, object] = {}
        if parameter.description and "description" not in schema:
            extra["description"] = parameter.description
        if not parameter.required and parameter.default is not None:
            # A default that JSON cannot carry is the function's own.
            with contextlib.suppress(pydantic_core.PydanticSerializationError):
                (extra["default"],) = self.arguments.dump_python(
                    {parameter.name: parameter.default}, mode="json", warnings=False, by_alias=True
                ).values()
        return {**schema, **{key: value for key, value in extra.items() if _is_finite(value)}}

    def __getstate__(self) -> dict[str, object]:
        """Without the validators: they are built again where they are used."""
        return {name: getattr(self, name) for name in ("parameters", "returns", "context_parameter")}


def read_signature(
    function: Callable[..., object], tool: str, local_names: Names = MappingProxyType({}), hidden: str = ""
) -> Signature:
    """Read what a function takes and gives.

    `local_names` are those visible where it was defined, for annotations kept as text; `hidden` is a parameter that the
    model does not fill, of any type. Raises UsageError for another that is untyped, of a type without a JSON Schema, or
    without a name.
    """
    shown = functions.signature_as_shown(function)
    shown = shown.replace(parameters=[each for name, each in shown.parameters.items() if name != hidden])
    annotations = functions.annotations_in(shown)
    visible = {**getattr(functions.innermost(function), "__globals__", {}), **local_names}
    texts = [text for each in annotations.values() if (text := annotation_reading.forward_name(each))]
    words = sorted({word for text in texts for word in _WORD.findall(text)} & visible.keys())
    definition = _Definition(
        tool,
        functions.doc_of(function),
        tuple(shown.parameters.values()),
        annotations,
        {word: visible[word] for word in words},
        is_ours(function),
    )
    parts = (*annotations.values(), *definition.names.values(), *(each.default for each in definition.parameters))
    shelf = kept.shelf_for(*parts, is_ours=definition.is_ours)
    if shelf is None:
        return _signature(definition)
    key = definition.key()
    try:
        found = shelf.get(key)
    except TypeError:  # a default or an annotation cannot be looked up
        return _signature(definition)
    if not isinstance(found, Signature):
        # Kept: a tool that is made in a function, as those of a workspace are, is made again and again, at 15 ms each.
        found = _signature(definition)
        shelf.keep(key, found)
    return found


@dataclass(frozen=True)
class _Definition:
    """What a signature is read from."""

    tool: str
    doc: str
    parameters: tuple[inspect.Parameter, ...]
    annotations: Mapping[str, object]
    names: Mapping[str, object]
    """Those in annotations that are texts, and what they stand for."""
    is_ours: bool

    def key(self) -> tuple[object, ...]:
        """Equal where one `def` was executed twice and means the same. 1 is equal to True, so what is written counts,
        too."""
        parts = (
            tuple((each.name, each.kind, each.default) for each in self.parameters),
            tuple(self.annotations.items()),
            tuple(self.names.items()),
        )
        return (self.tool, self.doc, self.is_ours, *parts, repr(parts))


def _signature(definition: _Definition) -> Signature:
    tool = definition.tool
    hints = _hints(definition)
    described = {each.arg_name: each.description or "" for each in _parsed(definition.doc).params}
    taken = []
    context_parameter = ""
    for at, parameter in enumerate(definition.parameters):
        if parameter.kind in _UNNAMED:
            raise UsageError(f"tool {tool}: parameter {parameter.name!r} {_UNNAMED[parameter.kind]}")
        if parameter.name not in hints:
            raise UsageError(_untyped(tool, parameter.name, is_first=at == 0))
        if hints[parameter.name] is ToolContext or ToolContext in get_args(hints[parameter.name]):
            context_parameter = parameter.name
        else:
            taken.append(_parameter(tool, parameter, hints[parameter.name], described.get(parameter.name, "")))
    names = [name for each in taken for name in (each.aliases or (each.name,))]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"tool {tool}: two parameters are called {twice!r} for the model; give one another alias")
    signature = Signature(tuple(taken), _result_type(hints.get("return", object)), context_parameter)
    _check_arguments(signature, tool)
    if not definition.is_ours:
        _check_result(signature, tool)
    return signature


def _untyped(tool: str, name: str, *, is_first: bool) -> str:
    if is_first and name in ("self", "cls"):
        return (
            f"tool {tool}: it is a method, and its {name!r} is not known in the class's body; take @tool off, and make "
            f"the tool where there is an instance: tool(instance.{tool})"
        )
    return f"tool {tool}: parameter {name!r} has no type; annotate it, as in `{name}: str`"


def _parameter(tool: str, parameter: inspect.Parameter, annotation: Any, told: str) -> Parameter:
    """What the model fills, and what it is when the model leaves it out."""
    name, default = parameter.name, parameter.default
    beside = getattr(annotation, "__metadata__", ())
    told = next((text for each in beside if (text := _description(each))), told)
    is_given = default is not inspect.Parameter.empty
    if default is ... or type(default).__name__ in _DECLARATIONS:
        raise UsageError(
            f"tool {tool}: the default of parameter {name!r} is {_shown_default(default)}, which is no value; write "
            "the value itself, or pydantic.Field(...)"
        )
    if not any(map(_is_field, (*beside, default))):
        return Parameter(name, annotation, not is_given, default if is_given else None, told)
    # Unhashable, so that `typing` keeps neither the type nor the Field.
    if is_given:
        value = default if _is_field(default) else pydantic.Field(default)
        annotation = Annotated[annotation, value, _UNKEPT]
    try:
        field = pydantic.fields.FieldInfo.from_annotation(annotation)
    except TypeError as error:
        raise UsageError(f"tool {tool}: what parameter {name!r} says contradicts itself: {error}") from error
    aliases = _aliases(field.validation_alias or field.alias)
    if aliases is None:
        raise UsageError(
            f"tool {tool}: the alias of parameter {name!r} is a path into another one; give a name, or take a model as "
            "the parameter"
        )
    return Parameter(name, annotation, field.is_required(), None, told, aliases)


def _is_field(value: object) -> bool:
    return "pydantic.fields" in sys.modules and isinstance(value, pydantic.fields.FieldInfo)


def _shown_default(default: object) -> str:
    return "`...`" if default is ... else f"a {type(default).__module__}.{type(default).__qualname__}"


def _description(beside: object) -> str:
    """`Annotated[str, "text"]`, and what `typing_extensions.Doc` and its like say."""
    text = beside if isinstance(beside, str) else getattr(beside, "documentation", "")
    return text.strip() if isinstance(text, str) else ""


def _aliases(alias: object) -> tuple[str, ...] | None:
    """The names that an alias is; None where it leads into a value."""
    if alias is None or isinstance(alias, str):
        return (alias,) if alias else ()
    choices = getattr(alias, "choices", [alias])
    names = tuple(each for each in choices if isinstance(each, str))
    return names if len(names) == len(choices) else None


def is_ours(function: Callable[..., object]) -> bool:
    """Does callboard ship it? That such a tool can be used is proved by callboard's tests, not by each program that
    may never call it: what its checks build takes some 5 ms a tool."""
    return (function.__module__ or "").startswith("callboard.")


def _result_type(returns: Any) -> Any:
    if functions.is_awaitable(returns):
        returns = next(iter(get_args(returns)[-1:]), object)
    return _without_deferred(returns)


def _without_deferred(returns: Any) -> Any:
    """The type of the result itself, where the tool may leave it to someone outside: `Report` of `Report | Deferred`.

    Of `Deferred` alone: anything that can be written as JSON.
    """
    if returns is Deferred:
        return object
    kinds = get_args(returns)
    if Deferred not in kinds or get_origin(returns) not in (Union, UnionType):
        return returns
    return Union[tuple(kind for kind in kinds if kind is not Deferred)]  # noqa: UP007 - made of a tuple


def describe(function: Callable[..., object]) -> str:
    """The docstring without its list of parameters."""
    return (_parsed(functions.doc_of(function)).description or "").strip()


def _hints(definition: _Definition) -> dict[str, TypeForm[object]]:
    """The annotations as types, one after the other so that a refusal can name the one it is about."""
    hints: dict[str, TypeForm[object]] = {}
    for name, annotation in definition.annotations.items():
        alone = type("Alone", (), {"__annotations__": {name: annotation}})
        try:
            hints |= get_type_hints(alone, {**definition.names}, include_extras=True)
        except Exception as error:  # an annotation is an expression of the user's and may raise anything
            what = f"parameter {name!r}" if name != "return" else "the result"
            raise UsageError(
                f"tool {definition.tool}: the type of {what} ({_written(annotation)}) cannot be resolved: {error}; "
                "import or define that name at module level, not under TYPE_CHECKING"
            ) from error
    return hints


def _written(annotation: object) -> object:
    return annotation_reading.forward_name(annotation) or annotation


def _check_arguments(signature: Signature, tool: str) -> None:
    """All of them at once, a third of the time; one by one where that fails, to name the one."""
    try:
        signature.plain_schema  # noqa: B018 - building it is the check
    except pydantic.PydanticUserError:
        for parameter in signature.parameters:
            _check_argument(parameter, tool)
        raise


def _check_argument(parameter: Parameter, tool: str) -> None:
    try:
        json_form.json_schema_of(json_form.adapter_of(parameter.annotation), "validation")
    except pydantic.PydanticUserError as error:
        raise UsageError(
            f"tool {tool}: parameter {parameter.name!r} has type {_type_name(parameter.annotation)}, which has no JSON "
            f"Schema{_reason(error)}; use a type that JSON can carry (str, int, list, dict, a dataclass, a pydantic "
            "model), or ToolContext for what the runtime knows"
        ) from error


def _reason(error: pydantic.PydanticUserError) -> str:
    """Why, where the type alone does not say it; not pydantic's own remedy for a type it does not know."""
    return "" if error.code == "schema-for-unknown-type" else f" ({error.message.splitlines()[0]})"


def _check_result(signature: Signature, tool: str) -> None:
    try:
        signature.result.core_schema  # noqa: B018 - building it is the check
    except pydantic.PydanticUserError as error:
        raise UsageError(
            f"tool {tool}: its result has type {_type_name(signature.returns)}, which cannot be written as JSON; "
            "return a str, a dict, a list, a dataclass or a pydantic model"
        ) from error


def _type_name(annotation: TypeForm[object]) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


@lru_cache(maxsize=256)
def _parsed(doc: str) -> docstring_parser.Docstring:
    return docstring_parser.parse(doc)


def trimmed(schema: dict[str, object]) -> dict[str, object]:
    """Without pydantic's titles, which repeat the names (a schema is paid for at each model call), and without defaults
    and bounds that are NaN or infinite (JSON has no such numbers)."""
    return {
        key: _trimmed_item(key, item)
        for key, item in schema.items()
        if not (key == "title" and isinstance(item, str)) and (key not in _VALUES or _is_finite(item))
    }


def _trimmed_item(key: str, item: object) -> object:
    if isinstance(item, list) and key not in _VALUES:
        return [_trimmed_item("", each) for each in item]
    if not isinstance(item, dict) or key in _VALUES:
        return item
    if key in ("properties", "$defs"):
        return {name: _trimmed_item("", each) for name, each in item.items()}
    return trimmed(item)


def _is_finite(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
