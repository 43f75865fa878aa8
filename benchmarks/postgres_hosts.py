"""Two hosts on one PostgreSQL, and everything between and around them is disturbed while they work.

    python benchmarks/postgres_hosts.py                 # 30 minutes on a server of its own
    python benchmarks/postgres_hosts.py URL --minutes 5 # a database of its own, which is emptied; its server stays up
    python benchmarks/postgres_hosts.py --durability process

Each host asks all the time the load of crashes.py: steps with calls of each effect, and an answer. Meanwhile, one after
the other and at random: a host is killed or stopped for longer than its lease, the server crashes or is restarted,
connections are ended, dropped or fall silent on their way, tables are locked. Then both hosts have a while to end what
is open, and crash_checks.py looks at effects, at what was shown, and at the journal. A request on which nothing happens
for STUCK_SECONDS is one that nobody runs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import crash_callboard
import crash_load
import orjson
import psycopg
from crash_callboard import Start, asked
from crash_checks import NOT_WRITTEN, Told, Verdict, judged_with_journal
from crash_journals import PostgresJournal
from crash_load import effects, report
from crashes import table

from callboard import Runtime
from callboard.actors.journal import postgres_journal
from callboard.actors.journal.leases import LEASE_SECONDS
from callboard.actors.requests.recorded_reply import recorded_reply
from callboard.protocol.errors import CallboardError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.postgres_server import PostgresServer
from support.tcp_proxy import TcpProxy

#: Of each host, some at once; what it has open is held to a number, so that the load of a slow machine does not grow.
ASKED_A_SECOND = 3.0
MOST_AT_ONCE = 6
MOST_OPEN = 20
#: A disturbance shall find calls of the model and of tools in the middle: a request takes a second.
MODEL_SECONDS = 0.15
TOOL_SECONDS = 0.1
#: Between two disturbances: the next one must not meet what the last one has left undone. With durability="process" a
#: host may lose what it was told in the last second before its server crashed, if it dies before it is connected again.
PAUSE_SECONDS: Final = (2.0, 8.0)
#: For a host whose input has ended, as a deploy does it.
EXIT_SECONDS: Final = 40.0
#: A server that has crashed recovers first.
UP_WITHIN_SECONDS: Final = 60.0
#: Longer than what any disturbance may cost a request.
STUCK_SECONDS: Final = 75.0
LOCKED: Final = ("callboard_events", "callboard_open", "callboard_owners", "callboard_outcomes")
OPEN: Final = "SELECT count(*) FROM callboard.callboard_open"
STUCK: Final = """
SELECT o.request_id, max(e.written_at) FROM callboard.callboard_open o
JOIN callboard.callboard_events e ON e.request_id = o.request_id GROUP BY 1 HAVING max(e.written_at) < %s"""
SHOWN_FAULTS = 12


# -- a host


async def host(start: Start) -> None:
    """Asks what it is told to on its standard input, until that ends."""
    vars(crash_callboard).update(MODEL_SECONDS=MODEL_SECONDS, TOOL_SECONDS=TOOL_SECONDS)
    vars(crash_load).update(TOOL_SECONDS=TOOL_SECONDS)
    async with start.runtime() as runtime:
        report(ready=True)
        asking: set[asyncio.Task[None]] = set()
        while request_id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            task = asyncio.create_task(ask(runtime, request_id))
            asking.add(task)
            task.add_done_callback(asking.discard)


async def ask(runtime: Runtime, request_id: str) -> None:
    try:
        report(ended=request_id, text=(await asked(runtime, request_id)).text)
    except CallboardError as error:  # that of the asker: the journal has what became of the request
        report(left=request_id, error=str(error))


class Host:
    """One of the two, started again after each end, with a proxy of its own before the server."""

    def __init__(self, name: str, command: list[str], told: Told, log: Path) -> None:
        self.name = name
        self._command, self._told, self.log = command, told, log
        self._ids = itertools.count()
        self._open: set[str] = set()
        self.process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self.is_ready = threading.Event()
        """It has been, once: the tables are made."""
        self._hearing: threading.Thread | None = None

    def start(self) -> None:
        with self._changing, self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            self._open.clear()
            self._told.starts += 1
            self._hearing = threading.Thread(target=self._hear, args=(self.process,), daemon=True)
            self._hearing.start()

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = orjson.loads(line)
            if said.get("event") not in NOT_WRITTEN:
                self._told.hear(said)
            self._open.discard(said.get("ended") or said.get("left"))
            if "ready" in said:
                self.is_ready.set()

    def ask(self) -> None:
        with self._changing:
            if self.process is None or self.process.stdin is None or len(self._open) >= MOST_OPEN:
                return
            request_id = f"{self.name}{next(self._ids):06}"
            self._open.add(request_id)
            with suppress(OSError):  # it has ended this moment
                self.process.stdin.write(f"{request_id}\n".encode())
                self.process.stdin.flush()

    def end(self, how: Callable[[subprocess.Popen[bytes]], object]) -> None:
        with self._changing:
            process, self.process = self.process, None
        if process is None:
            return
        how(process)
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._told.left_behind += 1
            process.kill()
            process.wait()
        assert self._hearing is not None
        assert process.stdout is not None
        self._hearing.join(EXIT_SECONDS)
        process.stdout.close()


# -- the disturbances


class Run:
    """The hosts, and what is done to them."""

    def __init__(self, url: str, server: PostgresServer | None, options: argparse.Namespace, chosen: random.Random):
        self.url, self.server, self.chosen = url, server, chosen
        self.lease = options.lease_seconds
        self.hosts: list[Host] = []
        self.proxies: list[TcpProxy] = []
        self.faults: list[str] = []
        self.done = Counter[str]()
        self._options = options
        self._is_calm = threading.Event()

    @contextmanager
    def started(self, folder: Path, told: Told) -> Iterator[None]:
        port = str(psycopg.conninfo.conninfo_to_dict(self.url).get("port") or 5432)
        with ExitStack() as stack:
            for name in "ab":
                proxy = stack.enter_context(TcpProxy(int(port)))
                through = psycopg.conninfo.make_conninfo(self.url, host="127.0.0.1", port=proxy.port)
                given = [str(folder), as_url(through), self._options.durability, str(self.lease)]
                command = [sys.executable, __file__, "--host", *given]
                self.proxies.append(proxy)
                self.hosts.append(Host(name, command, told, folder / f"{name}.log"))
                self.hosts[-1].start()
            for each in self.hosts:
                if not each.is_ready.wait(EXIT_SECONDS):
                    raise SystemExit(f"host {each.name} does not start: {each.log.read_text()}")
            loading = threading.Thread(target=self._load, daemon=True)
            loading.start()
            try:
                yield
            finally:
                self._is_calm.set()
                loading.join(EXIT_SECONDS)
                for each in self.hosts:
                    each.end(lambda _: None)

    def between(self, least: float, most: float) -> None:
        """The load goes on meanwhile."""
        time.sleep(self.chosen.uniform(least, most))

    def _load(self) -> None:
        chosen = random.Random(self.chosen.random())
        mean = (1 + MOST_AT_ONCE) / 2 / ASKED_A_SECOND
        while not self._is_calm.wait(chosen.uniform(0, 2 * mean)):
            for each in self.hosts:
                for _ in range(chosen.randint(1, MOST_AT_ONCE)):
                    each.ask()

    def find_ended(self) -> None:
        for each in self.hosts:
            if each.process is not None and each.process.poll() is not None:
                self.faults.append(f"host {each.name} has ended by itself: {each.process.returncode}")
                each.end(lambda _: None)
                each.start()

    def kill_a_host(self) -> None:
        each = self.chosen.choice(self.hosts)
        each.end(subprocess.Popen.kill)
        self.between(0, self.lease + 5)
        each.start()

    def stop_a_host(self) -> None:
        each = self.chosen.choice(self.hosts)
        assert each.process is not None
        each.process.send_signal(signal.SIGSTOP)
        self.between(self.lease + 2, self.lease + 10)
        each.process.send_signal(signal.SIGCONT)

    def crash_the_server(self) -> None:
        self._server_away(self.chosen.choice((signal.SIGQUIT, signal.SIGKILL)))

    def kill_a_backend(self) -> None:
        """The server ends all connections then, and recovers as after a crash, without a restart."""
        with connected(self.url) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        if found:
            with suppress(ProcessLookupError):
                os.kill(self.chosen.choice(found)[0], signal.SIGKILL)

    def restart_the_server(self) -> None:
        self._server_away(signal.SIGINT)

    def _server_away(self, how: signal.Signals) -> None:
        assert self.server is not None
        self.server.stop(how)
        self.between(0, 8)
        for number in range(20):
            try:
                self.server.start()
                return
            except AssertionError:  # processes of the one that was killed hold its memory still
                self.server.stop()
                if number == 19:
                    raise
                time.sleep(0.5)

    def end_connections(self) -> None:
        share = self.chosen.choice((0.3, 1.0))
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND pid <> pg_backend_pid() AND random() < {share}"
        )

    def drop_connections(self) -> None:
        self.chosen.choice(self.proxies).mend()

    def fall_silent(self) -> None:
        silent = self.proxies if self.chosen.random() < 0.3 else [self.chosen.choice(self.proxies)]
        for proxy in silent:
            proxy.cut()
        self.between(0.5, 12)
        for proxy in silent:
            proxy.mend()

    def lock_a_table(self) -> None:
        with connected(self.url, autocommit=False) as connection:
            connection.execute(f"LOCK TABLE callboard.{self.chosen.choice(LOCKED)} IN ACCESS EXCLUSIVE MODE".encode())
            self.between(0.5, 8)

    def _execute(self, statement: str) -> None:
        with connected(self.url) as connection:
            connection.execute(statement.encode())

    def disturb(self, until: float) -> None:
        """One after the other; what was chosen least often is likelier."""
        kinds: list[Callable[[], None]] = [
            self.kill_a_host, self.stop_a_host, self.end_connections, self.drop_connections, self.fall_silent,
            self.lock_a_table,
        ]  # fmt: skip
        if self.server is not None:
            kinds += [self.crash_the_server, self.restart_the_server, self.kill_a_backend]
        order: list[Callable[[], None]] = []
        while time.monotonic() < until:
            self.between(*PAUSE_SECONDS)
            if not order:
                order = self.chosen.sample(kinds, len(kinds))
            kind = order.pop()
            print(f"  {time.strftime('%H:%M:%S')} {kind.__name__}", file=sys.stderr, flush=True)
            kind()
            self.done[kind.__name__] += 1
            self.find_ended()
            self.find_stuck()

    def find_stuck(self) -> None:
        # The server that was disturbed may fall once more, as after a backend was killed: then it is looked next time.
        with suppress(psycopg.OperationalError), connected(self.url) as connection:
            for request_id, at in connection.execute(STUCK, (time.time() - STUCK_SECONDS,)).fetchall():
                told = f"nobody runs {request_id}: nothing has happened since {time.strftime('%X', time.localtime(at))}"
                if told not in self.faults:
                    self.faults.append(told)

    def calm_down(self) -> None:
        """Nothing more is asked; all that is open has to end."""
        self._is_calm.set()
        give_up_at = time.monotonic() + STUCK_SECONDS
        time.sleep(PAUSE_SECONDS[1])  # the server that was disturbed last may fall once more
        with connected(self.url) as connection:
            while left := connection.execute(OPEN.encode()).fetchall()[0][0]:
                if time.monotonic() > give_up_at:
                    self.faults.append(f"{left} requests have not ended {STUCK_SECONDS:g} s after the last disturbance")
                    return
                time.sleep(0.5)


def connected(url: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
    """As soon as the server is up again."""
    give_up_at = time.monotonic() + UP_WITHIN_SECONDS
    while True:
        try:
            return psycopg.connect(url, autocommit=autocommit, connect_timeout=5)
        except psycopg.OperationalError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)


def as_url(given: str) -> str:
    """From libpq's other way to write it."""
    parts = psycopg.conninfo.conninfo_to_dict(given)
    return f"postgresql://{parts['user']}:{parts.get('password', '')}@127.0.0.1:{parts['port']}/{parts['dbname']}"


def judged(run: Run, folder: Path, told: Told) -> Verdict:
    journal = PostgresJournal(run.url)
    with connected(run.url) as connection:
        there = {row[0] for row in connection.execute("SELECT request_id FROM callboard.callboard_requests")}
    ids = sorted(there | told.ended.keys() | {shown[0] for shown in told.shown})
    logs = journal.logs(folder, ids)
    for request_id, log in logs.items():
        if log.end is None:
            continue
        try:
            text = recorded_reply(log, log.end, {}).text
            told.ended[request_id].add(text)
        except CallboardError as error:
            told.failed[request_id].add(str(error))
    told.has_all = True
    verdict = judged_with_journal(ids, told, effects(folder, None) + journal.rows(folder), logs)
    verdict.faults += run.faults
    return verdict


def disturbed(options: argparse.Namespace, url: str, server: PostgresServer | None) -> Verdict:
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, durability={options.durability}", flush=True)
    run, told = Run(url, server, options, random.Random(seed)), Told()
    with tempfile.TemporaryDirectory(prefix="postgres-hosts-") as place:
        folder = Path(place)
        PostgresJournal(url).make(folder)
        with run.started(folder, told):
            run.disturb(time.monotonic() + options.minutes * 60)
            run.calm_down()
        told.kills = run.done["kill_a_host"]
        verdict = judged(run, folder, told)
        if verdict.faults:
            shutil.copytree(folder, kept := Path(tempfile.mkdtemp(prefix="postgres-hosts-kept-")), dirs_exist_ok=True)
            verdict.faults.append(f"(its files: {kept})")
    print(table({"two hosts": verdict}))
    print(f"\n{sum(run.done.values())} disturbances: {dict(sorted(run.done.items()))}")
    print(f"what calls were told as: {dict(sorted(verdict.told.items()))}")
    for error, count in verdict.errors.most_common(SHOWN_FAULTS):
        print(f"{count:>8} requests ended with: {error}")
    for fault in verdict.faults[:SHOWN_FAULTS]:
        print(f"FAIL {fault}")
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", nargs="?", default="", help="a database of its own on this machine: it is emptied")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--durability", choices=["power", "process"], default="power")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_SECONDS)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--host", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        folder, url, durability, lease = options.host
        # Short ones are for a short run.
        postgres_journal.PostgresJournal = partial(  # type: ignore[misc,assignment]
            postgres_journal.PostgresJournal, lease_seconds=float(lease)
        )
        asyncio.run(host(Start(folder, url, MOST_OPEN, durability)))
        return
    with ExitStack() as stack:
        server, url = None, options.url
        if not url:
            server = stack.enter_context(PostgresServer())
            url = stack.enter_context(server.database())
        faults = disturbed(options, url, server).faults
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
