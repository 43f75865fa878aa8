"""How a line is said to have ended."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: In a process of its own, as in a tool: it ends all that is below it.
PROGRAM = """
import json, os, pathlib, subprocess, sys
from callboard.actors.processes import run_shell
from callboard.actors.processes.linux import kill_each

is_about_to_end = False

class Popen(subprocess.Popen):
    "It ends just after it was looked at."
    def poll(self):
        global is_about_to_end
        if is_about_to_end and self.returncode is None:
            is_about_to_end = False
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            return None
        return super().poll()

def kill(pids):
    global is_about_to_end
    is_about_to_end = True
    return kill_each(pids)

run_shell.subprocess.Popen, run_shell.kill_each = Popen, kill
line, grace_seconds = sys.argv[1:]
run_shell._Watched.end_politely.__defaults__ = (float(grace_seconds),)
run_shell._Watched.wait = lambda self, until: self._read(20) and False  # it has said something: its time is up
end = run_shell.run(line, pathlib.Path("."), {}, 20, lambda data: None)
print(json.dumps([end.timed_out, end.signal, end.exit_code]))
"""


@pytest.mark.parametrize(
    ("line", "grace", "ended"),
    [
        ("trap '' TERM; echo; while :; do sleep 0.01; done", "0.1", ["SIGKILL", None]),
        ("trap '' TERM; echo; sleep 60 & wait; sleep 60", "0.1", ["SIGKILL", None]),
        ("trap 'exit 3' TERM; echo; while :; do sleep 0.01; done", "20", ["", 3]),
        ("echo; exec sleep 60", "20", ["SIGTERM", None]),
        ("echo; sleep 60", "20", ["SIGTERM", None]),
    ],
)
def test_a_shell_that_ends_just_after_it_was_looked_at_keeps_its_status(
    line: str, grace: str, ended: list[object]
) -> None:
    said = subprocess.check_output([sys.executable, "-c", PROGRAM, line, grace], text=True, timeout=50)
    assert json.loads(said) == [True, *ended]


STOPPED = """
import pathlib, sys, time, types
from callboard.actors.processes import run_shell

class Time:
    "At one of its looks so many seconds have passed, and the command has not run in them either."
    looks, jump_at, jump_seconds = 0, 3, float(sys.argv[1])
    sleep = time.sleep
    def monotonic(self):
        self.looks += 1
        return time.monotonic() + (self.jump_seconds if self.looks > self.jump_at else 0)

run_shell.time = Time()
end = run_shell.run("sleep 0.3; exit 3", pathlib.Path("."), {}, 20, lambda data: None)
print(end.timed_out, end.exit_code)
"""


@pytest.mark.parametrize("seconds", ["0", "8", "25", "3600"])
def test_time_in_which_all_was_stopped_is_not_the_commands(seconds: str) -> None:
    assert subprocess.check_output([sys.executable, "-c", STOPPED, seconds], text=True, timeout=50) == "False 3\n"


TRACED = """
import ctypes, json, os, pathlib, sys, threading
from callboard.actors.processes import run_shell
stop = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print('stops', flush=True); os.kill(os.getpid(), 19)"
line = f"exec {sys.executable} -c {json.dumps(stop)}"
run_shell._Watched.end_politely.__defaults__ = (0.1,)
end = run_shell.run(line, pathlib.Path("."), {}, 3, lambda data: None)
print(json.dumps([end.timed_out, end.signal, end.exit_code]))
"""


def test_a_shell_that_becomes_a_program_which_is_traced_and_stops_has_not_ended() -> None:
    said = subprocess.check_output([sys.executable, "-c", TRACED], text=True, timeout=50)
    assert json.loads(said) in ([True, "SIGKILL", None], [True, "SIGTERM", None])
