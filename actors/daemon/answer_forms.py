"""The form of an answer that a client gives as a raw JSON Schema, as `output=` takes it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from typing_extensions import TypeForm

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.daemon.client_question import AnswerFormat
from callboard.actors.mcp.remote_schema import Misfit, fit_result_schema, misfit
from callboard.actors.requests.outputs import Output

_Answer = dict[str, object]


def form_of(output: AnswerFormat | None) -> TypeForm[object]:
    """The type of an answer that follows the schema; str for any text. Raises ApiError for no object's schema."""
    if output is None:
        return str
    schema = {"type": "object", **output.schema}
    if schema["type"] != "object":
        raise bad_field("response_format", f"the schema of an answer must be that of an object, not {schema['type']!r}")
    check = partial(_checked, fit_result_schema(schema) or {})
    form: TypeForm[object] = Annotated[
        _Answer, WithJsonSchema(schema), AfterValidator(check), Output(name=output.name or "answer")
    ]
    return form


def _checked(schema: dict[str, object], value: _Answer) -> _Answer:
    found = misfit(schema, value)
    if found is not None:
        raise ValueError(_told(found))
    return value


def _told(found: Misfit) -> str:
    where = f"{found.field}: " if found.field else ""
    return f"{where}expected {found.expected}, not {found.received}"
