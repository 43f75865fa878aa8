"""What the model of calls (calls_model.py) writes down: tools, pools, workers and calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.calls.dispatcher import DispatchCall, ToolsOffered
from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import Ending, LastEvent
from callboard.actors.calls.registry import ToolKey
from callboard.actors.kernel import ExitReason, Ref
from callboard.actors.testing.watched_calls import WITHDRAWN_SECONDS
from callboard.actors.tools import Tool
from callboard.actors.tools.progress import CallProgress
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import (
    HINTS_AFTER_EFFECT,
    RETRY_HINTS,
    Decision,
    Effect,
    Isolation,
    Risk,
    ToolContract,
    ToolFailure,
)

Places = Mapping[Isolation, tuple[int, int]]
"""What one worker of each kind takes, and how many there are."""
Death = tuple[ExitReason, BaseException | None]


def named(key: ToolKey) -> ToolName:
    """As models know it."""
    return key.name if isinstance(key, Tool) else key


class Health(Struct, eq=False):
    """Of one tool."""

    until: float | None = None
    pause: float = WITHDRAWN_SECONDS
    breaks: list[tuple[float, int]] = field(default_factory=list)
    calls: int = 0


class Entry(Struct, eq=False):
    """A tool that there is."""

    tool: Tool
    health: Health


class Session(Struct, eq=False):
    """Who hears of calls."""

    name: str
    ref: Ref = None  # type: ignore[assignment]
    is_alive: bool = True
    death: Death = (ExitReason.NORMAL, None)
    ended: dict[Tag, LastEvent] = field(default_factory=dict)
    """Of the last step in which a call has ended, or was refused."""

    def remember(self, event: LastEvent) -> None:
        """One of its calls has ended so, or was refused."""
        latest = max((tag.step for tag in self.ended), default=0)
        if event.tag.step > latest:
            self.ended.clear()
        if event.tag.step >= latest:
            self.ended[event.tag] = event


class Pool(Struct, eq=False):
    """Workers of one kind."""

    name: str
    room: int
    most: int
    is_wanted: bool = True
    is_started: bool = False
    workers: int = 0
    made: int = 0
    """Workers that it has had."""
    free: list[Worker] = field(default_factory=list)
    """The last used is the last."""


class Worker(Struct, eq=False):
    """One of them."""

    name: str
    pool: Pool
    room: int
    holds: tuple[ToolKey, ...] = ()
    told_holds: tuple[ToolKey, ...] = ()
    """As the dispatcher of now has read."""
    calls: list[Call] = field(default_factory=list)
    ref: Ref = None  # type: ignore[assignment]
    is_lost: bool = False
    is_alive: bool = True
    death: Death = (ExitReason.NORMAL, None)

    def take(self, room: int | None = None) -> None:
        """Does it take a call now?"""
        self.room = self.room if room is None else room
        takes, free = len(self.calls) < self.room and not self.is_lost, self.pool.free
        if takes and self not in free:
            free.append(self)
        elif not takes and self in free:
            free.remove(self)


class Lane(Struct, eq=False):
    """The calls of one tool."""

    key: ToolKey
    pool: Pool
    contract: ToolContract
    running: int = 0
    waiting: list[Call] = field(default_factory=list)
    home: Worker | None = None


class Call(Struct, eq=False):
    """One call."""

    number: int
    given: DispatchCall
    session: Session
    lane: Lane
    contract: ToolContract
    due: float
    is_transaction: bool = False
    state: str = "queued"
    worker: Worker | None = None
    pool: Pool | None = None
    workers: int = 0
    left: Worker | None = None
    begun: bool = False
    was_told: bool = False
    why: Ending | None = None
    printed_bytes: int = 0
    frames: str = ""
    is_stopped: bool = False
    handed: tuple[str, str] | None = None
    """Its result and what it printed, on their way to be committed."""
    commit_by: float | None = None
    progress: CallProgress | None = None
    """On its way."""

    @property
    def tag(self) -> Tag:
        """Whose it is."""
        return self.given.run.tag

    @property
    def name(self) -> ToolName:
        """Its tool's."""
        return self.given.run.name

    @property
    def has_run(self) -> bool:
        """Its tool's code may have begun."""
        ahead: GoAhead | None = self.given.go_ahead
        return self.begun and (ahead is None or ahead.is_given)


def kind_of(contract: ToolContract) -> str:
    """Of its pool: short calls never wait for long ones."""
    return f"{contract.isolation.value}-{contract.latency.value}" + ("-reuse" if contract.reuse else "")


def was_judged(offered: ToolOffer, now: ToolContract) -> bool:
    """Has what a request was judged by changed since it was offered the tool?"""
    then = offered.contract
    return (then.risk, then.effect, then.needs_approval, then.stages, then.is_trusted) != (
        now.risk, now.effect, now.needs_approval, now.stages, now.is_trusted
    )  # fmt: skip


def after_run(failure: ToolFailure, contract: ToolContract) -> ToolFailure:
    """The model is told that code which has run may have had an effect, where a second run would do harm."""
    is_harmless = contract.risk is Risk.READ or contract.effect is not Effect.ONCE
    if is_harmless or failure.retry_hint != RETRY_HINTS[failure.code]:
        return failure
    return replace(failure, retry_hint=HINTS_AFTER_EFFECT.get(failure.code, failure.retry_hint))


def same(found: Any, due: Any) -> bool:
    """Is it what is due? A text of the dispatcher's own need only have the words after "~" in it."""
    if type(found) is not type(due):
        return False
    failed, wanted = getattr(found, "failure", None), getattr(due, "failure", None)
    if isinstance(failed, ToolFailure) and isinstance(wanted, ToolFailure):
        if wanted.message.startswith("~") and wanted.message[1:] in failed.message:
            failed = replace(failed, message=wanted.message)
        if wanted.retry_hint.startswith("~") and wanted.retry_hint[1:] in failed.retry_hint:
            failed = replace(failed, retry_hint=wanted.retry_hint)
        found = replace(found, failure=failed)
    return bool(found == due)


def offered(answer: ToolsOffered) -> list[tuple[ToolName, Decision, ToolContract]]:
    """As the model has it."""
    return [(offer.definition.name, offer.decision, offer.contract) for offer in answer.offers]
