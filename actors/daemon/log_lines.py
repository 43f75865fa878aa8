"""The daemon's log on stderr: a line a record, as text or as JSON, with the ids of what it is about.

What looks like a key is masked, whichever way it came into a record.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

from callboard.protocol.content import json_text
from callboard.protocol.masking import ForLog, for_log

#: What every record has; all else was added where it was written, and is shown.
_OF_ANY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonRecords(logging.Formatter):
    """A JSON object a record."""

    def format(self, record: logging.LogRecord) -> ForLog:
        """With the time in UTC, and the traceback of what went wrong."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            # Masked as texts, too: in JSON a line's end before a key would be a letter, and hide where the key begins.
            "message": for_log(record.getMessage()),
            **{name: for_log(value) if isinstance(value, str) else value for name, value in _added(record).items()},
        }
        if record.exc_info:
            line["exception"] = for_log(self.formatException(record.exc_info))
        return for_log(json_text(line))


class TextRecords(logging.Formatter):
    """A line a record, for a terminal or the journal of systemd."""

    def format(self, record: logging.LogRecord) -> ForLog:
        """Control characters, such as those that move a terminal's cursor, are written out."""
        added = " ".join(f"{name}={value}" for name, value in _added(record).items())
        text = f"{record.levelname.lower()}: {record.getMessage()}{' ' if added else ''}{added}"
        # Masked before that, too: "\\r" before a key ends in a letter, and would hide where the key begins.
        shown = for_log(text)
        if shown.isprintable() and not record.exc_info:  # nearly all
            return ForLog(f"callboard: {shown}")
        seen = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return for_log(f"callboard: {seen}{trace}")


def _added(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OF_ANY_RECORD}


def log_to_stderr(log_format: str) -> None:
    """From now on: callboard's records from INFO on, those of all others (uvicorn, asyncio, tools) from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonRecords() if log_format == "json" else TextRecords())
    logging.getLogger().addHandler(handler)
    logging.getLogger("callboard").setLevel(logging.INFO)
