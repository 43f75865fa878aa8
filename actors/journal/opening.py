"""From settings to the journal of one start of a runtime."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from callboard.actors.journal.journal_store import JournalWriter
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.places import shown_place
from callboard.actors.journal.retention import Kept
from callboard.actors.topology import JournalPlan
from callboard.protocol.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from callboard.actors.settings import Settings


def journal_plan(settings: Settings) -> JournalPlan | None:
    """Where and how this start of a runtime writes; None: nowhere.

    Raises UsageError where what that needs is not installed, and for an address that cannot be read.
    """
    place = settings.journal
    if place is None:
        return None
    # Of this start alone: the file may be another one at the next, and what a conversation wrote not be in it.
    outbox = Outbox(f"{shown_place(place)} {uuid.uuid4().hex}")
    kept = Kept(settings.journal_keep_days, settings.journal_max_bytes)
    if isinstance(place, str):
        return replace(_on_server(settings, place, outbox), kept=kept)
    return JournalPlan(_in_file(settings, str(place)), outbox, kept)


def _in_file(settings: Settings, path: str) -> Callable[[], JournalWriter]:
    from callboard.actors.journal.sqlite_journal import SqliteJournal  # noqa: PLC0415 - only where there is a journal

    return lambda: SqliteJournal(path, durability=settings.durability)


def _on_server(settings: Settings, url: str, outbox: Outbox) -> JournalPlan:
    try:
        from callboard.actors.journal.postgres_effects import by_connections  # noqa: PLC0415 - the extra `postgres`
        from callboard.actors.journal.postgres_journal import PostgresPlace  # noqa: PLC0415
    except ImportError as missing:
        raise UsageError(missing_extra(f"a journal on PostgreSQL ({missing})", "postgres")) from missing
    if settings.journal_max_bytes is not None:
        raise UsageError("journal_max_bytes is for journals in a file; for PostgreSQL use journal_keep_days")
    place = PostgresPlace(url, settings.durability)
    return JournalPlan(place.writer, outbox, effect_on_server=by_connections(place.calls()))
