"""A program that is forked of the zygote does as one in an interpreter of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.zygote import Forking

pytestmark = pytest.mark.deep

PROGRAMS = {
    "names": "import sys; print(sys.argv, sys.path, sys.orig_argv, __name__, sorted(globals()))",
    "streams": """
import sys
for each in (sys.stdin, sys.stdout, sys.stderr):
    print(each.name, each.mode, each.encoding, each.errors, each.line_buffering, each.write_through, each.fileno())
print(sys.stdin.read())
""",
    "proc": """
from pathlib import Path
print([Path(f"/proc/self/{name}").read_bytes() for name in ("cmdline", "environ")])
""",
    "place": "import os; print(os.getcwd(), os.getppid(), sorted(map(int, os.listdir('/proc/self/fd')))[:3])",
    "group": "import os; print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())",
    "environment": "import os; print(sorted(os.environ.items()), flush=True); os.system('env | sort')",
    "threads": """
import os, threading
print(threading.active_count(), threading.main_thread() is threading.current_thread())
print(threading.get_native_id() == os.getpid(), os.listdir("/proc/self/task") == [str(os.getpid())])
""",
    "signals": "from signal import *; print([getsignal(each) for each in (2, 13, 15, 17)], pthread_sigmask(0, ()))",
    "warnings": """
import warnings
warnings.warn("beware", ResourceWarning)
warnings.warn("deprecated", DeprecationWarning)
""",
    "error": "def f():\n    raise ValueError('no')\nf()",
    "status": "import sys; sys.exit(7)",
    "last word": "import sys; sys.exit('farewell')",
    "Ctrl-C": "raise KeyboardInterrupt",
    "signal": "import os; os.kill(os.getpid(), 9)",
    "abort": "import os; os.abort()",
    "end": """
import atexit, threading
class Kept:
    def __del__(self):
        print("deleted")
kept = Kept()
atexit.register(print, "at exit")
threading.Thread(target=print, args=("thread",)).start()
""",
    "large status": "import sys; print('said'); sys.exit(256 + 7)",
    "full disk": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
    "child": "import os; print(os.fork() == 0 or os.waitstatus_to_exitcode(os.wait()[1]), flush=True)",
}
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "elsewhere": {"cwd": "/", "env": {"MARK": "a mark", "PYTHONPATH": "/nowhere:."}},
    "in a session of its own": {"start_new_session": True, "env": {"LANG": "C", "PYTHONUNBUFFERED": "1"}},
    "in a group of its own": {"process_group": 0, "env": {"PYTHONWARNINGS": "always", "PYTHONPATH": ""}},
}


def outcome(command: list[str], folder: Path, env: Mapping[str, str] = os.environ, **how: Any) -> tuple[int, str, str]:
    how = {"cwd": folder, "env": env, "input": "typed\n", "capture_output": True, "text": True, "timeout": 50, **how}
    ran = subprocess.run([sys.executable, *command], **how)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_when_it_is_forked(name: str, tmp_path: Path, forking: Forking) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    (tmp_path / "module.py").write_text(PROGRAMS[name])
    commands = [["-c", PROGRAMS[name]], [str(tmp_path / "program.py")], ["-m", "module"]]

    def outcomes() -> list[object]:
        ways = [(commands[0], how) for how in WAYS.values()] + [(command, {}) for command in commands[1:]]
        return [outcome([*command, "one", "-two"], tmp_path, **how) for command, how in ways]

    forked = outcomes()
    assert forking.has_forked
    forking.is_on = False
    assert forked == outcomes()


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (["-W", "error"], {}),
        (["-I"], {}),
        ([], {"PYTHONHASHSEED": "1"}),
        ([], {"PYTHONIOENCODING": "latin-1"}),
        ([], {"LC_ALL": "de_DE.ISO-8859-1"}),
    ],
)
def test_what_says_how_to_start_gets_an_interpreter(options: list[str], environment: dict[str, str]) -> None:
    program = "import sys; print('callboard.actors.runtime' in sys.modules)"
    command = [sys.executable, *options, "-c", program]
    assert subprocess.check_output(command, env={**os.environ, **environment}, text=True) == "False\n"


def test_a_program_has_what_callboard_is_made_of() -> None:
    program = "import sys; print('callboard.actors.runtime' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"


@pytest.mark.fresh_interpreter
def test_a_marked_test_gets_interpreters() -> None:
    program = "import sys; print('callboard.actors.runtime' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_it_is_killed_as_any_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(50) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


def test_descriptors_are_passed_with_their_numbers() -> None:
    reads, writes = os.pipe()
    with open(reads, "rb") as ours:
        program = f"import os; os.write({writes}, b'hello')"
        subprocess.run([sys.executable, "-c", program], pass_fds=[writes], check=True, timeout=50)
        os.close(writes)
        assert ours.read() == b"hello"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([sys.executable, "-c", ""], cwd=tmp_path / "none", check=True)


def test_it_ends_with_the_process_that_it_serves() -> None:
    program = """
import os, subprocess, sys
from support.zygote import Forking
forking = Forking()
subprocess.run([sys.executable, "-c", ""], check=True)
print(forking._zygote._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": ":".join([str(Path(__file__).parent), *filter(None, sys.path)])}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(int(ended.stdout))
        assert select.select([pidfd], [], [], 50)[0]
        os.close(pidfd)
