"""Streamed requests at once through the daemon, beside LiteLLM's proxy and the model server itself, in one run.

    python benchmarks/daemon_load.py                     # 1,000 streams through the daemon, and without it
    python benchmarks/daemon_load.py --litellm PYTHON    # and through LiteLLM's proxy, of that interpreter
    python benchmarks/daemon_load.py --followers 10000   # so many followers of one idle request: memory of each
    python benchmarks/daemon_load.py --stuck 200         # so many clients that do not read on: are they cut?

The exit status is 1 where a stream failed, a follower did not see the end, or a client that does not read was not cut.

Each contender is a process of its own before the same model server (the wire double, in another process), and gets the
same requests from the same client, in a third process. All of them share the machine's cores. The overhead is the
contender's time to the first byte of the answer's text minus that of the model server alone, at the same quantile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from callboard.actors.testing.wire_double import Script, Tokens, Turn, WireDouble

TOKEN = "a-token-of-the-benchmark-0123456789"
WORDS = 50
#: Between two words of one stream: a model's 25 tokens a second.
TICK_SECONDS = 0.04
RUN_SECONDS = 600.0
START_SECONDS = 120.0
#: A model that says nothing more: longer than the followers are watched.
SILENT_SECONDS = 1_200.0
#: Clients that behave, while others do not read.
OTHERS = 20
#: New connections a second of the client, so that not all handshakes fall into one moment.
ARRIVALS_PER_SECOND = 200
LITELLM_PORT = 8_731


@dataclass(frozen=True)
class Contender:
    """A server that runs."""

    name: str
    port: int
    pid: int
    key: str


def memory_of(pid: int) -> float:
    """MB of a process and of those that it has started, each page counted once (PSS)."""
    total = 0
    for each in (pid, *children_of(pid)):
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def children_of(pid: int) -> list[int]:
    """All that it has started, and they."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(status.parent.name)
            found += [child, *children_of(child)]
    return found


def cpu_of(pid: int) -> float:
    """Seconds of user and system time so far, of the process alone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def callboard_before(double: WireDouble, folder: Path, *arguments: str, settings: str = "") -> Iterator[Contender]:
    """The daemon, with its journal, before the model server. `settings`: further lines of its configuration."""
    config = folder / "callboard.toml"
    config.write_text(
        f'[default]\nmodel = "openai-compatible/any"\nbase_url = "{double.base_url()}"\napi_key = "sk-benchmark"\n'
        f"{settings}\n[daemon]\nport = 0\n[daemon.limits]\nrequests_per_minute = 10000000\n"
    )
    config.chmod(0o600)
    environment = {**os.environ, "CALLBOARD_TOKEN": TOKEN, "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "callboard.actors.cli", "serve", "--config", str(config), *arguments]
    with running(command, environment, folder / "callboard.log") as process:
        line = wait_for(folder / "callboard.log", "ready: ", process)
        port = int(line.rpartition(":")[2])
        yield Contender("callboard", port, process.pid, TOKEN)


@contextmanager
def litellm_before(double: WireDouble, folder: Path, python: str) -> Iterator[Contender]:
    """LiteLLM's proxy, one worker, nothing logged, no database."""
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: any\n    litellm_params:\n      model: openai/any\n"
        f"      api_base: {double.base_url()}\n      api_key: sk-benchmark\n"
        f"general_settings:\n  master_key: {TOKEN}\n"
    )
    program = str(Path(python).with_name("litellm"))
    command = [program, "--config", str(config), "--port", str(LITELLM_PORT), "--host", "127.0.0.1"]
    environment = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    for name in ("PYTHONPATH", "MYPYPATH"):
        environment.pop(name, None)
    with running(command, environment, folder / "litellm.log") as process:
        wait_until_it_listens(LITELLM_PORT, folder / "litellm.log", process)
        yield Contender("litellm", LITELLM_PORT, process.pid, TOKEN)


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)


def wait_for(log: Path, words: str, process: subprocess.Popen[bytes]) -> str:
    """The line of the log with these words."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if words in line:
                return line
        time.sleep(0.05)
    raise SystemExit(f"{words!r} was not said: {log.read_text(errors='replace')[-2_000:]}")


def wait_until_it_listens(port: int, log: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise SystemExit(f"port {port} was not opened: {log.read_text(errors='replace')[-2_000:]}")


def client(*arguments: str) -> dict[str, float]:
    """The client in a process of its own; what it saw."""
    program = str(Path(__file__).with_name("daemon_clients.py"))
    ran = subprocess.run(
        [sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS, check=True
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def streams(contender: Contender, count: int) -> dict[str, float]:
    """`count` streams at once; with the memory and the CPU of the contender."""
    client("streams", str(contender.port), contender.key, "20", str(ARRIVALS_PER_SECOND))  # it is warm then
    before, idle = cpu_of(contender.pid), memory_of(contender.pid)
    watching = Watch(contender.pid)
    seen = client("streams", str(contender.port), contender.key, str(count), str(ARRIVALS_PER_SECOND))
    return {
        **seen,
        "cpu_ms_a_stream": (cpu_of(contender.pid) - before) / count * 1_000,
        "idle_mb": idle,
        "peak_mb": watching.peak(),
    }


class Watch:
    """The largest memory of a process while something else runs."""

    def __init__(self, pid: int) -> None:
        program = (
            "import sys, time\nsys.path.insert(0, sys.argv[2])\nfrom daemon_load import memory_of\npeak = 0.0\n"
            "while True:\n    peak = max(peak, memory_of(int(sys.argv[1])))\n"
            "    print(peak, flush=True)\n    time.sleep(0.5)\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(pid), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )

    def peak(self) -> float:
        """MB; ends the watch."""
        self._process.terminate()
        lines = self._process.communicate(timeout=30)[0].split()
        return float(lines[-1]) if lines else 0.0


def compare(options: argparse.Namespace, double: WireDouble, folder: Path) -> bool:
    """The table of contenders; True where no stream through the daemon failed."""
    rows = []
    alone = Contender("the model server alone", int(double.base_url().split(":")[2].partition("/")[0]), double.pid, "x")
    rows.append((alone.name, streams(alone, options.streams)))
    with callboard_before(double, folder) as contender:
        rows.append((contender.name, streams(contender, options.streams)))
    if options.litellm:
        with litellm_before(double, folder, options.litellm) as contender:
            rows.append((contender.name, streams(contender, options.streams)))
    print(f"\n{options.streams} streams at once of {WORDS} words, one each {TICK_SECONDS * 1_000:g} ms")
    print(f"{'':24}{'failed':>8}{'first byte p50':>16}{'p99':>9}{'overhead p50':>14}{'p99':>9}", end="")
    print(f"{'CPU/stream':>12}{'idle':>8}{'peak':>8}")
    bare = rows[0][1]
    for name, seen in rows:
        print(f"{name:24}{seen['failed']:8.0f}{seen['first_p50_ms']:13.0f} ms{seen['first_p99_ms']:6.0f} ms", end="")
        over50, over99 = (seen[key] - bare[key] for key in ("first_p50_ms", "first_p99_ms"))
        print(f"{over50:11.0f} ms{over99:6.0f} ms{seen['cpu_ms_a_stream']:9.1f} ms", end="")
        print(f"{seen['idle_mb']:5.0f} MB{seen['peak_mb']:5.0f} MB")
    return dict(rows)["callboard"]["failed"] == 0


def followers(count: int, idle_seconds: float, double: WireDouble, folder: Path) -> bool:
    """Followers of one request that waits; True where all of them saw its end."""
    with callboard_before(double, folder, settings=f"stream_idle_timeout_seconds = {SILENT_SECONDS}") as contender:
        before = memory_of(contender.pid)
        seen = client(
            "followers",
            str(contender.port),
            contender.key,
            str(count),
            str(ARRIVALS_PER_SECOND * 5),
            str(contender.pid),
            str(idle_seconds),
        )
    kb = (seen["with_followers_mb"] - before) * 1024 / count
    print(f"{count} followers of an idle request: {seen['connected']:.0f} connected, {kb:.1f} kB each, ", end="")
    print(f"{seen['cpu_percent']:.1f}% of a core while idle; {seen['told']:.0f} saw its end")
    return seen["told"] == count


def stuck(count: int, double: WireDouble, folder: Path) -> bool:
    """Clients that ask, and do not read the answer; True where all of them were cut, and others answered."""
    with callboard_before(double, folder) as contender:
        before = memory_of(contender.pid)
        seen = client(
            "stuck", str(contender.port), contender.key, str(count), str(ARRIVALS_PER_SECOND), str(contender.pid)
        )
    kb = (seen["peak_mb"] - before) * 1024 / count
    print(f"{count} clients that do not read: at the most {kb:.0f} kB each in the process and ", end="")
    print(f"{seen['kernel_bytes'] / 1024 / count:.0f} kB in the kernel; {seen['cut']:.0f} were cut after ", end="")
    print(f"{seen['seconds']:.0f} s; another client was answered meanwhile: {seen['other_ok']:.0f} of {OTHERS}")
    return seen["cut"] == count and seen["other_ok"] == OTHERS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--litellm", metavar="PYTHON", default="", help="of an environment with litellm[proxy]")
    parser.add_argument("--followers", type=int, default=0)
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="how long the followers are watched")
    parser.add_argument("--stuck", type=int, default=0)
    options = parser.parse_args()
    words = " ".join(["word"] * WORDS)
    says = Turn(words, fragment=5, pause=TICK_SECONDS, usage=Tokens(100, 50))
    if options.stuck:  # 4 MB, which no socket holds
        says = Turn("word " * 800_000, fragment=4_096, usage=Tokens(100, 50))
    if options.followers:
        says = Turn(words, fragment=len(words) // 2, pause=SILENT_SECONDS, usage=Tokens(100, 50))
    with tempfile.TemporaryDirectory() as folder, WireDouble() as double:
        double.play_scripts(Script((says,), by_turn=True))
        if options.followers:
            is_right = followers(options.followers, options.idle_seconds, double, Path(folder))
        elif options.stuck:
            is_right = stuck(options.stuck, double, Path(folder))
        else:
            is_right = compare(options, double, Path(folder))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
