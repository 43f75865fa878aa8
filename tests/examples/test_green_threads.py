"""callboard beside gevent and eventlet: it works where they leave the threads alone, and says so where they do not."""

from __future__ import annotations

import subprocess

import pytest
from support.host_programs import python

from callboard.actors.host_process import GREEN_THREADS

pytestmark = [pytest.mark.deep, pytest.mark.timeout(150), pytest.mark.fresh_interpreter]

PROGRAM = """
import time
from callboard import Runtime, Settings, UsageError, tool
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn
{patch_late}

@tool
def by_process() -> str:
    "Runs in a child."
    time.sleep(0.1)
    return "x"

@tool
async def by_task() -> str:
    "Runs on a loop."
    return "x"

@tool(isolation="thread")
def by_thread() -> str:
    "Runs on a thread."
    return "x"

calls = tuple(ScriptedCall(name) for name in ("by_process", "by_task", "by_thread"))
settings = Settings(model="scripted/model", script=[ScriptedTurn(calls=calls), "answered"])
try:
    with Runtime(settings, tools=[by_process, by_task, by_thread]) as runtime:
        reply = {ask}
        print(reply.text, *(failure.message for failure in reply.failures))
except UsageError as refused:
    print("refused:", refused)
"""
DIRECTLY = "runtime.ask_sync('x', timeout=20)"
FROM_GREENLETS = "gevent.get_hub().threadpool.apply(runtime.ask_sync, ('x',))"
LATE = ["monkey.patch_all()", "monkey.patch_all(thread=False)", "eventlet.monkey_patch()"]
HARMFUL = [
    *LATE, "monkey.patch_thread()", "monkey.patch_queue()", "eventlet.monkey_patch(thread=False)",
    "eventlet.monkey_patch(os=True)", "eventlet.monkey_patch(thread=True)",
]  # fmt: skip
HARMLESS = [
    *GREEN_THREADS.values(), "monkey.patch_socket()", "monkey.patch_select()", "monkey.patch_subprocess()",
    "monkey.patch_os()", "monkey.patch_signal()", "monkey.patch_time()",
    "eventlet.monkey_patch(socket=True, select=True)",
]  # fmt: skip


def ran(patch: str, *, late: bool = False, ask: str = DIRECTLY) -> str:
    """What the program prints last: some of these patches warn of what was imported before."""
    library = "import gevent\nfrom gevent import monkey" if patch.startswith("monkey") else "import eventlet"
    patching = f"{library}\n{patch}"
    program = PROGRAM.format(patch_late=patching if late else "", ask=ask)
    command = python("-W", "ignore", "-c", program if late else patching + program)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout.splitlines() or [done.stderr])[-1]


@pytest.mark.parametrize("patch", HARMFUL)
def test_where_the_threads_are_replaced_the_start_says_what_to_do(patch: str) -> None:
    library = "gevent" if patch.startswith("monkey") else "eventlet"
    said = ran(patch)
    assert said.startswith(f"refused: {library} has replaced the threads of this process")
    assert GREEN_THREADS[library] in said


@pytest.mark.parametrize("patch", LATE)
def test_also_where_they_are_replaced_after_the_import(patch: str) -> None:
    assert ran(patch, late=True).startswith("refused: ")


@pytest.mark.parametrize("patch", HARMLESS)
def test_what_is_advised_and_other_patches_work(patch: str) -> None:
    assert ran(patch) == "answered"


def test_greenlets_ask_on_a_thread_of_gevents_pool() -> None:
    assert ran(GREEN_THREADS["gevent"], ask=FROM_GREENLETS) == "answered"
