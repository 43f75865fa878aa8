"""Tools that return what cannot be sent, and arguments that no tool asked for."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic import BaseModel, model_serializer

from callboard.actors.testing.ways.case import Way, everywhere, in_process
from callboard.actors.testing.ways.die import Unprintable

_NAN: Final = float("nan")
#: More than a result may have.
HUGE_CHARS: Final = 10_000_000
DEPTH: Final = 50_000


class _BadText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("this text has no text")


class _BadDict(dict[str, int]):
    def items(self) -> Any:
        raise ValueError("this dict has no items")

    def __iter__(self) -> Any:
        raise ValueError("this dict has no keys")


class _BadLength(list[int]):
    def __len__(self) -> int:
        return 2**40

    def __iter__(self) -> Iterator[int]:
        raise ValueError("this list has no items")


class _BadModel(BaseModel):
    size: int = 1

    @model_serializer
    def write(self) -> dict[str, int]:
        raise ZeroDivisionError("of a serializer")


class _ExitingModel(BaseModel):
    size: int = 1

    @model_serializer
    def write(self) -> dict[str, int]:
        raise SystemExit(3)


class _Colour(enum.Enum):
    RED = "red"


def _cyclic() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


def _cyclic_dict() -> dict[str, object]:
    found: dict[str, object] = {}
    found["me"] = found
    return found


def _deep() -> list[object]:
    nested: list[object] = []
    for _ in range(DEPTH):
        nested = [nested]
    return nested


def returning(make: Callable[[], object]) -> Callable[[], object]:
    """A tool that declares nothing and returns this."""

    def returns() -> Any:
        return make()

    return returns


def not_an_int() -> int:
    """Declares an int."""
    return "x"  # type: ignore[return-value]


def none_for_int() -> int:
    """Declares an int."""
    return None  # type: ignore[return-value]


def nan_for_float() -> float:
    """Declares a float; NaN is one, and no JSON."""
    return _NAN


def bad_model() -> _BadModel:
    """A model that cannot be written."""
    return _BadModel()


def exiting_model() -> _ExitingModel:
    """A model that exits as it is written."""
    return _ExitingModel()


def _coroutine() -> object:
    waits = asyncio.sleep(0)
    waits.close()
    return waits


def echo(x: float) -> str:
    """What arrived."""
    return str(x)


def echo_text(text: str) -> int:
    """How long it was."""
    return len(text)


def _value(name: str, what: str, make: Callable[[], object], expected: str = "invalid_result") -> Way:
    return Way(name, f"returns {what}", returning(make), everywhere(expected))


_ODD: Final = "ok invalid_result"

RETURN: Final = (
    Way("nan", "returns NaN", returning(lambda: _NAN), everywhere("invalid_result"), mentions="NaN"),
    _value("inf", "infinity in a list in a dict", lambda: {"a": [float("inf")]}),
    Way(
        "nan-float",
        "returns NaN where a float is declared",
        nan_for_float,
        everywhere("invalid_result"),
        mentions="NaN",
    ),
    _value("decimal-nan", "Decimal NaN", lambda: decimal.Decimal("NaN"), _ODD),
    _value("bytes", "bytes that are text", lambda: b"abc", _ODD),
    _value("raw-bytes", "bytes that are no text", lambda: b"\xff\xfe"),
    _value("surrogate", "text with half a surrogate pair", lambda: "\ud800"),
    _value("cyclic", "a list that holds itself", _cyclic),
    _value("cyclic-dict", "a dict that holds itself", _cyclic_dict),
    _value("deep", "a list 50,000 deep", _deep),
    _value("huge", "10 MB of text", lambda: "x" * HUGE_CHARS, "result_too_large"),
    _value("huge-list", "a list of a million numbers", lambda: list(range(1_000_000)), "result_too_large"),
    _value("huge-int", "a number of 5,000 digits", lambda: 10**5_000, "ok invalid_result tool_error"),
    _value("big-int", "a number of 100 digits", lambda: 10**100, _ODD),
    _value("none", "None", lambda: None, "ok"),
    _value("object", "an object", object),
    _value("unprintable", "an object whose repr raises", Unprintable),
    _value("lock", "a lock", threading.Lock),
    _value("class", "a class", lambda: int),
    _value("module", "a module", lambda: sys),
    _value("function", "a function", lambda: returning),
    _value("exception", "an exception, returned", lambda: ValueError("returned"), _ODD),
    _value("not-implemented", "NotImplemented", lambda: NotImplemented),
    _value("ellipsis", "Ellipsis", lambda: ...),
    _value("coroutine", "a coroutine that was closed", _coroutine),
    _value("generator", "a generator", lambda: (n for n in range(3)), _ODD),
    _value("set", "a set", lambda: {1}, _ODD),
    _value("complex", "a complex number", lambda: 1j, _ODD),
    _value("tuple-keys", "a dict with keys that are tuples", lambda: {(1, 2): 3}, _ODD),
    _value("datetime", "a datetime", lambda: datetime.datetime(2026, 1, 1), "ok"),
    _value("enum", "a member of an enum", lambda: _Colour.RED, "ok"),
    _value("bad-text", "a str whose __str__ raises", lambda: _BadText("x"), _ODD),
    _value("bad-dict", "a dict whose items raise", lambda: _BadDict(a=1), "ok invalid_result tool_error"),
    _value(
        "bad-list",
        "a list that lies about its length",
        lambda: _BadLength([1]),
        "ok invalid_result tool_error result_too_large",
    ),
    Way("wrong-type", "returns text where an int is declared", not_an_int, everywhere("invalid_result")),
    Way("none-for-int", "returns None where an int is declared", none_for_int, everywhere("invalid_result")),
    Way("serializer", "returns a model whose serializer raises", bad_model, everywhere("invalid_result tool_error")),
    Way(
        "exiting-serializer",
        "returns a model whose serializer exits",
        exiting_model,
        everywhere("invalid_result tool_error crashed"),
    ),
    Way(
        "endless",
        "returns an endless generator",
        returning(lambda: itertools.count()),
        in_process("timed_out crashed invalid_result result_too_large tool_error"),
        timeout=0.4,
        seconds=0.8,
    ),
    Way(
        "nan-argument",
        "is given NaN for an argument",
        echo,
        everywhere("incomplete_call invalid_arguments"),
        arguments='{"x": NaN}',
        mentions="NaN",
    ),
    Way(
        "half-arguments",
        "is given arguments that are cut off",
        echo,
        everywhere("incomplete_call invalid_arguments"),
        arguments='{"x": 1',
    ),
    Way(
        "list-arguments",
        "is given arguments that are a list",
        echo,
        everywhere("incomplete_call invalid_arguments"),
        arguments="[1]",
    ),
    Way(
        "text-arguments",
        "is given arguments that are no JSON",
        echo,
        everywhere("incomplete_call invalid_arguments"),
        arguments="rain",
    ),
    Way("no-arguments", "is given no arguments where one is needed", echo, everywhere("invalid_arguments")),
    Way("wrong-argument", "is given text for a number", echo, everywhere("invalid_arguments"), arguments={"x": "warm"}),
    Way(
        "deep-arguments",
        "is given arguments 50,000 deep",
        echo,
        everywhere("incomplete_call invalid_arguments"),
        arguments='{"x": ' + "[" * DEPTH + "]" * DEPTH + "}",
    ),
    Way(
        "surrogate-argument",
        "is given half a surrogate pair in an argument",
        echo_text,
        everywhere("ok incomplete_call invalid_arguments"),
        arguments='{"text": "\\ud800"}',
    ),
    Way(
        "long-argument",
        "is given 30 kB of text for an argument",
        echo_text,
        everywhere("ok"),
        arguments={"text": "x" * 30_000},
    ),
)
