"""`callboard tools`: what a model would be offered in this workspace, and what of it runs unasked."""

from __future__ import annotations

import argparse

from callboard import Decision, Runtime
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.terminal import print_json, print_line, printable, table
from callboard.actors.mcp.remote_values import ServerStatus
from callboard.actors.tools.tool_file import tools_of_files
from callboard.protocol.options import ToolOffer

_HEADINGS = ("TOOL", "RUNS IN", "DEADLINE", "RISK", "POLICY", "WHAT IT DOES")
#: What the policy's decision means for a model.
_POLICY = {Decision.ALLOW: "allowed", Decision.ASK: "asked", Decision.DENY: "not offered"}


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """A table for people, or JSON with the schemas."""
    async with Runtime(settings_of(options), tools_of_files(options.tools)) as runtime:
        tools, servers = runtime.tools(), runtime.mcp_servers()
    if options.json:
        print_json([_as_json(each) for each in tools])
    else:
        print_line(table([_HEADINGS, *map(_row, tools)]))
        for server in servers:
            print_line(printable(_server_line(server)))


def _row(offer: ToolOffer) -> tuple[str, ...]:
    contract, definition = offer.contract, offer.definition
    first_line = definition.description.partition("\n")[0]
    deadline, policy = f"{contract.timeout_seconds:g} s", _POLICY[offer.decision]
    return tuple(map(printable, (definition.name, contract.isolation, deadline, contract.risk, policy, first_line)))


def _server_line(server: ServerStatus) -> str:
    """An MCP server: how it is, and what of it is not offered."""
    count = f"{len(server.tools)} tools" if server.tools else "no tools"
    told = [f"MCP server {server.name}: {server.state}, {count}", server.title, server.reason]
    told += [f"left out: {name} ({why})" for name, why in server.left_out.items()]
    return "; ".join(filter(None, told))


def _as_json(offer: ToolOffer) -> dict[str, object]:
    contract = offer.contract
    return {
        "name": offer.definition.name,
        "isolation": contract.isolation,
        "timeout_seconds": contract.timeout_seconds,
        "risk": contract.risk,
        "policy": _POLICY[offer.decision],
        "latency": contract.latency,
        "needs_approval": contract.needs_approval,
        "description": offer.definition.description,
        "parameters": offer.definition.parameters,
    }
