"""Celery: questions as tasks of a worker.

    pip install celery
    celery --workdir examples/embedding --app celery_app worker

The prefork pool forks the processes that run tasks, so each of them starts a runtime of its own. A task that passes
its soft time limit is interrupted, which cancels its request. With `--pool threads` connect worker_init and
worker_shutdown.
"""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown
from weather import SETTINGS, weather

from callboard import ModelCallFailed, Runtime

app = Celery("celery_app", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_URL"))
runtime = Runtime(SETTINGS, tools=[weather])


@worker_process_init.connect
def start(**_: object) -> None:
    """In each process of the pool."""
    runtime.start()


@worker_process_shutdown.connect
def stop(**_: object) -> None:
    """Before it ends."""
    runtime.stop()


@app.task(soft_time_limit=60, autoretry_for=(ModelCallFailed,), retry_backoff=True, max_retries=2)
def ask(question: str) -> str:
    """`ask.delay("...").get()` is the answer."""
    return runtime.ask_sync(question).text
