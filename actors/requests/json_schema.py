"""An answer by a schema that is there as JSON, where no type of Python describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypeForm

from callboard.actors.requests.outputs import RAW, Output, OutputType, output_type
from callboard.protocol.errors import UsageError, missing_extra
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.output import OutputMode, OutputSpec

if TYPE_CHECKING:
    import pydantic
else:
    pydantic = lazy_module("pydantic")


def json_schema(
    schema: Mapping[str, object], *, name: str = "answer", description: str = "", mode: OutputMode | str = ""
) -> TypeForm[object]:
    """A type for `output=`: the reply's `output` is plain JSON data that fits the schema.

    `name`, `description` and `mode` are as those of `Output`. Patterns and formats are told to the model, and not
    checked. A request with such an output is taken up from a journal without `Runtime(outputs=...)`. Raises UsageError
    for what is no schema.
    """
    if not isinstance(schema, Mapping):
        raise UsageError(f"output: a JSON Schema is an object, not {type(schema).__name__}")
    try:
        from callboard.actors.mcp.remote_schema import misfit  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise UsageError(missing_extra(f"an output by a JSON Schema ({missing})", "daemon")) from missing
    whole = dict(schema)

    def fits(value: object) -> object:
        if (wrong := misfit(whole, value)) is not None:
            raise ValueError(f"{wrong.field or 'the answer'}: {wrong.expected}; received {wrong.received}")
        return value

    told = Output(mode=mode, name=name, description=description)
    kind: Any = Annotated[Any, pydantic.WithJsonSchema(whole), pydantic.AfterValidator(fits), told, RAW]
    checked: TypeForm[object] = kind
    return checked


def raw_output(spec: OutputSpec) -> OutputType[object]:
    """The type of an answer of an earlier process, which its schema says all of."""
    found = output_type(json_schema(spec.schema, name=spec.title, description=spec.description))
    assert found is not None
    return found
