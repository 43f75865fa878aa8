"""callboard's own Runtime, under the same rules as the others."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any, ClassVar, Final

from callboard.actors import (
    Conversation,
    Runtime,
    following,  # noqa: F401 - a Runtime would load it: here that is done once, before the forks
    taking_up,  # noqa: F401 - likewise
    tool,
)
from callboard.actors.settings import Settings
from callboard.actors.testing.runtimes.adapter import NotPromised, Setup
from callboard.protocol.commands import AskApproval
from callboard.providers import http_adapters, transport  # noqa: F401 - likewise

PAGE: Final = "tools.md#where-a-tool-runs"
Settings.model_rebuild()  # likewise: pydantic would do it for the first Settings


class Callboard:
    """A Runtime with one async tool (a task) and two plain ones (processes)."""

    name: ClassVar = "callboard"
    distribution: ClassVar = "callboard"
    isolates: ClassVar = True
    not_promised: ClassVar = (
        NotPromised(
            ("I5 bounded: an async tool that blocks ends",),
            "the call ends at its deadline, and its loop is abandoned; a thread cannot be killed",
            PAGE,
        ),
    )

    def __init__(self, setup: Setup) -> None:
        tools: list[Any] = [
            tool(timeout=setup.call_seconds)(setup.tools.look),
            tool(timeout=setup.call_seconds)(setup.tools.again),
            tool(timeout=setup.call_seconds, needs_approval=True)(setup.tools.write),
        ]
        settings = Settings(
            model=f"openai-compatible/{setup.model}",
            base_url=setup.base_url,
            max_steps=setup.max_steps,
            request_timeout_seconds=setup.run_seconds,
            stream_idle_timeout_seconds=setup.idle_seconds,
            tool_failure_budget=None,  # the tools break down on purpose: withdrawing them would hide what is looked at
        )
        self._conversations: defaultdict[str, Conversation] = defaultdict(Conversation)
        self._setup = setup
        self._runtime = Runtime(settings, tools, approve=self._approve).start()

    async def ask(self, conversation: str, text: str) -> str:
        """Raises what Runtime.ask raises."""
        return (await self._runtime.ask(text, conversation=self._conversations[conversation])).text

    def _approve(self, question: AskApproval) -> bool:
        return self._setup.may_run(json.loads(question.arguments))

    async def close(self) -> None:
        await asyncio.to_thread(self._runtime.stop)
