"""Runs the real command line, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.homes import with_models

from callboard.actors.cli.__main__ import main

#: A command takes about a second on an idle machine; this bounds one that hangs.
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that says what went wrong; checks that there is just that."""
        complaints = [line for line in self.err.splitlines() if line.startswith("callboard: ")]
        assert len(complaints) == 1, self.err
        assert complaints[0] == self.err.splitlines()[-1]
        assert "Traceback" not in self.err + self.out
        return complaints[0].removeprefix("callboard: ")


RunHere = Callable[..., Ran]


@dataclass
class Callboard:
    """`callboard`, as a user starts it: no keys in the environment, a home of its own."""

    home: Path
    workspace: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(
        self, *arguments: str, program: Sequence[str] = ("-m", "callboard.actors.cli"), **how: object
    ) -> subprocess.Popen[bytes]:
        kept = {"PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG"}
        environment = {name: value for name, value in os.environ.items() if name in kept or name.startswith("LC_")}
        environment |= {"HOME": str(self.home), **self.environment}
        given: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, *program, *arguments],
            cwd=self.workspace,
            env=environment,
            start_new_session=True,
            **{**given, **how},
        )

    def run(self, *arguments: str) -> Ran:
        return self.finish(self.start(*arguments))

    def finish(self, process: subprocess.Popen[bytes]) -> Ran:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        return Ran(process.returncode, (out or b"").decode(), (err or b"").decode())

    def interrupt(self, process: subprocess.Popen[bytes]) -> Ran:
        """Ctrl-C, as a terminal sends it: to the whole foreground process group."""
        os.killpg(process.pid, signal.SIGINT)
        return self.finish(process)

    def processes(self) -> list[str]:
        """Command lines of all living processes that belong to this home."""
        mark = f"HOME={self.home}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def callboard(tmp_path: Path) -> Callboard:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    (workspace / "weather.py").write_text(
        'def fetch_weather(city):\n    """Ask the weather service."""\n    return 1\n'
    )
    return Callboard(with_models(home), workspace)


@pytest.fixture
def here(callboard: Callboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """The command line in this process, at a tenth of the time: for what ends before anything is started."""
    for name in list(os.environ):
        if name.startswith("CALLBOARD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(callboard.home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(callboard.workspace)

    def run(*arguments: str) -> Ran:
        status = main(arguments)
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition of another process, with a deadline."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.01)

    return wait
