"""pydantic-ai: one Agent, with its own timeouts, limits, approvals and error hook."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from openai import AsyncOpenAI
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    Tool,
    UsageLimits,
    capture_run_messages,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks
from pydantic_ai.exceptions import RetryModelRequest, RunCancelled, ToolFailed
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from callboard.actors.testing.runtimes.adapter import BLOCKS, EXITS, PLAIN_WORK, SAME_ID, NotPromised, Setup

TOOLS_PAGE: Final = "https://ai.pydantic.dev/tools-advanced/"
#: "Consider raising the limit", says the documentation: a conversation may hold this many failing calls of one tool.
RETRIES: Final = 20


class PydanticAi:
    """Agent.run with its timeouts and limits, and a hook that makes a failed result of what a tool raises."""

    name: ClassVar = "pydantic-ai"
    distribution: ClassVar = "pydantic-ai-slim"
    isolates: ClassVar = False
    not_promised: ClassVar = (
        NotPromised(
            (*PLAIN_WORK, *BLOCKS),
            "a timeout is answered with a retry prompt; that a thread or a blocked loop is ended is not said",
            TOOLS_PAGE + "#tool-timeout",
        ),
        NotPromised(
            EXITS,
            "tools run in the process of the agent",
            TOOLS_PAGE,
        ),
        NotPromised(SAME_ID, "ids that repeat in a turn are refused as an error of the model", TOOLS_PAGE),
    )

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._client = AsyncOpenAI(base_url=setup.base_url, api_key="none", timeout=setup.idle_seconds)
        self._histories: dict[str, Any] = {}
        tools: list[Any] = [setup.tools.look, setup.tools.again, Tool(setup.tools.write, requires_approval=True)]
        hooks: list[Any] = [HandleDeferredToolCalls(self._decide), Hooks(tool_execute_error=_as_result)]
        if setup.model_attempts > 1:
            hooks.append(Hooks(model_request_error=self._once_more))
        self._agent: Any = Agent(
            OpenAIChatModel(setup.model, provider=OpenAIProvider(openai_client=self._client)),
            tools=tools,
            tool_timeout=setup.call_seconds,
            retries={"tools": RETRIES},
            capabilities=hooks,
        )

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what Agent.run raises; the history is kept in the ways documented for cancelled and failed runs."""
        with capture_run_messages() as messages:
            try:
                result = await self._agent.run(
                    text,
                    message_history=self._histories.get(conversation),
                    usage_limits=UsageLimits(request_limit=self._setup.max_steps),
                    timeout=self._setup.run_seconds,
                    event_stream_handler=_drain,
                )
            except asyncio.CancelledError as error:
                stopped = RunCancelled.from_cancellation(error)
                self._histories[conversation] = stopped.all_messages() if stopped else list(messages)
                raise
            except Exception:
                self._histories[conversation] = list(messages)
                raise
        self._histories[conversation] = result.all_messages()
        return str(result.output)

    def _decide(self, context: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
        answers = {call.tool_call_id: self._setup.may_run(call.args_as_dict()) for call in requests.approvals}
        return requests.build_results(approvals=answers)

    async def _once_more(self, context: RunContext[None], *, request_context: Any, error: Exception) -> Any:
        raise error if request_context.attempt >= self._setup.model_attempts else RetryModelRequest from error

    async def close(self) -> None:
        await self._client.close()


async def _as_result(context: RunContext[None], *, error: Exception, **_: Any) -> Any:
    raise ToolFailed(f"{type(error).__name__}: {error}") from error


async def _drain(context: RunContext[None], events: Any) -> None:
    async for _ in events:
        """Asking for the events is what makes the model's answer a stream."""
