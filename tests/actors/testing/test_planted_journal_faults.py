"""Faults planted in writing ahead, the journal's actor and its store: the simulation finds each by its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors import taking_up
from callboard.actors.calls.dispatcher import DispatchCall
from callboard.actors.journal import recovery
from callboard.actors.journal.journal import Journal, WriteAgain
from callboard.actors.journal.journal_records import Change, RequestLog, Write
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.recovery import Rebuilt
from callboard.actors.requests import request_session
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.write_ahead import Waiting, WriteAhead
from callboard.actors.testing.faults import Death, Faults, JournalFaults, seeded_faults
from callboard.actors.testing.replay_token import RunToken
from callboard.actors.testing.simulated_request import RecordedSession
from callboard.actors.testing.simulated_run import SimulatedRun, attempt, seeded_scenarios, token_of
from callboard.actors.testing.simulated_store import SimulatedWriter
from callboard.protocol import events
from callboard.protocol.commands import Command, SetTimer
from callboard.protocol.events import Event
from callboard.protocol.ids import MessageId
from callboard.protocol.machine import Session

Patch = pytest.MonkeyPatch
SLOW = JournalFaults(commit_seconds=0.25)
FULL = replace(SLOW, full=((2.0, 5.0),))
UNSURE_NOW_AND_THEN = replace(SLOW, sync_fails=tuple((at / 2, at / 2 + 0.125) for at in range(1, 20)))
#: Seeds within which each of them is found.
MOST_SEEDS = 40


@dataclass(frozen=True)
class Planted:
    """A fault, and the rule by which it is found."""

    rule: str
    plant: Callable[[Patch], object]
    journal: JournalFaults = SLOW
    deaths: bool = False
    """It is one that shows when the process dies."""


def shows_before_durable(patch: Patch) -> None:
    holds = WriteAhead.holds

    def hands_over_and_goes_on(self: WriteAhead, *given: Any) -> bool:
        if holds(self, *given):
            self.durable(1 << 30)
        return False

    patch.setattr(WriteAhead, "holds", hands_over_and_goes_on)


def lets_all_go_at_the_first_answer(patch: Patch) -> None:
    durable = WriteAhead.durable
    patch.setattr(WriteAhead, "durable", lambda self, up_to: durable(self, up_to + 1))


def acknowledges_before_the_commit(patch: Patch) -> None:
    write, written = Journal._write, Journal._written

    def early(self: Journal, marks: Sequence[Write], batch: Sequence[Any]) -> None:
        written(self, batch, [None] * len(batch))
        write(self, marks, batch)

    patch.setattr(Journal, "_write", early)


def a_store_that_lies(patch: Patch) -> None:
    commit = SimulatedWriter.commit

    def every_fifth_is_lost(self: SimulatedWriter, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        return [None] * len(batch) if self._disk.commits % 5 == 4 and not _count(self) else commit(self, batch)

    def _count(self: SimulatedWriter) -> None:
        self._disk.commits += 1

    patch.setattr(SimulatedWriter, "commit", every_fifth_is_lost)


def runs_without_go_ahead(patch: Patch) -> None:
    patch.setattr(request_session, "DispatchCall", lambda *given: DispatchCall(*given[:-1]))


def gives_the_go_ahead_at_once(patch: Patch) -> None:
    applies = RequestSession._apply

    def and_goes_ahead(self: RequestSession, event: Event) -> None:
        applies(self, event)
        if isinstance(event, events.ToolCallStarted):
            self._give_go_ahead(event.tag)

    patch.setattr(RequestSession, "_apply", and_goes_ahead)


def forgets_to_say_that_it_failed(patch: Patch) -> None:
    patch.setattr(Journal, "_tell_failed", lambda self, batch, why, **_: None)


def never_says_that_failed_requests_have_ended(patch: Patch) -> None:
    patch.setattr(Outbox, "marks", lambda self, most: ())


def does_not_try_again(patch: Patch) -> None:
    starts = Journal.on_start

    def with_a_retry_that_never_comes(self: Journal) -> None:
        starts(self)
        self._retry = self.tell_after(0.0, WriteAgain())
        self._retry.cancel()

    patch.setattr(Journal, "on_start", with_a_retry_that_never_comes)


def writes_on_after_a_failure(patch: Patch) -> None:
    patch.setattr(Outbox, "has_failed", lambda self, write: False)


def leaves_denials_out(patch: Patch) -> None:
    hands_over = WriteAhead._hand_over

    def without(self: WriteAhead, journaled: Sequence[Event], given: tuple[Command, ...], now: float) -> Any:
        kept = [each for each in journaled if not isinstance(each, events.ApprovalDenied)]
        return hands_over(self, kept, given, now) if kept else None

    patch.setattr(WriteAhead, "_hand_over", without)


def forgets_the_end(patch: Patch) -> None:
    patch.setattr(WriteAhead, "_end", lambda self, at, finish, failure="": None)


def writes_by_the_wrong_clock(patch: Patch) -> None:
    hands_over = WriteAhead._hand_over

    def later(self: WriteAhead, journaled: Sequence[Event], given: tuple[Command, ...], now: float) -> Any:
        return hands_over(self, [replace(each, at=each.at / 2) for each in journaled], given, now)

    patch.setattr(WriteAhead, "_hand_over", later)


def mixes_up_the_order(patch: Patch) -> None:
    durable = WriteAhead.durable

    def backwards(self: WriteAhead, up_to: int) -> list[Waiting]:
        return durable(self, up_to)[::-1]

    patch.setattr(WriteAhead, "durable", backwards)


# In going on after the process has died.


def runs_started_calls_again(patch: Patch) -> None:
    recovered = recovery.rebuilt

    def as_if_none_had_begun(log: RequestLog, *given: Any) -> Rebuilt:
        kept = [each for each in log.records if not isinstance(each.event, events.ToolCallStarted)]
        records = tuple(replace(each, number=number) for number, each in enumerate(kept, 1))
        found = recovered(replace(log, records=records), *given)
        return replace(found, written=len(log.records))

    patch.setattr(taking_up, "rebuilt", as_if_none_had_begun)


def drops_the_last_outcome(patch: Patch) -> None:
    recovered = recovery.rebuilt

    def without(log: RequestLog, *given: Any) -> Rebuilt:
        found = log.records
        if isinstance(found[-1].event, events.ToolCallCompleted | events.ModelResponded):
            found = found[:-1]
        return recovered(replace(log, records=found, messages=log.messages), *given)

    patch.setattr(recovery, "_check_messages", lambda *given: None)
    patch.setattr(taking_up, "rebuilt", without)


def repeats_recorded_steps(patch: Patch) -> None:
    recovered = recovery.rebuilt

    def with_steps_once_more(log: RequestLog, *given: Any) -> Rebuilt:
        found = recovered(log, *given)
        if not (steps := found.taken_up.session.recorded):
            return found
        conversation = found.conversation
        ids = tuple(MessageId(f"again/{number}") for number in range(len(steps)))
        twice = Conversation.of_record(
            conversation.id, (*conversation.messages, *steps), (*conversation.ids, *ids), conversation.compacted
        )
        return replace(found, conversation=twice)

    patch.setattr(taking_up, "rebuilt", with_steps_once_more)


def does_not_say_what_was_lost(patch: Patch) -> None:
    patch.setattr(RecordedSession, "loss_event", lambda self, at: None)


def counts_from_the_wrong_event(patch: Patch) -> None:
    recovered = recovery.rebuilt
    patch.setattr(
        taking_up, "rebuilt", lambda log, *given: replace(recovered(log, *given), written=len(log.records) + 1)
    )


def forgets_the_timer(patch: Patch) -> None:
    resumes = Session.resume_commands
    patch.setattr(
        Session, "resume_commands", lambda self: tuple(c for c in resumes(self) if not isinstance(c, SetTimer))
    )


PLANTED = [
    Planted("written ahead", shows_before_durable),
    Planted("written ahead", lets_all_go_at_the_first_answer),
    Planted("written ahead", acknowledges_before_the_commit),
    Planted("written ahead", a_store_that_lies),
    Planted("written ahead", runs_without_go_ahead),
    Planted("written ahead", gives_the_go_ahead_at_once),
    Planted("end", forgets_to_say_that_it_failed, FULL),
    Planted("journal", never_says_that_failed_requests_have_ended, FULL),
    Planted("journal", does_not_try_again, FULL),
    Planted("journal", writes_on_after_a_failure, UNSURE_NOW_AND_THEN),
    Planted("I8 replay", leaves_denials_out),
    Planted("journal", forgets_the_end),
    Planted("I8 replay", writes_by_the_wrong_clock),
    Planted("shown in order", mixes_up_the_order),
    Planted("run twice", runs_started_calls_again, deaths=True),
    Planted("journal", drops_the_last_outcome, deaths=True),
    Planted("record", repeats_recorded_steps, deaths=True),
    Planted("I26 resume", does_not_say_what_was_lost, deaths=True),
    Planted("journal", counts_from_the_wrong_event, deaths=True),
    Planted("I26 resume", forgets_the_timer, deaths=True),
]


def found_in(token: RunToken, journal: JournalFaults, *, deaths: bool = False) -> set[str]:
    """The rules that the run of this token breaks."""
    die = tuple(Death(steps) for steps in (30 + token.seed % 40, 130)) if deaths else ()

    def make(token: RunToken) -> SimulatedRun:
        faults = seeded_faults(token.fault_seed) if token.fault_seed is not None else Faults()
        scenarios = seeded_scenarios(token.seed, token.fault_seed)
        direct = () if die else faults.direct_calls  # none of their callers asks again when the process has died
        faults = replace(faults, journal=journal, deaths=die, direct_calls=direct)
        return SimulatedRun(scenarios, faults, token.make_schedule())

    told = (problem.partition(":")[0] for problem in attempt(token, make)[1])
    return {each.partition(" ")[2] if each.startswith("r") and each[1:2].isdigit() else each for each in told}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.plant.__name__)
def test_it_is_found_by_its_rule(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found: set[str] = set()
    for seed in range(MOST_SEEDS):
        found |= found_in(token_of(seed), planted.journal, deaths=planted.deaths)
        if planted.rule in found:
            return
    raise AssertionError(f"{planted.rule} is not broken within {MOST_SEEDS} seeds, only {sorted(found)}")


@pytest.mark.parametrize("deaths", [False, True])
@pytest.mark.parametrize("journal", [SLOW, FULL], ids=["slow", "full"])
def test_without_a_fault_nothing_is_found(journal: JournalFaults, deaths: bool) -> None:
    assert [found_in(token_of(seed), journal, deaths=deaths) for seed in range(10)] == [set()] * 10
