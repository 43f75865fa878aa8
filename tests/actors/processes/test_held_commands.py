"""Lines that are held to reading, for real: what they print, what they cannot do, what git does not run for them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Runtime, Settings
from callboard.actors.builtins.run_command import run_command_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.processes.confinement import Confine
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.tools import FailureCode, Hold

pytestmark = pytest.mark.usefixtures("held_to_reading")

HELD = (Hold.READING, Hold.READING_BELOW)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("held").resolve()
    (root / "src").mkdir()
    (root / "src" / "app.py").write_text("import os\nTOKEN = 1\n")
    (root / "a.txt").write_text("b\na\n")
    (root / ".env").write_text("KEY=covered\n")
    (root / "program").write_text("#!/bin/sh\necho it ran\n")
    (root / "program").chmod(0o755)
    return root


@pytest.fixture(scope="module")
def stage(workspace: Path) -> Iterator[ToolStage]:
    with ToolStage(ProcessOptions(workspace=workspace)) as staged:
        yield staged


@pytest.fixture(scope="module")
def command(workspace: Path) -> Tool:
    return run_command_tool(Workspace.at(workspace))


def run(stage: ToolStage, command: Tool, line: str, hold: Hold) -> Any:
    ended = stage.start(command, json.dumps({"command": line}), timeout_seconds=60, hold=hold).wait()
    assert isinstance(ended, ToolCallCompleted), ended
    return json.loads(ended.content)


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """All files, with their modes, times and contents."""
    return {
        str(each.relative_to(root)): (each.stat().st_mode, each.stat().st_mtime_ns, each.read_bytes())
        for each in root.rglob("*")
        if each.is_file() and ".callboard" not in each.parts
    }


WRITES = """
    echo x > new
    echo x > a.txt
    echo x >> a.txt
    rm a.txt
    mv a.txt b.txt
    ln a.txt b.txt
    ln -s a.txt b.txt
    mkdir new
    mkfifo new
    rmdir src
    touch a.txt
    touch -d 2001-01-01 a.txt
    chmod 777 a.txt
    truncate -s 0 a.txt
    cp a.txt b.txt
    sed -i s/a/b/ a.txt
    python3 -c 'open("new", "w")'
    python3 -c 'import os; os.utime("a.txt", (1, 1))'
    python3 -c 'import os; os.truncate("a.txt", 0)'
    ./program
    sh -c ./program > /dev/full
    python3 -c 'import socket; socket.socket()'
    python3 -c 'import socket; socket.socket(socket.AF_UNIX)'
    exec 3<>/dev/tcp/127.0.0.1/1
    python3 -c 'import os; os.memfd_create("x")'
"""


@pytest.mark.parametrize("line", WRITES.strip().splitlines())
def test_a_held_line_writes_nothing_connects_to_nothing_and_runs_no_program_of_the_workspace(
    stage: ToolStage, command: Tool, workspace: Path, line: str
) -> None:
    before = tree(workspace)
    answer = run(stage, command, line.strip(), Hold.READING)
    assert answer["exit_code"] != 0
    assert "it ran unasked" in answer["note"]
    assert tree(workspace) == before
    assert sorted(each.name for each in workspace.iterdir() if each.name != ".callboard") == [
        ".env", "a.txt", "program", "src",
    ]  # fmt: skip


@pytest.mark.parametrize("hold", HELD)
def test_a_held_line_reads_and_has_a_scratch_folder_and_the_next_one_is_free(
    stage: ToolStage, command: Tool, workspace: Path, hold: Hold
) -> None:
    line = 'sort a.txt; echo x > "$TMPDIR/y" && cat "$TMPDIR/y"; echo gone > /dev/null; cat <<< "$(seq 3)"; cat < a.txt'
    answer = run(stage, command, line, hold)
    assert answer["output"] == "a\nb\nx\n1\n2\n3\nb\na\n"
    assert "note" not in answer
    assert run(stage, command, "echo x > new && rm new", Hold.NONE)["exit_code"] == 0


def test_a_secret_file_that_has_come_since_the_tool_was_loaded_is_not_read_below_folders(
    stage: ToolStage, command: Tool, workspace: Path
) -> None:
    run(stage, command, "true", Hold.NONE)
    late = [workspace / name for name in ("late.env", "src/late.pem", "src/deep/id_rsa", "src/.ssh/config")]
    for each in late:
        each.parent.mkdir(exist_ok=True)
        each.write_text("KEY=late\n")
    try:
        answer = run(stage, command, "grep -r . . ; cat src/late.pem; ls src", Hold.READING_BELOW)
    finally:
        for each in late:
            each.unlink()
        for folder in ("deep", ".ssh"):
            (workspace / "src" / folder).rmdir()
    assert "KEY=" not in answer["output"]
    assert "./src/app.py:TOKEN = 1" in answer["output"]
    assert "secret files and folders cannot be opened" in answer["note"]


@tool(risk="execute", reuse=True)
def write_and_tell(path: str) -> int:
    Path(path).write_text("x")
    return os.getpid()


def test_a_held_call_of_any_tool_is_held_and_its_process_is_not_used_again(stage: ToolStage, workspace: Path) -> None:
    target = str(workspace / "written")
    first = stage.start(write_and_tell, json.dumps({"path": target})).wait()
    held = stage.start(write_and_tell, json.dumps({"path": target}), hold=Hold.READING).wait()
    last = stage.start(write_and_tell, json.dumps({"path": target})).wait()
    os.unlink(target)
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(last, ToolCallCompleted)
    assert first.content != last.content
    assert isinstance(held, ToolCallFailed)
    assert "found only to read" in held.failure.message


def test_a_call_that_cannot_be_held_is_not_run(workspace: Path) -> None:
    target = workspace / "written"
    with ToolStage(ProcessOptions(confine=Confine.OFF)) as stage:
        ended = stage.start(write_and_tell, json.dumps({"path": str(target)}), hold=Hold.READING).wait()
    assert isinstance(ended, ToolCallFailed)
    assert ended.failure.code is FailureCode.INTERNAL_ERROR
    assert "could not be held" in ended.failure.message
    assert not target.exists()


# -- git, and a runtime -------------------------------------------------------------------------------------------

#: Of a repository's configuration, what git's reading commands would run.
DRIVERS = """
    core.fsmonitor  core.pager  diff.external  diff.x.command  diff.x.textconv  filter.f.clean  filter.f.smudge
    filter.f.process  gpg.program  core.sshCommand  credential.helper  core.alternateRefsCommand  pager.log  alias.log
    pager.status  sequence.editor  core.editor
""".split()  # noqa: SIM905 - to be read as a list
READING = """
    git status
    git status --short --branch
    git log --oneline
    git log -p -1
    git diff
    git diff --stat HEAD
    git show
    git show HEAD:src/app.py
    git blame src/app.py
    git grep -n TOKEN
    git branch -a
    git ls-files
    git -C src status
    cd src && git diff
    git --no-pager log
    time git status
    git stash list
    grep -rn TOKEN .
    diff src/app.py a.txt
    for f in src/*.py a.txt; do wc -l $f; done
    [ -f a.txt ] && sed -n 1p a.txt
    awk 'NR == 1' a.txt
"""


@dataclass(frozen=True)
class Ran:
    asked: bool
    output: str
    exit_code: int


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Ran], Path, bytes]:
    """Each reading line in a repository whose configuration would run a program; the workspace, its index before."""
    root = tmp_path_factory.mktemp("repository").resolve()
    (root / "src").mkdir()
    (root / "src" / "app.py").write_text("import os\nTOKEN = 1\n")
    (root / "a.txt").write_text("b\na\n")
    evil = root / "evil.sh"
    evil.write_text(f"#!/bin/sh\necho ran >> {root}/pwned; echo IT-RAN; cat\n")
    evil.chmod(0o755)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)

    git("init", "-q", ".")
    git("config", "user.email", "a@b")
    git("config", "user.name", "a")
    git("add", "a.txt", "src")
    git("commit", "-qm", "one")
    (root / "src" / "app.py").write_text("import os\nTOKEN = 2\n")
    for name in DRIVERS:
        git("config", name, f"sh {evil}")
    git("config", "filter.f.required", "true")
    git("config", "core.hooksPath", str(root / "hooks"))
    (root / "hooks").mkdir()
    (root / "hooks" / "post-index-change").write_text(evil.read_text())
    (root / "hooks" / "post-index-change").chmod(0o755)
    (root / ".gitattributes").write_text("* diff=x filter=f\n")
    os.utime(root / "a.txt", (1, 1))  # its content is looked at
    (root / "pwned").unlink(missing_ok=True)
    index = (root / ".git" / "index").read_bytes()
    asked: list[object] = []

    async def main() -> dict[str, Ran]:
        settings = Settings(workspace=root, state_dir=root.parent / f"{root.name}-state", secret_files=("!.git/",))
        found = {}
        async with Runtime(settings, approve=lambda question: asked.append(question) or False) as runtime:
            for line in map(str.strip, READING.strip().splitlines()):
                count = len(asked)
                result = await runtime.call_tool("run_command", {"command": line})
                data: Any = result.data if result.ok else {"output": str(result.failure), "exit_code": -1}
                found[line] = Ran(len(asked) > count, data["output"], data["exit_code"])
            started: Any = (await runtime.call_tool("start_job", {"command": "git log --oneline; echo x > pwned"})).ok
            found["a job that writes"] = Ran(not started, "", 0)
            started = (await runtime.call_tool("start_job", {"command": "git log --format=%s; sort a.txt"})).data
            told: Any = (await runtime.call_tool("jobs", {"action": "wait", "id": started["id"]})).data
            found["a job"] = Ran(False, told["jobs"][0]["output"], told["jobs"][0]["exit_code"])
        return found

    return asyncio.run(main()), root, index


def test_gits_reading_commands_run_unasked_and_nothing_that_a_repository_names(
    ran: tuple[dict[str, Ran], Path, bytes],
) -> None:
    found, root, index = ran
    lines = [line.strip() for line in READING.strip().splitlines()]
    assert {line: found[line] for line in lines if found[line].asked or found[line].exit_code not in (0, 1)} == {}
    assert [line for line in lines if "IT-RAN" in found[line].output] == []
    assert not (root / "pwned").exists()
    assert (root / ".git" / "index").read_bytes() == index
    assert found["git log --oneline"].output.endswith(" one\n")
    assert "-TOKEN = 1\n+TOKEN = 2\n" in found["git diff"].output
    assert found["git diff"].output == found["cd src && git diff"].output
    assert "+TOKEN = 1" in found["git show"].output
    assert "a.txt" not in found["git diff"].output


def test_a_job_is_held_too(ran: tuple[dict[str, Ran], Path, bytes]) -> None:
    found, _, _ = ran
    assert found["a job"] == Ran(False, "one\na\nb\n", 0)
    assert found["a job that writes"].asked


def test_a_held_line_reaches_no_socket_of_the_machine(stage: ToolStage, command: Tool, workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        assert "connected" in run(stage, command, line, Hold.NONE)["output"]
        assert "connected" not in run(stage, command, line, Hold.READING)["output"]
