"""callboard in web servers: FastAPI, gunicorn. Real servers, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.host_programs import EXAMPLES, Program, Stage, python, wait_until
from support.shared_double import stall

from callboard.actors.testing.wire_double import Fault, FaultKind, Turn

#: Each test starts several programs, on a machine that may be busy with other tests.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(150)]

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


DJANGO = ("ask", "stream", "ask_async", "stream_async")


@pytest.mark.parametrize("view", DJANGO)
def test_django_under_asgi(stage: Stage, view: str) -> None:
    with uvicorn(stage, "django_site:asgi", "--lifespan", "off") as (program, url):
        assert httpx.get(f"{url}/{view}?{QUESTION}", timeout=30).text == "It rains in Oslo."
        assert program.end(signal.SIGTERM) == -signal.SIGTERM
    assert "Traceback" not in program.said()


@pytest.mark.parametrize("preload", [False, True])
def test_django_under_gunicorn(stage: Stage, preload: bool) -> None:
    """Also with apps that are loaded before the fork: a runtime that was made there is started after it."""
    options = ["--chdir", str(EXAMPLES), "--threads", "4", *["--preload"] * preload]
    with gunicorn(stage, "django_site:wsgi", *options) as (program, url):
        with ThreadPoolExecutor(4) as pool:  # the first requests of the process, at once
            views = ["ask", "stream"] * 2
            answers = list(pool.map(lambda view: httpx.get(f"{url}/{view}?{QUESTION}", timeout=30).text, views))
        assert answers == ["It rains in Oslo."] * 4
        assert program.end(signal.SIGTERM) == 0
    assert "Traceback" not in program.said()
    assert "ResourceWarning" not in program.said()


def test_django_commands_start_no_runtime(stage: Stage) -> None:
    ran = stage.run(*python(str(EXAMPLES / "django_site.py"), "check"))
    assert (ran.returncode, ran.stdout) == (0, "System check identified no issues (0 silenced).\n")


@pytest.mark.parametrize("view", ["ask_async", "stream_async"])
def test_django_a_client_that_leaves_cancels_the_request(stage: Stage, view: str) -> None:
    stage.the_tool_hangs()
    with uvicorn(stage, "django_site:asgi", "--lifespan", "off") as (program, url):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"GET /{view}?{QUESTION} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            stage.weather.wait_until_asked()
        stage.weather.wait_until_left()
        program.end(signal.SIGTERM)


def test_django_a_client_that_leaves_a_sync_stream_cancels_the_request_at_the_next_piece(stage: Stage) -> None:
    endless = Turn("It rains. ", fault=Fault(FaultKind.ENDLESS), fragment=100, pause=0.02)
    stage.play(endless)
    with gunicorn(stage, "django_site:wsgi", "--chdir", str(EXAMPLES), "--threads", "2") as (program, url):
        with httpx.stream("GET", f"{url}/stream?{QUESTION}", timeout=30) as response:
            pieces = response.iter_text()
            assert "It rains." in next(pieces)
        stage.wait_until_model_left()
        assert program.end(signal.SIGTERM) == 0


def test_uvicorn_reloads_a_changed_program_with_its_runtime(stage: Stage) -> None:
    """--reload ends the process that serves and starts another, which begins with a runtime of its own."""
    for name in ("fastapi_app.py", "weather.py"):
        shutil.copy(EXAMPLES / name, stage.folder)
    command = python("-m", "uvicorn", "--reload", "--reload-dir", str(stage.folder), "--port", "0", "fastapi_app:app")
    with stage.started(*command) as program:
        url = program.wait_for(r"running on (http://\S+)")[1]
        program.wait_for("Application startup complete")
        assert httpx.get(f"{url}/ask?{QUESTION}", timeout=30).json() == {"text": "It rains in Oslo."}
        with (stage.folder / "fastapi_app.py").open("a") as file:
            file.write("# changed\n")
        wait_until(lambda: program.said().count("Application startup complete") == 2, "a new process")
        assert httpx.get(f"{url}/ask?{QUESTION}", timeout=30).json() == {"text": "It rains in Oslo."}
        program.end(signal.SIGTERM)
    assert "Traceback" not in program.said()
    assert "ResourceWarning" not in program.said()
