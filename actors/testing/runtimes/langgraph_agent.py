"""langgraph: create_agent of langchain, with a checkpointer and the middleware for errors, limits and approvals."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    ToolErrorMiddleware,
)
from langchain.agents.middleware.types import ToolCallRequest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import SecretStr

from callboard.actors.testing.runtimes.adapter import BLOCKS, EXITS, PLAIN_WORK, SAME_ID, NotPromised, Setup

MIDDLEWARE_PAGE: Final = "https://docs.langchain.com/oss/python/langchain/middleware/built-in"
TIMEOUTS_PAGE: Final = "https://docs.langchain.com/oss/python/langgraph/timeout-and-error-handling"
HISTORY_PAGE: Final = "https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY"


class Langgraph:
    """The agent graph. Its steps have a timeout, its runs have none: they get the caller's asyncio.timeout()."""

    name: ClassVar = "langgraph"
    distribution: ClassVar = "langgraph"
    isolates: ClassVar = False
    not_promised: ClassVar = (
        NotPromised(
            (*PLAIN_WORK, *BLOCKS, "I5 bounded: an async tool", "I5 bounded: a plain tool"),
            "timeouts are those of nodes and steps: they fail the run, and only async nodes can be stopped",
            TIMEOUTS_PAGE,
        ),
        NotPromised(
            ("I7 cancel: the conversation can go on", "I2 valid history: the conversation can go on"),
            "a history whose calls have no results is an error that the caller repairs",
            HISTORY_PAGE,
        ),
        NotPromised(EXITS, "tools run in the process of the graph", MIDDLEWARE_PAGE),
        NotPromised(SAME_ID, "results are told apart by their call ids", HISTORY_PAGE),
        NotPromised(("I2 valid history: arguments",), "that arguments are repaired is not said", HISTORY_PAGE),
        NotPromised(
            ("I6 budgets hold",),
            "the limit is that of one invocation, and an approval resumes the run with another",
            MIDDLEWARE_PAGE + "#model-call-limit",
        ),
        NotPromised(("I3 order",), "the order of results is not said", MIDDLEWARE_PAGE),
    )

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        model = ChatOpenAI(
            model=setup.model,
            base_url=setup.base_url,
            api_key=SecretStr("none"),
            timeout=setup.idle_seconds,
            streaming=True,
        )
        middleware: list[Any] = [
            ToolErrorMiddleware(_as_result),
            ModelCallLimitMiddleware(run_limit=setup.max_steps, exit_behavior="error"),
            HumanInTheLoopMiddleware(interrupt_on={"write": True}),
        ]
        if setup.model_attempts > 1:
            middleware.append(ModelRetryMiddleware(max_retries=setup.model_attempts - 1, on_failure="error"))
        self._agent: Any = create_agent(
            model,
            [setup.tools.look, setup.tools.again, setup.tools.write],
            middleware=middleware,
            checkpointer=InMemorySaver(),
        )
        self._agent.step_timeout = setup.call_seconds + setup.idle_seconds

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what the graph raises, and TimeoutError after the run's deadline."""
        config = {"configurable": {"thread_id": conversation}}
        async with asyncio.timeout(self._setup.run_seconds):
            result = await self._agent.ainvoke({"messages": [("user", text)]}, config)
            while interrupts := result.get("__interrupt__"):
                wanted = interrupts[0].value["action_requests"]
                answers = [{"type": "approve" if self._setup.may_run(each["args"]) else "reject"} for each in wanted]
                result = await self._agent.ainvoke(Command(resume={"decisions": answers}), config)
        return str(result["messages"][-1].text)

    async def close(self) -> None:
        """The model's client closes with its process."""


def _as_result(error: Exception, request: ToolCallRequest) -> str:
    return f"{type(error).__name__}: {error}"
