"""`callboard completion`: what the scripts complete, tried in the shells that are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import callboard.actors.cli
from callboard.actors.cli.arguments import SHELLS, commands_below, parser


def completed(script: str, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    asks = f"""
        source /dev/stdin
        _function=$(complete -p callboard); _function=${{_function##*-F }}; _function=${{_function%% *}}
        COMP_WORDS=(callboard {shlex.join(words)}); COMP_CWORD={len(words)}
        $_function callboard {shlex.quote(words[-1])} x
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", asks]
    ran = subprocess.run(command, input=script, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.fixture
def scripts(here: Any) -> dict[str, str]:
    return {shell: here("completion", shell).out for shell in SHELLS}


def test_bash_completes_commands_options_and_folders(scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    script = scripts["bash"]
    assert completed(script, tmp_path, "do") == ["doctor"]
    assert set(completed(script, tmp_path, "")) >= {"ask", "index", "doctor", "login", "tools", "completion"}
    assert completed(script, tmp_path, "ask", "--w") == ["--workspace"]
    assert set(completed(script, tmp_path, "ask", "--")) >= {
        "--workspace",
        "--model",
        "--base-url",
        "--profile",
        "--json",
    }
    assert completed(script, tmp_path, "ask", "--workspace", "fo") == ["folder"]
    assert completed(script, tmp_path, "index", "f") == ["folder"]
    assert completed(script, tmp_path, "completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_each_script(scripts: dict[str, str], shell: str) -> None:
    for name, command in commands_below(parser()).items():
        assert name in scripts[shell]
        for option in (text for action in command._actions for text in action.option_strings if text != "-h"):
            assert option.lstrip("-") in scripts[shell], f"{name} {option}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(scripts: dict[str, str], shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    check = subprocess.run([shell, "-n"], input=scripts[shell], capture_output=True, text=True, timeout=60)
    assert (check.returncode, check.stderr) == (0, "")


def test_without_its_package_it_says_what_to_install(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    monkeypatch.delitem(sys.modules, "callboard.actors.cli.completion", raising=False)
    monkeypatch.delattr(callboard.actors.cli, "completion", raising=False)
    ran = here("completion", "bash")
    assert ran.sentence.endswith("needs the extra 'cli'; in the clone of callboard, type: pip install -e '.[cli]'")
    assert ran.status == 1


def test_another_shell_is_refused(here: Any) -> None:
    ran = here("completion", "cmd.exe")
    assert ran.status == 2
    assert "invalid choice: 'cmd.exe'" in ran.err
