"""A started runtime: its thread, its tree and the requests that are open; and what a Runtime hands to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Final, Generic, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors import kernel
from callboard.actors.calls.approvals import ApprovalCallback, Approver, CallbackApprover, NobodyToAsk
from callboard.actors.journal.journal_records import Needs
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.actors.journal.recovery import Rebuilt
from callboard.actors.kernel.reply import Reply as AskReply
from callboard.actors.models.windows import Windows
from callboard.actors.policy.judge import JudgingApprover
from callboard.actors.requests.ended_feeds import EndedFeeds, process_name
from callboard.actors.requests.open_requests import OpenRequest, OpenState, waits_for
from callboard.actors.requests.output_checks import CheckThreads
from callboard.actors.requests.outside import OutsideCalls
from callboard.actors.requests.replies import Answer, Question, Seen, T
from callboard.actors.requests.request_feed import RequestFeed
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.session_messages import GoOn, ReadWork, SessionMessage, Subscriber
from callboard.actors.requests.write_ahead import LOST, WriteAhead
from callboard.actors.telemetry import extras
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.telemetry import ReadMetrics, RequestLost
from callboard.actors.topology import SESSION_CAPACITY, addresses_of, build, start_servers
from callboard.actors.wiring import KnownModel, Wiring
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import CallboardError, OutcomeUnknown, RuntimeFailure, said
from callboard.protocol.events import CancelRequested, NoticeCame, RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.machine import Session

logger = logging.getLogger("callboard")

#: The tree starts within milliseconds; this long means the machine is not answering.
START_SECONDS: Final = 30.0
#: Everything must have stopped by then; what has not is killed.
SHUTDOWN_SECONDS: Final = 10.0
#: What was posted to the loop is done within milliseconds; a wait this long means that something holds it.
POSTED_SECONDS: Final = 1.0
#: For finding causes; a late result may hold a megabyte, so these are some hundred at the most.
DEAD_LETTERS_KEPT: Final = 256
#: A session takes a message within milliseconds; one that holds the loop must not hold the editor of files for long.
TELL_SECONDS: Final = 2.0
#: A session says where it is within milliseconds; a wait this long means that something holds the loop.
READ_SECONDS: Final = 5.0
#: Between two looks at what requests wait for while a runtime drains.
DRAIN_LOOK_SECONDS: Final = 0.5
#: What an ask raises where nobody answers it. Asked where it would wait for itself is another mistake, and named so.
_UNANSWERED: Final = (kernel.ActorDeadError, kernel.AskTimeout, kernel.MailboxFull, kernel.NoSuchActor)
#: A snapshot is a copy of some counters; a wait this long means that something holds the loop.
METRICS_TIMEOUT_SECONDS: Final = 5.0


class Failed(Future[RuntimeFailure | None]):
    """Why the tree of a runtime has ended by itself; None, when the runtime was stopped.

    `await` it on any event loop, `result(timeout)` waits for it without one, and what `add_done_callback` was given is
    called with it, on a thread of its own, from where the runtime may be stopped and started.
    """

    def __await__(self) -> Generator[object, None, RuntimeFailure | None]:
        # asyncio.wrap_future would take it from all when one waits no longer, and log an error where a loop is closed.
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiting.done():
                waiting.set_result(None)

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed, and nobody waits there
                loop.call_soon_threadsafe(wake)

        self.add_done_callback(tell)
        yield from waiting
        return self.result()


class AboutToBegin(Protocol):
    """A question whose request is about to begin."""

    request_id: RequestId
    answer: Answer[Any]
    why_cancelled: str | None
    """By someone who knows its id."""


class StartedRuntime:
    """A started runtime: the thread, the tree and the requests that are open."""

    def __init__(
        self,
        wiring: Wiring,
        approve: ApprovalCallback | None,
        begin_work: Callable[[StartedRuntime, contextlib.ExitStack], object],
    ) -> None:
        """`begin_work`: what else is begun with it, and ended before it."""
        self.process_id = os.getpid()
        self.has_approver = approve is not None
        self.begin_spans = wiring.begin_spans
        self.process_name = process_name()
        self.ended_feeds = EndedFeeds()
        self.adding_feeds = threading.Lock()
        self.sessions: dict[RequestId, kernel.Ref[SessionMessage]] = {}
        self.requests: dict[RequestId, StartedRequest[object]] = {}
        """Those that have not ended."""
        self.beginning: dict[AboutToBegin, None] = {}
        """Those that are about to begin."""
        self.is_over = False
        """Its loop has ended."""
        self.is_draining = False
        """No new requests are taken."""
        self.is_stopping = False
        self._closing = threading.Lock()
        self.failed = Failed()
        self.why_ended = ""
        """Of a tree that has ended by itself."""
        self._ending = threading.Lock()
        self.has_none = threading.Event()
        """No request runs; looked at while it drains."""
        self.left_open: dict[RequestId, OpenRequest] = {}
        """Those of earlier processes that this one cannot go on with."""
        self.conversations = wiring.conversations
        self.check_threads = CheckThreads()
        self.reading_stack = threading.Lock()
        try:
            with contextlib.ExitStack() as begun:  # what fails here ends what has begun before it
                self._start(begun, wiring, approve)
                begin_work(self, begun)
                self._begun = begun.pop_all()
        except (kernel.StartFailed, kernel.OutOfThreads, OSError) as error:  # OSError: no more descriptors to be had
            cause = error.cause if isinstance(error, kernel.StartFailed) else None
            if isinstance(cause, CallboardError):
                raise cause from cause.__cause__  # what the system or the database has said
            failure = RuntimeFailure(f"the runtime could not start, and nothing of it is left running: {said(error)}")
            raise failure from error

    def close(self) -> None:
        """End everything that was begun, in reverse order, also where some of it fails. Another thread that does so
        waits for the one that was first."""
        self.end_drain()
        with self._closing:
            self._begun.close()

    def _start(self, begun: contextlib.ExitStack, wiring: Wiring, approve: ApprovalCallback | None) -> None:
        begun.callback(self._settle, None)
        begun.callback(self._loop_ended)
        scheduler = kernel.LoopScheduler("callboard")
        begun.callback(scheduler.stop, SHUTDOWN_SECONDS)
        scheduler.start()
        begun.callback(wiring.close, scheduler)
        begun.callback(self.check_threads.close)
        self.windows = Windows()
        begun.callback(scheduler.loop.call_soon_threadsafe, self.windows.cancel)
        behind: Approver = NobodyToAsk()
        if approve is not None:
            behind = CallbackApprover(approve, wiring.saved_rules.remember, wiring.confinement_of)
        judge = wiring.judge()
        approver = JudgingApprover(judge, behind, scheduler)
        begun.callback(approver.close)
        self.system = kernel.ActorSystem(scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        self.outbox: Outbox | None = None
        begun.callback(self._stop_actors)
        plan = replace(wiring.plan(self.system, scheduler, approver, judge), gives_up=self._gives_up)
        self.outbox = plan.journal.outbox if plan.journal is not None else None
        if self.outbox is not None:
            self.outbox.ends_runtime = self._journal_gone
        build(self.system, plan)
        self.system.watch(self.system.ref("root"), self._root_ended)
        if wiring.edits is not None:
            wiring.edits.tell_model = self.tell_model
        self.post = scheduler.loop.call_soon_threadsafe
        self.outside = OutsideCalls(self.system, self.sessions.get, lambda: wiring.offered_tools)
        self.system.wait_until_started(self.system.ref("root"), START_SECONDS)
        self._supervisor, self.peers = addresses_of(self.system, START_SECONDS)
        start_servers(self.system, plan)
        wiring.servers.wait()
        begun.callback(extras.observe(self.metrics))
        self.records: JournalRecords | None = None
        if self.outbox is not None:
            self.records = JournalRecords(self.system.ref("root/journal"))
            begun.callback(self.records.close)

    def begin(self, opened: StartedRequest[T]) -> None:
        """Start the session; its answer settles exactly once, even if the session is lost."""
        question, answer = opened.question, opened.answer
        request_id = question.tag.request_id
        temporary, capacity = kernel.Restart.TEMPORARY, SESSION_CAPACITY
        spec = kernel.ChildSpec(str(request_id), opened.make_session, restart=temporary, capacity=capacity)
        ref = kernel.start_child(self._supervisor, spec)
        if opened.rebuilt is not None:
            ref.tell_control(GoOn())  # before anybody else knows its address
        self.sessions[request_id] = opened.ref = ref
        self.requests[request_id] = cast("StartedRequest[object]", opened)
        answer.is_kept = self.outbox is not None
        if question.options.compaction is not None:
            self.conversations[request_id] = answer.conversation
        self.system.watch(ref, opened.ended)

    def _loop_ended(self) -> None:
        self.is_over = True
        self.refuse_beginning()

    def refuse_beginning(self) -> None:
        """Its loop has ended, and begins nothing more."""
        for new in tuple(self.beginning):
            self.beginning.pop(new, None)
            new.answer.refuse(self.failure or RuntimeFailure("this runtime is stopping"))

    def drain(self, deadline_seconds: float) -> bool:
        """See `Runtime.drain`. Blocks."""
        self.is_draining = True
        until = time.monotonic() + deadline_seconds
        while (left := until - time.monotonic()) > 0:
            if not (self.requests or self.beginning) or self.is_stopping:
                break
            self.has_none.wait(min(left, DRAIN_LOOK_SECONDS))
            self.has_none.clear()
            with self.asking():
                open_ones = [opened.described() for opened in tuple(self.requests.values())]
            if self.outbox is not None and all(each is None or each.state is OpenState.WAITING for each in open_ones):
                break
        if (failure := self.failure) is not None:
            raise failure
        return not (self.requests or self.beginning)

    def end_drain(self) -> None:
        """The runtime stops now: what waits for its requests waits no longer."""
        with self._ending:
            self.is_stopping = True
        if self.outbox is not None:
            self.outbox.taken_up = None
        self.has_none.set()

    # -- the end of the tree

    @property
    def failure(self) -> RuntimeFailure | None:
        """A new one each time: threads that raise it share no traceback. None while the tree lives."""
        return RuntimeFailure(self.why_ended) if self.why_ended else None

    @contextlib.contextmanager
    def asking(self, *, changes: bool = False) -> Iterator[None]:
        """Around what is asked of the tree: that it has ended meanwhile, or does not answer, is a RuntimeFailure;
        OutcomeUnknown for what `changes` something, and may still do so."""
        try:
            yield
        except (kernel.KernelError, CallboardError) as error:
            if (failure := self.failure) is not None:
                raise failure from error
            if isinstance(error, _UNANSWERED):
                kind = OutcomeUnknown if changes and isinstance(error, kernel.AskTimeout) else RuntimeFailure
                raise kind(f"callboard did not answer: {said(error)}") from error
            raise

    def _gives_up(self, failure: kernel.IntensityExceeded) -> None:
        self._tree_ends(f"its actors failed too often ({failure})")

    def _root_ended(self, down: kernel.Down) -> None:
        why = f": {said(down.error)}" if down.error is not None else ""
        self._tree_ends(f"the actor above all others has ended ({down.reason.value}{why})")

    def _journal_gone(self, why: str) -> None:
        """Nothing can be promised any more: all that runs ends, with this reason."""
        self._tree_ends(why)
        self.system.ref("root").stop()

    def _tree_ends(self, why: str) -> None:
        """Once. What waits for it hears it on a thread of its own: a callback may stop this runtime, which waits for
        the loop that this is called on."""
        with self._ending:
            if self.is_stopping or self.why_ended:
                return
            self.why_ended = f"this runtime has ended by itself, since {why}; call stop() and then start()"
        logger.error("%s", self.why_ended)
        try:
            threading.Thread(target=self._settle, args=(self.failure,), name="callboard-failed", daemon=True).start()
        except RuntimeError:  # no more threads to be had
            self._settle(self.failure)

    def _settle(self, why: RuntimeFailure | None) -> None:
        with contextlib.suppress(InvalidStateError):  # the other of the two ends was first
            self.failed.set_result(why)

    # -- looking in

    def metrics(self) -> Metrics:
        with self.asking():
            return self.peers.telemetry.ask(ReadMetrics(self.system.now()), METRICS_TIMEOUT_SECONDS)

    def cancel(self, request_id: RequestId, reason: str) -> bool:
        """From any thread, in the midst of anything."""
        beginning = [new for new in tuple(self.beginning) if new.request_id == request_id]
        for new in beginning:
            new.why_cancelled, new.answer.is_left = reason, True
        if (opened := self.requests.get(request_id)) is not None:
            opened.answer.is_left = True
        if not beginning and request_id not in self.sessions:
            return False
        self.system.scheduler.call_soon(partial(self._cancel, request_id, reason))
        return True

    def _cancel(self, request_id: RequestId, reason: str) -> None:
        if (ref := self.sessions.get(request_id)) is not None:
            ref.tell_control(CancelRequested(tag_of(request_id), self.system.now(), reason))

    def tell_model(self, request_id: str, text: str) -> bool:
        """Give the model of a running request something to read; False where it does not run, or is about to end."""
        tag = tag_of(RequestId(request_id))
        ref = self.sessions.get(tag.request_id)
        if ref is None:
            return False
        try:
            taken = ref.ask(NoticeCame(tag, self.system.now(), text), TELL_SECONDS)
            return taken.get(timeout=TELL_SECONDS) is True if isinstance(taken, AskReply) else True
        except (kernel.KernelError, RuntimeFailure):
            return False

    def _stop_actors(self) -> None:
        self.end_drain()
        posted = AskReply[None]()  # what was asked before ends as all that runs does
        self.system.scheduler.call_soon(partial(posted.answer, None))
        posted.wait(POSTED_SECONDS)
        if not self.system.shutdown(SHUTDOWN_SECONDS):
            logger.warning("some actors did not stop within %s s and were killed", SHUTDOWN_SECONDS)


class Acceptance:
    """Hears of a request with its answer, and says when it has begun: once the journal has it."""

    def __init__(self, answer: Answer[object]) -> None:
        self.answer = answer
        self.has_begun = False
        self.known = AskReply[None]()
        """It has begun, or has ended without."""
        answer.future.on_done(self._over)

    def __call__(self, seen: Seen) -> None:
        """The session's side."""
        self.answer(seen)
        if isinstance(seen, RequestStarted):
            self.counts()

    def counts(self) -> None:
        """It has begun."""
        self.has_begun = True
        self._over()

    def _over(self) -> None:
        self.known.answer(None)


class Start(Struct, eq=False):
    """One call of `Runtime.start`, and what came of it."""

    turn: int
    is_wanted: bool = True
    running: StartedRuntime | None = None


class StartedRequest(Struct, Generic[T], eq=False):
    """One request, from its question to its answer. One object, where closures and partials would be twenty: those that
    are open take a share of every collection of garbage."""

    running: StartedRuntime
    question: Question
    model: KnownModel
    answer: Answer[T]
    subscriber: Subscriber
    begun_at: float
    """By the wall clock."""
    needs: Needs = Needs()
    rebuilt: Rebuilt | None = None
    """Of a request that was taken up from the journal: what it was there."""
    ref: kernel.Ref[SessionMessage] | None = None
    feed: RequestFeed | None = None
    """Where it is followed, or may be."""
    acceptance: Acceptance | None = None
    """Of one that no one waits for."""
    has_run: bool = False
    """Its session was made."""

    def make_session(self) -> RequestSession:
        self.has_run = True
        running, question, model, direct = self.running, self.question, self.model, self.needs.direct
        is_open = (
            direct is None
            and self.rebuilt is None
            and question.options.context_tokens is None
            and not model.is_unlimited
        )
        return RequestSession(
            question,
            running.peers,
            self.subscriber,
            self.answer.conversation.record,
            partial(Session, count_tokens=model.count_tokens) if direct is None else partial(DirectCall, direct),
            find_window=partial(running.windows.find, model.routes[0]) if is_open else None,
            begin_spans=running.begin_spans,
            ahead=self._write_ahead(),
            taken_up=None if self.rebuilt is None else self.rebuilt.taken_up,
        )

    def _write_ahead(self) -> WriteAhead | None:
        outbox, found = self.running.outbox, self.rebuilt
        if outbox is None:
            return None
        question, conversation = self.question, self.answer.conversation
        if found is None:
            return WriteAhead(question, conversation, outbox, self.needs)
        ahead = WriteAhead(question, conversation, outbox, self.needs, written=found.written, recorded=found.recorded)
        ahead.take_note(found.told)
        return ahead

    def described(self) -> OpenRequest | None:
        """Where it is; None where it has ended meanwhile. A blocking ask."""
        assert self.ref is not None
        try:
            work = self.ref.ask(ReadWork(), READ_SECONDS)
        except (kernel.ActorDeadError, kernel.Rejected):
            return None
        question, conversation = self.question, self.answer.conversation
        return OpenRequest(
            question.tag.request_id,
            conversation.id,
            question.options.model,
            self.begun_at,
            work.state,
            work.step,
            work.calls,
            waits_for(work.calls),
            self.rebuilt is not None,
        )

    def ended(self, down: kernel.Down) -> None:
        """Its session has."""
        running, request_id = self.running, self.question.tag.request_id
        if self.feed is not None:
            running.ended_feeds.add(request_id, self.feed, running.system.now())
        if running.sessions.get(request_id) is self.ref:  # the name is free before the asker knows
            del running.sessions[request_id], running.requests[request_id]
            running.conversations.pop(request_id, None)
            if running.is_draining and not running.requests:
                running.has_none.set()
        if not (self.has_run or running.why_ended) and down.reason is kernel.ExitReason.KILLED:
            self._give_up()
        if self.answer.session_ended(down, running.why_ended):
            with contextlib.suppress(kernel.MailboxFull):
                running.peers.telemetry.tell(RequestLost(self.question))

    def _give_up(self) -> None:
        """Say in the journal that it has ended, as its asker hears: its session was lost before it could."""
        ahead = self._write_ahead()
        if ahead is not None:
            ahead.give_up(LOST)


def tag_of(request_id: RequestId) -> Tag:
    """The tag of a request as a whole; the message it answers has no other name yet."""
    return Tag(request_id, MessageId(f"{request_id}/user"))


def tag_of_call(request_id: str, step: int, call_id: str) -> Tag:
    """The tag of one call of a request."""
    return tag_of(RequestId(request_id)).at_step(step)._replace(call_id=CallId(call_id))
