"""A request without a model: one call of a tool, under the rules of every call.

The caller has decided what a model decides otherwise, so the session's two model calls are answered here: the first
turn asks for the call, the second ends the request. Everything between them (the policy's decision, approval, deadline,
deferral, loss, the limit on the result) is the session's own doing. No CallModel comes out.
"""

from __future__ import annotations

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Command, Finish
from callboard.protocol.content import Message, Text, ToolCall
from callboard.protocol.events import Event, ModelResponded, RequestStarted
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.model import FinishReason, ModelResponse, Usage
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CallState, RequestState

#: The text of the turn that ends the request; the caller is given the call's result, not this.
_ENDED = "The call has ended."


class DirectCall:
    """The session of one call. It takes and gives what `Session` does, without the model's events and commands."""

    def __init__(self, call: ToolCall) -> None:
        self._session = Session(count_tokens=_no_tokens)
        asks = ModelResponse((call,), FinishReason.TOOL_CALLS)
        ends = ModelResponse((Text(_ENDED),))
        self._turns = iter((asks, ends))

    @property
    def step(self) -> Tag:
        """The tag of the current step: there is one with the call, and one that ends the request."""
        return self._session.step

    def apply(self, event: Event) -> tuple[Command, ...]:
        """As `Session.apply`. Raises ProtocolError for an event that is illegal now."""
        todo: list[Command] = []
        if isinstance(event, RequestStarted):
            event = replace(event, tools=tuple(map(_not_deferred, event.tools)))
        for command in self._session.apply(event):
            if isinstance(command, CallModel):
                turn = ModelResponded(command.tag, event.at, next(self._turns), cost=0.0, requests=0)
                todo += self.apply(turn)
            else:
                todo.append(_without_model(command) if isinstance(command, Finish) else command)
        return tuple(todo)

    @property
    def calls(self) -> dict[Tag, CallState]:
        """The call, once it was asked for and until its step is over, and its state."""
        return self._session.calls

    def call_of(self, tag: Tag) -> ToolCall:
        """As `Session.call_of`."""
        return self._session.call_of(tag)

    @property
    def state(self) -> RequestState:
        """Where the request is."""
        return self._session.state

    @property
    def has_recorded(self) -> bool:
        """As `Session.has_recorded`."""
        return self._session.has_recorded

    @property
    def recorded(self) -> tuple[Message, ...]:
        """As `Session.recorded`."""
        return self._session.recorded

    def resume_commands(self) -> tuple[Command, ...]:
        """As `Session.resume_commands`."""
        given = self._session.resume_commands()
        return tuple(_without_model(each) if isinstance(each, Finish) else each for each in given)

    def loss_event(self, at: float) -> Event | None:
        """As `Session.loss_event`: the call is lost, since no model is ever asked."""
        return self._session.loss_event(at)

    def asks_again_at(self, at: float) -> float:
        """As `Session.asks_again_at`."""
        return self._session.asks_again_at(at)

    def to_journal(self, event: Event) -> tuple[Event, ...]:
        """As `Session.to_journal`. The model's answers are not among them: this class gives them again."""
        return self._session.to_journal(event)


def _without_model(finish: Finish) -> Finish:
    """Only the step of the call is reported, and nothing was used or paid."""
    steps = tuple(replace(each, usage=None, cost=None) for each in finish.steps if each.calls)
    return replace(finish, text="", usage=Usage(), cost=0.0, steps=steps)


def _not_deferred(offer: ToolOffer) -> ToolOffer:
    """Whoever calls a tool directly has found it."""
    return replace(offer, definition=replace(offer.definition, deferred=False)) if offer.definition.deferred else offer


def _no_tokens(_text: str) -> int:
    """No model reads the prompt."""
    return 0
