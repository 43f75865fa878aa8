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
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.kernel import ActorSystem, SimulatedScheduler
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.requests.conversation import Reply
from callboard.actors.requests.request_session import Peers, Question, RequestSession
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.actors.workers.pool import StartCall, StopCall
from callboard.protocol.commands import Finish, Outcome
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
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions
from callboard.protocol.tools import Isolation, Latency, Policy
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


class Tree:
    """A real session and a real dispatcher in virtual time; the model and the pools are played."""

    def __init__(self, system: ActorSystem, pool_keeps_deadlines: bool) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.scheduler = system.scheduler
        self.pool_keeps_deadlines = pool_keeps_deadlines
        self.pool = Probed(system, "pool", self._run_call)
        self.seen: list[Any] = []
        self.recorded: list[Message] = []
        telemetry = Probed(system, "telemetry").ref
        pools = {(isolation, latency): self.pool.ref for isolation in Isolation for latency in Latency}
        make = partial(ToolDispatcher, (short, long), pools, NobodyToAsk(), Policy(), telemetry)
        peers = Peers(Probed(system, "llm", self._answer).ref, system.spawn(make, "dispatcher"), telemetry)
        question = Question(TAG, (), UserMessage.of("go"), RequestOptions("p/m"), 0.0, Context())
        make_session = partial(RequestSession, question, peers, self._see, self.recorded.extend)
        system.spawn(make_session, "session")

    def _see(self, seen: Any) -> None:
        self.seen.append((self.scheduler.now(), seen))

    def _answer(self, probe: Probe, message: Any) -> None:
        if not isinstance(message, StartModel):
            return
        asks = message.call.tag.step == 1
        calls = tuple(ToolCall(CallId(name), ToolName(name), "{}") for name in NAMES)
        turn = ModelResponse(calls, FinishReason.TOOL_CALLS) if asks else ModelResponse((Text("done"),))
        message.reply_to.tell(ModelResponded(message.call.tag, self.scheduler.now(), turn))

    def _run_call(self, probe: Probe, message: Any) -> None:
        """The long call returns after 500 s. The short one hangs; a pool that works ends it at its deadline."""
        if isinstance(message, StartCall):
            run, tell = message.run, message.reply_to.tell_control
            tell(ToolCallStarted(run.tag, self.scheduler.now()))
            if run.name == "long":
                self.scheduler.call_at(500.0, partial(tell, ToolCallCompleted(run.tag, 500.0, '"found"')))
            elif self.pool_keeps_deadlines:
                self.scheduler.call_at(run.deadline_at, partial(tell, ToolCallTimedOut(run.tag, run.deadline_at)))

    def at(self, kind: type[Any], call_id: str = "") -> list[float]:
        """When the session's subscriber saw this."""
        return [at for at, seen in self.seen if isinstance(seen, kind) and seen.tag.call_id in ("", call_id)]


@pytest.mark.parametrize("pool_keeps_deadlines", [True, False])
def test_in_virtual_time_each_call_has_its_own_deadline(simulated: ActorSystem, pool_keeps_deadlines: bool) -> None:
    tree = Tree(simulated, pool_keeps_deadlines)
    tree.scheduler.run_until_idle(499.0)
    if pool_keeps_deadlines:
        assert tree.at(ToolCallTimedOut, "short") == [10.0]
        assert not tree.pool.of(StopCall)
    else:  # nobody below the session ends it: the session does, and tells the pool
        assert tree.at(DeadlinePassed) == [10.0 + CALL_BACKSTOP_SECONDS]
        assert [stop.tag.call_id for stop in tree.pool.of(StopCall)] == ["short"]
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
