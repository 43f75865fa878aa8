"""What happened in one run, as a list which any driver can write and any checker can read."""

from __future__ import annotations

import traceback
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from callboard.protocol.commands import CallModel, Command, RecordStep, RunTool
from callboard.protocol.events import Event, ModelResponded, RequestStarted
from callboard.protocol.ids import Tag
from callboard.protocol.testing.scenario import Scenario


class Verb(StrEnum):
    """What was done with an event or a command."""

    APPLIED = "applied"
    """The session took this event."""
    REFUSED = "refused"
    """The session refused it: a dead letter, with the reason in `note`."""
    GAVE = "gave"
    """The session gave this command, in answer to the last applied event (or when it was resumed)."""
    RAN = "ran"
    """This RunTool was carried out: the tool's code began."""
    ASKED = "asked"
    """This CallModel or AskApproval was carried out: the model, or the person, was asked."""
    RESUMED = "resumed"
    """The process died, and the session was rebuilt from its journal."""
    LOST = "lost"
    """The process died before this event was written: it did not happen. The reason is in `note`."""


class Entry(Struct, frozen=True):
    """One line of a trace: an event or a command, and when (virtual seconds)."""

    at: float
    verb: Verb
    value: Event | Command | None
    note: str = ""
    """A refusal's reason; of an applied event, the row of the table that it hit."""


class Trace(Struct):
    """One request's run. `sent` and `queued` are counted by the driver's mailbox, for I9."""

    scenario: Scenario
    seed: int = 0
    entries: list[Entry] = field(default_factory=list)
    sent: int = 0
    queued: int = 0
    ended_at: float = 0.0
    lag_seconds: float = 0.0
    """The longest that a command waited for the journal before it was carried out."""
    jumps: tuple[tuple[float, float], ...] = ()
    """When the clock jumped forward without anything having run, and by how many seconds."""
    in_world: bool = False
    """A World played the outside: all that was on its way, and when, is known by the scenario alone."""
    made_up: tuple[Event, ...] = ()
    """Taken or refused, and sent by nobody, where the driver knows."""
    undone: tuple[Command, ...] = ()
    """Given, and never carried out, where the driver knows."""
    broken: str = ""
    """The code under test raised this, or went against its own table, and the run stopped."""
    session: Any = None
    """The session as it was at the end, where the driver can see it (I8 compares it with its replay)."""

    def add(self, at: float, verb: Verb, value: Event | Command | None, note: str = "") -> None:
        self.entries.append(Entry(at, verb, value, note))

    @property
    def applied(self) -> list[Event]:
        """The journal: the events in the order in which the session took them."""
        return [entry.value for entry in self.entries if entry.verb is Verb.APPLIED]  # type: ignore[misc]

    @property
    def steps(self) -> int:
        """How long the story is: events that came to the session."""
        return sum(entry.verb in (Verb.APPLIED, Verb.REFUSED) for entry in self.entries)

    def to_bytes(self) -> bytes:
        """The whole trace; the same for the same scenario and seed."""
        return "\n".join(repr(entry) for entry in self.entries).encode("utf-8", "backslashreplace")

    def story(self) -> str:
        """The trace as a person reads it: one short line for each event and command."""
        lines = [f"seed {self.seed}, {self.steps} steps"]
        for entry in self.entries:
            sign = {
                Verb.APPLIED: "->",
                Verb.REFUSED: "!!",
                Verb.GAVE: "   <-",
                Verb.RAN: "   >>",
                Verb.ASKED: "   >>",
                Verb.RESUMED: "**",
                Verb.LOST: "xx",
            }[entry.verb]
            told = describe(entry.value) if entry.value is not None else "restarted from the journal"
            lines.append(f"{entry.at:9.3f} {sign} {told}" + (f"   [{entry.note}]" if entry.note else ""))
        return "\n".join(lines)


def told_error(error: Exception) -> str:
    """An exception, and where it was raised: many have no words of their own."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{said}, in `{at.line}` ({Path(at.filename).name}, line {at.lineno})"


def describe(value: Any) -> str:
    """An event or command in a few words."""
    name = type(value).__name__
    place = _place(value.tag)
    match value:
        case RequestStarted():
            detail = f" {len(value.history)} messages, tools {[str(offer.definition.name) for offer in value.tools]}"
        case ModelResponded():
            asked = [f"{call.name}#{call.call_id}{call.arguments}" for call in value.response.tool_calls]
            detail = f" {value.response.finish_reason} {value.response.text!r} {asked}"
        case CallModel():
            detail = f" with {len(value.request.messages)} messages until {value.deadline_at:g}"
        case RunTool():
            detail = f" {value.name}{value.arguments} until {value.deadline_at:g}"
        case RecordStep():
            detail = f" {[type(message).__name__ for message in value.messages]}"
        case _:
            names = ("at", "reason", "outcome", "text", "content", "failure", "error")
            given = ((field_name, getattr(value, field_name, "")) for field_name in names)
            shown = [f"{field_name}={item!s:.60}" for field_name, item in given if item != ""]
            detail = " " + " ".join(shown) if shown else ""
    return f"{name}{place}{detail}"


def _place(tag: Tag) -> str:
    step = f" {tag.request_id}/{tag.step}" if tag.step else f" {tag.request_id}"
    return f"{step}/{tag.call_id}" if tag.call_id else step
