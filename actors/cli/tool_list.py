"""`callboard tools`: what a model would be offered in this workspace, what holds each tool, and what runs unasked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from callboard import Decision, Runtime
from callboard.actors.cli.terminal import print_json, print_line, printable, table
from callboard.actors.cli.workspace_setup import set_up
from callboard.actors.mcp.remote_values import ServerStatus
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import depends_on_call, staged

_HEADINGS: Final = ("TOOL", "RISK", "RUNS IN", "DEADLINE", "STATE", "POLICY", "CONFINED TO", "WHAT IT DOES")
#: What the policy's decision means for a model.
_POLICY: Final = {Decision.ALLOW: "allowed", Decision.ASK: "asked", Decision.DENY: "not offered"}
#: Where each call is judged, by its arguments; and where the edit is asked about which a call has staged.
_BY_RULE: Final = ((depends_on_call, "each call"), (staged, "staged"))


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """A table for people, or JSON with the schemas."""
    given = set_up(options)
    if given.note:
        sys.stderr.write(f"{printable(given.note)}\n")
    async with Runtime(given.settings, given.tools) as runtime:
        tools, servers = runtime.tools(), runtime.mcp_servers()
        healthy = {offer.definition.name for offer in runtime.offered()}
    rows = [(offer, _state(offer, offer.definition.name in healthy)) for offer in tools]
    if options.json:
        shown = [_as_json(offer, state) for offer, state in rows]
        print_json({"tools": shown, "mcp_servers": [asdict(server) for server in servers]})
    else:
        print_line(table([_HEADINGS, *(_row(offer, state, given.settings.workspace) for offer, state in rows)]))
        for server in servers:
            print_line(printable(_server_line(server)))


def _state(offer: ToolOffer, is_healthy: bool) -> str:
    """A tool that fails too often is withdrawn; one that is denied is not asked for its health."""
    return "healthy" if is_healthy or offer.decision is Decision.DENY else "withdrawn"


def _policy(offer: ToolOffer) -> str:
    shown = (shown for words, shown in _BY_RULE if words(offer.definition.name) == offer.rule)
    return next(shown, _POLICY[offer.decision])


def _row(offer: ToolOffer, state: str, workspace: Path | None) -> tuple[str, ...]:
    contract, definition = offer.contract, offer.definition
    first_line = definition.description.partition("\n")[0]
    confined = offer.confinement
    if workspace is not None:
        confined = confined.replace(str(workspace), "the workspace")
    deadline = f"{contract.timeout_seconds:g} s"
    cells = (definition.name, contract.risk, contract.isolation, deadline, state, _policy(offer), confined, first_line)
    return tuple(map(printable, cells))


def _server_line(server: ServerStatus) -> str:
    """An MCP server: how it is, and what of it is not offered."""
    count = f"{len(server.tools)} tools" if server.tools else "no tools"
    told = [f"MCP server {server.name}: {server.state}, {count}", server.title, server.reason]
    told += [f"left out: {name} ({why})" for name, why in server.left_out.items()]
    return "; ".join(filter(None, told))


def _as_json(offer: ToolOffer, state: str) -> dict[str, object]:
    contract = offer.contract
    return {
        "name": offer.definition.name,
        "isolation": contract.isolation,
        "timeout_seconds": contract.timeout_seconds,
        "risk": contract.risk,
        "policy": _policy(offer),
        "rule": offer.rule,
        "state": state,
        "confinement": offer.confinement,
        "latency": contract.latency,
        "needs_approval": contract.needs_approval,
        "description": offer.definition.description,
        "parameters": offer.definition.parameters,
    }
