"""The session actor: it carries events in and commands out, to the right people, whoever of them is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.probes import Probe, Probed

from callboard.actors.calls.dispatcher import DispatchCall, OfferTools, SeekApproval, ToolsOffered
from callboard.actors.kernel import (
    ActorSystem,
    ChildSpec,
    DeadLetterReason,
    MailboxFull,
    Restart,
    SimulatedScheduler,
    Supervisor,
)
from callboard.actors.kernel import start_child as start
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.requests.request_session import _CARRIERS, MAX_OFFER_REQUESTS, Peers, Question, RequestSession
from callboard.actors.telemetry.telemetry import CommandIssued
from callboard.protocol import commands
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    Finish,
    Outcome,
    RunTool,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import AssistantPart, Message, Text, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    ApprovalDenied,
    CancelRequested,
    ModelFailed,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, FinishReason, ModelResponse, TextDelta
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.scenario import STANDARD_TOOLS

TAG = Tag(RequestId("r"), MessageId("m"))
STEP = TAG.at_step(1)


class Scene:
    """A session whose peers are probes under a supervisor; the test plays them."""

    def __init__(self, system: ActorSystem, offers: bool = True, **options: Any) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.system, self.scheduler = system, system.scheduler
        self.heard: dict[str, list[Any]] = {"llm": [], "dispatcher": [], "telemetry": []}
        self.offers = offers
        specs = [ChildSpec(name, partial(Probe, heard, self._react)) for name, heard in self.heard.items()]
        system.spawn(lambda: Supervisor(specs, intensity=99, chance=lambda: 0.0), "root")
        self.sessions = system.spawn(Supervisor, "sessions")
        self.run(0.0)
        self.seen: list[Any] = []
        self.recorded: list[Message] = []
        peers = Peers(*(system.ref(f"root/{name}") for name in ("llm", "dispatcher", "telemetry")))
        question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m", **options))
        make = partial(RequestSession, question, peers, self.seen.append, self.recorded.extend)
        self.ref = start(self.sessions, ChildSpec("r", make, restart=Restart.TEMPORARY))
        self.ends: list[Any] = []
        system.watch(self.ref, self.ends.append)
        self.run(0.0)

    def _react(self, probe: Probe, message: Any) -> None:
        if message == "crash":
            raise RuntimeError("struck")
        if isinstance(message, OfferTools) and self.offers:
            message.reply_to.tell_control(ToolsOffered(message.tag, STANDARD_TOOLS))

    def run(self, until_seconds: float | None = None) -> None:
        self.scheduler.run_until_idle(self.scheduler.now() if until_seconds is None else until_seconds)

    def say(self, *events: Any) -> None:
        for event in events:
            self.ref.tell(event)
        self.run()

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


def test_every_command_of_the_protocol_has_its_carrier() -> None:
    assert set(_CARRIERS) == set(commands.Command.__args__)


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
    a, b = STEP.for_call(CallId("a")), STEP.for_call(CallId("b"))
    scene.say(ToolCallStarted(a, 0.0), ApprovalDenied(b, 0.0, "me", "no"), ToolCallCompleted(a, 0.0, '"x"'))
    assert len(scene.told("llm", StartModel)) == 2
    scene.answers(step=2)
    assert scene.outcome is Outcome.ANSWERED
    kinds = [
        type(message.command).__name__ if isinstance(message, CommandIssued) else type(message).__name__
        for message in scene.heard["telemetry"]
    ]
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
    noise = ToolCallCompleted(STEP.for_call(CallId("noise")), 0.0, '"x"')
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
    nobodys = ToolCallCompleted(STEP.for_call(CallId("nobody's")), 0.0, '"x"')
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


def test_a_lost_dispatcher_gets_the_calls_that_had_not_begun(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.calls(("a", "look"), ("b", "look"))
    scene.say(ToolCallStarted(STEP.for_call(CallId("a")), 0.0))
    scene.strike("dispatcher")
    sent = [message.run.tag.call_id for message in scene.told("dispatcher", DispatchCall)]
    assert sent == ["a", "b", "b"]


def test_a_dispatcher_lost_before_it_offered_is_asked_again(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    scene.offers = True
    scene.strike("dispatcher")
    assert len(scene.told("dispatcher", OfferTools)) == 2
    scene.answers()
    assert scene.outcome is Outcome.ANSWERED


def test_a_session_that_never_hears_of_tools_gives_up(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    for _ in range(MAX_OFFER_REQUESTS):
        scene.strike("dispatcher")
    (down,) = scene.ends
    assert "before one said which tools" in str(down.error)


def test_a_holder_that_is_dead_for_good_ends_the_session_at_once(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    simulated.ref("root").stop()
    scene.run(scene.scheduler.now() + 1.0)
    (down,) = scene.ends
    assert "dead for good" in str(down.error)


@pytest.mark.parametrize("name", ["llm", "dispatcher", "telemetry"])
def test_losing_somebody_who_holds_nothing_changes_nothing(simulated: ActorSystem, name: str) -> None:
    scene = Scene(simulated)
    if name == "llm":
        scene.calls(("a", "look"))
    scene.strike(name)
    if name == "llm":
        scene.say(ToolCallCompleted(STEP.for_call(CallId("a")), 0.0, '"x"'))
    scene.answers(step=2 if name == "llm" else 1)
    assert scene.outcome is Outcome.ANSWERED


def test_telemetry_that_cannot_keep_up_steers_nothing(simulated: ActorSystem) -> None:
    crowded = simulated.spawn(lambda: Probe([]), "crowded", capacity=1)
    llm, dispatcher = Probed(simulated, "llm"), Probed(simulated, "dispatcher")
    seen: list[Any] = []
    question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m"))
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
