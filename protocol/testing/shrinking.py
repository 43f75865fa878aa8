"""Makes a scenario that shows a fault smaller, field by field: it is plain data, so no replay of choices is needed.

Works the same on a scenario of Hypothesis, of a seed, or of a person, and under any driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields, replace

from callboard.protocol.errors import UsageError
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PlannedCall, PlannedTurn, Scenario

_Data = TypeVar("_Data", PlannedCall, PlannedTurn, RequestOptions, Scenario)
#: What says nothing when it is reset: a scenario needs its tools, and each part of it is made smaller on its own.
_KEPT = frozenset({"tools", "tool", "turns", "calls", "options", "model", "request_id", "user"})

#: Moments in the first model call, in the first tool call, and between them.
_SOONER = (0.75, 1.25, 1.5, 2.25)


#: It simply runs.
_PLAIN_TOOL = STANDARD_TOOLS[0].definition.name
#: Kinds of strays that are possible at one time, about.
_STRAY_NUMBERS = 16

Path = tuple[int, ...]
"""Which of the simplifications was taken, time after time: with the scenario it began with, the whole story."""


def shrink(scenario: Scenario, shows: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario reached by single simplifications that all still show the fault."""
    return follow(scenario, shrink_path(scenario, shows))


def shrink_path(scenario: Scenario, shows: Callable[[Scenario], bool]) -> Path:
    """The way to that smallest scenario."""
    path: list[int] = []
    start = 0
    while (index := _next_smaller(scenario, shows, start)) is not None:
        scenario = follow(scenario, (index,))
        path.append(index)
        start = index  # what was tried before it has shown nothing, and mostly still does not: it comes last
    return tuple(path)


def _next_smaller(scenario: Scenario, shows: Callable[[Scenario], bool], start: int) -> int | None:
    """The first simplification that shows the fault, from the one at `start` on and then those before it."""
    candidates = tuple(enumerate(simpler(scenario)))
    return next((index for index, each in (*candidates[start:], *candidates[:start]) if shows(each)), None)


def follow(scenario: Scenario, path: Path) -> Scenario:
    """The scenario at the end of a path. Raises UsageError when the path does not fit it."""
    for index in path:
        candidate = next(islice(simpler(scenario), index, None), None)
        if candidate is None:
            raise UsageError(f"there is no simplification {index} of this scenario: the token does not fit the seed")
        scenario = candidate
    return scenario


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios one simplification away, the boldest first."""
    for turns in _shorter(scenario.turns):
        yield replace(scenario, turns=turns)
    yield from _plainer(scenario)
    for options in filter(_is_taken, _plainer(scenario.options)):
        yield replace(scenario, options=options)
    for index, turn in enumerate(scenario.turns):
        for plain in (*_with_fewer_calls(turn), *_plainer(turn), *_plainer_calls(turn)):
            yield replace(scenario, turns=(*scenario.turns[:index], plain, *scenario.turns[index + 1 :]))
    # With fewer turns everything happens sooner, so what is done to the request must too.
    without_first = (scenario.turns[index:] for index in range(2, len(scenario.turns)))
    for turns in (*_shorter(scenario.turns), *without_first, scenario.turns):
        for when in (*_SOONER, 3.25):
            for candidate in (turns, _prompt(turns)):
                if candidate != scenario.turns:  # the moments alone could be moved without end
                    yield replace(scenario, turns=candidate, **_sooner(scenario, when))
    # Last, since there are many: the same kind of stray has another number at another time.
    if len(scenario.strays) == 1:
        for sooner in _SOONER:
            if sooner < scenario.strays[0][0]:
                yield from (replace(scenario, strays=((sooner, number),)) for number in range(_STRAY_NUMBERS))


def _is_taken(options: RequestOptions) -> bool:
    """A request with a cost budget is refused without its prices."""
    return options.cost_budget is None or None not in (options.input_price, options.output_price)


def _prompt(turns: tuple[PlannedTurn, ...]) -> tuple[PlannedTurn, ...]:
    """The same turns, each call and answer after the usual time."""
    usual: dict[str, Any] = {
        field.name: field.default for field in _fields(PlannedCall) if field.name.endswith("seconds")
    }
    return tuple(
        replace(turn, seconds=1.0, calls=tuple(replace(call, **usual) for call in turn.calls)) for turn in turns
    )


def _sooner(scenario: Scenario, when: float) -> dict[str, Any]:
    """The moments of a scenario at which something is done to it, all at one time."""
    changes: dict[str, Any] = {
        name: (when,) for name in ("restart_at", "tools_lost_at", "notices_at") if getattr(scenario, name)
    }
    if scenario.cancel_at is not None:
        changes["cancel_at"] = when
    for name in ("strays", "foreign"):
        if events := getattr(scenario, name):
            changes[name] = ((when, events[-1][1]),)
    return changes


def _with_fewer_calls(turn: PlannedTurn) -> Iterator[PlannedTurn]:
    for calls in _shorter(turn.calls):
        yield replace(turn, calls=calls)


def _plainer_calls(turn: PlannedTurn) -> Iterator[PlannedTurn]:
    for index, call in enumerate(turn.calls):
        ordinary = [replace(call, tool=_PLAIN_TOOL)] if call.tool != _PLAIN_TOOL else []
        for plain in (*ordinary, *_plainer(call)):
            yield replace(turn, calls=(*turn.calls[:index], plain, *turn.calls[index + 1 :]))


def _shorter(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if len(items) > 3:
        yield items[: len(items) // 2]
        yield items[len(items) // 2 :]
    for index in range(len(items)):
        yield (*items[:index], *items[index + 1 :])


def _plainer(data: _Data) -> Iterator[_Data]:
    """The same with one field at its default, or nearer to nothing."""
    for field in _fields(type(data)):
        value: Any = getattr(data, field.name)
        if field.name in _KEPT or field.default is NODEFAULT or value == field.default:
            continue
        if isinstance(data, Scenario) and field.name == "history" and not data.user.parts:
            yield replace(data, history=(), user=Scenario().user)  # without a question it goes on from its history
            continue
        for simple in (field.default, *_nearer_to_nothing(value)):
            changes: dict[str, Any] = {field.name: simple}
            yield replace(data, **changes)


@cache
def _fields(kind: type[Any]) -> tuple[FieldInfo, ...]:
    """Once a type: msgspec reads all annotations again each time, which takes 2 ms."""
    return fields(kind)


def _nearer_to_nothing(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], float | tuple):
        yield from _shorter(value)
    elif isinstance(value, tuple) and value and isinstance(value[0], float):
        yield from ((sooner,) for sooner in _SOONER if sooner < value[0])
    elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
        yield from (((sooner, *value[0][1:]),) for sooner in _SOONER if sooner < value[0][0])
    elif type(value) is int and value > 1:
        yield 1
