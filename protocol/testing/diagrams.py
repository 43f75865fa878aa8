"""Draws the state diagrams of docs/protocol.md from the tables, and writes tables of docs/policy.md, docs/providers.md
and the reference.

    python -m callboard.protocol.testing.diagrams docs/protocol.md

A test compares the page with what this would write, so the picture cannot go stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from callboard.protocol.errors import KINDS_OF_ERRORS
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
    """A table as a Mermaid state diagram: an arrow from a state to another, with the guards or events on it."""
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    for state, event, guard, after in _arrows(table):
        if state != after:
            arrows.setdefault((state, after), {})[_words(guard) if guard is not always else event] = None
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR", f"    [*] --> {first}"]
    lines += [f"    {start} --> {end}: {', '.join(told)}" for (start, end), told in arrows.items()]
    lines += [f"    {state} --> [*]" for state in table if state in last]
    return "\n".join([*lines, "```", ""])


def _arrows(table: RequestTable | CallTable) -> Iterator[tuple[str, str, RequestGuard | CallGuard, str]]:
    """Every arrow of a table: the state, the event, what must hold, and the next state."""
    for state, row in table.items():
        for event, outcomes in row.items():
            yield from ((str(state), event.__name__, guard, str(after)) for guard, after in outcomes)


def arrow_rows(table: RequestTable | CallTable) -> str:
    """Every arrow of a table, one row each; an event that has no row in a state is refused there."""
    rows = ["| state | event | guard | leads to |", "|---|---|---|---|"]
    for state, event, guard, after in _arrows(table):
        told = "" if guard is always else _words(guard)
        rows.append(f"| `{state}` | `{event}` | {told} | `{after}` |")
    return "\n".join([*rows, ""])


def _words(guard: RequestGuard | CallGuard) -> str:
    return guard.__name__.replace("_", " ")


def guards(table: RequestTable | CallTable) -> str:
    """Every guard of a table and what it asks, one row each."""
    found = dict.fromkeys(guard for _, _, guard, _ in _arrows(table))
    rows = ["| guard | holds when |", "|---|---|"]
    rows += [f"| {_words(guard)} | {inspect.getdoc(guard)} |" for guard in found if guard is not always]
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


def error_kinds() -> str:
    """Every kind of a provider's error, what follows from it and what the user can do."""
    rows = ["|`kind`|what it means|what follows|what you can do|", "|---|---|---|---|"]
    for kind, facts in KINDS_OF_ERRORS.items():
        follows = (("retry", facts.is_retried), ("wait", facts.is_waited), ("fallback", facts.has_fallback))
        told = ", ".join(name for name, is_so in follows if is_so)
        rows.append(f"|`{kind}`|{facts.means}|{told}|{facts.todo}|")
    return "\n".join([*rows, ""])


BLOCKS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "request": lambda: state_diagram(REQUEST_TRANSITIONS, RequestState.NEW, frozenset({RequestState.FINISHED})),
        "call": lambda: state_diagram(CALL_TRANSITIONS, CallState.REQUESTED, TERMINAL_CALL_STATES),
        "request_rows": lambda: arrow_rows(REQUEST_TRANSITIONS),
        "call_rows": lambda: arrow_rows(CALL_TRANSITIONS),
        "request_guards": lambda: guards(REQUEST_TRANSITIONS),
        "call_guards": lambda: guards(CALL_TRANSITIONS),
        "policy_tables": policy_tables,
        "mode_rules": mode_rules,
        "retry_hints": retry_hints,
        "error_kinds": error_kinds,
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
