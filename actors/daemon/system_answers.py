"""What the native API answers of tools, actors, dead letters and usage."""

from __future__ import annotations

import orjson
from msgspec.structs import asdict
from pydantic import JsonValue

from callboard.actors import kernel
from callboard.actors.daemon.native_io import NativeAnswer
from callboard.actors.journal.usage_report import UsageLine, UsageReport
from callboard.protocol.ids import Tag
from callboard.protocol.masking import for_log
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import Decision


class ToolShown(NativeAnswer):
    """A tool, with what the policy says of it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    risk: str
    isolation: str
    timeout_seconds: float
    decision: str
    rule: str
    confinement: str
    is_offered: bool
    """False: the policy denies it, or it has failed too often and is withdrawn for a while."""

    @classmethod
    def of(cls, offer: ToolOffer, offered: frozenset[str]) -> ToolShown:
        """One of a runtime, of which these are offered now."""
        definition, contract = offer.definition, offer.contract
        return cls(
            name=definition.name,
            description=definition.description,
            parameters=orjson.loads(orjson.dumps(definition.parameters, default=dict)),
            risk=contract.risk.value,
            isolation=contract.isolation.value,
            timeout_seconds=contract.timeout_seconds,
            decision=offer.decision.value,
            rule=offer.rule,
            confinement=offer.confinement,
            is_offered=offer.decision is not Decision.DENY and definition.name in offered,
        )


class ToolsShown(NativeAnswer):
    """The tools of a tenant."""

    tools: list[ToolShown]


class ActorShown(NativeAnswer):
    """One actor, with those below it."""

    path: str
    state: str
    mailbox_depth: int
    restarts: int
    handled: int
    handling: str | None
    """The kind of message it works on."""
    handling_seconds: float
    children: list[ActorShown]

    @classmethod
    def of(cls, info: kernel.ActorInfo) -> ActorShown:
        """One, with those below it."""
        return cls(
            path=info.name,
            state=info.state,
            mailbox_depth=info.mailbox_depth,
            restarts=info.restarts,
            handled=info.handled,
            handling=info.handling,
            handling_seconds=info.handling_seconds,
            children=[cls.of(child) for child in info.children],
        )


class ActorsShown(NativeAnswer):
    """The supervision tree."""

    actors: list[ActorShown]


class DeadLetterShown(NativeAnswer):
    """A message that no actor handled."""

    number: int
    kind: str
    """The type of the message. Its content is not shown: it may hold anything."""
    reason: str
    recipient: str
    age_seconds: float
    note: str
    may_replay: bool
    request_id: str
    step: int
    call_id: str

    @classmethod
    def of(cls, letter: kernel.DeadLetter, now: float, *, may_replay: bool) -> DeadLetterShown:
        """`now`: by the scheduler's clock."""
        tag = getattr(letter.message, "tag", None)
        known = tag if isinstance(tag, Tag) else None
        return cls(
            number=letter.serial,
            kind=type(letter.message).__name__,
            reason=letter.reason.value,
            recipient=letter.recipient,
            age_seconds=max(0.0, now - letter.at_seconds),
            note=for_log(letter.note),
            may_replay=may_replay,
            request_id=known.request_id if known is not None else "",
            step=known.step if known is not None else 0,
            call_id=known.shown_call_id if known is not None else "",
        )


class DeadLettersShown(NativeAnswer):
    """The latest of them."""

    dead_letters: list[DeadLetterShown]
    """The oldest first."""


class UsageLineShown(NativeAnswer):
    """One line of a report."""

    day: str
    model: str
    tool: str
    conversation: str
    requests: int
    model_calls: int
    tool_calls: int
    failed_tool_calls: int
    usage: dict[str, int] | None
    cost: float | None
    unknown_usage: int
    unknown_cost: int
    seconds: float

    @classmethod
    def of(cls, line: UsageLine) -> UsageLineShown:
        """One line of a report."""
        return cls(**{**asdict(line), "usage": None if line.usage is None else asdict(line.usage)})


class UsageShown(NativeAnswer):
    """What requests used."""

    by: list[str]
    lines: list[UsageLineShown]
    total: UsageLineShown
    running: int
    unreadable: int

    @classmethod
    def of(cls, report: UsageReport) -> UsageShown:
        """A report of the journal."""
        return cls(
            by=list(report.by),
            lines=[UsageLineShown.of(line) for line in report.lines],
            total=UsageLineShown.of(report.total),
            running=report.running,
            unreadable=report.unreadable,
        )
