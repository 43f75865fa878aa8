"""The tables are whole, and nothing but them decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event
from callboard.protocol.ids import ToolName
from callboard.protocol.machine import Session
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    TERMINAL_CALL_STATES,
    CallState,
    RequestState,
)
from callboard.protocol.testing import drive
from callboard.protocol.testing.diagrams import render
from callboard.protocol.testing.rules_journal import fingerprint
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PlannedCall, PlannedTurn, Scenario

EVENTS = get_args(Event)
PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_each_state_has_a_row_and_each_row_leads_to_states() -> None:
    assert set(REQUEST_TRANSITIONS) == set(RequestState)
    assert set(CALL_TRANSITIONS) == set(CallState)
    for table, kind in ((REQUEST_TRANSITIONS, RequestState), (CALL_TRANSITIONS, CallState)):
        for row in table.values():
            assert set(row) <= set(EVENTS)
            assert all(outcomes and set(outcomes) <= set(kind) for outcomes in row.values())


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
    scenario = Scenario((PlannedTurn("hm", (call, call)),), tools=STANDARD_TOOLS, tools_lost_at=(1.5,))
    journal = drive(scenario).applied
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


def test_the_page_is_what_the_code_would_write() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run: python -m callboard.protocol.testing.diagrams docs/protocol.md"
