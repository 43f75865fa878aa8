"""What one session costs, beside a hand-written loop and other libraries, in one run; and how sessions end with faults.

    python benchmarks/sessions.py                  # callboard and the bare loop, at 100 and at 1,000 at once
    python benchmarks/sessions.py --peers          # and seven libraries, each in an environment of its own
    python benchmarks/sessions.py --streaming --output --spans        # callboard in these ways, beside the plain run
    python benchmarks/sessions.py --journal        # with all that happens written to SQLite before it is acted on
    python benchmarks/sessions.py --streaming --events-per-second 10  # paced, so that each event comes alone
    python benchmarks/sessions.py --paced 10000    # so many slow sessions at once: memory, and did all end well
    python benchmarks/sessions.py --faults --peers # 5% 429, 2% 500, 1% stalls, 1% cuts: how do sessions end?
    python benchmarks/sessions.py --faults --outage 1  # and a second in which all fail: do they come back in a wave?

A session is one user message, one model turn with four parallel calls of trivial async tools whose arguments arrive in
fragments, and one streamed answer of 50 chunks. The model is the wire double, in a process of its own. Each contender
runs in a fresh process; CPU is that process's own (user and system), so the server does not count. `--save` keeps the
figures in docs/images/sessions.json and draws docs/images/sessions.svg (with --faults: sessions_faults.json, .svg).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from sessions_chart import SAVED, draw_cpu, draw_retries, write_tables
from sessions_contenders import ANSWER, WORDS
from sessions_peers import PINS, python_of, version_of

from callboard.actors.testing.wire_double import (
    Call,
    Chance,
    Fault,
    FaultKind,
    Script,
    Tokens,
    Traffic,
    Turn,
    WireDouble,
)

CALLS = 4
#: A quarter of a call's arguments.
ARGUMENT_CHARS = 9
#: Between two chunks of one stream: a fast model's 250 tokens a second.
TICK_SECONDS = 0.004
#: For one contender.
RUN_SECONDS = 3_600.0
#: Of the run with faults. The shares are of requests; a session makes two.
FAULTS = (
    Chance(0.05, Fault(FaultKind.STATUS, status=429, message="Too many requests.", retry_after=1.0)),
    Chance(0.02, Fault(FaultKind.STATUS, status=500)),
    Chance(0.01, Fault(FaultKind.STALL, after=10)),
    Chance(0.01, Fault(FaultKind.CUT, after=10)),
)
#: In the outage, every answer.
DOWN = Chance(1.0, Fault(FaultKind.STATUS, status=500))
BEFORE_OUTAGE_SECONDS = 3.0
DEADLINE_SECONDS = 60.0
IDLE_SECONDS = 5.0
BIN_SECONDS = 0.1

Figures = dict[str, Any]


def scripts(tick_seconds: float, faults: tuple[Chance, ...] = (), seed: int = 0) -> list[Script]:
    """Four calls, then the answer, each a piece a tick; the same for structured output, as JSON."""
    calls = tuple(Call("lookup", {"city": f"city number {n}", "days": n}, f"call_{n}") for n in range(CALLS))
    usage = Tokens(100, 50)
    asks = Turn(calls=calls, fragment=ARGUMENT_CHARS, pause=tick_seconds, usage=usage)
    says = Turn(ANSWER, fragment=len(WORDS[0]), pause=tick_seconds, usage=usage)
    structured = Turn(json.dumps({"text": ANSWER}), fragment=len(WORDS[0]), pause=tick_seconds, usage=usage)
    return [
        Script((asks, says), by_turn=True, chances=faults, seed=seed),
        Script((asks, structured), by_turn=True, name="output"),
    ]


def run(name: str, playing: list[Script], *options: str, outage_seconds: float = 0.0) -> tuple[Figures, Traffic | None]:
    """One contender in a fresh process, with a server of its own. With faults also what the server saw."""
    python = python_of(name) if name in PINS else sys.executable
    with WireDouble() as double:
        double.play_scripts(*playing)
        if outage_seconds:
            threading.Thread(target=break_down, args=(double, playing, outage_seconds), daemon=True).start()
        url = double.base_url(script="output" if name == "callboard output" else "")
        program = str(Path(__file__).with_name("sessions_contenders.py"))
        environment = os.environ if name not in PINS else {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        ran = subprocess.run(
            [python, program, name, url, *options],
            stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS, env=environment, check=False,
        )  # fmt: skip
        traffic = double.traffic() if "--ends" in options and playing[0].chances else None
    if ran.returncode:
        raise SystemExit(f"{name} failed with status {ran.returncode}")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures, traffic


def break_down(double: WireDouble, playing: list[Script], seconds: float) -> None:
    """Some time after the first request: answer all with 500, then as before."""
    pause = threading.Event()
    while not double.requests():
        pause.wait(BIN_SECONDS)
    pause.wait(BEFORE_OUTAGE_SECONDS)
    double.play_scripts(*(replace(each, chances=(DOWN,)) for each in playing))
    pause.wait(seconds)
    double.play_scripts(*playing)


def label(name: str) -> str:
    """As it is shown, with the version of a peer."""
    return f"{name} {version_of(name)}" if name in PINS else name


# -- what a session costs


def compare(names: list[str], options: argparse.Namespace) -> None:
    """One table, a row as soon as it is known."""
    tick = 1 / options.events_per_second if options.events_per_second else TICK_SECONDS
    print(f"{'':>24} {'at once':>8} {'CPU ms':>8} {'x bare':>7} {'x plain':>8} {'per s':>7} {'RSS MB':>7}")
    rows = []
    for concurrency in options.concurrency:
        seen: dict[str, Figures] = {}
        for name in names:
            # A peer that takes 20 times the CPU shall not make the run take 20 times as long.
            count = max(options.sessions // 10 if name in PINS else options.sessions, concurrency)
            told = ("--sessions", str(count), "--concurrency", str(concurrency))
            seen[name] = figures = run(name, scripts(tick), *told)[0]
            bare, plain = (
                figures["cpu_ms"] / seen[base]["cpu_ms"]
                for base in ("bare", "callboard" if "callboard" in seen else "bare")
            )
            print(
                f"{label(name):>24} {concurrency:>8} {figures['cpu_ms']:>8.2f} {bare:>7.2f} {plain:>8.2f}"
                f" {figures['per_second']:>7.0f} {figures['rss_mb']:>7.0f}",
                flush=True,
            )
            rows.append({"name": label(name), "concurrency": concurrency, "x_bare": bare, **figures})
    if options.save:
        SAVED.mkdir(exist_ok=True)
        (SAVED / "sessions.json").write_text(json.dumps(rows, indent=1) + "\n")
        draw_cpu(rows, SAVED / "sessions.svg")
        write_tables()


# -- many slow sessions at once


def paced(sessions: int, events_per_second: float) -> None:
    """All at once, one each."""
    told = ("--ends", "--sessions", str(sessions), "--concurrency", str(sessions))
    playing = scripts(1 / events_per_second)
    figures, _ = run("callboard", playing, *told)
    ends = Counter(figures["ends"])
    print(
        f"{sessions} sessions at once, {events_per_second:g} events a second each:"
        f" {ends['right']} right, {sessions - ends['right']} not;"
        f" RSS {figures['rss_mb']:.0f} MB; the longest took {figures['longest_s']:.0f} s"
    )
    for error, count in figures["errors"].items():
        print(f"{count:>8} x {error}")


# -- with faults


def with_faults(names: list[str], options: argparse.Namespace) -> None:
    """How sessions end, and whether retries come in waves: how many come in the fullest 100 ms."""
    print(
        f"{'':>24} {'sessions':>8} {'right':>6} {'error':>6} {'wrong':>6} {'hung':>5}"
        f" {'longest s':>10} {'requests':>9} {'retries':>8} {'most/100 ms':>11}"
    )
    rows = []
    told = ("--ends", "--deadline", str(DEADLINE_SECONDS), "--idle", str(IDLE_SECONDS))
    sessions, concurrency = options.fault_sessions, min(options.fault_sessions, max(options.concurrency))
    for name in names:
        counts = ("--sessions", str(sessions), "--concurrency", str(concurrency))
        playing = scripts(TICK_SECONDS, FAULTS, options.seed)
        figures, traffic = run(name, playing, *told, *counts, outage_seconds=options.outage)
        assert traffic is not None
        bins = retries_per_bin(traffic)
        ends = Counter(figures["ends"])
        print(
            f"{label(name):>24} {sessions:>8} {ends['right']:>6} {ends['error']:>6} {ends['wrong']:>6}"
            f" {ends['hung']:>5} {figures['longest_s']:>10.1f} {len(traffic.requests):>9}"
            f" {sum(bins):>8} {max(bins, default=0):>11}",
            flush=True,
        )
        for error, count in figures["errors"].items():
            print(f"{'':>24} {count:>8} x {error}")
        rows.append({"name": label(name), "sessions": sessions, "bins": bins, **figures})
    if options.save:
        SAVED.mkdir(exist_ok=True)
        (SAVED / "sessions_faults.json").write_text(json.dumps(rows) + "\n")
        draw_retries(rows, SAVED / "sessions_faults.svg")
        write_tables()


def retries_per_bin(traffic: Traffic) -> list[int]:
    """In each 100 ms from the first request on: those whose messages had been sent before."""
    seen, again = set[str](), list[float]()
    for asked in traffic.requests:
        messages = json.dumps(asked.body["messages"])
        if messages in seen:
            again.append(asked.at)
        seen.add(messages)
    counts = Counter(int((at - traffic.requests[0].at) / BIN_SECONDS) for at in again)
    return [counts[number] for number in range(max(counts, default=-1) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2000, help="of each contender; of a peer a tenth")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--peers", nargs="*", choices=list(PINS), help="all of them, where none is named")
    parser.add_argument("--streaming", action="store_true", help="also with a reader of all events")
    parser.add_argument("--output", action="store_true", help="also with structured output")
    parser.add_argument("--journal", action="store_true", help="also with a journal in a file")
    parser.add_argument("--spans", action="store_true", help="also with OpenTelemetry spans")
    parser.add_argument("--events-per-second", type=float, help="of each stream, in place of 250")
    parser.add_argument("--paced", type=int, metavar="SESSIONS", help="so many at once, at one event a second")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--outage", type=float, default=0.0, metavar="SECONDS", help="so long, every answer is a 500")
    parser.add_argument("--fault-sessions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--save", action="store_true", help="keep the figures and draw the chart for the docs")
    options = parser.parse_args()
    peers = [] if options.peers is None else options.peers or list(PINS)
    ways = [f"callboard {way}" for way in ("streaming", "output", "spans", "journal") if getattr(options, way)]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection a session, here for the server
    if options.paced:
        paced(options.paced, options.events_per_second or 1.0)
    elif options.faults:
        with_faults(["callboard", "bare", *peers], options)
    else:
        compare(["bare", "callboard", *ways, *peers], options)


if __name__ == "__main__":
    main()
