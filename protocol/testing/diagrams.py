"""Draws docs/protocol.md from the code: the state diagrams from the tables, the vocabulary from the classes.

    python -m callboard.protocol.testing.diagrams docs/protocol.md

A test compares the page with what this would write, so the picture cannot go stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from callboard.protocol.commands import Command
from callboard.protocol.events import Event
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    TERMINAL_CALL_STATES,
    CallState,
    RequestState,
)

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def state_diagram(table: Mapping[Any, Mapping[type[Any], tuple[Any, ...]]], first: str, last: frozenset[Any]) -> str:
    """A table as a Mermaid state diagram: one arrow for each pair of states, with the events that lead along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, row in table.items():
        for event, outcomes in row.items():
            for outcome in outcomes:
                arrows.setdefault((str(state), str(outcome)), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {start} --> {end}: {', '.join(names)}" for (start, end), names in arrows.items()]
    lines += [f"    {state} --> [*]" for state in table if state in last]
    return "\n".join([*lines, "```", ""])


def vocabulary(union: Any) -> str:
    """Every class of a union: its fields and what it means, one row each."""
    rows = ["| name | carries | meaning |", "|---|---|---|"]
    for cls in get_args(union):
        carried = ", ".join(field.name for field in fields(cls) if field.name not in ("tag", "at"))
        meaning = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{cls.__name__}` | {carried or '-'} | {meaning} |")
    return "\n".join([*rows, ""])


BLOCKS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "request": lambda: state_diagram(REQUEST_TRANSITIONS, RequestState.NEW, frozenset({RequestState.FINISHED})),
        "call": lambda: state_diagram(CALL_TRANSITIONS, CallState.REQUESTED, TERMINAL_CALL_STATES),
        "events": lambda: vocabulary(Event),
        "commands": lambda: vocabulary(Command),
    }
)


def render(page: str) -> str:
    """The page with each generated block as the code has it now."""
    return _BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]]() + block[3], page)


def main(path: str) -> None:
    """Write the blocks of this page anew."""
    page = Path(path)
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
