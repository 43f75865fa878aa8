"""How a line is said to have ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.processes import run_shell
from callboard.actors.processes.linux import kill_each


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        ("trap '' TERM; while :; do sleep 0.01; done", ("SIGKILL", None)),
        ("trap '' TERM; sleep 60 & wait; sleep 60", ("SIGKILL", None)),
        ("trap 'exit 3' TERM; while :; do sleep 0.01; done", ("", 3)),
        ("exec sleep 60", ("SIGTERM", None)),
        ("sleep 60", ("SIGTERM", None)),
    ],
)
def test_a_shell_that_ends_just_after_it_was_looked_at_keeps_its_status(
    line: str, ended: tuple[str, int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_about_to_end = False

    class Popen(subprocess.Popen[bytes]):
        def poll(self) -> int | None:
            nonlocal is_about_to_end
            if is_about_to_end and self.returncode is None:
                is_about_to_end = False
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                return None
            return super().poll()

    def kill(pids: Iterable[int]) -> Any:
        nonlocal is_about_to_end
        is_about_to_end = True
        return kill_each(pids)

    monkeypatch.setattr(run_shell.subprocess, "Popen", Popen)
    monkeypatch.setattr(run_shell, "kill_each", kill)
    # Politely for a moment only, where it does not listen.
    monkeypatch.setattr(run_shell._Watched.end_politely, "__defaults__", (0.3,))
    found = run_shell.run(line, tmp_path, {}, 0.3, lambda data: None)
    assert found.timed_out
    assert (found.signal, found.exit_code) == ended
