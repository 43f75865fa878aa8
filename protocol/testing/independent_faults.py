"""Faults planted by an author who had not seen the rules that must find them: reports, journal, and the list of all.

Each says in its docstring what goes wrong and what the user suffers. They are expressed in events and commands only,
and each works across a replay: the rebuilt session has the same fault. The `independent_*_faults.py` files hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    Command,
    Finish,
    Outcome,
    RecordStep,
    RunTool,
    SetTimer,
)
from callboard.protocol.content import AssistantMessage
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    Event,
    ModelFailed,
    ModelLost,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.model import Restarted
from callboard.protocol.states import CallState
from callboard.protocol.testing.independent_bases import (
    CallEvent,
    ChangedFinish,
    of_kind,
    without,
)
from callboard.protocol.testing.independent_call_faults import CALL_FAULTS
from callboard.protocol.testing.independent_prompt_faults import BUDGET_FAULTS, HISTORY_FAULTS
from callboard.protocol.testing.independent_session_faults import SESSION_FAULTS
from callboard.protocol.testing.independent_turn_faults import TURN_FAULTS
from callboard.protocol.testing.mutation import Mutation


class ReportsTimeoutsAsAnswers(ChangedFinish):
    """A request that ran out of time is reported as answered: half an answer is taken for the whole."""

    def finish(self, finish: Finish) -> Finish:
        timed_out = finish.outcome is Outcome.TIMED_OUT
        return replace(finish, outcome=Outcome.ANSWERED, reason="") if timed_out else finish


class ReportsCancelsAsFailures(ChangedFinish):
    """A cancelled request is reported as failed: people who press stop raise alarms."""

    def finish(self, finish: Finish) -> Finish:
        return replace(finish, outcome=Outcome.FAILED) if finish.outcome is Outcome.CANCELLED else finish


class AnswersWithTheTextOfAllSteps(ChangedFinish):
    """The answer holds the text of all steps: the user reads "let me look" glued before the result."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        for step in of_kind(commands, RecordStep):
            self._texts += [message.text for message in step.messages if isinstance(message, AssistantMessage)]
        return super().says(event, commands)

    def finish(self, finish: Finish) -> Finish:
        return replace(finish, text="".join(self._texts))


def _recorded_last(commands: list[Command]) -> list[Command]:
    return [*without(commands, RecordStep), *of_kind(commands, RecordStep)]


class FinishesBeforeRecording(Mutation):
    """The end comes before the last record: what carries commands out stops at the end and loses the answer."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return _recorded_last(commands) if of_kind(commands, Finish) else commands


class AsksBeforeRecording(Mutation):
    """The next model call comes before the record of the finished step: a crash between them loses the step."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return _recorded_last(commands) if of_kind(commands, CallModel) else commands


class NeverReportsLimits(Mutation):
    """A request stopped by a limit ends without a report: its caller waits for an answer that never comes."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        limits = (Outcome.STEP_LIMIT, Outcome.TOKEN_LIMIT, Outcome.COST_LIMIT)
        return [command for command in commands if not (isinstance(command, Finish) and command.outcome in limits)]


class AnswersWithAnEarlierRequestsText(ChangedFinish):
    """A request without text gets the text of the one before it: users read other users' answers."""

    _text: ClassVar[str] = ""

    def finish(self, finish: Finish) -> Finish:
        text = finish.text or AnswersWithAnEarlierRequestsText._text
        AnswersWithAnEarlierRequestsText._text = text
        return replace(finish, text=text)


class RemembersGrantsOfOtherRequests(Mutation):
    """A tool approved once is approved in all later requests of the process: other people's calls run unasked."""

    _granted: ClassVar[set[ToolName]] = set()

    def __init__(self) -> None:
        self._asked: dict[Tag, ToolName] = {}
        self._unasked: set[Tag] = set()

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        answer: list[Command] = []
        for command in commands:
            if isinstance(command, AskApproval) and command.name in self._granted:
                self._unasked.add(command.tag)
                answer += self.session.apply(ApprovalGranted(command.tag, event.at))
                continue
            if isinstance(command, AskApproval):
                self._asked[command.tag] = command.name
            answer.append(command)
        if isinstance(event, ApprovalGranted) and event.tag in self._asked:
            self._granted.add(self._asked[event.tag])
        return answer

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, ApprovalGranted) and event.tag in self._unasked:
            return ()
        raise error


REPORT_FAULTS: tuple[type[Mutation], ...] = (
    ReportsTimeoutsAsAnswers,
    ReportsCancelsAsFailures,
    AnswersWithTheTextOfAllSteps,
    FinishesBeforeRecording,
    AsksBeforeRecording,
    NeverReportsLimits,
    AnswersWithAnEarlierRequestsText,
    RemembersGrantsOfOtherRequests,
)


# Journal, replay and resume.


class JournalsNoCancel(Mutation):
    """A cancel is not journalled: after a restart the request that the user stopped goes on."""

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(line for line in lines if not isinstance(line, CancelRequested))


class JournalsNoPartialText(Mutation):
    """What was streamed before a turn was cut is not journalled: after a restart it is gone from the conversation."""

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(line for line in lines if not isinstance(line, ModelStreamed))


def _without_restart(line: Event) -> Event:
    if not isinstance(line, ModelStreamed):
        return line
    return replace(line, events=tuple(piece for piece in line.events if not isinstance(piece, Restarted)))


class JournalsPartialTextTwice(Mutation):
    """What was streamed before a turn was cut is journalled twice: after a restart the text is doubled."""

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(
            again for line in lines for again in [line, _without_restart(line)][: 1 + isinstance(line, ModelStreamed)]
        )


class JournalsResultsTwice(Mutation):
    """Results are journalled twice: the replay refuses its own journal and the request is lost in a restart."""

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return lines * 2 if isinstance(event, ToolCallCompleted) else lines


def _last_step(journal: Iterable[Event]) -> int:
    return max((event.tag.step for event in journal), default=0)


class ReplayForgetsGrants(Mutation):
    """A replay leaves out the approvals of the open step: after a restart people must approve the same call again."""

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        used = {event.tag for event in journal if isinstance(event, CallEvent)}
        return [event for event in journal if not self._forgotten(event, used, _last_step(journal))]

    @staticmethod
    def _forgotten(event: Event, used: set[Tag], last_step: int) -> bool:
        return isinstance(event, ApprovalGranted) and event.tag.step == last_step and event.tag not in used


class ReplayTakesDenialsForGrants(Mutation):
    """A replay reads the denials of the open step as approvals: after a restart a forbidden call runs."""

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        last = _last_step(journal)
        return [
            ApprovalGranted(event.tag, event.at, event.by)
            if isinstance(event, ApprovalDenied) and event.tag.step == last
            else event
            for event in journal
        ]


class ReplayForgetsStarts(Mutation):
    """A replay leaves out that calls had begun: after a restart an order that was already placed is placed again."""

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        return [event for event in journal if not isinstance(event, ToolCallStarted)]


class ReplayForgetsRetries(Mutation):
    """A replay counts retries from zero: with each restart a step that cannot succeed is paid for again."""

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        used = sum(isinstance(event, ModelLost | ModelFailed) for event in journal)
        return [self._with_retries(event, used) if isinstance(event, RequestStarted) else event for event in journal]

    @staticmethod
    def _with_retries(event: RequestStarted, used: int) -> RequestStarted:
        return replace(event, options=replace(event.options, max_attempts=event.options.max_attempts + used))


class ResumeSendsOpenCalls(Mutation):
    """A resumed session sends its open calls before it knows what was lost: tools run twice side by side."""

    def __init__(self) -> None:
        self._runs: dict[Tag, RunTool] = {}

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._runs |= {run.tag: run for run in of_kind(commands, RunTool)}
        return commands

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        held = (CallState.SENT, CallState.RUNNING)
        return [*commands, *(self._runs[tag] for tag, state in self.session.calls.items() if state in held)]


class ResumeForgetsTheTimer(Mutation):
    """A resumed session sets no timer: after a restart the request has no deadline."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return without(commands, SetTimer)


class ResumeForgetsRecords(Mutation):
    """A resumed session does not give its records again: steps that were not stored before the crash are lost."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return without(commands, RecordStep)


class ResumeForgetsTheEnd(Mutation):
    """A session that had finished reports no end when it is resumed: its caller waits without an answer."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return without(commands, Finish)


class HidesLosses(Mutation):
    """After a crash the lost work is not reported: the request waits for answers that cannot come."""

    def loses(self, loss: Event | None) -> Event | None:
        return None


JOURNAL_FAULTS: tuple[type[Mutation], ...] = (
    JournalsNoCancel,
    JournalsNoPartialText,
    JournalsPartialTextTwice,
    JournalsResultsTwice,
    ReplayForgetsGrants,
    ReplayTakesDenialsForGrants,
    ReplayForgetsStarts,
    ReplayForgetsRetries,
    ResumeSendsOpenCalls,
    ResumeForgetsTheTimer,
    ResumeForgetsRecords,
    ResumeForgetsTheEnd,
    HidesLosses,
)

INDEPENDENT_FAULTS: tuple[type[Mutation], ...] = (
    *SESSION_FAULTS,
    *REPORT_FAULTS,
    *CALL_FAULTS,
    *TURN_FAULTS,
    *BUDGET_FAULTS,
    *HISTORY_FAULTS,
    *JOURNAL_FAULTS,
)
