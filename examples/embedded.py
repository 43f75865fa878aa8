"""callboard inside a program of its own: one runtime, asked from sync code, from threads and from asyncio.

    python examples/embedded.py

The model is the scripted one, so that it runs without key and network; name another in `Settings(model=...)`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

from callboard import Reply, Runtime, Settings, TextDelta, tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

USER: ContextVar[str] = ContextVar("user")
"""The context of the caller goes with the request: into its tools, approvals, log records and spans."""


@tool(isolation="thread", risk="read")
def who_asks() -> str:
    """The name of the user."""
    return USER.get()


def script(request: ModelRequest) -> ScriptedTurn:
    """Stands for a model: calls the tool, then says what it gave."""
    results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
    return ScriptedTurn(f"You are {results[-1]}.") if results else ScriptedTurn(calls=(ScriptedCall("who_asks"),))


def ask_as(runtime: Runtime, user: str) -> str:
    """From sync code, on any thread."""
    USER.set(user)
    return runtime.ask_sync("Who am I?").text


async def stream_as(runtime: Runtime, user: str) -> str:
    """From asyncio code: the answer piece by piece."""
    USER.set(user)
    async for event in runtime.stream("Who am I?"):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, Reply):
            print()
            return event.text
    raise AssertionError("a stream ends with its Reply, or raises")


def main() -> None:
    """One runtime for the whole program: start it once, stop it at the end."""
    with Runtime(Settings(model="scripted/model", script=script), [who_asks]) as runtime:
        print(ask_as(runtime, "Ada"))
        with ThreadPoolExecutor() as pool:
            print(*pool.map(ask_as, [runtime] * 2, ["Grace", "Alan"]), sep="\n")
        asyncio.run(stream_as(runtime, "Edsger"))
        print(f"{runtime.metrics().count('callboard.requests', outcome='answered'):g} requests were answered.")


if __name__ == "__main__":
    main()
