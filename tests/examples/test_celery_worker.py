"""callboard in a Celery worker: a real one with the prefork pool; its broker and its results are folders."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator

import pytest
from support.host_programs import EXAMPLES, SAYS_IT_RAINS, Program, Stage, python, wait_until

from callboard.actors.testing.wire_double import Fault, FaultKind, Turn

#: Each test starts several programs, on a machine that may be busy with other tests.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(150)]

#: The example's app, with a broker that needs no server. Its files, and those of results, appear whole: kombu and
#: celery write them where they are read, so that one that is read too soon is lost.
WORKER = """
import os, sys, time, uuid
from celery.backends.filesystem import FilesystemBackend
from kombu.transport import filesystem
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps

def written(path, data):
    with open(path + ".part", "wb") as part:
        part.write(data)
    os.rename(path + ".part", path)

def put(self, queue, payload, **_):
    name = f"{{round(time.monotonic() * 1000)}}_{{uuid.uuid4()}}.{{queue}}.msg"
    written(os.path.join(self.data_folder_out, name), str_to_bytes(dumps(payload)))

filesystem.Channel._put = put
FilesystemBackend.set = lambda self, key, value: written(self._filename(key).decode(), str_to_bytes(value))

sys.path.insert(0, {examples!r})
from celery_app import app, ask
app.conf.update(broker_transport_options={transport!r}, worker_hijack_root_logger=False)
app.conf.task_annotations = {{"celery_app.ask": {{"retry_backoff": False, "default_retry_delay": 0}}}}
"""
#: Sends tasks and prints how each ended, as a program of its own would.
ASKS = """
import json
from worker import ask
results = [ask.apply_async([question], soft_time_limit={limit}) for question in {questions!r}]
print(json.dumps([repr(result.get(timeout=30, propagate=False)) for result in results]))
"""
QUESTION = "What is the weather in Oslo?"


@contextlib.contextmanager
def worker(stage: Stage) -> Iterator[Program]:
    """A worker with two processes."""
    broker, results = stage.folder / "broker", stage.folder / "results"
    for folder in (broker, results):
        folder.mkdir()
    stage.variables |= {"BROKER_URL": "filesystem://", "RESULT_URL": f"file://{results}"}
    transport = {
        "data_folder_in": str(broker),
        "data_folder_out": str(broker),
        "control_folder": str(stage.folder / "control"),
        "polling_interval": 0.05,
    }
    (stage.folder / "worker.py").write_text(WORKER.format(examples=str(EXAMPLES), transport=transport))
    options = (
        "--concurrency",
        "2",
        "--loglevel",
        "INFO",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    )
    with stage.started(*python("-m", "celery", "--app", "worker", "worker", *options)) as program:
        program.wait_for(r"ready\.")
        yield program


def answers(stage: Stage, *questions: str, limit: float = 30) -> list[str]:
    """What the tasks gave."""
    (stage.folder / "asks.py").write_text(ASKS.format(questions=list(questions), limit=limit))
    ran = stage.run(*python("asks.py"))
    assert ran.returncode == 0, ran.stdout
    said: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return said


def ends_well(program: Program) -> None:
    """A warm shutdown, with the runtimes of the pool's processes."""
    assert program.end(signal.SIGTERM) == 0
    assert "Traceback" not in program.said()
    assert "ResourceWarning" not in program.said()


def test_each_process_of_the_pool_answers(stage: Stage) -> None:
    with worker(stage) as program:
        assert answers(stage, *[QUESTION] * 4) == ["'It rains in Oslo.'"] * 4
        ends_well(program)


def test_a_task_over_its_soft_time_limit_cancels_its_request_and_the_process_goes_on(stage: Stage) -> None:
    stage.the_tool_hangs()
    with worker(stage) as program:
        [ended] = answers(stage, QUESTION, limit=8)  # the tool has been asked before, on a busy machine too
        assert "SoftTimeLimitExceeded" in ended
        stage.weather.wait_until_left()
        stage.play(SAYS_IT_RAINS)
        assert answers(stage, *[QUESTION] * 4) == ["'It rains in Oslo.'"] * 4
        program.end(signal.SIGTERM)


def test_a_task_is_tried_again_when_the_model_gave_no_answer(stage: Stage) -> None:
    refused = Turn(fault=Fault(FaultKind.STATUS, status=401, message="no such key"))
    stage.double.play([refused, SAYS_IT_RAINS])
    with worker(stage) as program:
        assert answers(stage, QUESTION) == ["'It rains in Oslo.'"]
        ends_well(program)


def test_a_worker_that_is_killed_takes_the_tools_with_it(stage: Stage) -> None:
    stage.the_tool_hangs()
    with worker(stage) as program:
        (stage.folder / "asks.py").write_text(f"from worker import ask\nask.delay({QUESTION!r})\n")
        assert stage.run(*python("asks.py")).returncode == 0
        stage.weather.wait_until_asked()
        program.end(signal.SIGKILL)
        wait_until(lambda: stage.weather.left == 1, "an end of the tool")
