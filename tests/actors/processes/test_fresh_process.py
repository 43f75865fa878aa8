"""What one call changes in its process never reaches the next: each way a call can change it, and how the next looks.

A call of the default kind has a process of its own. With `reuse=True` some of it is put back, the rest is not.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import faulthandler
import gc
import json
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.actors.workers.process import ProcessOptions
from callboard.protocol.events import ToolCallCompleted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

VARIABLE = contextvars.ContextVar("VARIABLE", default="untouched")
KEPT: list[str] = []


def patch_a_module() -> None:
    json.dumps = lambda *_, **__: "patched"  # type: ignore[assignment]


def change_time_zone() -> None:
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def own_event_loop() -> None:
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())


#: What a call does, and what another call sees of it.
WAYS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "context variable": (lambda: VARIABLE.set("changed"), VARIABLE.get),
    "module variable": (lambda: KEPT.append("x"), lambda: len(KEPT)),
    "patched module": (patch_a_module, lambda: json.dumps([])),
    "patched builtins": (lambda: setattr(__builtins_module, "print", None), lambda: str(print)),
    "loaded modules": (lambda: sys.modules.pop("decimal"), lambda: "decimal" in sys.modules),
    "rlimits": (limit_descriptors, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    "signal disposition": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: str(signal.getsignal(signal.SIGUSR1)),
    ),
    "SIGINT handler": (
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        lambda: str(signal.getsignal(signal.SIGINT)),
    ),
    "blocked signals": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
        lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    ),
    "alarm": (lambda: signal.alarm(60), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
    "virtual timer": (
        lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 60),
        lambda: signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0,
    ),
    "time zone": (change_time_zone, lambda: time.tzname),
    "umask": (lambda: os.umask(0o027), lambda: os.umask(0o022)),
    "working directory": (lambda: os.chdir("/proc"), os.getcwd),
    "environment": (lambda: os.environ.update(LEFT="over"), lambda: os.environ.get("LEFT")),
    "random state": (lambda: random.seed(7), lambda: random.random() == 0.32383276483316237),
    "socket default timeout": (lambda: socket.setdefaulttimeout(0.5), socket.getdefaulttimeout),
    "user id": (become_nobody, os.getuid),
    "nice value": (lambda: os.nice(5), lambda: os.nice(0)),
    "processors": (
        lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        lambda: len(os.sched_getaffinity(0)),
    ),
    "faulthandler timer": (lambda: faulthandler.dump_traceback_later(3600), lambda: len(os.listdir("/proc/self/task"))),
    "recursion limit": (lambda: sys.setrecursionlimit(400), sys.getrecursionlimit),
    "sys.path": (lambda: sys.path.insert(0, "/nowhere"), lambda: "/nowhere" in sys.path),
    "trace function": (lambda: sys.settrace(lambda *_: None), lambda: str(sys.gettrace())),
    "garbage collector": (gc.disable, gc.isenabled),
    "warning filters": (lambda: warnings.simplefilter("error"), lambda: len(warnings.filters)),
    "logging": (lambda: logging.getLogger().setLevel(1), lambda: logging.getLogger().level),
    "decimal context": (lambda: setattr(decimal.getcontext(), "prec", 3), lambda: decimal.getcontext().prec),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "temporary folder": (lambda: setattr(tempfile, "tempdir", "/nowhere"), tempfile.gettempdir),
    "event loop": (
        own_event_loop,
        lambda: str(asyncio.get_event_loop_policy()).split(" ")[0] + str(asyncio._get_running_loop()),
    ),
    "open descriptors": (lambda: os.dup(0), lambda: len(os.listdir("/proc/self/fd"))),
    "interval of switches": (lambda: sys.setswitchinterval(0.5), sys.getswitchinterval),
}
__builtins_module = sys.modules["builtins"]
NEEDS_ROOT = {"user id"}


@tool
def change(way: str) -> None:
    WAYS[way][0]()


@tool
def look(way: str) -> str:
    return repr(WAYS[way][1]())


@tool
def change_and_look(way: str) -> str:
    WAYS[way][0]()
    return repr(WAYS[way][1]())


@pytest.fixture(scope="module", params=[True, False], ids=["namespaces", "plain"])
def stage(request: pytest.FixtureRequest) -> Iterator[ToolStage]:
    """One child at a time: the next call would get the same one, if there were a same one."""
    with ToolStage(ProcessOptions(max_children=1, namespaces=request.param)) as stage:
        yield stage


def told(stage: ToolStage, what: object, way: str) -> str:
    event = stage.start(what, json.dumps({"way": way}), 30).wait()  # type: ignore[arg-type]
    assert isinstance(event, ToolCallCompleted), event
    return event.content


@pytest.mark.parametrize("way", WAYS)
def test_what_a_call_changes_does_not_reach_the_next(stage: ToolStage, way: str) -> None:
    if way in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    before = told(stage, look, way)
    if way not in ("event loop", "locale"):  # these are not seen in this way
        assert told(stage, change_and_look, way) != before, "the change can be seen"
    told(stage, change, way)
    assert told(stage, look, way) == before


@tool
def rolls() -> list[float]:
    return [random.random(), float(os.urandom(1)[0])]


def test_no_two_calls_have_the_same_random_numbers(stage: ToolStage) -> None:
    found = {event.content for event in (stage.call(rolls) for _ in range(5)) if isinstance(event, ToolCallCompleted)}
    assert len(found) == 5


def test_no_two_calls_have_the_same_random_numbers_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "rolls_numpy.py").write_text(
        "import numpy\nfrom callboard.actors.tools import tool\n"
        "@tool\ndef roll() -> float:\n    return float(numpy.random.random())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from rolls_numpy import roll  # type: ignore[import-not-found]  # noqa: PLC0415 - it has just been written

    with ToolStage() as stage:
        events = [stage.start(roll, "{}", 30).wait() for _ in range(4)]
    assert len({event.content for event in events if isinstance(event, ToolCallCompleted)}) == 4


@tool
def leave_a_thread_that_acts(path: str) -> None:
    def act() -> None:
        while True:
            with open(path, "ab", 0) as file:
                file.write(b".")
            time.sleep(0.001)

    threading.Thread(target=act, daemon=True).start()


def test_a_thread_that_a_call_has_left_does_nothing_once_the_result_is_told(stage: ToolStage, tmp_path: Path) -> None:
    log = tmp_path / "log"
    event = stage.call(leave_a_thread_that_acts, path=str(log))
    assert isinstance(event, ToolCallCompleted)
    size = log.stat().st_size if log.exists() else 0
    assert isinstance(stage.call(rolls), ToolCallCompleted)
    assert (log.stat().st_size if log.exists() else 0) == size
