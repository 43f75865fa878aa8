"""The bounded, two-lane mailbox of one actor.

One lock makes put and close atomic, which is what a late ask needs: it is either taken, and answered by the actor or
by whoever empties the closed mailbox, or it is refused at the door. The consumer hardly ever takes that lock, since
appending to and popping from a list are atomic. The user lane is two lists (a queue made of two stacks): an empty deque
costs 624 bytes, two empty lists 112.
"""

from collections import deque
from enum import Enum
from threading import Lock
from typing import Any, Final, Protocol

__all__ = ["CAPACITY", "NOTHING", "Gate", "Mailbox", "Overflow", "Put"]

#: Messages a mailbox holds by default: at 2 us a message, 20 ms of work on the loop.
CAPACITY: Final = 10_000


class Overflow(Enum):
    """What a full mailbox does with a message of the user lane."""

    REFUSE = "refuse"
    """Raise MailboxFull in the producer, at once."""
    BLOCK = "block"
    """Let the producer wait until there is room or its deadline is over; on the loop thread this is REFUSE."""


class Put(Enum):
    """How a put ended."""

    QUEUED = "queued"
    WAKE = "wake"
    """Queued, and the consumer sleeps: the producer has to schedule it."""
    FULL = "full"
    CLOSED = "closed"


class Gate(Protocol):
    """What a blocked producer waits at."""

    def open(self) -> None:
        """Let the producer go on. Any thread may call it, any number of times."""


class _Nothing(Enum):
    NOTHING = "nothing"


#: What `take` returns when the mailbox is empty and its consumer has been put to sleep.
NOTHING: Final = _Nothing.NOTHING

#: Up to here pop(0) on a list is cheaper than the lock (0.12 us) it takes to swap the lists.
FEW: Final = 16

QUEUED, WAKE, FULL, CLOSED = Put.QUEUED, Put.WAKE, Put.FULL, Put.CLOSED


class Mailbox:
    """Messages on their way to one actor. `put*` from any thread, `take` from the one consumer."""

    __slots__ = (
        "_awake",
        "_closed",
        "_control",
        "_gates",
        "_incoming",
        "_lock",
        "_outgoing",
        "accepted",
        "capacity",
        "overflow",
        "refused",
    )

    def __init__(self, capacity: int = CAPACITY, overflow: Overflow = Overflow.REFUSE) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: a mailbox needs room for at least one message")
        self._lock = Lock()
        self._incoming: list[Any] = []
        self._outgoing: list[Any] = []  # in reverse, so that pop() yields the oldest
        self._control: deque[Any] | None = None
        self._gates: list[Gate] | None = None
        self._awake = True  # until its actor has started, nobody needs to schedule it
        self._closed = False
        self.capacity = capacity
        self.overflow = overflow
        self.accepted = 0
        self.refused = 0

    def __len__(self) -> int:
        """Messages that wait, both lanes."""
        return len(self._incoming) + len(self._outgoing) + len(self._control or ())

    @property
    def is_open(self) -> bool:
        """Whether messages are still taken."""
        return not self._closed

    def put(self, item: Any) -> Put:
        """Add to the user lane, unless full or closed."""
        with self._lock:
            if self._closed:
                return CLOSED
            incoming = self._incoming
            if len(incoming) + len(self._outgoing) >= self.capacity:
                return FULL
            incoming.append(item)
            self.accepted += 1
            if self._awake:
                return QUEUED
            self._awake = True
            return WAKE

    def put_control(self, item: Any, *, counted: bool = True) -> Put:
        """Add to the control lane, which user traffic never fills and which is served first.

        `counted` is false for the kernel's own signals, which are no messages to conservation (I9).
        """
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

    def put_or_wait(self, item: Any, gate: Gate) -> Put:
        """Like `put`; when full, `gate` is opened as soon as there may be room (or the mailbox closes)."""
        outcome = self.put(item)
        if outcome is not FULL:
            return outcome
        with self._lock:
            if self._closed:
                return CLOSED
            if self._gates is None:
                self._gates = []
            self._gates.append(gate)
            room = len(self._incoming) + len(self._outgoing) < self.capacity
        if room:
            gate.open()
        return FULL

    def give_up(self, gate: Gate) -> None:
        """A blocked producer's deadline is over."""
        with self._lock:
            if self._gates and gate in self._gates:
                self._gates.remove(gate)

    def count_refused(self) -> None:
        """A producer was turned away."""
        with self._lock:
            self.refused += 1

    def take(self) -> Any:
        """Next item for the consumer, control lane first; NOTHING when empty, then the next put returns WAKE."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._outgoing:
                return self._outgoing.pop()
            incoming = self._incoming
            if incoming:
                if len(incoming) > FEW or self._gates:
                    return self._refill()
                return incoming.pop(0)  # producers only append, so this needs no lock
            self._awake = False  # as in sleep()
            if not (self._incoming or self._control):
                return NOTHING
            self._awake = True

    def _refill(self) -> Any:
        """Turn the incoming stack over, and take the first item before letting anybody in who waits for room."""
        with self._lock:
            self._outgoing, self._incoming = self._incoming, self._outgoing
            gates, self._gates = self._gates, None
        self._outgoing.reverse()
        item = self._outgoing.pop()
        _open(gates or [])
        return item

    def sleep(self) -> bool:
        """The consumer's turn is over: True when nothing waits, then the next put returns WAKE.

        No lock: a producer adds first and looks at `_awake` then, the consumer the other way round, so one of them sees
        the other. At worst both do, and the consumer has a turn with nothing to do.
        """
        self._awake = False
        if self._incoming or self._control or self._outgoing:
            self._awake = True
            return False
        return True

    def peek(self) -> Any:
        """The item `take` would return; NOTHING when empty. For traces of the simulation only."""
        with self._lock:
            if self._control:
                return self._control[0]
            if self._outgoing:
                return self._outgoing[-1]
            return self._incoming[0] if self._incoming else NOTHING

    def hold(self, drop: type[Any]) -> None:
        """Keep messages, but let no put schedule the consumer: there is none at present.

        Control items of type `drop` were meant for the consumer that has gone, and go with it.
        """
        with self._lock:
            self._awake = True
            if self._control:
                self._control = deque(item for item in self._control if type(item) is not drop)

    def close(self) -> list[Any]:
        """Take no more and hand over what was waiting, control lane first. Closing twice yields nothing."""
        with self._lock:
            self._closed = True
            left = [*(self._control or ()), *reversed(self._outgoing), *self._incoming]
            self._control, self._outgoing, self._incoming = None, [], []
            gates, self._gates = self._gates, None
        _open(gates or [])
        return left


def _open(gates: list[Gate]) -> None:
    for gate in gates:
        gate.open()
