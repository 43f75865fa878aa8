"""Actors that tell, ask, watch, time, crash and stop each other at random, beside books of what must become of it.

The books (message_books.py) follow what is seen, in the order in which it happens, and say at each step what the kernel
promised to do then.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, Final

from callboard.actors.kernel import (
    Actor,
    AskTimeout,
    Backoff,
    ChildSpec,
    DependencyLost,
    ExitReason,
    MailboxFull,
    Monitor,
    NameTaken,
    NoSuchActor,
    Rejected,
    Supervisor,
    Timer,
)
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing.message_books import STOP, Answered, Say, Stage, Watch

CRASHES: Final = (
    ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, StopIteration, DependencyLost, AskTimeout,
)  # fmt: skip
#: A deed by chance: what ends an actor is rare.
DEEDS: Final = (
    *("tell",) * 5, *("ask",) * 4, *("ask_later",) * 3, *("timer",) * 4, *("cancel",) * 2, *("watch",) * 3, "unwatch",
    *("at_end",) * 2, "flood", "raise", "reject", "stop", "finish", "slow",
)  # fmt: skip


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


class Outside(Stage):
    """Who plays with them: the actors, what is done to them from outside, and what is compared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for name in "abcde":
            self.spawn(name)
        specs = [self._child(f"s{at}") for at in range(self.rng.randrange(3))]
        self.system.spawn(lambda: Supervisor(specs, intensity=1_000_000, chance=lambda: 0.5), "root")

    # -- who there is

    def find_children(self) -> None:
        """Once their supervisor runs, they have addresses."""
        self.is_playing = True
        self.refs.update({name: self.system.ref(name) for name in self.books if name not in self.refs})

    def spawn(self, name: str) -> None:
        """Start an actor that nobody starts again; its name is free."""
        books = self.new_books(name, supervised=False)
        runs_on: Any = "thread" if books.on_thread else "loop"
        self.refs[name] = self.system.spawn(lambda: Player(self, name), name, capacity=books.capacity, runs_on=runs_on)

    def _child(self, child_id: str) -> ChildSpec[Any]:
        name = f"root/{child_id}"
        books = self.new_books(name, supervised=True)
        books.state = "waiting"
        runs_on: Any = "thread" if books.on_thread else "loop"
        return ChildSpec(
            child_id, lambda: Player(self, name), books.restart, capacity=books.capacity, runs_on=runs_on,
            backoff=Backoff(0, 0),
        )  # fmt: skip

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
        self.system.watch(ref, lambda down: self.downs.append((number, down.ref.name, down.reason, down.error)))

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
            if not self.queued(books, message, control=False):
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
            self.wrong(
                f"{self.abandoned} handlers were told that they were given up, and {self.given_up_handlers} were"
            )

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
    stage = Outside(seed)
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
