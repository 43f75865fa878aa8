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
    named: list[object] = []
    for code in _codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opcode in dis.hasconst or instruction.opname == "LOAD_SMALL_INT":
                yield from _of_value(instruction.argval)
        named += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    for value in [*named, *inspect.getclosurevars(function).nonlocals.values()]:
        if isinstance(value, FunctionType):
            if depth and value.__module__ == function.__module__:
                yield from _of_function(value, depth - 1, seen)
        else:
            yield from _of_value(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, with that of the lambdas and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _of_value(value: object) -> Iterator[Literal]:
    if isinstance(value, Enum):
        yield from _of_value(value.value)
    elif isinstance(value, str):
        if len(value) <= MAX_CHARS:
            yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, tuple | list | set | frozenset | Mapping) and len(value) <= MAX_LITERALS:
        for item in value:
            yield from _of_value(item)
