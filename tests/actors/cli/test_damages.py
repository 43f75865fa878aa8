"""The table of damages: each ends in data, or in one sentence that says what to do; and looking changes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support.damage_table import DAMAGES
from support.damaged_files import Made, fill
from support.journal_writes import CONVERSATION
from support.owners import NOBODY, needs_root, run_as

from callboard.actors.journal.journal_check import repair, verify
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.protocol.errors import CallboardError
from callboard.protocol.ids import RequestId

from .conftest import Ran, RunHere

READING = (
    ("list",), ("requests",), ("show", "request-0003"), ("show", CONVERSATION), ("search", "hello"), ("usage",),
    ("export",), ("verify",),
)  # fmt: skip
#: One of these is in each sentence: what can be done.
ADVICE = (
    "`callboard journal repair`", "choose another path", "choose a path", "name one that is there", "leave it only one",
    "use the callboard that wrote it", "put a copy", "move it away", "move what is there away", "name a file in it",
    "`callboard journal list`", "fork the conversation", "look at its owner",
)  # fmt: skip
#: The first one waits for a process that loads callboard, beside all others that do so.
pytestmark = pytest.mark.timeout(240)
NAME = "journal"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
Files = Mapping[str, tuple[int, bytes]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """The folder with a journal that a killed process has left, with a younger log; and what is in it."""
    folder = tmp_path_factory.mktemp("killed")
    kill = f"from pathlib import Path; from support.damage_table import kill_one_at; kill_one_at(Path({NAME!r}))"
    done = subprocess.run([sys.executable, "-c", kill], cwd=folder, env=ENVIRONMENT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert {each.name for each in folder.iterdir()} == {NAME, f"{NAME}-wal", f"{NAME}-shm", f"{NAME}.lock"}
    with closing(SqliteJournal(tmp_path_factory.mktemp("again") / NAME, durability="process")) as again:
        again.open()
        return folder, fill(again)


def files(folder: Path) -> Files:
    return {
        each.name: (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"") for each in folder.iterdir()
    }


def damaged(killed: tuple[Path, Made], folder: Path, name: str) -> Path:
    shutil.copytree(killed[0], folder)
    DAMAGES[name].do(folder / NAME)
    return folder / NAME


def ends_in_data_or_one_sentence(ran: Ran) -> None:
    if ran.status == 0:
        assert ran.out
        assert not ran.err
    else:
        says_what_to_do(ran.sentence)


def says_what_to_do(sentence: str) -> None:
    assert "\n" not in sentence
    assert any(each in sentence for each in ADVICE), sentence


def opened_with(path: Path, made: Made, damage: str) -> None:
    """A start goes on with what is there, or says in one sentence why not and leaves all as it was."""
    before, refused = files(path.parent), ""
    with closing(SqliteJournal(path, durability="process")) as journal:
        try:
            notes = journal.open().notes
        except CallboardError as error:
            refused = str(error)
        else:
            is_known_or_told(journal, made, notes)
    assert bool(refused) == bool(DAMAGES[damage].refused), refused
    if refused:
        says_what_to_do(refused)
        assert DAMAGES[damage].refused in refused
        lock = f"{NAME}.lock"
        assert {**files(path.parent), lock: None} == {**before, lock: None}


def is_known_or_told(journal: SqliteJournal, made: Made, notes: tuple[str, ...]) -> None:
    with closing(journal.reader()) as reader:
        aside = list(reader.set_aside())
        for which, events in made.events.items():
            log = reader.request(which)
            if log is None:
                assert notes, which
                assert aside, which
                continue
            given = [each.event for each in log.records]
            assert given == list(events[: len(given)]), which
            if not log.damage and log.records:
                is_whole = len(given) == len(events) and (log.end is not None) == (which in made.ended)
                assert is_whole or notes, which
        assert set(reader.open_requests()) <= {RequestId(each) for each in made.events} - made.ended | {
            each.request_id for each in aside if each.request_id
        }


@pytest.mark.parametrize("name", DAMAGES)
def test_looking_at_a_damaged_journal_changes_nothing_and_ends_in_data_or_one_sentence(
    here: RunHere, killed: tuple[Path, Made], tmp_path: Path, name: str
) -> None:
    path = damaged(killed, tmp_path / "damaged", name)
    before = files(path.parent)
    for command in READING:
        ran = here("journal", *command, "--journal", str(path))
        assert files(path.parent) == before, command
        ends_in_data_or_one_sentence(ran)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_journal_can_be_started_with_and_repaired_or_the_sentence_says_what_to_do(
    here: RunHere, killed: tuple[Path, Made], tmp_path: Path, name: str
) -> None:
    opened_with(damaged(killed, tmp_path / "started", name), killed[1], name)
    path = damaged(killed, tmp_path / "repaired", name)
    ran = here("journal", "repair", "--journal", str(path))
    if DAMAGES[name].refused:
        says_what_to_do(ran.sentence)
        return
    left = [fault for fault in verify(path).faults if not fault.startswith("request ")]
    assert left == []
    assert ran.status in (0, 1)
    assert repair(path).repaired == ()


@pytest.mark.parametrize("name", [each for each in DAMAGES if each.startswith("log")])
def test_a_program_that_reads_a_journal_with_a_damaged_log_is_told_or_has_all_of_it(
    killed: tuple[Path, Made], tmp_path: Path, name: str
) -> None:
    """Not an older state, without a word."""
    path = damaged(killed, tmp_path / "read", name)
    try:
        journal = JournalHandle.open(path)
        known = [each.request_id for each in journal.requests(limit=100)]
        events = {each: tuple(record.event for record in journal.request(each).records) for each in known}
    except CallboardError as error:
        says_what_to_do(str(error))
    else:
        assert events == killed[1].events


@pytest.mark.parametrize("without", [(), ("-shm",), ("-wal", "-shm")])
def test_a_sound_journal_is_read_whole_and_stays_as_it_is(
    here: RunHere, killed: tuple[Path, Made], tmp_path: Path, without: tuple[str, ...]
) -> None:
    """As a killed process leaves it; as it is copied, without the index of its log; as one leaves it that has ended."""
    shutil.copytree(killed[0], tmp_path / "sound")
    path = tmp_path / "sound" / NAME
    if "-wal" in without:
        journal = SqliteJournal(path)
        journal.open()
        journal.close()
    for each in without:
        Path(f"{path}{each}").unlink(missing_ok=True)
    before = files(path.parent)
    assert all_is_told(here, path, killed[1])
    assert files(path.parent) == before


def all_is_told(here: RunHere, path: Path, made: Made) -> bool:
    requests = json.loads(here("journal", "requests", "--json", "--limit", "100", "--journal", str(path)).out)
    ended = {each["request_id"] for each in requests if each["ended_at"] is not None}
    told = {each["request_id"] for each in requests}
    return (
        told == set(made.events)
        and ended == set(made.ended)
        and here("journal", "verify", "--journal", str(path)).status == 0
    )


def test_a_journal_in_use_is_read_whole_and_stays_as_it_is(here: RunHere, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    path = tmp_path / "used" / NAME
    hold = (
        "import sys; from support.damaged_files import fill; from callboard.actors.journal.sqlite_journal import *\n"
        f"journal = SqliteJournal({str(path)!r}, durability='process'); journal.open()\n"
        "for count in (6, 24): fill(journal, count); print(count, flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        for count in (6, 24):
            assert child.stdout.readline() == f"{count}\n"
            before = files(path.parent)
            with closing(SqliteJournal(tmp_path / f"again{count}", durability="process")) as again:
                again.open()
                assert all_is_told(here, path, fill(again, count))
            for command in READING:
                ends_in_data_or_one_sentence(here("journal", *command, "--journal", str(path)))
            assert files(path.parent) == before
            child.stdin.write("\n")
            child.stdin.flush()
    assert child.returncode == 0


@needs_root
@pytest.mark.parametrize(("mode", "says"), [(0o400, ""), (0o000, "look at its owner and mode")])
def test_a_journal_of_another_user_or_in_a_folder_that_is_not_to_be_written_is_read_or_the_sentence_says_why_not(
    killed: tuple[Path, Made], tmp_path: Path, mode: int, says: str
) -> None:
    shutil.copytree(killed[0], tmp_path / "theirs")
    path = tmp_path / "theirs" / NAME
    for each in path.parent.iterdir():
        os.chown(each, NOBODY, NOBODY)
        each.chmod(mode)
    os.chown(path.parent, NOBODY, NOBODY)
    path.parent.chmod(0o500)
    before = files(path.parent)

    def look() -> None:
        with contextlib.ExitStack() as raised:
            if says:
                raised.enter_context(pytest.raises(CallboardError, match=says))
            assert verify(path).is_sound
            assert len(list(JournalHandle.open(path).export())) > 100

    run_as(NOBODY, look, path.parent)
    assert files(path.parent) == before
