"""The official SDKs and what else is slow to load, loaded when a test first uses it.

To import them all and to make their types ready takes seconds, and each worker of xdist imports all test modules.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter


class Lazy(ModuleType):
    """A module that is imported when one of its names is asked for: `openai = Lazy("openai")`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks what each name of a test module is
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


@cache  # for the whole run: what an adapter validates later, while it is read, needs it
def adapter_of(place: str) -> TypeAdapter[Any]:
    """`place` is "module.Type"."""
    return TypeAdapter(_type_at(place))


def check_typed(value: Any, place: str) -> None:
    """Fail where a value is not valid by an SDK's type, a TypedDict, or has a field that it has not."""
    assert set(value) <= _fields(place), f"unknown fields {set(value) - _fields(place)}"
    exhaust(adapter_of(place).validate_python(value))


def exhaust(value: Any) -> Any:
    """Read all of it: pydantic validates an Iterable only while it is read."""
    if isinstance(value, Mapping):
        return {key: exhaust(child) for key, child in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [exhaust(child) for child in value]
    return value


@cache
def _fields(place: str) -> frozenset[str]:
    return frozenset(typing.get_type_hints(_type_at(place)))


def _type_at(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
