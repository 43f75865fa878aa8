"""What the plays of workers stand on: an actor of a worker with a real ledger, and the code of its tools at gates.

See played_workers.py.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Final

from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import Call, CallReports, Ending, Happening, Ledger
from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, Ref, Restart, Supervisor, start_child
from callboard.actors.testing.simulation import SimulatedScheduler, fifo
from callboard.actors.tools import Tool, ToolContext
from callboard.actors.tools.progress import ProgressMade
from callboard.actors.workers.call_stacks import NoStack, ReadStack
from callboard.actors.workers.messages import KillCall, RunCall, StopCall
from callboard.protocol import events
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.tools import FailureCode

#: Real seconds for a thread to do what takes microseconds.
PATIENCE_SECONDS: Final = 5.0
NO_CALL: Final = Tag(RequestId("r"), MessageId("m"), 1, CallId("none"))


class Gate:
    """Where the code of one call waits."""

    def __init__(self) -> None:
        self.come: SimpleQueue[object] = SimpleQueue()
        """It is here, with the resource that it was given."""
        self.go: SimpleQueue[Any] = SimpleQueue()

    def wait(self, resource: object = None) -> str:
        """On its thread."""
        self.come.put(resource)
        said = self.go.get()
        if isinstance(said, BaseException):
            raise said
        return str(said)

    def has_come(self, seconds: float = PATIENCE_SECONDS) -> tuple[object] | None:
        """In time: with what resource?"""
        try:
            return (self.come.get(timeout=seconds),)
        except Empty:
            return None


#: By the argument of a call.
gates: Final[dict[str, Any]] = {}


class Listening(SimulatedScheduler):
    """It hears when another thread gives it something to do."""

    def __init__(self) -> None:
        super().__init__(fifo)
        self.woken = threading.Semaphore(0)

    def call_soon(self, run: Callable[[], object]) -> None:
        """Make it one of the things that may run next."""
        super().call_soon(run)
        if threading.get_ident() != self._driver:
            self.woken.release()


class Listener(Actor[Any]):
    """A session, or the dispatcher."""

    def __init__(self, hear: Callable[[Any], object]) -> None:
        self._hear = hear

    def on_receive(self, message: Any) -> None:
        self._hear(message)


class Bench:
    """A worker with a ledger, and what hears of its calls."""

    def __init__(self, name: str, seed: int, room: int = 1) -> None:
        self.name, self.rng = name, random.Random(f"{name} {seed}")
        self.seed = seed
        self.simulation = Listening()
        self.system = ActorSystem(self.simulation)
        self.problems: list[str] = []
        self.deeds: list[str] = []
        self.heard: list[tuple[str, str, str]] = []
        self.due: list[tuple[str, str, str]] = []
        self.states = 0
        """Words to the dispatcher since they were last looked at."""
        self.serial = 0
        self.ledger = Ledger()
        self.pool = self.ledger.pool("pool", room, 1)
        self.session: Ref[Any] = self.system.spawn(lambda: Listener(self._hears), "session")
        self.dispatcher: Ref[Any] = self.system.spawn(lambda: Listener(self._hears_state), "dispatcher")
        self.aheads: dict[Tag, GoAhead] = {}
        self.room, self.holds = room, 0
        """What is due of the worker."""

    def wrong(self, told: str) -> None:
        """Note it."""
        self.problems.append(f"a worker of the kind {self.name}, after {self.deeds[-4:]}: {told}")

    def start(self, make: Callable[[CallReports, str], Actor[Any]], *fixed: ChildSpec[Any]) -> None:
        """A worker, as the dispatcher starts one."""
        self.supervisor: Ref[Any] = self.system.spawn(lambda: Supervisor(fixed), "pool")
        self.settle()
        name = self.supervisor.name
        spec = ChildSpec(
            "1", lambda: make(CallReports(self.seat, self.dispatcher, self.simulation.now), name),
            restart=Restart.TEMPORARY, shutdown_seconds=1.0,
        )  # fmt: skip
        self.worker = start_child(self.supervisor, spec)
        self.seat = self.ledger.add_worker(self.pool, self.worker)
        self.settle()

    def settle(self) -> None:
        """Until nothing is left to do at this time."""
        self.simulation.run_until_idle(self.simulation.now())

    def await_thread(self, why: str) -> None:
        """A thread has something to say to an actor."""
        if not self.simulation.woken.acquire(timeout=PATIENCE_SECONDS):
            self.wrong(f"nothing is heard of the thread {why}")
        self.settle()

    def _hears_state(self, _: Any) -> None:
        self.states += 1

    def _hears(self, event: Any) -> None:
        if isinstance(event, ProgressMade):
            return  # what it says is looked at where it is said
        failure = getattr(event, "failure", None)
        more = str(failure.code) if failure is not None else getattr(event, "content", "")
        self.heard.append((event.tag.call_id, type(event).__name__, more))

    def owes(self, call: Call, kind: type, more: str = "") -> None:
        """The session of the call is to hear this."""
        self.due.append((call.run.tag.call_id, kind.__name__, more))

    def ended(self, call: Call, *, has_run: bool, begun: bool = True) -> None:
        """The call was stopped, and has ended."""
        if call.why is Ending.TIMED_OUT and begun and not has_run:
            self.owes(call, events.ToolCallFailed, FailureCode.TIMED_OUT)
        elif call.why is Ending.TIMED_OUT:
            self.owes(call, events.ToolCallTimedOut, FailureCode.TIMED_OUT)
        else:
            self.owes(call, events.ToolCallCancelled, FailureCode.CANCELLED)

    # -- what the dispatcher does

    def submit(self, used: Tool, gate: Any, seconds: float = 10.0, *, may_wait: bool = True) -> Call:
        """A new call, not yet given to the worker."""
        self.serial += 1
        tag = Tag(RequestId("r"), MessageId("m"), 1, CallId(f"c{self.serial}"))
        key = f"{self.name}/{self.seed}/{self.serial}"
        gates[key] = gate
        run = RunTool(tag, used.name, f'{{"key": "{key}"}}', self.simulation.now() + seconds, f"effect {key}")
        lane = self.ledger.lane(used.name, 1_000, self.pool)
        lane.move(self.pool, used.contract)
        call = self.ledger.submit(run, lane, self.session)
        call.contract = used.contract
        if may_wait and self.rng.random() < 0.5:
            call.go_ahead = self.aheads[tag] = GoAhead()
            if self.rng.random() < 0.3:
                call.go_ahead.give()
        return call

    def give(self, call: Call, used: Tool) -> None:
        """To the worker."""
        if not self.ledger.give(call, self.seat):
            raise AssertionError(f"the ledger does not give {call.run.tag}")
        self.worker.tell_control(RunCall(call.run, used, ToolContext(call.run), call))

    def stop(self, call: Call) -> None:
        """The call is to end."""
        if call.stop(self.rng.choice(tuple(Ending))):
            self.worker.tell_control(StopCall(call.run.tag))

    def kill(self, call: Call) -> None:
        """It has not."""
        if call.enter(Happening.KILLED):
            self.worker.tell_control(KillCall(call.run.tag))

    def future(self) -> Future[str]:
        """For where the code of a call is."""
        return Future()

    def stack_of(self, tag: Tag) -> str:
        """Where the code of a call is; "" where that is not to be had."""
        answer = self.future()
        self.worker.tell_control(ReadStack(tag, answer))
        self.settle()
        try:
            return answer.result(0) if answer.done() else ""
        except NoStack:
            return ""

    def give_late(self) -> None:
        """The go-ahead of calls whose worker has ended."""
        for ahead in self.aheads.values():
            ahead.give()
        self.settle()

    # -- what is compared

    def compare(self) -> None:
        """After each deed."""
        for told in (self.heard, self.due):
            told.sort(key=lambda each: each[0])  # what two calls hear has no order
        if self.heard != self.due:
            self.wrong(f"its sessions heard {self.heard}, due is {self.due}")
        if (self.seat.room, len(self.seat.holds)) != (self.room, self.holds):
            self.wrong(
                f"it has room for {self.seat.room} and holds {self.seat.holds}; due are {self.room}, {self.holds} holds"
            )
        if self.is_news and not self.states:
            self.wrong("the dispatcher has not heard of it")
        self.heard.clear()
        self.ledger.news.clear()  # as if the dispatcher had looked
        self.due.clear()
        self.states, self.is_news = 0, False

    is_news = False
    """Has the dispatcher to hear of something?"""
