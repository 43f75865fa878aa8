"""What a call can change in its process, and how another call sees that; a child imports this module."""

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
import time
import warnings
from collections.abc import Callable

from callboard.actors.tools import tool

VARIABLE = contextvars.ContextVar("VARIABLE", default="untouched")
KEPT: list[str] = []


def patch_a_module() -> None:
    json.dumps = lambda *_, **__: "patched"  # type: ignore[assignment]


def lower_the_priority() -> None:
    """The policy too: where the tests run with the lowest nice value, a higher one changes nothing."""
    os.nice(5)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


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
    "priority": (lower_the_priority, lambda: (os.nice(0), os.sched_getscheduler(0))),
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
