"""A host that is stopped for a while, alone or with its tools: no call's deadline passes in that time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TIMEOUT_SECONDS = 4.0
#: Longer than each call may take. That is the fault's own measure: nothing is waited for here.
STOPPED_SECONDS = 4.5

HOST = f"""
import asyncio, os, sys, time
from callboard import Runtime, Settings, tool
from callboard.protocol.content import UserMessage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

GATE = sys.argv[1]

def begins():
    with open(GATE + ".begun", "a") as begun:
        begun.write("x")

@tool(timeout={TIMEOUT_SECONDS})
def by_process(gate: str) -> str:
    "Waits for a file."
    begins()
    while not os.path.exists(gate):
        time.sleep(0.01)
    return "right"

@tool(timeout={TIMEOUT_SECONDS}, isolation="thread")
def by_thread(gate: str) -> str:
    "Waits for a file."
    begins()
    while not os.path.exists(gate):
        time.sleep(0.01)
    return "right"

@tool(timeout={TIMEOUT_SECONDS})
async def by_task(gate: str) -> str:
    "Waits for a file."
    begins()
    while not os.path.exists(gate):
        await asyncio.sleep(0.01)
    return "right"

@tool(timeout={TIMEOUT_SECONDS})
async def never(gate: str) -> str:
    "Never ends."
    begins()
    await asyncio.Event().wait()

def script(request):
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return ScriptedTurn(last.content)
    return ScriptedTurn(calls=(ScriptedCall(last.text, {{"gate": GATE}}),))

async def main():
    settings = Settings(model="scripted/model", script=script)
    async with Runtime(settings, tools=[by_process, by_thread, by_task, never]) as runtime:
        await runtime.call_tool("by_process", {{"gate": __file__}})  # its template is there
        os.remove(GATE + ".begun")
        names = ["by_process", "by_thread", "by_task", "by_process", "by_thread", "by_task", "never"]
        asked = [asyncio.create_task(runtime.ask(name)) for name in names]
        while not os.path.exists(GATE + ".begun") or os.path.getsize(GATE + ".begun") < len(asked):
            await asyncio.sleep(0.005)
        print("begun", flush=True)
        replies = [await each for each in asked]
        print(sum(reply.text == "right" for reply in replies), [reply.text[:200] for reply in replies], flush=True)
        print("never" in replies[-1].text and "timed_out" in replies[-1].text, flush=True)

asyncio.run(main())
"""


def family(pid: int) -> list[int]:
    """The process and all below it."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    below = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    return [pid, *(each for child in sorted(below) for each in family(child))]


@pytest.mark.parametrize("is_all", [False, True], ids=["the host alone", "with its tools"])
def test_no_call_times_out_while_its_host_is_stopped(tmp_path: Path, is_all: bool) -> None:
    program, gate = tmp_path / "host.py", tmp_path / "gate"
    program.write_text(HOST)
    with subprocess.Popen([sys.executable, program, gate], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        try:
            assert host.stdout.readline() == "begun\n"
            stopped = family(host.pid) if is_all else [host.pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            gate.touch()
            threading.Event().wait(STOPPED_SECONDS)
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)
            told = host.stdout.read().splitlines()
        finally:
            host.kill()
    assert told[0].startswith("6 "), told
    assert told[1] == "True", "a call that hangs ends by its deadline as ever"
