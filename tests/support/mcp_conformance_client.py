"""What the MCP conformance suite runs as the client under test: `python mcp_conformance_client.py [URL]`.

A runtime with the suite's server among its settings, which calls every tool that is offered. The suite says by
MCP_CONFORMANCE_SCENARIO what it is about, and by MCP_CONFORMANCE_CONTEXT (JSON) what the scenario needs. In place of a
browser, BROWSER is to name a program that opens a page and follows it, such as `curl -sL %s`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callboard import Runtime, Settings
from callboard.actors.calls.approvals import Approval
from callboard.actors.mcp.mcp_servers import McpServer, OAuth
from callboard.protocol.commands import AskApproval
from callboard.protocol.tools import Risk

#: By type in a schema.
SAMPLES: Mapping[str, object] = {
    "integer": 2,
    "number": 2,
    "string": "text",
    "boolean": True,
    "array": [],
    "object": {},
}


def sample(schema: Mapping[str, object]) -> dict[str, object]:
    """Arguments that fit: those that are required."""
    properties, required = schema.get("properties"), schema.get("required")
    assert isinstance(properties, Mapping)
    names = required if isinstance(required, list) else []
    return {name: SAMPLES.get(str(properties.get(name, {}).get("type")), "text") for name in names}


def approve(_question: AskApproval) -> Approval:
    return Approval.ONCE


def login(scenario: str, context: Mapping[str, str]) -> OAuth | None:
    """How to sign in, where the scenario is about that."""
    if not scenario.startswith("auth/"):
        return None
    known = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    document = "https://conformance-test.local/client-metadata.json" if scenario == "auth/basic-cimd" else ""
    return OAuth(**known, machine="client-credentials" in scenario, client_metadata_url=document)


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    # The suite's own authorization servers are on loopback.
    server = McpServer(url=url, tools={"*": Risk.READ}, oauth=login(scenario, context))
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        settings = Settings(mcp_servers={"suite": server}, config_dir=Path(folder), state_dir=Path(folder) / "state")
        await play(settings, scenario, context)


async def play(settings: Settings, scenario: str, context: Mapping[str, Any]) -> None:
    """Call what the suite wants, and every tool."""
    async with Runtime(settings, approve=approve) as runtime:
        for status in runtime.mcp_servers():
            sys.stdout.write(f"{status}\n")
        for call in context.get("toolCalls", ()):
            await runtime.call_tool(f"suite_{call['name']}", call["arguments"])
        for offer in runtime.tools():
            if offer.definition.name.startswith("suite_"):
                given = sample(offer.definition.parameters)
                if offer.definition.name == "suite_json_schema_echo":  # the scenario wants a server's own words back
                    told = {tool.name: tool.parameters for tool in runtime.mcp("suite").tools}
                    given = {"schema": told["json_schema_2020_12_tool"]}
                result = await runtime.call_tool(offer.definition.name, given)
                sys.stdout.write(f"{offer.definition.name}: {result.content[:500]}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
