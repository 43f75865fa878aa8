"""I8: the journal alone rebuilds the session, and every prefix of it recovers to a legal state."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import Command, RunTool
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event, ModelStreamed, ToolCallStarted
from callboard.protocol.ids import Tag
from callboard.protocol.session import Session
from callboard.protocol.states import RequestState
from callboard.protocol.testing.story import Story

#: Recovering every prefix is quadratic; longer journals are probed at this many places.
PROBES = 4


def replay_faults(story: Story) -> Iterator[str]:
    """I8, by bytes: what the journal holds is what it gives back."""
    yield from _run_again(story)
    try:
        yield from _replay(story)
    except (ProtocolError, AssertionError) as error:
        yield f"the journal cannot be replayed: {error}"


def _replay(story: Story) -> Iterator[str]:
    lived = journalled(story)
    journal: list[Event] = [decode_event(encode_event(event)) for event, _ in lived]
    kind: type[Any] = type(story.trace.session) if story.trace.session is not None else Session
    rebuilt = kind.replay(journal)
    if story.trace.session is not None:
        live, again = fingerprint(story.trace.session), fingerprint(rebuilt)
        if live != again:
            yield f"the replayed session differs from the live one: {_difference(live, again)}"
    session = kind()
    for event, (_, commands) in zip(journal, lived, strict=True):
        again = session.apply(event)
        if list(again) != commands:
            name = type(event).__name__
            yield f"replaying {name} {event.tag} gave {len(again)} commands, live it gave {len(commands)}"
            break
    for size in sorted({len(journal) * part // PROBES for part in range(1, PROBES)}):
        yield from _recovers(kind.replay(journal[:size]), journal, size)


def _run_again(story: Story) -> Iterator[str]:
    """What had begun is run again only if its tool says that this does no harm, and then under the same effect id."""
    harmless = (
        {offer.definition.name for offer in story.start.tools if offer.contract.idempotent} if story.start else set()
    )
    begun: set[Tag] = set()
    effects: dict[Tag, str] = {}
    for reaction in story.reactions:
        if isinstance(reaction.event, ToolCallStarted):
            begun.add(reaction.event.tag)
        for command in reaction.given(RunTool):
            if command.tag in begun and command.name not in harmless:
                yield f"call {command.tag} had begun, and {command.name} was run again"
            if effects.setdefault(command.tag, command.effect_id) != command.effect_id:
                yield f"call {command.tag} was run again under another effect id"


def journalled(story: Story) -> list[tuple[Event, list[Command]]]:
    """What survives of a run, and what followed live: deltas not yet written are lost when the process dies."""
    lived: list[tuple[Event, list[Command]]] = []
    for reaction in story.reactions:
        if reaction.event is not None:
            lived.append((reaction.event, reaction.commands))
            continue
        while lived and isinstance(lived[-1][0], ModelStreamed):
            lived.pop()
    return lived


def _recovers(session: Any, journal: list[Event], size: int) -> Iterator[str]:
    """After a crash at this place the session has something to do, or is over."""
    if session.state in (RequestState.NEW, RequestState.FINISHED):
        return
    loss = session.loss_event(journal[size - 1].at)
    if loss is None or not (session.apply(loss) or session.calls):
        yield f"a journal cut after {size} events leaves a session with nothing to do"


def fingerprint(value: Any) -> Any:
    """Everything a session holds, as plain values that can be compared."""
    if isinstance(value, dict):
        return {key: fingerprint(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(value)  # streamed text, in however many pieces it came
    if isinstance(value, list):
        return [fingerprint(item) for item in value]
    if isinstance(value, Enum) or not type(value).__module__.startswith("callboard.protocol"):
        return value
    parameters = getattr(value, "__dataclass_params__", None)
    if isinstance(value, tuple) or (parameters is not None and parameters.frozen):
        return value
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    given = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in names if hasattr(value, name)}}
    return {"class": type(value).__name__, **{name: fingerprint(item) for name, item in given.items()}}


def _difference(live: Any, again: Any, where: str = "session") -> str:
    if isinstance(live, dict) and isinstance(again, dict):
        for key in live.keys() | again.keys():
            if live.get(key) != again.get(key):
                return _difference(live.get(key), again.get(key), f"{where}.{key}")
    return f"{where} is {live!r:.80}, replayed {again!r:.80}"
