"""Answers of the wire APIs, as bytes, with the events that an adapter must make of them: one JSON file an API.

A file holds `version`, `api`, `source` and `answers`; each of these a `name`, the place in docs/wire.md that it comes
from, `status`, `headers`, `streaming`, the `body` in pieces (joined, and encoded as UTF-8), and the `events`. An event
is the name of its class and its fields. An id that begins with "?" stands for one that the adapter has to invent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, get_args

import msgspec
import orjson

from callboard.protocol.errors import UsageError
from callboard.protocol.model import StreamEvent

#: Of the files. A reader of another version cannot know what it does not understand.
FORMAT_VERSION: Final = 1
#: Recorded from a server of our own, beside those written by hand: the wire APIs that llama.cpp speaks.
_RECORDED: Final = "llama_cpp"
APIS: Final = ("anthropic", "copilot", "gemini", "openai-chat", "openai-responses", "openrouter")
"""The wire APIs with answers of their own."""
_EVENTS: Final[Mapping[str, type[StreamEvent]]] = {kind.__name__: kind for kind in get_args(StreamEvent)}


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, and what it means."""

    name: str
    body: bytes = field(repr=False)
    events: tuple[StreamEvent, ...] | None = None
    """What an adapter must make of it, however it cuts the deltas; None where that is not known."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    streaming: bool = True
    source: str = ""
    """Where it comes from: a section or quirk of docs/wire.md, or the server that sent it."""


@cache
def shipped_answers(api: str) -> tuple[Answer, ...]:
    """The answers of one of `APIS`. Raises UsageError for any other name."""
    if api not in APIS:
        raise UsageError(f"there are no answers of {api!r}; the kit has those of {', '.join(APIS)}")
    stem = api.replace("-", "_")
    folder = files(__name__)
    found = [*_read(folder.joinpath(f"{stem}.json").read_bytes())]
    recorded = folder.joinpath(f"{stem}_{_RECORDED}.json")
    if recorded.is_file():
        found += _read(recorded.read_bytes())
    return tuple(found)


def read_events(events: Any) -> tuple[StreamEvent, ...]:
    """Events as they stand in a file of answers."""
    return tuple(
        msgspec.convert({name: value for name, value in event.items() if name != "event"}, _EVENTS[event["event"]])
        for event in events
    )


def write_event(event: StreamEvent) -> dict[str, Any]:
    """One event as it stands in a file of answers: its defaults are left out."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return {"event": fields.pop("$"), **fields}


def _read(data: bytes) -> list[Answer]:
    document = orjson.loads(data)
    if document["version"] != FORMAT_VERSION:
        raise UsageError(f"answers of version {document['version']}; this kit reads version {FORMAT_VERSION}")
    return [
        Answer(
            answer["name"],
            "".join(answer["body"]).encode(),
            read_events(answer["events"]),
            answer["status"],
            answer["headers"],
            answer["streaming"],
            answer.get("wire", document["source"]),
        )
        for answer in document["answers"]
    ]
