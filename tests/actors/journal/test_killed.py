"""A process that is killed with SIGKILL, and the next one with the same journal. benchmarks/ has the thousand kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.actors.journal.journal_check import verify

#: Asks where it is the first, and ends by SIGKILL at a place; the next goes on, and says what came of it.
PROGRAM = '''
import os, signal, sys
from callboard import Runtime, Settings, tool
from callboard.protocol.content import ToolMessage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

folder, place, effect = sys.argv[1:]
IS_FIRST = not os.path.exists(f"{folder}/journal.db")

def here(name):
    if IS_FIRST and place == name:
        os.kill(os.getpid(), signal.SIGKILL)

@tool(isolation="thread", effect=effect)
def pay() -> str:
    """Pay."""
    here("before the effect")
    with open(f"{folder}/effects", "a") as effects:
        effects.write("x")
    here("behind the effect")
    return "paid"

def script(request):
    read = [message.content for message in request.messages if isinstance(message, ToolMessage)]
    if not read:
        here("first model call")
        return ScriptedTurn(calls=(ScriptedCall("pay"),))
    here("second model call")
    return ScriptedTurn(read[0])

settings = Settings(model="scripted/x", journal=f"{folder}/journal.db", script=script)
with Runtime(settings, [pay]) as runtime:
    if IS_FIRST:
        runtime.ask_sync("?", request_id="r1")
    else:
        print([request.was_taken_up for request in runtime.open_requests()])
        print(runtime.result_sync("r1").text)
'''


def run(folder: Path, place: str, effect: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, str(folder), place, effect]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("place", "effect", "answer", "effects"),
    [
        ("first model call", "once", "paid", "x"),
        ("before the effect", "once", "outcome_unknown", ""),
        ("behind the effect", "once", "outcome_unknown", "x"),
        ("behind the effect", "repeat", "paid", "xx"),
        ("second model call", "once", "paid", "x"),
    ],
)
def test_the_next_process_goes_on(tmp_path: Path, place: str, effect: str, answer: str, effects: str) -> None:
    killed = run(tmp_path, place, effect)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    later = run(tmp_path, place, effect)
    assert later.returncode == 0, later.stderr
    assert later.stdout.startswith("[True]\n")
    assert answer in later.stdout
    found = tmp_path / "effects"
    assert (found.read_text() if found.exists() else "") == effects
    again = run(tmp_path, place, effect)
    assert again.stdout.splitlines()[0] == "[]", "it has ended"
    assert again.stdout.splitlines()[1:] == later.stdout.splitlines()[1:]


ASKS = """
import os, signal, sys
from callboard import Runtime, Settings
from callboard.providers.local.scripted import ScriptedTurn

settings = Settings(model="scripted/x", journal=f"{sys.argv[1]}/journal.db", script=lambda _: ScriptedTurn("done"))
with Runtime(settings) as runtime:
    if sys.argv[2:]:
        known = [runtime.result_sync(f"r{number}").text for number in range(12)]
        aside = list(runtime.journal.set_aside())
        print(known.count("done"), len(aside), runtime.metrics().count("callboard.journal.damaged"))
        print(runtime.journal_damage())
    else:
        for number in range(12):
            runtime.ask_sync("?", request_id=f"r{number}")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_bit_of_the_log_costs_no_answer_and_is_told(tmp_path: Path) -> None:
    """By verify before, and by the next start: what it set aside, a metric, what the board shows."""
    program = [sys.executable, "-c", ASKS, str(tmp_path)]
    subprocess.run(program, timeout=60, check=False)
    log = tmp_path / "journal.db-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 4] ^= 1
    log.write_bytes(data)
    (fault,) = verify(tmp_path / "journal.db").faults
    assert "its log is damaged at its frame" in fault
    told = subprocess.run([*program, "again"], capture_output=True, text=True, timeout=60, check=True).stdout
    known, damage = told.splitlines()
    assert known == "12 1 1"
    assert fault in damage
    assert next(tmp_path.glob("journal.db.damaged-*-wal")).read_bytes() == data
