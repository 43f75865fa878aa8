"""A process is killed before each system call that changes a file of its journal: what it had told is there, also for
one who only looks, and nothing is damaged. What lies between two such calls is SQLite's own, and ours."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import get_args

import pytest
from support.journal_writes import begin, finished

from callboard.actors.journal.journal_check import verify
from callboard.actors.journal.journal_store import JournalReader
from callboard.actors.journal.sqlite_database import Durability
from callboard.actors.journal.sqlite_journal import SqliteJournal, SqliteReader
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import RequestId

#: Of files that there are; Python itself, when it starts, makes files with others.
CHANGES = "pwrite64,pwritev,ftruncate,truncate,fallocate,unlink,unlinkat,fsync,fdatasync"
#: Of those that it has, the daily run takes every so many.
STEP = 1 if os.environ.get("CALLBOARD_DEEP") else 29
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def work(path: Path) -> None:
    """What a journal does in its life, and a line for each request that is told as kept."""
    numbers = iter(range(1_000))
    for durability in get_args(Durability):
        journal = SqliteJournal(path, durability=durability)
        journal.open()
        journal._file().query("PRAGMA wal_autocheckpoint = 12")
        for _ in range(4):
            name = f"r{next(numbers)}"
            assert journal.commit([begin(name), finished(name, 2)]) == [None, None]
            os.write(sys.stdout.fileno(), f"{name}\n".encode())
        journal.forget()
        name = f"r{next(numbers)}"
        assert journal.commit([begin(name)]) == [None]
        os.write(sys.stdout.fileno(), f"{name}\n".encode())
        journal.change(lambda database: database.execute("DELETE FROM callboard_set_aside"))
        journal.close()


def worked(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, below strace."""
    path.parent.mkdir(exist_ok=True)
    program = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from {Path(__file__).stem} import *\n"
    command = ["strace", "-qq", *options, sys.executable, "-c", f"{program}work(Path({str(path)!r}))"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


def calls_of(folder: Path) -> list[tuple[str, int]]:
    """Of a process that is not killed: the name of a call, and the how many-th of that name it is. Of a row of equal
    ones, as a commit of many pages is, the first two."""
    lines = folder / "calls"
    assert worked(folder / "whole" / "journal", "-y", "-e", f"trace={CHANGES}", "-o", str(lines)).returncode == 0
    seen: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for _, row in itertools.groupby(lines.read_text().splitlines(), lambda line: re.split("[,)]", line)[0]):
        calls = []
        for line in row:
            name = line.partition("(")[0]
            seen[name] += 1
            calls.append((name, seen[name]))
        found += calls[:2]
    return found


def killed_before(path: Path, name: str, count: int) -> list[str]:
    """The requests that it had told when it was killed before this call."""
    done = worked(path, "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={count}")
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    return done.stdout.split()


def missing(reader: JournalReader, told: Sequence[str]) -> list[str]:
    return [each for each in told if reader.request(RequestId(each)) is None]


@pytest.mark.repeats
@pytest.mark.timeout(60 if STEP > 1 else 1_200)
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_whichever_call_a_kill_comes_before_what_was_told_is_there_for_the_next_and_for_who_looks(
    tmp_path: Path,
) -> None:
    calls = calls_of(tmp_path)
    assert len(calls) > 100
    for name, count in calls[::STEP]:
        path = tmp_path / f"{name}{count}" / "journal"
        told = killed_before(path, name, count)
        where = (
            f"{name} {count}, behind {told}: { ({each.name: each.stat().st_size for each in path.parent.iterdir()}) }"
        )
        with suppress(*([] if told else [UsageError])):  # nothing is in it yet
            assert verify(path).is_sound, where
            with closing(SqliteReader.looking(path)) as reader:
                assert not missing(reader, told), where
        with closing(SqliteJournal(path, durability="process")) as journal:
            notes = journal.open().notes
            assert not told or all("the end of the log" in each for each in notes), (notes, where)
            with closing(journal.reader()) as reader:
                assert not missing(reader, told), where
