"""Plays one conversation on one runtime, in a process of its own: the side of the harness that may die."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from callboard.actors.testing.runtimes.adapter import Adapter, AdapterType, Setup
from callboard.actors.testing.runtimes.conversation import MAX_CALLS
from callboard.actors.testing.runtimes.log import forget, read_log
from callboard.actors.testing.runtimes.tools import tools_for, write_down
from callboard.protocol.testing.observation import HANG_SECONDS, SLACK_SECONDS, Conversation, Does, What

#: Between two questions of the conversation beside.
PING_SECONDS: Final = 0.05
#: The conversation beside is one question, asked over and over; also the name of its script.
BESIDE_QUESTION: Final = "beside"
#: Asked before anything is measured: what starts with its first call has started then. Also the name of its script.
WARM_UP_QUESTION: Final = "warm-up"
WARM_UP_CALLS: Final = ("look", *("again", "write") * (MAX_CALLS // 2))
WARM_UP_SECONDS: Final = 5.0
WARM_UP_TRIES: Final = 3
#: What the harness reads when an adapter itself fails.
ADAPTER_FAILED: Final = "the adapter"
_WORKS_ON: Final = (f'"{Does.HANGS}"', f'"{Does.BLOCKS}"')


def play(adapter_type: AdapterType, conversation: Conversation, name: str, base_url: str, log: Path) -> None:
    """Ask both questions, and write to `log` what was seen. The questions are "NAME-1" and "NAME-2"."""
    asyncio.run(_play(adapter_type, conversation, name, base_url, log))


async def _play(adapter_type: AdapterType, conversation: Conversation, name: str, base_url: str, log: Path) -> None:
    tools = tools_for(log, HANG_SECONDS, hard_exit=adapter_type.isolates)
    try:
        adapter = adapter_type(Setup(base_url, tools, conversation.max_steps, conversation.run_seconds))
    except Exception as error:  # noqa: BLE001 - the harness reports what an adapter raises
        write_down(log, What.DIED, detail=f"{ADAPTER_FAILED} could not be made: {_words(error)}")
        return
    if failed := await _warm_up(adapter, log):
        write_down(log, What.DIED, detail=f"{ADAPTER_FAILED} ran no tool, and answered: {failed}")
        return
    player = _Player(adapter, conversation, name, log)
    await player.first_question()
    await player.second_question()
    await player.late_effects()
    try:
        await adapter.close()
    except Exception as error:  # noqa: BLE001 - as above
        write_down(log, What.DIED, detail=f"{ADAPTER_FAILED} could not be closed: {_words(error)}")


async def _warm_up(adapter: Adapter, log: Path) -> str:
    """Ask until all calls of a turn ran: what is started or loaded for a first call is not what is looked at.

    Returns how the last answer read where no tool ran at all; then the adapter does not work. "" if it does.
    """
    until = time.monotonic() + WARM_UP_SECONDS
    count, ran, outcome = 0, 0, ""
    while ran < len(WARM_UP_CALLS) and time.monotonic() < until and (ran or count < WARM_UP_TRIES):
        count += 1
        forget(log)
        task = asyncio.create_task(adapter.ask(f"{WARM_UP_QUESTION}-{count}", WARM_UP_QUESTION))
        await asyncio.wait({task}, timeout=WARM_UP_SECONDS)
        outcome = _outcome(task)
        ran = sum(each.what is What.EFFECT for each in read_log(log))
    forget(log)
    return "" if ran else outcome


class _Player:
    def __init__(self, adapter: Adapter, conversation: Conversation, name: str, log: Path) -> None:
        self._adapter = adapter
        self._conversation = conversation
        self._name = name
        self._log = log
        self._over = asyncio.Event()

    async def first_question(self) -> None:
        """Ask, with the conversation beside it, and cancel where that is planned."""
        beside = asyncio.create_task(self._beside())
        await self._question(1, self._conversation.cancel_after_seconds)
        self._over.set()
        await asyncio.wait({beside}, timeout=HANG_SECONDS + SLACK_SECONDS)

    async def second_question(self) -> None:
        """Ask again in the same conversation, however the first question ended."""
        await self._question(2, None)

    async def late_effects(self) -> None:
        """Wait until tools that work on past their deadline have had their effect."""
        seen = read_log(self._log)
        ended = {each.number for each in seen if each.what is What.STOPPED}
        begun = [each for each in seen if each.what is What.STARTED and each.number not in ended]
        hanging = [each.at for each in begun if any(word in each.detail for word in _WORKS_ON)]
        if hanging:
            await asyncio.sleep(max(hanging) + HANG_SECONDS + SLACK_SECONDS / 2 - time.monotonic())

    async def _question(self, number: int, cancel_after: float | None) -> None:
        write_down(self._log, What.QUESTION, number)
        task = asyncio.create_task(self._adapter.ask(self._name, f"{self._name}-{number}"))
        if cancel_after is not None:
            await asyncio.wait({task}, timeout=cancel_after)
            if not task.done():
                write_down(self._log, What.CANCEL)
                task.cancel()
        await asyncio.wait({task}, timeout=self._conversation.run_seconds + SLACK_SECONDS)
        if not task.done():
            write_down(self._log, What.OVERDUE, number)
            task.cancel()
            await asyncio.wait({task}, timeout=SLACK_SECONDS)
        write_down(self._log, What.REPLY, number, _outcome(task))

    async def _beside(self) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            write_down(self._log, What.PING, count)
            task = asyncio.create_task(self._adapter.ask(f"{BESIDE_QUESTION}-{count}", BESIDE_QUESTION))
            await asyncio.wait({task})
            write_down(self._log, What.PONG, count, _outcome(task))
            await asyncio.sleep(PING_SECONDS)


def _outcome(task: asyncio.Task[str]) -> str:
    if not task.done():
        return "nothing"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return task.result() if error is None else _words(error)


def _words(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"
