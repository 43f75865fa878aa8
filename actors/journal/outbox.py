"""What waits to be written to the journal, and who hears that it was.

The queue is apart from the Journal actor and outlives it, as the ledger of calls outlives the dispatchers: an actor
that crashes takes no write with it, and the next one goes on in the same order. One wake-up of its thread is enough for
all that is handed over before it looks.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVar

from msgspec import Struct

from callboard.actors.journal.journal_records import EffectWrite, Write
from callboard.actors.kernel import Ref
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.ids import RequestId, Tag

_Kept = TypeVar("_Kept")

#: Writes that may wait: ten for each of 10,000 requests.
CAPACITY: Final = 100_000
#: Failed requests that are remembered: to drop what they still hand over, and to mark them as ended later.
MAX_REMEMBERED: Final = 10_000


class Written(Struct, frozen=True):
    """To a session: its events up to this number are durable."""

    request_id: RequestId
    up_to: int


class NotWritten(Struct, frozen=True):
    """To a session: something that it handed over was not written, so its request must end."""

    request_id: RequestId
    why: str
    is_unsure: bool = False
    """It may be in the journal all the same."""


class EffectCommitted(Struct, frozen=True):
    """To a worker: the outcome of its call and the statements of its tool are durable, or why not."""

    tag: Tag
    error: RuntimeFailure | None = None


class AppendWrite(Struct, frozen=True):
    """Write this for a session. `reply_to`: None where it has ended by then."""

    change: Write
    reply_to: Ref[Written | NotWritten] | None


class CommitEffect(Struct, frozen=True):
    """Write the outcome of a call with the effect `transaction`, with its statements."""

    change: EffectWrite
    reply_to: Ref[EffectCommitted]


HandedOver = AppendWrite | CommitEffect


class Outbox:
    """All that a runtime's actors share with its Journal actor. One a runtime; any thread may hand over."""

    def __init__(
        self, name: str = "", *, capacity: int = CAPACITY, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`name`: of the journal, the same for all that write to one place; `wall_clock`: what its times are by."""
        self.name = name
        self.wall_clock = wall_clock
        self.wake: Callable[[], object] = lambda: None
        """Has the actor look at what waits; set by the one that runs."""
        self.has_opened = False
        """The store was opened once: from then on a failure is no reason not to start."""
        self.tries = 0
        """How often the oldest batch was begun without an end: it may be what makes the actor crash."""
        self.failure = ""
        """Why the last batch was not written; "" when it was."""
        self.damage = ""
        """What the store found damaged when it was opened, and set aside."""
        self.error: Exception | None = None
        """What was raised then."""
        self.gone = ""
        """Why there is no journal any more; "" while there is one."""
        self.ends_runtime: Callable[[str], object] = lambda why: None
        """Ends it for this reason: its journal has gone. Called on the journal's thread."""
        self.sessions: dict[RequestId, Ref[Written | NotWritten]] = {}
        """Those whose requests have begun in the journal and not ended."""
        self.taken_up: Callable[[tuple[RequestId, ...]], object] | None = None
        """Goes on with requests of processes that have ended, where that is set. Called on the journal's thread."""
        self.here: Callable[[], frozenset[RequestId]] = frozenset
        """What this process has in hand of the journal's open requests; asked on the journal's thread."""
        self._capacity = capacity
        self._waiting: deque[HandedOver] = deque()
        self._is_awake = False
        self._failed: OrderedDict[RequestId, None] = OrderedDict()
        self._marks: OrderedDict[RequestId, Write] = OrderedDict()

    @property
    def count(self) -> int:
        """Writes that wait."""
        return len(self._waiting)

    def hand_over(self, what: HandedOver, *, is_last: bool = False) -> None:
        """Have it written, after all that was handed over before. Raises RuntimeFailure when too many writes wait, but
        for the last of a request."""
        if len(self._waiting) >= self._capacity and not is_last:
            raise RuntimeFailure(
                f"overloaded: {self._capacity:,} writes wait for the journal; its disk or server is too slow"
            )
        # First the write, then the look whether somebody wakes up anyway: `look` clears the flag first.
        self._waiting.append(what)
        if not self._is_awake:
            self._is_awake = True
            self.wake()

    # -- for the Journal actor

    def look(self, most: int) -> tuple[HandedOver, ...]:
        """What waits longest, without taking it out. What comes from now on wakes the actor again."""
        self._is_awake = False
        return tuple(islice(self._waiting, most))

    def look_again(self) -> None:
        """There may be more: wake up once more."""
        if self._waiting and not self._is_awake:
            self._is_awake = True
            self.wake()

    def drop(self, count: int) -> None:
        """So many of the oldest were dealt with."""
        self.tries = 0
        for _ in range(count):
            self._waiting.popleft()

    def is_failed(self, request_id: RequestId) -> bool:
        """Was something of this request not written?"""
        return request_id in self._failed

    def has_failed(self, write: Write) -> bool:
        """Was an earlier write of its request not written? Then this one must not be: its events would have a gap. A
        request that begins has no earlier one."""
        if write.begins is not None:
            self._failed.pop(write.request_id, None)
            self._marks.pop(write.request_id, None)
        return write.request_id in self._failed

    def remember_failed(self, request_id: RequestId, mark: Write | None) -> None:
        """Write no more of it; `mark`: what says in the journal that it has ended, as soon as that can be written."""
        _remember(self._failed, request_id, None)
        if mark is not None:
            _remember(self._marks, request_id, mark)

    def marks(self, most: int) -> tuple[Write, ...]:
        """What still has to be said of requests that have failed."""
        return tuple(islice(self._marks.values(), most))

    def drop_mark(self, mark: Write) -> None:
        """It was written, or never can be."""
        self._marks.pop(mark.request_id, None)


def _remember(kept: OrderedDict[RequestId, _Kept], request_id: RequestId, value: _Kept) -> None:
    kept[request_id] = value
    if len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
