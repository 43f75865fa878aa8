"""Damage journals that killed hosts have left, at random, and look at what is known afterwards.

    python benchmarks/damages.py                       # 1,000 damages, some minutes
    python benchmarks/damages.py --damages 50 --seed 7
    python benchmarks/damages.py --keep /tmp/faults

Hosts ask some dozen requests, eight at a time, each with a charge that may happen once, in journals that are
checkpointed often, seldom or not at all; each is killed by SIGKILL at a random moment. What they were told is durable
is what they have reported into a pipe: a charge that runs (its request is durable then), and an answer. Each damage
hits a copy of the main file or of the log: bits, cuts, zeros, pages exchanged. A process of its own looks at it
(verify), starts a runtime with it, and repairs another copy and starts with that. Hosts are not killed at the same
moment twice: `--keep FOLDER` keeps each journal with a fault as it was damaged, and with what was said of it.

Counted, without the journal's own code: requests that are unknown or differ, and whether anything told of it (a row
that was set aside, or a refusal); ends without a way out (a start, a verify or a repair that fails, or hangs); charges
that ran twice; and how many undamaged requests are known. A request is damaged where a page that SQLite would read, and
that has its id in it, was hit. All ids of a request's records are in its pages, so this needs no checksum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from callboard import Runtime, Settings, Trust, tool
from callboard.actors import wiring  # noqa: F401 - loaded before processes are forked, which saves each of them 0.4 s
from callboard.actors.journal import journal_check, sqlite_database
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.errors import CallboardError, UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

PAGE, HEADER, FRAME = 4_096, 32, 24 + 4_096
NAME = "journal.sqlite"
#: Hosts whose journals are damaged. Each is checkpointed when its log has so many pages, one after the other: 4,000, as
#: any journal is, is never in so short a time.
HOSTS, CHECKPOINT_PAGES = 12, (60, 150, 400, 4_000)
REQUESTS, AT_ONCE = 100, 8
#: After which number of answers a host is killed, at random.
KILLED_AFTER = (10, 60)
#: Processes at the same time that go through a damage each.
PROCESSES = 2
#: A damage is taken through all of it in less than a second; what takes so long hangs.
DEADLINE_SECONDS = 60.0
ID = re.compile(rb"q\d{4}x")
KINDS = ("bit", "bits", "cut", "zeros", "zero page", "exchanged")
SHOWN = 12


def answer(request_id: str) -> str:
    """Of a few bytes to more than a page, with the id in each piece of it."""
    return " ".join([f"done {request_id}"] * (1 + int(request_id[1:5]) % 7**3 * 2))


def model(request: ModelRequest) -> ScriptedTurn:
    asked = next(each.text for each in request.messages if isinstance(each, UserMessage))
    if any(isinstance(each, ToolMessage) for each in request.messages):
        return ScriptedTurn(answer(asked))
    return ScriptedTurn("", (ScriptedCall("charge", {"what": asked}, "c"),))


def settings(path: Path) -> Settings:
    return Settings(model="scripted/m", script=model, journal=path, durability="process", trust=Trust.CAREFUL)


def charger(report: Callable[[str, str], object]) -> Callable[..., object]:
    @tool(effect="once", risk="read", concurrency=AT_ONCE)
    async def charge(what: str) -> str:
        """Charge for it."""
        report("charged", what)
        return f"charged {what}"

    return charge


# -- hosts


@dataclass
class Journal:
    """What a host has left, and what it was told."""

    main: bytes
    log: bytes
    index: bytes
    lock: bytes
    answered: set[str] = field(default_factory=set)
    charged: set[str] = field(default_factory=set)

    def written_to(self, folder: Path, main: bytes, log: bytes) -> Path:
        folder.mkdir()
        for ending, data in (("", main), ("-wal", log), ("-shm", self.index), (".lock", self.lock)):
            (folder / f"{NAME}{ending}").write_bytes(data)
        return folder / NAME


def host(folder: Path, pages: int, pipe: int) -> None:
    """Runs until it is killed."""

    def report(what: str, request_id: str) -> None:
        os.write(pipe, f"{what} {request_id}\n".encode())

    # A small journal with checkpoints.
    sqlite_database._CHECKPOINT_PAGES = pages  # type: ignore[misc]

    async def ask(runtime: Runtime, numbers: Iterator[int]) -> None:
        for number in numbers:
            name = f"q{number:04}x"
            if (await runtime.ask(name, request_id=name)).text == answer(name):
                report("answered", name)

    async def all_of_them() -> None:
        async with Runtime(settings(folder / NAME), [charger(report)]) as runtime:
            numbers = iter(range(REQUESTS))
            await asyncio.gather(*(ask(runtime, numbers) for _ in range(AT_ONCE)))

    asyncio.run(all_of_them())


def killed_host(folder: Path, pages: int, answers: int) -> Journal:
    """Of a host that is killed when it has reported so many answers."""
    folder.mkdir()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        run_and_exit(lambda: host(folder, pages, writes))
    os.close(writes)
    told, is_killed, until = b"", False, time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until and select.select([reads], [], [], until - time.monotonic())[0]:
        piece = os.read(reads, 1 << 16)
        if not piece:
            break
        told += piece
        if told.count(b"answered") >= answers and not is_killed:
            os.kill(child, signal.SIGKILL)
            is_killed = True
    os.close(reads)
    if not is_killed:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    main, log, index, lock = ((folder / f"{NAME}{ending}").read_bytes() for ending in ("", "-wal", "-shm", ".lock"))
    journal = Journal(main, log, index, lock)
    for line in told.decode().splitlines():
        what, _, request_id = line.partition(" ")
        (journal.answered if what == "answered" else journal.charged).add(request_id)
    return journal


def run_and_exit(work: Callable[[], object]) -> None:
    """In a forked child."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - shown, and this process ends
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


# -- damages


@dataclass
class Damage:
    """One, done: the files as they are then, and the bytes that are not what they were."""

    told: str
    main: bytes
    log: bytes
    hit: str
    places: list[tuple[int, int]]


def damage(journal: Journal, chosen: random.Random) -> Damage:
    hit = chosen.choice(("main", "log") if journal.log else ("main",))
    data = bytearray(getattr(journal, hit))
    kind = chosen.choice(KINDS)
    before, size = bytes(data), len(data)
    at = chosen.randrange(size)
    step, start = (PAGE, 0) if hit == "main" else (FRAME, HEADER)
    page = start + max(0, at - start) // step * step
    if kind in ("bit", "bits"):
        for _ in range(1 if kind == "bit" else chosen.randint(2, 40)):
            data[chosen.randrange(size)] ^= 1 << chosen.randrange(8)
    elif kind == "cut":
        # At any byte, at a page or a frame, or to nothing.
        del data[chosen.choice((at, at, page, page, 0 if chosen.random() < 0.2 else at)) :]
    elif kind == "zeros":
        end = min(size, at + chosen.choice((1, 100, 512, 4_096, 20_000)))
        data[at:end] = bytes(end - at)
    elif kind == "zero page":
        data[page : page + step] = bytes(len(data[page : page + step]))
    else:
        other = start + chosen.randrange(max(1, (size - start) // step)) * step
        one, two = bytes(data[page : page + step]), bytes(data[other : other + step])
        if len(one) == len(two):
            data[page : page + step], data[other : other + step] = two, one
    main, log = (bytes(data), journal.log) if hit == "main" else (journal.main, bytes(data))
    return Damage(f"{kind} of {hit} at {at:,} of {size:,}", main, log, hit, _differing(before, bytes(data)))


def _differing(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """In blocks of 8 bytes."""
    places = [(len(after), len(before))] if len(after) < len(before) else []
    for at in range(0, min(len(before), len(after)), PAGE):
        one, two = before[at : at + PAGE], after[at : at + PAGE]
        if one[: len(two)] != two:
            places += [
                (at + each, at + each + 8)
                for each in range(0, len(two), 8)
                if one[each : each + 8][: len(two) - each] != two[each : each + 8]
            ]
    return places


def damaged_requests(journal: Journal, done: Damage) -> set[str]:
    """Those with their id in a page that SQLite would read, and that was hit: by its documentation of the formats."""
    frames: dict[int, int] = {}
    pending: dict[int, int] = {}
    for at in range(HEADER, len(journal.log) - FRAME + 1, FRAME):
        head = journal.log[at : at + 24]
        if head[8:16] != journal.log[16:24]:
            break
        pending[int.from_bytes(head[:4], "big")] = at
        if int.from_bytes(head[4:8], "big"):
            frames |= pending
            pending = {}
    found: set[str] = set()
    last = max([*frames, len(journal.main) // PAGE])
    for number in range(1, last + 1):
        in_log = frames.get(number)
        if ("log" if in_log is not None else "main") != done.hit:
            continue
        start, data = (in_log, journal.log) if in_log is not None else ((number - 1) * PAGE, journal.main)
        end = start + (FRAME if in_log is not None else PAGE)
        if any(one < end and start < two for one, two in done.places):
            found |= {each.decode() for each in ID.findall(data[start:end])}
    return found


# -- what becomes of it


@dataclass
class Ending:
    """What a process has seen that went through it."""

    verified: str = ""
    """What verify found; "" where nothing is wrong."""
    refused: str = ""
    """Why it could not be gone on with."""
    repaired: str = ""
    """Why it could not be repaired, or what is wrong afterwards."""
    started: dict[str, str] = field(default_factory=dict)
    after_repair: dict[str, str] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    aside_after_repair: list[str] = field(default_factory=list)
    charged: list[str] = field(default_factory=list)
    """Again."""


def gone_through(paths: Sequence[Path], known: Sequence[str]) -> Ending:
    ending = Ending()
    try:
        ending.verified = "; ".join(journal_check.verify(paths[0]).faults)
    except CallboardError as error:
        ending.verified = f"refused: {error}"
    try:
        ending.started, ending.aside = started(paths[0], known, ending.charged)
    except CallboardError as error:
        ending.refused = str(error)
    try:
        report = journal_check.repair(paths[1])
        left = [each for each in report.faults if not each.startswith("request ")]
        ending.repaired = f"left: {left}" if left else ""
        ending.after_repair, ending.aside_after_repair = started(paths[1], known, ending.charged)
    except CallboardError as error:
        ending.repaired = str(error)
    return ending


def started(path: Path, known: Sequence[str], charged: list[str]) -> tuple[dict[str, str], list[str]]:
    """What a runtime knows of each request, and what it has set aside."""
    found: dict[str, str] = {}
    with Runtime(settings(path), [charger(lambda _, what: charged.append(what))]) as runtime:
        for each in known:
            try:
                found[each] = runtime.result_sync(each).text
            except UsageError as error:
                found[each] = f"unknown: {error}"
            except CallboardError as error:
                found[each] = f"error: {error}"
        return found, [f"{each.what}: {each.why}" for each in runtime.journal.set_aside()]


class Children:
    """Processes, of which so many run at once, that go through a damage each."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[Path, Callable[[Ending | None], None]]] = {}

    def begin(self, work: Callable[[], Ending], told: Path, done: Callable[[Ending | None], None]) -> None:
        """`done` is called with None where it hangs or dies."""
        self.wait(PROCESSES - 1)
        child = os.fork()
        if not child:
            signal.alarm(int(DEADLINE_SECONDS))
            logging.disable(logging.CRITICAL)
            run_and_exit(lambda: told.write_text(json.dumps(asdict(work()))))
        self._running[child] = told, done

    def wait(self, most: int = 0) -> None:
        """Until no more than so many run."""
        while len(self._running) > most:
            child, status = os.wait()
            told, done = self._running.pop(child)
            done(Ending(**json.loads(told.read_text())) if status == 0 else None)


# -- the judge


@dataclass
class Verdict:
    """Of all damages."""

    count: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    keep: Path | None = None
    """Where journals with faults are kept."""


FAULTS = ("silent losses", "silent in verify", "without a way out", "charged twice")


def judge(verdict: Verdict, journal: Journal, done: Damage, work: Path, ending: Ending | None) -> None:
    """What became of one damage, in this folder, which is removed."""
    faults: list[tuple[str, str]] = []
    verdict.count["damages"] += 1
    if ending is None:
        faults.append(("without a way out", "it hangs or dies"))
    else:
        faults += found_faults(journal, ending)
        count_undamaged(verdict.count, journal, done, ending)
    for kind, said in faults:
        verdict.count[kind] += 1
        verdict.faults.append(f"{kind}: {work.name}: {done.told}: {said}")
    if faults and verdict.keep is not None:
        kept = copies(journal, done, verdict.keep / work.name)[0].parent
        told = {
            "damage": done.told,
            "faults": faults,
            "charged": sorted(journal.charged),
            "ending": ending and asdict(ending),
        }
        (kept / "told.json").write_text(json.dumps(told, indent=1))
    shutil.rmtree(work)


def found_faults(journal: Journal, ending: Ending) -> Iterator[tuple[str, str]]:
    """By kind, with what was said."""
    if ending.refused or ending.repaired:
        yield "without a way out", ending.refused or ending.repaired
    for each in sorted(set(ending.charged) & journal.charged):
        yield "charged twice", each
    for known, aside in ((ending.started, ending.aside), (ending.after_repair, ending.aside_after_repair)):
        lost = sorted(each for each in known if not _is_known(each, known[each]))
        if lost and not aside:
            yield "silent losses", f"{len(lost)}, first {lost[0]}: {known[lost[0]]:.80}"
        if lost and not ending.verified:
            yield "silent in verify", f"{len(lost)}, first {lost[0]}: {known[lost[0]]:.80}"


def count_undamaged(count: Counter[str], journal: Journal, done: Damage, ending: Ending) -> None:
    hit = damaged_requests(journal, done)
    for known in (ending.started, ending.after_repair):
        for each, told in known.items():
            kind = "answered" if each in journal.answered else "open"
            is_error, is_lost = told.startswith("error: "), not _is_known(each, told)
            count["lost, and told"] += is_lost
            count["ended with an error that tells"] += is_error and not is_lost
            if each not in hit:
                count[f"undamaged {kind}"] += 1
                count[f"undamaged {kind} saved"] += not is_lost and not (is_error and kind == "answered")
                count["undamaged open gone on with"] += kind == "open" and not is_error


def _is_known(request_id: str, told: str) -> bool:
    """With its answer, or with an error that says what became of it."""
    return told.startswith("error: ") or told == answer(request_id)


def shown(verdict: Verdict, seconds: float) -> str:
    count = verdict.count
    lines = [f"{count['damages']:,} damages in {seconds:.0f} s"]
    lines += [f"{name}: {count[name]:,}" for name in (*FAULTS, "lost, and told", "ended with an error that tells")]
    for kind in ("answered", "open"):
        saved, of = count[f"undamaged {kind} saved"], count[f"undamaged {kind}"]
        lines.append(f"undamaged {kind}: {of:,}, of them known: {saved:,} ({saved / max(1, of):.2%})")
    lines.append(f"undamaged open gone on with: {count['undamaged open gone on with']:,}")
    return "\n".join([*lines, *verdict.faults[:SHOWN]])


def is_good(verdict: Verdict) -> bool:
    """What the page on durability promises."""
    count = verdict.count
    of = count["undamaged answered"] + count["undamaged open"]
    saved = count["undamaged answered saved"] + count["undamaged open saved"]
    return not any(count[name] for name in FAULTS) and saved >= 0.95 * of > 0


@contextmanager
def a_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="callboard-damages-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    damages: int, seed: int, hosts: int = HOSTS, keep: Path | None = None, show: Callable[[str], object] = print
) -> Verdict:
    """Journals of killed hosts, and so many damages of them."""
    verdict, children, moments = Verdict(keep=keep), Children(), random.Random(seed)
    with a_folder() as folder:
        journals = [
            killed_host(folder / f"host{each}", CHECKPOINT_PAGES[each % 4], moments.randint(*KILLED_AFTER))
            for each in range(hosts)
        ]
        show(f"{hosts} killed hosts: {sum(len(each.answered) for each in journals):,} answers")
        for number in range(damages):
            journal, work = journals[number % hosts], folder / f"damage{number}"
            done = damage(journal, random.Random(f"{seed} {number}"))
            go = partial(gone_through, copies(journal, done, work), sorted(journal.charged))
            children.begin(go, work / "told", partial(judge, verdict, journal, done, work))
        children.wait()
    return verdict


def copies(journal: Journal, done: Damage, work: Path) -> list[Path]:
    work.mkdir(parents=True, exist_ok=True)
    return [journal.written_to(work / each, done.main, done.log) for each in ("started", "repaired")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Random damages of journals that killed hosts have left.")
    parser.add_argument("--damages", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--keep", type=Path, help="a folder for journals with faults")
    options = parser.parse_args()
    began = time.monotonic()
    settings(Path(NAME))  # likewise
    verdict = run(options.damages, options.seed, options.hosts, options.keep)
    print(shown(verdict, time.monotonic() - began))
    return 0 if is_good(verdict) else 1


if __name__ == "__main__":
    sys.exit(main())
