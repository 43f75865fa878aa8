"""A scenario: everything that will happen to one request, as plain data.

The same scenario runs under the pure driver of this package (`drive`) and under real actors; nothing in it knows which.
All times are virtual seconds.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from callboard.protocol.compaction import Compacted
from callboard.protocol.content import AssistantPart, Message, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import FinishReason, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import (
    Decision,
    Effect,
    FailureCode,
    Isolation,
    Origin,
    Risk,
    ToolContract,
    ToolDefinition,
)


class ToolDoes(StrEnum):
    """What becomes of one run of a tool."""

    COMPLETE = "complete"
    FAIL = "fail"
    """It raises: an ordinary failure."""
    CRASH = "crash"
    """It takes its worker down."""
    HANG = "hang"
    """It never ends by itself; the dispatcher ends it at its deadline."""
    VANISH = "vanish"
    """It never ends, and whoever should have ended it says nothing either."""
    STOPPED = "stopped"
    """The dispatcher cancels it on its own account while it runs."""
    WITHDRAWN = "withdrawn"
    """The dispatcher cancels it before it begins."""
    REFUSE = "refuse"
    """The dispatcher does not take it (overloaded): it fails without having begun."""
    DEFER = "defer"
    """Its code ends, and leaves the result to someone outside."""


class PersonDoes(StrEnum):
    """How a question for approval is answered."""

    GRANT = "grant"
    DENY = "deny"
    IGNORE = "ignore"


class OutsideDoes(StrEnum):
    """What comes from outside of a deferred call."""

    COMPLETE = "complete"
    FAIL = "fail"
    IGNORE = "ignore"


class ModelDoes(StrEnum):
    """What becomes of one model call."""

    ANSWER = "answer"
    STALL = "stall"
    """It streams a little, then no byte more; the LLM manager gives up after its idle time."""
    CUT = "cut"
    """The stream ends without its terminal event."""
    REFUSE_TOOLS = "refuse_tools"
    """The route takes no tools."""
    OVERFLOW = "overflow"
    """The prompt is too long for it; where the turn has text, it names a window, which is six tenths of the prompt."""
    BREAK = "break"
    """The provider fails for good."""
    REFUSE_SCHEMA = "refuse_schema"
    """The model takes no schema of the answer; without one it answers."""
    VANISH = "vanish"
    """Nothing comes, and nobody says so."""
    LOST = "lost"
    """Whoever held the call dies."""


class PlannedCall(Struct, frozen=True):
    """One call the model will ask for, and its fate."""

    tool: ToolName
    arguments: str = "{}"
    call_id: str = "c"
    does: ToolDoes = ToolDoes.COMPLETE
    seconds: float = 1.0
    waits_seconds: float = 0.125
    """In the dispatcher's queue, before its code begins."""
    person: PersonDoes = PersonDoes.GRANT
    person_seconds: float = 1.0
    changed: str = ""
    """The arguments with which the person lets it run, in place of the model's."""
    outside: OutsideDoes = OutsideDoes.COMPLETE
    outside_seconds: float = 1.0
    """From when the tool has left its result to someone outside until that comes."""
    open_seconds: float = 60.0
    """How long it may take to come."""
    doubled: bool = False
    """Each answer about this call comes twice."""
    late: bool = False
    """One more answer comes long after the call has ended."""
    claimed_complete: bool = False
    """The adapter says that the arguments are complete, whatever they are."""
    unfinished: bool = False
    """The provider never finished the call, although its arguments can be read."""
    steady: bool = False
    """Its result does not name its call: it is the same each time."""
    code: FailureCode = FailureCode.TOOL_ERROR
    """Of one that fails."""
    rule: str = ""
    """By what the person's answer was found, or for which calls it holds, in words."""
    is_huge: bool = False
    """Its result is larger than any may be."""
    chars: int = 0
    """Its result is so much longer than it is else,"""
    kind: int = 0
    """by lines (0), by words (1), or without either."""


class PlannedTurn(Struct, frozen=True):
    """What one model call will answer."""

    text: str = ""
    calls: tuple[PlannedCall, ...] = ()
    finish_reason: FinishReason | None = None
    """None: what fits, TOOL_CALLS or STOP."""
    does: ModelDoes = ModelDoes.ANSWER
    seconds: float = 1.0
    output_tokens: int = 8
    doubled: bool = False
    late: bool = False
    thinking: str = ""
    """One block of reasoning with a signature, which must be replayed as it came."""
    restarts: bool = False
    """The stream begins again in the middle: what came before is void."""
    counts_tokens: bool = True
    """False: the provider reports no usage."""
    counts_as: float = 1.0
    """The tokens of the prompt that the provider reports, by those that we count."""
    charged: bool = False
    """Where the call fails, it has cost tokens all the same."""
    extra_cost: float = 0.0
    """US dollars besides those for tokens (a server tool)."""
    requests: int = 1
    """Requests that it takes: the last one answers, those before it fail. No more than the call may take are sent."""
    model: str = ""
    """"provider/model" of the one that is asked last, where that is another than the request names."""
    error: ErrorKind = ErrorKind.SERVER
    """Of one that breaks."""
    streams: bool = True
    """False: nothing of it comes before its end."""
    more: tuple[AssistantPart, ...] = ()
    """What it holds besides: a picture, or what a tool of the provider has found."""
    claims: Usage | None = None
    """What the provider says that it took, where that is not true."""


class Store(Struct, frozen=True):
    """How the journal behaves. Commands are carried out once the event they follow from is written."""

    write_seconds: float = 0.0
    full_from: float = 0.0
    full_until: float = 0.0
    """Between these times nothing can be written: writes wait."""


class Scenario(Struct, frozen=True):
    """One request and all that will be done to it. After the last planned turn the model answers "done"."""

    turns: tuple[PlannedTurn, ...] = ()
    summaries: tuple[PlannedTurn, ...] = ()
    """What becomes of the model calls that ask for a summary; after the last one, there is a plain one."""
    words: tuple[PlannedTurn, ...] = ()
    """What becomes of the model call that asks for further words to search by; without one, it gives two."""
    history: tuple[Message, ...] = ()
    compacted: Compacted = Compacted()
    """What earlier requests have done to the history."""
    user: UserMessage = UserMessage.of("go")
    options: RequestOptions = RequestOptions("sim/model")
    tools: tuple[ToolOffer, ...] = ()
    askers_tools: tuple[ToolOffer, ...] = ()
    """Those that the asker runs: their calls are handed out, and end the request."""
    cancel_at: float | None = None
    restart_at: tuple[float, ...] = ()
    """The process dies at these times and comes back from its journal."""
    tools_lost_at: tuple[float, ...] = ()
    """The dispatcher dies at these times."""
    foreign: tuple[tuple[float, int], ...] = ()
    """At each time, one event of another request arrives, which has the same step and call ids. Which one, of all
    kinds, the number says."""
    notices_at: tuple[float, ...] = ()
    """At these times something happens outside that the model should read."""
    strays: tuple[tuple[float, int], ...] = ()
    """At each time, one event of this request arrives that is not due: stale, early, in the wrong state. Which one, of
    those that are possible then, the number says."""
    jumps: tuple[tuple[float, float], ...] = ()
    """At each first time the clock jumps forward by the second number of seconds (a suspended machine)."""
    store: Store = Store()
    latency_seconds: float = 0.0
    """A slow consumer: each message to the session waits up to this long, by the seed."""
    request_id: RequestId = RequestId("r")

    @property
    def tag(self) -> Tag:
        return Tag(self.request_id, MessageId("m"))

    @property
    def offers(self) -> tuple[ToolOffer, ...]:
        """All tools that the request offers."""
        return (*self.tools, *self.askers_tools)

    @property
    def planned_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)


def offer(
    name: str,
    decision: Decision = Decision.ALLOW,
    *,
    timeout_seconds: float = 5.0,
    effect: Effect = Effect.ONCE,
    risk: Risk | None = None,
    origin: Origin = Origin.OWNER,
    isolation: Isolation = Isolation.PROCESS,
    is_outside: bool = False,
) -> ToolOffer:
    """A tool on offer in a scenario."""
    contract = ToolContract(
        risk=risk or (Risk.WRITE if decision is Decision.ASK else Risk.READ),
        timeout_seconds=timeout_seconds,
        isolation=isolation,
        effect=effect,
        origin=origin,
        is_outside=is_outside,
    )
    definition = ToolDefinition(ToolName(name), f"The tool {name}.")
    return ToolOffer(definition, contract, decision, rule=f"of {name} the plan says: {decision}")


#: What scenarios draw from: tools of different deadlines, risks, origins, isolation and effects; allowed, to be
#: asked about, denied.
STANDARD_TOOLS: tuple[ToolOffer, ...] = (
    offer("look"),
    offer("again", effect=Effect.REPEAT, risk=Risk.UNDECLARED),
    offer("write", Decision.ASK),
    offer("never", Decision.DENY, risk=Risk.EXECUTE),
    offer("quick", timeout_seconds=1.0, risk=Risk.NETWORK, isolation=Isolation.TASK),
    offer("patient", timeout_seconds=600.0, effect=Effect.REPEAT, isolation=Isolation.THREAD),
    offer("deploy", Decision.ASK, timeout_seconds=60.0, risk=Risk.UNDECLARED, origin=Origin.ELSEWHERE),
)
#: Tools of the one who asks.
ASKERS_TOOLS: tuple[ToolOffer, ...] = tuple(
    offer(name, risk=Risk.UNDECLARED, origin=Origin.ELSEWHERE, is_outside=True) for name in ("mine", "yours")
)
