"""A runtime lives on its host's event loop without holding it: no file, no SQL, no lock is waited for there."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

from callboard.actors.host_process import check_for_asyncio
from callboard.actors.runtime import Runtime

TESTS = Path(__file__).resolve().parents[1]


def members_on_the_loop() -> set[str]:
    """The coroutine functions of Runtime, and what else has to be called where an event loop runs."""
    functions = {name: value for name, value in inspect.getmembers(Runtime) if inspect.isfunction(value)}
    return {
        name
        for name, value in functions.items()
        if inspect.iscoroutinefunction(value)
        or inspect.isasyncgenfunction(value)
        or check_for_asyncio.__name__ in inspect.unwrap(value).__code__.co_names
    }


def test_no_member_of_a_runtime_waits_for_a_file_a_database_or_a_lock_on_its_callers_loop(tmp_path: Path) -> None:
    """In a process of its own: what a thread does is seen by hooks that cannot be taken out again. A new member is
    awaited in support/host_loop.py."""
    program = "import sys; sys.path.insert(0, sys.argv.pop()); from support import host_loop; host_loop.run()"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(TESTS)], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(ran.stdout)
    assert set(found["members"]) == members_on_the_loop()
    assert found["offences"] == []


def test_what_a_thread_waits_for_is_seen() -> None:
    """The instrument itself: each kind of waiting, and none where there is none."""
    program = "import sys; sys.path.insert(0, sys.argv.pop()); from support import host_loop; host_loop.run_faults()"
    ran = subprocess.run([sys.executable, "-c", program, str(TESTS)], check=True, stdout=subprocess.PIPE, text=True)
    assert json.loads(ran.stdout) == {
        "nothing": [],
        "file": ["BufferedReader.read", "io.open", "open", "posix.stat"],
        "database": ["SQL: Connection.execute"],
        "lock": ["a lock that another thread holds"],
        "slow lock": ["a lock that is held for posix.stat"],
        "answer": ["a lock that is not free"],
    }
