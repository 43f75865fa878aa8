"""What is missing on a machine is told at once, with what to do; and nothing is started again and again meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.actors.processes import launch, source
from callboard.actors.processes.keeper import REFUSED, SHORT
from callboard.actors.processes.spawning import interpreter
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.tools import FailureCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

CALLS = 5
#: Each start of Python is a line in the file beside it.
COUNTS = '#!/bin/sh\necho >> "$0.starts"\n'
#: Up to the first word to the runtime, and then as where callboard's own files are gone.
BEGINS = f"""exec {sys.executable} -P -c "$(printf '%s' "$3" | head -n 4)
"""
NO_CALLBOARD = f"""{BEGINS}raise ModuleNotFoundError('No module named callboard')"\n"""


@tool
def add(a: int, b: int) -> int:
    return a + b


class Machine:
    """On which something is missing."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place = place
        self._patch = patch

    def folder(self, path: Path | str) -> None:
        """For temporary files."""
        self._patch.setattr(tempfile, "tempdir", str(path))

    def python(self, script: str) -> None:
        """What is started as Python."""
        program = self.place / "python"
        program.write_text(COUNTS + script)
        program.chmod(0o755)
        self._patch.setattr(sys, "executable", str(program))

    @property
    def starts(self) -> int:
        return len((self.place / "python.starts").read_text())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(launch, "MISSING_SECONDS", 600.0)
    monkeypatch.setattr(launch, "MOST_MISSING_SECONDS", 600.0)
    return Machine(tmp_path, monkeypatch)


def with_file(machine: Machine) -> None:
    (machine.place / "file").touch()
    machine.folder(machine.place / "file")


WITH_PYTHON = f'exec {sys.executable} "$@"\n'
FOLDERS: dict[str, Callable[[Machine], None]] = {
    "is gone": lambda machine: machine.folder(machine.place / "gone"),
    "is a file": with_file,
    "takes no folder": lambda machine: machine.folder("/proc"),
}
PROGRAMS = {
    "ends at once": ("exit 0\n", "does not start Python (status 0)"),
    "complains": ("echo 'what is -P?' >&2; exit 2\n", "status 2); it wrote: what is -P?"),
    "is killed": ("kill -9 $$\n", "does not start Python (status -9)"),
    "serves something else": ("exec sleep 100\n", "does not start Python"),
    "lacks callboard": (NO_CALLBOARD, "cannot load callboard: ModuleNotFoundError: No module named callboard; mend"),
}


def told(machine: Machine) -> str:
    """Of each of some calls, the same; Python was started once."""
    with ToolStage() as stage:
        events = [stage.call(add, a=1, b=2) for _ in range(CALLS)]
    assert all(isinstance(event, ToolCallFailed) for event in events), events
    failures = {event.failure for event in events if isinstance(event, ToolCallFailed)}
    assert len(failures) == 1
    assert machine.starts == 1
    (failure,) = failures
    assert failure.code is FailureCode.INTERNAL_ERROR
    assert "Do not send it again" in failure.retry_hint
    return failure.message


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_for_temporary_files_that_cannot_be_used_is_told(machine: Machine, what: str) -> None:
    machine.python(WITH_PYTHON)
    FOLDERS[what](machine)
    message = told(machine)
    assert "no folder for temporary files" in message
    assert "another TMPDIR" in message


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_that_is_no_python_with_callboard_is_told(
    machine: Machine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, said = PROGRAMS[what]
    if what == "serves something else":  # the others end by themselves, however busy the machine is
        monkeypatch.setattr(source, "PYTHON_TICKS", 3)
    machine.python(script)
    message = told(machine)
    assert said in message
    assert str(machine.place / "python") in message
    assert "isolation='thread'" in message


def test_a_python_that_is_killed_while_it_loads_callboard_is_no_broken_installation(machine: Machine) -> None:
    machine.python(f'{BEGINS}os.kill(os.getpid(), 9)"\n')
    with ToolStage() as stage:
        event = stage.call(add, a=1, b=2)
    assert isinstance(event, ToolCallFailed)
    assert event.failure.code is FailureCode.OVERLOADED
    assert "status -9" in event.failure.message


@pytest.mark.parametrize("what", ["is gone", "may not be run", "is a folder"])
def test_a_program_that_cannot_be_started_is_told_when_a_tool_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    program = tmp_path / "python"
    if what == "may not be run":
        program.touch(0o644)
    elif what == "is a folder":
        program.mkdir()
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(UsageError, match=f"there is no program {program}: set it to the Python"):
        add.check()


def test_one_that_goes_while_the_runtime_runs_is_told_by_the_next_call(machine: Machine) -> None:
    machine.python(WITH_PYTHON)
    with ToolStage() as stage:
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)
        (machine.place / "python").unlink()
        event = stage.call(add, a=1, b=2)
    assert isinstance(event, ToolCallFailed)
    assert "there is no program" in event.failure.message


def test_what_is_mended_is_found_by_a_later_call(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MISSING_SECONDS", 0.0)
    machine.python(WITH_PYTHON)
    machine.folder(machine.place / "gone")
    with ToolStage() as stage:
        assert isinstance(stage.call(add, a=1, b=2), ToolCallFailed)
        (machine.place / "gone").mkdir()
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


def test_a_scratch_folder_that_was_cleared_away_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ToolStage() as stage:
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
        event = stage.call(tool(risk="read", name="confined_add")(add.function), a=1, b=2)
    assert isinstance(event, ToolCallCompleted), event


def test_without_a_working_folder_tools_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with ToolStage() as stage:
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


@pytest.mark.parametrize(("number", "status"), [(errno.EPERM, REFUSED), (errno.ENOSPC, REFUSED), (errno.EAGAIN, SHORT)])
def test_a_lack_of_processes_does_not_cost_tools_their_namespaces(number: int, status: int) -> None:
    code = f"from callboard.actors.processes.keeper import _refuse\n_refuse(OSError({number}, {os.strerror(number)!r}))"
    assert subprocess.run(interpreter(code), stderr=subprocess.DEVNULL, timeout=50, check=False).returncode == status


def test_a_lack_of_descriptors_is_not_taken_for_that_of_a_folder() -> None:
    """Which it is to `tempfile`; it passes, and calls are overloaded meanwhile."""
    program = (
        "import os, resource, tempfile\n"
        "from callboard.actors.processes.launch import _folder\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "for few in (3, limits[0]):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))\n"
        "    try:\n"
        "        print(os.path.isdir(_folder()))\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, close_fds=True)
    assert ran.stdout.split() == [str(errno.EMFILE), "True"]
