"""Which method of an actor takes which message: `@handles`, the typed union `Actor[...]`, and the check of both."""

from abc import ABC
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin, overload

import typing_extensions

__all__ = ["Answer", "Asks", "Handler", "M", "Message", "collect", "handles", "members"]

#: The messages that an actor takes: a class, or a union of classes. An address that takes more messages may be used
#: where one that takes fewer is wanted, hence contravariant.
M = typing_extensions.TypeVar("M", contravariant=True, default=Any)
#: The same for functions that make an address of a factory.
Message = TypeVar("Message")
Answer = TypeVar("Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_Self = TypeVar("_Self")

Handler = Callable[[Any, Any], object]
"""A method before it is bound: the actor, the message."""

_MARK: Final = "_handles"


class Asks(Generic[_Answer_co]):
    """Base of a message whose answer has a type: `ref.ask(Read())` is a float where it is `class Read(Asks[float])`."""

    __slots__ = ()


@overload
def handles(first: type[_A], /) -> Callable[[Callable[[_Self, _A], Answer]], Callable[[_Self, _A], Answer]]: ...
@overload
def handles(
    first: type[_A], second: type[_B], /
) -> Callable[[Callable[[_Self, _A | _B], Answer]], Callable[[_Self, _A | _B], Answer]]: ...
@overload
def handles(
    first: type[_A], second: type[_B], third: type[_C], /
) -> Callable[[Callable[[_Self, _A | _B | _C], Answer]], Callable[[_Self, _A | _B | _C], Answer]]: ...
@overload
def handles(
    first: type[_A], second: type[_B], third: type[_C], fourth: type[_D], /
) -> Callable[[Callable[[_Self, _A | _B | _C | _D], Answer]], Callable[[_Self, _A | _B | _C | _D], Answer]]: ...
@overload
def handles(*kinds: type[_A]) -> Callable[[Callable[[_Self, _A], Answer]], Callable[[_Self, _A], Answer]]: ...


def handles(*kinds: type[Any]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Mark the method that takes messages of these classes, and of their subclasses.

    For a long union: `@handles(*get_args(Event))`, which a type checker cannot check.
    """

    def mark(method: Callable[..., Answer]) -> Callable[..., Answer]:
        setattr(method, _MARK, (*getattr(method, _MARK, ()), *kinds))
        return method

    return mark


def collect(cls: type) -> dict[type, str]:
    """Message class -> name of the method that handles it, of this class and its bases. Raises TypeError for two."""
    names: dict[type, str] = {}
    for base in reversed(cls.__mro__):
        own: dict[type, str] = {}
        for name, value in vars(base).items():
            for kind in getattr(value, _MARK, ()):
                if own.setdefault(kind, name) != name:
                    raise TypeError(f"{base.__qualname__}: {own[kind]} and {name} both handle {kind.__name__}")
        names.update(own)
    return names


def form_of(cls: type, actor: type) -> Any:
    """What stands in the brackets of `Actor[...]`, also where a generic class lies between; None when nothing does."""
    for alias in cls.__dict__.get("__orig_bases__", ()):
        base = get_origin(alias)
        if not (isinstance(base, type) and issubclass(base, actor)):
            continue
        if base is actor:
            return get_args(alias)[0]
        form = base.__dict__["_kernel_form"]
        wanted = _parameters(form)
        if not wanted:
            return form
        given = dict(zip(base.__dict__["__parameters__"], get_args(alias), strict=True))
        return given[form] if isinstance(form, TypeVar) else form[tuple(given[each] for each in wanted)]
    return next((base.__dict__["_kernel_form"] for base in cls.__mro__[1:] if "_kernel_form" in base.__dict__), None)


def members(form: Any) -> tuple[type, ...] | None:
    """The classes of a union, in order; None when it is open: `Any`, or a class that is generic itself."""
    if form is None or form is Any or _parameters(form):
        return None
    return tuple(dict.fromkeys(_flat(form)))


def check(cls: type, union: tuple[type, ...], handlers: Mapping[type, str]) -> None:
    """Raise TypeError unless there is a handler for each member, and each handler is for one."""
    missing = [kind.__name__ for kind in union if kind not in handlers]
    if missing:
        raise TypeError(f"{cls.__qualname__} takes {', '.join(missing)} but has no method with @handles for it")
    strange = [f"{name} handles {kind.__name__}" for kind, name in handlers.items() if kind not in union]
    if strange:
        raise TypeError(f"{cls.__qualname__}: {'; '.join(strange)}, which is not among the messages it takes")


def is_abstract(cls: type) -> bool:
    """Whether it is only there to be subclassed."""
    return ABC in cls.__bases__ or any(getattr(value, "__isabstractmethod__", False) for value in vars(cls).values())


def _parameters(form: Any) -> tuple[TypeVar, ...]:
    return (form,) if isinstance(form, TypeVar) else tuple(getattr(form, "__parameters__", ()))


def _flat(form: Any) -> list[type]:
    if isinstance(form, typing_extensions.TypeAliasType):
        return _flat(form.__value__)
    origin = get_origin(form)
    if origin in (Union, UnionType):
        return [kind for each in get_args(form) for kind in _flat(each)]
    kind = NoneType if form is None else origin or form
    if not isinstance(kind, type):
        raise TypeError(f"Actor[...] takes a class or a union of classes, not {form!r}")
    return [kind]
