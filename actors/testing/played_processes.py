"""A worker of processes, whose source and children are played: see played_workers.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from msgspec import Struct

from callboard.actors.calls.ledger import Call, CallState, Ending
from callboard.actors.kernel import Actor, ChildSpec, Down
from callboard.actors.processes.handle import BrokenFrame, Reply
from callboard.actors.processes.supply import (
    After,
    ChildEnded,
    End,
    NotObtained,
    Obtain,
    Obtained,
    Release,
    StackWritten,
    WriteStack,
)
from callboard.actors.testing.worker_bench import NO_CALL, Bench
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.progress import CallProgress
from callboard.actors.workers.call_stacks import ReadStack
from callboard.actors.workers.messages import KillCall, StopCall, WorkerLost
from callboard.actors.workers.process import ProcessWorker
from callboard.protocol import events
from callboard.protocol.tools import FailureCode, ToolFailure

DEEDS: Final = (
    *("give",) * 4, *("obtained",) * 6, "not_obtained", *("ahead",) * 3, *("replies",) * 4, "spent", "stray", "broken",
    *("stop",) * 2, "kill", *("dies",) * 2, "prints", "progress", "stranger", "stack", "source",
)  # fmt: skip


@cache
def tools() -> tuple[Tool, Tool]:
    """One whose children serve one call, and one whose children serve more."""

    @tool(description="Waits.")
    def once(key: str) -> str:
        raise AssertionError("its processes are played")

    @tool(reuse=True, description="Waits.")
    def again(key: str) -> str:
        raise AssertionError("its processes are played")

    return once, again


class Output(Struct):
    """What a child has printed."""

    written: str = ""

    @property
    def total_bytes(self) -> int:
        """Of all."""
        return len(self.written)

    def text(self) -> str:
        """As it is told."""
        return self.written


class Child:
    """Our ends of a child."""

    def __init__(self, number: int) -> None:
        self.number, self.orders = number, 0
        self.output = Output()
        self.said: list[Reply] = []
        self.is_broken = self.is_closed = self.is_let_go = self.has_room = False
        self.more: bool | None = None
        self.speaks: Callable[[], object] = int
        self.writes: Callable[[], object] = int

    def order(self, context: ToolContext, *, more: bool) -> bool:
        """The next call, of which not all fits."""
        self.orders, self.more = self.orders + 1, more
        return self.has_room

    def send_on(self) -> bool:
        """All of it."""
        self.has_room = True
        return True

    def replies(self) -> list[Reply]:
        """What it has said."""
        if self.is_broken:
            raise BrokenFrame("told to")
        said, self.said = self.said, []
        return said

    def drain(self) -> bool:
        """More may come."""
        return True

    def begin_output(self) -> None:
        """What was printed before is no call's."""
        self.output = Output()

    def widen_output(self) -> None:
        """It prints a lot."""

    def when_writable(self, post: Callable[[], None]) -> None:
        """Once."""
        self.writes = post

    def when_it_speaks(self, post: Callable[[], None]) -> None:
        """Once."""
        self.speaks = post

    def when_it_prints(self, post: Callable[[], None]) -> None:
        """Once."""

    def let_go(self) -> None:
        """It serves others."""
        self.is_let_go = True

    def close(self) -> None:
        """It is done."""
        self.is_closed = True


class Source(Actor[Any]):
    """Of children; the play answers for it."""

    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    def on_receive(self, message: Any) -> None:
        if message == "crash":
            raise ValueError("told to")
        self._asked.append(message)


class ProcessPlay(Bench):
    """It runs one call after the other; one whose call did not end by itself ends."""

    def __init__(self, seed: int) -> None:
        super().__init__("process", seed)
        self.asked: list[Any] = []
        self.asks: list[tuple[object, ...]] = []
        """What the source is to hear."""
        self.call: Call | None = None
        self.tool = tools()[0]
        self.mode = "idle"
        self.child = Child(0)
        self.orders = 0
        """Calls that it had before this one."""
        self.why: Any = None
        """What the call is to end with, once its child has ended; None: it has died."""
        self.deaths: list[Down] = []
        self.start(ProcessWorker, ChildSpec("source", lambda: Source(self.asked)))
        self.source = self.system.ref("pool/source")
        self.system.watch(self.worker, self.deaths.append)

    def act(self) -> None:
        """One random deed."""
        what = self.rng.choice(DEEDS)
        self.deeds.append(f"{what} ({self.mode})")
        getattr(self, f"_{what}")()
        self.settle()
        self.look()

    def look(self) -> None:
        """After a deed."""
        found = [self._shown(each) for each in self.asked]
        if found != self.asks:
            self.wrong(f"its source hears {found}, due is {self.asks}")
        if self.worker.is_alive() is (self.mode == "gone"):
            self.wrong(f"it is alive: {self.worker.is_alive()}, which is wrong")
        self.asked.clear()
        self.asks.clear()
        self.compare()

    def _shown(self, message: Any) -> tuple[object, ...]:
        match message:
            case Obtain():
                return "Obtain", message.tool.name
            case Release():
                return "Release", message.child.number, message.after
            case End():
                return "End", message.number, message.kill
            case WriteStack():
                return "WriteStack", message.number, message.begins
        return (type(message).__name__,)

    def _give(self) -> None:
        used = self.rng.choice(tools())
        call = self.submit(used, None)
        self.give(call, used)
        self.settle()
        if self.mode != "idle":
            self.is_news = True
            if call.state is not CallState.QUEUED:
                self.wrong(f"its process runs a call, and the next one is {call.state}")
            call.end(Ending.CANCELLED, "", 0.0)
            return
        self.call, self.tool, self.mode, self.why = call, used, "waiting", None
        self.asks.append(("Obtain", used.name))

    def _obtained(self) -> None:
        if self.mode != "waiting" or self.call is None:
            return
        old, call = self.child, self.call
        self.child = old if old.is_let_go and self.rng.random() < 0.5 else Child(old.number + 1)
        self.child.output.written = "before it began"
        self.orders = self.child.orders
        self.child.is_let_go, self.child.has_room = False, self.rng.random() < 0.7
        if self.rng.random() < 0.1:  # it is stopped, and its worker has not heard so yet
            call.stop(self.rng.choice(tuple(Ending)))
            self.worker.tell_control(Obtained(self.child))  # type: ignore[arg-type]
            self.ended(call, has_run=False, begun=False)
            self.asks.append(("Release", self.child.number, After.KEEP))
            self.mode, self.is_news = "idle", True
            return
        self.worker.tell_control(Obtained(self.child))  # type: ignore[arg-type]
        self.owes(call, events.ToolCallStarted)
        self.settle()
        if call.go_ahead is not None and not call.go_ahead.is_given:
            self.mode = "held"
        else:
            self._ordered()

    def _ordered(self) -> None:
        child = self.child
        self.mode = "running"
        if not child.has_room:
            child.writes()
            self.settle()
        if not child.has_room or child.more is not self.tool.contract.reuse or child.orders != self.orders + 1:
            self.wrong(f"its child is given the call: {child.orders}, in full: {child.has_room}, more: {child.more}")
        if child.orders > 1 and child.output.written:
            self.wrong("what was printed before a call is told as printed by it")

    def _not_obtained(self) -> None:
        if self.mode == "waiting" and self.call is not None:
            failure = ToolFailure(self.call.run.name, FailureCode.CRASHED, "told to")
            self.worker.tell_control(NotObtained(failure))
            self.owes(self.call, events.ToolCallFailed, FailureCode.CRASHED)
            self.mode, self.is_news = "idle", True

    def _ahead(self) -> None:
        if self.mode == "held" and self.call is not None:
            if self.child.orders != self.orders:
                self.wrong("the call has not waited for the go-ahead")
            self.aheads[self.call.run.tag].give()
            self.settle()
            self._ordered()

    def _says(self, result: Any, *, number: int | None = None, spent: bool = False) -> None:
        self.child.said.append(Reply(self.child.orders if number is None else number, result, spent))
        self.child.speaks()

    def _result(self) -> Any:
        failure = ToolFailure(self.tool.name, FailureCode.TOOL_ERROR, "told to", frames="in it")
        return self.rng.choice(("well", "well", failure))

    def _owes_result(self, call: Call, said: Any) -> None:
        if call.why is not None:
            self.ended(call, has_run=True)
            if isinstance(said, ToolFailure) and call.stopped_in != "in it":
                self.due.append(("", "where it was stopped is not known", ""))
        elif said == "well":
            self.owes(call, events.ToolCallCompleted, "well")
        else:
            self.owes(call, events.ToolCallFailed, said.code)

    def _replies(self) -> None:
        """Its tool has returned, also when it was asked to end."""
        if self.mode not in ("running", "stopping") or self.call is None:
            return
        said = self._result()
        self._says(said)
        if self.mode == "stopping":
            self.asks.append(("End", self.child.number, True))
            self.mode, self.why = "dying", said
            return
        self.settle()
        self._owes_result(self.call, said)
        self._printed(self.call)
        after = After.KEEP if self.tool.contract.reuse else After.ENDS
        self.asks.append(("Release", self.child.number, after))
        if self.child.is_let_go is not (after is After.KEEP) or self.child.is_closed is (after is After.KEEP):
            self.wrong(f"its child is let go: {self.child.is_let_go}, closed: {self.child.is_closed}, due was {after}")
        self.mode, self.is_news = "idle", True

    def _printed(self, call: Call) -> None:
        if call.printed_bytes != len(self.child.output.written):
            self.wrong(f"{call.printed_bytes} bytes are said to be printed of {self.child.output.written!r}")

    def _spent(self) -> None:
        """It has a result, and has left something running."""
        if self.mode == "running":
            self.why = self._result()
            self._says(self.why, spent=True)
            self.asks.append(("End", self.child.number, True))
            self.mode = "dying"

    def _stray(self) -> None:
        """Its tool has written to our socket."""
        if self.mode == "running":
            self._says("forged", number=self.child.orders + 1)
            self.asks.append(("End", self.child.number, True))
            self.mode, self.why = "dying", None

    def _broken(self) -> None:
        if self.mode == "running":
            self.child.is_broken = True
            self.child.speaks()
            self.asks.append(("End", self.child.number, True))
            self.mode, self.why = "dying", None

    def _stop(self) -> None:
        call = self.call
        if call is None or call.state is not CallState.RUNNING or self.mode in ("idle", "gone"):
            return
        self.stop(call)
        if self.mode == "waiting":
            self.ended(call, has_run=False, begun=False)
            self.asks.append(("Withdraw",))
            self.mode, self.room, self.is_news = "gone", 0, True
        elif self.mode == "dying" and self.why is not None:
            return
        else:
            self.asks.append(("End", self.child.number, False))
            self.why = Ending.CANCELLED
            self.mode = "stopping" if self.mode == "running" else "dying"

    def _kill(self) -> None:
        call = self.call
        if call is not None and call.state is CallState.ENDING and self.mode in ("stopping", "dying"):
            self.kill(call)
            self.asks.append(("End", self.child.number, True))

    def _dies(self) -> None:
        """All that is left of the child has ended."""
        call, child = self.call, self.child
        if call is None or self.mode not in ("held", "running", "stopping", "dying"):
            return
        why: Any = Ending.CANCELLED if self.mode == "stopping" else self.why if self.mode == "dying" else None
        if self.rng.random() < 0.2:
            self.worker.tell_control(ChildEnded(child.number + 1, "was another"))
        self.worker.tell_control(ChildEnded(child.number, "was killed by SIGKILL"))
        self.settle()
        if not child.is_closed:
            self.wrong("our ends of a child that has ended are open")
        if why is None:
            error = self.deaths[-1].error if self.deaths else None
            told = error.failure.message if isinstance(error, WorkerLost) else str(error)
            if not isinstance(error, WorkerLost) or "was killed by SIGKILL" not in told:
                self.wrong(f"it is lost as {error!r}, which does not say how its child has ended")
            elif error.printed != child.output.written:
                self.wrong(f"with it is lost what was printed: {error.printed!r} of {child.output.written!r}")
            self.mode = "gone"
            return
        self.is_news = True
        self._printed(call)
        if why is Ending.CANCELLED:
            self.ended(call, has_run=call.may_have_run)
        else:
            self._owes_result(call, why)
        self.mode = "idle"

    def _prints(self) -> None:
        if self.mode in ("running", "stopping"):
            self.child.output.written += "printed"

    def _progress(self) -> None:
        if self.mode == "running" and self.call is not None:
            self._says(CallProgress("half", 0.5))
            self.settle()
            found = self.call.relay.take()
            if found != CallProgress("half", 0.5):
                self.wrong(f"its progress is {found}")
            self.call.relay.take()

    def _stranger(self) -> None:
        self.worker.tell_control(self.rng.choice((StopCall, KillCall))(NO_CALL))

    def _stack(self) -> None:
        if self.mode != "running" or self.call is None:
            tag = self.call.run.tag if self.call is not None and self.mode in ("idle", "waiting") else NO_CALL
            if self.stack_of(tag):
                self.wrong("the code of a call is somewhere that does not run")
            return
        message = ReadStack(self.call.run.tag, self.future())
        self.worker.tell_control(message)
        self.worker.tell_control(StackWritten(self.child.number, "in it", is_to_be_had=True))
        self.settle()
        self.asks.append(("WriteStack", self.child.number, True))
        if message.answer.done():
            self.wrong("a stack is told before all of it is written")
        self.simulation.run_until_idle(self.simulation.now() + 0.03)
        self.asks.append(("WriteStack", self.child.number, False))
        self.worker.tell_control(StackWritten(self.child.number, "in it", is_to_be_had=True))
        self.settle()
        if not message.answer.done() or message.answer.result() != "in it":
            self.wrong("the stack of the child is not told")

    def _source(self) -> None:
        """The source is lost."""
        if self.rng.random() < 0.7:
            return
        self.source.tell_control("crash")
        self.settle()
        if self.mode == "waiting" and self.call is not None:
            self.is_news = True
            if self.call.state is not CallState.QUEUED:
                self.wrong(f"its source is lost, and its call is {self.call.state}")
        if self.mode in ("idle", "waiting"):
            self.room = 0
        if self.mode == "waiting":
            self.asks.append(("Withdraw",))
        elif self.mode != "idle":
            self.asks.append(("Release", self.child.number, After.KILL))
        self.mode = "gone"

    def end(self) -> None:
        """It stops, with what it runs."""
        self.deeds.append(f"end ({self.mode})")
        self.worker.stop()
        self.settle()
        if self.call is not None and self.mode != "idle":
            self.is_news = True
            if self.call.why is None:
                self.owes(self.call, events.ToolCallCancelled, FailureCode.CANCELLED)
            else:
                self.ended(self.call, has_run=self.call.may_have_run)
            self.asks.append(("Withdraw",) if self.mode == "waiting" else ("Release", self.child.number, After.KILL))
            self.room = 0
        self.mode = "gone"
        self.look()


def play(seed: int) -> list[str]:
    """A ProcessWorker."""
    made = ProcessPlay(seed)
    for _ in range(25):
        if made.problems or made.mode == "gone":
            break
        made.act()
    if made.mode != "gone" and not made.problems:
        made.end()
    made.give_late()
    return made.problems[:1]
