"""What a RequestSession takes and works with: its messages, its peers, who hears of it and who keeps its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from callboard.actors.calls import dispatcher
from callboard.actors.calls.approvals import SeekApproval
from callboard.actors.calls.dispatcher import DispatchCall, StopsTold, ToolsOffered
from callboard.actors.journal.outbox import NotWritten, Written
from callboard.actors.kernel import Asks, Down, Ref
from callboard.actors.models.llm_manager import LlmMessage, StartModel
from callboard.actors.models.windows import Window
from callboard.actors.requests.open_requests import OpenWork
from callboard.actors.requests.outside import OutsideMessage
from callboard.actors.requests.replies import Seen
from callboard.actors.telemetry.telemetry import TelemetryMessage
from callboard.actors.tools.progress import ProgressMade
from callboard.protocol import commands, events
from callboard.protocol.commands import Command
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message, ToolCall
from callboard.protocol.events import Event, ToolCallEnd
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.model import CallPurpose
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.tools import FailureCode, ToolFailure

Subscriber = Callable[[Seen], None]
"""Hears, on the loop thread, each event of the request as it is applied, each RunTool, AskApproval, ReportFailure and
Note, the timer of the request when it is set and cleared, and Finish last. It must not block."""
Record = Callable[[tuple[Message, ...] | Compacted, RequestId], None]
"""Takes the messages of each finished step, and what was cleared or summarised of those before it."""

#: What is shown also without a reader: how the request ended, and what its asker should know of that and of its time.
ALWAYS_SHOWN: Final = (
    events.ModelFailed, *events.CALL_FAILS, commands.ReportFailure, commands.Note, commands.Finish,
    commands.SetTimer, commands.ClearTimer,
)  # fmt: skip
BEGINS_WORK: Final = (commands.CallModel, commands.RunTool, commands.AskApproval)
Order = StartModel | DispatchCall | SeekApproval
"""What others work at for a request."""
Stop = commands.StopModel | commands.CancelTool | commands.WithdrawApproval
STOPS: Final[Mapping[type[Order], type[Stop]]] = {
    StartModel: commands.StopModel,
    DispatchCall: commands.CancelTool,
    SeekApproval: commands.WithdrawApproval,
}


def lost_work(order: DispatchCall | SeekApproval, sends: int, at: float, *, may_go_on: bool) -> Event:
    """How a call ends of which each dispatcher was lost that it, or the question about it, was sent to. `may_go_on`: at
    a worker."""
    if isinstance(order, SeekApproval):
        asked = order.question
        told = f"each of {sends} dispatchers that were to ask about {asked.name} was lost"
        return events.ApprovalDenied(asked.tag, at, "approver", told)
    name = order.run.name
    code = FailureCode.OUTCOME_UNKNOWN if may_go_on else FailureCode.INTERNAL_ERROR
    why = f"each of {sends} dispatchers that {name} was sent to was lost"
    return events.ToolCallFailed(order.run.tag, at, ToolFailure(name, code, why))


def without_work(given: tuple[Command, ...]) -> tuple[Command, ...]:
    """The runtime stops: what would begin now is begun by the next one."""
    return tuple(command for command in given if not isinstance(command, BEGINS_WORK))


class Peers(Struct, frozen=True):
    """The actors a session works with."""

    llm_manager: Ref[LlmMessage]
    dispatcher: Ref[dispatcher.DispatcherMessage]
    telemetry: Ref[TelemetryMessage]


class WindowFound(Struct, frozen=True):
    """How many tokens the request's model takes."""

    window: Window


class AnswersChecked(Struct, frozen=True):
    """Whether the answers of a turn fit the form asked for."""

    responded: events.ModelResponded


class GoOn(Struct, frozen=True):
    """The first thing that a request is told that was taken up from a journal."""


class ReadWork(Asks[OpenWork], Struct, frozen=True):
    """Asks where the request is."""


class FeedStart(Struct, frozen=True):
    """Where a feed begins that is added to a request that runs."""

    number: int = 0
    """The events that the request has acted on, without ModelStreamed."""
    asks_for: CallPurpose | None = None
    """Of the model call that is open. A part of a turn may have been streamed already: the feed has it at its end."""


class ReadAlong(Asks[bool], Struct, frozen=True):
    """The request is read from now on."""

    subscriber: Subscriber
    """In place of the one that it had, which it tells of all that it hears."""
    begins_at: Callable[[FeedStart], None]
    """Called before the first that it hears."""


class LookForWrites(Struct, frozen=True):
    """To itself: is the journal late?"""

    is_second: bool = False
    """It was late already a moment ago."""


SessionMessage = (
    AnswersChecked | Event | ToolsOffered | WindowFound | StopsTold | Down | ProgressMade | OutsideMessage | Written
    | NotWritten | LookForWrites | GoOn | ReadWork | ReadAlong
)  # fmt: skip


class SessionLike(Protocol):
    """What this actor needs of the protocol's Session; a simulated run has one that writes down what it hears."""

    @property
    def step(self) -> Tag: ...

    def apply(self, event: Event) -> tuple[Command, ...]: ...

    @property
    def calls(self) -> dict[Tag, CallState]: ...

    def call_of(self, tag: Tag) -> ToolCall: ...

    def to_journal(self, event: Event) -> tuple[Event, ...]: ...


class ReplayedSession(SessionLike, Protocol):
    """One that was rebuilt from its events."""

    @property
    def state(self) -> RequestState: ...

    @property
    def recorded(self) -> tuple[Message, ...]: ...

    @property
    def has_recorded(self) -> bool: ...

    def resume_commands(self) -> tuple[Command, ...]: ...

    def loss_event(self, at: float) -> Event | None: ...

    def asks_again_at(self, at: float) -> float: ...


class TakenUp(Struct, frozen=True):
    """What the session of a request goes on with that was open in a journal."""

    session: ReplayedSession
    started: events.RequestStarted
    outcomes: tuple[ToolCallEnd, ...] = ()
    """Of calls with the effect `transaction`, as they were committed; what is among the events already is ignored."""
    number: int = 0
    """So many events it has acted on, without ModelStreamed."""

    @property
    def timer(self) -> commands.SetTimer | None:
        """Of the request, where its time runs."""
        return next((each for each in self.session.resume_commands() if isinstance(each, commands.SetTimer)), None)

    @property
    def deferred(self) -> dict[Tag, ToolName]:
        """The calls whose results come from outside."""
        of_call, calls = self.session.call_of, self.session.calls
        return {tag: of_call(tag).name for tag, state in calls.items() if state is CallState.DEFERRED}
