"""From a function's signature and docstring to what the model is told, or a refusal that names the parameter."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NotRequired, get_args, get_type_hints

import docstring_parser
from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from callboard.actors.tools.context import ToolContext
from callboard.protocol.errors import UsageError

#: Why a kind of parameter is refused: a model sends one JSON object, so each argument needs a name of its own.
_UNNAMED: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but a model passes arguments by name; remove the `/`",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; declare one parameter of type list[...] instead",
    inspect.Parameter.VAR_KEYWORD: "takes any name; declare the parameters, or one of type dict[str, ...], instead",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that the model fills."""

    name: str
    annotation: Any
    required: bool
    default: Any = None
    description: str = ""


@dataclass(frozen=True)
class Signature:
    """A tool's arguments and result as types. Plain data, so that it can be shipped to a child process."""

    parameters: tuple[Parameter, ...]
    returns: Any = Any
    context_parameter: str = ""
    """The parameter that gets the ToolContext; empty if there is none."""

    @cached_property
    def arguments(self) -> TypeAdapter[dict[str, Any]]:
        """Validates the arguments as one JSON object; unknown names are refused, defaults are left to the function."""
        fields = {p.name: p.annotation if p.required else NotRequired[p.annotation] for p in self.parameters}
        # A TypedDict and not a model: its keys may be called "json" or "copy".
        make_type: Any = TypedDict
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(make_type("Arguments", fields)))

    @cached_property
    def result(self) -> TypeAdapter[Any]:
        """Validates and serialises what the tool returns."""
        return TypeAdapter(self.returns)

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, with the docstring's descriptions and the defaults."""
        schema = _without_titles(self.arguments.json_schema())
        properties = schema.setdefault("properties", {})
        for parameter in self.parameters:
            properties[parameter.name] = _described(properties[parameter.name], parameter)
        return {"type": "object", **schema}

    def __getstate__(self) -> dict[str, Any]:
        """Without the validators: they are built anew where they are used."""
        return {name: getattr(self, name) for name in ("parameters", "returns", "context_parameter")}


def read_signature(function: Callable[..., Any], tool: str, local_names: Mapping[str, Any] | None = None) -> Signature:
    """Read what a function takes and gives.

    `local_names` are those visible where it was defined, for annotations kept as text. Raises UsageError for a
    parameter that is untyped, of a type without a JSON Schema, or without a name.
    """
    hints = _hints(function, tool, local_names)
    described = _parameter_descriptions(function)
    parameters = []
    context_parameter = ""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _UNNAMED:
            raise UsageError(f"tool {tool}: parameter {parameter.name!r} {_UNNAMED[parameter.kind]}")
        if parameter.name not in hints:
            raise UsageError(
                f"tool {tool}: parameter {parameter.name!r} has no type; annotate it, as in `{parameter.name}: str`"
            )
        if hints[parameter.name] is ToolContext or ToolContext in get_args(hints[parameter.name]):
            context_parameter = parameter.name
        else:
            parameters.append(_checked(parameter, hints[parameter.name], described.get(parameter.name, ""), tool))
    signature = Signature(tuple(parameters), hints.get("return", Any), context_parameter)
    _check_result(signature, tool)
    return signature


def describe(function: Callable[..., Any]) -> str:
    """The docstring without its list of parameters."""
    parsed = docstring_parser.parse(inspect.getdoc(function) or "")
    return (parsed.description or "").strip()


def _hints(function: Callable[..., Any], tool: str, local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns=dict(local_names or {}), include_extras=True)
    except Exception as error:  # an annotation is an expression of the user's and may raise anything
        name, text = _culprit(function, local_names)
        raise UsageError(
            f"tool {tool}: the type of {name} ({text}) cannot be resolved: {error}; "
            "import or define that name at module level"
        ) from error


def _culprit(function: Callable[..., Any], local_names: Mapping[str, Any] | None) -> tuple[str, str]:
    for name, annotation in function.__annotations__.items():
        probe = type("Probe", (), {"__annotations__": {name: annotation}, "__module__": function.__module__})
        try:
            get_type_hints(probe, localns=dict(local_names or {}), include_extras=True)
        except Exception:  # noqa: BLE001 - as above
            return f"parameter {name!r}" if name != "return" else "the result", str(annotation)
    return "a parameter", "?"


def _checked(parameter: inspect.Parameter, annotation: Any, description: str, tool: str) -> Parameter:
    try:
        TypeAdapter(annotation).json_schema()
    except PydanticUserError as error:
        raise UsageError(
            f"tool {tool}: parameter {parameter.name!r} has type {_type_name(annotation)}, which has no JSON Schema"
            f"{_reason(error)}; "
            "use a type that JSON can carry (str, int, list, dict, a dataclass, a pydantic model), "
            "or ToolContext for what the runtime knows"
        ) from error
    if parameter.default is inspect.Parameter.empty:
        return Parameter(parameter.name, annotation, True, None, description)
    return Parameter(parameter.name, annotation, False, parameter.default, description)


def _reason(error: PydanticUserError) -> str:
    """Why, where the type alone does not say it; not pydantic's own remedy for a type it does not know."""
    return "" if error.code == "schema-for-unknown-type" else f" ({error.message.splitlines()[0]})"


def _check_result(signature: Signature, tool: str) -> None:
    try:
        signature.result.core_schema  # noqa: B018 - building it is the check
    except PydanticUserError as error:
        raise UsageError(
            f"tool {tool}: its result has type {_type_name(signature.returns)}, which cannot be written as JSON; "
            "return a str, a dict, a list, a dataclass or a pydantic model"
        ) from error


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _parameter_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    parsed = docstring_parser.parse(inspect.getdoc(function) or "")
    return {parameter.arg_name: parameter.description or "" for parameter in parsed.params}


def _described(schema: dict[str, Any], parameter: Parameter) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if parameter.description and "description" not in schema:
        extra["description"] = parameter.description
    if not parameter.required and parameter.default is not None:
        with contextlib.suppress(PydanticSerializationError):  # a default that JSON cannot carry is the function's own
            adapter = TypeAdapter(parameter.annotation)
            extra["default"] = adapter.dump_python(parameter.default, mode="json", warnings=False)
    return {**schema, **extra}


def _without_titles(schema: Any) -> Any:
    """Pydantic's titles repeat the names, and every token of a schema is paid for at each model call."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(value) for name, value in item.items()}
        if key in ("properties", "$defs")
        else item
        if key in ("default", "const", "enum", "examples")
        else _without_titles(item)
        for key, item in schema.items()
        if not (key == "title" and isinstance(item, str))
    }
