"""callboard in a Celery worker: a real one with the prefork pool; its broker is a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from celery import Celery
from support.host_programs import EXAMPLES, Program, Stage

QUESTION = "What is the weather in Oslo?"


@contextlib.contextmanager
def worker(stage: Stage) -> Iterator[tuple[Program, Celery]]:
    """A worker with two processes, and what sends tasks to it."""
    broker, results = stage.folder / "broker", stage.folder / "results"
    for folder in (broker, results):
        folder.mkdir()
    stage.variables |= {"BROKER_URL": "filesystem://", "RESULT_URL": f"file://{results}"}
    transport = {"data_folder_in": str(broker), "data_folder_out": str(broker), "polling_interval": 0.05}
    (stage.folder / "celeryconfig.py").write_text(f"broker_transport_options = {transport!r}\n")
    command = ("-m", "celery", "--app", "celery_app", "--workdir", str(EXAMPLES), "--config", "celeryconfig")
