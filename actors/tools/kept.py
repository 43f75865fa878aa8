"""What is kept of things that users made, so that this does not keep them: on the very object it was made of.

What is derived of a class or a function leads back to it, so a table of ours, also one with weak keys, would hold it
for ever, with all that it has captured. As an attribute of the object it goes with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from inspect import isroutine
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import Final, cast, get_args, get_origin

from msgspec import Struct
from msgspec.structs import astuple

#: Things kept of one object; more are made with another meaning each time, and keeping them is of no use.
MAX_KEPT: Final = 64
_NAME: Final = "__callboard_kept__"
#: Whose classes are no user's. That one is really found there is looked at: a class can say anything of itself.
_NOT_USERS: Final = frozenset(sys.stdlib_module_names) | {
    "annotated_types", "callboard", "msgspec", "pydantic", "pydantic_core", "typing_extensions"
}  # fmt: skip
#: Of those, the ones that are not found under their names.
_UNNAMED: Final = (type(None), type(Ellipsis))
_PLAIN_VALUES: Final = (str, int, float, bool, bytes, type(None), type(Ellipsis))


class Shelf(dict[object, object]):
    """What is kept of one object. A copy of the object, in another process too, starts without."""

    def __init__(self, owner: int, limit: int = MAX_KEPT) -> None:
        super().__init__()
        self.limit = limit
        self.owner = owner
        """The id of the object: `functools.wraps` and `dataclass(slots=True)` hand the attribute on to another one."""

    def __reduce__(self) -> tuple[type[Shelf], tuple[int]]:
        return Shelf, (0,)

    def keep(self, key: object, value: object) -> None:
        """From now on; it may be forgotten at any time."""
        if len(self) >= self.limit:
            self.clear()
        self[key] = value


#: Of types and values that no user made.
_PLAIN_SHELF: Final = Shelf(0, 1_000)


def shelf_of(thing: object) -> Shelf | None:
    """The one of this class or function; None where nothing can be written on it."""
    found = getattr(thing, "__dict__", {}).get(_NAME)
    if isinstance(found, Shelf) and found.owner == id(thing):
        return found
    shelf = Shelf(id(thing))
    try:
        setattr(thing, _NAME, shelf)
    except (AttributeError, TypeError):
        return None
    return shelf


def shelf_for(*parts: object, is_ours: bool = False) -> Shelf | None:
    """Where to keep what is made of these types and values: on the one class of a user's among them, or on ours where
    there is none (or all of it `is_ours`). None: it would keep one object of theirs for as long as another one lives.
    """
    classes: dict[int, type] = {}
    waiting: list[object] = [] if is_ours else list(parts)
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen or type(part) in _PLAIN_VALUES:
            continue
        seen.add(id(part))
        inner = _inside(part)
        if inner is not None:
            waiting += inner
        elif isinstance(part, type):
            if not _is_nobodys(part):
                classes[id(part)] = part
        elif not _is_known(part):
            return None
    if not classes:
        return _PLAIN_SHELF
    return shelf_of(*classes.values()) if len(classes) == 1 else None


def _inside(part: object) -> list[object] | None:
    """What a type or a value is made of; None where it is not put together, or may hold anything."""
    origin = get_origin(part)
    if origin is not None:
        return [origin, *get_args(part), *getattr(part, "__metadata__", ())]
    if isinstance(part, Enum):
        return [type(part)]
    if type(part) in (tuple, list, frozenset):
        return list(cast(Iterable[object], part))
    if type(part) in (dict, MappingProxyType):
        pairs = cast(Mapping[object, object], part)
        return [*pairs.keys(), *pairs.values()]
    if isinstance(part, type) or not _is_nobodys(type(part)):
        return None
    if isinstance(part, Struct):
        return list(astuple(part))
    return list(vars(part).values()) if is_dataclass(part) and hasattr(part, "__dict__") else None


def _is_known(part: object) -> bool:
    """A word of `typing`, or a function or module that no user made."""
    if isinstance(part, ModuleType):
        return part.__name__.partition(".")[0] in _NOT_USERS and sys.modules.get(part.__name__) is part
    is_word = type(part).__name__.endswith("SpecialForm")
    return _is_nobodys(type(part) if is_word else part) if is_word or isroutine(part) else False


def _is_nobodys(thing: object) -> bool:
    if thing in _UNNAMED:
        return True
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] not in _NOT_USERS:
        return False
    try:
        found: object = attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return False
    return found is thing
