"""`run_command` for real: its answer, its bounds, and that nothing of a command is left when it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.conditions import wait_until

from callboard.actors.builtins.run_command import command_accesses, run_command_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import FailureCode, Risk, ToolFailure


@pytest.fixture(scope="module")
def stage() -> Iterator[ToolStage]:
    with ToolStage() as staged:
        yield staged


@pytest.fixture
def command(tmp_path: Path) -> Tool:
    return run_command_tool(Workspace.at(tmp_path))


def run(stage: ToolStage, tool: Tool, line: str, **more: object) -> Any:
    """The answer, as the model reads it."""
    ended = stage.start(tool, json.dumps({"command": line, **more}), timeout_seconds=60).wait()
    assert isinstance(ended, ToolCallCompleted), ended
    return json.loads(ended.content)


def failure(stage: ToolStage, tool: Tool, **arguments: object) -> ToolFailure:
    ended = stage.start(tool, json.dumps(arguments)).wait()
    assert isinstance(ended, ToolCallFailed), ended
    return ended.failure


def test_what_a_command_prints_and_how_it_ends(stage: ToolStage, command: Tool, tmp_path: Path) -> None:
    answer = run(stage, command, "echo one; echo two >&2; echo three; exit 7")
    assert answer.pop("seconds") >= 0
    assert answer == {
        "exit_code": 7, "timed_out": False, "output": "one\ntwo\nthree\n", "output_bytes": 14,
        "left_out_bytes": 0, "cwd": str(tmp_path), "version": 1,
    }  # fmt: skip


def test_folder_variables_and_input(stage: ToolStage, command: Tool, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    answer = run(stage, command, 'pwd; echo "$GREETING"; cat; wc -c < /dev/stdin', cwd="sub", env={"GREETING": "a b"})
    assert answer["output"].split("\n")[:3] == [str(tmp_path / "sub"), "a b", "0"]


@pytest.mark.parametrize(
    ("line", "code", "signal"),
    [
        ("kill -SEGV $$", None, "SIGSEGV"),
        ("kill -KILL $$", None, "SIGKILL"),
        ("no-such-command-here", 127, ""),
        ("if then", 2, ""),
        ("true", 0, ""),
        ("exec 0<&- 1>&- 2>&-; exit 3", 3, ""),
    ],
)
def test_how_a_shell_can_end(stage: ToolStage, command: Tool, line: str, code: int | None, signal: str) -> None:
    answer = run(stage, command, line)
    assert (answer.get("exit_code"), answer.get("signal", ""), answer["timed_out"]) == (code, signal, False)


def test_a_command_whose_time_is_up_is_ended_and_what_it_printed_is_kept(stage: ToolStage, command: Tool) -> None:
    answer = run(stage, command, "echo begun; sleep 1000", timeout_seconds=1)
    assert (answer["timed_out"], answer["output"], answer["signal"]) == (True, "begun\n", "SIGTERM")
    assert "timeout_seconds" in answer["note"]


def test_one_that_does_not_listen_is_killed(stage: ToolStage, command: Tool) -> None:
    answer = run(stage, command, "trap '' TERM INT HUP; while true; do sleep 0.05; done", timeout_seconds=1)
    assert (answer["timed_out"], answer["signal"]) == (True, "SIGKILL")


def test_time_to_clean_up_is_given(stage: ToolStage, command: Tool) -> None:
    answer = run(stage, command, "trap 'echo cleaned; exit 5' TERM; while true; do sleep 0.05; done", timeout_seconds=1)
    assert (answer["exit_code"], answer["timed_out"]) == (5, True)
    assert answer["output"].endswith("cleaned\n")


#: Ways to leave a process behind.
LEAVING = {
    "background": "sleep 1000 &",
    "disowned": "sleep 1000 & disown",
    "nohup": "nohup sleep 1000 >/dev/null 2>&1 &",
    "session": "setsid sleep 1000 &",
    "daemon": "setsid bash -c '(sleep 1000) & exit' </dev/null >/dev/null 2>&1 &",
    "quiet": "exec 1>&- 2>&-; sleep 1000 &",
    "ignoring": "bash -c 'trap \"\" TERM HUP INT; while true; do sleep 1; done' &",
    "python": "python3 -c 'import os,time\nif not os.fork():\n os.setsid()\n os.fork() and exit()\n time.sleep(99)'",
}


class Alive:
    """A pipe with a name: whether any process that has inherited its writing end is alive."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def has_begun(self) -> bool:
        """Whether a process has opened it and said so."""
        try:
            return bool(os.read(self._end, 1))
        except BlockingIOError:
            return False

    def __bool__(self) -> bool:
        try:
            while os.read(self._end, 4096):
                pass
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("way", LEAVING)
def test_nothing_is_left_behind(stage: ToolStage, command: Tool, tmp_path: Path, way: str) -> None:
    alive = Alive(tmp_path / "alive")
    answer = run(stage, command, f"exec 8> {alive.path}; echo >&8\n{LEAVING[way]}")
    assert (answer["exit_code"], answer["timed_out"]) == (0, False)
    assert "left running were ended" in answer["note"]
    assert alive.has_begun()
    assert not alive


def test_too_many_processes_are_ended(stage: ToolStage, command: Tool, tmp_path: Path) -> None:
    alive = Alive(tmp_path / "alive")
    line = f"exec 8> {alive.path}; for n in $(seq 600); do sleep 1000 & done; sleep 1000"
    answer = run(stage, command, line, timeout_seconds=50)
    assert "more than 512 processes" in answer["note"]
    assert not alive
    assert run(stage, command, "echo fine")["output"] == "fine\n"


@pytest.mark.skipif(
    "CALLBOARD_FORK_BOMB" not in os.environ, reason="a fork bomb slows down the whole machine for seconds"
)
def test_a_fork_bomb_is_ended(stage: ToolStage, command: Tool) -> None:
    answer = run(stage, command, "bomb() { bomb | bomb & }; bomb; sleep 30", timeout_seconds=20)
    assert "more than 512 processes" in answer["note"]
    assert run(stage, command, "echo fine")["output"] == "fine\n"


def test_a_flood_does_not_fill_the_memory(stage: ToolStage, command: Tool) -> None:
    size = int(os.environ.get("CALLBOARD_FLOOD_BYTES", 60_000_000))
    half = f"head -c {size // 2} /dev/zero | tr '\\0'"
    line = f"({half} a) & ({half} b >&2) & wait; echo; echo end"
    answer = run(stage, command, line)
    assert answer["output_bytes"] == 2 * (size // 2) + 5
    assert answer["output"].endswith("\nend\n")
    assert len(answer["output"]) < 31_000
    assert answer["left_out_bytes"] == answer["output_bytes"] - 30_000


def test_bytes_that_are_no_text_are_shown_as_escapes(stage: ToolStage, command: Tool) -> None:
    answer = run(stage, command, r"printf 'a\xff\xfe\x00\xc3\xa4b'")
    assert answer["output"] == "a\\xff\\xfe\0äb"


def test_keys_are_masked(stage: ToolStage, command: Tool) -> None:
    key = "sk-ant-api03-" + "a1B2c3D4" * 10
    answer = run(stage, command, f"echo token {key}; head -c 100000 /dev/zero | tr '\\0' x; echo; echo {key}")
    assert key[:20] not in answer["output"]
    assert "token " in answer["output"]


WRONG: tuple[tuple[dict[str, object], str], ...] = (
    ({"command": ""}, "command"),
    ({"command": "a\0b"}, "command"),
    ({"command": "x" * 30_001}, "command"),
    ({"command": "true", "cwd": "nowhere"}, "cwd"),
    ({"command": "true", "cwd": "file"}, "cwd"),
    ({"command": "true", "cwd": "/"}, "cwd"),
    ({"command": "true", "cwd": "a\0b"}, "cwd"),
    ({"command": "true", "env": {"LD_PRELOAD": "x.so"}}, "env"),
    ({"command": "true", "env": {"BASH_ENV": "x"}}, "env"),
    ({"command": "true", "env": {"PYTHONPATH": "x"}}, "env"),
    ({"command": "true", "env": {"A B": "x"}}, "env"),
    ({"command": "true", "env": {"A": "x\0"}}, "env"),
    ({"command": "true", "env": {"A=B": "x"}}, "env"),
    ({"command": "true", "timeout_seconds": 0}, "timeout_seconds"),
    ({"command": "true", "timeout_seconds": 601}, "timeout_seconds"),
    ({"command": "true", "shell": "zsh"}, "shell"),
)


def test_wrong_arguments_are_named(stage: ToolStage, command: Tool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, field in WRONG:
        failed = failure(stage, command, **arguments)
        assert (failed.code, failed.field) == (FailureCode.INVALID_ARGUMENTS, field), arguments


def test_a_call_that_is_stopped_leaves_nothing(stage: ToolStage, command: Tool, tmp_path: Path) -> None:
    alive = Alive(tmp_path / "alive")
    line = f"exec 8> {alive.path}; setsid sleep 1000 & echo >&8; sleep 1000"
    call = stage.start(command, json.dumps({"command": line}), timeout_seconds=60)
    wait_until(alive.has_begun)
    stage.stop(call)
    call.wait()
    assert not alive


def test_a_policy_is_told_the_line_with_its_variables_and_the_folder(command: Tool) -> None:
    given = {"command": "make | tee log", "cwd": "sub", "env": {"A": "x; rm -rf /"}}
    assert command.accesses_of(given) == (
        Access(AccessKind.COMMAND, "export A='x; rm -rf /'\nmake | tee log", "command"),
        Access(AccessKind.READ, "sub", "cwd"),
    )
    assert [*command_accesses({"command": 5})] == []
    assert command.contract.risk is Risk.EXECUTE
