"""Direct calls of tools in a simulated run (`Runtime.call_tool`): beside the requests, in the same pools and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from callboard.actors.journal.journal_records import Needs
from callboard.actors.kernel import ActorSystem, ChildSpec, Down, Ref, Restart, start_child
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.direct_calls import CALL_ID, CallResult, direct_options, result_of
from callboard.actors.requests.replies import Answer, Question, Reply, RequestEnded, Seen
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.session_messages import Peers
from callboard.actors.requests.tool_selection import ToolSelection
from callboard.actors.requests.write_ahead import WriteAhead
from callboard.protocol.commands import Command, ReportFailure
from callboard.protocol.content import ToolCall, UserMessage
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import CallboardError, RuntimeFailure
from callboard.protocol.events import Event, ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.scenario import PlannedCall, Scenario
from callboard.protocol.tools import ToolFailure

if TYPE_CHECKING:
    from callboard.actors.testing.simulated_world import World

_FAILS = (ToolCallFailed, ToolCallTimedOut, ToolCallCancelled, ReportFailure)


class _Heard(DirectCall):
    """A session of one call, of whose events the world hears as of those of the others."""

    def __init__(self, call: ToolCall, world: World) -> None:
        super().__init__(call)
        self._world = world

    def apply(self, event: Event) -> tuple[Command, ...]:
        """Tell, and apply."""
        if event.tag.call_id:
            self._world.tells(event)
        return super().apply(event)


class DirectPlay:
    """One such call, from when it is asked for."""

    def __init__(self, number: int, plan: PlannedCall, world: World) -> None:
        self.scenario = Scenario(request_id=RequestId(f"direct{number}"))
        self._tag = Tag(self.scenario.request_id, MessageId("m"))
        self._plan = plan
        self._world = world
        self._answer: Answer[str] | None = None
        self._ended: list[Any] = []
        """What its session has shown of the end of its call."""

    def begin(self, system: ActorSystem) -> None:
        """Ask for it, as a runtime does."""
        world, plan, tag = self._world, self._plan, self._tag
        call = ToolCall(CALL_ID, plan.tool, plan.arguments)
        world.plans[tag.request_id].of_call[tag.at_step(1)._replace(call_id=CALL_ID)] = plan
        conversation = Conversation()
        conversation.take(tag.request_id)
        answer = self._answer = Answer[str](conversation, tag, 600.0)
        options, now = direct_options(RequestOptions("sim/none", timeout_seconds=600.0)), world.scheduler.now()
        user = UserMessage.of(f"Call {plan.tool}.")
        question = Question(tag, (), user, options, now, Context(), True, tools=ToolSelection())
        peers = Peers(*(system.ref(f"root/{name}") for name in ("llm_manager", "dispatcher", "telemetry")))
        make: Callable[[], Any] = partial(_Heard, call, world)
        ahead = None
        if world.ahead is not None:
            ahead = WriteAhead(question, conversation, world.ahead.outbox, Needs(direct=call))
        start = partial(RequestSession, question, peers, self._see, conversation.record, make, ahead=ahead)
        spec = ChildSpec(str(tag.request_id), start, restart=Restart.TEMPORARY)
        ref: Ref = start_child(system.ref("root/sessions"), spec)
        system.watch(ref, partial(self._session_ended, answer))

    def _see(self, seen: Seen) -> None:
        assert self._answer is not None
        self._answer(seen)
        if isinstance(seen, (ToolCallCompleted, *_FAILS)):
            self._ended.append(seen)

    def _session_ended(self, answer: Answer[str], down: Down) -> None:
        answer.session_ended(down, self._world.why_ended)

    def problems(self) -> Iterator[str]:
        """Its caller has what its session has heard of the call, once."""
        if self._answer is None:
            return
        if not self._answer.future.done:
            yield "it has not ended"
            return
        try:
            result = self._result(self._answer)
        except RuntimeFailure as failure:
            if "internal_error" in str(failure) or not (self._world.happened or self._world.ahead):
                yield f"it ended with {failure}, and nothing has happened that leads to that"
            return
        except AssertionError as error:
            yield str(error)
            return
        told = next(iter(self._ended), None)
        if isinstance(told, ToolCallCompleted):
            if not result.ok or result.content != told.content:
                yield f"its caller has {result!r:.200}, its session heard {told.content!r:.100}"
            if (due := self._world.result_of(told.tag, self._plan)) != result.content:
                yield f"its caller has {result.content!r:.200}, planned was {due!r}"
        elif isinstance(told, _FAILS):
            failed: ToolFailure | None = told.failure
            if failed is None or result.failure is None or result.failure.code is not failed.code:
                yield f"its caller has {result!r:.200}, its session heard {told!r:.200}"
        else:
            yield f"its caller has {result!r:.200}, and its session has shown no end of the call"

    def _result(self, answer: Answer[str]) -> CallResult:
        name = self._plan.tool
        try:
            reply: Reply[object] = answer.future.result()
        except RequestEnded as ended:
            return result_of(name, ended.reply, ended)
        except CallboardError as error:
            raise RuntimeFailure(str(error)) from error
        return result_of(name, reply)
