"""The bounded, two-lane mailbox of one actor.

No lock: a producer may be a host's thread, in which an exception of a signal handler can come between any two
instructions, and what it held then would be held for good. Appending to a list and popping from it are one step each;
all that is counted or marked is done by the consumer. A put that closing has overtaken says so (LATE): what is left
then is taken out once more, so that each ask is answered. The user lane is two lists (a queue made of two stacks): an
empty deque costs 624 bytes, two empty lists 112.
"""

import contextlib
from enum import Enum
from typing import Final

#: Messages a mailbox holds by default: at 2 us a message, 20 ms of work on the loop.
CAPACITY: Final = 10_000


class Put(Enum):
    """How a put ended. WAKE: queued, and the consumer sleeps, so that the producer has to schedule it. LATE: queued,
    and closed in the same moment, so that the producer has to `close` it again."""

    QUEUED = "queued"
    WAKE = "wake"
    FULL = "full"
    CLOSED = "closed"
    LATE = "late"


class Signal(Enum):
    """The kernel's own control messages, which are not counted. HALT: stop, but keep the cell. FINISH: end the stop
    that was put off."""

    STOP = "stop"
    HALT = "halt"
    FINISH = "finish"


class _Nothing(Enum):
    NOTHING = "nothing"


#: What `take` returns when the mailbox is empty and its consumer has been put to sleep.
NOTHING: Final = _Nothing.NOTHING

#: Up to here pop(0) on a list is cheaper than moving all to the other one.
FEW: Final = 16

QUEUED, WAKE, FULL, CLOSED, LATE = Put.QUEUED, Put.WAKE, Put.FULL, Put.CLOSED, Put.LATE


class Mailbox:
    """Messages on their way to one actor. `put*` from any thread, `take` from the one consumer."""

    __slots__ = ("_closed", "_control", "_incoming", "_outgoing", "_taken", "awake", "capacity", "refused")

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a mailbox holds at least one message, got capacity {capacity}")
        self._incoming: list[object] = []
        self._outgoing: list[object] = []  # in reverse, so that pop() yields the oldest
        self._control: list[object] = []
        #: No put has to schedule the consumer. Until its actor has started, there is none.
        self.awake = True
        self._closed = False
        self._taken = 0
        self.capacity = capacity
        self.refused = 0

    def __len__(self) -> int:
        """Messages that wait, both lanes."""
        return len(self._incoming) + len(self._outgoing) + len(self._control)

    @property
    def accepted(self) -> int:
        """Messages that were taken in so far, without signals."""
        return self._taken + len(self) - sum(type(item) is Signal for item in tuple(self._control))

    @property
    def is_open(self) -> bool:
        """Whether messages are still taken."""
        return not self._closed

    def put(self, item: object) -> Put:
        """Add to the user lane, unless full or closed."""
        if self._closed:
            return CLOSED
        incoming = self._incoming
        if len(incoming) + len(self._outgoing) >= self.capacity:
            self.refused += 1
            return FULL
        incoming.append(item)
        if self._closed:
            return LATE
        return QUEUED if self.awake else WAKE

    def put_control(self, item: object) -> Put:
        """Add to the control lane, which user traffic never fills."""
        if self._closed:
            return CLOSED
        self._control.append(item)
        if self._closed:
            return LATE
        return QUEUED if self.awake else WAKE

    def take(self) -> object:
        """Next item for the consumer, control lane first; NOTHING when empty, then the next put returns WAKE."""
        while True:
            if self._control:
                item = self._control.pop(0)
                self._taken += type(item) is not Signal
                return item
            if self._outgoing:
                self._taken += 1
                return self._outgoing.pop()
            incoming = self._incoming
            if incoming:
                if len(incoming) <= FEW:
                    self._taken += 1
                    return incoming.pop(0)
                moved = incoming[:]  # producers only append, so that these are the first ones also in the next step
                del incoming[: len(moved)]
                moved.reverse()
                self._outgoing = moved
                continue
            if self.sleep():
                return NOTHING

    def sleep(self) -> bool:
        """The consumer's turn is over: True when nothing waits, then the next put returns WAKE.

        A producer adds and then looks at `awake`, the consumer the other way round, so that one sees the other. At
        worst both do, and the consumer has a turn with nothing to do.
        """
        self.awake = False
        if self._incoming or self._control or self._outgoing:
            self.awake = True
            return False
        return True

    def peek(self) -> object:
        """The item `take` would return; NOTHING when empty. For traces of the simulation only."""
        if self._control:
            return self._control[0]
        if self._outgoing:
            return self._outgoing[-1]
        return self._incoming[0] if self._incoming else NOTHING

    def hold(self) -> None:
        """Without a consumer: keep messages, let no put schedule it, and drop signals."""
        self.awake = True
        for item in tuple(self._control):
            if type(item) is Signal:
                with contextlib.suppress(ValueError):  # another thread closes it
                    self._control.remove(item)

    def close(self) -> list[object]:
        """Take no more and hand over what was waiting, control lane first. Closing again yields what came late, which
        does not count as accepted."""
        is_first = not self._closed
        self._closed = True
        left: list[object] = []
        for lane, at in ((self._control, 0), (self._outgoing, -1), (self._incoming, 0)):
            while lane:  # one by one: two threads may do this at a time, and a producer may add
                with contextlib.suppress(IndexError):  # the other one was first
                    left.append(lane.pop(at))
        if is_first:
            self._taken += sum(type(item) is not Signal for item in left)
        return left
