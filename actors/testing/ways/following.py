"""What one call changes in its process, and how the next one would see it. One tool does both, called twice."""

from __future__ import annotations

import asyncio
import builtins
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
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from callboard.actors.testing.ways.case import OK, Case, Group, Level
from callboard.actors.testing.ways.escape import is_root

_variable: contextvars.ContextVar[str] = contextvars.ContextVar("callboard_chaos", default="fresh")
_module_state: dict[str, int] = {}


class Change(Struct, frozen=True):
    """`do` in one call; `see` in the next, which must be what it was before."""

    name: str
    what: str
    do: Callable[[], object]
    see: Callable[[], object]
    why_not: Callable[[], str] | None = None


def _ignore(*_: object) -> None:
    return None


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})


def _set_timezone() -> None:
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def _limit_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(99, hard), hard))


def _limit_size() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))


def _see_alarm() -> bool:
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _see_umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def _patch_json() -> None:
    json.dumps = _ignore  # type: ignore[assignment]


def _patch_builtins() -> None:
    builtins.print = _ignore  # type: ignore[assignment]


def _patch_class() -> None:
    logging.Logger.callboard_chaos = 1  # type: ignore[attr-defined]


def _add_module() -> None:
    sys.modules["callboard_chaos_module"] = sys


def _open_file() -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 77)


def _see_file() -> bool:
    try:
        os.fstat(77)
    except OSError:
        return False
    return True


def _start_thread() -> None:
    threading.Thread(target=time.sleep, args=(20,), name="callboard-chaos", daemon=True).start()


def _see_thread() -> bool:
    return any(thread.name == "callboard-chaos" for thread in threading.enumerate())


def _start_process() -> None:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)


def _see_process() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) is not None
    except ChildProcessError:
        return False


def _round() -> None:
    decimal.getcontext().prec = 3


def _warn_nothing() -> None:
    warnings.simplefilter("ignore", ResourceWarning)


def _log_elsewhere() -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger().addHandler(logging.NullHandler())


def _set_hook() -> None:
    sys.excepthook = _ignore


def _set_policy() -> None:
    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    asyncio.set_event_loop_policy(Policy())


def _trace() -> None:
    sys.settrace(_ignore)


def _use_one_cpu() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _become_nobody() -> None:
    os.setresuid(65_534, 65_534, 0)


def _keep_temporary_elsewhere() -> None:
    tempfile.tempdir = "/var/tmp"


def _seed() -> None:
    random.seed(1)


def _see_seed() -> bool:
    """Does it go on from that seed?"""
    return random.getstate() == random.Random(1).getstate()


def _time_out_sockets() -> None:
    socket.setdefaulttimeout(0.25)


def _dump_later() -> None:
    faulthandler.dump_traceback_later(0.3, exit=True)


def _wait_for_dump() -> bool:
    """A timer of the call before would end this one."""
    time.sleep(0.4)
    return True


CHANGES: Final = (
    Change("context-variable", "a context variable", lambda: _variable.set("changed"), _variable.get),
    Change("module-global", "a global of its module", lambda: _module_state.update(x=1), lambda: dict(_module_state)),
    Change("rlimit-files", "the limit of open files", _limit_files, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    Change("rlimit-size", "the limit of a file's size", _limit_size, lambda: resource.getrlimit(resource.RLIMIT_FSIZE)),
    Change(
        "signal-handler",
        "the handler of a signal",
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: str(signal.getsignal(signal.SIGUSR1)),
    ),
    Change(
        "sigint",
        "the handler of SIGINT",
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        lambda: str(signal.getsignal(signal.SIGINT)),
    ),
    Change(
        "sigchld",
        "SIGCHLD, which it ignores",
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: str(signal.getsignal(signal.SIGCHLD)),
    ),
    Change(
        "signal-mask",
        "the signals that are blocked",
        _block,
        lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    ),
    Change("timezone", "the time zone", _set_timezone, lambda: time.tzname),
    Change("umask", "the umask", lambda: os.umask(0o777), _see_umask),
    Change("folder", "the working directory", lambda: os.chdir("/"), os.getcwd),
    Change(
        "environment",
        "the environment",
        lambda: os.environ.update(CALLBOARD_CHAOS_LEFT="1"),
        lambda: os.environ.get("CALLBOARD_CHAOS_LEFT"),
    ),
    Change("putenv", "PATH", lambda: os.environ.update(PATH="/nowhere"), lambda: os.environ.get("PATH")),
    Change("random", "the seed of `random`", _seed, _see_seed),
    Change("socket-timeout", "the default timeout of sockets", _time_out_sockets, socket.getdefaulttimeout),
    Change(
        "patched-module", "a function of a module (json.dumps)", _patch_json, lambda: json.dumps.__name__ == "_ignore"
    ),
    Change("patched-builtins", "a builtin (print)", _patch_builtins, lambda: print is _ignore),
    Change(
        "patched-class", "an attribute of a class", _patch_class, lambda: hasattr(logging.Logger, "callboard_chaos")
    ),
    Change("sys.modules", "sys.modules", _add_module, lambda: "callboard_chaos_module" in sys.modules),
    Change("sys.path", "sys.path", lambda: sys.path.insert(0, "/nowhere"), lambda: sys.path[0] == "/nowhere"),
    Change("recursion-limit", "the recursion limit", lambda: sys.setrecursionlimit(5_000), sys.getrecursionlimit),
    Change("stdout", "sys.stdout", lambda: setattr(sys, "stdout", sys.stderr), lambda: sys.stdout is sys.stderr),
    Change("descriptor", "an open descriptor", _open_file, _see_file),
    Change("thread", "a thread", _start_thread, _see_thread),
    Change("process", "a process", _start_process, _see_process),
    Change("alarm", "an alarm that is due", lambda: signal.alarm(20), _see_alarm),
    Change("faulthandler", "a timer of faulthandler that ends the process", _dump_later, _wait_for_dump),
    Change(
        "locale",
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    Change("decimal", "the precision of decimals", _round, lambda: decimal.getcontext().prec),
    Change("warnings", "the filters of warnings", _warn_nothing, lambda: len(warnings.filters)),
    Change("logging", "the level and handlers of logging", _log_elsewhere, lambda: logging.getLogger().level),
    Change("excepthook", "sys.excepthook", _set_hook, lambda: sys.excepthook is _ignore),
    Change("gc", "the garbage collector, switched off", gc.disable, gc.isenabled),
    Change(
        "loop-policy",
        "the policy of asyncio",
        _set_policy,
        lambda: type(asyncio.get_event_loop_policy()).__name__,
    ),
    Change("trace", "a trace function", _trace, lambda: sys.gettrace() is None),
    Change("affinity", "the CPUs that it may use", _use_one_cpu, lambda: sorted(os.sched_getaffinity(0))),
    Change("nice", "its priority", lambda: os.nice(5), lambda: os.nice(0)),
    Change("tempdir", "the folder of temporary files", _keep_temporary_elsewhere, lambda: tempfile.tempdir),
    Change("thread-switch", "the switch interval", lambda: sys.setswitchinterval(0.5), sys.getswitchinterval),
    Change("uid", "the user that it is", _become_nobody, os.getuid, is_root),
)

_BY_NAME: Final = {change.name: change for change in CHANGES}


def change_or_see(change: str, see: bool) -> str:
    """The tool: in one call the change, in another what is seen of it."""
    row = _BY_NAME[change]
    if see:
        return json_text(row.see())
    row.do()
    return "done"


def json_text(value: object) -> str:
    """Without `json`, which is among what is changed."""
    return repr(value)


NEXT: Final = tuple(
    Case(
        f"{Group.NEXT}/{change.name}/{Level.PROCESS}",
        Group.NEXT,
        Level.PROCESS,
        change.what,
        (OK,),
        change,
        why_not=change.why_not,
    )
    for change in CHANGES
)
