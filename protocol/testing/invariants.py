"""The rules, each a pure function over a story that yields what is wrong, one sentence each.

They hold for any trace, whoever wrote it: the pure driver, or real actors with their session's events and commands
recorded. They speak of events and commands only. `violations` checks them all.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from callboard.protocol.ids import Tag
from callboard.protocol.testing import rules_calls as calls
from callboard.protocol.testing import rules_compaction as compaction
from callboard.protocol.testing import rules_history as history
from callboard.protocol.testing import rules_journal as journal
from callboard.protocol.testing import rules_limits as limits
from callboard.protocol.testing import rules_output as output
from callboard.protocol.testing import rules_outside as outside
from callboard.protocol.testing import rules_played as played
from callboard.protocol.testing import rules_requests as requests
from callboard.protocol.testing import rules_told as told
from callboard.protocol.testing import rules_words as words
from callboard.protocol.testing.story import Story
from callboard.protocol.testing.trace import Trace, told_error


class Violation(Struct, frozen=True):
    """One broken rule in one trace."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


INVARIANTS: Mapping[str, Callable[[Story], Iterator[str]]] = MappingProxyType(
    {
        "I1 terminal once": calls.terminal_once,
        "I2 valid history": history.valid_history,
        "I3 order": history.in_order,
        "I4 no early step": requests.no_early_step,
        "I5 bounded": limits.bounded,
        "I6 budgets hold": limits.budgets_hold,
        "I7 cancel": requests.cancel_ends,
        "I8 replay": journal.replay_faults,
        "I9 conservation": requests.conserved,
        "I10 blast radius": calls.blast_radius,
        "I11 isolation": requests.isolated,
        "I12 no half calls": calls.no_half_calls,
        "I13 leave to run": calls.leave_to_run,
        "I14 call deadlines": calls.call_deadlines,
        "I15 effect ids": calls.effect_ids,
        "I16 sent again": calls.sent_again,
        "I17 recorded truly": history.recorded_truly,
        "I18 shown as recorded": history.shown_as_recorded,
        "I19 recorded in place": history.records_in_place,
        "I20 turns decide": limits.turns_decide,
        "I21 true finish": requests.true_finish,
        "I22 timers": limits.timers,
        "I23 model calls": limits.model_deadlines,
        "I24 goes on": requests.goes_on,
        "I25 taken or refused": requests.taken_or_refused,
        "I26 resume": journal.resumes,
        "I27 carried out": requests.carried_out,
        "I28 compaction": compaction.compacts,
        "I29 notices": history.notices_read,
        "I30 answers fit": output.answers_fit,
        "I31 handed out": outside.handed_out,
        "I32 search words": words.expands,
        "I33 true reports": told.reports_true,
        "I34 notes": told.notes_true,
        "I35 in time": played.in_time,
    }
)


def rules_list() -> str:
    """The rules as a Markdown list, from their docstrings."""
    rows = []
    for name, check in INVARIANTS.items():
        meaning = (inspect.getdoc(check) or "").partition("\n\n")[0].replace("\n", " ").partition(": ")[2]
        rows.append(f"- **{name}**: {meaning}")
    return "\n".join([*rows, ""])


#: What a trace breaks whose run ended in an exception of the code under test.
EXCEPTION = "no exception"


def violations(trace: Trace, rules: Iterable[str] = INVARIANTS) -> list[Violation]:
    """What this trace breaks of these rules; empty when all hold. A trace that makes no sense breaks what it cannot be
    read by."""
    if trace.broken:
        return [Violation(EXCEPTION, trace.broken)]
    try:
        story = Story.of(trace)
    except Exception as error:  # noqa: BLE001 - a trace may be of any runtime
        return [Violation(EXCEPTION, f"the trace cannot be read: {_told(error)}")]
    return [Violation(name, message) for name in rules for message in broken(name, story)]


def broken(name: str, story: Story) -> list[str]:
    """What one rule says of a story. A story so strange that the rule cannot be read on it breaks the rule."""
    found: list[str] = []
    try:
        found.extend(INVARIANTS[name](story))
    except Exception as error:  # noqa: BLE001 - likewise
        found.append(f"the trace cannot be read by this rule: {_told(error)}")
    return found


def _told(error: Exception) -> str:
    """An exception of a rule: what the rule looked at then, and where."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    about = next((told for frame in reversed(frames) for told in map(_about, frame.f_locals.values()) if told), "")
    return f"{about}{told_error(error)}"


def _about(value: object) -> str:
    """What a variable of a rule stands for, in words; "" for what is no event, command or call."""
    inner = getattr(value, "command", None) or getattr(value, "event", None) or getattr(value, "model", None) or value
    tag = getattr(getattr(inner, "command", inner), "tag", None) or inner
    if not isinstance(tag, Tag):
        return ""
    place = "/".join(str(part) for part in (tag.request_id, tag.step, tag.call_id) if part)
    return f"{type(inner).__name__} of {place}: "
