"""Writing ahead: a session applies at once, and shows and does what follows when that is durable."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.probes import Probe

from callboard.actors.calls.approvals import SeekApproval
from callboard.actors.calls.dispatcher import (
    ConfirmStops,
    DispatchCall,
    OfferTools,
    StopsTold,
    ToolsOffered,
)
from callboard.actors.journal.journal_records import Write
from callboard.actors.journal.outbox import AppendWrite, NotWritten, Outbox, Written
from callboard.actors.kernel import ActorSystem, ChildSpec, Down, ExitReason, Restart, Supervisor, stop_child
from callboard.actors.kernel import start_child as start
from callboard.actors.kernel.reply import Reply
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.outside import ResolveCall
from callboard.actors.requests.replies import STOPPING, SUSPENDED, Question
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.session_messages import Peers, Record
from callboard.actors.requests.write_ahead import SECOND_LOOK_SECONDS, WRITTEN_WITHIN_SECONDS, WriteAhead
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.commands import (
    CancelTool,
    Finish,
    Note,
    NoteKind,
    Outcome,
    ReportFailure,
    RunTool,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import AssistantMessage, AssistantPart, Message, Text, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind, RuntimeFailure
from callboard.protocol.events import (
    ApprovalGranted,
    CancelRequested,
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    NoticeCame,
    RequestStarted,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelResponse, TextDelta
from callboard.protocol.options import RequestOptions
from callboard.protocol.policy import Decision
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.tools import FailureCode, ToolFailure

TAG = Tag(RequestId("r"), MessageId("m"))
STEP = TAG.at_step(1)
WALL = 1_000_000.0
FULL = "the disk is full; make room"
ASKED = next(offer.definition.name for offer in STANDARD_TOOLS if offer.decision is Decision.ASK)
FREE = next(offer.definition.name for offer in STANDARD_TOOLS if offer.decision is Decision.ALLOW)


def call(call_id: str, step: int = 1) -> Tag:
    return TAG.at_step(step)._replace(call_id=CallId(call_id))


class Scene:
    """A session whose peers are probes; the test is its journal, and says when what is durable."""

    def __init__(
        self,
        system: ActorSystem,
        *,
        journal: bool = True,
        conversation: Conversation | None = None,
        outbox: Outbox | None = None,
        subscriber: Callable[[Any], object] = lambda seen: None,
        request_id: str = "r",
        offers: bool = True,
        record: Record | None = None,
        **options: Any,
    ) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.system, self.scheduler = system, system.scheduler
        self.heard: dict[str, list[Any]] = {"llm": [], "dispatcher": [], "telemetry": []}
        self._subscriber, self._offers = subscriber, offers
        specs = [ChildSpec(name, partial(Probe, heard, self._react)) for name, heard in self.heard.items()]
        self.root = system.spawn(lambda: Supervisor(specs, intensity=99, chance=lambda: 0.0), f"root-{request_id}")
        self.sessions = system.spawn(Supervisor, f"sessions-{request_id}")
        self.run()
        peers = Peers(*(system.ref(f"root-{request_id}/{name}") for name in ("llm", "dispatcher", "telemetry")))
        self.seen: list[Any] = []
        self.outbox = outbox or Outbox("test", wall_clock=lambda: WALL + self.scheduler.now())
        self.conversation = conversation or Conversation()
        self.conversation.take(RequestId(request_id))
        tag = TAG._replace(request_id=RequestId(request_id))
        question = Question(
            tag,
            self.conversation.messages,
            UserMessage.of("go"),
            RequestOptions("p/m", **options),
            self.scheduler.now(),
            Context(),
            compacted=self.conversation.compacted,
        )
        self.ahead = WriteAhead(question, self.conversation, self.outbox) if journal else None
        make = partial(
            RequestSession,
            question,
            peers,
            self._see,
            record or self.conversation.record,
            ahead=self.ahead,
        )
        self.ref = start(self.sessions, ChildSpec(request_id, make, restart=Restart.TEMPORARY))
        self.downs: list[Down] = []
        system.watch(self.ref, self.downs.append)
        self.durable: list[Write] = []
        self.run()

    def _see(self, seen: Any) -> None:
        self.seen.append(seen)
        self._subscriber(seen)

    def _react(self, probe: Probe, message: Any) -> None:
        if message == "crash":
            raise RuntimeError("struck")
        if isinstance(message, OfferTools) and self._offers:
            message.reply_to.tell_control(ToolsOffered(message.tag, STANDARD_TOOLS))
        if isinstance(message, ConfirmStops):
            message.reply_to.tell_control(StopsTold(message.tag))

    def run(self, seconds: float = 0.0) -> None:
        self.scheduler.run_until_idle(self.scheduler.now() + seconds)

    def say(self, *events: Any) -> None:
        for event in events:
            self.ref.tell(event)
        self.run()

    def turn(self, *calls: tuple[str, ToolName], text: str = "done", step: int = 1) -> ModelResponded:
        parts: tuple[AssistantPart, ...] = tuple(ToolCall(CallId(own), name, "{}") for own, name in calls)
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return ModelResponded(TAG.at_step(step), self.scheduler.now(), ModelResponse(parts or (Text(text),), reason))

    # -- the journal

    @property
    def waiting(self) -> list[Write]:
        return [each.change for each in self.outbox.look(1_000) if isinstance(each, AppendWrite)]

    def commit(self, count: int = 1_000) -> None:
        """The oldest writes become durable, as one batch."""
        batch = self.outbox.look(count)
        self.outbox.drop(len(batch))
        writes = [each for each in batch if isinstance(each, AppendWrite)]
        self.durable += [each.change for each in writes]
        addressed = [each for each in writes if each.reply_to is not None]
        if addressed and addressed[-1].reply_to is not None:
            last = addressed[-1].change
            addressed[-1].reply_to.tell_control(Written(last.request_id, last.number + len(last.events) - 1))
        self.run()

    def fails(self) -> None:
        """What waits is not written."""
        self.outbox.drop(len(self.outbox.look(1_000)))
        self.ref.tell_control(NotWritten(RequestId("r"), FULL))
        self.run()

    @property
    def written(self) -> list[Event]:
        """The durable events, by the runtime's clock."""
        return [event for write in self.durable for event in write.events]

    # -- what came of it

    def told(self, name: str, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard[name] if isinstance(message, kind)]

    @property
    def finishes(self) -> list[Finish]:
        return [seen for seen in self.seen if isinstance(seen, Finish)]

    @property
    def actions(self) -> list[Any]:
        """All that others have seen of it, but for times and contexts."""
        orders = [
            each.run if isinstance(each, DispatchCall) else each.call if isinstance(each, StartModel) else each
            for each in [*self.heard["llm"], *self.heard["dispatcher"]]
            if not isinstance(each, OfferTools | SeekApproval | ConfirmStops)
        ]
        return [*self.seen, *orders, *self.conversation.messages]


def test_the_intent_is_durable_before_the_work_the_outcome_before_the_model_and_the_answer_before_the_asker(
    simulated: ActorSystem,
) -> None:
    scene = Scene(simulated)
    assert [type(write.events[0]) for write in scene.waiting] == [RequestStarted]
    assert not scene.told("llm", StartModel)
    assert not scene.seen
    scene.commit()
    assert len(scene.told("llm", StartModel)) == 1
    scene.say(scene.turn(("c", FREE)))
    assert not scene.told("dispatcher", DispatchCall)
    scene.commit()
    assert len(scene.told("dispatcher", DispatchCall)) == 1
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallCompleted(call("c"), 2.0, "7"))
    assert not [seen for seen in scene.seen if isinstance(seen, ToolCallStarted)]
    assert len(scene.told("llm", StartModel)) == 1
    assert not scene.conversation.messages
    scene.commit(1)
    assert [type(seen) for seen in scene.seen][-1] is ToolCallStarted
    assert len(scene.told("llm", StartModel)) == 1
    scene.commit()
    assert len(scene.told("llm", StartModel)) == 2
    assert len(scene.conversation.messages) == 3
    scene.say(scene.turn(step=2))
    assert not scene.finishes
    assert not scene.downs
    scene.commit()
    assert [finish.outcome for finish in scene.finishes] == [Outcome.ANSWERED]
    assert [down.reason for down in scene.downs] == [ExitReason.NORMAL]
    numbers = [write.number for write in scene.durable]
    assert numbers == list(range(1, len(scene.written) + 1))


def play(scene: Scene, durable: Callable[[], int]) -> None:
    """A request with parallel calls, streamed text, notes and a notice; between all of it `durable` writes commit."""

    def go_on() -> None:
        if count := durable():
            scene.commit(count)

    def wait(kind: type[Any], step: int) -> None:
        """Nobody answers what was not asked."""
        while scene.ahead is not None and not [
            each for each in scene.heard["llm"] if isinstance(each, StartModel) and each.call.tag.step == step
        ]:
            scene.commit(1)

    go_on()
    wait(StartModel, 1)
    calls = (("x", FREE), ("y", FREE), ("z", FREE))
    for event in (
        ModelNoted(STEP, 1.0, NoteKind.RETRY, "again", 2),
        ModelStreamed(STEP, 1.0, (TextDelta("so "),)),
        scene.turn(*calls),
    ):
        scene.say(event)
        go_on()
    while scene.ahead is not None and len(scene.told("dispatcher", DispatchCall)) < len(calls):
        scene.commit(1)
    for event in (
        ToolCallStarted(call("y"), 2.0),
        ToolCallStarted(call("x"), 2.0),
        ToolCallCompleted(call("y"), 3.0, "2"),
        NoticeCame(TAG, 3.0, "an edit was applied"),
        ToolCallFailed(call("z"), 3.0, ToolFailure(FREE, FailureCode.CRASHED, "gone")),
        ToolCallCompleted(call("x"), 4.0, "1"),
    ):
        scene.say(event)
        go_on()
    wait(StartModel, 2)
    scene.say(scene.turn(step=2))
    go_on()
    scene.commit()


def without_times(actions: list[Any]) -> list[Any]:
    return [replace(each, steps=()) if isinstance(each, Finish) else each for each in actions]


@given(st.lists(st.integers(0, 3), max_size=20))
def test_whenever_writes_become_durable_the_same_happens_in_the_same_order_and_only_then(turns: list[int]) -> None:
    plain = Scene(ActorSystem(SimulatedScheduler()), journal=False)
    play(plain, lambda: 0)

    def durable_before(seen: Any) -> None:
        if isinstance(seen, Event) and not isinstance(seen, ModelStreamed):
            kinds = [(type(event), event.tag) for event in scene.written]
            assert (type(seen), seen.tag) in kinds, f"{seen} was shown before it was durable"

    scene = Scene(ActorSystem(SimulatedScheduler()), subscriber=durable_before)
    left = iter(turns)
    play(scene, lambda: next(left, 0))
    assert without_times(scene.actions) == without_times(plain.actions)
    assert not [down.error for down in scene.downs if down.error is not None]
    rebuilt = Session.replay(scene.written)
    assert [each.text for each in rebuilt.resume_commands() if isinstance(each, Finish)] == ["done"]
    plain.scheduler.close()
    scene.scheduler.close()


def test_streamed_text_is_shown_at_once_and_in_its_order_where_something_waits(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    first, second = (ModelStreamed(STEP, 1.0, (TextDelta(text),)) for text in ("so", " it"))
    scene.say(first)
    assert scene.seen[-1] is first
    assert not scene.waiting
    scene.say(ModelNoted(STEP, 1.0, NoteKind.RETRY, "again", 2), second)
    assert scene.seen[-1] is first
    assert [type(event) for write in scene.waiting for event in write.events] == [ModelStreamed, ModelNoted]
    scene.commit()
    assert [type(seen) for seen in scene.seen[-3:]] == [ModelNoted, Note, ModelStreamed]
    assert scene.seen[-1] is second


def test_events_are_written_by_the_wall_clock(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.run(5.0)
    at = scene.scheduler.now()
    scene.say(replace(scene.turn(), first_event_at=at - 1.0))
    (write,) = scene.waiting
    (event,) = write.events
    assert isinstance(event, ModelResponded)
    assert (event.at, event.first_event_at) == (WALL + at, WALL + at - 1.0)
    assert write.ends is not None
    assert write.ends.ended_at == WALL + at


# -- peers that are lost while something waits


def test_a_manager_that_is_lost_before_it_was_sent_a_call_has_lost_none(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.system.ref("root-r/llm").tell_control("crash")
    scene.run(1.0)
    scene.commit()
    assert len(scene.told("llm", StartModel)) == 1
    assert not scene.waiting
    assert not [event for event in scene.written if isinstance(event, ModelLost)]


def test_a_manager_that_is_lost_with_a_call_costs_one_loss_that_is_written(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.system.ref("root-r/llm").tell_control("crash")
    scene.run(1.0)
    assert [type(event) for write in scene.waiting for event in write.events] == [ModelLost]
    assert len(scene.told("llm", StartModel)) == 1
    scene.commit()
    assert [order.call.tag.step for order in scene.told("llm", StartModel)] == [1, 2]


def test_a_manager_that_is_lost_after_its_answer_was_taken_costs_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.system.ref("root-r/llm").tell_control("crash")
    scene.run(1.0)
    scene.commit()
    assert len(scene.told("dispatcher", DispatchCall)) == 1
    assert not [event for event in scene.written if isinstance(event, ModelLost)]


def test_a_lost_dispatcher_is_not_sent_again_what_has_ended_or_was_decided(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("done", FREE), ("runs", FREE), ("granted", ASKED), ("later", FREE)))
    scene.commit()
    scene.say(
        ToolCallStarted(call("done"), 1.0),
        ToolCallStarted(call("later"), 1.0),
        ToolCallCompleted(call("done"), 2.0, "7"),
        ToolCallDeferred(call("later"), 2.0, 60.0),
        ApprovalGranted(call("granted"), 2.0, "you"),
    )
    before = {kind: len(scene.told("dispatcher", kind)) for kind in (DispatchCall, SeekApproval)}
    scene.system.ref("root-r/dispatcher").tell_control("crash")
    scene.run(1.0)
    again = scene.told("dispatcher", DispatchCall)[before[DispatchCall] :]
    assert [order.run.tag.call_id for order in again] == ["runs"]
    assert len(scene.told("dispatcher", SeekApproval)) == before[SeekApproval]
    scene.commit()
    sent = [order.run.tag.call_id for order in scene.told("dispatcher", DispatchCall)]
    assert sent == ["done", "runs", "later", "runs", "granted"]


def test_dispatchers_that_are_lost_while_a_cancellation_waits_do_no_harm(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    scene.say(CancelRequested(TAG, 1.0, "enough"))
    for _ in range(9):  # more than a call is sent again
        scene.system.ref("root-r/dispatcher").tell_control("crash")
        scene.run(1.0)
    scene.commit()
    scene.run(5.0)
    assert [finish.outcome for finish in scene.finishes] == [Outcome.CANCELLED]


# -- the end of the runtime


def stop(scene: Scene) -> None:
    stop_child(scene.sessions, "r")
    scene.run()


def test_a_stop_leaves_the_request_open_in_the_journal_and_stops_its_work(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    stop(scene)
    assert [(finish.outcome, finish.reason) for finish in scene.finishes] == [(Outcome.CANCELLED, SUSPENDED)]
    assert [down.reason for down in scene.downs] == [ExitReason.NORMAL]
    assert len(scene.told("dispatcher", CancelTool)) == 1
    assert not scene.waiting
    assert [type(event) for event in scene.written] == [RequestStarted, ModelResponded]
    assert all(write.ends is None for write in scene.durable)


def test_a_stop_waits_for_what_has_happened_and_begins_nothing_new(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallCompleted(call("c"), 2.0, "7"))
    stop(scene)
    assert not scene.downs, "the outcome is not durable yet"
    scene.commit()
    assert [down.reason for down in scene.downs] == [ExitReason.NORMAL]
    assert len(scene.told("llm", StartModel)) == 1
    assert len(scene.conversation.messages) == 3
    assert isinstance(scene.written[-1], ToolCallCompleted)


def test_a_stop_gives_the_answer_that_only_waited_to_be_written(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn())
    stop(scene)
    scene.commit()
    assert [finish.outcome for finish in scene.finishes] == [Outcome.ANSWERED]
    assert [down.reason for down in scene.downs] == [ExitReason.NORMAL]


def test_a_stop_before_anything_was_written_says_only_that_the_runtime_stops(simulated: ActorSystem) -> None:
    scene = Scene(simulated, offers=False)
    stop(scene)
    assert [(finish.outcome, finish.reason) for finish in scene.finishes] == [(Outcome.CANCELLED, STOPPING)]
    assert not scene.waiting


# -- failures


def test_a_write_that_fails_ends_the_request_with_its_reason_and_carries_out_nothing(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE), ("d", ASKED)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallCompleted(call("c"), 2.0, "7"))
    messages = scene.conversation.messages
    scene.fails()
    (down,) = scene.downs
    assert isinstance(down.error, RuntimeFailure)
    assert str(down.error) == f"what it did could not be written to the journal: {FULL}"
    assert not scene.finishes
    assert not [seen for seen in scene.seen if isinstance(seen, ToolCallStarted)]
    assert [order.tag.call_id for order in scene.told("dispatcher", CancelTool)] == ["c"]
    assert [order.tag.call_id for order in scene.told("dispatcher", WithdrawApproval)] == ["d"]
    assert scene.conversation.messages == messages
    assert not scene.waiting, "the Journal itself says that the request has ended"


def test_a_model_stream_is_stopped_when_a_write_fails(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(ModelNoted(STEP, 1.0, NoteKind.RETRY, "again", 2))
    scene.fails()
    assert len(scene.told("llm", StopModel)) == 1


def test_a_session_that_crashes_says_in_the_journal_that_its_request_has_ended(simulated: ActorSystem) -> None:
    def broken(recorded: tuple[Message, ...] | Compacted, request_id: RequestId) -> None:
        raise OSError("the host's own")

    scene = Scene(simulated, record=broken)
    scene.commit()
    scene.say(ModelNoted(STEP, 1.0, NoteKind.RETRY, "again", 2), scene.turn(("c", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallCompleted(call("c"), 2.0, "7"))
    scene.commit()
    (down,) = scene.downs
    assert "carrying out RecordStep failed" in str(down.error)
    (write,) = scene.waiting
    assert write.events == ()
    assert write.ends is not None
    assert write.ends.failure == str(down.error)
    assert write.ends.finish is None
    assert write.ends.notes == tuple(seen.text for seen in scene.seen if isinstance(seen, Note))


def test_a_journal_that_does_not_write_for_long_ends_the_request(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.run(WRITTEN_WITHIN_SECONDS + SECOND_LOOK_SECONDS - 0.1)
    assert not scene.downs
    scene.run(0.2)
    (down,) = scene.downs
    assert f"did not write for {WRITTEN_WITHIN_SECONDS:g} s" in str(down.error)
    assert scene.waiting[-1].ends is not None, "it is marked as ended behind what waits"


def test_a_journal_that_writes_is_never_late(simulated: ActorSystem) -> None:
    scene = Scene(simulated, timeout_seconds=600.0)
    scene.commit()
    for _ in range(20):
        scene.run(WRITTEN_WITHIN_SECONDS / 3)
        scene.say(ModelNoted(STEP, scene.scheduler.now(), NoteKind.RETRY, "again", 2))
        scene.run(WRITTEN_WITHIN_SECONDS / 3)
        scene.commit()
    assert not scene.downs


def test_a_full_outbox_ends_the_request_as_overloaded(simulated: ActorSystem) -> None:
    scene = Scene(simulated, outbox=Outbox("test", capacity=1))
    scene.say(NoticeCame(TAG, 1.0, "an edit was applied"))
    (down,) = scene.downs
    assert "overloaded: 1 writes wait for the journal" in str(down.error)
    ended = scene.waiting[-1]
    assert ended.ends is not None
    assert "overloaded" in ended.ends.failure


# -- what comes from outside


def test_a_result_from_outside_is_taken_when_it_is_durable(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallDeferred(call("c"), 2.0, 60.0))
    scene.commit()
    taken = scene.ref.ask(ResolveCall(call("c"), "7"), 1.0)
    assert isinstance(taken, Reply)
    assert not taken.done
    scene.commit()
    assert taken.done
    assert taken.result() is True


def test_a_result_that_comes_before_the_tool_has_returned_is_taken_when_it_counts(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE), ("d", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallStarted(call("d"), 1.0))
    early = {name: scene.ref.ask(ResolveCall(call(name), "7"), 1.0) for name in ("c", "d")}
    scene.say(ToolCallDeferred(call("c"), 2.0, 60.0), ToolCallCompleted(call("d"), 2.0, "own"))
    scene.commit()
    replies = [each for each in early.values() if isinstance(each, Reply)]
    assert [reply.done for reply in replies] == [False, True]
    scene.commit()
    assert [reply.result() for reply in replies] == [True, False]
    contents = [event.content for event in scene.written if isinstance(event, ToolCallCompleted)]
    assert contents == ["own", "7"]


def test_a_result_that_could_not_be_written_was_not_taken(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallDeferred(call("c"), 2.0, 60.0))
    scene.commit()
    taken = scene.ref.ask(ResolveCall(call("c"), "7"), 1.0)
    assert isinstance(taken, Reply)
    scene.fails()
    with pytest.raises(RuntimeFailure, match="could not be written to the journal"):
        taken.result()


def test_a_notice_for_the_model_is_taken_when_it_is_durable(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    taken = scene.ref.ask(NoticeCame(TAG, 1.0, "an edit was applied"), 1.0)
    assert isinstance(taken, Reply)
    assert not taken.done
    scene.commit()
    assert taken.result() is True
    plain = Scene(simulated, journal=False, request_id="plain")
    assert plain.ref.ask(NoticeCame(TAG._replace(request_id=RequestId("plain")), 1.0, "so"), 1.0) is True


# -- what a write has


def test_the_messages_of_a_step_are_written_with_it_under_the_ids_that_the_conversation_gives_them(
    simulated: ActorSystem,
) -> None:
    history = (UserMessage.of("before"), AssistantMessage((Text("was"),)))
    conversation = Conversation(history)
    scene = Scene(simulated, conversation=conversation)
    (began,) = scene.waiting
    assert [(each.message_id, each.parent) for each in began.messages] == [("given/1", None), ("given/2", "given/1")]
    assert began.begins is not None
    assert (began.begins.conversation_id, began.begins.parent) == (conversation.id, "given/2")
    (started,) = began.events
    assert isinstance(started, RequestStarted)
    assert started.history == ()
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    scene.commit()
    scene.say(ToolCallStarted(call("c"), 1.0), ToolCallCompleted(call("c"), 2.0, "7"))
    written = [each for write in scene.waiting for each in write.messages]
    scene.commit()
    assert [each.message_id for each in written] == list(conversation.ids[2:])
    assert [each.message for each in written] == list(conversation.messages[2:])
    assert [each.parent for each in written] == list(conversation.ids[1:-1])
    scene.say(scene.turn(step=2))
    scene.commit()
    conversation.release()
    assert conversation.not_in_journal("test") == ()
    again = Scene(simulated, conversation=conversation, outbox=scene.outbox, request_id="r2")
    (began,) = again.waiting
    assert began.messages == ()
    assert began.begins is not None
    assert began.begins.parent == conversation.ids[-1]


def test_a_conversation_that_another_journal_has_is_written_whole(simulated: ActorSystem) -> None:
    conversation = Conversation((UserMessage.of("before"), AssistantMessage((Text("was"),))))
    conversation.is_in_journal("other")
    scene = Scene(simulated, conversation=conversation)
    assert len(scene.waiting[0].messages) == 2
    fork = conversation.fork("given/2")
    assert fork.id != conversation.id
    assert len(fork.not_in_journal("other")) == 2


def test_a_write_that_fails_leaves_the_conversation_for_the_next_request_as_it_was(simulated: ActorSystem) -> None:
    conversation = Conversation((UserMessage.of("before"), AssistantMessage((Text("was"),))))
    scene = Scene(simulated, conversation=conversation)
    scene.fails()
    conversation.release()
    assert len(conversation.messages) == 2
    assert len(conversation.not_in_journal("test")) == 2


def test_the_end_has_all_of_the_reply_but_its_messages(simulated: ActorSystem) -> None:
    scene = Scene(simulated, max_attempts=1)
    scene.commit()
    scene.say(ModelNoted(STEP, 1.0, NoteKind.RETRY, "again", 1), scene.turn(("c", ToolName("nobody")), ("d", FREE)))
    scene.commit()
    failure = ToolFailure(FREE, FailureCode.CRASHED, "gone")
    scene.say(ToolCallStarted(call("d"), 1.0), ToolCallFailed(call("d"), 1.0, failure))
    scene.commit()
    error = Error(ErrorKind.AUTHENTICATION, "no key", retryable=False)
    scene.say(ModelFailed(TAG.at_step(2), 2.0, error))
    scene.commit()
    (ends,) = [write.ends for write in scene.durable if write.ends is not None]
    assert ends.finish == scene.finishes[0]
    assert ends.notes == tuple(seen.text for seen in scene.seen if isinstance(seen, Note))
    shown = [seen.failure for seen in scene.seen if isinstance(seen, ToolCallFailed | ReportFailure)]
    assert ends.failures == tuple(shown)
    assert len(shown) == 2
    assert ends.error == error


def test_each_write_says_what_its_last_event_led_to(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.commit()
    scene.say(scene.turn(("c", FREE)))
    (write,) = scene.waiting
    assert write.led_to[0].startswith(f"1/c RunTool {FREE} ")
    scene.commit()
    assert [seen for seen in scene.seen if isinstance(seen, RunTool)]
