"""Programs that embed callboard, run as a user runs them: each in a process of its own, asked over real connections."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from support.homes import with_models
from support.marked import processes_with
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Answer, Call, Turn, WireDouble

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "embedding"
#: For a program to start, to answer and to end, on a machine that is busy with other tests.
PATIENCE_SECONDS = 30.0
ASKS_THE_TOOL = Turn(calls=(Call("weather", {"city": "Oslo"}),))
SAYS_IT_RAINS = Turn("It rains in Oslo.")


def wait_until(holds: object, what: str) -> None:
    """Wait for `holds()`. Raises AssertionError that names `what` after PATIENCE_SECONDS."""
    assert callable(holds)
    pause, until = threading.Event(), time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until, f"not within {PATIENCE_SECONDS:g} s: {what}"
        pause.wait(0.05)  # each look reads a file, or those of all processes


class WeatherService:
    """What the examples' tool asks over HTTP. It accepts a request and never answers: the tool waits in it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._changed = threading.Condition()
        self.asked = 0
        """Connections on which anything was asked."""
        self.left = 0
        """Of them, those whose client has gone."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/"

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # reset by a client that was killed
            connection.recv(65_536)
            self._count("asked")
            connection.recv(65_536)
        self._count("left")

    def _count(self, name: str) -> None:
        with self._changed:
            setattr(self, name, getattr(self, name) + 1)
            self._changed.notify_all()

    def wait_until_asked(self, times: int = 1) -> None:
        """Until the tool waits in so many calls."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= times, PATIENCE_SECONDS), "the tool was not called"

    def wait_until_left(self, times: int = 1) -> None:
        """Until so many calls of the tool have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.left >= times, PATIENCE_SECONDS), "the tool was not ended"


@dataclass
class Program:
    """A program that was started, and what it wrote."""

    process: subprocess.Popen[bytes]
    output: Path
    mark: str

    def said(self) -> str:
        """stdout and stderr so far, together."""
        return self.output.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until it has written this."""

        def is_there() -> bool:
            assert re.search(pattern, self.said()) or self.process.poll() is None, self.said()
            return re.search(pattern, self.said()) is not None

        wait_until(is_there, f"{pattern!r} in {self.said()}")
        found = re.search(pattern, self.said())
        assert found is not None
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it, and wait for its end. Its exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """For its end; no process of its runtime is left. Its exit status."""
        status = self.process.wait(PATIENCE_SECONDS)
        wait_until(lambda: not processes_with(self.mark), "an end of all processes of the program")
        return status


@dataclass
class Stage:
    """What a program meets: a model server, the tool's weather service, and a folder of its own."""

    folder: Path
    double: WireDouble
    weather: WeatherService
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """For a program: the model is the double, whatever is set here, and warnings are shown."""
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        model = {"CALLBOARD_MODEL": "openai-compatible/any", "CALLBOARD_BASE_URL": self.double.base_url()}
        own = {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "always::ResourceWarning"}
        return {**kept, "HOME": str(with_models(self.folder)), **model, **own, **self.variables}

    def play(self, *turns: Answer) -> None:
        """What the model says, by the number of its turn."""
        self.double.play(turns, by_turn=True)

    def the_tool_hangs(self) -> None:
        """From programs that start from now on."""
        self.variables["WEATHER_URL"] = self.weather.url

    def wait_until_model_left(self) -> None:
        """Until a client has gone away in the middle of an answer."""
        self.double.wait_until(lambda traffic: traffic.abandoned >= 1)

    def run(self, *command: str, **options: str) -> subprocess.CompletedProcess[str]:
        """A program that ends by itself."""
        with self.started(*command) as program:
            status = program.wait()
        return subprocess.CompletedProcess(command, status, program.said(), "")

    @contextlib.contextmanager
    def started(self, *command: str, stdin: int = subprocess.DEVNULL) -> Iterator[Program]:
        """A program, which is killed at the end if it still runs."""
        mark = f"host-{uuid4().hex}"
        descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".output")
        with open(descriptor, "wb") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, stdin=stdin, stdout=output, stderr=output,
                env={**self.environment(), "MARK": mark}, start_new_session=True,
            )  # fmt: skip
        try:
            yield Program(process, Path(name), mark)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


@contextlib.contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    """A stage whose model calls the tool and then says what the weather is."""
    weather = WeatherService()
    try:
        with shared_double([ASKS_THE_TOOL, SAYS_IT_RAINS], by_turn=True) as double:
            yield Stage(folder, double, weather)
    finally:
        weather.close()


def example(name: str) -> str:
    """The path of an example."""
    return str(EXAMPLES / name)


def python(*arguments: str) -> Sequence[str]:
    """A command that runs this Python."""
    return [sys.executable, *arguments]
