"""agent-framework for compared.py: an Agent with the limits of its function invocation."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI

from callboard.actors.testing.runtimes.adapter import Setup


class AgentFramework:
    """Its time budget is looked at after calls have ended; so a run has the caller's asyncio.timeout() too."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._client = AsyncOpenAI(
            base_url=setup.base_url,
            api_key="none",
            timeout=setup.idle_seconds,
            max_retries=setup.model_attempts - 1,
        )
        chat: Any = OpenAIChatCompletionClient(setup.model, async_client=self._client)
        chat.function_invocation_configuration["max_iterations"] = setup.max_steps
        chat.function_invocation_configuration["max_duration_seconds"] = setup.run_seconds
        functions = (setup.tools.look, setup.tools.again)
        self._agent: Any = Agent(chat, name="kit", tools=[tool(each, name=each.__name__) for each in functions])

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what the agent raises, and TimeoutError after the run's deadline."""
        async with asyncio.timeout(self._setup.run_seconds):
            stream = self._agent.run(text, stream=True)
            async for _ in stream:
                """The answer is streamed; the response is complete once the updates are."""
            return str((await stream.get_final_response()).text)

    async def close(self) -> None:
        await self._client.close()
