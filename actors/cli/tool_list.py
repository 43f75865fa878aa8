"""`callboard tools`: what a model would be offered in this workspace, what holds each tool, and what runs unasked."""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from typing import Final

from msgspec.structs import asdict

from callboard import Runtime
from callboard.actors.cli.columns import columns_of, counted, print_wrapped, wrapped
from callboard.actors.cli.listed_tools import ListedTool, chosen, tools_shown
from callboard.actors.cli.terminal import print_json, print_line, printable
from callboard.actors.cli.workspace_setup import set_up
from callboard.actors.mcp.remote_values import ServerStatus
from callboard.protocol.options import ToolOffer

#: Tools of one server that are told to be left out, in the form for people.
LEFT_OUT_SHOWN: Final = 20


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """A row each for people, all of those that are named, or JSON with the schemas."""
    given = set_up(options)
    if given.note:
        sys.stderr.write(f"{wrapped(printable(given.note), columns_of(sys.stderr), '  ')}\n")
    async with Runtime(given.settings, given.tools) as runtime:
        offers, servers = runtime.tools(), runtime.mcp_servers()
        offered = frozenset(offer.definition.name for offer in runtime.offered())
    tools = [ListedTool.of(offer, offered, given.settings.workspace) for offer in offers]
    if options.json:
        wanted = {each.name for each in chosen(tools, options.names)}
        pairs = zip(offers, tools, strict=True)
        shown = [_as_json(offer, tool) for offer, tool in pairs if tool.name in wanted]
        print_json({"tools": shown, "mcp_servers": [asdict(server) for server in servers]})
        return
    print_line(tools_shown(tools, options.names, columns_of(sys.stdout)))
    for server in servers if not options.names else ():
        print_wrapped(printable(_server_line(server)))


def _server_line(server: ServerStatus) -> str:
    """An MCP server: how it is, and what of it is not offered."""
    count = counted(len(server.tools), "tool") if server.tools else "no tools"
    told = [f"MCP server {server.name}: {server.state}, {count}", server.title, server.reason]
    told += [f"left out: {name} ({why})" for name, why in islice(server.left_out.items(), LEFT_OUT_SHOWN)]
    if len(server.left_out) > LEFT_OUT_SHOWN:
        told.append(f"{len(server.left_out) - LEFT_OUT_SHOWN:,} more are left out, which --json tells")
    return "; ".join(filter(None, told))


def _as_json(offer: ToolOffer, tool: ListedTool) -> dict[str, object]:
    contract = offer.contract
    return {
        "name": offer.definition.name,
        "isolation": contract.isolation,
        "timeout_seconds": contract.timeout_seconds,
        "risk": contract.risk,
        "policy": tool.policy,
        "rule": offer.rule,
        "state": tool.state,
        "confinement": offer.confinement,
        "latency": contract.latency,
        "needs_approval": contract.needs_approval,
        "description": offer.definition.description,
        "parameters": offer.definition.parameters,
    }
