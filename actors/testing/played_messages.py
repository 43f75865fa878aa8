"""Actors that tell, ask, watch, time, crash and stop each other at random, beside books of what must become of it.

The books are two lists an actor and a few rules; they follow what is seen (a message is sent, taken; an incarnation
starts, ends) in the order in which it happens, and say at each step what the kernel promised to do then.
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, field

from callboard.actors.kernel import (
    Actor,
    ActorCrashed,
    ActorDeadError,
    ActorSystem,
    AskOnLoopError,
    AskTimeout,
    Backoff,
    ChildSpec,
    DeadLetterReason,
    DeadlockError,
    DependencyLost,
    Down,
    ExitReason,
    MailboxFull,
    Monitor,
    NameTaken,
    NoSuchActor,
    Ref,
    Rejected,
    Restart,
    Supervisor,
    Timer,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.kernel.scheduler import Run
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing.simulation import SimulatedScheduler

#: Above and below the size at which a mailbox changes its way of keeping messages.
CAPACITIES: Final = (1, 3, 17, 20, 64)
CRASHES: Final = (
    ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, StopIteration, DependencyLost, AskTimeout,
)  # fmt: skip
#: A deed by chance: what ends an actor is rare.
DEEDS: Final = (
    *("tell",) * 5, *("ask",) * 4, *("ask_later",) * 3, *("timer",) * 4, *("cancel",) * 2, *("watch",) * 3, "unwatch",
    *("at_end",) * 2, "flood", "raise", "reject", "stop", "finish", "slow",
)  # fmt: skip
#: In place of a life: the watch is of who has asked it to stop.
STOP: Final = -1
MOST_PROBLEMS: Final = 5


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


class Player(Actor[Any]):
    """Does what its messages say."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.books = stage, stage.books[name]
        self.life, self.count = self.books.life + 1, 0
        self.set: list[tuple[Timer, float]] = []
        self.watches: list[tuple[Watch, Monitor]] = []

    def on_start(self) -> None:
        self.stage.started(self.books, self.life)
        self.at_end(lambda: self.stage.ended(self.books, self.life))
        if self.stage.is_playing and self.stage.rng.random() < 0.05:
            self._raise(OSError("told to"))

    def on_receive(self, message: Any) -> Any:
        self.count += 1
        self.stage.took(self.books, self.life, message)
        for deed in getattr(message, "deeds", ()):
            getattr(self, f"_{deed[0]}")(*deed[1:])
            if not self.stage.is_same(self.books, self.life):
                self.stage.given_up(self.books, message)
                return None
        self.stage.answered(self.books, message, self.count)
        return (getattr(message, "serial", 0), self.count)

    def on_stopping(self) -> bool:
        self.stage.stopping(self.books, self.life)
        return not self.books.slow

    def on_stop(self) -> None:
        self.stage.stops(self.books, self.life)

    def on_abandoned(self) -> None:
        self.stage.abandoned += 1

    # -- deeds

    def _raise(self, error: BaseException) -> None:
        self.books.error = error
        self.stage.raised.append(error)
        raise error

    def _reject(self, why: str) -> None:
        error = Rejected(why)
        self.stage.raised.append(error)
        self.stage.rejected(self.books, error)
        raise error

    def _tell(self, to: str, message: Say, control: bool) -> None:
        self.stage.tell(to, message, control=control)

    def _flood(self, to: str, messages: list[Say]) -> None:
        for message in messages:
            self.stage.tell(to, message, control=False)

    def _ask(self, to: str, message: Say, seconds: float) -> None:
        self.stage.ask_and_wait(self.books, to, self.stage.anew(message), self.stage.unlike_any(seconds))

    def _ask_later(self, to: str, message: Say, seconds: float) -> None:
        message, seconds = self.stage.anew(message), self.stage.unlike_any(seconds)
        reply = self.stage.ask(to, message)
        if reply is None:
            return
        stage, life, due = self.stage, self.life, self.now() + seconds
        late = AskTimeout(f"{self.name} had no answer within {seconds} s")
        stage.due[due] = lambda: stage.conclude(message.serial, None, late)
        stage.told_answers[message.serial] = (self.books, life)
        self.tell_answer(reply, lambda _: Answered(message.serial), seconds)
        if message.serial in stage.outcomes:
            stage.tell_answer(message.serial)

    def _timer(self, seconds: float, message: Say) -> None:
        seconds = self.stage.unlike_any(seconds)
        when = self.now() + seconds
        self.stage.set_timer(self.books, when, message)
        self.set.append((self.tell_after(seconds, message), when))

    def _cancel(self, at: int) -> None:
        if at < len(self.set):
            timer, when = self.set[at]
            timer.cancel()
            self.books.timers.pop(when, None)
            self.stage.due.pop(when, None)

    def _watch(self, to: str) -> None:
        target = self.stage.refs[to]
        watch = self.stage.watch(to, self.books, self.life)
        self.watches.append((watch, self.monitor(target)))

    def _unwatch(self, at: int) -> None:
        if at < len(self.watches):
            watch, monitor = self.watches[at]
            monitor.cancel()
            self.stage.unwatch(watch)

    def _stop(self) -> None:
        self.stage.signal(self.books, "stop")
        self.stop()

    def _finish(self) -> None:
        self.stage.signal(self.books, "finish")
        self.stopped()

    def _slow(self) -> None:
        self.books.slow = True

    def _at_end(self, number: int) -> None:
        self.books.at_end.append(number)
        self.at_end(lambda: self.stage.at_end(self.books, number))


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
        self.stops_asked: dict[int, tuple[Reply[bool], bool]] = {}
        self.stops_over: set[int] = set()
        self.problems: list[str] = []
        self.is_playing = False
        self.books: dict[str, Books] = {}
        self.refs: dict[str, Ref] = {}
        self.serial = 0
        self.letters: deque[tuple[int, object, DeadLetterReason, str, float, str]] = deque(
            maxlen=self.kept
        )
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
        for name in "abcde":
            self.spawn(name)
        specs = [self._child(f"s{at}") for at in range(rng.randrange(3))]
        self.system.spawn(lambda: Supervisor(specs, intensity=1_000_000, chance=lambda: 0.5), "root")

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"at {self.simulation.now():.3f} s {what}")

    # -- who there is

    def _new_books(self, name: str, *, supervised: bool) -> Books:
        restart = self.rng.choice(list(Restart)) if supervised else Restart.TEMPORARY
        on_thread = self.rng.random() < 0.25
        if name in self.books:
            self.dead.append(self.books[name])
        self.books[name] = Books(name, self.rng.choice(CAPACITIES), restart, supervised, on_thread)
        return self.books[name]

    def find_children(self) -> None:
        """Once their supervisor runs, they have addresses."""
        self.is_playing = True
        self.refs.update({name: self.system.ref(name) for name in self.books if name not in self.refs})

    def spawn(self, name: str) -> None:
        """Start an actor that nobody starts again; its name is free."""
        books = self._new_books(name, supervised=False)
        runs_on: Any = "thread" if books.on_thread else "loop"
        self.refs[name] = self.system.spawn(
            lambda: Player(self, name), name, capacity=books.capacity, runs_on=runs_on
        )

    def _child(self, child_id: str) -> ChildSpec[Any]:
        name = f"root/{child_id}"
        books = self._new_books(name, supervised=True)
        books.state = "waiting"
        runs_on: Any = "thread" if books.on_thread else "loop"
        return ChildSpec(
            child_id, lambda: Player(self, name), books.restart, capacity=books.capacity, runs_on=runs_on,
            backoff=Backoff(0, 0),
        )  # fmt: skip

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

    def _queued(self, books: Books, message: object, *, control: bool) -> bool:
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
        taken = self._queued(self.books[to], message, control=control)
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
        if not (taken := self._queued(self.books[to], message, control=False)):
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
            if not self._queued(self.books[to], message, control=False):
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
            self._queued(books, Answered(serial), control=True)

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

    def letter(self, books: Books, message: object, reason: DeadLetterReason, error: BaseException | None = None) -> None:
        """One dead letter is due; who asked is told."""
        note = "" if error is None else str(error) if type(error) is Rejected else repr(error)
        self.lettered[reason] += 1
        self.letters.append(
            (self.lettered.total(), message, reason, books.name, self.simulation.now(), note)
        )
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
        books.state = "waiting"
        kept = books.supervised and (
            books.restart is Restart.PERMANENT
            or (books.restart is Restart.TRANSIENT and how is not ExitReason.NORMAL)
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

    def _report(
        self, books: Books, watchers: list[Watch], how: ExitReason, error: BaseException | None
    ) -> None:
        down = Down(self.refs.get(books.name) or self.system.ref(books.name), how, error)
        for watch in watchers:
            if watch.life == STOP:
                self.stops_over.add(watch.number)
            elif watch.watcher is None:
                self.expected_downs.append((watch.number, books.name, how, error))
            elif self.is_same(watch.watcher, watch.life):
                self._queued(watch.watcher, down, control=True)

    def set_timer(self, books: Books, when: float, message: Say) -> None:
        """It sends itself something for later."""
        life = books.life
        books.timers[when] = message

        def due() -> None:
            if books.timers.pop(when, None) is None or not self.is_same(books, life):
                self.wrong(f"a timer of {books.name} fires, and is of an earlier life")
            else:
                self._queued(books, message, control=True)

        self.due[when] = due

    def _fired(self, when_seconds: float) -> None:
        if when_seconds in self.due:
            self.due.pop(when_seconds)()

    # -- what is done from outside

    def say(self, depth: int = 0) -> Say:
        """A message with random deeds."""
        rng = self.rng
        number = rng.choice((0, 0, 0, 1, 1, 2, 4)) if depth < 2 else 0
        return Say(self.next_serial(), tuple(self._deed(depth) for _ in range(number)))

    def _deed(self, depth: int) -> tuple[Any, ...]:
        rng = self.rng
        seconds, name = rng.random() * 2, rng.choice(list(self.books))
        deeds: dict[str, Callable[[], tuple[Any, ...]]] = {
            "raise": lambda: (rng.choice(CRASHES)("told to"),),
            "reject": lambda: ("not now",),
            "tell": lambda: (name, self.say(depth + 1), rng.random() < 0.2),
            "flood": lambda: (name, [self.say(2) for _ in range(rng.choice((3, 20, 40)))]),
            "ask": lambda: (name, self.say(depth + 1), seconds),
            "ask_later": lambda: (name, self.say(depth + 1), seconds),
            "timer": lambda: (seconds, self.say(depth + 1)),
            "cancel": lambda: (rng.randrange(2),),
            "watch": lambda: (name,),
            "unwatch": lambda: (rng.randrange(2),),
            "stop": lambda: (),
            "finish": lambda: (),
            "slow": lambda: (),
            "at_end": lambda: (self.next_serial(),),
        }
        what = rng.choice(DEEDS)
        return (what, *deeds[what]())

    def act(self) -> None:
        """One random thing from outside."""
        rng = self.rng
        what = rng.choice(("tell",) * 5 + ("ask",) * 4 + ("flood", "stop", "kill", "watch", "spawn", "replay", "look"))
        getattr(self, f"_act_{what}")(rng.choice(list(self.books)))

    def _act_tell(self, name: str) -> None:
        self.tell(name, self.say(), control=self.rng.random() < 0.2)

    def _act_ask(self, name: str) -> None:
        self.ask(name, self.say())

    def _act_flood(self, name: str) -> None:
        for _ in range(self.rng.choice((5, 18, 40, 70))):
            self.tell(name, self.say(2), control=self.rng.random() < 0.1)

    def _act_stop(self, name: str) -> None:
        books = self.books[name]
        if books.state == "waiting":
            return  # it depends on whether it is about to start
        was_alive = books.state != "dead"
        watch = self.watch(name, None, life=STOP)
        if was_alive:
            self.signal(books, "stop")
        self.stops_asked[watch.number] = (self.refs[name].stop(), was_alive)

    def _act_kill(self, name: str) -> None:
        books = self.books[name]

        def kill() -> None:
            if books.state in ("running", "stopping"):
                books.how = ExitReason.KILLED
                cell_of(self.refs[name]).kill()

        self.simulation.call_soon(kill)

    def _act_watch(self, name: str) -> None:
        number, ref = self.watch(name, None).number, self.refs[name]
        self.system.watch(
            ref, lambda down: self.downs.append((number, down.ref.name, down.reason, down.error))
        )

    def _act_spawn(self, name: str) -> None:
        if name.startswith("root/"):
            return
        if self.books[name].state == "dead":
            self.spawn(name)
            return
        try:
            self.system.spawn(Actor, name)
        except NameTaken:
            return
        self.wrong(f"a second actor is called {name}")

    def _act_replay(self, _name: str) -> None:
        if not self.letters:
            return
        letter = self.rng.choice(tuple(self.letters))
        serial, message, name = letter[0], letter[1], letter[3]
        books = self.books[name]
        expected: type[Exception] | None = None
        if books.state == "dead":
            expected = NoSuchActor
        else:
            self.letters.remove(letter)
            if not self._queued(books, message, control=False):
                expected = MailboxFull
        found: type[Exception] | None = None
        try:
            self.system.replay(serial)
        except (NoSuchActor, MailboxFull, KeyError) as error:
            found = type(error)
        if found is not expected:
            self.wrong(f"letter {serial} for {name} was sent again: {found}, not {expected}")

    def _act_look(self, _name: str) -> None:
        """At what the system says of itself."""
        tree = {info.name: info for info in self.system.tree()}
        tree.update({info.name: info for info in tree["root"].children})
        for books in self.books.values():
            info, ref = tree.get(books.name), self.refs[books.name]
            if (info is not None) is not (books.state != "dead") or ref.is_alive() is not (books.state != "dead"):
                self.wrong(f"{books.name} is {books.state}, and the system says {info}")
            elif info is not None:
                signals = sum(isinstance(item, str) for item in books.control)  # some are taken without a trace
                waiting = len(books.control) + len(books.user)
                handling = None if books.current is None else type(books.current).__name__
                states = ("waiting", "starting") if books.state == "waiting" else (books.state,)
                depth = waiting if waiting - signals <= info.mailbox_depth < waiting else info.mailbox_depth
                found = (depth, info.handled, info.handling, max(0, info.restarts))
                due = (waiting, books.handled, handling, max(0, books.life - 1))
                if info.state not in states or (found != due and books.state not in ("waiting", "starting")):
                    self.wrong(f"{books.name} is {books.state}, {due}; the system says {info.state}, {found}")

    # -- how it ends

    def look_at_answers(self) -> None:
        """Each ask has its answer as soon as it is due, and no sooner."""
        for serial, reply in tuple(self.replies.items()):
            if reply.done is not (serial in self.outcomes):
                self.wrong(f"ask {serial} of {self.asked.get(serial)} is answered: {reply.done}, which is wrong")
                del self.replies[serial]
            elif reply.done:
                del self.replies[serial]
                self.compare(serial, (None if reply._error else reply.result(), reply._error))

        for number, (reply, was_alive) in tuple(self.stops_asked.items()):
            if reply.done is not (number in self.stops_over):
                self.wrong(f"who asked for a stop has an answer: {reply.done}, which is wrong")
            if reply.done:
                del self.stops_asked[number]
                if reply.result() is not was_alive:
                    self.wrong(f"who asked for a stop was told that it was alive: {reply.result()}, which is wrong")

    def at_rest(self) -> None:
        """Nothing is left to do."""
        for books in self.books.values():
            left = [*(item for item in books.control if not isinstance(item, str)), *books.user]
            if books.state in ("waiting", "starting") or (left and books.state != "dead"):
                self.wrong(f"{books.name} is {books.state} at rest, and {len(left)} messages wait for it")
            if late := [when for when in books.timers if when <= self.simulation.now()]:
                self.wrong(f"a timer of {books.name} for {late[0]} never fired")
        kept = [
            (letter.serial, letter.message, letter.reason, letter.recipient, letter.at_seconds, letter.note)
            for letter in self.system.dead_letters.list()
        ]
        if kept != list(self.letters):
            odd = next((pair for pair in zip(kept, self.letters, strict=False) if pair[0] != pair[1]), "their number")
            self.wrong(f"dead letters are not those that are due: {odd}")
        if self.system.dead_letters.counts() != dict(self.lettered):
            self.wrong(f"{self.system.dead_letters.counts()} dead letters, due are {dict(self.lettered)}")
        if self.downs != self.expected_downs:
            self.wrong(f"who watched was told {self.downs[-3:]}, due are {self.expected_downs[-3:]}")
        if self.abandoned != self.given_up_handlers:
            self.wrong(f"{self.abandoned} handlers were told that they were given up, and {self.given_up_handlers} were")

    def end(self) -> None:
        """Everything is stopped; the books do not follow that."""
        found = self.problems[:]
        self.system.shutdown(30)
        self.simulation.run_until_idle()
        self.simulation.close()
        self.problems[:] = found
        statistics = self.system.statistics()
        if statistics.unaccounted or statistics.actors or statistics.queued:
            self.wrong(f"in the end not every message is accounted for, or not every actor gone: {statistics}")
        if open_asks := [serial for serial, reply in self.replies.items() if not reply.done]:
            self.wrong(f"ask {open_asks[0]} has no answer though all actors have ended")


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    stage = Stage(seed)
    rng = stage.rng
    stage.simulation.run_until_idle()
    stage.find_children()
    for _ in range(rng.choice((10, 30, 60))):
        stage.act()
        for _ in range(rng.choice((0, 0, 1, 3, 20))):
            stage.simulation.step(stage.simulation.now() + 0.3)
        stage.look_at_answers()
        if stage.problems:
            break
    else:
        stage.simulation.run_until_idle()
        stage.look_at_answers()
        stage.at_rest()
        stage._act_look("")
    stage.end()
    return stage.problems
