"""ProcessWorker: runs one call after the other, each in a child process.

The child comes from the pool's ProcessSource, with the tool loaded. What it says and prints is read in the handlers
here; a child that dies unexpectedly is a crash of this actor. An actor for each call would cost it 0.1 ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from callboard.actors.calls.ledger import CallReports, Ending, Outcome
from callboard.actors.kernel import Actor, Down, Ref, Timer, handles
from callboard.actors.processes.handle import READ_BYTES, BrokenFrame, ChildEnds, Reply
from callboard.actors.processes.source import SourceMessage
from callboard.actors.processes.supply import (
    After,
    ChildEnded,
    End,
    NotObtained,
    Obtain,
    Obtained,
    Release,
    StackWritten,
    Withdraw,
    WriteStack,
)
from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.tracebacks import told_of_crash
from callboard.actors.tools.transaction import MAX_STATEMENTS_BYTES, Statements
from callboard.actors.workers.call_stacks import ReadStack
from callboard.actors.workers.messages import BeginCode, KillCall, RunCall, StopCall, ToWorker, WorkerLost
from callboard.protocol.limits import MAX_RESULT_BYTES, PROGRESS_PAUSE_SECONDS
from callboard.protocol.tools import FailureCode, ToolFailure

#: A child that prints more than this in a call is read from a timer from then on, by way of a larger pipe: at most 100
#: MB/s (6 where the kernel gives no larger one), so that a flood slows down the tool that makes it and not the control
#: loop. A read of 1 MiB takes 0.2 ms.
FLOOD_BYTES: Final = 1_048_576
FLOOD_PAUSE_SECONDS: Final = 0.01
#: Frames of a child in one read: more than its progress may have at once. One that sends more (its tool writes to our
#: socket) is read from a timer.
MAX_FRAMES: Final = 32
#: A child writes down where its code is within a millisecond of its turn; what has not changed for this long is all.
STACK_PAUSE_SECONDS: Final = 0.02
#: When a child has ended, its socket may still hold the last of a large result; each read takes READ_BYTES of it.
LAST_READS: Final = (MAX_RESULT_BYTES + MAX_STATEMENTS_BYTES) // READ_BYTES + 2


class _Spoke(Struct, frozen=True):
    """There is something to read on the call socket."""


class _Printed(Struct, frozen=True):
    """There is something to read of the output."""


class _Writable(Struct, frozen=True):
    """There is room for more of the order."""


class _LookAtStack(Struct, frozen=True):
    """Is the stack of this child written by now?"""

    number: int


ProcessMessage = (
    ToWorker
    | ReadStack
    | Obtained
    | NotObtained
    | ChildEnded
    | StackWritten
    | Down
    | _Spoke
    | _Printed
    | _Writable
    | _LookAtStack
)


class ProcessWorker(Actor[ProcessMessage]):
    """See the module. One whose call did not end by itself stops, as the source may still speak of its child."""

    def __init__(self, reports: CallReports, pool: str) -> None:
        self._reports = reports
        self._pool = pool
        self._call: RunCall | None = None
        self._child: ChildEnds | None = None
        self._verdict: Outcome | None = None
        """The call's outcome, for when its child has ended."""
        self._is_waiting = False
        """For a child."""
        self._paused: Timer | None = None
        self._reading: Timer | None = None
        self._asked: ReadStack | None = None
        """Who wants to know where the code of the call is."""
        self._stack = ""

    def on_start(self) -> None:
        self._source: Ref[SourceMessage] = self.system.ref(f"{self._pool}/source")
        self.monitor(self._source)
        self.at_end(self._let_go)

    # -- the way of one call --------------------------------------------------------------------------------------

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        if self._call is not None:
            self._reports.give_back(call.record, "its process runs another call")
            return
        self._call, self._verdict, self._is_waiting = call, None, True
        self._source.tell_control(Obtain(call.tool, self.ref))

    @handles(NotObtained)
    def _not_obtained(self, message: NotObtained) -> None:
        self._is_waiting = False
        self._end(message.failure, after=After.ENDS)

    @handles(Obtained)
    def _obtained(self, message: Obtained) -> None:
        call, child = self._call, message.child
        self._is_waiting = False
        if call is None or not self._reports.begin(call.record):
            self._source.tell_control(Release(child, After.KEEP))
            self._call = None
            return
        self._child = child
        if not call.record.must_wait(partial(self.ref.tell_control, BeginCode(call.run.tag))):
            self._order(call, child)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        """Unless the call was stopped, or has ended, while it waited."""
        call, child = self._call, self._child
        if call is not None and child is not None and call.run.tag == message.tag and self._verdict is None:
            self._order(call, child)

    def _order(self, call: RunCall, child: ChildEnds) -> None:
        if child.orders:
            child.begin_output()
        if not child.order(call.context, more=call.tool.contract.reuse):
            child.when_writable(self._post(_Writable()))
        child.when_it_speaks(self._post(_Spoke()))
        child.when_it_prints(self._post(_Printed()))

    @handles(_Spoke)
    def _spoke(self, _: _Spoke) -> None:
        child = self._child
        if child is None:
            return
        try:
            replies = child.replies()
        except (BrokenFrame, EOFError):  # its tool wrote to our socket or closed it, or it has died
            self._source.tell_control(End(child.number, kill=True))
            return
        for reply in replies:
            self._replied(child, reply)
        if self._child is not None and len(replies) > MAX_FRAMES:
            self._reading = self.tell_after(PROGRESS_PAUSE_SECONDS, _Spoke())
        elif self._child is not None:
            child.when_it_speaks(self._post(_Spoke()))

    def _replied(self, child: ChildEnds, reply: Reply) -> None:
        call, said = self._call, reply.result
        if isinstance(said, CallProgress):
            if call is not None and self._verdict is None:
                call.record.report(said)
            return
        if isinstance(said, Statements):
            if call is not None and call.record.effect is not None and reply.number == child.orders:
                call.record.effect.statements = said
            return
        if self._verdict is Ending.CANCELLED and reply.number == child.orders:
            self._verdict = said  # the call was stopped all the same; a failure says where its tool was
        if call is None or reply.number != child.orders or self._verdict is not None:
            self._source.tell_control(End(child.number, kill=True))  # its tool wrote to our socket
        elif reply.spent:
            self._verdict = said
            self._source.tell_control(End(child.number, kill=True))
        else:
            self._end(said, self._take_output(child), After.KEEP if call.tool.contract.reuse else After.ENDS)

    @handles(StopCall)
    def _stop_call(self, message: StopCall) -> None:
        call = self._call
        if call is None or call.run.tag != message.tag:
            return
        if self._child is None:
            self._end(Ending.CANCELLED)
        elif self._verdict is None:
            self._verdict = Ending.CANCELLED
            self._source.tell_control(End(self._child.number, kill=False))

    @handles(KillCall)
    def _kill_call(self, message: KillCall) -> None:
        if self._child is not None and self._call is not None and self._call.run.tag == message.tag:
            self._source.tell_control(End(self._child.number, kill=True))

    @handles(ReadStack)
    def _read_stack(self, message: ReadStack) -> None:
        """What a former one waits for and does not get: its deadline ends that."""
        call, child = self._call, self._child
        if call is None or child is None or call.run.tag != message.tag or not child.orders:
            message.refuse("the tool's code does not run now")
        else:
            self._asked, self._stack = message, ""
            self._source.tell_control(WriteStack(child.number, begins=True))

    @handles(StackWritten)
    def _stack_written(self, message: StackWritten) -> None:
        asked, child = self._asked, self._child
        if asked is None or child is None or message.number != child.number:
            return
        if not message.is_to_be_had:
            self._asked = None
            asked.refuse(message.text)
        elif message.text and message.text == self._stack:
            self._asked = None
            asked.tell(message.text)
        elif not asked.answer.done():
            self._stack = message.text
            self.tell_after(STACK_PAUSE_SECONDS, _LookAtStack(child.number))

    @handles(_LookAtStack)
    def _look_at_stack(self, message: _LookAtStack) -> None:
        if self._child is not None and self._child.number == message.number:
            self._source.tell_control(WriteStack(message.number, begins=False))

    @handles(ChildEnded)
    def _child_ended(self, message: ChildEnded) -> None:
        call, child = self._call, self._child
        if call is None or child is None or message.number != child.number:
            return
        with contextlib.suppress(BrokenFrame, EOFError):
            for _ in range(LAST_READS):
                for reply in child.replies():
                    self._replied(child, reply)
        if self._child is None:
            return
        output = self._take_output(child)
        self._child = None
        child.close()
        if self._verdict is None:
            why = f"the tool's process {message.how}"
            fatal = told_of_crash(output)
            frames = "\n".join(filter(None, (why, fatal.frames)))
            failure = ToolFailure(
                call.run.name, FailureCode.CRASHED, why, traceback=fatal.traceback or why, frames=frames
            )
            raise WorkerLost(failure, output, call.run.tag)
        self._end(self._verdict, output, After.ENDS)

    @handles(Down)
    def _source_down(self, down: Down) -> None:
        if self._child is not None:
            raise RuntimeError("the source of the tools' processes has ended, and the child with it") from down.error
        self._reports.seat.take(0)
        call, self._call = self._call, None
        if call is not None:
            self._reports.give_back(call.record, "the source of the tools' processes has ended")
        self.stop()

    def on_stopping(self) -> bool:
        """Its call ends with it."""
        if self._call is not None:
            self._end(Ending.CANCELLED)
        return True

    def _end(self, outcome: Outcome, printed: str = "", after: After = After.KILL) -> None:
        call, self._call = self._call, None
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.refuse("the call has ended meanwhile")
        for timer in (self._paused, self._reading):
            if timer is not None:
                timer.cancel()
        if after is After.KILL or not self._reports.seat.room:  # the dispatcher has given this worker up
            self._reports.seat.take(0)
            self.stop()
        if call is not None:
            self._reports.end(call.record, outcome, printed)
        self._release(after)  # once the outcome is on its way

    def _let_go(self) -> None:
        """However this actor ends: of a crash or a kill nothing may be left."""
        if self._is_waiting:  # not before: a child that is on its way would be given back twice
            self._source.tell_control(Withdraw(self.ref))
        self._release(After.KILL)

    def _release(self, after: After) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.let_go() if after is After.KEEP else child.close()
            self._source.tell_control(Release(child, after))

    # -- output, and what readers post ----------------------------------------------------------------------------

    @handles(_Printed)
    def _printed(self, _: _Printed) -> None:
        child, self._paused = self._child, None
        if child is None or not child.drain():
            return
        if child.output.total_bytes > FLOOD_BYTES:
            child.widen_output()
            self._paused = self.tell_after(FLOOD_PAUSE_SECONDS, _Printed())
        else:
            child.when_it_prints(self._post(_Printed()))

    def _take_output(self, child: ChildEnds) -> str:
        child.drain()
        if self._call is not None:
            self._call.record.printed_bytes = child.output.total_bytes
        return child.output.text() if child.output.total_bytes else ""

    @handles(_Writable)
    def _writable(self, _: _Writable) -> None:
        if self._child is not None and not self._child.send_on():
            self._child.when_writable(self._post(_Writable()))

    def _post(self, message: _Spoke | _Printed | _Writable) -> Callable[[], None]:
        return lambda: self.ref.tell_control(message)
