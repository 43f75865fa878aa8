"""How each call of a turn begins: sent, asked about, or ended at once with the reason why it was not run."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.protocol import failures
from callboard.protocol.commands import Command
from callboard.protocol.events import ModelResponded
from callboard.protocol.ids import ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CallState
from callboard.protocol.step import Batch, OpenCall, Repeats, Repetition
from callboard.protocol.tools import Decision, ToolFailure
from callboard.protocol.turn import AskedCall, Turn


def open_calls(
    batch: Batch, turn: Turn, offers: Mapping[ToolName, ToolOffer], repeats: Repeats, limit: int, at: float
) -> tuple[list[Command], bool]:
    """Begin every call of the turn, in its order; True when a repetition must end the run, and then nothing is sent."""
    opened = [(asked, batch.add(asked.call, offers.get(asked.call.name))) for asked in turn.calls]
    found = repeats.next_step([_signature(asked) for asked in turn.calls])
    if Repetition.STOP in found:
        for (asked, call), repetition in zip(opened, found, strict=True):
            if repetition is not Repetition.NONE:
                _fail(batch, call, CallState.FAILED, failures.repeated_call(asked.call.name, limit))
        batch.refuse_rest("another call of the turn repeated itself, which ended the run.")
        return [], True
    commands: list[Command] = []
    for (asked, call), repetition in zip(opened, found, strict=True):
        if repetition is Repetition.TELL:
            _fail(batch, call, CallState.FAILED, failures.repeated_call(asked.call.name, limit))
        else:
            commands += _begin(batch, asked, call, offers, at)
    return commands + batch.watch(), False


def _signature(asked: AskedCall) -> tuple[ToolName, str]:
    return asked.call.name, asked.received if asked.arguments is None else asked.arguments


def _begin(
    batch: Batch, asked: AskedCall, call: OpenCall, offers: Mapping[ToolName, ToolOffer], at: float
) -> list[Command]:
    name = asked.call.name
    if call.offer is None:
        _fail(batch, call, CallState.FAILED, failures.unknown_tool(name, list(offers)))
    elif asked.arguments is None:
        _fail(batch, call, CallState.FAILED, failures.incomplete_call(name, asked.received))
    elif call.offer.decision is Decision.ALLOW:
        return [batch.send(call, ModelResponded, at)]
    elif call.offer.decision is Decision.ASK:
        return [batch.ask(call, ModelResponded)]
    else:
        _fail(batch, call, CallState.DENIED, failures.denied(name, "the owner of this runtime denies such calls."))
    return []


def _fail(batch: Batch, call: OpenCall, state: CallState, failure: ToolFailure) -> None:
    batch.fail(call, ModelResponded, state, failure)
