"""The tables are whole, and nothing but them decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.commands import Command, Outcome
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event
from callboard.protocol.ids import ToolName
from callboard.protocol.machine import Session
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    TERMINAL_CALL_STATES,
    CallFacts,
    CallState,
    RequestFacts,
    RequestState,
)
from callboard.protocol.testing import drive
from callboard.protocol.testing.diagrams import render
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.rules_journal import fingerprint
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PlannedCall, PlannedTurn, Scenario
from callboard.protocol.tools import Decision

EVENTS = get_args(Event)
PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_each_state_has_a_row_and_each_row_leads_to_states() -> None:
    assert set(REQUEST_TRANSITIONS) == set(RequestState)
    assert set(CALL_TRANSITIONS) == set(CallState)
    for table, kind in ((REQUEST_TRANSITIONS, RequestState), (CALL_TRANSITIONS, CallState)):
        for row in table.values():
            assert set(row) <= set(EVENTS)
            assert all(arrows and {after for _, after in arrows} <= set(kind) for arrows in row.values())


request_facts = st.builds(RequestFacts, st.integers(0, 3), st.none() | st.sampled_from(Outcome))


@given(request_facts)
def test_no_two_guards_of_a_request_hold_at_once(facts: RequestFacts) -> None:
    for row in REQUEST_TRANSITIONS.values():
        for arrows in row.values():
            assert sum(guard(facts) for guard, _ in arrows) <= 1


@st.composite
def call_facts(draw: st.DrawFn) -> CallFacts:
    flags = [draw(st.booleans()) for _ in range(4)]
    facts = CallFacts(draw(st.none() | st.sampled_from(Decision)), *flags, draw(st.integers(1, 3)))
    facts.sends, facts.runs = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    facts.result_is_sound, facts.writes_mask = draw(st.booleans()), draw(st.booleans())
    return facts


@given(call_facts())
def test_exactly_one_guard_of_a_call_holds_in_each_row(facts: CallFacts) -> None:
    for row in CALL_TRANSITIONS.values():
        for arrows in row.values():
            assert sum(guard(facts) for guard, _ in arrows) == 1


class ExactSession(Session):
    """Asks every guard of a row, not only up to the one that holds."""

    def apply(self, event: Event) -> tuple[Command, ...]:
        row = REQUEST_TRANSITIONS[self.state].get(type(event), ())
        commands = super().apply(event)
        assert [after for guard, after in row if guard(self._facts)] == [self.state]
        return commands


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_exactly_one_guard_of_a_request_holds_in_all_that_happens(first: int) -> None:
    for seed in range(first, first + 20):
        assert not drive(scenario(seed), seed, ExactSession).broken


def test_each_guard_says_what_it_asks() -> None:
    rows = [row for table in (REQUEST_TRANSITIONS, CALL_TRANSITIONS) for row in table.values()]
    guards = {guard for row in rows for arrows in row.values() for guard, _ in arrows}
    assert all(guard.__doc__ for guard in guards)
    assert len({guard.__name__ for guard in guards}) == len(guards)


def test_ends_are_ends() -> None:
    assert not REQUEST_TRANSITIONS[RequestState.FINISHED]
    assert {state for state, row in CALL_TRANSITIONS.items() if not row} == TERMINAL_CALL_STATES


def test_every_event_is_legal_somewhere() -> None:
    assert {event for row in REQUEST_TRANSITIONS.values() for event in row} == set(EVENTS)


def test_a_call_event_is_legal_for_a_call_only_while_tools_run() -> None:
    for row in CALL_TRANSITIONS.values():
        assert set(row) <= set(REQUEST_TRANSITIONS[RequestState.RUNNING_TOOLS]) | set(
            REQUEST_TRANSITIONS[RequestState.CALLING_MODEL]
        )


def sessions() -> dict[RequestState, tuple[Any, list[Event]]]:
    """A session in each state, and events of every kind with its tags."""
    call = PlannedCall(ToolName("look"), seconds=2.0)
    plan = Scenario((PlannedTurn("hm", (call, call)),), tools=STANDARD_TOOLS, tools_lost_at=(1.5,))
    journal = drive(plan).applied
    found: dict[RequestState, Any] = {}
    for size in range(len(journal) + 1):
        session = Session.replay(journal[:size])
        found.setdefault(session.state, session)
    return {state: (session, journal) for state, session in found.items()}


@pytest.mark.parametrize("state", RequestState)
def test_an_absent_key_is_refused_and_changes_nothing(state: RequestState) -> None:
    session, journal = sessions()[state]
    before = fingerprint(session)
    illegal = [event for event in journal if type(event) not in REQUEST_TRANSITIONS[state]]
    for event in illegal:
        with pytest.raises(ProtocolError) as caught:
            session.apply(event)
        assert (caught.value.state, caught.value.event) == (state, type(event).__name__)
        assert fingerprint(session) == before
    assert illegal or state is RequestState.NEW


def test_the_page_names_every_message() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [kind.__name__ for kind in (*EVENTS, *get_args(Command)) if f"`{kind.__name__}`" not in page] == []


@pytest.mark.parametrize("name", ["protocol.md", "policy.md", "providers.md"])
def test_the_page_is_what_the_code_would_write(name: str) -> None:
    page = (PAGE.parent / name).read_text(encoding="utf-8")
    assert "<!-- generated: " in page
    assert render(page) == page, f"run: python -m callboard.protocol.testing.diagrams docs/{name}"
