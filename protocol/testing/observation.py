"""What a runtime is put through, and what is seen of it from outside: plain data for the rules of `observed`.

A runtime is asked a question, and then a second one in the same conversation. What is seen: each request that the model
server got, with its messages; what the tools wrote down (start, effect, end); the cancel; what the caller got. Times
are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import orjson
from msgspec import Struct

from callboard.protocol.content import is_json_object

#: A call that hangs works this long past its start; what it does then is its late effect.
HANG_SECONDS: Final = 2.0
#: The deadline of a call.
CALL_SECONDS: Final = 0.7
#: What a loaded machine may take for anything that should happen at once. A late effect comes this long after that.
SLACK_SECONDS: Final = 0.65
#: The number of the calls that the conversation beside makes.
BESIDE: Final = 0


class Does(StrEnum):
    """What becomes of a call, and so what its tool is asked to do."""

    RETURNS = "returns"
    RAISES = "raises"
    EXITS = "exits"
    """sys.exit(), or os._exit() where the runtime runs the tool in a process of its own."""
    HANGS = "hangs"
    """It works on past its deadline, and would have its effect then; an async tool awaits meanwhile."""
    BLOCKS = "blocks"
    """An async tool that hangs without awaiting: it holds its event loop."""
    DENIED = "denied"
    """The person who is asked says no."""
    HALF = "half"
    """Its arguments are cut off, or no JSON object."""
    UNKNOWN = "unknown"
    """There is no such tool."""


class Ids(StrEnum):
    """The ids of a turn's calls."""

    UNIQUE = "unique"
    TWICE = "twice"
    """The first two calls have the same id, as sloppy servers send them."""
    EARLIER = "earlier"
    """The first call has the id of the one before in another turn: ids are promised to differ within a turn only."""


class Stream(StrEnum):
    """What becomes of the model's answer, each time that it is asked for."""

    WHOLE = "whole"
    CUT = "cut"
    """The connection breaks in the middle."""
    STALLS = "stalls"
    """Nothing more comes, and the connection stays open."""


class AskedCall(Struct, frozen=True):
    """One call that the model asks for. Its number is unique in the conversation, and travels in its arguments."""

    number: int
    tool: str
    """`look` is async, `again` a plain function, `write` a plain function that a person must allow."""
    call_id: str
    does: Does = Does.RETURNS
    seconds: float = 0.0
    """How long it works before it returns, raises or exits."""
    garbled: str | None = None
    """The arguments of a half call."""

    @property
    def arguments(self) -> str:
        """As the model writes them."""
        if self.garbled is not None:
            return self.garbled
        return orjson.dumps({"call": self.number, "does": self.does, "seconds": self.seconds}).decode()


class AskedTurn(Struct, frozen=True):
    """One answer of the model."""

    calls: tuple[AskedCall, ...]
    text: str = ""
    stream: Stream = Stream.WHOLE
    ids: Ids = Ids.UNIQUE

    @property
    def faults(self) -> frozenset[tuple[str, Does]]:
        """Tool and fault of each call that does not simply return."""
        return frozenset((call.tool, call.does) for call in self.calls if call.does is not Does.RETURNS)


class Conversation(Struct, frozen=True):
    """What one runtime is put through. After its turns, and to the second question, the model says "done"."""

    turns: tuple[AskedTurn, ...]
    run_seconds: float = 6.0
    max_steps: int = 10
    cancel_after_seconds: float | None = None
    """The caller gives up this long after the first question."""


class What(StrEnum):
    """The kinds of observations."""

    QUESTION = "question"
    """The caller asked; `number` is 1 or 2."""
    REPLY = "reply"
    """The caller got an answer, or an exception."""
    CANCEL = "cancel"
    OVERDUE = "overdue"
    """The run was past its deadline by more than the slack, and was cancelled from outside."""
    ASKED = "asked"
    """The model got a request; `number` is the question, `step` the model's turns since then."""
    SERVED = "served"
    """The whole answer of this step was sent."""
    LEFT = "left"
    """The client closed a stream that had stalled."""
    STARTED = "started"
    """A tool's code began; `number` is the call, `detail` the arguments that it got."""
    EFFECT = "effect"
    """A tool did what it is there for."""
    STOPPED = "stopped"
    """A tool's code ended; `detail` says how."""
    PING = "ping"
    """The conversation beside asked; `number` counts."""
    PONG = "pong"
    """The conversation beside got its answer; `detail` is "done" when it was right."""
    DIED = "died"
    """The process of the runtime ended before the conversation."""


class Seen(Struct, frozen=True):
    """One observation."""

    at: float
    what: What
    number: int = 0
    step: int = 0
    detail: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """One conversation and all that was seen of it, by time."""

    conversation: Conversation
    seen: tuple[Seen, ...]
    calls: Mapping[int, AskedCall] = field(init=False)

    def __post_init__(self) -> None:
        calls = {call.number: call for turn in self.conversation.turns for call in turn.calls}
        object.__setattr__(self, "calls", MappingProxyType(calls))

    def all(self, what: What, number: int | None = None) -> list[Seen]:
        """The observations of a kind, of one question or call where a number is given."""
        return [seen for seen in self.seen if seen.what is what and number in (None, seen.number)]

    def first(self, what: What, number: int | None = None) -> Seen | None:
        """The first observation of a kind."""
        return next(iter(self.all(what, number)), None)

    def request(self, step: int) -> Seen | None:
        """The first request of a step of the first question."""
        return next((seen for seen in self.all(What.ASKED, 1) if seen.step == step), None)

    def served(self, does: Does) -> set[int]:
        """The numbers of the calls with this fault that the model asked for."""
        steps = {seen.step for seen in self.all(What.SERVED, 1)}
        turns = [turn for step, turn in enumerate(self.conversation.turns) if step in steps]
        return {call.number for turn in turns for call in turn.calls if call.does is does}

    @property
    def ended(self) -> str:
        """How the first question ended, in words."""
        reply = self.first(What.REPLY, 1)
        if self.first(What.DIED) is not None:
            return "the process died"
        return f"the run ended with {reply.detail}" if reply is not None else "the run did not end"


# Histories.


class HistoryTurn(Struct, frozen=True):
    """An assistant turn of a Chat Completions history, with the results directly after it."""

    calls: tuple[Mapping[str, Any], ...]
    results: tuple[Mapping[str, Any], ...]
    empty: bool = False

    @property
    def asked(self) -> list[str]:
        return [call["id"] for call in self.calls]

    @property
    def answered(self) -> list[str]:
        return [result.get("tool_call_id", "") for result in self.results]

    @property
    def repeats_ids(self) -> bool:
        """Then its calls and results cannot be told apart; `goes_on` looks at them."""
        return len(set(self.asked)) < len(self.calls)


def turns_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[HistoryTurn]:
    """Each assistant turn with the results directly after it; results that follow no turn come with no calls."""
    block: list[Mapping[str, Any]] = []
    turn: Mapping[str, Any] = {}
    for message in (*messages, {"role": "end"}):
        if message["role"] == "tool":
            block.append(message)
            continue
        if turn or block:
            calls = tuple(turn.get("tool_calls") or ())
            yield HistoryTurn(calls, tuple(block), bool(turn) and not calls and not text_of(turn))
        turn, block = (message if message["role"] == "assistant" else {}), []


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a Chat Completions message, whose content may be a text or a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def number_in(call: Mapping[str, Any]) -> int | None:
    """The number that the kit gave a call, from its arguments; None where they are garbled."""
    arguments = call["function"]["arguments"] or ""
    found = orjson.loads(arguments) if is_json_object(arguments) else {}
    return found.get("call") if isinstance(found, dict) else None
