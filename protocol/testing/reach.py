"""What a set of traces has reached: each row of the tables, and each pair of call states side by side.

A rule that was never put to the test proves nothing. `FLOORS` say how often the fixed seeds must reach each row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from callboard.protocol.commands import AskApproval, CallModel, Finish, RunTool
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    CallState,
    CallTable,
    RequestState,
    RequestTable,
    handed_out,
)
from callboard.protocol.testing.expected import expected_turns
from callboard.protocol.testing.reached import EVENTS, MEMBERS, reached
from callboard.protocol.testing.rules_outside import rows_outside
from callboard.protocol.testing.story import Reaction, Story
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import FailureCode

Row = tuple[str, str, str]
"""State, event, next state."""

#: The fixed seeds: 0 to this one.
FIXED_SEEDS: Final = 2_000
#: How often the fixed seeds must reach each row of the two tables, at least.
FLOOR: Final = 20
#: And how often all else.
LEAST: Final = 1
#: Rows that are rare by their nature: a limit is reached by just this event; each of three holders was lost.
FLOORS: Mapping[Row, int] = MappingProxyType(
    {
        ("new", "RequestStarted", "finished"): 5,
        ("running_tools", "ApprovalDenied", "finished"): 1,
        ("running_tools", "ToolCallFailed", "finished"): 1,
        ("running_tools", "ToolCallCancelled", "finished"): 1,
        ("running_tools", "ToolsLost", "finished"): 3,
        ("calling_model", "ModelLost", "finished"): 3,
        # Only where the model was asked for words to search by: once a request, in one of seven.
        ("calling_model", "ModelLost", "running_tools"): 2,
        ("calling_model", "ModelFailed", "running_tools"): 2,
        ("sent", "ToolsLost", "failed"): 3,
        ("sent", "ToolCallCompleted", "completed"): 5,  # only a slow session hears of the start after the end
        ("sent", "CancelRequested", "cancelled"): 5,
        ("calling_model", "DeadlinePassed", "finished"): 10,
        # Large, so seldom drawn: an endless answer and an unsound result.
        ("calling_model", "ModelStreamed", "finished"): 1,
        ("sent", "ToolCallCompleted", "failed"): 1,  # only a slow session hears of the start after the end
        ("running", "ToolCallCompleted", "failed"): 3,
        ("deferred", "ToolCallCompleted", "failed"): 3,
        # Calls of the asker's tools end a request: each is met at most once in it, and by one event.
        ("outside", "CancelRequested", "cancelled"): 10,
        ("outside", "DeadlinePassed", "timed_out"): 2,
        ("outside", "ApprovalDenied", "handed_out"): 1,
        ("outside", "ToolCallCompleted", "handed_out"): 1,
        ("outside", "ToolCallFailed", "handed_out"): 1,
        ("outside", "ToolCallTimedOut", "handed_out"): 4,
        ("outside", "ToolCallCancelled", "handed_out"): 1,
        ("outside", "ToolsLost", "handed_out"): 2,
        ("outside", "ToolsLost", "outside"): 5,
        ("outside", "DeadlinePassed", "handed_out"): 1,
        ("deferred", "ToolCallFailed", "failed"): 10,
        ("sent", "ToolCallDeferred", "deferred"): 1,  # as above: only a slow session
        ("deferred", "CancelRequested", "cancelled"): 5,
    }
)

#: What no seed can reach, and why.
UNREACHED: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        ("new", "RequestStarted", "refused"): "a new session takes the first request that comes",
    }
)

_AT_ONCE: Final = {FailureCode.DENIED: "denied", FailureCode.CANCELLED: "cancelled"}


def rows_of(table: RequestTable | CallTable) -> Iterator[Row]:
    """Each way through a table of states.py, once, however many guards lead along it."""
    for state, events in table.items():
        for event, arrows in events.items():
            following = dict.fromkeys(str(after) for _, after in arrows)
            yield from ((str(state), event.__name__, after) for after in following)


REQUEST_ROWS: Final = tuple(rows_of(REQUEST_TRANSITIONS))
#: Not in the table of calls: what ends the last other call of the step hands those of the asker out.
HANDED_OUT_ROWS: Final = tuple(
    (str(CallState.OUTSIDE), kind.__name__, str(CallState.HANDED_OUT))
    for kind, arrows in (
        *REQUEST_TRANSITIONS[RequestState.CALLING_MODEL].items(),
        *REQUEST_TRANSITIONS[RequestState.RUNNING_TOOLS].items(),
    )
    if any(guard is handed_out for guard, _ in arrows)
)
CALL_ROWS: Final = (*rows_of(CALL_TRANSITIONS), *HANDED_OUT_ROWS)
#: What a session must refuse: of another request, of what is not open, too late or too early.
REFUSED_PAIRS: Final = tuple((str(state), kind.__name__) for state in RequestState for kind in EVENTS)


class Reach:
    """Counts over any number of traces."""

    def __init__(self, traces: Iterable[Trace] = ()) -> None:
        self.requests: Counter[Row] = Counter()
        self.calls: Counter[Row] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.taken: Counter[tuple[str, str]] = Counter()
        """State and event that was taken in it."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """State and event that was refused in it."""
        self.others: Counter[tuple[str, str]] = Counter()
        """What else is counted: kind and member (reached.py)."""
        self.conversations = self.events = 0
        for trace in traces:
            self.add(trace)

    def add(self, trace: Trace) -> None:
        """Read one more trace."""
        story = Story.of(trace)
        self.conversations += 1
        self.events += trace.steps
        self.pairs.update(story.pairs)
        for call in story.calls.values():
            self.calls.update(call.states)
        for turn in expected_turns(story):
            codes = [call.code for call in turn.calls if call.code is not None]
            ends = [_AT_ONCE.get(code, "failed") for code in codes]
            ends += ["completed" for call in turn.calls if call.result is not None]
            self.calls.update((str(CallState.REQUESTED), "ModelResponded", end) for end in ends)
        self.calls.update(rows_outside(story))
        self.others.update(reached(trace, story))
        self._walk(trace, story)

    def _walk(self, trace: Trace, story: Story) -> None:
        state = RequestState.NEW
        reactions = iter(story.reactions)
        for entry in trace.entries:
            if entry.verb is Verb.REFUSED:
                self.refused[str(state), type(entry.value).__name__] += 1
            elif entry.verb in (Verb.APPLIED, Verb.RESUMED):
                reaction = next(reactions)
                after = _after(state, reaction)
                if reaction.event is not None:
                    kind = type(reaction.event).__name__
                    self.requests[str(state), kind, str(after)] += 1
                    self.taken[str(state), kind] += 1
                state = after

    def counted(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """All that there is to be reached, and how often it was."""
        yield from ((row, self.requests[row]) for row in REQUEST_ROWS)
        yield from ((row, self.calls[row]) for row in CALL_ROWS)
        yield from (((state, event, "refused"), self.refused[state, event]) for state, event in REFUSED_PAIRS)
        yield from (((kind, each), self.others[kind, each]) for kind, all_of in MEMBERS.items() for each in all_of)

    def short(self) -> list[str]:
        """What was reached less often than its floor."""
        return [
            f"{row[0]}: {' -> '.join(row[1:])}: {count} of {floor(row)}"
            for row, count in self.counted()
            if count < floor(row)
        ]

    def summary(self) -> str:
        """The counts in a sentence."""
        counts = [count for _, count in self.counted()]
        often = sum(count >= FLOOR for count in counts)
        return (
            f"{self.conversations:,} conversations, {self.events / max(1, self.conversations):.1f} events each: "
            f"{sum(map(bool, counts))} of {len(counts)} rows are reached, {often} at least {FLOOR} times."
        )

    def matrix(self) -> list[str]:
        """Each event in each state, as a Markdown table: how often it was taken there, and how often refused. "-":
        it never is."""
        states, kinds = tuple(map(str, RequestState)), tuple(kind.__name__ for kind in EVENTS)
        lines = ["|event|" + "|".join(states) + "|", "|---" * (len(states) + 1) + "|"]
        for kind in kinds:
            cells = [f"{self._takes(state, kind)}/{self._refusals(state, kind)}" for state in states]
            lines.append(f"|{kind}|" + "|".join(cells) + "|")
        return lines

    def _takes(self, state: str, kind: str) -> str:
        has_row = any(row[:2] == (state, kind) for row in REQUEST_ROWS)
        return str(self.taken[state, kind]) if has_row else "-"

    def _refusals(self, state: str, kind: str) -> str:
        return "-" if (state, kind, "refused") in UNREACHED else str(self.refused[state, kind])

    def lists(self) -> list[str]:
        """All that is counted besides, as tables of reStructuredText; and what no seed can reach."""
        lines = [""]
        for kind, all_of in MEMBERS.items():
            lines += [f".. csv-table:: {kind}", ""]
            lines += [f'   "{each.replace("_", " ")}", {self.others[kind, each]}' for each in all_of] + [""]
        return lines + [f"Not reached is {', '.join(row)}: {why}." for row, why in UNREACHED.items()] + [""]

    def report(self) -> str:
        """The counts as Markdown tables."""
        lines = [self.summary(), ""]
        for title, rows, counts in (("request", REQUEST_ROWS, self.requests), ("call", CALL_ROWS, self.calls)):
            lines += [f"| {title} | event | leads to | reached |", "|---|---|---|---|"]
            lines += [f"| {row[0]} | `{row[1]}` | {row[2]} | {counts[row]:,} |" for row in rows]
            lines.append("")
        lines += ["| calls side by side | reached |", "|---|---|"]
        lines += [f"| {one}, {other} | {count:,} |" for (one, other), count in sorted(self.pairs.items())]
        return "\n".join([*lines, "", *self.matrix(), "", *self.lists()])


def floor(row: tuple[str, ...]) -> int:
    """How often the fixed seeds must reach it at least."""
    if row in UNREACHED:
        return 0
    return FLOORS.get(row, FLOOR if len(row) == 3 and row[2] != "refused" else LEAST)  # type: ignore[arg-type]


def _after(state: RequestState, reaction: Reaction) -> RequestState:
    """The state that the commands show."""
    if reaction.given(Finish):
        return RequestState.FINISHED
    if reaction.event is None:
        return state
    if reaction.given(CallModel):
        return RequestState.CALLING_MODEL
    begun = reaction.given(RunTool) or reaction.given(AskApproval)
    return RequestState.RUNNING_TOOLS if begun else state
