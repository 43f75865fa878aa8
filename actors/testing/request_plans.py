"""Requests as their askers meet them, made up: what a session shows and when, how it ends, and who reads it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from callboard.actors.kernel import Down, ExitReason
from callboard.actors.requests.replies import STOPPING, Seen, Unwritten
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CallOutside,
    ClearTimer,
    Finish,
    Note,
    OpenTurn,
    Outcome,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
)
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Citation,
    Image,
    Message,
    Replay,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, RuntimeFailure
from callboard.protocol.events import (
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import (
    CallPurpose,
    CitationDelta,
    Done,
    Error,
    FinishReason,
    ModelRequest,
    ModelResponse,
    Restarted,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from callboard.protocol.options import RequestOptions
from callboard.protocol.reports import StepReport
from callboard.protocol.tools import FailureCode, Risk, ToolFailure

REQUEST: Final = RequestId("asked")
TAG: Final = Tag(REQUEST, MessageId("asked/user"))
NO_ACTOR: Final[Any] = None
"""Whose end it is, is not looked at."""
NEVER: Final = math.inf
_LOOK: Final = ToolName("look")
_REPLAY: Final = Replay("sim", {"signature": "s"})
_QUESTION: Final = UserMessage.of("What is there?")
_OPTIONS: Final = RequestOptions("sim/a")
_MODEL_REQUEST: Final = ModelRequest("sim/a", (_QUESTION,))
_KINDS: Final = (ErrorKind.SERVER, ErrorKind.RATE_LIMITED, ErrorKind.CONTEXT_LENGTH, ErrorKind.AUTHENTICATION)
_FENCED: Final = 'See:\n<code="a.py" #0:5>\nx = 1\n</code>\n'
#: Who reads.
READERS: Final = (
    *("ask", "ask_async") * 2, *("stream_sync", "stream") * 5, "plain", "plain", "scope", "closed", "closed", "dropped",
    "dropped_sync",
)  # fmt: skip


class Reader(Struct, frozen=True):
    """How the answer is read. Times count from when it was asked for."""

    kind: str
    begins_at: float
    pauses: tuple[float, ...]
    """Behind each item in turn."""
    leaves_after: float
    """So many items; NEVER: it does not leave."""
    cancelled_at: float
    cancelled_again_at: float
    only_texts: bool
    is_collected: bool
    """It leaves on another thread."""


class Plan(Struct, frozen=True):
    """One request. Times count from when it was asked for."""

    shown: tuple[tuple[float, tuple[Seen, ...]], ...]
    ends_at: float
    finish: Finish | None
    down: Down
    down_after: float
    why_tree_ended: str
    cancel_takes: float
    is_kept: bool
    timeout: float
    loop_ends_at: float
    is_blocked: bool
    """The loop of callboard answers no look."""
    refused_at: float
    has_output: bool
    is_checked: bool
    """The answer was, against the form that was asked for."""
    is_interrupted: bool
    """A signal handler raises on the reader's loop when the request ends."""
    reader: Reader


def planned(seed: int) -> Plan:
    """The same for the same seed."""
    rng = random.Random(f"request {seed}")
    made = Made(rng)
    reader = _reader(rng)
    shown, at = list[tuple[float, tuple[Seen, ...]]](), 0.0
    for _ in range(rng.choice((0, 1, 4, 8, 8, 15))):
        at += rng.choice((0.001, 0.1, 0.1, 1.0, 20.0 if rng.random() < 0.2 else 0.4)) * rng.uniform(0.5, 1.5)
        shown.append((at, tuple(made.seen(at) for _ in range(rng.choice((1, 1, 2, 4))))))
    ends_at = at + rng.uniform(0.01, 2.0)
    refused_at, timeout = NEVER, rng.choice((600.0, 600.0, 600.0, 3.0))
    if rng.random() < 0.05 and reader.kind not in ("dropped", "dropped_sync"):
        shown, refused_at, ends_at = [], ends_at, NEVER
    finish, down, why_tree_ended = made.end()
    loop_ends_at, is_blocked = NEVER, rng.random() < 0.2
    if rng.random() < 0.15 and refused_at == NEVER:  # nothing ends it, and that is to be found
        ends_at = rng.choice((NEVER, ends_at + 3_000.0))
        last: Seen = SetTimer(TAG, _moment(at + 8.5))
        if rng.random() < 0.5:
            last = ClearTimer(TAG)
            loop_ends_at = at + rng.uniform(0.0, 200.0) if not is_blocked else NEVER
        shown.append((at + 0.2, (last,)))
    return Plan(
        tuple(shown), ends_at, finish, down, rng.choice((0.0, 0.0, 0.05, 7.0)), why_tree_ended,
        rng.choice((0.01, 0.3, 3.0, 7.0, NEVER)), rng.random() < 0.5, timeout, loop_ends_at, is_blocked, refused_at,
        made.has_output, rng.random() < 0.8, rng.random() < 0.3, reader,
    )  # fmt: skip


def _reader(rng: random.Random) -> Reader:
    kind = rng.choice(READERS)
    leaves_after = rng.choice((NEVER, NEVER, rng.randrange(0, 9)))
    if kind == "plain":
        leaves_after = leaves_after or NEVER  # it leaves in the loop
    begins_at = rng.choice((0.0, 0.0, rng.uniform(0.0, 4.0)))
    is_cancelled = kind in ("ask_async", "stream", "scope") and rng.random() < 0.5
    cancelled_at = begins_at + rng.uniform(0.01, 6.0) if is_cancelled else NEVER
    again_at = cancelled_at + rng.choice((NEVER, rng.uniform(0.001, 4.0))) if kind != "scope" else NEVER
    pauses: tuple[float, ...] = rng.choice(((0.0,), (0.0,), (0.0, 0.3), (0.4,), (0.0, 0.0, 0.0, 2.0), (0.0, 11.7)))
    pauses = tuple(pause * rng.uniform(0.8, 1.2) for pause in pauses)
    return Reader(kind, begins_at, pauses, leaves_after, cancelled_at, again_at, rng.random() < 0.3, rng.random() < 0.3)


def _moment(seconds: float) -> float:
    """Of the clock by which a session sets its timers."""
    return 1_000.0 + seconds


def _begun(at: float) -> Seen:
    return RequestStarted(TAG, at, (), _QUESTION, _OPTIONS)


def _passed(at: float) -> Seen:
    """A timer that was set anew since."""
    return DeadlinePassed(TAG, at)


class Made:
    """What a session shows of a request, at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.step = 1
        self.number = 0
        self.has_output = rng.random() < 0.2
        self._text = json.dumps({"n": [rng.randrange(1_000) for _ in range(rng.choice((0, 3, 30)))]})
        self._written = 0

    def call(self) -> Tag:
        """One of two."""
        return TAG.at_step(self.step)._replace(call_id=CallId(self.rng.choice("ab")))

    def word(self) -> str:
        """That comes once."""
        self.number += 1
        return f"{self.number} " + self.rng.choice(("", "", "é", "x" * self.rng.randrange(1_500)))

    def seen(self, at: float) -> Seen:
        """One thing."""
        rng, step = self.rng, TAG.at_step(self.step)
        makes = (self._streamed,) * 4, (self._of_call, self._progress, self._told) * 2, (self._of_request,)
        made: Seen = rng.choice([*chain(*makes)])(at)
        self.step += isinstance(made, ModelResponded) and made.tag == step
        return made

    def _streamed(self, at: float) -> Seen:
        if self.has_output:
            begin, self._written = self._written, self._written + self.rng.choice((1, 9, 200))
            pieces: tuple[StreamEvent, ...] = (TextDelta(self._text[begin : self._written]),)
            if self._written >= len(self._text) and self.rng.random() < 0.5:
                pieces = (*pieces, Done(FinishReason.STOP))
        else:
            pieces = tuple(self._piece() for _ in range(self.rng.choice((0, 1, 1, 3))))
            if self.rng.random() < 0.3:
                pieces = self._run()
        return ModelStreamed(TAG.at_step(self.step), at, pieces)

    def _run(self) -> tuple[StreamEvent, ...]:
        """Pieces of one part of a turn."""
        call, block, count = CallId(self.rng.choice("ab")), self.rng.randrange(2), self.rng.choice((2, 3, 7))
        if self.rng.random() < 0.5:
            return tuple(ToolCallDelta(call, self.word()) for _ in range(count))
        return tuple(TextDelta(self.word(), block) for _ in range(count))

    def _piece(self) -> StreamEvent:
        rng, call = self.rng, CallId(self.rng.choice("ab"))
        makes: Callable[[], StreamEvent] = rng.choice((
            lambda: TextDelta(self.word(), rng.randrange(2)), lambda: TextDelta(self.word()),
            lambda: TextDelta(self.word()), lambda: ThinkingDelta(self.word()), lambda: ToolCallStart(call, _LOOK),
            lambda: ToolCallDelta(call, '{"n": '), lambda: ToolCallComplete(call), lambda: Restarted("told to"),
            lambda: Done(FinishReason.STOP, usage=Usage(3, 4)),
            lambda: CitationDelta((Citation("https://a.example"),)),
        ))  # fmt: skip
        return makes()

    def failure(self) -> ToolFailure:
        """With what only the host sees."""
        self.number += 1
        traceback = "x" * self.rng.choice((0, 700))
        return ToolFailure(_LOOK, FailureCode.TOOL_ERROR, f"told to {self.number}", traceback=traceback)

    def _of_call(self, at: float) -> Seen:
        tag, rng = self.call(), self.rng
        makes: Callable[[], Seen] = rng.choice((
            lambda: RunTool(tag, _LOOK, "{}", at + 9, "e"), lambda: ToolCallStarted(tag, at),
            lambda: ToolCallDeferred(tag, at, 60.0, "later"),
            lambda: ToolCallCompleted(tag, at, self.word(), "printed"),
            lambda: ToolCallFailed(tag, at, self.failure()),
            lambda: ToolCallTimedOut(tag, at, "", rng.choice((None, self.failure()))),
            lambda: ToolCallCancelled(tag, at, "", rng.choice((None, self.failure()))),
            lambda: AskApproval(tag, _LOOK, "{}", Risk.READ), lambda: ApprovalGranted(tag, at),
            lambda: ReportFailure(tag, self.failure()),
            lambda: CallOutside(tag, ToolCall(tag.call_id, _LOOK, "{}")),
        ))  # fmt: skip
        return makes()

    def _progress(self, at: float) -> Seen:
        return ToolProgressed(self.call(), at, self.word(), 0.5)

    def _told(self, at: float) -> Seen:
        rng, step = self.rng, TAG.at_step(self.step)
        makes: Callable[[], Seen] = rng.choice((
            lambda: Note(step, self.word()), lambda: Note(step, self.word()),
            lambda: ModelFailed(step, at, self.error()), lambda: ModelLost(step, at),
            lambda: ModelResponded(step, at, self._turn()), self.recorded, self.recorded,
            lambda: CallModel(step, _MODEL_REQUEST, at + 60, purpose=CallPurpose.SUMMARY),
        ))  # fmt: skip
        return makes()

    def _turn(self) -> ModelResponse:
        rng = self.rng
        cited = (Citation("https://a.example"),)
        parts: list[AssistantPart] = [
            Text(self.word(), rng.choice((None, _REPLAY)), rng.choice(((), cited))), Thinking(self.word(), _REPLAY),
            ToolCall(CallId("a"), _LOOK, "{}"), ToolCall(CallId("b"), _LOOK, "{", complete=False, replay=_REPLAY),
            Image("image/png", "AAAA"), ServerTool("search", _REPLAY, "web_search", "c", "found"),
        ]  # fmt: skip
        rng.shuffle(parts)
        error = self.error() if rng.random() < 0.3 else None
        return ModelResponse(
            tuple(parts[: rng.choice((0, 1, 3))]),
            FinishReason.STOP,
            "stop",
            rng.choice((None, Usage(5, 6))),
            error=error,
        )

    def error(self) -> Error:
        """Of a model call."""
        self.number += 1
        rng = self.rng
        return Error(
            rng.choice(_KINDS), f"told to {self.number}.", True, rng.choice((None, 3.5)), status=400 + self.number
        )

    def _of_request(self, at: float) -> Seen:
        moment = _moment(at + self.rng.choice((9.0, 30.0, 700.0)))
        timers = SetTimer(TAG, moment), SetTimer(TAG, moment), ClearTimer(TAG)
        return self.rng.choice((*timers, _begun(at), _passed(at), CancelRequested(TAG, at, "told to")))

    def recorded(self) -> RecordStep:
        rng = self.rng
        parts: list[Any] = []
        for _ in range(rng.choice((0, 1, 3))):
            start = rng.choice((None, 1))
            cited = (Citation(f"https://{self.number}.example", start=start, end=start and 3),)
            parts.append(rng.choice((Image("image/png", "AAAA"), Text(self.word(), None, rng.choice(((), cited))))))
        message: Message = AssistantMessage(tuple(parts))
        if rng.random() < 0.2:
            message = UserMessage.of(self.word())
        return RecordStep(TAG.at_step(self.step), (message,) * rng.choice((0, 1, 2)))

    def end(self) -> tuple[Finish | None, Down, str]:
        """How it ends: its Finish, the end of its session, and why the tree of its runtime ended."""
        rng = self.rng
        error: BaseException | None = rng.choice((
            None, None, RuntimeFailure("told to"), ValueError("told to"), SystemExit("told to"),
            Unwritten("told to", {"n": 1}, may_go_on=rng.random() < 0.5),
        ))  # fmt: skip
        if error is not None and rng.random() < 0.3:
            error.__cause__ = OSError("no room")
        reason = rng.choice((ExitReason.NORMAL, ExitReason.KILLED)) if error is None else ExitReason.CRASHED
        why = rng.choice(("", "", "", "the tree has ended"))
        down = Down(NO_ACTOR, reason, error)
        return (self.finish() if rng.random() < 0.75 else None), down, why

    def finish(self) -> Finish:
        """Of a request that ends by itself."""
        rng = self.rng
        outcome = rng.choice((Outcome.ANSWERED, Outcome.ANSWERED, Outcome.FAILED, Outcome.FAILED, *Outcome))
        turn = None
        if outcome is Outcome.CALLS_OUTSIDE:
            turn = OpenTurn(AssistantMessage(tuple(ToolCall(CallId(name), _LOOK, "{}") for name in "ab")))
        text = self._text if self.has_output else rng.choice(("", self.word(), _FENCED))
        steps = tuple(
            StepReport(
                n, 0.5, rng.random() < 0.5, f"sim/{n}", rng.choice((None, Usage(n, 2))),
                purpose=rng.choice((CallPurpose.TURN, CallPurpose.SUMMARY)),
            )
            for n in range(1, rng.choice((1, 2, 4)))
        )  # fmt: skip
        reason = rng.choice(("", "told to", f"{STOPPING}; it goes on"))
        finish_reason = rng.choice((FinishReason.STOP, FinishReason.LENGTH))
        usage, cost = rng.choice((None, Usage(9, 8))), rng.choice((None, 0.25))
        return Finish(TAG, outcome, text, usage, cost, steps, reason, finish_reason, turn)
