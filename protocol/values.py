"""What the protocol says and keeps: the base of its events, commands, messages and of all that is in them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Value(Struct, frozen=True, gc=False, omit_defaults=True, tag=True, tag_field="$"):
    """A frozen value, written by the codec with its class's name under "$", so that parts which look alike stay apart.

    A field at its default is not written. Where a default is more than nothing, and may be another one day, the class
    says `omit_defaults=False` and is written whole. The garbage collector does not look at one (`gc=False`): no
    cycle can go through it, as its fields are plain, frozen, or JSON that is not changed (see test_values.py).
    Types are not checked when it is made: what comes from outside is checked where it enters.
    """


def repr_without(*hidden: str) -> Callable[[Struct], str]:
    """A `__repr__` without the fields that may hold a secret: a Struct shows all of its own accord."""

    def shown(self: Struct) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in hidden)
        return f"{type(self).__name__}({', '.join(fields)})"

    return shown
