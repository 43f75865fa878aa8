"""Each field of each command, changed in a trace, is noticed by some rule; so is a command that is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

import pytest
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import ClearTimer, Command, OpenTurn
from callboard.protocol.content import AssistantMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import Tag
from callboard.protocol.model import Usage
from callboard.protocol.policy import Access, AccessKind, Mode
from callboard.protocol.testing import INVARIANTS, drive
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.mutation import mutated
from callboard.protocol.testing.planting import dropping, saying
from callboard.protocol.testing.trace import Entry, Trace, Verb
from callboard.protocol.tools import FailureCode

SEEDS = 110
#: Traces in which each change is looked for.
TIMES = 4
#: The session of a trace says what it has said: what was changed afterwards is for the other rules.
RULES = [name for name in INVARIANTS if name != "I8 replay"]
#: Put where there is nothing.
VALUES: dict[str, Any] = {
    "usage": Usage(7, 7),
    "cost": 0.7,
    "first_event_seconds": 0.7,
    "mode": Mode.PLAN,
    "code": FailureCode.CRASHED,
    "error": ErrorKind.SERVER,
    "search_words": ("more",),
    "accesses": (Access(AccessKind.READ, "a.txt"),),
    "open_turn": OpenTurn(AssistantMessage(())),
}
#: What no rule need object to, and why.
FREE = {
    "CallModel.request.messages": "what a prompt holds is for I18: a cut one may hold less",
    "Finish.reason": "it may say more",
    "Note.text": "likewise",
    "CancelTool.reason": "likewise",
    "RunTool.effect_id": "any id of this call alone is as good",
    "RecordCompaction": "I28 compares what the model sees of it",
}


def changes(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Other values of this kind, of which each differs in one thing; with where that is."""
    if isinstance(value, Tag):
        yield f"{path}.step", value._replace(step=value.step + 1)
        yield f"{path}.call_id", value._replace(call_id=value.call_id + "x")
    elif isinstance(value, Enum):
        members = list(type(value))
        yield path, members[(members.index(value) + 1) % len(members)]
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int | float):
        yield path, value + 1
    elif isinstance(value, str):
        yield path, value + "x"
    elif isinstance(value, tuple) and value:
        yield path, value[:-1]
        yield from ((where, (*value[:-1], other)) for where, other in changes(value[-1], f"{path}[]"))
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            before, where = getattr(value, name), f"{path}.{name}"
            is_empty = before in (None, ()) and name in VALUES
            for inner, other in ((where, VALUES[name]),) if is_empty else changes(before, where):
                yield inner, replace(value, **{name: other})


def test_each_field_of_each_command_is_compared_with_what_was_played() -> None:
    tried: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for seed in range(SEEDS):
        trace, seen = drive(scenario(seed), seed), set[str]()
        for entry in trace.entries:
            kind = type(entry.value).__name__
            if entry.verb is not Verb.GAVE or kind in seen:
                continue
            seen.add(kind)
            for path, other in changes(entry.value, kind):
                if not path.startswith(tuple(FREE)) and tried[path] < TIMES:
                    tried[path] += 1
                    missed[path] += not violations(_with(trace, entry, other), RULES)
    often = {path: f"{times} of {tried[path]}" for path, times in missed.items() if times * 2 > tried[path]}
    assert often == {}, "no rule objects to a change of these"
    fields = {f"{kind.__name__}.{name}" for kind in get_args(Command) for name in kind.__struct_fields__}
    fields = {field for field in fields if not field.startswith(tuple(FREE))}
    untried = {field for field in fields if not any(path.startswith(field) for path in (*tried, *FREE))}
    assert untried == set(), "a new field needs a rule that compares it"


def _with(trace: Trace, entry: Entry, other: Any) -> Trace:
    """The trace in which this command was given, and carried out, as another one."""
    entries = [
        replace(each, value=other)
        if each is entry or (each.verb is not Verb.APPLIED and each.value == entry.value)
        else each
        for each in trace.entries
    ]
    return replace(trace, entries=entries)


@pytest.mark.parametrize("kind", [kind for kind in get_args(Command)], ids=lambda kind: kind.__name__)
def test_a_command_that_is_not_given_or_given_twice_is_missed(kind: type[Any]) -> None:
    doubling = saying(lambda event, said: [each for one in said for each in ([one] * (1 + isinstance(one, kind)))])
    harmless = (doubling,) if kind is ClearTimer else ()
    for mutation in (dropping(kind), doubling):
        found = any(violations(drive(scenario(seed), seed, mutated(mutation))) for seed in range(SEEDS))
        assert found or mutation in harmless
