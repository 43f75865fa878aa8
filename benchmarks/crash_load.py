"""The load of crashes.py: what each contender is asked, and how its program speaks with the one that kills it.

It runs in a contender's own environment too, so it imports the standard library only.

A request has STEPS steps of four parallel calls, and an answer. Each call has a key, "r0007/2/once", and leaves its
effect outside of the process: a line of a file, appended and synced, or a row that its database transaction commits. A
call that was run twice has left two.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

STEPS = 2
#: The calls of a step: each a tool of this name.
KINDS = ("repeat", "once", "transaction", "blocking")
#: A fast model, and a tool that does something before and after its effect: times in which a process can be killed.
MODEL_SECONDS = 0.01
TOOL_SECONDS = 0.004
ANSWER = "All is done."
EFFECTS_FILE = "effects.log"
#: What the program of a contender writes its lines to.
REPORTS_TO = 1
#: Rows, not unique ones: two of a call shall be seen.
TABLE = "CREATE TABLE IF NOT EXISTS booked (call_key TEXT NOT NULL)"
BOOK = "INSERT INTO booked (call_key) VALUES (?)"


def request_ids(requests: int) -> list[str]:
    return [f"r{number:04}" for number in range(requests)]


def key(request_id: str, step: int, kind: str) -> str:
    """Of a call. Steps count from 1."""
    return f"{request_id}/{step}/{kind}"


def keys(request_id: str) -> list[str]:
    return [key(request_id, step, kind) for step in range(1, STEPS + 1) for kind in KINDS]


def report(**told: object) -> None:
    """One line for the program that kills this one: it is in the pipe when this returns, whatever happens then."""
    os.write(REPORTS_TO, json.dumps(told).encode() + b"\n")


def leave_effect(folder: str, call_key: str) -> None:
    """Durable, and counted outside of the process."""
    file = os.open(Path(folder) / EFFECTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{call_key} {os.getpid()}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


async def act(folder: str, call_key: str) -> str:
    """What a tool does whose effect is outside."""
    await asyncio.sleep(TOOL_SECONDS)
    leave_effect(folder, call_key)
    await asyncio.sleep(TOOL_SECONDS)
    return f"done {call_key}"


def act_in_a_thread(folder: str, call_key: str) -> str:
    """The same, for a tool that may block."""
    time.sleep(TOOL_SECONDS)
    leave_effect(folder, call_key)
    time.sleep(TOOL_SECONDS)
    return f"done {call_key}"


def effects(folder: Path, database: Path | None) -> Counter[str]:
    """How often each call has had its effect. `database`: the one with the rows, where there is one."""
    found = Counter[str]()
    file = folder / EFFECTS_FILE
    if file.exists():
        found.update(line.split()[0] for line in file.read_text().splitlines())
    if database is not None and database.exists():
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'booked'").fetchone():
                found.update(row[0] for row in connection.execute("SELECT call_key FROM booked"))
    return found
