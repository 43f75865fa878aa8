"""Twelve tools and models that misbehave, under callboard and five other frameworks: what becomes of the call, of the
other requests and of the process.

    python benchmarks/compared.py                                # all of it, some ten minutes; prints the table
    python benchmarks/compared.py --only callboard langgraph     # these columns
    python benchmarks/compared.py --rows segfaults exits         # these rows
    python benchmarks/compared.py --write docs/compared.md       # all of it, into the page

Each framework has an environment of its own (sessions_peers.py makes it when it is first needed), each case a process
of its own, and the wire double is the model of all. In each case one question meets what misbehaves, while another,
well-behaved, is asked over and over in the same process. What a cell says is made of what was seen (`cells`).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from compared_player import ADAPTERS, ANSWER, BESIDE, CALL_SECONDS, MAX_STEPS, VICTIM
from compared_tools import FLOOD_BYTES, MARKER, still_runs, tool_of
from sessions_peers import PINS, python_of

from callboard.actors.testing.wire_double import Answer, Api, Asked, Call, Fault, FaultKind, Turn, WireDouble

ROOT = Path(__file__).resolve().parents[1]
PLAYER = Path(__file__).with_name("compared_player.py")
#: How long a tool works that hangs.
WORK_SECONDS = 10.0
#: For a start, and for a whole case after it; then its process is killed.
START_SECONDS, CASE_SECONDS = 90.0, 25.0
LOOK_SECONDS = 0.05
#: Where the others wait for longer than they should, but for no hanging tool.
TRIES = 3
#: An answer of the well-behaved question takes so long: one is always under way.
BESIDE_SECONDS = 0.2
#: What a call may take beyond its deadline, another request in all, and what the process may grow by.
LATE_SECONDS, SLOW_SECONDS, GROWN_BYTES = 2.0, 1.5, 256 * 1024**2
#: Of a result in a request to the model.
SENT_BYTES = 1024**2
_BLOCK = re.compile(r"(<!-- generated: table -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A misbehaviour: its heading, and what the model does."""

    heading: str
    turns: tuple[Answer, ...]
    by_turn: bool = True


def calls(does: str, tool: str = "") -> Turn:
    """A turn that calls a tool which does this."""
    return Turn(calls=(Call(tool or tool_of(does), {"call": 1, "does": does, "seconds": WORK_SECONDS}),), fragment=50)


def of_tool(heading: str, does: str) -> Row:
    """One call, then the answer."""
    return Row(heading, (calls(does), Turn(ANSWER)))


ROWS = {
    "blocks": of_tool("Blocks the loop", "blocks"),
    "sleeps_in_c": of_tool("Sleeps in C", "sleeps_in_c"),
    "exits": of_tool("Calls os._exit", "exits"),
    "segfaults": of_tool("Segfaults", "segfaults"),
    "forks_and_leaves": of_tool("Forks and leaves", "forks_and_leaves"),
    "eats_memory": of_tool("Eats memory", "eats_memory"),
    "ignores_cancellation": of_tool("Ignores cancellation", "ignores_cancellation"),
    "returns_no_json": of_tool("Returns what is no JSON", "returns_no_json"),
    "raises_base_exception": of_tool("Raises a BaseException", "raises_base_exception"),
    "floods_output": of_tool("Floods output", "floods_output"),
    "cuts_stream": Row("A model that cuts its stream", (Turn("half", fault=Fault(FaultKind.CUT)), Turn(ANSWER)), False),
    "repeats_call": Row("A model that repeats a call", (calls("returns"),) * (2 * MAX_STEPS)),
}


# -- what was seen


@dataclass
class Seen:
    """Of one case. Times are of time.monotonic()."""

    status: int | None = None
    """The exit status of its process where it ended before it should; negative: by this signal."""
    started: list[float] = field(default_factory=list)
    """When the misbehaving tool began, each time."""
    asked: float = 0.0
    ended: float | None = None
    outcome: str = ""
    """The text of the answer, or the error."""
    told: str = ""
    """What the model was told of the first call."""
    sent: int = 0
    """The largest request to the model, in bytes."""
    beside: list[tuple[float, float | None, str]] = field(default_factory=list)
    """Of each question beside: when it was asked, when it ended, how."""
    until: float = 0.0
    """When it was looked at last."""
    runs_on: bool = False
    """The tool still ran when the question had long ended."""
    left: int = 0
    """Processes that were there when all had ended."""
    grown: int = 0
    """By how many bytes the process had grown at its largest."""
    printed: int = 0
    """Bytes in the output of the process."""


CALL_LOST, OTHERS_LOST = "call lost", "others lost"


@dataclass(frozen=True)
class Cell:
    """What became of the call, the others, the process: a few words each, and whether these are good."""

    call: tuple[str, bool]
    others: tuple[str, bool]
    process: tuple[str, bool]

    @property
    def bad(self) -> list[str]:
        """The words of what is not good."""
        return [words for words, good in (self.call, self.others, self.process) if not good]

    def __str__(self) -> str:
        words = "; ".join(self.bad) or "✓"
        return words.replace(f"{CALL_LOST}; {OTHERS_LOST}; ", "all lost, ")


def cell(seen: Seen) -> Cell:
    """The words for what was seen."""
    return Cell(_call(seen), _others(seen), _process(seen))


def _call(seen: Seen) -> tuple[str, bool]:
    began = seen.started[0] if seen.started else seen.asked
    if seen.ended is None:
        words = CALL_LOST if seen.status is not None else f"call has no end in {seen.until - began:.0f} s"
        return words, False
    seconds = seen.ended - began
    in_time = seconds <= CALL_SECONDS + LATE_SECONDS
    if len(seen.started) > 1:
        return f"run ends after {len(seen.started)} calls", len(seen.started) <= MAX_STEPS
    if seen.outcome != ANSWER:
        return f"run fails at {seconds:.1f} s", False
    if seen.sent > SENT_BYTES:
        return f"model sent {seen.sent / 1e6:.0f} MB", False
    return f"answered at {seconds:.1f} s", in_time


def _others(seen: Seen) -> tuple[str, bool]:
    met = [each for each in seen.beside if each[1] is None or each[1] >= seen.asked]
    if any(ended is None for _, ended, _ in met) and seen.status is not None:
        return OTHERS_LOST, False
    if any(ended is not None and outcome != ANSWER for _, ended, outcome in met):
        return "others fail", False
    if (seconds := longest_wait(seen)) > SLOW_SECONDS:
        return f"others wait {seconds:.1f} s", False
    return "others answered", True


def longest_wait(seen: Seen) -> float:
    """Of the questions beside that met the misbehaving one, in seconds."""
    waits = ((ended or seen.until) - asked for asked, ended, _ in seen.beside if ended is None or ended >= seen.asked)
    return max(waits, default=0.0)


def _process(seen: Seen) -> tuple[str, bool]:
    faults = list(_faults(seen))
    if seen.status is None:
        return ", ".join(faults) or "alive", not faults
    return ", ".join([f"exit {seen.status if seen.status >= 0 else 128 - seen.status}", *faults]), False


def _faults(seen: Seen) -> Iterator[str]:
    if seen.runs_on:
        yield "tool runs on"
    if seen.left:
        yield f"{seen.left} process{'es' * (seen.left > 1)} left"
    if seen.grown > GROWN_BYTES:
        yield f"grown by {seen.grown / 1e6:.0f} MB"
    if seen.printed > FLOOD_BYTES // 2:
        yield f"prints {seen.printed / 1e6:.0f} MB"


# -- watching


def watch(python: str, name: str, row: Row, double: WireDouble, program: Path | None = None) -> Seen:
    """Play one case in a process of its own, and look at it from outside. Raises SystemExit where it does not begin."""
    double.reset()
    double.play(row.turns, name=VICTIM, by_turn=row.by_turn)
    well = tuple(Call(tool, {"call": 0, "does": "returns", "seconds": 0}) for tool in ("look", "again"))
    double.play(
        (Turn(calls=well, fragment=50), Turn(ANSWER, fragment=1, pause=BESIDE_SECONDS / len(ANSWER))),
        name=BESIDE,
        by_turn=True,
    )
    with tempfile.TemporaryDirectory(prefix="callboard-compared-") as place:
        folder = Path(place)
        # What is printed goes where it does in a service: into a file.
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [python, program or PLAYER, name, double.base_url(Api.CHAT), folder],
                cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        try:
            seen = _look_at(process, folder)
        finally:
            _end(process, folder)
        _add_requests(seen, double.requests())
    return seen


def watch_again(python: str, name: str, row: Row, double: WireDouble) -> Seen:
    """As `watch`; where the others waited a little, the quickest of some tries: a busy machine is slow now and then."""
    found: list[Seen] = []
    while len(found) < TRIES:
        found.append(watch(python, name, row, double))
        if not SLOW_SECONDS < longest_wait(found[-1]) < WORK_SECONDS / 2:
            return found[-1]
    return min(found, key=longest_wait)


def environment() -> dict[str, str]:
    """Of a case: nothing of ours, and nobody is told anything."""
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "PYTHONPATH": str(ROOT / ".dev"),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "OPENAI_API_KEY": "none",
    }


def _look_at(process: subprocess.Popen[bytes], folder: Path) -> Seen:
    if not _wait_for(process, folder, "ready", START_SECONDS):
        told = (folder / "err").read_text(errors="replace")[-2000:]
        raise SystemExit(f"it did not begin: {_notes(folder)[-1:]} {told}")
    before = int(next(note["detail"] for note in _notes(folder) if note["what"] == "ready"))
    seen = Seen()
    if _wait_for(process, folder, "settled", CASE_SECONDS):
        seen.runs_on = still_runs(folder)
    seen.grown = max(0, _most_memory(process.pid) - before)
    seen.status = process.poll()
    children = _descendants(process.pid)
    (folder / "looked").touch()
    if seen.status is None:
        try:
            process.wait(CASE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _wait_until_gone(children, folder)
    seen.left = len({*(pid for pid in children if _alive(pid)), *_marked(folder)})
    seen.printed = (folder / "out").stat().st_size
    _add_notes(seen, _notes(folder))
    return seen


def _wait_for(process: subprocess.Popen[bytes], folder: Path, what: str, seconds: float) -> bool:
    """Until this was noted; False where its process ends before, or it takes too long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended = process.poll() is not None
        if any(note["what"] == what for note in _notes(folder)):
            return True
        if ended:
            return False
        time.sleep(LOOK_SECONDS)
    return False


def _notes(folder: Path) -> list[dict[str, Any]]:
    log = folder / "log"
    return [orjson.loads(line) for line in log.read_bytes().split(b"\n")[:-1]] if log.exists() else []


def _add_notes(seen: Seen, notes: list[dict[str, Any]]) -> None:
    ended = {note["number"]: (note["at"], note["detail"]) for note in notes if note["what"] == "pong"}
    for note in notes:
        match note["what"]:
            case "started":
                seen.started.append(note["at"])
            case "asked":
                seen.asked = note["at"]
            case "ended":
                seen.ended, seen.outcome = note["at"], note["detail"]
            case "ping":
                seen.beside.append((note["at"], *ended.get(note["number"], (None, ""))))
    seen.until = time.monotonic()


def _add_requests(seen: Seen, requests: Sequence[Asked]) -> None:
    for asked in (each for each in requests if each.script == VICTIM):
        seen.sent = max(seen.sent, len(orjson.dumps(asked.body)))
        told = [message for message in asked.body["messages"] if message["role"] == "tool"]
        if told and not seen.told:
            seen.told = str(told[0]["content"])[:200]


def _most_memory(pid: int) -> int:
    """The most that a process has had resident, in bytes; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.M)
    return int(found[1]) * 1024 if found else 0


def _processes() -> dict[int, int]:
    """All there are, with their parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found


def _descendants(pid: int) -> list[int]:
    parents = _processes()
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _alive(pid: int) -> bool:
    return pid in _processes()


def _marked(folder: Path) -> list[int]:
    """Processes that a tool of this case left behind."""
    found = []
    for pid in _processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if MARKER.encode() in words and str(folder).encode() in words:
            found.append(pid)
    return found


def _wait_until_gone(pids: list[int], folder: Path) -> None:
    until = time.monotonic() + LATE_SECONDS
    while time.monotonic() < until and (any(_alive(pid) for pid in pids) or _marked(folder)):
        time.sleep(LOOK_SECONDS)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """What a case leaves is ended, so that it does not reach the next."""
    left = [*_descendants(process.pid), *_marked(folder)]
    process.kill()
    process.wait()
    for pid in left:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


# -- the table


def version_in(python: str, name: str) -> str:
    """Of the packages that a framework is known by, as they are installed there."""
    packages = ["callboard"] if name not in PINS else [pin.split("==")[0].split("[")[0] for pin in PINS[name]]
    if name not in PINS:
        return f"callboard {_own_version()}"
    code = "import sys, importlib.metadata as m; print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep=', ')"
    return subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True).stdout.strip()


def _own_version() -> str:
    from callboard import __version__  # noqa: PLC0415

    return __version__


def anchor(heading: str) -> str:
    """As the site and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table(found: dict[str, dict[str, Cell]], versions: dict[str, str]) -> str:
    """What goes into the page: date and versions, then a row for each misbehaviour."""
    names = list(found)
    date = datetime.date.today().isoformat()
    lines = [f"{date}, Python {platform.python_version()}: {'; '.join(versions[name] for name in names)}.", ""]
    lines += [f"| | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    for key, row in ROWS.items():
        if all(key in found[name] for name in names):
            told = " | ".join(str(found[name][key]) for name in names)
            lines.append(f"| [{row.heading}](#{anchor(row.heading)}) | {told} |")
    good = [str(sum(str(each) == "✓" for each in found[name].values())) for name in names]
    lines.append(f"| all well, of {len(ROWS)} | {' | '.join(good)} |")
    return "\n".join(lines) + "\n"


def insert(page: str, made: str) -> str:
    """The page with its generated part replaced."""
    return _BLOCK.sub(lambda block: f"{block[1]}{made}{block[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(ADAPTERS), default=list(ADAPTERS), help="these frameworks")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="these misbehaviours")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table of a whole run into this page")
    asked = parser.parse_args()
    if asked.write and (len(asked.only), len(asked.rows)) != (len(ADAPTERS), len(ROWS)):
        parser.error("--write takes a whole run: no --only, no --rows")
    pythons = {name: python_of(name) if name in PINS else sys.executable for name in asked.only}
    found: dict[str, dict[str, Cell]] = {name: {} for name in asked.only}
    with WireDouble() as double:
        for name, python in pythons.items():
            for key in asked.rows:
                found[name][key] = each = cell(watch_again(python, name, ROWS[key], double))
                told = "; ".join(words for words, _ in (each.call, each.others, each.process))
                print(f"{name}, {ROWS[key].heading}: {told}", flush=True)
    made = table(found, {name: version_in(python, name) for name, python in pythons.items()})
    print(f"\n{made}")
    if asked.write:
        asked.write.write_text(insert(asked.write.read_text(), made))


if __name__ == "__main__":
    main()
