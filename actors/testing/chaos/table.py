"""The tables of the chaos suite as a page shows them: what is contained at which level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from callboard.actors.testing.chaos.hosts import HOSTS, HostWay
from callboard.actors.testing.chaos.infrastructure import HARMS, Harm
from callboard.actors.testing.ways.answers import POISONS, WIRE_FAULTS, Poison, WireFault
from callboard.actors.testing.ways.case import NOT_CONTAINED, OK, Blast, Expected, Group, Level, Way, known
from callboard.actors.testing.ways.die import DIE, RAISE
from callboard.actors.testing.ways.escape import ESCAPE
from callboard.actors.testing.ways.exhaust import EXHAUST
from callboard.actors.testing.ways.following import CHANGES
from callboard.actors.testing.ways.hang import HANG
from callboard.actors.testing.ways.values import RETURN

Named = Poison | WireFault | HostWay

WAYS: Final = {
    Group.DIE: DIE,
    Group.RAISE: RAISE,
    Group.HANG: HANG,
    Group.RETURN: RETURN,
    Group.EXHAUST: EXHAUST,
    Group.ESCAPE: ESCAPE,
}
_ISOLATIONS: Final = (Level.PROCESS, Level.TASK, Level.THREAD)
_TOOLS: Final = {
    Group.DIE: "raises, exits or dies",
    Group.RAISE: "raises in an odd place",
    Group.HANG: "hangs",
    Group.RETURN: "gets or returns odd values",
    Group.EXHAUST: "uses up what there is",
    Group.ESCAPE: "gets at what is not its own",
}
_OTHERS: Final[Mapping[str, Sequence[Named]]] = {
    "a model that answers": POISONS,
    "a model server that answers": WIRE_FAULTS,
    "a host that acts": HOSTS,
}
_FORK_SERVERS: Final = "processes of callboard end or stop"
_ACTORS: Final = {
    "an actor that crashes on a message, up to three times in a row": Blast.NOTHING,
    "a worker that crashes so, or the actor from which it gets processes": Blast.RUNNING_CALLS,
}
_ABOUT: Final = "one failed call, or an error; else answered"
_COSTS: Final = {
    Blast.NOTHING: "nothing",
    Blast.RUNNING_CALLS: "calls that run in the same pool: one failed result each",
}
_PLAIN: Final = {OK: "answered", NOT_CONTAINED[0]: NOT_CONTAINED[0]}
#: Of the cases of a row. `chaos --list` names them all.
EXAMPLES: Final = 2


def contained_table() -> str:
    """Markdown: what is contained, and how it ends. Cases of one kind are one row, with a few of them as examples."""
    rows = ["| a tool that | process | task | thread |", "|---|---|---|---|"]
    for group, ways in WAYS.items():
        rows += [_tool_row(_TOOLS[group], alike) for alike in _by_containment(ways)]
    changed = _examples("changes", [change.what for change in CHANGES])
    rows += [
        f"| {changed} | the next call finds it as it was | not contained | not contained |",
        "",
        "| what goes wrong | its own request | others |",
        "|---|---|---|",
    ]
    rows += [_other_row(what, cases) for what, cases in _OTHERS.items()]
    rows += [f"| {_examples(_FORK_SERVERS, [row.what for row in alike])} | answered | {_COSTS[blast]} |"
             for blast, alike in _by_blast().items()]  # fmt: skip
    rows += [f"| {what} | {_ABOUT} | {_COSTS[blast]} |"
             for what, blast in _ACTORS.items()]  # fmt: skip
    return "\n".join(rows) + "\n"


def _by_containment(ways: Iterable[Way]) -> Iterable[list[Way]]:
    """Ways together that are contained at the same levels."""
    found: dict[tuple[str, ...], list[Way]] = {}
    for way in ways:
        kinds = [way.tell.get(level) for level in _ISOLATIONS]
        key = tuple("-" if kind is None else "no" if kind is NOT_CONTAINED else "yes" for kind in kinds)
        found.setdefault(key, []).append(way)
    return found.values()


def _tool_row(what: str, alike: Sequence[Way]) -> str:
    first, *more = (_words(way.tell.get(level, ()) for way in alike) for level in _ISOLATIONS)
    ends = [first, *("the same" if end == first and "," in end else end for end in more)]
    return f"| {_examples(what, [way.what for way in alike])} | {' | '.join(ends)} |"


def _other_row(what: str, cases: Sequence[Named]) -> str:
    ends = _words(known(each.expected) for each in cases)
    return f"| {_examples(what, [each.what for each in cases])} | {ends} | {_COSTS[Blast.NOTHING]} |"


def _by_blast() -> Mapping[Blast, list[Harm]]:
    found: dict[Blast, list[Harm]] = {}
    for harm in HARMS:
        found.setdefault(harm.blast, []).append(harm)
    return found


def _words(expected: Iterable[Expected]) -> str:
    """Every way in which one of them may end, the most common first."""
    counted = Counter(word for each in expected for word in each)
    return ", ".join(_PLAIN.get(word, f"`{word}`") for word, _ in counted.most_common()) or "-"


def _examples(kind: str, whats: Sequence[str]) -> str:
    """What kind it is, how many there are, and some of them, one of each part of the table."""
    if len(whats) == 1:
        return f"{kind}: {whats[0]}"
    at = dict.fromkeys(len(whats) * part // (2 * EXAMPLES) for part in range(1, 2 * EXAMPLES, 2))
    return f"{kind} ({len(whats)}): {'; '.join(whats[each] for each in at)}"
