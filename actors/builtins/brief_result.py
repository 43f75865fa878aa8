"""The base of results: what is empty is not sent, since a model pays for each field of each item."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import SerializerFunctionWrapHandler, model_serializer

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

#: JSON's types of which each value says something.
_ALWAYS_SAID: Final = frozenset({"integer", "number", "boolean"})


class BriefResult:
    """A dataclass on this is written as JSON without its fields that are None, or an empty text, list or object."""

    __slots__ = ()

    KEEPS: ClassVar[frozenset[str]] = frozenset()
    """Fields that are the answer itself: empty, they say that there is nothing, and are written."""

    @model_serializer(mode="wrap")
    def _without_empty_fields(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in written(self).items() if name in self.KEEPS or not _is_empty(value)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, write: GetJsonSchemaHandler) -> dict[str, object]:
        """That of the fields, of which those that may be left out are not required."""
        schema = write.resolve_ref_schema(write({key: value for key, value in core.items() if key != "serialization"}))
        fields = schema.get("properties", {})
        schema["required"] = [name for name, field in fields.items() if name in cls.KEEPS or _is_always_said(field)]
        return schema


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _is_always_said(field: dict[str, object]) -> bool:
    return "const" in field or field.get("type") in _ALWAYS_SAID
