"""Journal: the one actor that writes to the journal, on a thread of its own.

Writes wait in the outbox; while a commit runs, more gather, and the next commit takes them together. No write waits for
a timer. A session hears once a batch up to which of its events all is durable.

A store that fails ends no actor: the requests whose writes failed hear why and end, and the next write is tried like
any other. So it goes on when a disk has room again. That those requests have ended is written as soon as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, TypeVar, cast

from msgspec import Struct

from callboard.actors.journal.journal_records import RequestEnd, Write
from callboard.actors.journal.journal_store import (
    ChangeRefused,
    JournalFailed,
    JournalGone,
    JournalLost,
    JournalUnsure,
    JournalWriter,
)
from callboard.actors.journal.outbox import (
    AppendWrite,
    CommitEffect,
    EffectCommitted,
    HandedOver,
    NotWritten,
    Outbox,
    Written,
)
from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    Asks,
    AskTimeout,
    ChildSpec,
    MailboxFull,
    Ref,
    Timer,
    handles,
    logger_of,
)
from callboard.actors.telemetry.notices import JournalCommitted, JournalDamageFound, JournalUnwritten
from callboard.actors.telemetry.telemetry import TelemetryMessage
from callboard.protocol.errors import CallboardError, OutcomeUnknown, RuntimeFailure, said
from callboard.protocol.ids import RequestId

logger = logger_of("callboard")

#: Changes of one commit. At 20 us a change the next batch waits 10 ms at the most.
MAX_BATCH: Final = 500
#: A batch that ends the actor so often is given up: what is in it may be the reason.
MAX_TRIES: Final = 3
#: After a failure, what must still be written is tried again in so many seconds, and ever more rarely.
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
#: After a lease could not be renewed: many tries within the usual 10 s of a lease.
RENEW_AGAIN_SECONDS: Final = 1.0
#: For maintenance that is done in small pieces.
STORE_SECONDS: Final = 30.0
VOID: Final = "the request of this call goes on no more: what it did before could not be written to the journal"
CRASHED: Final = f"the journal's writer crashed {MAX_TRIES} times over what this request or others wrote"

R = TypeVar("R")


class Ran(Struct, Generic[R], frozen=True):
    """What came of an OnStore."""

    value: R | None
    error: Exception | None = None

    def result(self) -> R:
        """What the function has returned; raises what it has raised."""
        if self.error is not None:
            raise self.error
        return cast(R, self.value)


class OnStore(Asks[Ran[R]], Struct, Generic[R], frozen=True):
    """Run a function over the writer, on the journal's thread and behind all that waited: for maintenance, and to take
    up requests. It must not take long: nothing is written meanwhile."""

    run: Callable[[JournalWriter], R]


class CommitWaiting(Struct, frozen=True):
    """Something waits in the outbox."""


class WriteAgain(Struct, frozen=True):
    """To itself: what could not be written may be written now."""


class RenewLease(Struct, frozen=True):
    """To itself: say that this process is alive, where others share the journal."""


JournalMessage = CommitWaiting | OnStore[object] | WriteAgain | RenewLease


class Journal(Actor[JournalMessage]):
    """See the module. It owns the writer that `make_writer` gives it."""

    def __init__(
        self,
        make_writer: Callable[[], JournalWriter],
        outbox: Outbox,
        telemetry: Ref[TelemetryMessage] | None = None,
    ) -> None:
        self._make_writer = make_writer
        self._outbox = outbox
        self._telemetry = telemetry
        self._writer: JournalWriter | None = None
        self._retry: Timer | None = None
        self._renewal: Timer | None = None
        self._failures = 0
        """In a row."""

    # -- life

    def on_start(self) -> None:
        """Open the store. The first start of a runtime fails where that fails; later ones go on without it for a while,
        since requests are running."""
        outbox, address = self._outbox, self.ref
        self.at_end(self._close)
        outbox.wake = lambda: address.tell(CommitWaiting())
        try:
            self._opened()
        except CallboardError as error:
            if not outbox.has_opened:
                raise
            self._note_failure(said(error))
        outbox.has_opened = True
        outbox.look(0)
        outbox.look_again()
        if outbox.marks(1):  # the one before may have crashed over them alone
            self._retry = self.tell_after(RETRY_SECONDS[0], WriteAgain())

    def on_stopping(self) -> bool:
        """Write what waits: the sessions have stopped before."""
        while batch := self._outbox.look(MAX_BATCH):
            self._commit_batch(batch)
        if self._outbox.marks(1):
            self._commit_batch(())
        return True

    def _opened(self) -> JournalWriter:
        if self._outbox.gone:
            raise JournalGone(self._outbox.gone)
        if self._writer is None:
            writer = self._make_writer()
            report = writer.open()
            self._writer = writer
            for note in report.notes:
                logger.warning("journal: %s", note, extra={"event": "journal.opened"})
            if report.set_aside:
                self._outbox.damage = "; ".join(report.notes)
                self._tell(JournalDamageFound())
            self._renew()
        return self._writer

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except Exception as error:  # noqa: BLE001 - what matters of it is written: the next one opens the same journal
            logger.warning("the journal could not be closed: %s", said(error))

    # -- messages

    @handles(CommitWaiting)
    def _commit(self, _: CommitWaiting) -> None:
        batch = self._outbox.look(MAX_BATCH)
        if batch:
            self._commit_batch(batch)
            self._outbox.look_again()

    @handles(WriteAgain)
    def _write_again(self, _: WriteAgain) -> None:
        self._retry = None
        self._commit_batch(self._outbox.look(MAX_BATCH))
        self._outbox.look_again()

    @handles(OnStore)
    def _on_store(self, message: OnStore[object]) -> Ran[object]:
        self._commit_all()
        try:
            return Ran(message.run(self._opened()))
        except Exception as error:  # noqa: BLE001 - the asker's: the actor goes on
            return Ran(None, error)

    @handles(RenewLease)
    def _renew_lease(self, _: RenewLease) -> None:
        try:
            writer = self._opened()
            self._renew()
            if writer.is_shared:
                self._take_up()
        except JournalLost as error:
            self._lost((), error)
            self._set_renewal(RENEW_AGAIN_SECONDS)
        except CallboardError as error:
            self._note_failure(said(error))
            self._set_renewal(RENEW_AGAIN_SECONDS)

    def _take_up(self) -> None:
        """Go on with requests of processes that have ended, and with those of ours that nothing here goes on with."""
        outbox = self._outbox
        before = outbox.here()  # whatever has ended before this has its end written next
        self._commit_all()

        def idle(open_ones: Collection[RequestId]) -> frozenset[RequestId]:
            return frozenset(each for each in open_ones if not outbox.is_failed(each)) - before - outbox.here()

        if outbox.taken_up is not None and (found := self._opened().take_up(idle)):
            outbox.taken_up(found)

    def _renew(self) -> None:
        assert self._writer is not None
        seconds = self._writer.renew()
        if seconds is not None:
            self._set_renewal(seconds)

    def _set_renewal(self, seconds: float) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = self.tell_after(seconds, RenewLease())

    # -- writing

    def _commit_all(self) -> None:
        """Deal with what waits now; not with what comes meanwhile, which may have no end."""
        left = self._outbox.count
        while left > 0:
            batch = self._outbox.look(min(left, MAX_BATCH))
            self._commit_batch(batch)
            left -= len(batch)
        self._outbox.look_again()

    def _commit_batch(self, batch: Sequence[HandedOver]) -> None:
        """Deal with what waits longest: it is written, or those who wait for it hear why not."""
        outbox = self._outbox
        sound = [each for each in batch if not self._is_void(each)]
        marks = outbox.marks(MAX_BATCH)  # without those of requests that begin once more by the batch
        if outbox.tries >= MAX_TRIES:
            for mark in () if sound else marks:
                outbox.drop_mark(mark)
            self._fail(sound, CRASHED)
        elif sound or marks:
            outbox.tries += 1
            self._write(marks, sound)
        outbox.drop(len(batch))

    def _is_void(self, each: HandedOver) -> bool:
        """Is it of a request that has failed here?"""
        if isinstance(each, AppendWrite):
            return self._outbox.has_failed(each.change)
        is_void = self._outbox.is_failed(each.change.tag.request_id)
        if is_void:
            each.reply_to.tell_control(EffectCommitted(each.change.tag, RuntimeFailure(VOID)))
        return is_void

    def _write(self, marks: Sequence[Write], batch: Sequence[HandedOver]) -> None:
        changes = (*marks, *(each.change for each in batch))
        began = self.now()
        try:
            writer = self._opened()
            refused = writer.commit(changes)
            if not writer.may_act():
                self._renew()  # what is written may be acted on when the lease is surely ours
        except JournalLost as error:
            self._lost(batch, error)
        except CallboardError as error:
            self._outbox.error = error
            self._fail(batch, said(error), is_unsure=isinstance(error, OutcomeUnknown) or self._outbox.tries > 1)
        except Exception as error:  # noqa: BLE001 - our fault, in one of them: the others go on
            self._crashed(marks, batch, error)
        else:
            self._tell(JournalCommitted(len(changes), self.now() - began))
            self._has_recovered()
            for mark in marks:
                self._outbox.drop_mark(mark)
            self._written(batch, refused[len(marks) :])

    def _written(self, batch: Sequence[HandedOver], refused: Sequence[ChangeRefused | None]) -> None:
        sessions = self._outbox.sessions
        up_to: dict[RequestId, tuple[Ref[Written | NotWritten], int]] = {}
        for each, why in zip(batch, refused, strict=True):
            if why is not None:
                self._refused(each, why)
            elif isinstance(each, CommitEffect):
                each.reply_to.tell_control(EffectCommitted(each.change.tag))
            elif each.reply_to is not None:
                change = each.change
                up_to[change.request_id] = each.reply_to, change.number + len(change.events) - 1
                sessions[change.request_id] = each.reply_to
            if isinstance(each, AppendWrite) and each.change.ends is not None:
                sessions.pop(each.change.request_id, None)
        for request_id, (session, number) in up_to.items():
            session.tell_control(Written(request_id, number))

    # -- what goes wrong

    def _refused(self, each: HandedOver, why: RuntimeFailure) -> None:
        """It alone was not written. Nothing is said of its request: the journal has another of that name, perhaps."""
        if isinstance(each, CommitEffect):
            each.reply_to.tell_control(EffectCommitted(each.change.tag, why))
        else:
            self._outbox.remember_failed(each.change.request_id, None)
            self._tell_failed([each], said(why), is_unsure=False)

    def _fail(self, batch: Sequence[HandedOver], why: str, *, is_unsure: bool = True) -> None:
        """Nothing of it was written: their requests end, and the journal says so as soon as it can be written.
        `is_unsure`: some of it may have been."""
        self._note_failure(why)
        for each in batch:
            if isinstance(each, AppendWrite):
                change, now = each.change, self._outbox.wall_clock()
                ended = change.ends if change.ends is not None and each.reply_to is None else None
                end = ended or RequestEnd(now, None, failure=why)
                self._outbox.remember_failed(change.request_id, Write(change.request_id, change.number, (), ends=end))
        self._tell_failed(batch, why, is_unsure=is_unsure)
        if self._retry is None and self._outbox.marks(1):
            seconds = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS)) - 1]
            self._retry = self.tell_after(seconds, WriteAgain())

    def _tell_failed(self, batch: Sequence[HandedOver], why: str, *, is_unsure: bool = True) -> None:
        told: dict[RequestId, None] = {}
        for each in batch:
            if isinstance(each, CommitEffect):
                each.reply_to.tell_control(EffectCommitted(each.change.tag, RuntimeFailure(why)))
                continue
            request_id = each.change.request_id
            self._outbox.sessions.pop(request_id, None)
            if each.reply_to is not None and request_id not in told:
                told[request_id] = None
                each.reply_to.tell_control(NotWritten(request_id, why, is_unsure))

    def _crashed(self, marks: Sequence[Write], batch: Sequence[HandedOver], error: Exception) -> None:
        """One change is what our code cannot write: each is tried alone, and its request ends where it is the one."""
        if len(marks) + len(batch) == 1:
            logger.error("the journal could not write a change: %s", said(error), exc_info=error)
            for mark in marks:
                self._outbox.drop_mark(mark)
            self._fail(batch, f"internal_error: {said(error)}", is_unsure=False)
            return
        for mark in marks:
            self._write((mark,), ())
        for each in batch:
            if not self._is_void(each):
                self._write((), (each,))

    def _lost(self, batch: Sequence[HandedOver], error: JournalLost) -> None:
        """Another process goes on with all requests that had begun: they end here, unmarked. New ones can begin, unless
        there is no journal any more."""
        why = said(error)
        self._outbox.error = error
        if isinstance(error, JournalGone):
            self._outbox.failure = why  # the end of the runtime says it
        self._note_failure(why)
        self._close()
        sessions = dict(self._outbox.sessions)
        self._outbox.sessions.clear()
        for each in batch:
            if isinstance(each, AppendWrite) and each.reply_to is not None:
                sessions[each.change.request_id] = each.reply_to
        self._tell_failed([each for each in batch if isinstance(each, CommitEffect)], why)
        for request_id, session in sessions.items():
            self._outbox.remember_failed(request_id, None)
            session.tell_control(NotWritten(request_id, why, is_unsure=True))
        if isinstance(error, JournalGone) and not self._outbox.gone:
            self._outbox.gone = why
            self._outbox.ends_runtime(why)

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        if not self._outbox.failure:
            logger.error("the journal is not written: %s", why, extra={"event": "journal.failed"})
        self._outbox.failure = why
        self._tell(JournalUnwritten())

    def _has_recovered(self) -> None:
        if self._outbox.failure:
            logger.warning("the journal is written again", extra={"event": "journal.recovered"})
        self._outbox.failure, self._outbox.error, self._failures = "", None, 0

    def _tell(self, what: JournalCommitted | JournalDamageFound | JournalUnwritten) -> None:
        if self._telemetry is None:
            return
        try:
            self._telemetry.tell(what)
        except MailboxFull:  # telemetry that cannot keep up must not steer; the kernel counts it
            return


def run_on_store(
    journal: Ref[JournalMessage],
    run: Callable[[JournalWriter], R],
    timeout_seconds: float = STORE_SECONDS,
    *,
    changes: bool = False,
) -> R:
    """The function's result, run by the Journal actor. Blocks; raises what it raises, and JournalFailed; JournalUnsure
    for one that `changes` something, and may still do so."""
    try:
        found = journal.ask(OnStore(run), timeout_seconds)
    except (ActorDeadError, AskTimeout, MailboxFull) as error:
        kind = JournalUnsure if changes and not isinstance(error, MailboxFull) else JournalFailed
        raise kind(f"the journal does not answer: {error}") from error
    return found.result()


def journal_actor(
    make_writer: Callable[[], JournalWriter], outbox: Outbox, telemetry: Callable[[], Ref[TelemetryMessage]]
) -> ChildSpec[JournalMessage]:
    """For the tree."""
    return ChildSpec("journal", lambda: Journal(make_writer, outbox, telemetry()), runs_on="thread")
