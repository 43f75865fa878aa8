"""Answers changed at random: what a server may send that was never seen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Json = dict[str, Any]
_OTHERS: tuple[Any, ...] = (None, True, 0, -1, 1.5, 10**30, "", "x", "stop", "{", [], {}, [None], [{}], {"x": 1})


def changed(dice: Random, documents: list[Json]) -> list[Json]:
    """The documents of an answer with one thing changed; the given ones stay as they are."""
    return dice.choice(_CHANGES)(dice, documents)


def _in_one(change: Callable[[Random, Any], None]) -> Callable[[Random, list[Json]], list[Json]]:
    """A change of a place within one document: a field of an object or an element of a list."""

    def apply(dice: Random, documents: list[Json]) -> list[Json]:
        if not documents:
            return documents
        copies = [_copy(document) for document in documents]
        holders = [holder for holder in _holders(dice.choice(copies)) if holder]
        if holders:
            change(dice, dice.choice(holders))
        return copies

    return apply


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list) else value


def _holders(value: Any) -> list[Any]:
    """Every object and list in a value, and itself."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) else []
    return own + [holder for child in children for holder in _holders(child)]


def _place(dice: Random, holder: Any) -> Any:
    return dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))


def _drop(dice: Random, holder: Any) -> None:
    del holder[_place(dice, holder)]


def _replace(dice: Random, holder: Any) -> None:
    holder[_place(dice, holder)] = dice.choice(_OTHERS)


def _wrap(dice: Random, holder: Any) -> None:
    place = _place(dice, holder)
    holder[place] = [holder[place]] if dice.random() < 0.5 else {"value": holder[place]}


def _double(dice: Random, holder: Any) -> None:
    place = _place(dice, holder)
    if isinstance(holder, list):
        holder.insert(place, _copy(holder[place]))
    else:
        holder[f"{place}_2"] = _copy(holder[place])


def _add(dice: Random, holder: Any) -> None:
    if isinstance(holder, dict):
        holder["something_new"] = dice.choice(_OTHERS)
    else:
        holder.append(dice.choice(_OTHERS))


def _events(change: Callable[[Random, list[Json], int], None]) -> Callable[[Random, list[Json]], list[Json]]:
    """A change of the order or number of events."""

    def apply(dice: Random, documents: list[Json]) -> list[Json]:
        copies = list(documents)
        if copies:
            change(dice, copies, dice.randrange(len(copies)))
        return copies

    return apply


def _drop_event(dice: Random, documents: list[Json], place: int) -> None:
    del documents[place]


def _double_event(dice: Random, documents: list[Json], place: int) -> None:
    documents.insert(dice.randrange(len(documents) + 1), documents[place])


def _swap_events(dice: Random, documents: list[Json], place: int) -> None:
    other = dice.randrange(len(documents))
    documents[place], documents[other] = documents[other], documents[place]


def _unknown_event(dice: Random, documents: list[Json], place: int) -> None:
    documents.insert(place, {"type": "something.new", "index": 0, "delta": {"type": "new_delta", "text": "x"}})


_CHANGES = (
    *map(_in_one, (_drop, _replace, _wrap, _double, _add)),
    *map(_events, (_drop_event, _double_event, _swap_events, _unknown_event)),
)
