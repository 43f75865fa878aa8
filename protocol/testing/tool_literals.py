"""The values that a tool's code compares with: what reaches its rare branches is written in it.

No random text is ever "Atlantis"; a tool that says `if city == "Atlantis"` holds the very argument in its constants.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType
from typing import Any, Final

Literal = str | int | float
#: More values than this in one tool are a table of data, not branches.
MAX_LITERALS: Final = 100
#: A longer text in code is prose, not something to compare with.
MAX_CHARS: Final = 200
#: How far the functions that a tool calls are followed, within its own module.
_DEPTH: Final = 3


def literals_of(function: Callable[..., Any]) -> tuple[Literal, ...]:
    """The numbers and texts in a function's code, in the constants it names, and in the functions it calls."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(plain, FunctionType):
        return ()
    found = dict.fromkeys(_of_function(plain, _DEPTH, set()))
    found.pop(plain.__doc__ or "", None)
    return tuple(found)[:MAX_LITERALS]


def _of_function(function: FunctionType, depth: int, seen: set[CodeType]) -> Iterator[Literal]:
    if function.__code__ in seen:
        return
    seen.add(function.__code__)
    yield from _of_code(function.__code__)
    for name, value in inspect.getclosurevars(function).globals.items() if depth else ():
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _of_function(value, depth - 1, seen)
        elif not name.startswith("__"):
            yield from _of_value(value)
    for value in inspect.getclosurevars(function).nonlocals.values():
        yield from _of_value(value)


def _of_code(code: CodeType) -> Iterator[Literal]:
    for instruction in dis.get_instructions(code):
        if instruction.opcode in dis.hasconst or instruction.opname == "LOAD_SMALL_INT":
            yield from _of_value(instruction.argval)


def _of_value(value: object) -> Iterator[Literal]:
    if isinstance(value, CodeType):  # a lambda, a comprehension
        yield from _of_code(value)
    elif isinstance(value, Enum):
        yield from _of_value(value.value)
    elif isinstance(value, str):
        if len(value) <= MAX_CHARS:
            yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, tuple | list | set | frozenset | Mapping) and len(value) <= MAX_LITERALS:
        for item in value:
            yield from _of_value(item)
