"""Write a journal on a disk that gets full, or stays read-only: run as a program, in a mount namespace of its own.

    unshare -rm python full_disks.py tmpfs FOLDER
    python full_disks.py limit FOLDER

Prints one line a finding; "ok" at the end.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.journal_writes import ANSWER, begin, request_id

from callboard.actors.journal.journal_check import verify
from callboard.actors.journal.journal_records import Write
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.protocol.errors import UsageError


def check(is_so: bool, what: str) -> None:
    sys.stdout.write(f"{'ok' if is_so else 'FAIL'} {what}\n")
    if not is_so:
        sys.exit(1)


def fill_until_refused(journal: SqliteJournal, first: int) -> tuple[int, str]:
    """How many requests were written, and what was said of the next."""
    for number in range(first, first + 5_000):
        try:
            journal.commit([begin(f"r{number}", metadata={"note": "x" * 2_000}), answer(number)])
        except JournalFailed as error:
            return number, str(error)
    return first + 5_000, ""


def answer(number: int) -> Write:
    return Write(request_id(f"r{number}"), 2, (ANSWER,))


def written(journal: SqliteJournal) -> dict[str, int]:
    reader = journal.reader()
    try:
        logs = {which: reader.request(which) for which in reader.open_requests()}
        assert all(log is not None and not log.damage for log in logs.values())
        return {str(which): len(log.records) for which, log in logs.items() if log is not None}
    finally:
        reader.close()


def full(folder: Path, make_room: Callable[[], None], word: str) -> None:
    """A journal that is open when there is no more room, asked again and again, and then there is room."""
    journal = SqliteJournal(folder / "journal")
    journal.open()
    count, why = fill_until_refused(journal, 0)
    check(0 < count < 5_000, f"refused after {count}: {why}")
    check(str(folder / "journal") in why and word in why, "the error names the file, the reason and what to do")
    for _ in range(20):
        again, why = fill_until_refused(journal, count)
        check(bool(why), "still refused")
        count = again
    check(written(journal) == {f"r{number}": 2 for number in range(count)}, "what was written is there, and no more")
    make_room()
    check(journal.commit([begin(f"r{count}"), answer(count)]) == [None, None], "written again once there is room")
    journal.close()
    journal = SqliteJournal(folder / "journal")
    check(journal.open().notes == (), "nothing is damaged")
    check(written(journal) == {f"r{number}": 2 for number in range(count + 1)}, "all is there")
    journal.close()
    check(verify(folder / "journal").faults == (), "the file is sound")


def on_tmpfs(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], check=True)
    filler = folder / "filler"
    filler.write_bytes(bytes(1024 * 1024))
    full(folder, filler.unlink, "the disk, or its quota, is full")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "remount,ro", "none", folder], check=True)
    try:
        SqliteJournal(folder / "journal").open()
    except UsageError as error:
        check("Read-only file system" in str(error), f"refused: {error}")
    else:
        check(False, "a read-only disk is refused")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "remount,rw", "none", folder], check=True)
    journal = SqliteJournal(folder / "journal")
    check(journal.open().notes == (), "opened when it can be written again")
    journal.close()


def with_limit(folder: Path) -> None:
    """The kernel refuses to let files grow: each write behind the limit fails, at any place of a commit."""
    for blocks in range(1, 90, 4):
        place = folder / str(blocks)
        place.mkdir()
        limit(blocks * 4_096 + 512)
        journal = SqliteJournal(place / "journal")
        try:
            journal.open()
            journal.close()
        except JournalFailed as error:
            check("the disk reports an error" in str(error), f"not made: {error}")
        limit(resource.RLIM_INFINITY)
        journal = SqliteJournal(place / "journal")
        check(journal.open().notes == (), "made once there is room")
        journal.close()
    for blocks in range(90, 140, 7):
        place = folder / str(blocks)
        place.mkdir()
        limit(blocks * 4_096 + 512)
        full(place, lambda: limit(resource.RLIM_INFINITY), "the disk reports an error")


def limit(bytes_of_a_file: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, resource.RLIM_INFINITY))


if __name__ == "__main__":
    {"tmpfs": on_tmpfs, "limit": with_limit}[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write("ok\n")
