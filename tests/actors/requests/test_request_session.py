"""The session actor: it carries events in and commands out, to the right people, whoever of them is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, get_args

import orjson
import pytest
from support.probes import Probe, Probed

from callboard.actors.calls.approvals import SeekApproval
from callboard.actors.calls.dispatcher import (
    ConfirmStops,
    DispatchCall,
    OfferTools,
    StopsTold,
    ToolsOffered,
)
from callboard.actors.kernel import (
    ActorSystem,
    ChildSpec,
    DeadLetterReason,
    MailboxFull,
    Restart,
    Supervisor,
    stop_child,
)
from callboard.actors.kernel import start_child as start
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.requests.output_checks import ChecksAnswers, Told
from callboard.actors.requests.replies import STOPPING, Question
from callboard.actors.requests.request_session import STOPS_TOLD_SECONDS, RequestSession
from callboard.actors.requests.session_messages import Peers
from callboard.actors.telemetry.request_log import WORK
from callboard.actors.telemetry.telemetry import Observed
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CallOutside,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    NoteKind,
    Outcome,
    RecordCompaction,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, RuntimeFailure
from callboard.protocol.events import (
    ApprovalDenied,
    CancelRequested,
    Event,
    ModelFailed,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, TextDelta, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.output import Checked, OutputSpec
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.tools import FailureCode, Risk, ToolFailure

TAG = Tag(RequestId("r"), MessageId("m"))
STEP = TAG.at_step(1)
COLOUR: ContextVar[str] = ContextVar("colour", default="none")


class Scene:
    """A session whose peers are probes under a supervisor; the test plays them."""

    def __init__(
        self,
        system: ActorSystem,
        offers: bool = True,
        confirms: bool = True,
        history: tuple[Message, ...] = (),
        subscriber: Callable[[Any], object] = lambda seen: None,
        record: Callable[[Any], object] = lambda recorded: None,
        checker: ChecksAnswers | None = None,
        **options: Any,
    ) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.system, self.scheduler = system, system.scheduler
        self.heard: dict[str, list[Any]] = {"llm": [], "dispatcher": [], "telemetry": []}
        self.offers, self.confirms = offers, confirms
        self._subscriber, self._record = subscriber, record
        specs = [ChildSpec(name, partial(Probe, heard, self._react)) for name, heard in self.heard.items()]
        system.spawn(lambda: Supervisor(specs, intensity=99, chance=lambda: 0.0), "root")
        self.sessions = system.spawn(Supervisor, "sessions")
        self.run(0.0)
        self.seen: list[Any] = []
        self.recorded: list[Message] = []
        peers = Peers(*(system.ref(f"root/{name}") for name in ("llm", "dispatcher", "telemetry")))
        self.asker = Context()
        self.asker.run(COLOUR.set, "red")
        self.asked_at = self.scheduler.now()
        question = Question(
            TAG,
            history,
            UserMessage.of("go"),
            RequestOptions("p/m", **options),
            self.asked_at,
            self.asker,
            checker=checker,
        )
        make = partial(RequestSession, question, peers, self._see, self._take)
        self.ref = start(self.sessions, ChildSpec("r", make, restart=Restart.TEMPORARY))
        self.ends: list[Any] = []
        system.watch(self.ref, self.ends.append)
        self.run(0.0)

    def _see(self, seen: Any) -> None:
        self.seen.append(seen)
        self._subscriber(seen)

    def _take(self, messages: tuple[Message, ...], request_id: RequestId) -> None:
        assert request_id == TAG.request_id
        self._record(messages)
        self.recorded.extend(messages)

    def _react(self, probe: Probe, message: Any) -> None:
        if message == "crash":
            raise RuntimeError("struck")
        if isinstance(message, OfferTools) and self.offers:
            message.reply_to.tell_control(ToolsOffered(message.tag, STANDARD_TOOLS))
        if isinstance(message, ConfirmStops) and self.confirms:
            message.reply_to.tell_control(StopsTold(message.tag))

    def run(self, until_seconds: float | None = None) -> None:
        self.scheduler.run_until_idle(self.scheduler.now() if until_seconds is None else until_seconds)

    def say(self, *events: Any) -> None:
        for event in events:
            self.ref.tell(event)
        self.run()

    def say_now(self, event: Any) -> None:
        """No time passes."""
        self.ref.tell(event)
        self.run(self.scheduler.now())

    def strike(self, name: str) -> None:
        self.system.ref(f"root/{name}").tell_control("crash")
        self.run(self.scheduler.now() + 1.0)

    def told(self, name: str, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard[name] if isinstance(message, kind)]

    def calls(self, *calls: tuple[str, str], step: int = 1) -> None:
        parts: tuple[AssistantPart, ...] = tuple(ToolCall(CallId(i), ToolName(name), "{}") for i, name in calls)
        self.say(ModelResponded(TAG.at_step(step), self.scheduler.now(), ModelResponse(parts, FinishReason.TOOL_CALLS)))

    def answers(self, text: str = "done", step: int = 1) -> None:
        self.say(ModelResponded(TAG.at_step(step), self.scheduler.now(), ModelResponse((Text(text),))))

    @property
    def outcome(self) -> Outcome | None:
        finishes = [seen for seen in self.seen if isinstance(seen, Finish)]
        assert len(finishes) <= 1
        return finishes[0].outcome if finishes else None


class Gives:
    """A session that answers its first event with these commands."""

    step = STEP

    def __init__(self, *given: Command) -> None:
        self._given = given

    def apply(self, event: Any) -> tuple[Command, ...]:
        given, self._given = self._given, ()
        return given

    def to_journal(self, event: Any) -> tuple[Event, ...]:
        return (event,)


CALL = STEP._replace(call_id=CallId("c"))
WHO_IS_TOLD: list[tuple[Command, set[str]]] = [
    (CallModel(STEP, ModelRequest("p/m", ()), 9.0), {"llm StartModel", "telemetry CallModel"}),
    (StopModel(STEP), {"llm StopModel"}),
    (
        RunTool(CALL, ToolName("look"), "{}", 9.0, "e"),
        {"dispatcher DispatchCall", "telemetry RunTool", "subscriber RunTool"},
    ),
    (CancelTool(CALL), {"dispatcher CancelTool"}),
    (
        AskApproval(CALL, ToolName("look"), "{}", Risk.WRITE),
        {"dispatcher SeekApproval", "telemetry AskApproval", "subscriber AskApproval"},
    ),
    (
        ReportFailure(CALL, ToolFailure(ToolName("look"), FailureCode.DENIED, "no")),
        {"telemetry ReportFailure", "subscriber ReportFailure"},
    ),
    (WithdrawApproval(CALL), {"dispatcher WithdrawApproval"}),
    (SetTimer(STEP, 9.0), set()),
    (ClearTimer(STEP), set()),
    (Note(STEP, "look"), {"telemetry Note", "subscriber Note"}),
    (
        CallOutside(CALL, ToolCall(CallId("c"), ToolName("mine"), "{}")),
        {"telemetry CallOutside", "subscriber CallOutside"},
    ),
    (RecordStep(STEP, ()), {"record UserMessage"}),
    (RecordCompaction(STEP, Compacted()), {"record Compacted"}),
    (Finish(TAG, Outcome.FAILED, "", Usage(), 0.0, ()), {"telemetry Finish", "subscriber Finish"}),
]


@pytest.mark.parametrize(("command", "who"), WHO_IS_TOLD, ids=[type(command).__name__ for command, _ in WHO_IS_TOLD])
def test_every_command_of_the_protocol_is_carried_out(simulated: ActorSystem, command: Command, who: set[str]) -> None:
    assert {type(each) for each, _ in WHO_IS_TOLD} == set(get_args(Command))
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    told = {name: Probed(simulated, name) for name in ("llm", "dispatcher", "telemetry")}
    shown: list[Any] = []
    recorded: list[Any] = []
    question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m"), 0.0, Context())
    peers = Peers(*(each.ref for each in told.values()))

    def record(given: tuple[Message, ...] | Compacted, _: RequestId) -> None:
        recorded.extend(given if isinstance(given, tuple) else (given,))

    simulated.spawn(
        lambda: RequestSession(question, peers, shown.append, record, lambda: Gives(command)), "session"
    ).tell(ToolsOffered(TAG, ()))
    simulated.scheduler.run_until_idle(0.0)
    observed = [what for message in told["telemetry"].of(Observed) for what in message.happened]
    heard = {f"{name} {kind}" for name in ("llm", "dispatcher") for kind in told[name].kinds()}
    heard |= {f"telemetry {type(what).__name__}" for what in observed}
    heard |= {f"subscriber {type(seen).__name__}" for seen in shown} | {f"record {type(r).__name__}" for r in recorded}
    always = {"dispatcher OfferTools", "telemetry Question", "subscriber RequestStarted"}
    assert heard == always | who


def test_who_does_not_read_along_hears_only_notes_and_how_the_request_ended(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    shown: list[Any] = []
    peers = Peers(*(Probed(simulated, name).ref for name in ("llm", "dispatcher", "telemetry")))
    options = RequestOptions("p/m")
    question = Question(TAG, (), UserMessage.of("go"), options, 0.0, Context(), is_read_along=False)
    start = partial(RequestSession, question, peers, shown.append, lambda messages: None)
    ref = simulated.spawn(start, "session")
    ref.tell(ToolsOffered(TAG, ()))
    ref.tell(ModelNoted(STEP, 0.0, NoteKind.RETRY, "busy", 1))
    ref.tell(ModelFailed(STEP, 0.0, Error(ErrorKind.AUTHENTICATION, "a wrong key")))
    simulated.scheduler.run_until_idle(0.0)
    assert [type(seen) for seen in shown] == [Note, ModelFailed, Finish]


def test_a_request_without_calls(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    (asked,) = scene.told("llm", StartModel)
    assert asked.call.tag == STEP
    assert asked.reply_to is scene.ref
    scene.say(ModelStreamed(STEP, 0.0, (TextDelta("do"),)))
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED
    assert [type(message).__name__ for message in scene.recorded] == ["UserMessage", "AssistantMessage"]
    assert not scene.ref.is_alive()
    assert type(scene.seen[0]) is RequestStarted
    assert type(scene.seen[-1]) is Finish


def test_the_question_is_recorded_with_the_first_step_or_not_at_all(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.say(ModelFailed(STEP, 0.0, Error(ErrorKind.SERVER, "down")))
    assert scene.outcome is Outcome.FAILED
    assert scene.recorded == []


def test_calls_approvals_and_what_telemetry_hears(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.calls(("a", "look"), ("b", "write"))
    (sent,) = scene.told("dispatcher", DispatchCall)
    (asked,) = scene.told("dispatcher", SeekApproval)
    assert (sent.run.name, sent.user_text, asked.question.name) == ("look", "go", "write")
    a, b = STEP._replace(call_id=CallId("a")), STEP._replace(call_id=CallId("b"))
    scene.say(ToolCallStarted(a, 0.0), ApprovalDenied(b, 0.0, "me", "no"), ToolCallCompleted(a, 0.0, '"x"'))
    assert len(scene.told("llm", StartModel)) == 2
    scene.answers(step=2)
    assert scene.outcome is Outcome.ANSWERED
    kinds = [type(what).__name__ for observed in scene.told("telemetry", Observed) for what in observed.happened]
    assert kinds[0] == "Question"
    assert kinds.count("CallModel") == 2
    assert kinds.count("RunTool") == kinds.count("ToolCallCompleted") == kinds.count("Finish") == 1
    assert "ModelStreamed" not in kinds
    assert {type(seen) for seen in scene.seen} >= {RunTool, AskApproval}


def test_cancelling_stops_the_model(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.say(CancelRequested(TAG, 0.0, "enough"))
    assert scene.outcome is Outcome.CANCELLED
    assert scene.told("llm", StopModel) == [StopModel(STEP)]


def test_cancelling_stops_tools_and_withdraws_questions(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.calls(("a", "look"), ("b", "write"))
    scene.say(CancelRequested(TAG, 0.0, "enough"))
    assert [command.tag.call_id for command in scene.told("dispatcher", CancelTool)] == ["a"]
    assert [command.tag.call_id for command in scene.told("dispatcher", WithdrawApproval)] == ["b"]
    assert [type(message).__name__ for message in scene.recorded][-2:] == ["ToolMessage", "ToolMessage"]


def test_a_cancel_before_the_tools_are_offered_is_not_lost(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    scene.say(CancelRequested(TAG, 0.0, "at once"))
    assert scene.outcome is Outcome.CANCELLED
    assert not scene.ref.is_alive()


def test_a_strangers_cancel_before_the_offers_changes_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    scene.say(CancelRequested(Tag(RequestId("other"), MessageId("m")), 0.0, "not yours"))
    assert scene.seen == []
    assert simulated.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}
    scene.say(ToolsOffered(TAG, STANDARD_TOOLS))
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


def test_a_cancel_overtakes_a_full_mailbox(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    noise = ToolCallCompleted(STEP._replace(call_id=CallId("noise")), 0.0, '"x"')
    for _ in range(scene.ref._cell.mailbox.capacity):
        scene.ref.tell(noise)
    with pytest.raises(MailboxFull):
        scene.ref.tell(noise)
    scene.ref.tell_control(CancelRequested(TAG, 0.0, "enough"))
    scene.run()
    assert scene.outcome is Outcome.CANCELLED
    counts = simulated.dead_letters.counts()
    assert counts[DeadLetterReason.STOPPED] >= counts.get(DeadLetterReason.REJECTED, 0)
    assert scene.ends, "the noise did not have to be handled first"


def test_the_deadline_ends_a_request_that_nobody_answers(simulated: ActorSystem) -> None:
    scene = Scene(simulated, timeout_seconds=10.0)
    scene.run(9.9)
    assert scene.outcome is None
    scene.run(10.1)
    assert scene.outcome is Outcome.TIMED_OUT


def test_illegal_events_are_dead_letters_with_their_reason(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    nobodys = ToolCallCompleted(STEP._replace(call_id=CallId("nobody's")), 0.0, '"x"')
    stale = ModelResponded(TAG.at_step(7), 0.0, ModelResponse())
    scene.say(nobodys, stale)
    letters = [letter for letter in simulated.dead_letters.list() if letter.reason is DeadLetterReason.REJECTED]
    assert [letter.message for letter in letters] == [nobodys, stale]
    assert "ToolCallCompleted is illegal in state calling_model" in letters[0].note
    assert "step 7" in letters[1].note
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


def test_a_lost_llm_manager_is_asked_again(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.strike("llm")
    first, second = scene.told("llm", StartModel)
    assert (first.call.tag, second.call.tag) == (STEP, TAG.at_step(2))
    assert first.call.request == second.call.request
    scene.answers(step=2)
    assert scene.outcome is Outcome.ANSWERED


def test_the_next_dispatcher_gets_the_open_calls_again_and_none_is_given_up(simulated: ActorSystem) -> None:
    """The ledger and the workers outlive a dispatcher: what has begun goes on, and it knows which calls those are."""
    scene = Scene(simulated)
    scene.calls(("a", "look"), ("b", "look"), ("c", "look"))
    scene.say(ToolCallStarted(STEP._replace(call_id=CallId("a")), 0.0))
    scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("c")), 0.0, "3"))
    scene.strike("dispatcher")
    sent = [message.run.tag.call_id for message in scene.told("dispatcher", DispatchCall)]
    assert sent == ["a", "b", "c", "a", "b"]
    scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("a")), 0.0, "1"))
    scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("b")), 0.0, "2"))
    scene.answers()
    assert [message.content for message in scene.recorded if isinstance(message, ToolMessage)] == ["1", "2", "3"]


@pytest.mark.parametrize(("has_begun", "code"), [(False, "internal_error"), (True, "outcome_unknown")])
def test_a_call_that_several_dispatchers_did_not_outlive_ends_as_our_fault(
    simulated: ActorSystem, has_begun: bool, code: str
) -> None:
    """One that has begun may go on in its worker, and have its effect yet: nobody says that it had none."""
    scene = Scene(simulated)
    scene.calls(("a", "look"))
    if has_begun:
        scene.say(ToolCallStarted(STEP._replace(call_id=CallId("a")), 0.0))
    for _ in range(MAX_CALL_SENDS):
        scene.strike("dispatcher")
    assert len(scene.told("dispatcher", DispatchCall)) == MAX_CALL_SENDS
    assert [message.tag.call_id for message in scene.told("dispatcher", CancelTool)] == ["a"]
    scene.answers()
    (result,) = [message.content for message in scene.recorded if isinstance(message, ToolMessage)]
    assert orjson.loads(result)["code"] == code


def test_a_dispatcher_lost_before_it_offered_is_asked_again(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    scene.offers = True
    scene.strike("dispatcher")
    assert len(scene.told("dispatcher", OfferTools)) == 2
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


def test_a_session_that_never_hears_of_tools_gives_up(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    for _ in range(MAX_CALL_SENDS):
        scene.strike("dispatcher")
    (down,) = scene.ends
    assert "before one said which tools" in str(down.error)


def test_a_holder_that_has_stopped_permanently_ends_the_session_at_once(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    simulated.ref("root").stop()
    scene.run(scene.scheduler.now() + 1.0)
    (down,) = scene.ends
    assert "has stopped permanently" in str(down.error)


@pytest.mark.parametrize("name", ["llm", "dispatcher", "telemetry"])
def test_losing_somebody_who_holds_nothing_changes_nothing(simulated: ActorSystem, name: str) -> None:
    scene = Scene(simulated)
    if name == "llm":
        scene.calls(("a", "look"))
    scene.strike(name)
    if name == "llm":
        scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("a")), 0.0, '"x"'))
    scene.answers(step=2 if name == "llm" else 1)
    assert scene.outcome is Outcome.ANSWERED


def test_telemetry_that_cannot_keep_up_steers_nothing(simulated: ActorSystem) -> None:
    crowded = simulated.spawn(lambda: Probe([]), "crowded", capacity=1)
    llm, dispatcher = Probed(simulated, "llm"), Probed(simulated, "dispatcher")
    seen: list[Any] = []
    question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m"), 0.0, Context())
    peers = Peers(llm.ref, dispatcher.ref, crowded)
    ref = simulated.spawn(lambda: RequestSession(question, peers, seen.append, lambda _: None), "session")
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    simulated.scheduler.run_until_idle(0.0)
    for _ in range(2):
        crowded._cell.mailbox.put("full")
    ref.tell_control(ToolsOffered(TAG, ()))
    simulated.scheduler.run_until_idle(0.0)
    assert llm.kinds() == ["StartModel"]
    assert [type(each) for each in seen] == [RequestStarted]
    assert CallModel not in {type(each) for each in seen}


# -- what fails costs this request, and names what failed


def raising(error: BaseException) -> Callable[[Any], object]:
    def fail(_: Any) -> object:
        raise error

    return fail


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_a_subscriber_that_raises_costs_its_reader_the_events_and_the_request_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated, subscriber=raising(Unspeakable()))
    scene.calls(("a", "look"))
    scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("a")), 0.0, '"x"'))
    scene.answers(step=2)
    assert [type(seen) for seen in scene.seen] == [RequestStarted, Finish], "it is told of the end all the same"
    assert scene.outcome is Outcome.ANSWERED
    assert simulated.dead_letters.counts() == {}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Unspeakable()])
def test_a_record_that_raises_ends_the_request_with_its_name_and_stops_its_work(
    simulated: ActorSystem, error: Exception
) -> None:
    scene = Scene(simulated, record=raising(error))
    scene.calls(("a", "look"))
    scene.say(ToolCallCompleted(STEP._replace(call_id=CallId("a")), 0.0, '"x"'))
    (down,) = scene.ends
    assert isinstance(down.error, RuntimeFailure)
    assert str(down.error).startswith("internal_error: carrying out RecordStep failed: ")
    assert type(error).__name__ in str(down.error)


def test_a_history_that_is_not_legal_ends_the_request_at_once(simulated: ActorSystem) -> None:
    """The caller waited without end."""
    orphan = ToolMessage(CallId("c"), ToolName("look"), "1")
    scene = Scene(simulated, history=(orphan,))
    (down,) = scene.ends
    assert "could not begin" in str(down.error)
    assert "follows no turn that asked for it" in str(down.error)


def test_telemetry_that_has_stopped_permanently_steers_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    stop_child(simulated.ref("root"), "telemetry")
    scene.run()
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


def test_the_work_of_a_session_that_is_killed_is_stopped(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.calls(("a", "look"), ("b", "write"))
    scene.ref._cell.kill()
    scene.run()
    assert scene.told("dispatcher", CancelTool) == [CancelTool(STEP._replace(call_id=CallId("a")))]
    assert scene.told("dispatcher", WithdrawApproval) == [WithdrawApproval(STEP._replace(call_id=CallId("b")))]
    assert scene.told("llm", StopModel) == [], "its answer was there"
    assert scene.outcome is None


def test_the_model_call_of_a_session_that_is_killed_is_stopped(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.ref._cell.kill()
    scene.run()
    assert scene.told("llm", StopModel) == [StopModel(STEP)]


def test_a_lost_manager_is_told_to_stop_what_may_wait_in_its_mailbox(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.strike("llm")
    scene.run()
    kinds = [message for message in scene.heard["llm"] if isinstance(message, StartModel | StopModel)]
    assert [(type(message).__name__, getattr(message, "call", message).tag.step) for message in kinds] == [
        ("StartModel", 1),
        ("StopModel", 1),
        ("StartModel", 2),
    ]


# -- the deadline runs from the question


def test_the_time_before_the_tools_are_offered_counts(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False, timeout_seconds=10.0)
    scene.run(9.0)
    scene.say(ToolsOffered(TAG, STANDARD_TOOLS))
    (asked,) = scene.told("llm", StartModel)
    assert asked.call.deadline_at == scene.asked_at + 10.0
    scene.run(10.1)
    assert scene.outcome is Outcome.TIMED_OUT


def test_the_deadline_ends_a_request_whose_tools_are_never_offered(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False, timeout_seconds=10.0)
    scene.run(9.9)
    assert scene.outcome is None
    scene.run(10.1)
    assert scene.outcome is Outcome.TIMED_OUT
    assert not scene.ref.is_alive()


def test_offers_that_come_twice_are_refused(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.say(ToolsOffered(TAG, ()))
    assert simulated.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


# -- the end of a cancelled request


def test_a_cancelled_request_is_answered_when_its_tools_were_told_to_stop(simulated: ActorSystem) -> None:
    scene = Scene(simulated, confirms=False)
    scene.calls(("a", "look"))
    scene.say_now(CancelRequested(TAG, 0.0, "enough"))
    kinds = [type(message).__name__ for message in scene.heard["dispatcher"]]
    assert kinds[-2:] == ["CancelTool", "ConfirmStops"]
    assert scene.outcome is None
    scene.say_now(StopsTold(TAG))
    assert scene.outcome is Outcome.CANCELLED
    assert not scene.ref.is_alive()


def test_a_dispatcher_that_does_not_confirm_holds_it_up_for_a_moment_only(simulated: ActorSystem) -> None:
    scene = Scene(simulated, confirms=False)
    scene.calls(("a", "look"))
    scene.say_now(CancelRequested(TAG, 0.0, "enough"))
    began = scene.scheduler.now()
    scene.run(began + STOPS_TOLD_SECONDS - 0.1)
    assert scene.outcome is None
    scene.run(began + STOPS_TOLD_SECONDS + 0.1)
    assert scene.outcome is Outcome.CANCELLED


def test_a_dispatcher_lost_while_it_should_confirm_changes_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated, confirms=False)
    scene.calls(("a", "look"))
    scene.say_now(CancelRequested(TAG, 0.0, "enough"))
    scene.strike("dispatcher")
    assert scene.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("offers", [True, False])
def test_a_session_that_is_asked_to_stop_cancels_its_request(simulated: ActorSystem, offers: bool) -> None:
    scene = Scene(simulated, offers=offers)
    stop_child(scene.sessions, "r")
    scene.run()
    (finish,) = [seen for seen in scene.seen if isinstance(seen, Finish)]
    assert (finish.outcome, finish.reason) == (Outcome.CANCELLED, STOPPING)
    assert not scene.ref.is_alive()


def test_a_session_that_is_asked_to_stop_waits_for_its_tools(simulated: ActorSystem) -> None:
    scene = Scene(simulated, confirms=False)
    scene.calls(("a", "look"))
    stop_child(scene.sessions, "r")
    scene.run(scene.scheduler.now())
    assert scene.outcome is None
    scene.say_now(StopsTold(TAG))
    assert scene.outcome is Outcome.CANCELLED
    assert not scene.ref.is_alive()


# -- the asker's context


def test_the_askers_context_goes_with_the_work(simulated: ActorSystem) -> None:
    colours: list[str] = []
    tags: list[Tag] = []

    def subscriber(_: Any) -> None:
        colours.append(COLOUR.get())
        work = WORK.get()
        assert work is not None
        tags.append(work[0])

    scene = Scene(simulated, subscriber=subscriber)
    scene.calls(("a", "look"), ("b", "write"))
    contexts = [
        *(message.asker for message in scene.told("llm", StartModel)),
        *(message.asker for message in scene.told("dispatcher", DispatchCall)),
        *(message.asker for message in scene.told("dispatcher", SeekApproval)),
        *(message.context for message in scene.told("telemetry", Observed)),
    ]
    assert len(contexts) >= 4
    assert {context[COLOUR] for context in contexts} == {"red"}
    assert all(context is not scene.asker for context in contexts), "a context can be entered only once at a time"
    assert set(colours) == {"red"}
    assert set(tags) == {TAG}
    (call,) = scene.told("dispatcher", DispatchCall)
    assert call.asker[WORK][:2] == (STEP._replace(call_id=CallId("a")), "look")


# -- answers of a form


class LateCheck:
    """Checks when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], Told]] = []

    def check(self, texts: tuple[str, ...], tell: Told) -> None:
        self.asked.append((texts, tell))


def answered(text: str, step: Tag = STEP) -> ModelResponded:
    return ModelResponded(step, 0.0, ModelResponse((Text(text),), usage=Usage(1, 1)), 0.0)


def test_a_turn_reaches_the_protocol_session_when_its_answers_were_checked(simulated: ActorSystem) -> None:
    check = LateCheck()
    scene = Scene(simulated, checker=check, output=OutputSpec({"type": "object"}))
    scene.ref.tell(answered("{}"))
    scene.run(0.0)
    ((texts, tell),) = check.asked
    assert texts == ("{}",)
    assert not scene.recorded
    tell((Checked(),))
    scene.run()
    assert scene.recorded[-1] == AssistantMessage((Text("{}"),))
    assert len(scene.ends) == 1


def test_a_check_that_comes_too_late_is_a_dead_letter(simulated: ActorSystem) -> None:
    """The request was cancelled meanwhile; or its model call was lost, and another one is asked."""
    check = LateCheck()
    scene = Scene(simulated, checker=check, output=OutputSpec({"type": "object"}))
    scene.ref.tell(answered("{}"))
    scene.run(0.0)
    scene.ref.tell_control(CancelRequested(TAG, 0.0, "enough"))
    scene.run()
    check.asked[0][1]((Checked(),))
    scene.run()
    assert len(scene.ends) == 1
    assert scene.recorded == []
    assert any("AnswersChecked" in type(letter.message).__name__ for letter in simulated.dead_letters.list())


def test_the_answer_of_a_lost_call_is_not_taken(simulated: ActorSystem) -> None:
    check = LateCheck()
    scene = Scene(simulated, checker=check, output=OutputSpec({"type": "object"}))
    scene.ref.tell(answered("{}"))
    scene.run(0.0)
    scene.system.ref("root/llm").tell("crash")
    scene.run(scene.scheduler.now() + 60)
    check.asked[0][1]((Checked(),))
    scene.run(scene.scheduler.now() + 60)
    assert scene.recorded == []
    assert any("AnswersChecked" in type(letter.message).__name__ for letter in simulated.dead_letters.list())
