"""autogen for compared.py: an AssistantAgent with its limit of tool iterations and its cancellation token."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from callboard.actors.testing.runtimes.adapter import Setup


class Autogen:
    """Tools and runs have no timeout of their own: the caller's asyncio.timeout() is theirs, and cancels the token."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        info = ModelInfo(
            vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
        )
        self._client = OpenAIChatCompletionClient(
            model=setup.model,
            base_url=setup.base_url,
            api_key="none",
            model_info=info,
            timeout=setup.idle_seconds,
            max_retries=setup.model_attempts - 1,
        )
        functions = (setup.tools.look, setup.tools.again)
        self._tools = [FunctionTool(each, description=each.__doc__ or "", name=each.__name__) for each in functions]

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what the agent raises, and TimeoutError after the run's deadline."""
        agent = AssistantAgent(
            "kit",
            self._client,
            tools=list(self._tools),
            model_client_stream=True,
            max_tool_iterations=self._setup.max_steps,
        )
        token = CancellationToken()
        try:
            async with asyncio.timeout(self._setup.run_seconds):
                result = await agent.run(task=text, cancellation_token=token)
        finally:
            token.cancel()
        return str(getattr(result.messages[-1], "content", ""))

    async def close(self) -> None:
        await self._client.close()
