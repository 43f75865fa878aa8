"""What tools may do that declare a risk, what they are told when they may not, and what they leave behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from callboard.actors.builtins.run_command import run_command_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.processes.confined import loaded_packages
from callboard.actors.processes.confinement import Confine, kernel_support
from callboard.actors.processes.keeper import containment
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.secret_files import SecretRules
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.tools import FailureCode, ToolFailure

pytestmark = pytest.mark.skipif(bool(kernel_support().lacks), reason=f"this kernel has {kernel_support()}")
needs_mounts = pytest.mark.usefixtures("mounts")

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ws").resolve()
    (root / "file").write_text("text")
    (root / ".env").write_text("KEY=secret")
    (root / "allowed.pem").write_text("no secret")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("url = https://token@host")
    (root / "lib" / "site-packages").mkdir(parents=True)
    (root / "lib" / "site-packages" / "cacert.pem").write_text("certificates")
    return root


@pytest.fixture(scope="module")
def stage(workspace: Path) -> Iterator[ToolStage]:
    with ToolStage(ProcessOptions(workspace=workspace, secrets=SecretRules(("!allowed.pem",)))) as stage:
        yield stage


def result(stage: ToolStage, what: Tool, **arguments: object) -> str:
    event = stage.call(what, **arguments)
    assert isinstance(event, ToolCallCompleted), event
    return event.content


def failure(stage: ToolStage, what: Tool, **arguments: object) -> ToolFailure:
    event = stage.call(what, **arguments)
    assert isinstance(event, ToolCallFailed), event
    return event.failure


@tool(risk="read")
def read(path: str) -> str:
    return Path(path).read_text()


@tool(risk="write")
def write(path: str) -> str:
    Path(path).write_text("written")
    os.chmod(path, 0o600)
    return "ok"


@tool(risk="read", name="write_as_read")
def write_as_read(path: str) -> str:
    Path(path).write_text("written")
    return "ok"


@tool(risk="network")
def connect(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), 5) as made:
        return f"port {made.getpeername()[1]}"


@tool(risk="read")
def fetch(url: str) -> str:
    with urlopen(url) as answer:
        return str(answer.status)


@tool(risk="execute")
def run(command: str, folder: str) -> str:
    ran = subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


@tool
def undeclared(path: str) -> str:
    Path(path).write_text("written")
    return Path(path).read_text()


# -- by risk


def test_a_tool_that_declares_read_reads_the_workspace_and_nothing_else(stage: ToolStage, workspace: Path) -> None:
    assert result(stage, read, path=str(workspace / "file")) == "text"
    assert result(stage, read, path="/etc/hosts")
    outside = workspace.parent / "outside"
    outside.write_text("outside")
    failed = failure(stage, read, path=str(outside))
    assert "confined: this tool declares risk='read' and may not touch" in failed.message
    assert "paths=[...]" in failed.message
    assert "refused again" in failed.retry_hint


def test_a_tool_that_declares_read_writes_nothing(stage: ToolStage, workspace: Path) -> None:
    failed = failure(stage, write_as_read, path=str(workspace / "file"))
    assert f"may not write {workspace / 'file'}; its author can allow that by risk='write'" in failed.message
    assert (workspace / "file").read_text() == "text"


def test_a_tool_that_declares_write_writes_below_the_workspace(stage: ToolStage, workspace: Path) -> None:
    assert result(stage, write, path=str(workspace / "new")) == "ok"
    assert (workspace / "new").stat().st_mode & 0o777 == 0o600 or not containment().mounts
    outside = workspace.parent / "outside_write"
    assert "confined: this tool declares risk='write'" in failure(stage, write, path=str(outside)).message
    assert not outside.exists()


def test_a_tool_that_declares_write_moves_files_and_folders(stage: ToolStage, workspace: Path) -> None:
    (workspace / "one" / "deep").mkdir(parents=True)
    (workspace / "one" / "file").touch()
    (workspace / "two").mkdir()
    for name in ("file", "deep"):
        moved = result(stage, move, source=str(workspace / "one" / name), target=str(workspace / "two" / name))
        assert moved == "moved"
        assert (workspace / "two" / name).exists()


def test_only_network_and_execute_open_sockets(stage: ToolStage, workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert result(stage, connect, port=port) == f"port {port}"
        code = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).getpeername()[1])"
        assert result(stage, run, command=f'{sys.executable} -c "{code}"', folder=str(workspace)).strip() == str(port)
        failed = failure(stage, fetch, url=f"http://127.0.0.1:{port}/")
    assert "may open no sockets; its author can allow that by risk='network'" in failed.message


def test_commands_run_in_the_workspace_and_write_there(stage: ToolStage, workspace: Path) -> None:
    said = result(
        stage, run, command="echo made > by_command && cat by_command; echo x > ../beside", folder=str(workspace)
    )
    assert said.startswith("made\n")
    assert "ermission denied" in said or "Read-only" in said
    assert not (workspace.parent / "beside").exists()


def test_a_tool_that_declares_no_risk_is_not_confined(stage: ToolStage, tmp_path: Path) -> None:
    assert result(stage, undeclared, path=str(tmp_path / "file")) == "written"


def test_off_confines_no_tool(tmp_path: Path) -> None:
    with ToolStage(ProcessOptions(confine=Confine.OFF)) as stage:
        assert result(stage, write_as_read, path=str(tmp_path / "file")) == "ok"


def test_declared_paths_take_the_place_of_the_workspace(stage: ToolStage, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data")
    narrow = tool(risk="read", name="narrow", paths=[str(tmp_path)])(read.function)
    assert result(stage, narrow, path=str(tmp_path / "data")) == "data"
    assert "may not touch" in failure(stage, narrow, path=str(workspace / "file")).message
    relative = tool(risk="read", name="relative", paths=["lib"])(read.function)
    assert result(stage, relative, path=str(workspace / "lib" / "site-packages" / "cacert.pem")) == "certificates"
    assert "may not touch" in failure(stage, relative, path=str(workspace / "file")).message


# -- secret files


@needs_mounts
def test_secret_files_are_covered_for_all_risks(stage: ToolStage, workspace: Path) -> None:
    for what in (read, write):
        assert "may hold secrets" in failure(stage, what, path=str(workspace / ".env")).message
    said = result(stage, run, command="cat .env .git/config; ls .git; mv .env plain; cat plain", folder=str(workspace))
    assert "secret" not in said.replace("secret files", "")
    assert "token" not in said
    assert (workspace / ".env").read_text() == "KEY=secret"


@needs_mounts
def test_a_secret_folder_is_an_empty_one_for_any_user(stage: ToolStage, workspace: Path) -> None:
    """Only root may look into one that nobody may: `grep -r` failed for all others."""
    said = result(stage, run, command="stat -c %a .git; find .git", folder=str(workspace))
    assert said.split() == ["555", ".git"]


@needs_mounts
def test_a_secret_file_that_goes_does_not_uncover_the_others(tmp_path: Path) -> None:
    for name in (".env", "id_rsa", "other.pem"):
        (tmp_path / name).write_text("secret")
    with ToolStage(ProcessOptions(workspace=tmp_path.resolve())) as stage:
        assert "may hold secrets" in failure(stage, read, path=str(tmp_path / ".env")).message
        (tmp_path / "id_rsa").unlink()
        (tmp_path / "other.pem").unlink()
        (tmp_path / "other.pem").mkdir()
        assert "may hold secrets" in failure(stage, write, path=str(tmp_path / ".env")).message


@needs_mounts
def test_a_command_that_is_refused_is_told_by_what(stage: ToolStage, workspace: Path) -> None:
    run_command = run_command_tool(Workspace.at(workspace))
    for line in ("cat .env", "echo x > ../beside", "git status || echo fatal: not a git repository"):
        note = json.loads(result(stage, run_command, command=line))["note"]
        assert f"confined: this tool reads and writes {workspace}" in note
        assert ("!.git/" in note) == ("git" in line)
    for line in ("echo fine", "false"):
        assert "note" not in json.loads(result(stage, run_command, command=line))


@needs_mounts
def test_the_owner_can_allow_a_secret_file_and_installed_packages_are_whole(stage: ToolStage, workspace: Path) -> None:
    assert result(stage, read, path=str(workspace / "allowed.pem")) == "no secret"
    assert result(stage, read, path=str(workspace / "lib" / "site-packages" / "cacert.pem")) == "certificates"


# -- scratch folders


@tool(risk="read")
def use_scratch(others: str) -> list[object]:
    made = Path(tempfile.mkdtemp(), "file")
    made.write_text("x")
    beside = [name for name in os.listdir(Path.home().parent) if Path(others, name).exists()] if others else []
    return [str(Path.home()), made.is_relative_to(Path.home()), beside]


def test_each_call_has_a_home_of_its_own_that_goes_with_it(stage: ToolStage, until: Until) -> None:
    homes = []
    for _ in range(3):
        home, is_below, _beside = json.loads(result(stage, use_scratch, others=""))
        assert is_below
        homes.append(home)
    assert len(set(homes)) == 3
    until(lambda: not any(Path(home).exists() for home in homes))


def test_nothing_is_left_of_the_scratch_folders(until: Until) -> None:
    with ToolStage(ProcessOptions()) as stage:
        home = json.loads(result(stage, use_scratch, others=""))[0]
        folder = Path(home).parent.parent
        assert folder.name.startswith("callboard-")
    until(lambda: not folder.exists())


def test_without_namespaces_the_scratch_folder_goes_too(until: Until) -> None:
    with ToolStage(ProcessOptions(namespaces=False)) as stage:
        home = Path(json.loads(result(stage, use_scratch, others=""))[0])
        until(lambda: not home.exists())
    until(lambda: not home.parent.parent.exists())


@tool(risk="read", reuse=True)
def count_in_scratch() -> int:
    counted = Path.home() / "count"
    with open(counted, "a") as file:
        file.write("x")
    return counted.stat().st_size


def test_a_child_that_is_kept_keeps_its_home(stage: ToolStage) -> None:
    assert [result(stage, count_in_scratch) for _ in range(3)] == ["1", "2", "3"]


# -- the module of a tool, and its own code

MODULE = """
import os, threading
from pathlib import Path
from callboard import tool

HERE = Path(__file__).parent
try:
    (HERE / "made_by_import").write_text("x")
    FOUND = "written"
except OSError as error:
    FOUND = type(error).__name__
{more}

@tool(risk="{risk}")
def look(path: str) -> str:
    import {name}_helper
    if path:
        try:
            if os.path.isdir(path):
                os.rename(path, f"{{path}}_moved")
                return "moved"
            with open(path, "a"):
                return "opened"
        except OSError as error:
            return type(error).__name__
    return f"{{FOUND}} {{{name}_helper.WORD}}"
"""


def module_tool(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, *, risk: str, more: str = "") -> Tool:
    """A tool of a module on Python's path, which was imported where it could write, as the owner's program can."""
    (folder / f"{name}_helper.py").write_text("WORD = 'helped'")
    (folder / f"{name}.py").write_text(MODULE.format(name=name, risk=risk, more=more))
    monkeypatch.syspath_prepend(str(folder))
    module = __import__(name)
    (folder / "made_by_import").unlink()
    found = module.look
    assert isinstance(found, Tool)
    return found


def test_the_import_of_a_tools_module_is_confined_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = module_tool(tmp_path, "confined_at_import", monkeypatch, risk="read")
    with ToolStage(ProcessOptions()) as stage:
        assert result(stage, look, path="") in ("OSError helped", "PermissionError helped")
    assert not (tmp_path / "made_by_import").exists()


def test_a_tool_that_cannot_be_forked_is_confined_in_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    look = module_tool(tmp_path, "confined_with_a_thread", monkeypatch, risk="read", more=more)
    with ToolStage(ProcessOptions()) as stage:
        for _ in range(2):
            assert result(stage, look, path="") in ("OSError helped", "PermissionError helped")
    assert not (tmp_path / "made_by_import").exists()


@needs_mounts
def test_a_tool_that_may_write_where_its_code_is_cannot_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    look = module_tool(folder, "its_own_code", monkeypatch, risk="write")
    with ToolStage(ProcessOptions(workspace=tmp_path)) as stage:
        assert result(stage, look, path=str(folder / "other")) == "opened"
        assert result(stage, look, path=str(folder / "its_own_code.py")) == "OSError"
        for outer in (folder, folder.parent):
            assert result(stage, look, path=str(outer)) == "OSError"
    assert (folder / "its_own_code.py").exists()


@tool(risk="write")
def move(source: str, target: str) -> str:
    os.rename(source, target)
    return "moved"


def test_packages_that_are_loaded_from_elsewhere_are_named_once() -> None:
    found = loaded_packages()
    assert len(set(found)) == len(found)
    assert any((Path(each) / "processes").is_dir() or (Path(each) / "actors").is_dir() for each in found)


def test_a_crash_by_a_refused_system_call_is_named(stage: ToolStage) -> None:
    assert "SIGSYS (a system call that is refused" in failure(stage, old_system_call).message


@tool(risk="read")
def old_system_call() -> str:
    import ctypes  # noqa: PLC0415 - in the child, where no other tool of this module needs it

    return str(ctypes.CDLL(None).syscall(0x40000000 | 39))


@needs_mounts
def test_a_secret_file_that_is_replaced_is_not_shown_by_tools_that_are_loaded(tmp_path: Path) -> None:
    """Most editors save by a rename, which takes a cover away: no call runs until the tool is loaded again."""
    (tmp_path / ".env").write_text("KEY=old")
    (tmp_path / "plain").write_text("nothing special")
    with ToolStage(ProcessOptions(workspace=tmp_path.resolve())) as stage:
        assert result(stage, read, path=str(tmp_path / "plain")) == "nothing special"
        (tmp_path / "saved").write_text("KEY=new")
        (tmp_path / "saved").rename(tmp_path / ".env")
        refused = failure(stage, read, path=str(tmp_path / ".env"))
        assert refused.code is FailureCode.OVERLOADED
        assert "a file that holds secrets was replaced" in refused.message
        while (again := failure(stage, read, path=str(tmp_path / ".env"))).code is FailureCode.OVERLOADED:
            assert "KEY" not in again.message
        assert "may hold secrets" in again.message
        assert result(stage, read, path=str(tmp_path / "plain")) == "nothing special"
