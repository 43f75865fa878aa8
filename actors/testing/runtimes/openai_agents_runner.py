"""openai-agents: Runner.run_streamed with a session, per-tool timeouts and approvals."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any, ClassVar, Final

from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    retry_policies,
)
from openai import AsyncOpenAI

from callboard.actors.testing.runtimes.adapter import BLOCKS, EXITS, PLAIN_WORK, SAME_ID, NotPromised, Setup

TOOLS_PAGE: Final = "https://openai.github.io/openai-agents-python/tools/"


class OpenaiAgents:
    """The Runner; its runs have no deadline of their own, so the caller's asyncio.timeout() is theirs."""

    name: ClassVar = "openai-agents"
    distribution: ClassVar = "openai-agents"
    isolates: ClassVar = False
    not_promised: ClassVar = (
        NotPromised(
            (*PLAIN_WORK, *BLOCKS, "I5 bounded: a plain tool that hangs is one"),
            "timeouts are supported only for async function tools",
            TOOLS_PAGE + "#function-tool-timeouts",
        ),
        NotPromised(EXITS, "tools run in the process of the runner", TOOLS_PAGE),
        NotPromised(
            (*SAME_ID, "I1 terminal once: calls that repeat an earlier id"),
            "an id that was used before is refused as an error of the model",
            TOOLS_PAGE,
        ),
        NotPromised(("I2 valid history: arguments",), "that arguments are repaired is not said", TOOLS_PAGE),
        NotPromised(("I3 order",), "the order of results is not said", TOOLS_PAGE),
    )

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._client = AsyncOpenAI(base_url=setup.base_url, api_key="none", timeout=setup.idle_seconds)
        tools = [
            function_tool(setup.tools.look, timeout=setup.call_seconds),
            function_tool(setup.tools.again),
            function_tool(setup.tools.write, needs_approval=True),
        ]
        retry = ModelRetrySettings(max_retries=setup.model_attempts - 1, policy=retry_policies.network_error())
        self._agent = Agent(
            "kit",
            model=OpenAIChatCompletionsModel(setup.model, self._client),
            tools=list(tools),
            model_settings=ModelSettings(retry=retry if setup.model_attempts > 1 else None),
        )
        self._config = RunConfig(tool_not_found_behavior="return_error_to_model", tracing_disabled=True)
        self._sessions: defaultdict[str, SQLiteSession] = defaultdict(lambda: SQLiteSession("kit"))

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what the Runner raises, and TimeoutError after the run's deadline."""
        session = self._sessions[conversation]
        async with asyncio.timeout(self._setup.run_seconds):
            result = await self._run(text, session)
            while result.interruptions:
                state = result.to_state()
                for item in result.interruptions:
                    allowed = self._setup.may_run(json.loads(item.arguments or "{}"))
                    state.approve(item) if allowed else state.reject(item)
                result = await self._run(state, session)
        return str(result.final_output)

    async def _run(self, what: Any, session: SQLiteSession) -> Any:
        result = Runner.run_streamed(
            self._agent, what, max_turns=self._setup.max_steps, session=session, run_config=self._config
        )
        try:
            async for _ in result.stream_events():
                """The answer is streamed; the result is complete once the events are."""
        except asyncio.CancelledError:
            result.cancel()
            raise
        return result

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        await self._client.close()
