"""ThreadWorker: a thread for tools that need the host's own objects. A thread cannot be killed.

When its call is stopped, the call ends and the thread is abandoned: it goes on until the tool's code returns. Until
then the worker takes no call, and the dispatcher counts the thread against the tool.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.ledger import CallReports, Ending
from callboard.actors.kernel import Actor, Ref, handles
from callboard.actors.tools.context import context_of
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call_stacks import ReadStack, frames_of_thread
from callboard.actors.workers.messages import NO_RESOURCES, BeginCode, KillCall, RunCall, StopCall, ToWorker
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    from callboard.actors.tools import resources
else:
    resources = lazy_module("callboard.actors.tools.resources")

#: Threads per pool, abandoned ones included.
MAX_THREADS: Final = 64


class _Returned(Struct, frozen=True):
    """The tool's code has returned on the thread."""

    result: Result


class _Closed(Struct, frozen=True):
    """What tools kept open on the thread is closed, and it has ended."""


Orders = queue.SimpleQueue[RunCall | None]


class ThreadWorker(Actor[ToWorker | ReadStack | _Returned | _Closed]):
    """See the module."""

    def __init__(self, reports: CallReports) -> None:
        self._reports = reports
        self._orders: Orders | None = None
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
            orders = self._orders or self._new_thread()
        except NO_RESOURCES as error:
            self._reports.no_worker(error)
            self.stop()
            return
        if self._reports.begin(call.record):
            self._call = call
            self._is_held = call.record.must_wait(lambda: self.ref.tell_control(BeginCode(call.run.tag)))
            if not self._is_held:
                self._give(orders, call)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        call = self._call
        if self._is_held and call is not None and call.run.tag == message.tag and self._orders is not None:
            self._is_held = False
            self._give(self._orders, call)

    def _give(self, orders: Orders, call: RunCall) -> None:
        self._keeps_something |= call.tool.resource is not None
        orders.put(call)

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
        call, self._call = self._call, None
        if self._is_abandoned or call is None:
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
        if self._orders is None or not self._keeps_something or not is_idle:
            return True
        self._orders.put(None)
        return False

    @handles(_Closed)
    def _closed(self, _: _Closed) -> None:
        self.stopped()

    def _new_thread(self) -> Orders:
        orders: Orders = queue.SimpleQueue()
        # A daemon, since a tool that never returns must not keep the process from ending.
        thread = threading.Thread(target=_main, args=(orders, self.ref), name="callboard-tool", daemon=True)
        thread.start()
        self._thread = thread
        self.at_end(lambda: orders.put(None))
        self._orders = orders
        return orders


def _main(orders: Orders, worker: Ref[_Returned | _Closed]) -> None:
    kept: resources.Resources | None = None
    while (call := orders.get()) is not None:
        if call.tool.resource is not None:
            kept = kept or resources.Resources()
            call = replace(call, context=call.context.keeping(kept.get))
        worker.tell_control(_Returned(context_of(call.record.asker).run(_result, call)))
        del call  # what its question has brought is not kept until the next one comes
    if kept is not None:
        kept.close()
    worker.tell_control(_Closed())


def _result(call: RunCall) -> Result:
    try:
        if (effect := call.record.effect) is None:  # nearly all of them
            return call.tool.invoker.call(call.run.arguments, call.context, call.record.report)
        return call.call_within(effect)
    except BaseException as error:  # noqa: BLE001 - a tool's types can break the making of its invoker
        return call.unusable(error)
