"""ThreadWorker: a thread for tools that need the host's own objects. A thread cannot be killed.

When its call is stopped, the call ends and the thread is abandoned: it goes on until the tool's code returns. Until
then the worker takes no call, and the dispatcher counts the thread against the tool.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.ledger import CallReports, Ending
from callboard.actors.kernel import Actor, Ref, handles, logger_of
from callboard.actors.tools.context import context_of
from callboard.actors.tools.invoke import Result, text_of
from callboard.actors.workers.call_stacks import ReadStack, frames_of_thread
from callboard.actors.workers.messages import NO_RESOURCES, BeginCode, KillCall, RunCall, StopCall, ToWorker
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.tools import FailureCode, ToolFailure

if TYPE_CHECKING:
    from callboard.actors.tools import resources
else:
    resources = lazy_module("callboard.actors.tools.resources")

logger = logger_of("callboard.tools")

#: Threads per pool, abandoned ones included.
MAX_THREADS: Final = 64


class _Returned(Struct, frozen=True):
    """The tool's code has returned on the thread. May come twice."""

    number: int
    result: Result


class _Closed(Struct, frozen=True):
    """What tools kept open on the thread is closed, and it has ended."""


class _Desk:
    """Between the actor and its thread: what is to be run, and how far that has come.

    An exception that another thread raises in this one (PyThreadState_SetAsyncExc, as stopit and func_timeout do) may
    come late, when the call that it was meant for is over: at any instruction between two calls. So each step is
    written down before or after it is made, and is made again where it is not known to be: but the tool's code.
    """

    def __init__(self) -> None:
        self.order: tuple[int, RunCall] | None = None
        self.begun = 0
        self.result: tuple[int, Result] | None = None
        self.is_closing = False
        self.is_closed = False
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def give(self, number: int, call: RunCall) -> None:
        """Have the thread run it. For the actor."""
        self.order = (number, call)
        self._woken.put(None)

    def clear(self) -> None:
        """What a question has brought is not kept until the next one comes. For the actor, once it has the result."""
        self.order = self.result = None

    def close(self) -> None:
        """Have the thread close what its tools keep open, and end."""
        self.is_closing = True
        self._woken.put(None)

    def wait(self) -> None:
        """On the thread: until something has changed, or was looked at already."""
        self._woken.get()


class ThreadWorker(Actor[ToWorker | ReadStack | _Returned | _Closed]):
    """See the module."""

    def __init__(self, reports: CallReports) -> None:
        self._reports = reports
        self._desk: _Desk | None = None
        self._number = 0
        """Of the call that the thread has, or had."""
        self._thread: threading.Thread | None = None
        self._call: RunCall | None = None
        """What the thread runs, also when that call has ended."""
        self._is_abandoned = False
        self._is_held = False
        """The call waits for its go-ahead; the thread does not have it yet."""
        self._keeps_something = False
        """May tools have something open on the thread?"""

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        if self._call is not None:
            self._reports.give_back(call.record, "its thread is held by a call that has ended")
            return
        try:
            if self._thread is not None and not self._thread.is_alive():  # two late exceptions, in one moment
                self._desk = None
            desk = self._desk or self._new_thread()
        except NO_RESOURCES as error:
            self._reports.no_worker(error)
            self.stop()
            return
        if self._reports.begin(call.record):
            self._call = call
            self._is_held = call.record.must_wait(partial(self.ref.tell_control, BeginCode(call.run.tag)))
            if not self._is_held:
                self._give(desk, call)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        call = self._call
        if self._is_held and call is not None and call.run.tag == message.tag and self._desk is not None:
            self._is_held = False
            self._give(self._desk, call)

    def _give(self, desk: _Desk, call: RunCall) -> None:
        self._keeps_something |= call.tool.resource is not None
        self._number += 1
        desk.give(self._number, call)

    @handles(StopCall, KillCall)
    def _abandon(self, message: StopCall | KillCall) -> None:
        """Nothing can be asked of a thread, so there is no grace period to wait for."""
        call = self._call
        if call is None or call.run.tag != message.tag or self._is_abandoned:
            return
        if self._is_held:
            self._is_held, self._call = False, None
            self._reports.end(call.record, Ending.CANCELLED)
        else:
            self._is_abandoned = True
            call.abandon()
            self._reports.state(0, (call.record.lane.key,))
            self._reports.end(call.record, Ending.CANCELLED)

    @handles(ReadStack)
    def _read_stack(self, message: ReadStack) -> None:
        call, thread = self._call, self._thread
        if call is None or thread is None or call.run.tag != message.tag or self._is_held:
            message.refuse("the tool's code does not run now")
        else:
            message.tell(frames_of_thread(thread.ident))

    @handles(_Returned)
    def _returned(self, message: _Returned) -> None:
        if message.number != self._number or self._call is None:
            return  # it was told before
        if self._desk is not None:
            self._desk.clear()
        call, self._call = self._call, None
        if self._is_abandoned:
            self._is_abandoned = False
            self._reports.state(1)
        else:
            self._reports.end(call.record, message.result)

    def on_stopping(self) -> bool:
        """Its call ends with it. A thread that runs none closes what it keeps open, and is waited for, at most as long
        as the supervisor does."""
        is_idle = self._call is None or self._is_held
        if self._call is not None and not self._is_abandoned:
            self._reports.end(self._call.record, Ending.CANCELLED)
        if self._desk is None or not self._keeps_something or not is_idle:
            return True
        self._desk.close()
        return False

    @handles(_Closed)
    def _closed(self, _: _Closed) -> None:
        self.stopped()

    def _new_thread(self) -> _Desk:
        desk = _Desk()
        # A daemon, since a tool that never returns must not keep the process from ending.
        thread = threading.Thread(target=_main, args=(desk, self.ref), name="callboard-tool", daemon=True)
        thread.start()
        self._thread = thread
        self.at_end(desk.close)
        self._desk = desk
        return desk


class _Thread:
    """What runs on the thread."""

    def __init__(self, desk: _Desk, worker: Ref[_Returned | _Closed]) -> None:
        self._desk = desk
        self._worker = worker
        self._kept: resources.Resources | None = None

    def run(self) -> None:
        while not self._desk.is_closed:
            try:
                self._serve(self._desk)
            except BaseException as error:  # noqa: BLE001 - see _Desk
                logger.warning("an exception reached a tool's thread after its call: %s", text_of(error))

    def _serve(self, desk: _Desk) -> None:
        told = 0
        while True:
            if (order := desk.order) is not None and order[0] != told:
                self._take(desk, *order)
                told = order[0]
            elif desk.is_closing:
                break
            else:
                del order  # as in _Desk.clear
                desk.wait()
        if self._kept is not None:
            self._kept.close()
        self._worker.tell_control(_Closed())
        desk.is_closed = True

    def _take(self, desk: _Desk, number: int, call: RunCall) -> None:
        if desk.begun != number:
            desk.begun = number
            desk.result = (number, self._result(call))
        result = desk.result
        lost = result is None or result[0] != number
        self._worker.tell_control(_Returned(number, _lost(call) if result is None or lost else result[1]))

    def _result(self, call: RunCall) -> Result:
        if call.tool.resource is not None:
            self._kept = self._kept or resources.Resources()
            call = replace(call, context=call.context.keeping(self._kept.get))
        return context_of(call.record.asker).run(_result, call)


def _main(desk: _Desk, worker: Ref[_Returned | _Closed]) -> None:
    _Thread(desk, worker).run()


def _lost(call: RunCall) -> ToolFailure:
    name = call.run.name
    why = (
        f"an exception that was raised from another thread struck as {name} ended: whether it had its effect is unknown"
    )
    return ToolFailure(name, FailureCode.CRASHED, why)


def _result(call: RunCall) -> Result:
    try:
        if (effect := call.record.effect) is None:  # nearly all of them
            return call.tool.invoker.call(call.run.arguments, call.context, call.record.report)
        return call.call_within(effect)
    except BaseException as error:  # noqa: BLE001 - a tool's types can break the making of its invoker
        return call.unusable(error)
