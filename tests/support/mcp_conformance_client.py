"""What the MCP conformance suite runs as the client under test: `python mcp_conformance_client.py [URL]`.

A runtime with the suite's server among its settings, which calls every tool that is offered. The suite says by
MCP_CONFORMANCE_SCENARIO what it is about, and by MCP_CONFORMANCE_CONTEXT (JSON) what the scenario needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping

from callboard import Runtime, Settings
from callboard.actors.calls.approvals import Approval
from callboard.actors.mcp.mcp_servers import McpServer
from callboard.protocol.commands import AskApproval

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


async def main(url: str) -> None:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    server = McpServer(url=url, tools={"*": "read"}, revision=context.get("revision", "auto"))
    settings = Settings(mcp_servers={"suite": server})
    async with Runtime(settings, approve=approve) as runtime:
        for status in runtime.mcp_servers():
            sys.stdout.write(f"{status}\n")
        for offer in runtime.tools():
            if offer.definition.name.startswith("suite_"):
                result = await runtime.call_tool(offer.definition.name, sample(offer.definition.parameters))
                sys.stdout.write(f"{offer.definition.name}: {result.content[:500]}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
