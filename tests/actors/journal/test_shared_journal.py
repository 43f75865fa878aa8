"""Several real processes on one journal in PostgreSQL, one of them killed, one stopped for longer than its lease and
continued: effects counted from outside.

A trigger in the database writes down which process has written which event, by the name of its connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

import psycopg
import pytest
from support import sharing_daemon
from support.postgres_server import PostgresServer, new_database
from support.sharing_daemon import EFFECTS_FILE, KINDS, STEPS, key, model, once, repeat, request_ids, transaction

from callboard import RequestEnded, Runtime, Settings, UsageError
from callboard.actors.journal import postgres_journal
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.postgres_journal import PostgresJournal, PostgresReader
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.protocol.ids import RequestId
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedTurn

LEASE_SECONDS = 1.5
REQUESTS = 6
BEGUN = "SELECT count(*) = %s FROM callboard.callboard_requests"
ENDED_OF = "SELECT count(*) = %s FROM callboard.callboard_ends WHERE request_id LIKE %s"
STILL_OPEN = """
SELECT request_id, owner, (SELECT string_agg(who || ':' || token, ' ') FROM callboard.callboard_owners),
    (SELECT max(number) FROM callboard.callboard_events e WHERE e.request_id = o.request_id)
FROM callboard.callboard_open o ORDER BY 1"""
#: For all requests of a round to end, on a machine that is busy with something else.
PATIENCE_SECONDS = 40.0
AUDIT = """
CREATE TABLE public.booked (call_key text);
CREATE TABLE public.audit (place bigserial, request_id text, number bigint, who text);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.audit (request_id, number, who)
    VALUES (NEW.request_id, NEW.number, current_setting('application_name'));
    RETURN NEW;
END $$;
CREATE TRIGGER audit AFTER INSERT ON callboard.callboard_events FOR EACH ROW EXECUTE FUNCTION public.audit();
"""


@dataclass
class Daemon:
    """One process, and what it has said so far."""

    name: str
    process: subprocess.Popen[str]
    lines: queue.SimpleQueue[dict[str, str]] = field(default_factory=queue.SimpleQueue)

    def hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def wait_for(self, what: str, count: int = 1) -> None:
        """Until it has said so many lines of this kind."""
        until = time.monotonic() + PATIENCE_SECONDS
        while count:
            told = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            count -= what in told


@contextmanager
def daemon(name: str, url: str, folder: Path, own: list[str]) -> Iterator[Daemon]:
    command = [sys.executable, sharing_daemon.__file__, url, str(folder), str(LEASE_SECONDS), *own]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "PGAPPNAME": name},
        )  # fmt: skip
    running = Daemon(name, process)
    hearing = threading.Thread(target=running.hear, daemon=True)
    hearing.start()
    try:
        yield running
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            hearing.join(10)
            assert process.stdout is not None
            process.stdout.close()


def until(url: str, is_so: str, parameters: tuple[object, ...]) -> None:
    """Until the database says so."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(is_so.encode(), parameters).fetchone() != (True,):
            assert time.monotonic() < give_up_at, connection.execute(STILL_OPEN).fetchall()
            connection.execute("SELECT pg_sleep(0.05)")


def until_effects(folder: Path, count: int) -> None:
    """Until there are so many effects outside of the database."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    file = folder / EFFECTS_FILE
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert time.monotonic() < give_up_at
        threading.Event().wait(0.005)


def until_each_has_begun(folder: Path, requests: list[str]) -> None:
    """Until each has an effect outside of the database: who asks while there is no server is told so."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    file = folder / EFFECTS_FILE
    while not file.exists() or {line.split()[0] for line in file.read_text().splitlines()} < set(requests):
        assert time.monotonic() < give_up_at
        threading.Event().wait(0.005)


def check(url: str, folder: Path, requests: list[str]) -> None:
    """What must hold of a round."""
    with psycopg.connect(url) as connection:
        written = connection.execute("SELECT request_id, who FROM public.audit ORDER BY request_id, place").fetchall()
        booked = Counter(row[0] for row in connection.execute("SELECT call_key FROM public.booked"))
        committed = connection.execute("SELECT count(*) FROM callboard.callboard_outcomes").fetchone()
        taken = connection.execute("SELECT request_id, count(*) FROM callboard.callboard_takings GROUP BY 1").fetchall()
    writers: defaultdict[str, list[str]] = defaultdict(list)
    for request_id, who in written:
        writers[request_id].append(who)
    for request_id in requests:
        # One process after the other: who was taken over has written nothing behind the other's first event.
        in_turn = [who for who, _ in groupby(writers[request_id])]
        assert len(in_turn) == len(set(in_turn)), f"{request_id}: {in_turn}"
    found = Counter(line.rpartition(" ")[0] for line in (folder / EFFECTS_FILE).read_text().splitlines())
    for request_id in requests:
        for step in range(1, STEPS + 1):
            assert found[key(request_id, step, "once")] <= 1
            assert booked[key(request_id, step, "transaction")] == 1, key(request_id, step, "transaction")
            assert found[key(request_id, step, "repeat")] >= 1
    assert committed == (len(requests) * STEPS,)
    assert set(found) | set(booked) <= {
        key(each, step, kind) for each in requests for step in range(1, STEPS + 1) for kind in KINDS
    }
    assert all(count == 1 for _, count in taken), "one request was taken over twice"


@pytest.fixture
def url() -> Iterator[str]:
    with new_database() as made:
        yield made


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(30 if os.environ.get("CALLBOARD_DEEP") else 1))
def test_requests_of_a_killed_and_of_a_stopped_process_go_on_once_elsewhere(
    url: str, tmp_path: Path, seed: int
) -> None:
    journal = PostgresJournal(url)
    journal.open()
    journal.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(AUDIT)
    chosen = random.Random(seed)
    own = {name: request_ids(name, REQUESTS) for name in ("killed", "stopped", "sound")}
    everything = [each for ids in own.values() for each in ids]
    with (
        daemon("sound", url, tmp_path, own["sound"]),
        daemon("stopped", url, tmp_path, own["stopped"]) as stopped,
        daemon("killed", url, tmp_path, own["killed"]) as killed,
    ):
        until(url, BEGUN, (len(everything),))
        until_effects(tmp_path, chosen.randrange(1, 3 * REQUESTS))
        killed.process.kill()
        stopped.process.send_signal(signal.SIGSTOP)
        until(url, ENDED_OF, (REQUESTS, "killed-%"))
        until(url, ENDED_OF, (REQUESTS, "stopped-%"))
        stopped.process.send_signal(signal.SIGCONT)
        # Those who had asked there hear of it.
        stopped.wait_for("over", REQUESTS)
        until(url, ENDED_OF, (len(everything), "%"))
    check(url, tmp_path, everything)


def test_what_a_tool_writes_is_committed_with_the_outcome_of_its_call(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.booked (call_key text)")

    async def ask() -> str:
        settings = Settings(model="scripted/model", script=model(str(tmp_path)), journal=url)
        async with Runtime(settings, [repeat, once, transaction]) as runtime:
            return (await runtime.ask("r", request_id="r")).text

    assert asyncio.run(ask()) == "All is done."
    with psycopg.connect(url) as connection:
        booked = [row[0] for row in connection.execute("SELECT call_key FROM public.booked")]
        outcomes = connection.execute("SELECT step FROM callboard.callboard_outcomes").fetchall()
        owners = connection.execute("SELECT who FROM callboard.callboard_owners").fetchall()
    assert sorted(booked) == [key("r", step, "transaction") for step in range(1, STEPS + 1)]
    assert sorted(outcomes) == [(step,) for step in range(1, STEPS + 1)]
    assert owners == [], "a stopped process leaves its requests at once"


def test_a_restart_of_the_server_in_the_middle_costs_no_request(tmp_path: Path) -> None:
    asked = request_ids("r", REQUESTS)

    async def ask_all() -> list[str]:
        settings = Settings(model="scripted/model", script=model(str(tmp_path)), journal=url)
        async with Runtime(settings, [repeat, once]) as runtime:
            replies = [asyncio.create_task(runtime.ask(each, request_id=each)) for each in asked]
            await asyncio.to_thread(until_each_has_begun, tmp_path, asked)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            return [(await each).text for each in replies]

    with PostgresServer() as server, server.database() as url:
        assert asyncio.run(ask_all()) == ["All is done."] * REQUESTS
        reader = PostgresReader(url)
        for each in asked:
            log = reader.request(RequestId(each))
            assert log is not None
            assert log.end is not None
        reader.close()
    effects = Counter((tmp_path / EFFECTS_FILE).read_text().splitlines())
    assert set(effects.values()) == {1}
    assert len(effects) == REQUESTS * STEPS * 2


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a test can wait for."""
    monkeypatch.setattr(postgres_journal, "PostgresJournal", partial(PostgresJournal, lease_seconds=LEASE_SECONDS))


def end_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_all_that_is_asked_of_a_runtime_is_read_after_its_connections_have_ended(url: str) -> None:
    async def all_of_it() -> list[object]:
        found: list[object] = []
        async with Runtime(Settings(model="scripted/model", script=lambda _: ScriptedTurn("done"), journal=url)) as run:
            await run.ask("r", request_id="r")
            end_connections(url)
            found.append((await run.result("r")).text)
            end_connections(url)
            found.append(getattr([each async for each in run.follow("r")][-1].item, "text", None))
            end_connections(url)
            found.append((await run.ask("s", request_id="s")).text)
            end_connections(url)
            with pytest.raises(UsageError, match="has a request with the id"):
                await run.ask("r", request_id="r")
            journal = run.journal
            reads: list[Callable[[], object]] = [
                lambda: len(journal.conversations()), lambda: len(journal.requests()),
                lambda: journal.request("r").request_id, lambda: journal.usage().total.requests,
                lambda: len(journal.conversation(journal.request("r").begins.conversation_id).messages),
                lambda: journal.set_aside(),
            ]  # fmt: skip
            for read in reads:
                end_connections(url)
                found.append(read())
            return found

    assert asyncio.run(all_of_it()) == ["done", "done", "done", 2, 2, "r", 2, 2, []]


@pytest.mark.usefixtures("short_lease")
def test_a_request_that_was_taken_into_our_name_and_could_not_be_read_is_run_at_a_later_renewal(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = JournalRecords.request, [1]
    asked, failed = threading.Event(), threading.Event()

    def fails_once(self: JournalRecords, request_id: RequestId) -> object:
        if asked.is_set() and failures:
            failures.pop()
            failed.set()
            raise JournalFailed("the server is away for longer than anybody waits")
        return read(self, request_id)

    def turn(_: ModelRequest) -> ScriptedTurn:
        if asked.is_set():
            return ScriptedTurn("done")
        asked.set()
        return ScriptedTurn("never", first_delay_seconds=3_600.0)

    async def left_and_taken_up() -> None:
        settings = Settings(model="scripted/model", script=turn, journal=url, request_timeout_seconds=120.0)
        async with Runtime(settings) as second:
            async with Runtime(settings) as first:
                left = asyncio.create_task(first.ask("r", request_id="r"))
                await asyncio.to_thread(asked.wait, PATIENCE_SECONDS)
                monkeypatch.setattr(JournalRecords, "request", fails_once)
            with pytest.raises(RequestEnded):
                await left
            await asyncio.to_thread(until, url, ENDED_OF, (1, "r"))
            assert failed.is_set()
            assert (await second.result("r")).text == "done"

    asyncio.run(left_and_taken_up())


@pytest.mark.usefixtures("short_lease")
def test_requests_that_run_here_are_not_taken_up_again_at_renewals(url: str) -> None:
    """Many that begin and end while it is looked for such as nobody runs."""
    settings = Settings(model="scripted/model", script=lambda _: ScriptedTurn("done"), journal=url)

    async def ask_on() -> None:
        async with Runtime(settings) as runtime:
            give_up_at = time.monotonic() + 4 * LEASE_SECONDS
            number = 0
            while time.monotonic() < give_up_at:
                number += 10
                await asyncio.gather(*(runtime.ask("?", request_id=f"r{number + each}") for each in range(10)))

    asyncio.run(ask_on())
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT * FROM callboard.callboard_takings").fetchall() == []
