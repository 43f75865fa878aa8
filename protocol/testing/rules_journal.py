"""The rules about crashes: the journal rebuilds the session, and a resumed session forgets and repeats nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache
from itertools import takewhile
from typing import Any, Final

from callboard.protocol.codec import encode_event
from callboard.protocol.commands import Command, Finish, RecordCompaction, RecordStep, SetTimer
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event, ModelLost, ModelStreamed, ToolCallCompleted, ToolsLost
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.states import RequestState
from callboard.protocol.testing.driver import read_back
from callboard.protocol.testing.mutation import MutatedSession
from callboard.protocol.testing.story import Reaction, Story
from callboard.protocol.tools import Effect


def replay_faults(story: Story) -> Iterator[str]:
    """I8, by bytes: what the journal holds is what it gives back."""
    try:
        yield from _replay(story)
    except (ProtocolError, AssertionError) as error:
        yield f"the journal cannot be replayed: {error}"


#: What is looked at of one journal, by the seed: each of it costs as much as the run itself.
_LIVES, _DIES, _LOSES = range(3)
#: Of the driver's small stories, which are those of even seeds, one in so many is replayed: a session holds little in
#: them.
_SMALL_STORIES: Final = 3
#: Turns that a small story has at most.
_SMALL_TURNS: Final = 3


def _replay(story: Story) -> Iterator[str]:
    """The whole journal applied, or a death at one place: the rest follows its replay, or what was lost with it."""
    trace, seed = story.trace, story.trace.seed // 2
    is_small = not trace.seed % 2 and len(trace.scenario.turns) <= _SMALL_TURNS
    if is_small and trace.session is not None:  # of another runtime, each journal is looked at
        seed, left_out = divmod(seed, _SMALL_STORIES)
        if left_out:
            return
    lived = journalled(story)
    journal = [read_back(encode_event(event)) for event, _ in lived]
    how, size = seed % 3, (seed // 3) % max(len(journal), 1)
    kind: type[Any] = type(trace.session) if trace.session is not None else Session
    begin, end = (size if how == _DIES else 0), (size if how == _LOSES else len(journal))
    session = kind.replay(journal[:begin]) if begin else kind()
    for index in range(begin, end):
        event, (_, commands) = journal[index], lived[index]
        again = session.apply(event)
        if list(again) != commands:
            name = type(event).__name__
            yield f"replaying {name} {event.tag} gave {len(again)} commands, live it gave {len(commands)}"
            return
        if session.state is not RequestState.FINISHED and session.loss_event(event.at) is None:
            yield from _recovers(session, journal, index + 1)
    if end < len(journal):
        yield from _recovers(session, journal, end)
    elif trace.session is not None and not _surely_same(trace.session, session):
        live, again = fingerprint(trace.session), fingerprint(session)
        if live != again:
            yield f"the replayed session differs from the live one: {_difference(live, again)}"


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
    """Everything a session holds, as plain values that can be compared; of a mutated one, what is behind the fault."""
    kind: Any = type(value)
    taken = _taken(kind)
    return value if taken is None else taken(value)


@cache
def _taken(kind: type[object]) -> Callable[[Any], Any] | None:
    """How what changes while a session lives is made plain; None of a type whose values are compared as they are."""
    if issubclass(kind, MutatedSession):
        return lambda value: fingerprint(value.behind)
    if issubclass(kind, dict):
        return lambda value: {key: fingerprint(item) for key, item in value.items()}
    if issubclass(kind, list):
        return _plain_list
    how = getattr(kind, "__struct_config__", None) or getattr(kind, "__dataclass_params__", None)
    is_ours = kind.__module__.startswith("callboard.protocol")
    if not is_ours or issubclass(kind, Enum | tuple) or (how is not None and how.frozen):
        return None
    names = _slots(kind.__mro__)
    return lambda value: _plain_fields(value, names)


@cache
def _slots(bases: tuple[type[object], ...]) -> tuple[str, ...]:
    return tuple(name for base in bases for name in getattr(base, "__slots__", ()))


def _surely_same(live: Any, again: Any) -> bool:
    """Whether it is seen without making all plain that both hold the same; False where a closer look is needed."""
    kind: Any = type(live)
    if live == again or kind is not type(again):
        return bool(live == again)
    if kind is dict:
        if live.keys() != again.keys():
            return False
        for key, item in live.items():  # most are the same, or equal
            other = again[key]
            if item is not other and not _surely_same(item, other):
                return False
        return True
    if isinstance(live, MutatedSession):
        return _surely_same(live.behind, again.behind)
    of: Any = kind
    if kind is list or _taken(of) is None:
        return False
    for name in _slots(kind.__mro__):
        if not _surely_same(getattr(live, name, None), getattr(again, name, None)):
            return False
    return not hasattr(live, "__dict__") or _surely_same(vars(live), vars(again))


def _plain_list(value: list[Any]) -> Any:
    if all(isinstance(item, str) for item in value):
        return "".join(value)  # streamed text, in however many pieces it came
    return [fingerprint(item) for item in value]


def _plain_fields(value: Any, names: Sequence[str]) -> dict[str, Any]:
    given = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    plain = {"class": type(value).__name__}
    for name, item in (*given, *vars(value).items()) if hasattr(value, "__dict__") else given:
        kind: Any = type(item)
        taken = _taken(kind)
        plain[name] = item if taken is None else taken(item)
    return plain


def _difference(live: Any, again: Any, where: str = "session") -> str:
    if isinstance(live, dict) and isinstance(again, dict):
        for key in sorted(live.keys() | again.keys(), key=str):  # the same in every process
            if live.get(key) != again.get(key):
                return _difference(live.get(key), again.get(key), f"{where}.{key}")
    return f"{where} is {live!r:.80}, replayed {again!r:.80}"


# I26.


def resumes(story: Story) -> Iterator[str]:
    """I26: a resumed session gives every record and the timer of the request, if its time runs, and says what was lost.

    It begins no work of its own: that follows from the loss. A session that had ended gives its end once more.
    """
    if all(reaction.event is not None for reaction in story.reactions):
        return
    recorded: list[Record] = []
    end: Finish | None = None
    for index, reaction in enumerate(story.reactions):
        if reaction.event is not None:
            recorded += _records(reaction)
            end = end or next(iter(reaction.given(Finish)), None)
            continue
        yield from _wrong_resume(story, reaction, recorded, end)
        work = reaction.left
        after = story.reactions[index + 1 : index + 2]
        if after and after[0].event is None:
            continue  # it died once more, before what it was told was written
        later = [each.event for each in story.reactions[index + 1 :]]
        committed = list(takewhile(lambda event: _is_committed(story, event), later))
        following = next(iter(later[len(committed) :]), None)
        lost = [tag for tag in work.calls if not any(event is not None and event.tag == tag for event in committed)]
        if end is None and work.model is not None and not _is_loss(following, ModelLost, work.model):
            yield f"model call {work.model.step} was lost in a crash, and the session was not told"
        if end is None and lost and not _is_loss(following, ToolsLost, lost[0]):
            yield f"{len(lost)} calls were lost in a crash, and the session was not told"


def _is_committed(story: Story, event: Event | None) -> bool:
    """What a call wrote was committed with this outcome: that is told before what was lost."""
    if not isinstance(event, ToolCallCompleted) or event.tag not in story.calls:
        return False
    offer = story.offers.get(story.calls[event.tag].name)
    return offer is not None and offer.contract.effect is Effect.TRANSACTION


def _is_loss(event: Event | None, kind: type[ModelLost | ToolsLost], tag: Tag) -> bool:
    return isinstance(event, kind) and event.tag == tag.at_step(tag.step)


Record = RecordStep | RecordCompaction


def _records(reaction: Reaction) -> list[Record]:
    return [command for command in reaction.commands if isinstance(command, Record)]


def _wrong_resume(story: Story, reaction: Reaction, recorded: list[Record], end: Finish | None) -> Iterator[str]:
    if _records(reaction) != recorded:
        yield f"resumed with {len(_records(reaction))} records, {len(recorded)} were made"
    if end is not None:
        if reaction.given(Finish) != [end]:
            yield "resumed after its end, it does not give the same end"
        return
    others = {type(command).__name__ for command in reaction.commands} - {"RecordStep", "RecordCompaction", "SetTimer"}
    if others:
        yield f"resumed with {', '.join(sorted(others))}"
    timers = [(command.tag, command.at) for command in reaction.given(SetTimer)]
    begun = story.start is not None and reaction is not story.reactions[0]
    if begun and story.start is not None:
        expected = [] if reaction.only_waited else [(story.start.tag, reaction.deadline)]
        if timers != expected:
            yield f"resumed with the timers {timers}, expected are {expected}"
