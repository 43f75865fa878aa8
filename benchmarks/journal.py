"""How fast the journal writes to SQLite, beside sqlite3 alone that inserts the same bytes.

    python benchmarks/journal.py [--events 20000] [--folder /var/tmp]

Ours: `SqliteJournal.commit` with batches of changes as sessions hand them over: events as values, encoded, with their
checksums. Raw: rows that were encoded before, by `executemany` into one table without a key, in a WAL with the same
`synchronous`. Both take turns with the same batches, so that what else the disk does meets both. An event is one of a
tool call's life; requests begin and end among them. A commit is durable when it returns: with `power` it is one fsync.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from callboard.actors.journal.encoding import rows_of
from callboard.actors.journal.journal_records import Beginning, Change, RequestEnd, Write
from callboard.actors.journal.sqlite_database import Durability
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import Text, ToolCall, UserMessage
from callboard.protocol.events import Event, ModelResponded, RequestStarted, ToolCallCompleted, ToolCallStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import ModelResponse, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import ToolDefinition

BATCHES = (1, 10, 100, 500)
CALLS = 4
OPEN = 50
TOOLS = tuple(ToolOffer(ToolDefinition(ToolName(f"tool_{n}"), "Looks something up. " * 10)) for n in range(8))
RESULT = "rain in the morning, sun in the afternoon; " * 5


def request(number: int) -> Iterator[Write]:
    """A turn with four calls, and an answer: eleven events, the last with the end."""
    which = RequestId(f"{time.time_ns():x}-{number}")
    tag = Tag(which, MessageId("m"))
    calls = tuple(ToolCall(CallId(f"call_{n}"), ToolName(f"tool_{n}"), '{"city":"Paris"}') for n in range(CALLS))
    first = RequestStarted(tag, 1.0, (), UserMessage.of("What is the weather?"), RequestOptions("p/m"), TOOLS)
    turn = ModelResponded(tag.at_step(1), 2.0, ModelResponse(calls, usage=Usage(900, 80)))
    answer = ModelResponded(tag.at_step(2), 4.0, ModelResponse((Text(RESULT),), usage=Usage(1_200, 90)))
    tags = [tag._replace(step=1, call_id=call.call_id) for call in calls]
    events: list[Event] = [turn, *(ToolCallStarted(each, 2.5) for each in tags)]
    events += [ToolCallCompleted(each, 3.0, RESULT) for each in tags]
    yield Write(which, 1, (first,), ("CallModel",), Beginning("c", None, 1.0, "p/m"), "c")
    for place, event in enumerate(events, start=2):
        yield Write(which, place, (event,), ("RunTool",))
    end = RequestEnd(5.0, Finish(tag, Outcome.ANSWERED, RESULT, Usage(2_100, 170), None, ()))
    yield Write(which, len(events) + 2, (answer,), ("Finish",), ends=end)


def changes() -> Iterator[Write]:
    """Of fifty requests that are open at the same time, in turn."""
    numbers = itertools.count()
    running = [request(next(numbers)) for _ in range(OPEN)]
    while True:
        for place in range(OPEN):
            change = next(running[place], None)
            if change is None:
                running[place] = request(next(numbers))
                change = next(running[place])
            yield change


@dataclass
class Times:
    """Of each commit, in seconds."""

    seconds: list[float] = field(default_factory=list)

    def told(self, batch: int) -> str:
        """Events a second, and how long a commit took."""
        per_second = batch * len(self.seconds) / sum(self.seconds)
        shares = statistics.quantiles(self.seconds, n=100)
        return f"{per_second:>9,.0f}/s   p50 {shares[49] * 1e3:6.2f} ms   p99 {shares[98] * 1e3:6.2f} ms"


class Raw:
    """sqlite3 and nothing else."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
        self.connection.execute("CREATE TABLE events (data BLOB)")

    def commit(self, rows: Sequence[tuple[bytes]]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO events VALUES (?)", rows)
        self.connection.execute("COMMIT")


def as_bytes(change: Write) -> bytes:
    """All that is written of a change."""
    return b"".join(
        value if isinstance(value, bytes) else str(value).encode() for _, row in rows_of(change, 1.0) for value in row
    )


def measure(folder: Path, durability: Durability, batch: int, events: int) -> None:
    """One line for ours and one for raw."""
    journal = SqliteJournal(folder / f"ours-{durability}-{batch}", durability=durability)
    journal.open()
    raw = Raw(folder / f"raw-{durability}-{batch}", durability)
    ours, theirs, cpu = Times(), Times(), 0.0
    source = changes()
    for _ in range(max(100, events // batch)):
        given: list[Change] = [next(source) for _ in range(batch)]
        rows = [(as_bytes(change),) for change in given if isinstance(change, Write)]
        began, used = time.perf_counter(), time.thread_time()
        journal.commit(given)
        ours.seconds.append(time.perf_counter() - began)
        cpu += time.thread_time() - used
        began = time.perf_counter()
        raw.commit(rows)
        theirs.seconds.append(time.perf_counter() - began)
    journal.close()
    raw.connection.close()
    share = sum(theirs.seconds) / sum(ours.seconds)
    cpu_us = cpu / batch / len(ours.seconds) * 1e6
    print(f"{durability:7} {batch:>4}  ours {ours.told(batch)}   CPU {cpu_us:5.1f} us/event")
    print(f"{'':7} {'':4}  raw  {theirs.told(batch)}   ours is {share:.2f} of it", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="for each line; at least 100 commits")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    arguments = parser.parse_args()
    durabilities: tuple[Durability, ...] = ("power", "process")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for durability in durabilities:
            for batch in BATCHES:
                few = 2_000 * batch if batch < 10 else arguments.events
                measure(Path(name), durability, batch, min(few, arguments.events))


if __name__ == "__main__":
    main()
