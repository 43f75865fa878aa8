"""Commands as short lines: what a journal keeps of those that an event led to, for a replay to compare with.

A line has what identifies the command, and no time: a replay computes with other clocks. What people, models and tools
said is in it as a checksum only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from zlib import crc32

from callboard.protocol import commands
from callboard.protocol.commands import Command


def led_to(given: Iterable[Command]) -> tuple[str, ...]:
    """A line for each command, in their order. Equal commands have equal lines."""
    return tuple([f"{_place(command)} {_LINES[type(command)](command)}" for command in given])


def _place(command: Command) -> str:
    """Of which step and call it is: "2/call_a", "2", or "0" for the request as a whole."""
    tag = command.tag
    return f"{tag.step}/{tag.call_id}" if tag.call_id else str(tag.step)


def _digest(text: str) -> str:
    return f"{crc32(text.encode(errors='surrogatepass')):08x}"


def _call_model(command: commands.CallModel) -> str:
    asked = command.request
    told = f"{len(asked.messages)} messages, {len(asked.tools)} tools, {command.prompt_tokens} tokens"
    return f"CallModel {command.purpose} {asked.model}: {told}, {command.attempts} attempts"


def _run_tool(command: commands.RunTool) -> str:
    asked = "\n".join((command.arguments, *command.search_words))
    return f"RunTool {command.name} {_digest(asked)} effect {command.effect_id}"


def _ask_approval(command: commands.AskApproval) -> str:
    return f"AskApproval {command.name} {_digest(command.arguments)} {command.risk}"


def _report_failure(command: commands.ReportFailure) -> str:
    return f"ReportFailure {command.failure.tool} {command.failure.code}"


def _note(command: commands.Note) -> str:
    return f"Note {command.kind}"


def _call_outside(command: commands.CallOutside) -> str:
    return f"CallOutside {command.call.name}"


def _record_step(command: commands.RecordStep) -> str:
    return f"RecordStep {' '.join(type(message).__name__ for message in command.messages)}"


def _record_compaction(command: commands.RecordCompaction) -> str:
    done = command.compacted
    summary = _digest(done.summary)
    return f"RecordCompaction {done.left_out} {done.summarised} {done.cleared} {done.tried} {summary}"


def _finish(command: commands.Finish) -> str:
    return f"Finish {command.outcome} {_digest(command.text)}"


def _name(command: Command) -> str:
    return type(command).__name__


_LINES: Final[Mapping[type[Command], Callable[..., str]]] = {
    commands.CallModel: _call_model,
    commands.StopModel: _name,
    commands.RunTool: _run_tool,
    commands.CancelTool: _name,
    commands.AskApproval: _ask_approval,
    commands.WithdrawApproval: _name,
    commands.SetTimer: _name,
    commands.ClearTimer: _name,
    commands.ReportFailure: _report_failure,
    commands.Note: _note,
    commands.CallOutside: _call_outside,
    commands.RecordStep: _record_step,
    commands.RecordCompaction: _record_compaction,
    commands.Finish: _finish,
}
