"""A child process: reads an order from its call socket, runs the call on its main thread, and replies.

A child is for one call, unless its tool says `reuse=True`: then it serves further calls of the same tool.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import random
import resource
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Set
from contextvars import copy_context
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec.structs import asdict

from callboard.actors.processes import confined
from callboard.actors.processes.control import LENGTH, REPLY, Says
from callboard.actors.processes.linux import MAX_POOL_PROCESSES
from callboard.actors.processes.process_state import ProcessState
from callboard.actors.telemetry.extras import continue_trace
from callboard.actors.telemetry.request_log import WORK
from callboard.actors.tools.context import Report, ToolContext
from callboard.actors.tools.invoke import Invoker, Result, text_of
from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.schema import read_signature
from callboard.actors.tools.tracebacks import NOT_TOLD, Told, bounded, told_of
from callboard.actors.tools.transaction import Statements
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.tools import RETRY_HINTS, Deferred, FailureCode, Hold, ToolFailure

if TYPE_CHECKING:
    from callboard.actors.tools import resources
else:
    resources = lazy_module("callboard.actors.tools.resources")


class CallEnded(BaseException):
    """Raised in a tool by SIGTERM: its time is up, or its result is no longer wanted. Time for a `finally`, no more."""


class Child:
    """Made in the fork, on its only thread, with the call socket on descriptor 3."""

    def __init__(self, output: int, load: Callable[[], Invoker], stacks: int = -1) -> None:
        """`stacks`: a pipe for where its code is, when STACK_SIGNAL asks for that; -1: there is none."""
        self._pid = os.getpid()
        self._calls = socket.socket(fileno=3)
        self._load = load
        self._tool: Invoker | None = None
        self._resources: resources.Resources | None = None
        """What its tool keeps open."""
        _take_output(output)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _end_call)
        faulthandler.enable()
        if stacks >= 0:  # written in C, at once, also where Python code would not get its turn
            faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
        reseed()

    def serve(self) -> None:
        """Run calls until one that is the last, or until the runtime closes the socket."""
        # An error here happens again in the call, whose result then says so.
        with contextlib.suppress(Exception):
            self._tool = self._load()
        self._rehearse()
        try:
            while self._take(self._calls, self._tool):
                pass
        finally:
            self._close_resources()

    def _rehearse(self) -> None:
        """Take calls of a tool of our own.

        After a fork, this makes copies of the memory that a call writes to: 0.3 ms that the call need not wait for.
        """
        if self._tool is not None:
            self._tool.touch()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for _ in range(REHEARSALS):
                ours.sendall(LENGTH.pack(len(_SAMPLE_ORDER)) + _SAMPLE_ORDER)
                self._take(theirs, _sample_tool())
                ours.recv(4096)

    def _take(self, calls: socket.socket, tool: Invoker | None) -> bool:
        """Run the next call. False when there is none, or no further one."""
        head = calls.recv(LENGTH.size, socket.MSG_WAITALL)
        if len(head) < LENGTH.size:
            return False
        (length,) = LENGTH.unpack(head)
        number, context, more = pickle.loads(calls.recv(length, socket.MSG_WAITALL))
        if tool is not _sample_tool() and confined.has_lost_a_cover():
            calls.sendall(encode_reply(number, _uncovered(context.run.name), spent=bool(more)))
            os._exit(LOST_COVER)
        progress = ProgressSender(calls, number)
        result, spent = self._run(context, progress.send, tool, more)
        if os.getpid() != self._pid:  # a copy of this process, made by the tool, has returned from it as well
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the tool has closed or replaced it
                stream.flush()
        written = _statements_frame(number, context.writes_by) if isinstance(result, str) else b""
        calls.sendall(progress.close() + written + encode_reply(number, result, spent))
        return bool(more)

    def _run(self, context: ToolContext, report: Report, tool: Invoker | None, more: bool) -> tuple[Result, bool]:
        """The result, and whether this process is spent."""
        run = context.run
        try:
            if tool is None:
                tool = self._tool = self._load()
        except BaseException as error:  # noqa: BLE001 - importing the tool's module runs code that is not ours
            return could_not_load(run.name, text_of(error), told_of(error)), True
        try:
            confined.hold(run.hold)
        except OSError as error:
            return _not_held(run.name, error), True
        before = ProcessState() if more and tool is not _sample_tool() else None
        if tool.needs_resource:
            self._resources = self._resources or resources.Resources()
            context = context.keeping(self._resources.get)
        result = copy_context().run(_call, tool, context, report)
        if not more:
            self._close_resources()
        crashed = isinstance(result, ToolFailure) and result.code is FailureCode.CRASHED
        kept = self._resources.threads if self._resources is not None else frozenset()
        return result, run.hold is not Hold.NONE or crashed or _left_something(kept) or (
            before is not None and not _restored(before, kept)
        )

    def _close_resources(self) -> None:
        if self._resources is not None:
            self._resources.close()


def _uncovered(name: ToolName) -> ToolFailure:
    why = "a file that holds secrets was replaced since the tool was loaded, which is loaded again; it was not run"
    return ToolFailure(name, FailureCode.OVERLOADED, why, retry_hint="Send the same call again.")


def _not_held(name: ToolName, error: OSError) -> ToolFailure:
    why = f"it may only run held to reading, and could not be held, so it was not run: {error}"
    return ToolFailure(name, FailureCode.INTERNAL_ERROR, why, retry_hint=RETRY_HINTS[FailureCode.DENIED])


def _call(tool: Invoker, context: ToolContext, report: Report) -> Result:
    """In a context of its own, which has the ids for log records and the host's trace."""
    run = context.run
    WORK.set((run.tag, run.name, context.metadata))
    if context.trace_headers:
        continue_trace(context.trace_headers)
    return tool.call(run.arguments, context, report)


#: Asks a child where its code is. The last of the real-time signals, which no library is known to use.
STACK_SIGNAL: Final = signal.SIGRTMAX
#: How a child ends that a secret file is not covered in any more: its template ends too, since its next child would be
#: like it.
LOST_COVER: Final = 77
#: Frames of progress that a call may send at once, and a second: a reader is shown ten a second.
PROGRESS_BURST: Final = 16
PROGRESS_PER_SECOND: Final = 16.0
#: Of the traceback and of the frames, where a message carries both: with the error's text they fit into one.
LOAD_ERROR_BYTES: Final = 2_000
#: Pydantic loads half of itself the first time; the interpreter has specialised the code after some more.
REHEARSALS: Final = 2
FIRST_REHEARSALS: Final = 100


def _sample(text: str, number: int = 1, flag: bool = False, items: list[str] | None = None) -> dict[str, object]:
    return {"text": text}


@cache
def _sample_tool() -> Invoker:
    """Made where a child is made ready: the process of the runtime loads this module too, and needs none."""
    return Invoker("sample", _sample, read_signature(_sample, "sample"))


_SAMPLE_RUN: Final = RunTool(Tag(RequestId(""), MessageId("")), ToolName("sample"), '{"text": ""}', 0.0, "")
_SAMPLE_ORDER: Final = pickle.dumps((1, ToolContext(_SAMPLE_RUN), True), protocol=pickle.HIGHEST_PROTOCOL)


def rehearse() -> None:
    """Call a tool of our own, before the first fork: what is loaded and learnt then is there for all forks."""
    for _ in range(FIRST_REHEARSALS):
        number, context, _ = pickle.loads(_SAMPLE_ORDER)
        encode_reply(number, _sample_tool().call(context.run.arguments, context), spent=_left_something())


def encode_reply(number: int, result: Result, spent: bool) -> bytes:
    """One frame, which handle.py reads."""
    if isinstance(result, str):
        return _frame(number, Says.RESULT, result.encode(), spent)
    says = Says.DEFERRED if isinstance(result, Deferred) else Says.FAILURE
    return _frame(number, says, orjson.dumps(asdict(result)), spent)


def _frame(number: int, says: Says, body: bytes, spent: bool = False) -> bytes:
    return LENGTH.pack(REPLY.size + len(body)) + REPLY.pack(number, says, spent) + body


class ProgressSender:
    """What a tool says of its progress, as frames on the call socket: some a second, and only what fits into it.

    What is said more often waits for the next frame, or for the end of the call. A child has no timer for it: a thread
    would look as if the tool had left it behind.
    """

    def __init__(self, calls: socket.socket, number: int) -> None:
        self._calls = calls
        self._number = number
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._credit, self._seen_at = float(PROGRESS_BURST), time.monotonic()
        self._latest: CallProgress | None = None
        self._unsent = b""
        """The rest of a frame, which must go before anything else."""
        self._is_over = False

    def send(self, progress: CallProgress) -> None:
        """Say it now or, for a tool that says a lot, later. Never waits."""
        if os.getpid() != self._pid:  # a copy of the process, made by the tool: the socket is not its own
            return
        self._latest = progress
        if not self._lock.acquire(blocking=False):  # by another thread of the tool, or by what a signal has interrupted
            return
        try:
            now = time.monotonic()
            self._credit = min(PROGRESS_BURST, self._credit + (now - self._seen_at) * PROGRESS_PER_SECOND)
            self._seen_at = now
            if self._credit >= 1 and not self._is_over:
                self._credit -= 1
                self._write()
        finally:
            self._lock.release()

    def _write(self) -> None:
        if not self._unsent and self._latest is not None:
            self._unsent, self._latest = _progress_frame(self._number, self._latest), None
        with contextlib.suppress(OSError):  # there is no room; or the runtime has gone, which the next call finds
            self._unsent = self._unsent[self._calls.send(self._unsent, socket.MSG_DONTWAIT) :]

    def close(self) -> bytes:
        """The call has ended: what has to be sent before its result."""
        with self._lock:
            self._is_over = True
            latest, self._latest = self._latest, None
            return self._unsent + (_progress_frame(self._number, latest) if latest is not None else b"")


def _progress_frame(number: int, progress: CallProgress) -> bytes:
    return _frame(number, Says.PROGRESS, orjson.dumps({"message": progress.message, "fraction": progress.fraction}))


def _statements_frame(number: int, collected: object) -> bytes:
    """What the tool wants to be written, where it is collected."""
    return _frame(number, Says.STATEMENTS, collected.to_json()) if isinstance(collected, Statements) else b""


def could_not_load(name: ToolName, why: str, told: Told = NOT_TOLD) -> ToolFailure:
    """The result of a call whose tool's module does not load."""
    why = f"the tool could not be loaded in its child process: {why}"
    return ToolFailure(name, FailureCode.CRASHED, why, traceback=told.traceback, frames=told.frames)


def pack_load_error(error: BaseException, why: str) -> str:
    """What a template says of the error with which its tool does not load, and of the reason if it knows more, as the
    text of one message."""
    told = told_of(error)
    parts = ("; ".join(filter(None, (text_of(error), why))), *(bounded(text, LOAD_ERROR_BYTES) for text in told))
    return "\0".join(part.replace("\0", " ") for part in parts)


def unpack_load_error(name: ToolName, text: str) -> ToolFailure:
    """The failure of a call whose tool's template said so."""
    why, traceback, frames = (*text.split("\0"), "", "")[:3]
    return could_not_load(name, why, Told(traceback, frames))


def limit_memory(wanted_bytes: int) -> None:
    """Of data (heap, private mappings), not of address space: numpy and its like reserve far more than they use."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted_bytes if hard == resource.RLIM_INFINITY else min(wanted_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def limit_processes() -> None:
    """Of this user in this namespace of users, threads too: what stops a fork bomb of a tool until init.py has seen it.
    A root is not held by it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_POOL_PROCESSES if hard == resource.RLIM_INFINITY else min(MAX_POOL_PROCESSES, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _take_output(output: int) -> None:
    """0 reads nothing, 1 and 2 are the output pipe."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # By lines, so that what was printed before a crash is not lost with the buffer.
    sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115


def _end_call(_signal: int, _frame: FrameType | None) -> None:
    raise CallEnded("the call was ended")


def _restored(before: ProcessState, kept: Set[threading.Thread]) -> bool:
    try:
        return before.restore(kept)
    except BaseException:  # noqa: BLE001 - after what the tool has done to it, this process is not used again
        return False


def _left_something(kept: Set[threading.Thread] = frozenset()) -> bool:
    """Has the tool left threads, or processes that still run? One system call where it has no processes at all. `kept`:
    threads of what it keeps open."""
    if threading.active_count() > 1 + sum(thread.is_alive() for thread in kept):
        return True
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


# -- random numbers

#: What numpy draws from the system where no seed is given has 128 bits; a seed that somebody chose has fewer.
_WRITTEN_BITS: Final = 64

_from_system: dict[int, weakref.ref[random.Random]] = {}
"""By id: a class of a tool's own may not be hashable."""
_of_numpy: list[Any] = []


@contextlib.contextmanager
def watching_generators() -> Iterator[None]:
    """While a tool is loaded: find the generators of random numbers which that makes and gives no seed.

    Else each child of a template would draw the same numbers. One that was given a seed keeps it: who wrote
    `random.Random(42)` wants the same numbers, and each call gets them.
    """
    seed = random.Random.seed

    def noted(generator: random.Random, a: Any = None, *rest: Any, **more: Any) -> None:
        seed(generator, a, *rest, **more)
        if a is None:
            _from_system[id(generator)] = weakref.ref(generator)
        else:
            _from_system.pop(id(generator), None)

    random.Random.seed = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        _of_numpy.extend(each for each in gc.get_objects() if isinstance(each, numpy_random.BitGenerator))


def reseed() -> None:
    """In a fork. The generator behind `random.random()` seeds itself there."""
    for each in _from_system.values():
        with contextlib.suppress(Exception):  # a class of the tool's own: its calls find what is wrong with it
            if (generator := each()) is not None:
                generator.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is None:
        return
    numpy_random.seed()
    for bits in _of_numpy:
        entropy = getattr(getattr(bits, "seed_seq", None), "entropy", 0)
        if isinstance(entropy, int) and entropy.bit_length() > _WRITTEN_BITS:
            bits.state = type(bits)().state
