"""Kill a process with SIGKILL again and again while it works, start it again, and look at what became of its requests.

    python benchmarks/crashes.py                    # 1,000 random moments, then every point of the journal
    python benchmarks/crashes.py --kills 100 --no-points
    python benchmarks/crashes.py --peers            # and DBOS and pydantic-ai's harness, each in its own environment
    python benchmarks/crashes.py --postgres URL     # the journal in a PostgreSQL database, which is emptied

The load: 50 requests at once, each with two steps of four parallel calls, one of each effect, and one more with the
effect `once` in a thread, or, in every fourth round, in a child process. What the calls do is counted outside of the
process (crash_load.py). In one round a process is started, killed and started again, some times over, and the last one
may go on until all requests have ended; then crash_checks.py looks at effects, at what the killed processes had shown,
and at the journal.

Random moments are spread over the time that an undisturbed run takes, from the first line of the program on, so many
hit its start and its recovery. Points of the journal are the lines of the journal's own code and of what waits for it:
the process ends at the first time that each is reached, and at another time chosen at random. The seed is shown; the
processes themselves are not the same in each run.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from crash_callboard import Start, run
from crash_checks import Told, Verdict, judged, judged_with_journal
from crash_journals import PostgresJournal, SqliteJournal
from crash_load import KINDS, effects, request_ids
from sessions_peers import python_of, version_of

#: In one round. More would end requests whose steps were asked too often, and test the same recovery again.
KILLS_A_ROUND = 5
#: Every fourth one has a tool in child processes.
ROUNDS_WITH_PROCESSES = 4
#: From the last kill to the end of all requests; an undisturbed run takes two seconds.
ENDS_WITHIN_SECONDS = 90.0
#: After a process is dead, for what it has started to have gone: the pipe is closed then.
GONE_WITHIN_SECONDS = 15.0
#: Faults that are shown in full.
SHOWN_FAULTS = 12
PEERS = ("dbos", "pydantic-ai-harness")


class Child:
    """A process that reports into a pipe."""

    def __init__(self, process_id: int, pipe: int) -> None:
        self.process_id = process_id
        self._pipe = pipe
        self._rest = b""
        self._is_open = True

    def hear(self, told: Told, until: float, stop_at: str = "") -> bool:
        """Take its lines until that time, or until it has ended, or has said `stop_at`. False when it has ended."""
        while self._is_open and (left := until - time.monotonic()) > 0:
            if not select.select([self._pipe], [], [], left)[0]:
                break
            piece = os.read(self._pipe, 1 << 20)
            self._is_open = bool(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                said = orjson.loads(line)
                told.hear(said)
                if stop_at in said:
                    return True
        return self._is_open

    def kill(self, told: Told) -> None:
        """SIGKILL; what is in the pipe counts as shown."""
        os.kill(self.process_id, signal.SIGKILL)
        self.bury(told)

    def bury(self, told: Told) -> None:
        """Wait for the end of it, and of all that it has started."""
        os.waitpid(self.process_id, 0)
        if self.hear(told, time.monotonic() + GONE_WITHIN_SECONDS):
            told.left_behind += 1
        os.close(self._pipe)


def forked(start: Start) -> Child:
    """A new process that has callboard loaded already, which saves 0.4 s each time. This one has no threads."""
    reads, writes = os.pipe()
    process_id = os.fork()
    if process_id:
        os.close(writes)
        return Child(process_id, reads)
    try:
        os.close(reads)
        os.dup2(writes, 1)
        os.close(writes)
        os.setsid()
        run(start)
    except BaseException:  # noqa: BLE001 - shown, and this process ends
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def started(name: str, folder: Path, requests: int) -> Child:
    """A peer in its own environment."""
    reads, writes = os.pipe()
    program = str(Path(__file__).with_name("crash_peers.py"))
    command = [python_of(name), program, name, str(folder), "--requests", str(requests)]
    kept = {variable: os.environ[variable] for variable in ("PATH", "HOME")}
    process = subprocess.Popen(command, stdout=writes, env=kept, start_new_session=True)
    os.close(writes)
    process.returncode = 0  # it is waited for by its id, in Child
    return Child(process.pid, reads)


# -- a round


@dataclass(frozen=True)
class Moments:
    """Kill so many times, at random moments of so many seconds: those of a process that has work, so for half of the
    later ones they are counted from when it takes over what the one before had."""

    kills: int
    seconds: float
    source: random.Random
    takes_over_after: float = 0.0

    def __iter__(self) -> Iterator[float]:
        for number in range(self.kills):
            waits = self.takes_over_after if number else 0.0
            yield self.source.choice((0.0, waits)) + self.source.uniform(0, self.seconds)


def killed_at_moments(start: Callable[[], Child], moments: Moments) -> Told:
    """One round of kills at random moments. The last process may end."""
    told = Told()
    for seconds in moments:
        child = begun(start, told)
        if not child.hear(told, time.monotonic() + seconds):
            child.bury(told)
            return told  # it had ended before
        told.kills += 1
        child.kill(told)
    return to_the_end(start, told)


def begun(start: Callable[[], Child], told: Told) -> Child:
    """Started, and through with its imports: a kill before that would kill nothing of interest."""
    child = start()
    told.starts += 1
    child.hear(told, time.monotonic() + ENDS_WITHIN_SECONDS, "begun")
    return child


def to_the_end(start: Callable[[], Child], told: Told) -> Told:
    """Start it once more, and let it end."""
    child = begun(start, told)
    if child.hear(told, time.monotonic() + ENDS_WITHIN_SECONDS):
        child.kill(told)
    else:
        child.bury(told)
    return told


def undisturbed(start: Callable[[], Child]) -> tuple[Told, float]:
    """A run that is not killed, and how long it takes from its first line on."""
    told = Told()
    child = begun(start, told)
    since = time.monotonic()
    child.hear(told, since + ENDS_WITHIN_SECONDS)
    seconds = time.monotonic() - since
    child.bury(told)
    return told, seconds


Point = tuple[str, int, int]


def killed_at_points(start: Start, points: list[Point]) -> Told:
    """One round: each of its processes ends itself at the next point, if it gets there; those that did not are left in
    the list, at its end, with a lower count."""
    told = Told()
    for _ in range(min(KILLS_A_ROUND, len(points))):
        file, line, times = points.pop(0)
        child = begun(lambda aim=(file, line, times): forked(replace(start, point=aim)), told)
        if child.hear(told, time.monotonic() + ENDS_WITHIN_SECONDS):
            child.kill(told)
            return told
        child.bury(told)
        if told.has_all:
            if times > 1:
                points.append((file, line, times // 2))
            return told
        told.kills += 1
    return to_the_end(lambda: forked(start), told)


# -- callboard


class Callboard:
    """Rounds of callboard, with a journal in a file or in a PostgreSQL database."""

    def __init__(self, requests: int, journal: SqliteJournal | PostgresJournal, durability: str) -> None:
        self.requests = requests
        self._journal = journal
        self._durability = durability
        self.ids = request_ids(requests)
        self._rounds = 0

    @contextmanager
    def fresh(self) -> Iterator[Start]:
        """A folder, and a journal with nothing in it."""
        with tempfile.TemporaryDirectory(prefix="crashes-") as folder:
            url = self._journal.make(Path(folder))
            self._rounds += 1
            in_processes = self._rounds % ROUNDS_WITH_PROCESSES == 0
            yield Start(folder, url, self.requests, self._durability, in_processes=in_processes)

    def verdict(self, start: Start, told: Told) -> Verdict:
        rows = self._journal.rows(Path(start.folder))
        found = effects(Path(start.folder), None) + rows
        return judged_with_journal(self.ids, told, found, self._journal.logs(Path(start.folder), self.ids))

    def undisturbed(self) -> tuple[Verdict, float]:
        """A run without a kill: what it finds, and how long it takes from its first line on."""
        with self.fresh() as start:
            told, seconds = undisturbed(lambda: forked(start))
            return self.verdict(start, told), seconds

    def at_moments(self, kills: int, seconds: float, source: random.Random) -> Verdict:
        with self.fresh() as start:
            moments = Moments(kills, seconds, source, self._journal.takes_over_after)
            told = killed_at_moments(lambda: forked(start), moments)
            return self.kept(start, self.verdict(start, told))

    def at_points(self, points: list[Point]) -> Verdict:
        with self.fresh() as start:
            told = killed_at_points(start, points)
            return self.kept(start, self.verdict(start, told))

    def points(self, source: random.Random) -> list[Point]:
        """Each line of the journal's code that is reached in an undisturbed run or in one that takes up another: its
        first time, and another one."""
        reached = dict[tuple[str, int], int]()
        with self.fresh() as start:
            counting = replace(start, counts_points=True)
            told = Told()
            half = begun(lambda: forked(start), told)
            half.hear(told, time.monotonic() + ENDS_WITHIN_SECONDS, "ended")
            half.kill(told)
            to_the_end(lambda: forked(counting), told)
        with self.fresh() as start:
            counting = replace(start, counts_points=True)
            to_the_end(lambda: forked(counting), told)
        for file, line, times in told.points:
            reached[file, line] = max(times, reached.get((file, line), 0))
        firsts = [(file, line, 1) for file, line in reached]
        others = [(file, line, source.randint(2, times)) for (file, line), times in reached.items() if times > 1]
        source.shuffle(firsts)
        source.shuffle(others)
        return [*firsts, *others]

    def kept(self, start: Start, verdict: Verdict) -> Verdict:
        """The folder of a round with a fault is kept, for a look at it."""
        if verdict.faults:
            place = Path(tempfile.gettempdir()) / f"crash-{os.getpid()}-{Path(start.folder).name}"
            shutil.copytree(start.folder, place, dirs_exist_ok=True)
            verdict.faults.append(f"(its files: {place})")
        return verdict


# -- the run


def many(rounds: Iterator[Verdict], kills: int, name: str, minutes: float) -> Verdict:
    """So many kills, or as many as there is time for, with a line now and then."""
    total, since = Verdict(), time.monotonic()
    end_at = since + minutes * 60
    for verdict in rounds:
        total.add(verdict)
        kills = 0 if time.monotonic() > end_at else kills
        if time.monotonic() - since > 30:
            since = time.monotonic()
            print(f"  {name}: {total.kills} kills, {len(total.faults)} faults", file=sys.stderr, flush=True)
        if total.kills >= kills:
            break
    return total


def callboard_rows(options: argparse.Namespace, source: random.Random) -> dict[str, Verdict]:
    """Its rows of the table."""
    journal = PostgresJournal(options.postgres) if options.postgres else SqliteJournal()
    callboard = Callboard(options.requests, journal, options.durability)
    calm, seconds = callboard.undisturbed()
    found = {"callboard, undisturbed": calm}
    if options.kills:
        rounds = iter(lambda: callboard.at_moments(options.kills_a_round, seconds, source), None)
        found["callboard, random moments"] = many(rounds, options.kills, "random moments", options.minutes)
    if options.points:
        points = callboard.points(source)
        del points[options.points :]
        print(f"  {len(points)} points of the journal", file=sys.stderr, flush=True)

        def rounds_of_points() -> Iterator[Verdict]:
            while points:
                yield callboard.at_points(points)

        found["callboard, points"] = many(rounds_of_points(), sys.maxsize, "points of the journal", options.minutes)
    return found


def peer_rows(names: Sequence[str], options: argparse.Namespace, source: random.Random) -> dict[str, Verdict]:
    """Those of the peers, at random moments."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="crashes-") as folder:
            _, seconds = undisturbed(partial(started, name, Path(folder), options.requests))
        rounds = iter(partial(peer_round, name, options, seconds, source), None)
        found[f"{name} {version_of(name)}"] = many(rounds, options.peer_kills, name, options.minutes)
    return found


def peer_round(name: str, options: argparse.Namespace, seconds: float, source: random.Random) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="crashes-") as place:
        folder = Path(place)
        start = partial(started, name, folder, options.requests)
        told = killed_at_moments(start, Moments(options.kills_a_round, seconds, source))
        return judged(request_ids(options.requests), told, effects(folder, folder / "effects.sqlite"))


HEADS = ("requests", "kills", "not ended", *(f"{kind} x2" for kind in KINDS), "done, no effect")


def table(found: Mapping[str, Verdict]) -> str:
    """A row for each, as text."""
    lines = [f"{'':>28} " + " ".join(f"{head:>15}" for head in HEADS)]
    for name, verdict in found.items():
        never = sum("never ended" in fault for fault in verdict.faults)
        doubled = [verdict.doubled[kind] for kind in KINDS]
        figures = [verdict.requests, verdict.kills, never, *doubled, sum(verdict.missing.values())]
        lines.append(f"{name:>28} " + " ".join(f"{figure:>15}" for figure in figures))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1_000, help="at random moments")
    parser.add_argument("--points", type=int, default=10_000, help="at so many points of the journal at the most")
    parser.add_argument("--no-points", dest="points", action="store_const", const=0)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--kills-a-round", type=int, default=KILLS_A_ROUND)
    parser.add_argument("--minutes", type=float, default=600.0, help="for each row of the table, at the most")
    parser.add_argument("--durability", choices=["power", "process"], default="power")
    parser.add_argument("--postgres", metavar="URL", help="a database of its own: it is emptied")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all of them, where none is named")
    parser.add_argument("--peer-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    source = random.Random(seed)
    found = callboard_rows(options, source)
    if options.peers is not None:
        found |= peer_rows(options.peers or PEERS, options, source)
    print(table(found))
    ours = {name: verdict for name, verdict in found.items() if name.startswith("callboard")}
    for name, verdict in ours.items():
        print(f"\n{name}: what calls were told as: {dict(sorted(verdict.told.items()))}")
        for error, count in verdict.errors.most_common(SHOWN_FAULTS):
            print(f"{count:>8} requests ended with: {error}")
        for fault in verdict.faults[:SHOWN_FAULTS]:
            print(f"FAIL {fault}")
    if any(verdict.faults for verdict in ours.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
