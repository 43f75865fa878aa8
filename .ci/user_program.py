"""What a program of a user looks like: .ci/check_wheel.py runs it against the installed wheel, and mypy reads it."""

from __future__ import annotations

import asyncio
import os

from callboard import Conversation, Outcome, Reply, Runtime, RunTool, Settings, TextDelta, ToolContext, UsageError, tool
from callboard.protocol.content import ToolMessage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


@tool(risk="read", timeout=20)
def double(number: int, context: ToolContext) -> dict[str, int]:
    """Double a number."""
    assert context.remaining_seconds > 0
    return {"doubled": number * 2, "process": os.getpid()}


async def main() -> None:
    """Ask twice in one conversation, with a tool and with a stream."""
    asks = ScriptedTurn(calls=(ScriptedCall("double", {"number": 21}),))
    settings = Settings(model="scripted/any", script=[asks, "It is 42.", "You are welcome."])
    async with Runtime(settings, tools=[double]) as runtime:
        conversation = Conversation()
        reply = await runtime.ask("What is twice 21?", conversation=conversation)
        assert (reply.text, reply.outcome, len(reply.steps)) == ("It is 42.", Outcome.ANSWERED, 2), reply
        (result,) = [message.content for message in reply.messages if isinstance(message, ToolMessage)]
        assert '"doubled":42' in result, result
        assert f'"process":{os.getpid()}' not in result, "a tool runs in a process of its own"
        async for event in runtime.stream("Thank you.", conversation=conversation):
            match event:
                case TextDelta(text):
                    print(text)
                case RunTool(name=name):
                    raise AssertionError(f"the script calls no tool here, but {name} was run")
                case Reply(text=text):
                    assert text == "You are welcome."
        assert runtime.metrics().count("callboard.tool.calls", tool="double", outcome="ok") == 1


if __name__ == "__main__":
    asyncio.run(main())
    with Runtime() as offline:
        print(offline.ask_sync("Where is a file closed?", model="offline/code-context").text)
    try:
        Settings(model="nowhere")
    except UsageError as error:
        print(error)
