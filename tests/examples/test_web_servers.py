"""callboard in web servers: FastAPI, gunicorn. Real servers, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from support.host_programs import EXAMPLES, Program, Stage, python, wait_until
from support.shared_double import stall

from callboard.actors.testing.wire_double import Fault, FaultKind, Turn

QUESTION = "question=What+is+the+weather+in+Oslo%3F"


@contextlib.contextmanager
def uvicorn(stage: Stage, app: str, *options: str) -> Iterator[tuple[Program, str]]:
    """The server and its address."""
    command = python("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", *options, app)
    with stage.started(*command) as program:
        yield program, program.wait_for(r"running on (http://\S+)")[1]


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Of a stream of server-sent events: names and data."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_fastapi_streams_an_answer(stage: Stage) -> None:
    with uvicorn(stage, "fastapi_app:app") as (program, url):
        with httpx.stream("GET", f"{url}/stream?{QUESTION}", timeout=30) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            seen = list(events(response))
        assert seen[0] == ("call", "weather")
        assert "".join(data for name, data in seen if name == "text") == "It rains in Oslo."
        assert seen[-1] == ("done", {"cost": None})
        assert httpx.get(f"{url}/ask?{QUESTION}", timeout=30).json() == {"text": "It rains in Oslo."}
        ends_well(program)


def ends_well(program: Program) -> None:
    """It is asked to end and does, with its runtime; uvicorn then sends itself the signal again."""
    assert program.end(signal.SIGTERM) == -signal.SIGTERM
    assert "Application shutdown complete" in program.said()
    assert "Traceback" not in program.said()
    assert "Warning" not in program.said()


def test_fastapi_a_client_that_leaves_cancels_the_stream_of_the_model(stage: Stage) -> None:
    stage.play(stall("It rains "))
    with uvicorn(stage, "fastapi_app:app") as (program, url):
        with httpx.stream("GET", f"{url}/stream?{QUESTION}", timeout=30) as response:
            seen = events(response)  # kept: httpx closes a response whose iterator is dropped
            assert next(seen) == ("text", "It rains ")
            assert not stage.double.traffic().abandoned
        stage.wait_until_model_left()
        ends_well(program)


def test_fastapi_a_client_that_leaves_ends_the_running_tool(stage: Stage) -> None:
    stage.the_tool_hangs()
    with uvicorn(stage, "fastapi_app:app") as (program, url):
        with httpx.stream("GET", f"{url}/stream?{QUESTION}", timeout=30) as response:
            seen = events(response)  # kept: httpx closes a response whose iterator is dropped
            assert next(seen) == ("call", "weather")
            stage.weather.wait_until_asked()
        stage.weather.wait_until_left()
        ends_well(program)


def test_fastapi_says_what_went_wrong(stage: Stage) -> None:
    stage.play(Turn(fault=Fault(FaultKind.STATUS, status=401, message="no such key")))
    with uvicorn(stage, "fastapi_app:app") as (program, url):
        with httpx.stream("GET", f"{url}/stream?{QUESTION}", timeout=30) as response:
            [(name, data)] = events(response)
        assert name == "error"
        assert "no such key" in data
        answer = httpx.get(f"{url}/ask?{QUESTION}", timeout=30)
        assert (answer.status_code, answer.json()) == (502, {"error": data})
        assert httpx.get(f"{url}/ask?question=", timeout=30).json()["error"].startswith("the question is empty")
        ends_well(program)


@contextlib.contextmanager
def gunicorn(stage: Stage, app: str, *options: str) -> Iterator[tuple[Program, str]]:
    """The server with one worker, and its address."""
    command = python("-m", "gunicorn", *options, "--bind", "127.0.0.1:0", "--workers", "1", app)
    with stage.started(*command) as program:
        url = program.wait_for(r"Listening at: (http://\S+)")[1]
        program.wait_for("Booting worker")
        yield program, url


def test_gunicorn_has_a_runtime_in_each_worker(stage: Stage) -> None:
    stage.variables["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), stage.environment()["PYTHONPATH"]])
    with gunicorn(stage, "gunicorn_app:app", "--config", "python:gunicorn_app") as (program, url):
        assert httpx.get(f"{url}/?{QUESTION}", timeout=30).text == "It rains in Oslo."
        program.process.send_signal(signal.SIGHUP)  # another worker
        wait_until(lambda: program.said().count("Booting worker") == 2, "a new worker")
        wait_until(lambda: "Worker exiting" in program.said(), "the end of the old worker")
        assert httpx.get(f"{url}/?{QUESTION}", timeout=30).text == "It rains in Oslo."
        assert program.end(signal.SIGTERM) == 0
    assert "Traceback" not in program.said()
    assert "Warning" not in program.said()


@pytest.mark.parametrize("preload", [False, True])
def test_gunicorn_a_runtime_started_before_the_fork_says_what_to_do(stage: Stage, preload: bool) -> None:
    """Under --preload; without it, a runtime started at the top of a module is one of the worker's own."""
    (stage.folder / "early.py").write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import gunicorn_app\n"
        "from gunicorn_app import app\n"
        "gunicorn_app.runtime.start()\n"
    )
    with gunicorn(stage, "early:app", *["--preload"] * preload) as (program, url):
        answer = httpx.get(f"{url}/?{QUESTION}", timeout=30)
        if preload:
            assert answer.status_code == 502
            assert "started before its process was forked; make a new one after the fork" in answer.text
        else:
            assert answer.text == "It rains in Oslo."
        assert program.end(signal.SIGTERM) == 0
    assert "Traceback" not in program.said()
