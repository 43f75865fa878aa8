"""The bounded, two-lane mailbox of one actor.

One lock makes put and close atomic: a late ask is either taken, and answered at the latest when the closed mailbox is
emptied, or refused at once. The consumer hardly ever takes that lock, since appending to and popping from a list are
atomic. The user lane is two lists (a queue made of two stacks): an empty deque costs 624 bytes, two empty lists 112.
"""

from collections import deque
from enum import Enum
from threading import Lock
from typing import Final

#: Messages a mailbox holds by default: at 2 us a message, 20 ms of work on the loop.
CAPACITY: Final = 10_000


class Put(Enum):
    """How a put ended. WAKE: queued, and the consumer sleeps, so that the producer has to schedule it."""

    QUEUED = "queued"
    WAKE = "wake"
    FULL = "full"
    CLOSED = "closed"


class _Nothing(Enum):
    NOTHING = "nothing"


#: What `take` returns when the mailbox is empty and its consumer has been put to sleep.
NOTHING: Final = _Nothing.NOTHING

#: Up to here pop(0) on a list is cheaper than the lock (0.12 us) it takes to swap the lists.
FEW: Final = 16

QUEUED, WAKE, FULL, CLOSED = Put.QUEUED, Put.WAKE, Put.FULL, Put.CLOSED


class Mailbox:
    """Messages on their way to one actor. `put*` from any thread, `take` from the one consumer."""

    __slots__ = ("_awake", "_closed", "_control", "_incoming", "_lock", "_outgoing", "accepted", "capacity", "refused")

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a mailbox holds at least one message, got capacity {capacity}")
        self._lock = Lock()
        self._incoming: list[object] = []
        self._outgoing: list[object] = []  # in reverse, so that pop() yields the oldest
        self._control: deque[object] | None = None
        self._awake = True  # until its actor has started, there is no consumer to schedule
        self._closed = False
        self.capacity = capacity
        self.accepted = 0
        self.refused = 0

    def __len__(self) -> int:
        """Messages that wait, both lanes."""
        return len(self._incoming) + len(self._outgoing) + len(self._control or ())

    @property
    def is_open(self) -> bool:
        """Whether messages are still taken."""
        return not self._closed

    def put(self, item: object) -> Put:
        """Add to the user lane, unless full or closed."""
        with self._lock:
            if self._closed:
                return CLOSED
            incoming = self._incoming
            if len(incoming) + len(self._outgoing) >= self.capacity:
                self.refused += 1
                return FULL
            incoming.append(item)
            self.accepted += 1
            if self._awake:
                return QUEUED
            self._awake = True
            return WAKE

    def put_control(self, item: object, *, counted: bool = True) -> Put:
        """Add to the control lane, which user traffic never fills; `counted` for statistics, unless a kernel signal."""
        with self._lock:
            if self._closed:
                return CLOSED
            if self._control is None:
                self._control = deque()
            self._control.append(item)
            self.accepted += counted
            if self._awake:
                return QUEUED
            self._awake = True
            return WAKE

    def take(self) -> object:
        """Next item for the consumer, control lane first; NOTHING when empty, then the next put returns WAKE."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._outgoing:
                return self._outgoing.pop()
            incoming = self._incoming
            if incoming:
                if len(incoming) <= FEW:
                    return incoming.pop(0)  # producers only append, so this needs no lock
                with self._lock:
                    self._outgoing, self._incoming = self._incoming, self._outgoing
                self._outgoing.reverse()
                continue
            self._awake = False  # as in sleep()
            if not (self._incoming or self._control):
                return NOTHING
            self._awake = True

    def sleep(self) -> bool:
        """The consumer's turn is over: True when nothing waits, then the next put returns WAKE.

        No lock: a producer adds and then looks at `_awake`, the consumer the other way round, so that one sees the
        other. At worst both do, and the consumer has a turn with nothing to do.
        """
        self._awake = False
        if self._incoming or self._control or self._outgoing:
            self._awake = True
            return False
        return True

    def peek(self) -> object:
        """The item `take` would return; NOTHING when empty. For traces of the simulation only."""
        with self._lock:
            if self._control:
                return self._control[0]
            if self._outgoing:
                return self._outgoing[-1]
            return self._incoming[0] if self._incoming else NOTHING

    def hold(self, drop: type) -> None:
        """Without a consumer: keep messages, let no put schedule it, and drop control items of type `drop`."""
        with self._lock:
            self._awake = True
            if self._control:
                self._control = deque(item for item in self._control if type(item) is not drop)

    def close(self) -> list[object]:
        """Take no more and hand over what was waiting, control lane first. Closing twice yields nothing."""
        with self._lock:
            self._closed = True
            left = [*(self._control or ()), *reversed(self._outgoing), *self._incoming]
            self._control, self._outgoing, self._incoming = None, [], []
        return left

    def after_fork(self) -> None:
        """In the child of a fork: a thread that is not there may hold the lock, and no consumer is left."""
        self._lock = Lock()
        self.close()
