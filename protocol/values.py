"""What the protocol says and keeps: the base of its events, commands, messages and of all that is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import asdict, fields

from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import pydantic
    import pydantic_core
    from pydantic_core import core_schema
else:
    pydantic_core = lazy_module("pydantic_core")


class Value(Struct, frozen=True, gc=False, omit_defaults=True, tag=True, tag_field="$"):
    """A frozen value, written by the codec with its class's name under "$", so that parts which look alike stay apart.

    A field at its default is not written. Where a default is more than nothing, and may be another one day, the class
    says `omit_defaults=False` and is written whole. The garbage collector does not look at one (`gc=False`): no
    cycle can go through it, as its fields are plain, frozen, or JSON that is not changed (see test_values.py).
    Types are not checked when it is made: what comes from outside is checked where it enters.
    """

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Pydantic takes and writes one as it does a dataclass: a tool of a user's may return it."""
        make = pydantic_core.core_schema
        parameters = []
        for field in fields(cls):
            form = handler.generate_schema(field.type)
            if field.default is not NODEFAULT:
                form = make.with_default_schema(form, default=field.default)
            elif field.default_factory is not NODEFAULT:
                form = make.with_default_schema(form, default_factory=field.default_factory)
            parameters.append(make.arguments_parameter(field.name, form))
        return make.union_schema(
            [make.is_instance_schema(cls), make.call_schema(make.arguments_schema(parameters), cls)],
            serialization=make.plain_serializer_function_ser_schema(_plain),
        )


def repr_without(*hidden: str) -> Callable[[Struct], str]:
    """A `__repr__` without the fields that may hold a secret: a Struct shows all of its own accord."""

    def shown(self: Struct) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in hidden)
        return f"{type(self).__name__}({', '.join(fields)})"

    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
