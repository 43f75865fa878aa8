"""Faults planted on purpose: a session whose hearing or speech is changed, in terms of events and commands alone.

    class ForgetsToStop(Mutation):
        '''A cancel leaves the model stream running.'''
        def says(self, event, commands):
            return [command for command in commands if not isinstance(command, StopModel)]

    trace = drive(scenario, seed, mutated(ForgetsToStop))

A mutation knows no file and no attribute of the real session, so it stays true when those change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from callboard.protocol.commands import Command
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.states import RequestState


class Mutation:
    """One fault. Override what it changes; everything else passes through. A new one is made for each session."""

    session: Session
    """The session behind the fault, to read `state`, `step` or `tag`; set before the first event."""

    def hears(self, event: Event) -> Event | None:
        """The event that reaches the session in place of this one; None: it hears nothing."""
        return event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        """The commands that come out after `event` (as it was sent, not as it was heard)."""
        return commands

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        """The session refused the event: raise the error, or take it all the same and return commands."""
        raise error

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        """What is written of an event before it is applied."""
        return lines

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        """The events that a replay applies."""
        return journal

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        """What a resumed session gives out first."""
        return commands

    def loses(self, loss: Event | None) -> Event | None:
        """The event that says what was lost in a crash."""
        return loss


class MutatedSession:
    """A real session behind a mutation; subclasses name which."""

    mutation_type: type[Mutation] = Mutation

    def __init__(self) -> None:
        self._session = Session()
        self._mutation = self.mutation_type()
        self._mutation.session = self._session

    @property
    def behind(self) -> Session:
        """The real session."""
        return self._session

    @property
    def state(self) -> RequestState:
        return self._session.state

    @property
    def step(self) -> Tag:
        return self._session.step

    @property
    def calls(self) -> dict[Tag, Any]:
        return dict(self._session.calls)

    def apply(self, event: Event) -> tuple[Command, ...]:
        """As the real one, except for the fault."""
        heard = self._mutation.hears(event)
        commands: list[Command] = []
        if heard is not None:
            try:
                commands = list(self._session.apply(heard))
            except ProtocolError as error:
                return tuple(self._mutation.refuses(event, error))
        return tuple(self._mutation.says(event, commands))

    def to_journal(self, event: Event) -> tuple[Event, ...]:
        """As the real one, except for the fault."""
        return self._mutation.journals(event, self._session.to_journal(event))

    @classmethod
    def replay(cls, journal: Iterable[Event]) -> MutatedSession:
        """As the real one, except for the fault."""
        rebuilt = cls()
        for event in rebuilt._mutation.reads(list(journal)):
            rebuilt.apply(event)
        return rebuilt

    def resume_commands(self) -> tuple[Command, ...]:
        """As the real one, except for the fault."""
        return tuple(self._mutation.resumes(list(self._session.resume_commands())))

    def loss_event(self, at: float) -> Event | None:
        """As the real one, except for the fault."""
        return self._mutation.loses(self._session.loss_event(at))


def mutated(mutation: type[Mutation]) -> type[MutatedSession]:
    """The session type with this fault, for `drive` and the state machine."""
    return type(mutation.__name__, (MutatedSession,), {"mutation_type": mutation})
