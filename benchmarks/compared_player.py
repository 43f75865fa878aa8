"""Plays one case of compared.py on one framework: the side that may die. It runs in that framework's environment.

    python benchmarks/compared_player.py NAME URL FOLDER

What happens is written to FOLDER/log as lines of JSON; FOLDER/looked ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import resource
from pathlib import Path
from typing import Any

from compared_tools import misbehaving

from callboard.actors.testing.runtimes.adapter import Setup
from callboard.actors.testing.runtimes.tools import write_down

#: Those of the kit, and two more beside this file.
_KIT = "callboard.actors.testing.runtimes"
ADAPTERS = {
    "callboard": f"{_KIT}.callboard_runtime:Callboard",
    "pydantic-ai": f"{_KIT}.pydantic_ai_agent:PydanticAi",
    "openai-agents": f"{_KIT}.openai_agents_runner:OpenaiAgents",
    "langgraph": f"{_KIT}.langgraph_agent:Langgraph",
    "autogen": "compared_autogen:Autogen",
    "agent-framework": "compared_agent_framework:AgentFramework",
}
#: Also the names of the scripts.
VICTIM, BESIDE, ANSWER = "victim", "beside", "done"
CALL_SECONDS, RUN_SECONDS, IDLE_SECONDS = 2.0, 6.0, 5.0
MAX_STEPS, MODEL_ATTEMPTS = 10, 3
#: Before the victim is asked, and how long the others go on when it has ended.
PAUSE_SECONDS, AFTER_SECONDS = 0.1, 1.5
WARM_UPS = 3
CLOSE_SECONDS = 5.0
MEMORY_BYTES = 1024**3


class Player:
    """Asks, and writes down."""

    def __init__(self, adapter: Any, folder: Path) -> None:
        self._adapter = adapter
        self._folder = folder
        self._over = asyncio.Event()

    def note(self, what: str, number: int = 0, detail: str = "") -> None:
        write_down(self._folder / "log", what, number, detail)

    async def play(self) -> None:
        for number in range(WARM_UPS):
            if (said := await self.outcome(f"warm-up-{number}", BESIDE)) != ANSWER:
                self.note("broken", detail=said)
                return
        self.note("ready", detail=str(resident_bytes()))
        beside = [asyncio.create_task(self.beside(first)) for first in (1, 2)]
        await asyncio.sleep(PAUSE_SECONDS)
        self.note("asked")
        self.note("ended", detail=await self.outcome(VICTIM, VICTIM))
        await asyncio.sleep(AFTER_SECONDS)
        self._over.set()
        await asyncio.wait(beside)
        self.note("settled")
        while not (self._folder / "looked").exists():  # noqa: ASYNC110 - it is another process that says so
            await asyncio.sleep(PAUSE_SECONDS)

    async def beside(self, number: int) -> None:
        """One question after the other, without a pause; two of these are at work, of odd and of even numbers."""
        while not self._over.is_set():
            self.note("ping", number)
            self.note("pong", number, await self.outcome(f"{BESIDE}-{number}", BESIDE))
            number += 2

    async def outcome(self, conversation: str, text: str) -> str:
        try:
            return str(await self._adapter.ask(conversation, text))[:200]
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is told
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def main(name: str, url: str, folder: Path) -> None:
    module, _, attribute = ADAPTERS[name].partition(":")
    adapter = getattr(importlib.import_module(module), attribute)
    setup = Setup(
        url,
        misbehaving(folder),
        MAX_STEPS,
        RUN_SECONDS,
        call_seconds=CALL_SECONDS,
        idle_seconds=IDLE_SECONDS,
        model_attempts=MODEL_ATTEMPTS,
    )
    made = adapter(setup)
    await Player(made, folder).play()
    async with asyncio.timeout(CLOSE_SECONDS):
        await made.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=list(ADAPTERS))
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    asyncio.run(main(asked.name, asked.url, asked.folder))
    # Threads that a tool still holds would keep the process for as long as it works.
    os._exit(0)
