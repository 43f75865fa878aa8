"""`callboard tools`: what a model would be offered in this workspace."""

from __future__ import annotations

import argparse

from callboard import Runtime, Tool
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.terminal import print_json, print_line, printable

_HEADINGS = ("TOOL", "RUNS IN", "DEADLINE", "RISK", "WHAT IT DOES")


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """A table for people, or JSON with the schemas."""
    async with Runtime(settings_of(options)) as runtime:
        tools = runtime.tools()
    if options.json:
        print_json([_as_json(each) for each in tools])
    else:
        print_line(_table([_HEADINGS, *map(_row, tools)]))


def _row(tool: Tool) -> tuple[str, ...]:
    contract = tool.contract
    first_line = tool.definition.description.partition("\n")[0]
    shown = (tool.name, contract.isolation, f"{contract.timeout_seconds:g} s", contract.risk, first_line)
    return tuple(map(printable, shown))


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def _as_json(tool: Tool) -> dict[str, object]:
    contract = tool.contract
    return {
        "name": tool.name,
        "isolation": contract.isolation,
        "timeout_seconds": contract.timeout_seconds,
        "risk": contract.risk,
        "latency": contract.latency,
        "needs_approval": contract.needs_approval,
        "description": tool.definition.description,
        "parameters": tool.definition.parameters,
    }
