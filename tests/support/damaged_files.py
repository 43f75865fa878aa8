"""A journal file with all that there can be in it, and ways to damage it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from support.journal_writes import ANSWER, an_effect, begin, finished, message, request_id, tool_offer

from callboard.actors.journal.journal_records import Change, NewMessage, Statement, Write
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.protocol.content import Text
from callboard.protocol.events import Event
from callboard.protocol.ids import MessageId, RequestId
from callboard.protocol.model import ModelResponse

REQUESTS = 24
ORDERS = "CREATE TABLE IF NOT EXISTS orders (name TEXT, price REAL, amount INTEGER)"


@dataclass(frozen=True)
class Made:
    """A file, and what was written to it."""

    events: Mapping[RequestId, tuple[Event, ...]]
    ended: frozenset[RequestId]


def fill(journal: SqliteJournal, requests: int = REQUESTS) -> Made:
    """Requests of three to nine events, of a few bytes to more than a page, a third of them ended; one commit each."""
    chosen = random.Random(1)
    events: dict[RequestId, tuple[Event, ...]] = {}
    ended: set[RequestId] = set()
    for number in range(requests):
        name = f"request-{number:04}"
        batch: list[Change] = []
        first = begin(name, at=float(number), tools=(tool_offer("one"), tool_offer("two")))
        batch.append(first)
        written = [*first.events]
        for _ in range(chosen.randint(1, 7)):
            text = "x" * chosen.choice((10, 300, 2_000, 9_000))
            written.append(replace(ANSWER, response=ModelResponse((Text(text),))))
            batch.append(Write(request_id(name), len(written), (written[-1],), ("Command",)))
        if number % 3 == 0:
            own = MessageId(f"m{number}")
            batch.append(finished(name, len(written) + 1, messages=(NewMessage(own, None, message("hello")),)))
            written.append(ANSWER)
            ended.add(request_id(name))
        if number % 4 == 1:
            batch.append(
                an_effect(name, Statement(ORDERS), Statement("INSERT INTO orders VALUES (?, 1.5, 2)", (name,)))
            )
        assert not any(journal.commit(batch))
        events[request_id(name)] = tuple(written)
    return Made(events, frozenset(ended))


def damage(path: Path, seed: int) -> str:
    """Flip bits, overwrite, cut: what was done, in words."""
    chosen = random.Random(seed)
    data = bytearray(path.read_bytes())
    if not data:
        return "empty"
    kind = chosen.choice(("flip", "flip", "flip", "head", "page", "zeros", "cut", "swap"))
    at = chosen.randrange(len(data))
    if kind in ("flip", "head"):
        for _ in range(chosen.choice((1, 1, 3))):
            place = chosen.randrange(min(len(data), 4096)) if kind == "head" else chosen.randrange(len(data))
            data[place] ^= 1 << chosen.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "swap":
        other = chosen.randrange(len(data) // 4096 + 1) * 4096
        start = at // 4096 * 4096
        data[start : start + 4096], data[other : other + 4096] = data[other : other + 4096], data[start : start + 4096]
    else:
        start = at // 4096 * 4096
        data[start : start + 4096] = bytes(4096) if kind == "zeros" else chosen.randbytes(4096)
    path.write_bytes(data)
    return f"{path.name}: {kind} at {at}"
