"""What must become of the messages, watches and timers of actors that do what they like.

The books are two lists an actor and a few rules; they follow what is seen (a message is sent, taken; an incarnation
starts, ends) in the order in which it happens, and say at each step what the kernel promised to do then.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, field

from callboard.actors.kernel import (
    ActorCrashed,
    ActorDeadError,
    ActorSystem,
    AskOnLoopError,
    AskTimeout,
    DeadLetterReason,
    DeadlockError,
    Down,
    ExitReason,
    MailboxFull,
    Ref,
    Rejected,
    Restart,
    Timer,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.kernel.scheduler import Run
from callboard.actors.testing.simulation import SimulatedScheduler

#: Above and below the size at which a mailbox changes its way of keeping messages.
CAPACITIES: Final = (1, 3, 17, 20, 64)
#: In place of a life: the watch is of who has asked it to stop.
STOP: Final = -1
MOST_TOLD: Final = 5


class Say(Struct, frozen=True):
    """A message, and what its handler does before it answers."""

    serial: int
    deeds: tuple[tuple[Any, ...], ...] = ()


class Answered(Struct, frozen=True):
    """What an actor is told when its ask has its answer."""

    serial: int


class Books(Struct, eq=False):
    """What must be true of one actor."""

    name: str
    capacity: int
    restart: Restart
    supervised: bool
    on_thread: bool
    control: list[object] = field(default_factory=list)
    user: list[object] = field(default_factory=list)
    state: str = "starting"
    life: int = 0
    """Incarnations that have begun."""
    handled: int = 0
    count: int = 0
    """Messages that this incarnation has taken."""
    current: object = None
    error: BaseException | None = None
    """What its last handler raised."""
    how: ExitReason | None = None
    watched_by: list[Watch] = field(default_factory=list)
    timers: dict[float, object] = field(default_factory=dict)
    asks: str = ""
    """Whom its handler waits for."""
    slow: bool = False
    at_end: list[int] = field(default_factory=list)


class Watch(Struct, eq=False):
    """One watch of the books: an actor's incarnation, or the play's own."""

    number: int
    watcher: Books | None
    life: int = 0


class PlayedScheduler(SimulatedScheduler):
    """Tells which timer fires; the play sets no two for one moment."""

    fired: Callable[[float], object] = staticmethod(lambda _: None)

    def call_at(self, when_seconds: float, run: Run, *, lived: bool = False) -> Timer:
        """As it is, and told."""

        def told() -> None:
            self.fired(when_seconds)
            run()

        return super().call_at(when_seconds, told, lived=lived)


class Stage:
    """The actors, their books, and what did not agree."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"messages {seed}")
        self.simulation = PlayedScheduler(rng.randrange(2**32))
        self.simulation.turn_messages = rng.choice((1, 1, 3, 64))
        self.simulation.fired = self._fired
        self.kept = rng.choice((3, 1_000))
        self.system = ActorSystem(self.simulation, dead_letters_kept=self.kept)
        self.raised: list[BaseException] = []
        self.stops_asked: dict[int, tuple[Reply[Any], bool]] = {}
        self.stops_over: set[int] = set()
        self.problems: list[str] = []
        self.is_playing = False
        self.books: dict[str, Books] = {}
        self.refs: dict[str, Ref] = {}
        self.serial = 0
        self.letters: deque[tuple[int, object, DeadLetterReason, str, float, str]] = deque(maxlen=self.kept)
        self.lettered: Counter[DeadLetterReason] = Counter()
        self.outcomes: dict[int, tuple[object, BaseException | None]] = {}
        self.replies: dict[int, Reply] = {}
        self.asked: dict[int, str] = {}
        """Asks that wait for their answer: serial, and who is asked."""
        self.told_answers: dict[int, tuple[Books, int]] = {}
        self.due: dict[float, Callable[[], object]] = {}
        self.expected_downs: list[tuple[object, ...]] = []
        self.downs: list[tuple[object, ...]] = []
        self.watches = 0
        self.abandoned = self.given_up_handlers = 0
        self.dead: list[Books] = []

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < MOST_TOLD:
            self.problems.append(f"at {self.simulation.now():.3f} s {what}")

    # -- who there is

    def new_books(self, name: str, *, supervised: bool) -> Books:
        restart = self.rng.choice(list(Restart)) if supervised else Restart.TEMPORARY
        on_thread = self.rng.random() < 0.25
        if name in self.books:
            self.dead.append(self.books[name])
        self.books[name] = Books(name, self.rng.choice(CAPACITIES), restart, supervised, on_thread)
        return self.books[name]

    def next_serial(self) -> int:
        """A number that no other message has."""
        self.serial += 1
        return self.serial

    def anew(self, message: Say) -> Say:
        """The same, for a handler that may do it twice: its message may be sent again."""
        return Say(self.next_serial(), message.deeds)

    def unlike_any(self, seconds: float) -> float:
        """So long, and no two end at one moment, so that a timer is known by its time."""
        return seconds + self.next_serial() * 1e-9

    # -- what is sent

    def queued(self, books: Books, message: object, *, control: bool) -> bool:
        """Put it in the books; False when it has to be refused."""
        if books.state == "dead":
            self.letter(books, message, DeadLetterReason.NOT_ALIVE)
        elif control:
            books.control.append(message)
        elif len(books.user) >= books.capacity:
            return False
        else:
            books.user.append(message)
        return True

    def tell(self, to: str, message: Say, *, control: bool) -> None:
        """Send it, and see that it is refused where it must be."""
        taken = self.queued(self.books[to], message, control=control)
        ref = self.refs[to]
        try:
            (ref.tell_control if control else ref.tell)(message)
        except MailboxFull:
            if taken:
                self.wrong(f"{to} refused a message though its mailbox has room")
        else:
            if not taken:
                self.wrong(f"{to} took a message though its mailbox is full")

    def ask(self, to: str, message: Say) -> Reply | None:
        """Ask without a wait; None when it is refused."""
        self.asked[message.serial] = to
        if not (taken := self.queued(self.books[to], message, control=False)):
            del self.asked[message.serial]
        try:
            reply = self.refs[to].ask(message, block=False)
        except MailboxFull:
            if taken:
                self.wrong(f"{to} refused an ask though its mailbox has room")
            return None
        if not taken:
            self.wrong(f"{to} took an ask though its mailbox is full")
        self.replies[message.serial] = reply
        return reply

    def ask_and_wait(self, asker: Books, to: str, message: Say, seconds: float) -> None:
        """Ask from a handler, and compare what comes of it."""
        ref, life, until = self.refs[to], asker.life, self.simulation.now() + seconds
        refused: type[Exception] | None = None
        if not asker.on_thread:
            refused = AskOnLoopError
        elif self._is_circle(asker, to):
            refused = DeadlockError
        else:
            self.asked[message.serial] = to
            if not self.queued(self.books[to], message, control=False):
                refused = MailboxFull
                del self.asked[message.serial]
        asker.asks = to if refused is None else ""
        found: tuple[object, BaseException | None]
        try:
            found = (ref.ask(message, seconds), None)
        except Exception as error:  # noqa: BLE001 - it is compared
            found = (None, error)
        if asker.life == life:
            asker.asks = ""
        if refused is not None:
            if type(found[1]) is not refused:
                self.wrong(f"{asker.name} asked {to}, which has to be refused as {refused.__name__}: {found}")
        elif message.serial in self.outcomes:
            self.compare(message.serial, found)
        elif type(found[1]) is not AskTimeout or self.simulation.now() != until:
            self.wrong(f"{asker.name} had no answer of {to} until {until}, and got {found}")

    def _is_circle(self, asker: Books, to: str) -> bool:
        seen: set[str] = set()
        while to and to not in seen:
            if to == asker.name:
                return True
            seen.add(to)
            to = self.books[to].asks
        return False

    # -- answers

    def answered(self, books: Books, message: object, count: int) -> None:
        """Its handler returns."""
        if books.count != count:
            self.wrong(f"{books.name} has taken {count} messages since its start by its own count, not {books.count}")
        books.handled += 1
        books.current = None
        serial = getattr(message, "serial", 0)
        if serial in self.asked:
            self.conclude(serial, (serial, count), None)

    def conclude(self, serial: int, value: object, error: BaseException | None) -> None:
        """An ask has its answer; only the first one counts."""
        if serial in self.outcomes or serial not in self.asked:
            return
        self.outcomes[serial] = (value, error)
        if serial in self.told_answers:
            self.tell_answer(serial)

    def tell_answer(self, serial: int) -> None:
        """The asker is told, if it is the same one."""
        books, life = self.told_answers.pop(serial)
        if self.is_same(books, life):
            self.queued(books, Answered(serial), control=True)

    def compare(self, serial: int, found: tuple[object, BaseException | None]) -> None:
        """What an asker has got."""
        value, error = self.outcomes[serial]
        harmful = error is not None and (not isinstance(error, Exception) or isinstance(error, StopIteration))
        answer, failed = found
        if harmful:
            same = type(failed) is ActorCrashed and failed.__cause__ is error
        elif any(error is each for each in self.raised):
            same = failed is error
        else:
            same = type(failed) is type(error) and answer == value
        if not same:
            self.wrong(f"ask {serial} of {self.asked[serial]} got {found}, not {(value, error)}")

    def letter(
        self, books: Books, message: object, reason: DeadLetterReason, error: BaseException | None = None
    ) -> None:
        """One dead letter is due; who asked is told."""
        note = "" if error is None else str(error) if type(error) is Rejected else repr(error)
        self.lettered[reason] += 1
        self.letters.append((self.lettered.total(), message, reason, books.name, self.simulation.now(), note))
        if reason is not DeadLetterReason.CRASHED and reason is not DeadLetterReason.KILLED:
            self.conclude(getattr(message, "serial", 0), None, error or ActorDeadError())

    # -- what is seen of an actor

    def is_same(self, books: Books, life: int) -> bool:
        return books.life == life and books.state in ("running", "stopping", "begun")

    def started(self, books: Books, life: int) -> None:
        """An incarnation begins."""
        if books.state not in ("starting", "waiting") or life != books.life + 1:
            self.wrong(f"{books.name} starts its life {life} when it is {books.state} after life {books.life}")
        books.life, books.state, books.count, books.how, books.error = life, "running", 0, None, None
        books.current, books.slow, books.asks = None, False, ""

    def _drop_signals(self, books: Books) -> None:
        while books.control and (
            books.control[0] == "finish" if books.state == "running" else books.control[0] in ("stop",)
        ):
            books.control.pop(0)

    def took(self, books: Books, life: int, message: object) -> None:
        """Its handler begins."""
        self._drop_signals(books)
        lane = books.control or books.user
        if not self.is_same(books, life) or books.current is not None:
            self.wrong(f"{books.name} takes a message in life {life}; it is {books.state} in life {books.life}")
        elif not lane or lane[0] != message:
            self.wrong(f"{books.name} takes {message}, and {lane[0] if lane else 'nothing'} is next")
        if message in lane:
            lane.remove(message)
        books.current = message
        books.count += 1

    def signal(self, books: Books, what: str) -> None:
        """It is asked to stop."""
        if books.state == "waiting" and what == "stop":
            self._close(books)
        elif books.state not in ("dead", "waiting"):
            books.control.append(what)

    def stopping(self, books: Books, life: int) -> None:
        """It carries out that it was asked to stop."""
        self._drop_signals(books)
        if not self.is_same(books, life) or books.state == "stopping" or books.control[:1] != ["stop"]:
            self.wrong(f"{books.name} is stopped, which is not next: {books.state}, {books.control[:1]}")
        else:
            books.control.pop(0)
        books.state = "stopping"

    def stops(self, books: Books, life: int) -> None:
        """Its last deed in an orderly stop."""
        if books.slow:
            self._drop_signals(books)
            if books.control[:1] != ["finish"]:
                self.wrong(f"{books.name} stops, and has not said that it is ready")
            else:
                books.control.pop(0)
        if books.state != "stopping":
            self.wrong(f"{books.name} stops when it is {books.state}")
        books.how = ExitReason.NORMAL

    def at_end(self, books: Books, number: int) -> None:
        """A callback that it has set for its end."""
        if not books.at_end or books.at_end.pop() != number:
            self.wrong(f"callback {number} at the end of {books.name} comes twice or out of its order")

    def ended(self, books: Books, life: int) -> None:
        """An incarnation is over: what the kernel does now, in its order."""
        if books.life != life or books.state in ("dead", "waiting"):
            self.wrong(f"{books.name} ends its life {life} when it is {books.state} in life {books.life}")
            return
        if books.at_end:
            self.wrong(f"{books.name} ended before its callbacks {books.at_end}")
            books.at_end.clear()
        current, error = books.current, books.error
        if books.how is None and error is None:
            self.wrong(f"{books.name} ended, and neither stopped nor crashed nor was killed")
        how = books.how or ExitReason.CRASHED
        books.how = how
        error = error if how is ExitReason.CRASHED else None
        if how is ExitReason.CRASHED and current is not None:
            self.letter(books, current, DeadLetterReason.CRASHED, error)
        for watch_of in (*self.books.values(), *self.dead):
            watch_of.watched_by = [
                watch for watch in watch_of.watched_by if watch.watcher is not books or watch.life != life
            ]
        books.timers.clear()
        watchers, books.watched_by = books.watched_by, []
        books.control = [item for item in books.control if not isinstance(item, str)]
        books.state, books.asks = "waiting", ""
        kept = books.supervised and (
            books.restart is Restart.PERMANENT or (books.restart is Restart.TRANSIENT and how is not ExitReason.NORMAL)
        )
        books.error = None if kept else error
        if not kept:
            self._close(books)
        self._report(books, watchers, how, error)
        if current is not None:
            serial = getattr(current, "serial", 0)
            self.conclude(serial, None, error if how is ExitReason.CRASHED else ActorDeadError())
        books.current = None

    def _close(self, books: Books) -> None:
        books.state = "dead"
        watchers, books.watched_by = books.watched_by, []
        left = [*books.control, *books.user]
        books.control, books.user = [], []
        for item in left:
            if not isinstance(item, str):
                self.letter(books, item, DeadLetterReason.STOPPED)
        self._report(books, watchers, ExitReason.NOT_ALIVE, books.error)

    def rejected(self, books: Books, error: Rejected) -> None:
        """Its handler declines what it has taken."""
        message, books.current = books.current, None
        self.letter(books, message, DeadLetterReason.REJECTED, error)

    def given_up(self, books: Books, message: object) -> None:
        """A handler that was killed returns."""
        self.given_up_handlers += 1
        self.letter(books, message, DeadLetterReason.KILLED)

    # -- watches and timers

    def watch(self, to: str, watcher: Books | None, life: int = 0) -> Watch:
        """Note a watch; of the dead it tells at once."""
        self.watches += 1
        watch, books = Watch(self.watches, watcher, life), self.books[to]
        if books.state == "dead":
            self._report(books, [watch], ExitReason.NOT_ALIVE, books.error)
        else:
            books.watched_by.append(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """It is taken off."""
        for books in self.books.values():
            if watch in books.watched_by:
                books.watched_by.remove(watch)

    def _report(self, books: Books, watchers: list[Watch], how: ExitReason, error: BaseException | None) -> None:
        down = Down(self.refs.get(books.name) or self.system.ref(books.name), how, error)
        for watch in watchers:
            if watch.life == STOP:
                self.stops_over.add(watch.number)
            elif watch.watcher is None:
                self.expected_downs.append((watch.number, books.name, how, error))
            elif self.is_same(watch.watcher, watch.life):
                self.queued(watch.watcher, down, control=True)

    def set_timer(self, books: Books, when: float, message: Say) -> None:
        """It sends itself something for later."""
        life = books.life
        books.timers[when] = message

        def due() -> None:
            if books.timers.pop(when, None) is None or not self.is_same(books, life):
                self.wrong(f"a timer of {books.name} fires, and is of an earlier life")
            else:
                self.queued(books, message, control=True)

        self.due[when] = due

    def _fired(self, when_seconds: float) -> None:
        if when_seconds in self.due:
            self.due.pop(when_seconds)()
