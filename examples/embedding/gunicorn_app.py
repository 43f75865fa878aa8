"""gunicorn, which forks its workers: a runtime for each worker, started after the fork.

    pip install gunicorn
    PYTHONPATH=examples/embedding gunicorn --config python:gunicorn_app gunicorn_app:app

The configuration and a WSGI app in one file. Threads are not forked, so a runtime that was started before the fork (at
the top of a module under --preload) is refused in the worker; one that was only made there can be started after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from weather import SETTINGS, weather

from callboard import CallboardError, Runtime

# -- what gunicorn reads: https://docs.gunicorn.org, settings

bind = "127.0.0.1:8000"
workers = 2
threads = 8  # requests that wait for an answer at the same time, in each worker

runtime = Runtime(SETTINGS, tools=[weather])


def post_worker_init(_worker: object) -> None:
    """In the worker, after the fork."""
    runtime.start()


def worker_exit(_server: object, _worker: object) -> None:
    """In the worker, before it ends."""
    runtime.stop()


# -- the app


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answers `?question=`."""
    question = parse_qs(environ["QUERY_STRING"]).get("question", [""])[0]
    try:
        status, text = "200 OK", runtime.ask_sync(question).text
    except CallboardError as error:
        status, text = "502 Bad Gateway", str(error)
    start_response(status, [("content-type", "text/plain; charset=utf-8")])
    return [text.encode()]
