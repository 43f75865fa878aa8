"""Drives runtimes: one model server, one process for each conversation, and all that was seen of it in the end."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from callboard.actors.testing.runtimes.adapter import AdapterType
from callboard.actors.testing.runtimes.conversation import conversation
from callboard.actors.testing.runtimes.log import forget, read_log
from callboard.actors.testing.runtimes.player import (
    ADAPTER_FAILED,
    BESIDE_QUESTION,
    WARM_UP_CALLS,
    WARM_UP_QUESTION,
    play,
)
from callboard.actors.testing.wire_double import Api, Asked, Call, Fault, FaultKind, Turn, WireDouble
from callboard.protocol.errors import RuntimeFailure, UsageError, missing_extra
from callboard.protocol.testing.observation import (
    BESIDE,
    HANG_SECONDS,
    AskedTurn,
    Conversation,
    Does,
    Played,
    Seen,
    Stream,
    What,
)

#: The adapters, imported when they are played: all but callboard's need the extra `runtimes`.
RUNTIMES: Final = {
    "callboard": "callboard_runtime:Callboard",
    "bare-loop": "naive_loop:NaiveLoop",
    "pydantic-ai": "pydantic_ai_agent:PydanticAi",
    "openai-agents": "openai_agents_runner:OpenaiAgents",
    "langgraph": "langgraph_agent:Langgraph",
}
_PACKAGE: Final = "callboard.actors.testing.runtimes"
COMMAND: Final = f"python -m {_PACKAGE}"
#: Beyond the deadlines of both questions: for a start on a loaded machine, and for what works on past its deadline.
_PATIENCE_SECONDS: Final = 10.0
_FAULTS: Final = {
    Stream.CUT: Fault(FaultKind.CUT),
    Stream.STALLS: Fault(FaultKind.STALL, after=1),
}


class AdapterFailed(RuntimeFailure):
    """An adapter itself raised; the message says what, and how to see it again."""


def adapter_type(runtime: str) -> AdapterType:
    """The adapter of this name. Raises UsageError for an unknown name or an extra that is not installed."""
    if runtime not in RUNTIMES:
        raise UsageError(f"there is no adapter {runtime!r}; choose one of {', '.join(RUNTIMES)}")
    module, _, name = RUNTIMES[runtime].partition(":")
    try:
        return cast(AdapterType, getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name))
    except ModuleNotFoundError as missing:
        raise UsageError(missing_extra(f"{runtime} is not installed ({missing}): it", "runtimes")) from missing


class Harness(Struct, frozen=True):
    """Plays conversations; made by `harness()`."""

    double: WireDouble
    processes: Any
    folder: Path

    def play(self, runtime: str, seed: int) -> Played:
        """Play the conversation of a seed. Raises AdapterFailed, and UsageError as `adapter_type` does."""
        return self.play_with(adapter_type(runtime), conversation(seed), f"{runtime}-{seed}")

    def play_with(self, adapter: AdapterType, planned: Conversation, name: str) -> Played:
        """Play a conversation on an adapter of your own; `name` is used in the questions: letters, digits and -."""
        turns = [_turn(turn) for turn in planned.turns]
        self.double.reset()
        self.double.play([*turns, Turn("done")], name=f"{name}-1", by_turn=True)
        self.double.play([Turn("done")], name=f"{name}-2", by_turn=True)
        self.double.play([_calls("look"), Turn("done")], name=BESIDE_QUESTION, by_turn=True)
        self.double.play([_calls(*WARM_UP_CALLS), Turn("done")], name=WARM_UP_QUESTION, by_turn=True)
        log = self.folder / f"{name}.log"
        forget(log)
        arguments = (adapter, planned, name, self.double.base_url(Api.CHAT), log)
        process = self.processes.Process(target=play, args=arguments, daemon=True)
        process.start()
        process.join(2 * planned.run_seconds + 3 * HANG_SECONDS + _PATIENCE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        seen = [*read_log(log), *self._requests(planned, name)]
        for each in seen:
            if each.what is What.DIED and each.detail.startswith(ADAPTER_FAILED):
                runtime, _, seed = name.rpartition("-")
                raise AdapterFailed(f"{runtime}: {each.detail}; replay: {COMMAND} --runtime {runtime} --seed {seed}")
        if not any(each.what is What.QUESTION for each in seen):
            raise AdapterFailed(f"{name}: its process ended before the first question; its stderr says why")
        if process.exitcode != 0:
            seen.append(Seen(time.monotonic(), What.DIED, detail=f"exit status {process.exitcode}"))
        return Played(planned, tuple(sorted(seen, key=lambda each: each.at)))

    def _requests(self, planned: Conversation, name: str) -> Iterator[Seen]:
        for asked in self.double.requests():
            question = {f"{name}-1": 1, f"{name}-2": 2}.get(asked.script)
            if question is None:
                continue
            planned_turns = planned.turns if question == 1 else ()
            stream = planned_turns[asked.number].stream if asked.number < len(planned_turns) else Stream.WHOLE
            yield from _seen(asked, question, stream)


def _seen(asked: Asked, question: int, stream: Stream) -> Iterator[Seen]:
    step = asked.number
    yield Seen(asked.at, What.ASKED, question, step, str(stream), tuple(asked.body["messages"]))
    if asked.ended_at is not None and asked.client_left:
        yield Seen(asked.ended_at, What.LEFT, question, step)
    elif asked.ended_at is not None and stream is Stream.WHOLE:
        yield Seen(asked.ended_at, What.SERVED, question, step)


def _turn(turn: AskedTurn) -> Turn:
    calls = tuple(Call(call.tool, call.arguments, call.call_id) for call in turn.calls)
    return Turn(turn.text, calls, fault=_FAULTS.get(turn.stream), fragment=20)


def _calls(*tools: str) -> Turn:
    arguments: dict[str, Any] = {"call": BESIDE, "does": str(Does.RETURNS), "seconds": 0.05}
    return Turn(calls=tuple(Call(tool, arguments) for tool in tools))


@contextmanager
def harness(runtimes: tuple[str, ...] = ("callboard",)) -> Iterator[Harness]:
    """A harness whose processes have these runtimes imported already.

    Each conversation is played in a fork of a process that holds no thread and no loop, so that what one leaves behind
    never reaches the next, and a seed alone shows a breach again.
    """
    processes = multiprocessing.get_context("forkserver")
    modules = [RUNTIMES[name].partition(":")[0] for name in runtimes]
    processes.set_forkserver_preload([f"{_PACKAGE}.{module}" for module in ("player", *modules)])
    with WireDouble() as double, tempfile.TemporaryDirectory(prefix="callboard-runtimes-") as folder:
        yield Harness(double, processes, Path(folder))
