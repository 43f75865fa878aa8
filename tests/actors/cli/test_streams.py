"""Ctrl-C, closed pipes and streams that are not a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.shared_double import shared_double, stall

from callboard.actors.testing.wire_double import Turn

MODEL = "openai-compatible/any"
INTERRUPTED, FAILED = 130, 1
Until = Callable[[Callable[[], bool]], None]


def test_ctrl_c_while_the_model_is_silent(callboard: Any, until: Until) -> None:
    with shared_double([stall("Well")]) as server:
        process = callboard.start("ask", "x", "--model", MODEL, "--base-url", server.base_url())
        assert process.stdout.read(4) == b"Well"
        ran = callboard.interrupt(process)
        until(lambda: server.traffic().abandoned == 1)
    assert ran.sentence == "interrupted"
    assert ran.status == INTERRUPTED
    until(lambda: callboard.processes() == [])


def test_ctrl_c_while_indexing_leaves_an_index_that_the_next_run_completes(callboard: Any, until: Until) -> None:
    code = "\n".join(f"def function_{number}(): return {number}" for number in range(100))
    for number in range(250):
        (callboard.workspace / f"module_{number}.py").write_text(code)
    for command in (["index"], ["ask", "weather"]):
        process = callboard.start(*command)
        until(lambda: any("refresh" in line for line in callboard.processes()))
        ran = callboard.interrupt(process)
        assert ran.sentence == "interrupted"
        assert ran.status == INTERRUPTED
        until(lambda: callboard.processes() == [])
    ran = callboard.run("index")
    assert ran.status == 0
    assert "in 251 files" in ran.out


@pytest.mark.fresh_interpreter
def test_ctrl_c_before_anything_has_happened(callboard: Any, until: Until) -> None:
    process = callboard.start("ask", "weather")
    until(lambda: any("callboard.actors.cli" in line for line in callboard.processes()))
    until(lambda: os.path.exists(f"/proc/{process.pid}/task") and "asyncio" in _mapped(process.pid))
    ran = callboard.interrupt(process)
    assert ran.status in (INTERRUPTED, 0)
    until(lambda: callboard.processes() == [])


def _mapped(pid: int) -> str:
    """Files that a process has mapped: _asyncio.so says that the interpreter is past its start."""
    with open(f"/proc/{pid}/maps") as file:
        return file.read()


def test_a_reader_that_goes_away_is_no_error_to_talk_about(callboard: Any, until: Until) -> None:
    with shared_double([Turn("line\n" * 60_000, fragment=4_000)]) as server:
        process = callboard.start("ask", "x", "--model", MODEL, "--base-url", server.base_url())
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == FAILED
    until(lambda: callboard.processes() == [])


def test_a_full_disk(callboard: Any) -> None:
    with open("/dev/full", "wb") as full:
        ran = callboard.finish(callboard.start("ask", "weather", stdout=full))
    assert "No space left on device" in ran.sentence
    assert ran.status == FAILED


def test_closed_streams(callboard: Any) -> None:
    process = callboard.start("ask", "weather", preexec_fn=lambda: (os.close(0), os.close(1), os.close(2)))
    assert callboard.finish(process).status == 0


def test_an_ascii_terminal_gets_question_marks_not_a_traceback(callboard: Any) -> None:
    callboard.environment["PYTHONIOENCODING"] = "ascii"
    with shared_double([Turn("Grüße, 世界")]) as server:
        ran = callboard.run("ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert ran.out == "Gr??e, ??\n"
    assert ran.status == 0


@pytest.mark.parametrize(("model", "cost"), [("openai-compatible/any", None), ("vllm/any", 0.0)])
def test_json_says_null_for_a_cost_that_is_not_known(callboard: Any, model: str, cost: float | None) -> None:
    with shared_double([Turn("fine")]) as server:
        ran = callboard.run("ask", "x", "--model", model, "--base-url", server.base_url(), "--json")
    assert json.loads(ran.out)["cost"] == cost


def test_on_a_terminal_remarks_are_dim_and_indexing_shows_a_bar(callboard: Any) -> None:
    for number in range(100):
        (callboard.workspace / f"module_{number}.py").write_text("def f(): pass\n" * 200)
    callboard.environment["TERM"] = "xterm"
    ours, theirs = os.openpty()
    process = callboard.start("ask", "weather", stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert process.wait(60) == 0
    os.close(ours)
    assert b"\x1b[2m> request_code_context" in shown
    assert b"indexing" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


@pytest.mark.fresh_interpreter
def test_a_question_without_a_server_loads_nothing_that_connects(tmp_path: Path) -> None:
    """httpx and aiohttp take 0.15 s to load, the adapters 0.1 s, of the 0.8 s that a warm question takes."""
    (tmp_path / "weather.py").write_text("def forecast(): pass\n")
    program = """
import sys
from callboard.actors.cli.shell import run
assert run(["ask", "where is the forecast?"]) == 0
assert not {"httpx", "aiohttp", "botocore", "google.auth", "callboard.providers.http_adapters"} & sys.modules.keys()
assert not [name for name in sys.modules if name.startswith("callboard.providers.") and name.endswith("_api")]
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
