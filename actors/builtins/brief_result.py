"""The base of results: what is empty is not sent, since a model pays for each field of each item."""

from __future__ import annotations

from pydantic import SerializerFunctionWrapHandler, model_serializer


class BriefResult:
    """A dataclass on this is written as JSON without its fields that are None or an empty text."""

    __slots__ = ()

    @model_serializer(mode="wrap")
    def _without_empty_fields(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: value for name, value in written(self).items() if value is not None and value != ""}
