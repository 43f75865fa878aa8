"""Plays a scenario against a session in virtual time: the runtime that does nothing but carry out.

Its journal is written ahead: commands are carried out once the event they follow from is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Final, Protocol, Self

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import Command
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event, ToolsLost
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.states import RequestState
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace, told_error
from callboard.protocol.testing.world import Crashed, Happening, ToolsDied, World


class SessionLike(Protocol):
    """What the driver needs of a session: the real one, or a user's own."""

    def apply(self, event: Event) -> tuple[Command, ...]: ...
    def to_journal(self, event: Event) -> tuple[Event, ...]: ...
    @classmethod
    def replay(cls, journal: Iterable[Event]) -> Self: ...
    def resume_commands(self) -> tuple[Command, ...]: ...
    def loss_event(self, at: float) -> Event | None: ...
    @property
    def state(self) -> RequestState: ...
    @property
    def step(self) -> Tag: ...


class Driver:
    """One scenario, one seed, one run. For a runtime of your own override what it does differently."""

    def __init__(self, scenario: Scenario, seed: int = 0, session: type[SessionLike] = Session) -> None:
        self.world = World(scenario, seed)
        self.session: SessionLike = session()
        self._type = session
        self._written: Callable[[Event], bytes] = encode_event if scenario.restart_at else _unread

    @property
    def trace(self) -> Trace:
        """What has happened so far."""
        return self.world.trace

    def run(self) -> Trace:
        """Play to the end: until the session has finished and every message has arrived.

        An exception of the code under test ends the run; the trace says which, in `broken`.
        """
        trace = self.world.trace
        try:
            for happening in self.world:
                self.meet(happening)
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is the finding
            trace.broken = told_error(error)
        trace.session = self.session
        return self.world.trace

    def meet(self, happening: Happening) -> None:
        """Something comes from outside."""
        if isinstance(happening, Crashed):
            self.restart(happening.lines)
        elif isinstance(happening, ToolsDied):
            self.lose_tools()
        else:
            self.deliver(happening)

    def deliver(self, event: Event) -> None:
        """One message reaches the session: it is applied, or it is a dead letter. Commands wait for the journal."""
        before = self.session.state
        lines = [self._written(line) for line in self.session.to_journal(event)]
        try:
            commands = self.session.apply(event)
        except ProtocolError as error:
            self.world.refused(event, str(error))
            return
        self.world.took(event, commands, _row(before, type(event), self.session.state))
        self.world.write(lines, partial(self.carry_out, commands))

    def carry_out(self, commands: Iterable[Command]) -> None:
        """Do what the session gave."""
        for command in commands:
            self.world.carry_out(command)

    def restart(self, lines: Iterable[bytes]) -> None:
        """The process has died, and comes back from what its journal has written."""
        self.session = self._type.replay([read_back(line) for line in lines])
        commands = self.session.resume_commands()
        self.world.resumed(commands)
        self.carry_out(commands)
        loss = self.session.loss_event(self.world.now)
        if loss is not None:
            self.deliver(loss)

    def lose_tools(self) -> None:
        """Whoever ran the tools has died."""
        if self.session.state is RequestState.RUNNING_TOOLS:
            self.deliver(ToolsLost(self.session.step, self.world.now))


#: What a line says: the same lines are read after a crash, and by I8, and many requests begin alike.
read_back: Final = lru_cache(maxsize=64)(decode_event)


def _unread(line: Event) -> bytes:
    """Where nothing crashes no one reads what was written: I8 writes each event, and reads it again."""
    return b""


@cache
def _row(before: RequestState, kind: type[Event], after: RequestState) -> str:
    return f"{before}: {kind.__name__} -> {after}"


def drive(scenario: Scenario, seed: int = 0, session: type[SessionLike] = Session) -> Trace:
    """Play one scenario with one seed; the trace holds everything that happened."""
    return Driver(scenario, seed, session).run()
