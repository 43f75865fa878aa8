"""Make the journal of the present format that tests/actors/journal/formats keeps, as SQL.

    python tests/support/journal_of_format.py > tests/actors/journal/formats/1.sql

Once for each format, by the last commit before it is released; before that again after each change of it.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.journal_writes import (
    ANSWER,
    CONVERSATION,
    an_effect,
    begin,
    finished,
    message,
    request_id,
    tool_offer,
)

from callboard.actors.journal.journal_records import Change, Needs, NewMessage, RequestEnd, Write
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import ToolCall
from callboard.protocol.ids import CallId, MessageId, ToolName

TOOLS = (tool_offer("one"), tool_offer("two"))
HISTORY = (message("hello"), message("hi", answer=True))
EARLIER = (
    NewMessage(MessageId("m1"), None, HISTORY[0]),
    NewMessage(MessageId("m2"), MessageId("m1"), HISTORY[1]),
)
NEEDS = Needs({"own": "digest"}, "Title", "o200k", True, ToolCall(CallId("c"), ToolName("t"), "{}"))
#: One of each kind of record.
CHANGES: tuple[Change, ...] = (
    begin("first", tools=TOOLS),
    finished("first", 2, messages=EARLIER),
    begin("second", at=2.0, history=HISTORY, parent=MessageId("m2"), tools=TOOLS, needs=NEEDS, metadata={"a": "b"}),
    Write(request_id("second"), 2, (ANSWER,), ("RecordStep",), None, CONVERSATION, (), Compacted(cleared=1)),
    an_effect("second"),
    begin("third", at=3.0),
    Write(request_id("third"), 2, (), ends=RequestEnd(4.0, None, failure="a tool is missing")),
)
NOW = 1_700_000_000.0


def made() -> str:
    """The journal as SQL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        for _ in range(2):  # the second time what is open is taken up
            journal = SqliteJournal(path, wall_clock=lambda: NOW)
            journal.open()
            assert not any(journal.commit(CHANGES[:-3]))
            assert journal.commit(CHANGES[-2:]) == [None, None]
            journal.take_up()
            journal.close()
        journal = SqliteJournal(path, wall_clock=lambda: NOW)
        journal.open()
        assert journal.commit(CHANGES[-3:-2]) == [None]
        journal.close()
        connection = sqlite3.connect(path)
        pragmas = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        sql = "\n".join([*pragmas, *connection.iterdump()])
        connection.close()
        return sql + "\n"


if __name__ == "__main__":
    sys.stdout.write(made())
