"""How fast the journal writes to PostgreSQL, beside psycopg alone that inserts the same bytes.

    python benchmarks/journal_postgres.py postgresql://user@host/database [--events 20000]

As journal.py does it for SQLite: the same batches in turn, one commit each. Ours proves its lease in each transaction;
raw is `executemany` into one table without a key. The database may hold other things; the schema `callboard` stays in
it, raw's table does not. Without a URL the server of the tests is started for it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from journal import BATCHES, Times, as_bytes, changes

from callboard.actors.journal.journal_records import Change, Write
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.actors.journal.sqlite_database import Durability

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.postgres_server import PostgresServer


def measure(url: str, durability: Durability, batch: int, events: int) -> None:
    """One line for ours and one for raw."""
    journal = PostgresJournal(url, durability=durability)
    journal.open()
    source, ours, theirs, cpu = changes(), Times(), Times(), 0.0
    with psycopg.connect(url) as raw:
        raw.execute(f"SET synchronous_commit = {'on' if durability == 'power' else 'off'}".encode())
        raw.execute("CREATE TABLE public.raw_events (data bytea)")
        raw.commit()
        for _ in range(max(100, events // batch)):
            given: list[Change] = [next(source) for _ in range(batch)]
            rows = [(as_bytes(change),) for change in given if isinstance(change, Write)]
            began, used = time.perf_counter(), time.thread_time()
            journal.commit(given)
            ours.seconds.append(time.perf_counter() - began)
            cpu += time.thread_time() - used
            began = time.perf_counter()
            raw.cursor().executemany("INSERT INTO public.raw_events VALUES (%s)", rows)
            raw.commit()
            theirs.seconds.append(time.perf_counter() - began)
        raw.execute("DROP TABLE public.raw_events")
        raw.commit()
    journal.close()
    share = sum(theirs.seconds) / sum(ours.seconds)
    cpu_us = cpu / batch / len(ours.seconds) * 1e6
    print(f"{durability:7} {batch:>4}  ours {ours.told(batch)}   CPU {cpu_us:5.1f} us/event")
    print(f"{'':7} {'':4}  raw  {theirs.told(batch)}   ours is {share:.2f} of it", flush=True)


@contextmanager
def a_server() -> Iterator[str]:
    with PostgresServer() as server, server.database() as url:
        yield url


def run(url: str, events: int) -> None:
    durabilities: tuple[Durability, ...] = ("power", "process")
    for durability in durabilities:
        for batch in BATCHES:
            measure(url, durability, batch, min(1_000 * batch, events))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--events", type=int, default=20_000, help="for each line; at least 100 commits")
    arguments = parser.parse_args()
    if arguments.url:
        run(arguments.url, arguments.events)
        return
    with a_server() as url:
        run(url, arguments.events)


if __name__ == "__main__":
    main()
