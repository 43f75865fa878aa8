"""`callboard journal replay REQUEST`: the way of one request, and where this version of callboard goes another way."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from callboard.actors.cli.columns import counted
from callboard.actors.cli.terminal import print_json, print_line, printable
from callboard.actors.journal.journal_records import Recorded, RequestLog
from callboard.actors.journal.journal_store import JournalReader
from callboard.actors.journal.saved_conversations import no_such
from callboard.protocol import events
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId
from callboard.protocol.recorded import RecordedRequest, Replayed, recorded_lines, replay_log
from callboard.providers.tokenizers import counter_for


class RecordDiffers(RuntimeFailure):
    """A recorded request goes another way under this version, or a record of it is damaged."""


def replay(options: argparse.Namespace, reader: JournalReader) -> None:
    """Print each event of the request with the commands that it led to, and each difference below its event.

    Raises UsageError for a request that cannot be replayed, RecordDiffers where there is a difference.
    """
    log = _log_of(reader, RequestId(options.request))
    if options.save is not None:
        _save(log, options.save)
    replayed = list(replay_log(log, count_tokens=counter_for(log.begins.model)))
    if options.json:
        print_json(_as_json(log, replayed))
    else:
        _print(log, replayed)
    if log.damage:
        raise RecordDiffers(f"a record of request {log.request_id} is damaged: {log.damage}")
    if found := sum(len(each.differences) for each in replayed):
        places = counted(found, "place")
        raise RecordDiffers(f"request {log.request_id} goes another way under this version of callboard: in {places}")


def _log_of(reader: JournalReader, request_id: RequestId) -> RequestLog:
    log = reader.request(request_id)
    if log is None:
        raise no_such("request", request_id)
    if not log.records and not log.damage:
        raise UsageError(
            f"request {request_id!r:.80} has ended, and its events were compacted away; there is nothing to replay"
        )
    return log


def _save(log: RequestLog, path: Path) -> None:
    recorded = RecordedRequest(log.request_id, log.records, log.counter)
    try:
        path.write_text("".join(f"{line}\n" for line in recorded_lines(recorded)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; choose another file for --save") from error


def _print(log: RequestLog, replayed: list[Replayed]) -> None:
    for record, each in zip(log.records, replayed, strict=False):
        print_line(printable(f"{_when(record.event.at)}  {record.number:>4}  {_place(record)}{_told(record.event)}"))
        for line in each.given:
            print_line(printable(f"{'':>30}<- {line}"))
        for difference in each.differences:
            print_line(printable(f"{'':>30}!! {difference}"))
    end = log.end
    if end is None:
        print_line("it is still open")
    elif end.finish is None:
        print_line(printable(f"{_when(end.ended_at)}  it ended without an answer: {end.failure}"))
    else:
        why = f": {end.finish.reason}" if end.finish.reason else ""
        print_line(printable(f"{_when(end.ended_at)}  it ended: {end.finish.outcome}{why}"))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _place(record: Recorded) -> str:
    tag = record.event.tag
    return f"{tag.step}/{tag.call_id} " if tag.call_id else f"{tag.step} "


_TOLD: Final[dict[type[Event], Callable[..., str]]] = {
    events.ModelNoted: lambda event: event.text,
    events.ModelResponded: lambda event: f"{event.response.finish_reason}, cost {event.cost}",
    events.ModelFailed: lambda event: str(event.error.kind),
    events.ToolCallFailed: lambda event: f"{event.failure.tool} {event.failure.code}",
    events.CancelRequested: lambda event: event.reason,
}
"""What is said of an event besides its name: nothing that people, models or tools wrote."""


def _told(event: Event) -> str:
    tell = _TOLD.get(type(event))
    return type(event).__name__ if tell is None else f"{type(event).__name__}: {tell(event)}"


def _as_json(log: RequestLog, replayed: list[Replayed]) -> dict[str, object]:
    return {
        "request_id": log.request_id,
        "events": [
            {
                "number": each.record.number,
                "at": each.record.event.at,
                "event": type(each.record.event).__name__,
                "step": each.record.event.tag.step,
                "call_id": each.record.event.tag.call_id,
                "leads_to": each.given,
                "led_to": each.record.led_to,
                "differences": each.differences,
            }
            for each in replayed
        ],
        "damage": log.damage,
        "is_open": log.end is None,
    }
