"""Cut the power while a process writes its journal: what could be on the disk then is started again, and looked at.

    python benchmarks/power_cuts.py                          # 240 cuts, durability "power"
    python benchmarks/power_cuts.py --durability process
    python benchmarks/power_cuts.py --cuts 40 --seed 7 --keep FOLDER

Linux, with strace, as any user. A process works under the load of crashes.py, and strace writes down each change and
each sync of a file in its folder, in their order, and all that it has told. A cut is a place in that list. What was
synced before it is on the disk. Of what was not, anything may be there: any sectors of 512 or 4,096 bytes, so that
pages and frames are torn and newer ones are there without older ones; sizes of before or after, with zeros where
nothing was written; names that were made or removed, as long as their folder was not synced. Every other process that
is recorded begins with what another cut has left, so that recovery is cut too.

Each such disk is started again, and goes on until all its requests have ended. Then crash_checks.py looks at effects,
at what had been told before the cut, and at the journal, as after a kill. With "power" nothing told may be lost. With
"process" what was told last may be, a call with the effect `once` may run again, and a request that was at work then
may end with an error that says so (all of them are at work here); and tables of tools, or rows of them, may be
gone where the journal says that. No more than that.
The log is small here, so that it is written into the file, and begun anew, many times.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from crash_callboard import Start, run
from crash_checks import Told, Verdict, judged_with_journal
from crash_journals import SqliteJournal
from crash_load import EFFECTS_FILE, effects, request_ids
from crashes import forked, to_the_end

#: Pages of the log that are written into the file at once, in place of 4,000: some ten times in a run.
CHECKPOINT_PAGES = 60
REQUESTS = 12
#: Cuts of one recording: more of them test the same commits again.
CUTS_OF_ONE = 20
RECORDED_WITHIN_SECONDS = 120.0
SHOWN_FAULTS = 12
SECTORS = (512, 4_096)
#: Of what was not synced: the share of sectors that are on the disk.
SHARES = (0.0, 0.3, 0.7, 0.97, 1.0)
#: Which says nothing after a power cut, and which SQLite makes anew.
NOT_KEPT = ("-shm",)
#: The machine was started again since: its lock file says that to the next process.
BOOT = Path("/proc/sys/kernel/random/boot_id")
ANOTHER_BOOT = b"00000000-0000-0000-0000-000000000000"
CALLS = "pwrite64,write,ftruncate,fdatasync,fsync,openat,unlink,rename"
#: What "process" does not promise: the last moments.
ALLOWED_WITHOUT_SYNC = ("was shown ", "calls of `once` had more", "calls of `blocking` had more")
#: Its request was at work in them.
ALLOWED_AT_WORK = (
    " records are lost: the journal was damaged", "records of it may be lost: ", ": damaged: ", "without an event",
    "or the journal was changed", "its record in the journal is damaged: ", "had its effect and was told as open",
)  # fmt: skip
#: Where the journal says that tables of tools, or rows of them, may be lost.
ALLOWED_OF_TOOLS = ("calls of `transaction` were told as done",)


# -- what was written


@dataclass(frozen=True)
class Op:
    """One thing that was done to a file, or told."""

    kind: str
    """write, size, sync, make, remove, rename, told."""
    path: str = ""
    at: int = 0
    data: bytes = b""
    to: str = ""


_LINE: Final = re.compile(
    r"(?P<pid>\d+) +(?:(?P<call>\w+)\((?P<rest>.*)|<\.\.\. (?P<resumed>\w+) resumed>(?P<end>.*))\Z"
)
_HEX: Final = re.compile(r"(?:\\x[0-9a-f]{2})+")
_UNFINISHED: Final = " <unfinished ...>"


def ops_of(lines: Iterator[str], folder: str) -> Iterator[Op]:
    """A sync counts from its end, and only for what was begun before its beginning; all else counts from its beginning,
    since some of it may be on the disk before its end."""
    begun: dict[str, Op] = {}
    for line in lines:
        if (found := _LINE.match(line.rstrip("\n"))) is None:
            continue
        pid = found["pid"]
        if found["resumed"]:
            if (op := begun.pop(pid, None)) is not None:
                yield op
            continue
        rest = found["rest"]
        is_open = rest.endswith(_UNFINISHED)
        if not is_open and "= -1 " in rest[-80:]:
            continue
        op = _op(found["call"], [_text(each) for each in _HEX.findall(rest)], rest, folder)
        if op is not None and op.kind == "sync" and is_open:
            yield Op("sync begins", op.path)
            begun[pid] = op
        elif op is not None:
            yield op


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _op(call: str, words: list[bytes], rest: str, folder: str) -> Op | None:
    if call == "write" and rest.startswith("1<"):
        return Op("told", data=words[1])
    paths = [word.decode(errors="replace") for word in words[:2]]
    inside = [each for each in paths if each == folder or each.startswith(folder + "/")]
    if not inside:
        return None
    numbers = [int(each) for each in re.findall(r", (\d+)(?=[,)])", rest.partition(" <unf")[0] + ")")]
    match call:
        case "pwrite64":
            return Op("write", inside[0], numbers[-1], words[1])
        case "write":
            return Op("write", inside[0], -1, words[1])
        case "ftruncate":
            return Op("size", inside[0], numbers[-1])
        case "fdatasync" | "fsync":
            return Op("sync", inside[0])
        case "openat" if "O_CREAT" in rest:
            return Op("make", paths[1])
        case "unlink":
            return Op("remove", inside[0])
        case "rename":
            return Op("rename", paths[0], to=paths[1])
    return None


# -- the disk


@dataclass
class File:
    """What is on the disk of it, and what may be."""

    synced: bytes = b""
    waiting: list[Op] = field(default_factory=list)
    covered: int = 0
    """So many of these a sync that has begun is for."""

    def sync(self) -> None:
        known = bytearray(self.synced)
        for op in self.waiting[: self.covered or len(self.waiting)]:
            _apply(known, op)
        self.synced, self.waiting = bytes(known), self.waiting[self.covered or len(self.waiting) :]
        self.covered = 0

    def as_read(self) -> bytes:
        """By a process that goes on."""
        known = bytearray(self.synced)
        for op in self.waiting:
            _apply(known, op)
        return bytes(known)

    def after_a_cut(self, chance: random.Random) -> bytes:
        """One of the contents that it may have."""
        known, share, sector = bytearray(self.synced), chance.choice(SHARES), chance.choice(SECTORS)
        for op in self.waiting:
            if op.kind == "size":
                if chance.random() < share:
                    _apply(known, op)
                continue
            at = len(known) if op.at < 0 else op.at
            place = at
            while place < at + len(op.data):
                end = min(at + len(op.data), (place // sector + 1) * sector)
                if chance.random() < share:
                    _apply(known, Op("write", at=place, data=op.data[place - at : end - at]))
                place = end
        size = chance.choice((len(known), len(self.as_read()), len(self.synced) if share == 0 else len(known)))
        return bytes(known[:size]).ljust(size, b"\0")


def _apply(known: bytearray, op: Op) -> None:
    if op.kind == "size":
        known[op.at :] = b"" if len(known) > op.at else bytes(op.at - len(known))
        return
    at = len(known) if op.at < 0 else op.at
    if len(known) < at:
        known.extend(bytes(at - len(known)))
    known[at : at + len(op.data)] = op.data


@dataclass
class Disk:
    """The files of one folder, by name. A name that was made or removed is so for sure when the folder is synced."""

    folder: str
    files: dict[str, File] = field(default_factory=dict)
    names: dict[str, File] = field(default_factory=dict)
    """Those that are on the disk for sure."""

    @classmethod
    def of(cls, folder: Path) -> Disk:
        files = {str(each): File(each.read_bytes()) for each in folder.iterdir() if each.is_file()}
        return cls(str(folder), files, dict(files))

    def do(self, op: Op) -> None:
        if op.path == self.folder:
            if op.kind == "sync":
                self.names = dict(self.files)
        elif op.kind == "make":
            self.files.setdefault(op.path, File())
        elif op.kind == "remove":
            self.files.pop(op.path, None)
        elif op.kind == "rename":
            self.files[op.to] = self.files.pop(op.path)
        elif (file := self.files.get(op.path)) is not None:
            if op.kind == "sync":
                file.sync()
            elif op.kind == "sync begins":
                file.covered = len(file.waiting)
            else:
                file.waiting.append(op)

    def cut(self, chance: random.Random, folder: Path) -> None:
        """Write one of the disks that there may be after a cut into this folder."""
        is_new = chance.random() < 0.5
        for path in sorted(self.files.keys() | self.names.keys()):
            now, sure = self.files.get(path), self.names.get(path)
            file = now if now is sure or is_new else sure
            name = Path(path).name
            if name == EFFECTS_FILE:  # of the other system, whose own matter it is
                file = now
            if file is None or name.endswith(NOT_KEPT):
                continue
            content = file.as_read() if name == EFFECTS_FILE else file.after_a_cut(chance)
            (folder / name).write_bytes(content.replace(BOOT.read_bytes().strip(), ANOTHER_BOOT))


# -- one recording


@dataclass
class Recording:
    """Of a process from its start on, or from what a cut has left."""

    before: Disk
    told: Told
    ops: list[Op]

    def at(self, place: int) -> tuple[Disk, Told]:
        """The disk at this place, and all that was told before."""
        disk, told, rest = deepcopy(self.before), deepcopy(self.told), b""
        for op in self.ops[:place]:
            if op.kind == "told":
                *lines, rest = (rest + op.data).split(b"\n")
                for line in lines:
                    told.hear(orjson.loads(line))
            else:
                disk.do(op)
        told.has_all = False
        return disk, told

    def places(self, count: int, chance: random.Random) -> list[int]:
        """Half of them where the file itself or a size is changed, a name, or where something was just told."""
        rare = [
            number
            for number, op in enumerate(self.ops, start=1)
            if op.kind in ("size", "remove", "rename", "make", "told") or op.path.endswith(".sqlite")
        ]
        chosen = [chance.choice(rare) + chance.choice((-1, 0, 1)) for _ in range(count // 2)]
        return [*chosen, *(chance.randint(1, len(self.ops)) for _ in range(count - len(chosen)))]


def recorded(start: Start, told: Told) -> Recording:
    before, log = Disk.of(Path(start.folder)), Path(f"{start.folder}.strace")
    traced = ["strace", "-f", "-qq", "-y", "-xx", "-s", "10000000", "-e", "signal=none", "-e", f"trace={CALLS}"]
    command = [*traced, "-o", str(log), sys.executable, __file__, "--record", json.dumps(asdict(start))]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=RECORDED_WITHIN_SECONDS, check=True)
    with log.open() as lines:
        ops = list(ops_of(lines, start.folder))
    log.unlink()
    return Recording(before, told, ops)


# -- a round


@dataclass
class Found:
    """What all cuts came to."""

    cuts: int = 0
    verdict: Verdict = field(default_factory=Verdict)


class Cuts:
    """Rounds of recordings and cuts."""

    def __init__(self, durability: str, requests: int, chance: random.Random, keep: Path | None = None) -> None:
        self._durability, self._chance, self._keep = durability, chance, keep
        self._ids = request_ids(requests)
        self.found = Found()

    def run(self, cuts: int) -> Found:
        is_second = False
        with tempfile.TemporaryDirectory(prefix="cuts-") as place:
            # One folder for all: calls that are run again leave their effects where they were told to.
            folder = Path(place).resolve() / "disk"
            while self.found.cuts < cuts:
                recording = self._recorded(folder, is_second=is_second)
                for each in recording.places(min(CUTS_OF_ONE, cuts - self.found.cuts), self._chance):
                    self._cut(folder, recording, each)
                is_second = not is_second
        return self.found

    def _recorded(self, folder: Path, *, is_second: bool) -> Recording:
        """Of a start from nothing, or from what a cut has left of that."""
        emptied(folder)
        recording = recorded(self._start(folder), Told())
        if not is_second:
            return recording
        disk, told = recording.at(*recording.places(1, self._chance))
        emptied(folder)
        disk.cut(self._chance, folder)
        return recorded(self._start(folder), told)

    def _cut(self, folder: Path, recording: Recording, place: int) -> None:
        disk, told = recording.at(place)
        told.kills += 1
        has_shown = bool(told.shown)
        emptied(folder)
        disk.cut(self._chance, folder)
        kept = self._keep and shutil.copytree(folder, self._keep / f"cut-{self.found.cuts}")
        told = to_the_end(lambda: forked(self._start(folder)), told)
        verdict = self._verdict(folder, told, has_shown=has_shown)
        where = f"cut {self.found.cuts}, at {place} of {len(recording.ops)}" + (f", {kept}" if kept else "")
        verdict.faults = [f"{where}: {fault}" for fault in verdict.faults]
        self.found.cuts += 1
        self.found.verdict.add(verdict)

    def _verdict(self, folder: Path, told: Told, *, has_shown: bool) -> Verdict:
        journal = SqliteJournal()
        left = effects(folder, None) + journal.rows(folder)
        verdict = judged_with_journal(self._ids, told, left, journal.logs(folder, self._ids))
        if self._durability == "power" and has_shown:  # while it is made, it may have to be made anew
            verdict.faults += [f"{each.name} was moved aside" for each in folder.glob("*.damaged-*")]
        else:
            verdict.faults = [each for each in verdict.faults if not any(may in each for may in ALLOWED_WITHOUT_SYNC)]
        verdict.faults += [f"a request ended with: {error}" for error in verdict.errors]
        if self._durability == "process":
            allowed = ALLOWED_AT_WORK + (ALLOWED_OF_TOOLS if journal.doubts_tools(folder) else ())
            verdict.faults = [each for each in verdict.faults if not any(may in each for may in allowed)]
        return verdict

    def _start(self, folder: Path) -> Start:
        url = str(folder / "journal.sqlite")
        return Start(str(folder), url, len(self._ids), self._durability, checkpoint_pages=CHECKPOINT_PAGES)


def emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", type=int, default=240)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--durability", choices=["power", "process"], default="power")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="the disk of each cut, for a look at it")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        run(Start(**json.loads(options.record)))
        return
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    found = Cuts(options.durability, options.requests, random.Random(seed), options.keep).run(options.cuts)
    verdict = found.verdict
    doubled = ", ".join(f"{kind} {count}" for kind, count in verdict.doubled.items() if count) or "none"
    print(f"{found.cuts} cuts, {verdict.requests} requests; calls with two effects: {doubled}")
    print(f"what calls were told as: {dict(sorted(verdict.told.items()))}")
    for fault in verdict.faults[:SHOWN_FAULTS]:
        print(f"FAIL {fault}")
    print(f"{len(verdict.faults)} faults")
    if verdict.faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
