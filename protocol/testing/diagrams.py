"""Draws the state diagrams of docs/protocol.md from the tables, and writes tables of docs/tools.md and the reference.

    python -m callboard.protocol.testing.diagrams docs/protocol.md

A test compares the page with what this would write, so the picture cannot go stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from callboard.protocol.ids import ToolName
from callboard.protocol.policy import MEANINGS, MODES, AccessKind, Location, Mode, Policy, Touch, Trust
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    TERMINAL_CALL_STATES,
    CallGuard,
    CallState,
    CallTable,
    RequestGuard,
    RequestState,
    RequestTable,
    always,
)
from callboard.protocol.tools import HINTS_AFTER_EFFECT, RETRY_HINTS, Decision, FailureCode, Origin, Risk, ToolContract

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def state_diagram(table: RequestTable | CallTable, first: str, last: Collection[str]) -> str:
    """A table as a Mermaid state diagram: each pair of states with the guards, and the events that lead along them."""
    arrows: dict[tuple[str, str, str], list[str]] = {}
    for state, row in table.items():
        for event, outcomes in row.items():
            for guard, after in outcomes:
                told = "" if guard is always else f" [{_words(guard)}]"
                arrows.setdefault((str(state), str(after), told), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {start} --> {end}: {', '.join(names)}{guard}" for (start, end, guard), names in arrows.items()]
    lines += [f"    {state} --> [*]" for state in table if state in last]
    return "\n".join([*lines, "```", ""])


def _words(guard: RequestGuard | CallGuard) -> str:
    return guard.__name__.replace("_", " ")


def guards(table: RequestTable | CallTable) -> str:
    """Every guard of a table and what it asks, one row each."""
    found = [guard for row in table.values() for arrows in row.values() for guard, _ in arrows]
    rows = ["| guard | holds when |", "|---|---|"]
    rows += [f"| {_words(guard)} | {inspect.getdoc(guard)} |" for guard in dict.fromkeys(found) if guard is not always]
    return "\n".join([*rows, ""])


def policy_tables() -> str:
    """What the table of each trust level says of each risk: inside the workspace, then outside of it."""
    rows = [f"| risk | {' | '.join(f'`{trust}`' for trust in Trust)} |", "|---|---|---|---|"]
    for risk in Risk:
        by_origin = {origin: " | ".join(_cells(trust, risk, origin) for trust in Trust) for origin in Origin}
        if len({*by_origin.values()}) == 1:
            rows.append(f"| `{risk}` | {by_origin[Origin.OWNER]} |")
        else:
            rows += [f"| `{risk}`, {_origin(origin)} | {cells} |" for origin, cells in by_origin.items()]
    return "\n".join([*rows, ""])


def _cells(trust: Trust, risk: Risk, origin: Origin) -> str:
    contract = ToolContract(risk=risk, origin=origin)
    judged = (Policy(trust=trust).judge(ToolName(""), contract, [Touch(AccessKind.READ, place)]) for place in Location)
    return ", ".join(each.decision for each in judged)


def mode_rules() -> str:
    """The rules of each mode."""
    rows = ["| mode | meaning | what it says of a risk |", "|---|---|---|"]
    for mode in Mode:
        rules = "; ".join(f"{Decision(rule.decision)} `{rule.risk}`" for rule in MODES[mode]) or "nothing"
        rows.append(f"| `{mode}` | {MEANINGS[mode]} | {rules} |")
    return "\n".join([*rows, ""])


def _origin(origin: Origin) -> str:
    return f"from {origin}" if origin is Origin.ELSEWHERE else f"from its {origin}"


def retry_hints() -> str:
    """Every code of a failure, and what a model reads of what it can do."""
    rows = [f"| `{code}` | {RETRY_HINTS[code]} | {HINTS_AFTER_EFFECT.get(code, '')} |" for code in FailureCode]
    head = "| code | what the model can do | where the tool may have changed something that stays |"
    return "\n".join([head, "|---|---|---|", *rows, ""])


BLOCKS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "request": lambda: state_diagram(REQUEST_TRANSITIONS, RequestState.NEW, frozenset({RequestState.FINISHED})),
        "call": lambda: state_diagram(CALL_TRANSITIONS, CallState.REQUESTED, TERMINAL_CALL_STATES),
        "request_guards": lambda: guards(REQUEST_TRANSITIONS),
        "call_guards": lambda: guards(CALL_TRANSITIONS),
        "policy_tables": policy_tables,
        "mode_rules": mode_rules,
        "retry_hints": retry_hints,
    }
)


def render(page: str) -> str:
    """The page with each generated block as the code has it now."""
    return _BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]]() + block[3], page)


def main(path: str) -> None:
    """Write the blocks of this page again."""
    page = Path(path)
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
