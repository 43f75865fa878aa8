"""What no request reaches of the kernel: its mailboxes, its messages and its supervisors, each beside a small model.

    python -m callboard.actors.testing plays kernel --seeds 1000

`play(seed)` says what is not as promised, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from callboard.actors.kernel.mailbox import NOTHING, Mailbox, Put, Signal
from callboard.actors.testing import played_families, played_messages

#: About the size at which a mailbox changes its way of keeping messages.
CAPACITIES: Final = (1, 4, 17, 50)


class _Overtaken(list[object]):
    """A lane of a mailbox that another thread closes between a producer's look and its deed."""

    def __init__(self, mailbox: Mailbox, kept: list[object]) -> None:
        super().__init__(kept)
        self._mailbox, self.left = mailbox, list[object]()

    def append(self, item: object) -> None:
        self.left = self._mailbox.close()
        super().append(item)


class TwoLists:
    """A mailbox, and what it is: a list for each lane."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"mailbox {seed}")
        self.capacity = self.rng.choice(CAPACITIES)
        self.mailbox = Mailbox(self.capacity)
        self.user: list[object] = []
        self.control: list[object] = []
        self.awake, self.closed = True, False
        self.sent = self.refused = self.number = 0
        self.problems: list[str] = []

    def same(self, what: str, found: object, due: object) -> None:
        """Note what differs."""
        if found != due:
            self.problems.append(f"a mailbox of {self.capacity}: {what} is {found}, not {due}")

    def put(self) -> None:
        """A burst of messages."""
        for _ in range(self.rng.choice((1, 1, 3, 20))):
            self.number += 1
            if self.closed:
                due = Put.CLOSED
            elif len(self.user) >= self.capacity:
                due, self.refused = Put.FULL, self.refused + 1
            else:
                due = Put.QUEUED if self.awake else Put.WAKE
                self.user.append(self.number)
                self.sent += 1
            self.same("a put", self.mailbox.put(self.number), due)

    def put_control(self) -> None:
        """One for the lane that user traffic never fills."""
        self.number += 1
        item = self.rng.choice((self.number, self.number, Signal.STOP))
        due = Put.CLOSED if self.closed else Put.QUEUED if self.awake else Put.WAKE
        if not self.closed:
            self.control.append(item)
            self.sent += not isinstance(item, Signal)
        self.same("a put on the control lane", self.mailbox.put_control(item), due)

    def take(self) -> None:
        """Some, by a consumer that is awake."""
        for _ in range(self.rng.choice((1, 2, 20)) if self.awake and not self.closed else 0):
            lane = self.control or self.user
            due = lane.pop(0) if lane else NOTHING
            self.same("what comes next", self.mailbox.peek(), due)
            self.same("what is taken", self.mailbox.take(), due)
            self.awake = due is not NOTHING
            if not self.awake:
                return

    def sleep(self) -> None:
        """The end of a turn."""
        if self.awake and not self.closed:
            self.awake = bool(self.control or self.user)
            self.same("to sleep", self.mailbox.sleep(), not self.awake)

    def wake(self) -> None:
        """A turn begins."""
        self.awake = self.mailbox.awake = True

    def hold(self) -> None:
        """Its actor has ended, and another one will come."""
        self.mailbox.hold()
        self.control = [item for item in self.control if not isinstance(item, Signal)]
        self.awake = True

    def close(self) -> None:
        """For good, now and then."""
        if self.rng.random() < 0.2:
            self.same("what is left", self.mailbox.close(), [*self.control, *self.user])
            self.user, self.control, self.closed = [], [], True

    def overtaken(self) -> None:
        """A put that another thread's close overtakes: it says so, and closing again hands it over."""
        if self.closed or len(self.user) >= self.capacity or self.rng.random() < 0.8:
            return
        is_control = self.rng.random() < 0.5
        lane = "_control" if is_control else "_incoming"
        overtaken = _Overtaken(self.mailbox, getattr(self.mailbox, lane))
        setattr(self.mailbox, lane, overtaken)
        put = self.mailbox.put_control if is_control else self.mailbox.put
        self.same("a put in the moment of the end", put(-1), Put.LATE)
        self.same("what was left by then", overtaken.left, [*self.control, *self.user])
        self.same("what has come since", self.mailbox.close(), [-1])
        self.user, self.control, self.closed = [], [], True

    def compare(self) -> None:
        """What can be counted."""
        mailbox = self.mailbox
        self.same("its length", len(mailbox), len(self.user) + len(self.control))
        self.same("what it has taken in", mailbox.accepted, self.sent)
        self.same("what it has refused", mailbox.refused, self.refused)
        self.same("to be open", mailbox.is_open, not self.closed)


def play_mailbox(seed: int) -> list[str]:
    """A mailbox beside two lists."""
    lists = TwoLists(seed)
    deeds: tuple[Callable[[], None], ...] = (
        lists.put, lists.put, lists.put_control, lists.take, lists.take, lists.sleep, lists.wake, lists.hold,
        lists.close, lists.overtaken,
    )  # fmt: skip
    for _ in range(30):
        lists.rng.choice(deeds)()
        lists.compare()
    return lists.problems[:1]


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of each."""
    return [*play_mailbox(seed), *played_messages.play(seed), *played_families.play(seed)]
