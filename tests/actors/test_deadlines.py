"""A call with ten seconds beside one with ten minutes: the short one ends at its deadline, the long one goes on."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from functools import partial
from typing import Any

import orjson
import pytest
from support.probes import Probe, Probed

from callboard.actors.calls.approvals import NobodyToAsk
from callboard.actors.calls.dispatcher import (
    ABANDON_SECONDS,
    DispatchCall,
    OfferTools,
    ToolDispatcher,
    ToolsOffered,
    Workers,
)
from callboard.actors.calls.ledger import CallReports, Ending, Ledger
from callboard.actors.calls.registry import Registry
from callboard.actors.kernel import Actor, ActorSystem, Supervisor, handles
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.requests.replies import Question, Reply
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.session_messages import Peers
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.tools import tool
from callboard.actors.workers.messages import (
    BeginCode,
    KillCall,
    RunCall,
    StopCall,
    ToWorker,
    WorkerKind,
)
from callboard.protocol.commands import CancelTool, Finish, Outcome
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.events import (
    DeadlinePassed,
    ModelResponded,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, TOOL_GRACE_SECONDS
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

TAG = Tag(RequestId("r"), MessageId("m"))
NAMES = ("short", "long")


@tool(timeout=10)
def short() -> str:
    return "never"


@tool(timeout=600, latency="long")
def long() -> str:
    return "found"


def codes(messages: tuple[Message, ...] | list[Message]) -> dict[str, str]:
    """By tool: the failure code that the model reads, "" for a result."""
    results = [message for message in messages if isinstance(message, ToolMessage)]
    return {result.name: orjson.loads(result.content)["code"] if result.is_error else "" for result in results}


class Worker(Actor[ToWorker]):
    """The long call returns after 500 s. The short one hangs; a worker that listens ends it when it is told to."""

    def __init__(self, reports: CallReports, listens: bool) -> None:
        self._reports = reports
        self._listens = listens
        self._calls: dict[Tag, RunCall] = {}

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        self._calls[call.run.tag] = call
        assert self._reports.begin(call.record)
        if call.run.name == "long":
            self.system.scheduler.call_at(500.0, lambda: self._reports.end(call.record, '"found"'))

    @handles(StopCall)
    def _stop_call(self, message: StopCall) -> None:
        if self._listens:
            self._reports.end(self._calls[message.tag].record, Ending.CANCELLED)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        raise AssertionError("no call waits for a go-ahead without a journal")

    @handles(KillCall)
    def _ignore(self, message: KillCall) -> None:
        """It is deaf."""


class Tree:
    """A real session in virtual time, with a played model. Who ends the short call at its deadline: a worker, the real
    dispatcher where the worker is deaf, or the session where the dispatcher is a played one that says nothing."""

    def __init__(self, system: ActorSystem, who: str) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.scheduler = system.scheduler
        self.seen: list[Any] = []
        self.recorded: list[Message] = []
        telemetry = Probed(system, "telemetry").ref
        self.registry = Registry((short.owned, long.owned))
        kind = WorkerKind(lambda reports, _pool: Worker(reports, who == "worker"), room=10)
        workers = Workers(system.spawn(Supervisor, "tools"), lambda _: kind)
        self.silent = Probed(system, "silent", self._offer)
        dispatcher = system.spawn(
            lambda: ToolDispatcher(self.registry, Ledger(), workers, NobodyToAsk(), telemetry), "dispatcher"
        )
        used = self.silent.ref if who == "session" else dispatcher
        peers = Peers(Probed(system, "llm", self._answer).ref, used, telemetry)
        question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m"), 0.0, Context())
        make_session = partial(RequestSession, question, peers, self._see, self._record)
        system.spawn(make_session, "session")

    def _record(self, recorded: tuple[Message, ...] | Compacted, _: RequestId) -> None:
        assert not isinstance(recorded, Compacted)
        self.recorded.extend(recorded)

    def _see(self, seen: Any) -> None:
        self.seen.append((self.scheduler.now(), seen))

    def _answer(self, probe: Probe, message: Any) -> None:
        if not isinstance(message, StartModel):
            return
        asks = message.call.tag.step == 1
        calls = tuple(ToolCall(CallId(name), ToolName(name), "{}") for name in NAMES)
        turn = ModelResponse(calls, FinishReason.TOOL_CALLS) if asks else ModelResponse((Text("done"),))
        message.reply_to.tell(ModelResponded(message.call.tag, self.scheduler.now(), turn))

    def _offer(self, probe: Probe, message: Any) -> None:
        if isinstance(message, OfferTools):
            message.reply_to.tell_control(ToolsOffered(message.tag, self.registry.offers(0.0)))
        elif isinstance(message, DispatchCall) and message.run.name == "long":
            end = ToolCallCompleted(message.run.tag, 500.0, '"found"')
            message.reply_to.tell_control(ToolCallStarted(message.run.tag, 0.0))
            self.scheduler.call_at(500.0, partial(message.reply_to.tell_control, end))

    def at(self, kind: type[Any], call_id: str = "") -> list[float]:
        """When the session's subscriber saw this."""
        return [at for at, seen in self.seen if isinstance(seen, kind) and seen.tag.call_id in ("", call_id)]


@pytest.mark.parametrize(
    ("who", "kind", "ends_at"),
    [
        ("worker", ToolCallTimedOut, 10.0),
        ("dispatcher", ToolCallTimedOut, 10.0 + TOOL_GRACE_SECONDS + ABANDON_SECONDS),
        ("session", DeadlinePassed, 10.0 + CALL_BACKSTOP_SECONDS),
    ],
)
def test_in_virtual_time_each_call_has_its_own_deadline(
    simulated: ActorSystem, who: str, kind: type[Any], ends_at: float
) -> None:
    tree = Tree(simulated, who)
    tree.scheduler.run_until_idle(499.0)
    assert tree.at(kind, "short") == [ends_at]
    stopped = [stop.tag.call_id for stop in tree.silent.of(CancelTool)]
    assert stopped == (["short"] if who == "session" else []), "the session tells whoever should have ended it"
    assert not tree.at(Finish)
    tree.scheduler.run_until_idle()
    assert tree.at(ToolCallCompleted, "long") == [500.0]
    assert [seen.outcome for _, seen in tree.seen if isinstance(seen, Finish)] == [Outcome.ANSWERED]
    assert tree.at(Finish) == [500.0]
    assert codes(tree.recorded) == {"short": "timed_out", "long": ""}


async def test_in_real_time_the_long_call_outlives_the_deadline_of_the_short_one() -> None:
    release = threading.Event()

    @tool(timeout=0.2)
    async def short() -> None:
        await asyncio.Event().wait()

    @tool(timeout=600, latency="long", isolation="thread")
    def long() -> str:
        return "found" if release.wait(30) else "nobody came"

    def script(request: Any) -> ScriptedTurn:
        done = any(isinstance(message, ToolMessage) for message in request.messages)
        return ScriptedTurn("done") if done else ScriptedTurn(calls=[ScriptedCall(name) for name in NAMES])

    ends: list[tuple[str, str]] = []
    async with Runtime(Settings(model="scripted/model", script=script), tools=[short, long]) as runtime:
        async for event in runtime.stream("go"):
            if isinstance(event, ToolCallTimedOut | ToolCallCompleted | ToolCallCancelled):
                ends.append((type(event).__name__, event.tag.call_id))
                release.set()  # not before the short one has ended
            if isinstance(event, Reply):
                assert codes(event.messages) == {"short": "timed_out", "long": ""}
                assert event.outcome is Outcome.ANSWERED
    assert [kind for kind, _ in ends] == ["ToolCallTimedOut", "ToolCallCompleted"]
