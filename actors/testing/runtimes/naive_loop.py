"""A bare loop on the openai SDK, as one first writes it. It promises nothing, and shows what that means."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar, Final

import anyio
from openai import AsyncOpenAI

from callboard.actors import tool
from callboard.actors.testing.runtimes.adapter import NotPromised, Setup

PAGE: Final = "https://github.com/openai/openai-python/blob/main/README.md"
# What a first question would load is loaded here, once, before the conversations' processes are forked.
AsyncOpenAI(api_key="none").chat.completions  # noqa: B018
anyio.run(anyio.sleep, 0)


class NaiveLoop:
    """Asks, runs what is asked for one after the other, and asks again."""

    name: ClassVar = "bare-loop"
    distribution: ClassVar = "openai"
    isolates: ClassVar = False
    not_promised: ClassVar = (NotPromised(("I",), "the SDK sends requests; running tools is the caller's", PAGE),)

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._client = AsyncOpenAI(base_url=setup.base_url, api_key="none", timeout=setup.idle_seconds)
        self._tools = setup.tools.by_name()
        self._schemas: Any = [_schema(each) for each in self._tools.values()]
        self._messages: defaultdict[str, list[Any]] = defaultdict(list)

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what the SDK, json or a tool raises, and TimeoutError after the run's deadline."""
        messages = self._messages[conversation]
        messages.append({"role": "user", "content": text})
        async with asyncio.timeout(self._setup.run_seconds):
            for _ in range(self._setup.max_steps):
                asking = self._client.chat.completions.stream(
                    model=self._setup.model, messages=messages, tools=self._schemas
                )
                async with asking as stream:
                    message = (await stream.get_final_completion()).choices[0].message
                messages.append(message.to_dict())
                if not message.tool_calls:
                    return message.content or ""
                for call in message.tool_calls:
                    result = await self._run(call.function.name, json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        raise RuntimeError("the step limit is reached")

    async def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "write" and not self._setup.may_run(arguments):
            return "denied"
        result = self._tools[name](**arguments)
        return await result if inspect.isawaitable(result) else result

    async def close(self) -> None:
        await self._client.close()


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The function as a Chat Completions request offers it; by hand this is a dictionary for each tool."""
    known = tool(function).definition
    about = {"name": known.name, "description": known.description, "parameters": dict(known.parameters)}
    return {"type": "function", "function": about}
