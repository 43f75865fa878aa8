"""How a fault is planted: a mutation of what goes into a session and comes out, under the rule that must notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import (
    CallModel,
    Command,
    RecordStep,
)
from callboard.protocol.content import (
    Message,
)
from callboard.protocol.events import (
    Event,
    RequestStarted,
)
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.mutation import Mutation, mutated
from callboard.protocol.testing.runtimes import Runtime


class Fault(Struct, frozen=True):
    """A rule broken on purpose."""

    name: str
    invariant: str
    """The key of `INVARIANTS` that must notice."""
    play: Runtime


#: Filled below, rule by rule.
FAULTS: Final[list[Fault]] = []


def plant(invariant: str, name: str, mutation: type[Mutation]) -> None:
    """Plant this mutation, by this name."""
    FAULTS.append(Fault(name, invariant, lambda scenario, seed: drive(scenario, seed, mutated(mutation))))


def fault(invariant: str) -> Callable[[type[Mutation]], type[Mutation]]:
    """Plant a mutation under the rule that must notice it; its docstring is its name."""

    def planted(mutation: type[Mutation]) -> type[Mutation]:
        plant(invariant, (mutation.__doc__ or "").rstrip("."), mutation)
        return mutation

    return planted


# The operators: what most faults are made of.


def saying(change: Callable[[Event, list[Command]], Sequence[Command]]) -> type[Mutation]:
    """Change what a session says."""

    class Saying(Mutation):
        """Other commands come out."""

        def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
            return change(event, commands)

    return Saying


def hearing(change: Callable[[Any], Event | None]) -> type[Mutation]:
    """Change what a session hears."""

    class Hearing(Mutation):
        """Other events go in."""

        def hears(self, event: Event) -> Event | None:
            return change(event)

    return Hearing


def dropping(kind: type[Any], *, after: type[Any] = object) -> type[Mutation]:
    """Drop each command of a kind; with `after`, only those that follow such an event."""
    return saying(
        lambda event, commands: [c for c in commands if not (isinstance(event, after) and isinstance(c, kind))]
    )


def changing(kind: type[Any], change: Callable[[Any], Command]) -> type[Mutation]:
    """Change each command of a kind."""
    return saying(lambda event, commands: [change(c) if isinstance(c, kind) else c for c in commands])


def believing(change: Callable[[RequestStarted], RequestStarted]) -> type[Mutation]:
    """Change what a session believes it was started with."""
    return hearing(lambda event: change(event) if isinstance(event, RequestStarted) else event)


def with_options(change: Callable[[RequestOptions], RequestOptions]) -> type[Mutation]:
    """Change the options of a request."""
    return believing(lambda start: replace(start, options=change(start.options)))


def with_offers(change: Callable[[ToolOffer], ToolOffer]) -> type[Mutation]:
    """Change each tool on offer."""
    return believing(lambda start: replace(start, tools=tuple(map(change, start.tools))))


def with_contracts(**changes: Any) -> type[Mutation]:
    """Change fields of each tool's contract."""
    return with_offers(lambda offer: replace(offer, contract=replace(offer.contract, **changes)))


def recording(change: Callable[[tuple[Message, ...]], Iterable[Message]]) -> type[Mutation]:
    """Change what is recorded of a step."""
    return changing(RecordStep, lambda record: replace(record, messages=tuple(change(record.messages))))


def showing(change: Callable[[tuple[Message, ...]], Iterable[Message]]) -> type[Mutation]:
    """Change what the model is shown."""

    def shown(call: CallModel) -> Command:
        return replace(call, request=replace(call.request, messages=tuple(change(call.request.messages))))

    return changing(CallModel, shown)
