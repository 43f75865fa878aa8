"""Healthy requests beside which something goes wrong: what they do, and how they are compared.

Each of them calls three tools (a process, a task, a thread), and every tool of the user's that is given, and answers
with the results. The model is the scripted provider, so that the same request always ends in the same bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from msgspec import Struct, field

from callboard.actors.calls.approvals import ApprovalCallback
from callboard.actors.requests.replies import Reply
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.ways.escape import HOST_NAMESPACE, HOST_PID, SECRET, SECRET_NAME, pid_namespace
from callboard.actors.testing.ways.healthy import HEALTHY
from callboard.actors.tools import Tool
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.testing.schema_values import boundary_values
from callboard.providers.local.scripted import Script, ScriptedCall, ScriptedTurn

#: Healthy requests beside each case.
NEIGHBOURS: Final = 49
#: Of every request of a run. A neighbour takes a tenth of a second; the rest is for a machine that is busy.
REQUEST_SECONDS: Final = 20.0
#: After its deadline a request must have ended within this.
LATE_SECONDS: Final = 3.0
#: A runtime must have stopped within this.
STOP_SECONDS: Final = 11.0
#: Of each tool's process.
MEMORY_BYTES: Final = 192 * 1024**2
#: For processes and messages to be gone, when everything has ended.
REST_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.01
#: How neighbours are spread over the time that a case takes.
PHASES: Final = 7
#: In the environment of every process of the tools: what has it afterwards was left behind.
MARK: Final = "CALLBOARD_CHAOS_RUN"


class Victim(Struct, frozen=True):
    """A request to which something happens."""

    question: str
    turn: Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]
    """What the model says, given the results so far."""
    is_read_along: bool = False


class Ended(Struct, frozen=True):
    """How one request ended."""

    reply: Reply | None = None
    error: BaseException | None = None
    in_time: bool = True

    def results_of(self, name: str) -> list[str]:
        """What the model was told of the calls of one tool."""
        messages = self.reply.messages if self.reply is not None else ()
        return [message.content for message in messages if isinstance(message, ToolMessage) and message.name == name]

    def as_bytes(self) -> bytes:
        """All that its caller sees, but the names that are made up."""
        if self.reply is not None:
            return repr((self.reply.text, self.reply.outcome, self.reply.messages)).encode()
        return f"{type(self.error).__name__} {self.error}".encode(errors="backslashreplace")


class Seen(Struct):
    """What became of everybody."""

    neighbours: list[Ended]
    victims: dict[str, Ended]
    faults: list[str] = field(default_factory=list)
    """What is wrong with the whole: messages unaccounted for, processes left."""
    seconds: float = 0.0


def user_call(own: Tool) -> ScriptedCall:
    """A call that the schema of a user's tool allows: the plainest."""
    schema = own.definition.parameters
    plain = boundary_values(schema, schema)
    arguments: Mapping[str, object] = plain[0] if plain else {}
    return ScriptedCall(own.name, dict(arguments))


class Play(Struct, frozen=True):
    """The model of a run: neighbours by their number, victims by their question."""

    victims: Mapping[str, Victim]
    user_calls: tuple[ScriptedCall, ...] = ()
    seconds: float = 0.0
    """Neighbours are under way as long."""

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        last = max(i for i, message in enumerate(request.messages) if isinstance(message, UserMessage))
        question = request.messages[last]
        assert isinstance(question, UserMessage)
        results = [message for message in request.messages[last:] if isinstance(message, ToolMessage)]
        if victim := self.victims.get(question.text):
            return victim.turn(request, results)
        number = int(question.text.split()[-1])
        first = self.seconds * (number % PHASES) / PHASES
        if results:
            text = ", ".join(message.content for message in results)
            return ScriptedTurn(f"{question.text}: {text}", chunk_chars=7, first_delay_seconds=self.seconds - first)
        calls = (*(ScriptedCall(each.name, {"x": number}) for each in HEALTHY), *self.user_calls)
        return ScriptedTurn(calls=calls, chunk_chars=5, first_delay_seconds=first)


Changed = Mapping[str, Any]
"""Settings by name, in place of the suite's own."""
Disturb = Callable[[Runtime], Awaitable[object]]
"""Does something to a running runtime, while its requests are under way."""


class Host(Struct):
    """Makes runtimes, and knows how healthy requests end when nothing goes wrong."""

    settings: Settings | None = None
    """The user's, whose model is replaced by the scripted one."""
    user_tools: tuple[Tool, ...] = ()
    neighbours: int = NEIGHBOURS
    known: dict[str, list[bytes]] = field(default_factory=dict)
    """How runs in which nothing goes wrong end: by which tools there are."""

    def settings_for(self, script: Script | None, changed: Changed | None = None) -> Settings:
        """The user's settings with a scripted model and the suite's bounds."""
        own = {} if self.settings is None else {n: getattr(self.settings, n) for n in self.settings.model_fields_set}
        wanted: dict[str, Any] = {
            "worker_memory_bytes": MEMORY_BYTES,
            "request_timeout_seconds": REQUEST_SECONDS,
            **own,
            "model": "scripted/model",
            "script": script,
            "fallback_models": (),
            **(changed or {}),
        }
        names = (HOST_PID, HOST_NAMESPACE, MARK)
        wanted["tool_environment"] = (*(own.get("tool_environment") or ()), *names)
        return Settings(**wanted)

    async def plain(self) -> list[bytes]:
        """How the neighbours end alone. Raises RuntimeError where even that fails."""
        key = ",".join(each.name for each in self.user_tools)
        if key not in self.known:
            seen = await self.play((), ())
            if any(each.error is not None for each in seen.neighbours):
                error = next(each.error for each in seen.neighbours if each.error is not None)
                raise RuntimeError(f"healthy requests fail where nothing goes wrong: {error!r}") from error
            self.known[key] = [each.as_bytes() for each in seen.neighbours]
        return self.known[key]

    async def changed(self, seen: Seen) -> list[int]:
        """The numbers of the neighbours that ended in another way than alone."""
        plain = await self.plain()
        return [number for number, each in enumerate(seen.neighbours) if each.as_bytes() != plain[number]]

    async def play(
        self,
        victims: Iterable[Victim],
        tools: Iterable[Tool],
        *,
        seconds: float = 0.0,
        disturb: Disturb | None = None,
        approve: ApprovalCallback | None = None,
        changed: Changed | None = None,
    ) -> Seen:
        """All at once on a new runtime. `seconds` is how long the neighbours are under way at least."""
        mark = uuid4().hex
        by_question = {victim.question: victim for victim in victims}
        script = Play(by_question, tuple(map(user_call, self.user_tools)), seconds)
        with _known_to_tools(mark):
            settings = self.settings_for(script, changed)
            runtime = Runtime(settings, tools=[*HEALTHY, *self.user_tools, *tools], approve=approve)
            await asyncio.to_thread(runtime.start)
            try:
                read_along = [question for question, victim in by_question.items() if victim.is_read_along]
                seen = await self.ask_all(
                    runtime, by_question, settings.request_timeout_seconds, disturb, read_along=read_along
                )
                seen.faults += await at_rest(runtime)
            finally:
                began = time.monotonic()
                await asyncio.to_thread(runtime.stop)
                stopped = time.monotonic() - began
        seen.faults += await left_behind(mark)
        if stopped > STOP_SECONDS:
            seen.faults.append(f"the runtime took {stopped:.0f} s to stop")
        return seen

    async def ask_all(
        self,
        runtime: Runtime,
        questions: Iterable[str],
        deadline_seconds: float,
        disturb: Disturb | None = None,
        called: str = "",
        read_along: Collection[str] = (),
    ) -> Seen:
        """Ask the victims' questions and the neighbours' at the same time. `called` makes their ids different."""
        began = time.monotonic()
        words = [*questions, *(f"live {number}" for number in range(self.neighbours))]
        asks = [
            asyncio.ensure_future(_ask(runtime, text, f"{_id_of(text)}{called}", is_read_along=text in read_along))
            for text in words
        ]
        disturbing = [asyncio.ensure_future(disturb(runtime))] if disturb is not None else []
        await asyncio.wait([*asks, *disturbing], timeout=deadline_seconds + LATE_SECONDS)
        ended = [_ended(ask) for ask in asks]
        for late in (*asks, *disturbing):
            late.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        seen = Seen(ended[len(words) - self.neighbours :], dict(zip(words, ended, strict=False)))
        for told in await asyncio.gather(*disturbing, return_exceptions=True):
            if isinstance(told, BaseException):
                seen.faults.append(f"the disturbance failed: {told!r}")
        seen.seconds = time.monotonic() - began
        return seen


async def _ask(runtime: Runtime, text: str, request_id: str, *, is_read_along: bool) -> Reply:
    if not is_read_along:
        return await runtime.ask(text, request_id=request_id)
    async for item in runtime.stream(text, request_id=request_id):
        last = item
    assert isinstance(last, Reply)
    return last


@contextmanager
def _known_to_tools(mark: str) -> Iterator[None]:
    """While a runtime is made: what its tools are told by their environment, and what they must not find there."""
    told = {HOST_PID: str(os.getpid()), HOST_NAMESPACE: pid_namespace(), MARK: mark, SECRET_NAME: SECRET}
    os.environ.update(told)
    try:
        yield
    finally:
        for name in told:
            os.environ.pop(name, None)


def _id_of(question: str) -> str:
    return question.replace(" ", "-").replace("/", "-")


def _ended(ask: asyncio.Future[Reply]) -> Ended:
    if not ask.done():
        return Ended(None, TimeoutError("it did not end by its deadline"), in_time=False)
    if ask.cancelled():
        return Ended(None, asyncio.CancelledError())
    error = ask.exception()
    return Ended(None, error) if error is not None else Ended(ask.result())


async def at_rest(runtime: Runtime) -> list[str]:
    """What is wrong with the runtime's account of its messages, once nothing is on its way any more (I9)."""
    until = time.monotonic() + REST_SECONDS
    while (statistics := runtime.statistics()).queued or statistics.unaccounted:
        if time.monotonic() > until:
            return [f"at rest, {statistics.queued} messages are queued and {statistics.unaccounted} unaccounted for"]
        await asyncio.sleep(LOOK_SECONDS)
    return []


async def left_behind(mark: str) -> list[str]:
    """Processes of the tools that are alive although the runtime has stopped; they are killed now."""
    until = time.monotonic() + REST_SECONDS
    while (left := marked_processes(mark)) and time.monotonic() < until:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(LOOK_SECONDS)
    for pid in left:
        _kill(pid)
    return [f"{len(left)} processes were left behind"] if left else []


def marked_processes(mark: str) -> list[int]:
    """All that have this run's mark in their environment, zombies apart."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has just ended, or belongs to somebody else
                continue
    return [pid for pid in found if pid != os.getpid()]


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
