"""From a function's signature and docstring to its JSON Schema, or a refusal that names the parameter."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType, MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Final, NotRequired, Union, get_args, get_origin, get_type_hints

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
else:
    docstring_parser = lazy_module("docstring_parser")
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
_WORD: Final = re.compile(r"[^\W\d]\w*")
_STRICT: Final[pydantic.ConfigDict] = {"extra": "forbid", "allow_inf_nan": False}


class Parameter(Struct, frozen=True):
    """One argument that the model fills."""

    name: str
    annotation: TypeForm[object]
    required: bool
    default: object = None
    description: str = ""


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
        """Validates the arguments as one JSON object; unknown names are refused, defaults are left to the function.

        NaN and infinity are refused as well, also as the texts "NaN" and "inf", which pydantic would take for numbers.
        """
        # A TypedDict and not a model: its keys may be called "json" or "copy".
        fields = {p.name: p.annotation if p.required else NotRequired[p.annotation] for p in self.parameters}
        make_type: Any = TypedDict
        return pydantic.TypeAdapter(pydantic.with_config(_STRICT)(make_type("Arguments", fields)))

    @cached_property
    def result(self) -> pydantic.TypeAdapter[object]:
        """Validates and serialises what the tool returns."""
        return pydantic.TypeAdapter(self.returns)

    @cached_property
    def plain_schema(self) -> dict[str, object]:
        """The JSON Schema of the arguments by their types alone."""
        return trimmed(self.arguments.json_schema())

    def json_schema(self) -> dict[str, object]:
        """The JSON Schema of the arguments, with the docstring's descriptions and the defaults."""
        schema = {"type": "object", **self.plain_schema}
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            schema["properties"] = {p.name: self._described(properties[p.name], p) for p in self.parameters}
        return schema

    def _described(self, schema: dict[str, object], parameter: Parameter) -> dict[str, object]:
        extra: dict[str, object] = {}
        if parameter.description and "description" not in schema:
            extra["description"] = parameter.description
        if not parameter.required and parameter.default is not None:
            # A default that JSON cannot carry is the function's own.
            with contextlib.suppress(pydantic_core.PydanticSerializationError):
                extra["default"] = self.arguments.dump_python(
                    {parameter.name: parameter.default}, mode="json", warnings=False
                )[parameter.name]
        return {**schema, **{key: value for key, value in extra.items() if _is_finite(value)}}

    def __getstate__(self) -> dict[str, object]:
        """Without the validators: they are built again where they are used."""
        return {name: getattr(self, name) for name in ("parameters", "returns", "context_parameter")}


def read_signature(function: Callable[..., object], tool: str, local_names: Names = MappingProxyType({})) -> Signature:
    """Read what a function takes and gives.

    `local_names` are those visible where it was defined, for annotations kept as text. Raises UsageError for a
    parameter that is untyped, of a type without a JSON Schema, or without a name.
    """
    visible = {**inspect.unwrap(function).__globals__, **local_names}
    texts = [each for each in function.__annotations__.values() if isinstance(each, str)]
    words = sorted({word for text in texts for word in _WORD.findall(text)} & visible.keys())
    parameters = tuple(inspect.signature(function).parameters.values())
    definition = _Definition(
        tool,
        tuple(map(id, (function.__code__, *(each.default for each in parameters)))),
        inspect.getdoc(function) or "",
        parameters,
        tuple(function.__annotations__.items()),
        tuple((word, visible[word]) for word in words),
        is_ours(function),
        function.__code__,
    )
    try:
        hash(definition)
    except TypeError:  # a default or an annotation cannot be looked up
        return _signature.__wrapped__(definition)
    return _signature(definition)


@dataclass(frozen=True)
class _Definition:
    """What a signature is read from. Two are equal where one `def` was executed twice and means the same."""

    tool: str
    same: tuple[int, ...]
    """The ids of the code, which is equal where a module is reloaded, and of the defaults: 1 is equal to True."""
    doc: str
    parameters: tuple[inspect.Parameter, ...]
    annotations: tuple[tuple[str, object], ...]
    names: tuple[tuple[str, object], ...]
    """Those in annotations that are texts, and what they stand for."""
    is_ours: bool
    code: CodeType = field(compare=False)
    """Held, as the defaults are, so that no other has its id."""


@lru_cache(maxsize=256)
def _signature(definition: _Definition) -> Signature:
    """Kept: a tool that is made in a function, as those of a workspace are, is made again and again, at 15 ms each."""
    tool = definition.tool
    hints = _hints(definition)
    described = {each.arg_name: each.description or "" for each in _parsed(definition.doc).params}
    taken = []
    context_parameter = ""
    for parameter in definition.parameters:
        if parameter.kind in _UNNAMED:
            raise UsageError(f"tool {tool}: parameter {parameter.name!r} {_UNNAMED[parameter.kind]}")
        if parameter.name not in hints:
            raise UsageError(
                f"tool {tool}: parameter {parameter.name!r} has no type; annotate it, as in `{parameter.name}: str`"
            )
        if hints[parameter.name] is ToolContext or ToolContext in get_args(hints[parameter.name]):
            context_parameter = parameter.name
        else:
            is_required = parameter.default is inspect.Parameter.empty
            default = None if is_required else parameter.default
            told = described.get(parameter.name, "")
            taken.append(Parameter(parameter.name, hints[parameter.name], is_required, default, told))
    signature = Signature(tuple(taken), _without_deferred(hints.get("return", object)), context_parameter)
    _check_arguments(signature, tool)
    if not definition.is_ours:
        _check_result(signature, tool)
    return signature


def is_ours(function: Callable[..., object]) -> bool:
    """Does callboard ship it? That such a tool can be used is proved by callboard's tests, not by each program that
    may never call it: what its checks build takes some 5 ms a tool."""
    return (function.__module__ or "").startswith("callboard.")


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
    return (_parsed(inspect.getdoc(function) or "").description or "").strip()


def _hints(definition: _Definition) -> dict[str, TypeForm[object]]:
    """The annotations as types, one after the other so that a refusal can name the one it is about."""
    hints: dict[str, TypeForm[object]] = {}
    for name, annotation in definition.annotations:
        alone = type("Alone", (), {"__annotations__": {name: annotation}})
        try:
            hints |= get_type_hints(alone, dict(definition.names), include_extras=True)
        except Exception as error:  # an annotation is an expression of the user's and may raise anything
            what = f"parameter {name!r}" if name != "return" else "the result"
            raise UsageError(
                f"tool {definition.tool}: the type of {what} ({annotation}) cannot be resolved: {error}; "
                "import or define that name at module level"
            ) from error
    return hints


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
        pydantic.TypeAdapter(parameter.annotation).json_schema()
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
