"""OpenRouter's reasoning_details: fragments put together as they must be sent back (docs/wire.md 1.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from callboard.protocol.content import Replay

_TEXT_FIELDS: Final = ("text", "summary", "data")


class ReasoningDetails:
    """Merges the fragments of one stretch of reasoning. `take` hands out what has come since the last time."""

    __slots__ = ("_items", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._items: list[dict[str, Any]] = []

    @property
    def pending(self) -> bool:
        return bool(self._items)

    def add(self, fragments: Iterable[Mapping[str, Any]]) -> str:
        """Take fragments in; returns their readable text."""
        seen = ""
        for fragment in fragments:
            last = self._items[-1] if self._items else None
            if last is not None and _continues(last, fragment):
                _merge(last, fragment)
            else:
                self._items.append(dict(fragment))
            seen += fragment.get("text") or fragment.get("summary") or ""
        return seen

    def take(self) -> Replay | None:
        """What has come, to be replayed unmodified; None where nothing has."""
        items, self._items = self._items, []
        return Replay(self._origin, {"reasoning_details": items}) if items else None


def _continues(last: Mapping[str, Any], fragment: Mapping[str, Any]) -> bool:
    """A fragment of the same block: same type and index, and the block has not been signed yet."""
    same = last.get("type") == fragment.get("type") and last.get("index") == fragment.get("index")
    return same and fragment.get("index") is not None and fragment.get("type") != "reasoning.encrypted"


def _merge(last: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    for key, value in fragment.items():
        if key in _TEXT_FIELDS:
            last[key] = (last.get(key) or "") + (value or "")
        elif value is not None:
            last[key] = value
