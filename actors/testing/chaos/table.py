"""The tables of the chaos suite as a page shows them: what is contained at which level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from callboard.actors.testing.chaos.hosts import HOSTS
from callboard.actors.testing.chaos.infrastructure import HARMS
from callboard.actors.testing.ways.answers import POISONS, WIRE_FAULTS
from callboard.actors.testing.ways.case import NOT_CONTAINED, Blast, Expected, Group, Level, Way, known
from callboard.actors.testing.ways.die import DIE, RAISE
from callboard.actors.testing.ways.escape import ESCAPE
from callboard.actors.testing.ways.exhaust import EXHAUST
from callboard.actors.testing.ways.following import CHANGES
from callboard.actors.testing.ways.hang import HANG
from callboard.actors.testing.ways.values import RETURN

WAYS: Final = {
    Group.DIE: DIE,
    Group.RAISE: RAISE,
    Group.HANG: HANG,
    Group.RETURN: RETURN,
    Group.EXHAUST: EXHAUST,
    Group.ESCAPE: ESCAPE,
}
_ISOLATIONS: Final = (Level.PROCESS, Level.TASK, Level.THREAD)
_ACTORS: Final = (
    "an actor that crashes on a message, up to three times in a row: each actor, each message that it takes"
)
_WORKERS: Final = "a worker that crashes so, or the actor from which workers get their processes"
_COSTS: Final = {
    Blast.NOTHING: "nothing",
    Blast.RUNNING_CALLS: "the calls that run in the same pool at that moment: one failed result each",
}


def contained_table() -> str:
    """Markdown: three tables, one for tools, one for what runs them and asks for them, one line for actors."""
    rows = ["| a tool that | process | task | thread |", "|---|---|---|---|"]
    for ways in WAYS.values():
        rows += _joined((way.what, tuple(_cell(way, level) for level in _ISOLATIONS)) for way in ways)
    changed = ", ".join(change.what for change in CHANGES)
    rows += [
        f"| changes, in one call, {changed} | the next call finds it as it was | not contained | not contained |",
        "",
        "| what happens | to its own request | to others |",
        "|---|---|---|",
    ]
    rows += _joined((f"a model that gives this answer: {row.what}", _told(row.expected)) for row in POISONS)
    rows += _joined((f"a model server that {row.what}", _told(row.expected)) for row in WIRE_FAULTS)
    rows += _joined((f"a host that {row.what}", _told(row.expected)) for row in HOSTS)
    rows += _joined((row.what, ("answered", _COSTS[row.blast])) for row in HARMS)
    about = "one failed call, or an error, where the message was about it; else answered"
    rows.append(f"| {_ACTORS} | {about} | nothing |")
    held = "one failed call, where the worker held it; else answered"
    rows.append(f"| {_WORKERS} | {held} | {_COSTS[Blast.RUNNING_CALLS]} |")
    return "\n".join(rows) + "\n"


def _told(expected: str) -> tuple[str, str]:
    return _words(known(expected)), _COSTS[Blast.NOTHING]


def _cell(way: Way, level: Level) -> str:
    found = way.tell.get(level)
    if found is None:
        return "-"
    return "not contained" if found is NOT_CONTAINED else _words(found)


def _words(expected: Expected) -> str:
    return " or ".join("answered" if word == "ok" else f"`{word}`" for word in expected)


def _joined(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Rows that end alike are one row."""
    by_end: dict[tuple[str, ...], list[str]] = {}
    for what, cells in rows:
        by_end.setdefault(tuple(cells), []).append(what)
    return [f"| {'; '.join(_without_prefix(whats))} | {' | '.join(cells)} |" for cells, whats in by_end.items()]


def _without_prefix(whats: list[str]) -> list[str]:
    """`a host that forks; forks again` in place of `a host that forks; a host that forks again`."""
    first = whats[0]
    prefix = next((each for each in _PREFIXES if first.startswith(each)), "")
    return [first, *(what.removeprefix(prefix) for what in whats[1:])]


_PREFIXES: Final = ("a model that gives this answer: ", "a model server that ", "a host that ")
