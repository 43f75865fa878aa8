"""The rules about limits: deadlines, timers, budgets, how often a step is asked again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    Outcome,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
    WithdrawApproval,
)
from callboard.protocol.content import AssistantMessage
from callboard.protocol.events import (
    ApprovalGranted,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.limits import (
    MAX_CALL_COST,
    MAX_CALL_TOKENS,
    STREAM_TOTAL_TIMEOUT_SECONDS,
)
from callboard.protocol.model import CallPurpose, ModelRequest, PromptCache, Sampling, Usage, counts_of
from callboard.protocol.options import RequestOptions
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.counted import tokens_of
from callboard.protocol.testing.expected import ASKED_AGAIN, ExpectedTurn, Follows, expected_turns, windows
from callboard.protocol.testing.expected_prompts import expected_prompts, prompt_tokens, room_for_answer
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.story import CALL_ENDINGS, EPSILON, ModelRun, Reaction, Story

#: A step which may answer less than this is not worth its input (docs/protocol.md, "Budgets").
_MIN_OUTPUT_TOKENS: Final = 16
#: Seconds before a model call is asked again, by the losses in a row (docs/protocol.md, "Losses").
_PAUSES: Final = (0.0, 0.1, 0.4, 1.6)
#: docs/protocol.md, "Compaction" and "Words to search by".
_ASIDE_SECONDS: Final = {CallPurpose.SUMMARY: 120.0, CallPurpose.SEARCH_WORDS: 15.0}
_ENDS: Final = {
    Follows.FAIL: Outcome.FAILED,
    Follows.GIVEN_UP: Outcome.FAILED,
    Follows.ANSWER: Outcome.ANSWERED,
}
#: How a request may end instead of making one more model call.
LIMITS: Final = frozenset({Outcome.STEP_LIMIT, Outcome.TOKEN_LIMIT, Outcome.COST_LIMIT})


# I5.


def bounded(story: Story) -> Iterator[str]:
    """I5: the request ends by its deadline, and gives no one below it more time than that.

    Its time stands still while each of its open calls waits for an approval or for a result from outside, and at no
    other time; so its deadline is that of its options, later by these waits. Each of them ends within its own limit.
    """
    if story.start is None:
        return
    end = story.finish()
    deadline = story.deadline_at(end[0] if end is not None else story.trace.ended_at)
    # A process that was down at the deadline finishes once it is back.
    back = [reaction.at for reaction in story.reactions if reaction.event is None and end and reaction.at <= end[0]]
    latest = max(story.latest(due) for due in (deadline, *back))
    if end is None and story.trace.ended_at >= latest:
        yield f"not finished at {story.trace.ended_at:g}, the deadline was {deadline:g}"
    elif end is None and not story.trace.queued:
        yield "it waits for nothing, and has not finished"
    elif end is not None and end[0] > latest:
        yield f"finished at {end[0]:g}, the deadline was {deadline:g}"
    for kind in (RunTool, CallModel):
        for reaction in story.reactions:
            for command in reaction.by_kind.get(kind, ()):
                if command.deadline_at > reaction.deadline + EPSILON:
                    yield f"{kind.__name__} {command.tag} may take until {command.deadline_at:g}"
    yield from _overlong_waits(story, back)


def _overlong_waits(story: Story, back: list[float]) -> Iterator[str]:
    """Waits for someone outside that did not end in their time."""
    for call in story.calls.values():
        for wait in call.waits:
            latest = max(story.latest(due) for due in (wait.due, *(at for at in back if at >= wait.since)))
            until = story.trace.ended_at if wait.until is None else wait.until
            if until > latest:
                yield f"call {call.tag} waited from {wait.since:g} to {until:g}, it might until {wait.due:g}"


# I6.


class Spending(Struct):
    """Usage and cost, model call by model call; a provider that reports no usage is charged an estimate."""

    usage: Usage = Usage()
    reported_usage: Usage | None = Usage()
    """Without the estimates; None once that of a model call is not known."""
    cost: float | None = 0.0
    """None once that of a model call is not known."""
    charged: float = 0.0
    """Against the budget: by the request's prices where a cost is not known."""
    last_output: int = 0
    reported: bool = True
    exact: bool = True
    """False once an estimate of a turn that was never recorded is in it: its output is not known here."""

    def add(self, model: ModelRun, options: RequestOptions, tokens: int, *, taken: bool) -> None:
        """Charge one model call with a prompt of so many; `taken` when its turn became part of the history."""
        event = model.end.event if model.end else None
        if not isinstance(event, ModelResponded | ModelFailed):
            return
        has_failed = isinstance(event, ModelFailed)
        usage, cost = event.usage if isinstance(event, ModelFailed) else event.response.usage, event.cost
        if has_failed and usage == Usage() and cost == 0:
            return  # none of its requests had begun to answer
        if cost is not None and not 0 <= cost <= MAX_CALL_COST:
            cost, self.exact = None, False
        reported = usage if usage is not None and can_be_true(usage) else None
        self.reported_usage = (
            None if self.reported_usage is None or reported is None else self.reported_usage + reported
        )
        if reported is None or not reported.total_tokens:
            self.reported = False
            parts = () if isinstance(event, ModelFailed) else event.response.parts
            answer = model.recorded[:1] if model.command.is_turn else (AssistantMessage(parts),)
            usage = Usage(tokens, tokens_of(answer))
            self.exact = self.exact and (not model.command.is_turn or (taken and bool(model.recorded)))
        else:
            usage = reported
            self.reported = self.reported and 0 < usage.input_tokens <= tokens
            if not usage.input_tokens:
                usage = replace(usage, input_tokens=tokens)
        self.usage += usage
        if model.command.is_turn and not has_failed:
            self.last_output = usage.output_tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        self.charged += _by_prices(options, usage.input_tokens, usage.output_tokens) if cost is None else cost


def can_be_true(usage: Usage) -> bool:
    """Whether a provider can have counted so."""
    return all(0 <= count <= MAX_CALL_TOKENS for count in counts_of(usage))


def budgets_hold(story: Story) -> Iterator[str]:
    """I6: no step is begun that the limits on steps, tokens or cost do not cover, and none is refused that they do."""
    if story.start is None:
        return
    options, steps, again = story.start.options, 0, False
    if options.cost_budget is not None and None in (options.input_price, options.output_price):
        yield "a cost budget was accepted without the prices by which it could be kept"
    turns = {turn.model.command.tag: turn for turn in expected_turns(story)}
    known, tokens, spent_before = windows(story), prompt_tokens(story), _spent(story)
    for model, spent in zip(story.asked, spent_before, strict=False):
        if not model.command.is_turn:
            if spent.exact:
                yield from _wrong_aside(model, options, spent, tokens[model.command.tag])
            continue
        steps += not again
        step = model.command.tag.step
        if not again and steps > options.max_steps:
            yield f"model call {step} begins step {steps} of {options.max_steps}"
        if spent.exact:
            bounded_by = replace(options, context_tokens=known[model.command.tag])
            yield from _wrong_allowance(model, bounded_by, spent, tokens[model.command.tag])
        turn = turns.get(model.command.tag)
        again = turn is not None and turn.follows in ASKED_AGAIN
    spent = spent_before[-1]
    if options.token_budget is not None and spent.reported and spent.usage.total_tokens > options.token_budget:
        yield f"{spent.usage.total_tokens} tokens used, the budget was {options.token_budget}"
    end = story.finish()
    if end is not None and spent.exact:
        yield from _stopped_too_early(story, end[1], spent, 0 if again else steps)


@lru_cache(maxsize=1)
def _spent(story: Story) -> tuple[Spending, ...]:
    """What was spent before each model call, in their order, and in the end."""
    assert story.start is not None
    taken = {turn.model.command.tag: turn.taken for turn in expected_turns(story)}
    spent, found, tokens = Spending(), list[Spending](), prompt_tokens(story)
    for model in story.asked:
        found.append(copy(spent))
        tag = model.command.tag
        spent.add(model, story.start.options, tokens[tag], taken=taken.get(tag, False))
    return (*found, spent)


def spending(story: Story) -> dict[Tag | None, Spending]:
    """What was spent before each model call, by its tag; under None, in the end."""
    return dict(zip((*(model.command.tag for model in story.asked), None), _spent(story), strict=True))


def spending_after(story: Story, model: ModelRun) -> Spending:
    """What was spent when this model call had ended."""
    later = story.asked[story.asked.index(model) + 1 :]
    return spending(story)[later[0].command.tag if later else None]


def covers_aside(options: RequestOptions, spent: Spending, size: int, most: int, tokens: int) -> bool:
    """Whether the budgets cover a call beside the conversation, and the step behind it, of so many tokens."""
    least = max(_MIN_OUTPUT_TOKENS, spent.last_output)
    size += tokens + least
    if options.token_budget is not None and spent.usage.total_tokens + size + max(most, least) > options.token_budget:
        return False
    if options.cost_budget is None:
        return True
    left, cost = options.cost_budget - spent.charged, _by_prices(options, size, 0)
    return left > 0 and cost + _by_prices(options, 0, max(most, least)) <= left


def wrong_aside(model: ModelRun, options: RequestOptions, most: int) -> Iterator[str]:
    """A call beside the conversation has its own few options, and of the request's no more than the headers."""
    request = model.command.request
    headers = tuple(
        ExtraFields(headers=each.headers, provider=each.provider)
        for each in options.provider_options
        if isinstance(each, ExtraFields) and each.headers
    )
    wanted = ModelRequest(request.model, request.messages, sampling=Sampling(max_output_tokens=most))
    if request != replace(wanted, provider_options=headers, prompt_cache=PromptCache.OFF):
        yield f"model call {model.command.tag.step}, for no turn, is asked with {request!r:.600}"


def _needed(options: RequestOptions, spent: Spending, tokens: int) -> tuple[int, float]:
    """What the next step needs at least: output tokens, and dollars."""
    output = max(_MIN_OUTPUT_TOKENS, spent.last_output)
    return output, _by_prices(options, tokens, output)


def _by_prices(options: RequestOptions, tokens: int, output: int) -> float:
    return tokens * (options.input_price or 0.0) + output * (options.output_price or 0.0)


def _wrong_allowance(model: ModelRun, options: RequestOptions, spent: Spending, tokens: int) -> Iterator[str]:
    request, step = model.command.request, model.command.tag.step
    output, cost = _needed(options, spent, tokens)
    allowed = [options.sampling.max_output_tokens]
    if options.token_budget is not None:
        left = options.token_budget - spent.usage.total_tokens - tokens
        allowed.append(left)
        if left < output:
            yield f"model call {step} needs {tokens} and {output} tokens, of {options.token_budget} {left} are left"
    if options.cost_budget is not None:
        money = options.cost_budget - spent.charged
        if money <= 0 or cost > money + 1e-9:
            yield f"model call {step} costs about {cost:g}, of {options.cost_budget:g} dollars {money:g} are left"
        if options.output_price:
            allowed.append(int((money - tokens * (options.input_price or 0.0)) / options.output_price))
    given = [limit for limit in allowed if limit is not None]
    if options.context_tokens is not None:
        left = options.context_tokens - tokens
        if left < _MIN_OUTPUT_TOKENS:
            yield f"model call {step} has {tokens} tokens of context, which leaves {left} for the answer"
        if given or left < room_for_answer(options.context_tokens, options.sampling.max_output_tokens):
            given.append(left)
    expected = min(given) if given else None
    if request.sampling.max_output_tokens != expected:
        yield f"model call {step} may answer {request.sampling.max_output_tokens} tokens, allowed are {expected}"


def _wrong_aside(model: ModelRun, options: RequestOptions, spent: Spending, tokens: int) -> Iterator[str]:
    """What is no turn, such as a summary, is asked for only where the budgets cover it whole."""
    request, step = model.command.request, model.command.tag.step
    most = request.sampling.max_output_tokens
    if most is None:
        yield f"the answer of model call {step}, which is no turn, may be of any length"
        return
    if options.token_budget is not None and spent.usage.total_tokens + tokens + most > options.token_budget:
        yield f"model call {step}, for no turn, needs {tokens + most} tokens, of which not so many are left"
    cost = _by_prices(options, tokens, most)
    if options.cost_budget is not None and spent.charged + cost > options.cost_budget + 1e-9:
        yield f"model call {step}, for no turn, costs up to {cost:g} dollars, of which not so many are left"


def _stopped_too_early(story: Story, finish: Finish, spent: Spending, steps: int) -> Iterator[str]:
    """A limit ends a request only when the next step would have passed it."""
    assert story.start is not None
    options, outcome = story.start.options, finish.outcome
    if story.models:
        options = replace(options, context_tokens=windows(story)[None])
    if outcome is Outcome.STEP_LIMIT and steps != options.max_steps:
        yield f"ended at the step limit after {steps} of {options.max_steps} steps"
    if outcome is Outcome.COST_LIMIT and options.cost_budget is None:
        yield "ended at a cost limit that was not set"
    if outcome is Outcome.TOKEN_LIMIT and options.token_budget is None and options.context_tokens is None:
        yield "ended at a token limit that was not set"
    if outcome not in (Outcome.COST_LIMIT, Outcome.TOKEN_LIMIT):
        return
    due = expected_prompts(story)[-1]
    if due.model is not None:
        return
    tokens, window = due.tokens, options.context_tokens
    if not due.fits and (
        outcome is not Outcome.TOKEN_LIMIT or f"{tokens} tokens; the window has {window}" not in finish.reason
    ):
        yield f"what must be sent needs {tokens} tokens, of {window}, and it ended: {finish.reason}"
    output, cost = _needed(options, spent, tokens)
    budget = options.token_budget
    fits = due.fits and (budget is None or spent.usage.total_tokens + tokens + output <= budget)
    if outcome is Outcome.TOKEN_LIMIT and fits:
        yield f"ended at the token limit although {tokens} and {output} more fit into {budget} and into {window}"
    money = options.cost_budget
    charged = spent.charged
    if outcome is Outcome.COST_LIMIT and money is not None and charged + cost <= money - 1e-9 and charged < money:
        yield f"ended at the cost limit with {charged:g} of {money:g} dollars spent, {cost:g} needed"


# I20.


def turns_decide(story: Story) -> Iterator[str]:
    """I20: each end of a model call leads to what it must; a step takes as many requests as it may, and no more."""
    if story.start is not None:
        limit = story.start.options.max_attempts
        for turn in expected_turns(story):
            if (left := turn.model.command.attempts) != limit - turn.sent:
                tag = turn.model.command.tag
                yield f"step {tag.step} may take {left} requests; its limit is {limit}, and {turn.sent} were sent"
    for turn in expected_turns(story):
        reaction = turn.model.calls_begin if turn.follows is Follows.CALLS else turn.model.end
        assert reaction is not None
        calls, notes = reaction.given(CallModel), reaction.given(Note)
        finishes = reaction.given(Finish)
        outcome = finishes[0].outcome if finishes else None
        told = f"step {turn.model.command.tag.step} must lead to {turn.follows.name} ({turn.sent} requests before it)"
        if turn.follows in ASKED_AGAIN:
            if not notes:
                yield f"{told}: it was asked again without a note"
            if not calls and (outcome not in LIMITS or outcome is Outcome.STEP_LIMIT):
                yield f"{told}: it ended as {outcome}"
        elif outcome is not _ENDS.get(turn.follows, outcome):
            yield f"{told}: it went on, or ended as {outcome}"
        elif turn.follows in (Follows.GO_ON, Follows.CUT_ON, Follows.MISFIT) and not calls and outcome not in LIMITS:
            yield f"{told}: it ended as {outcome}"
        elif turn.follows is Follows.CALLS:
            yield from _wrong_calls(turn, reaction, outcome, told)


def _wrong_calls(turn: ExpectedTurn, reaction: Reaction, outcome: Outcome | None, told: str) -> Iterator[str]:
    if turn.loops and turn.ends_as is None:
        if outcome is not Outcome.REPEATED_CALLS:
            yield f"{told}: a call was repeated too often, and it went on or ended as {outcome}"
        return
    begun = bool(turn.begun)
    if begun and (reaction.given(CallModel) or reaction.given(RecordStep) or outcome is not None):
        yield f"{told}: it went on while its calls are open"
    if not begun and turn.ends_as is not None:
        if outcome is not turn.ends_as:
            yield f"{told}: it ends the request as {turn.ends_as}, and it ended as {outcome}"
    elif not begun and not reaction.given(CallModel) and outcome not in LIMITS:
        yield f"{told}: all its calls have ended, and it did not go on"


# I22.


#: What ends a wait for someone outside, or begins another one.
_ENDS_WAIT: Final = frozenset({*CALL_ENDINGS, ApprovalGranted, ToolCallDeferred})


class _Timers:
    """Which timers are set, and for which deadlines of open calls there must be one."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._live: dict[Tag, float] = {}
        self._due: dict[Tag, float] = {}
        self._step = 0
        # A call may be approved and deferred in the moment in which it was asked about: the first wait is the approval.
        self._waits = {(call.tag, wait.since): wait for call in story.calls.values() for wait in reversed(call.waits)}
        self._waiting: dict[Tag, float] = {}
        """When the waits for someone outside must be over."""

    def hear(self, event: Event | None) -> None:
        """A timer fires; a call ends; a crash takes all timers away."""
        kind = type(event)
        if event is None:
            self._live.clear()
            self._due.clear()  # it is told of its loss, and gives each call a deadline again
        elif kind is DeadlinePassed:
            self._live.pop(event.tag, None)
        elif kind is ToolsLost:
            self._due.clear()
        elif kind in _ENDS_WAIT:
            self._waiting.pop(event.tag, None)
            if kind is not ApprovalGranted:
                self._due.pop(event.tag, None)
            if isinstance(event, ToolCallDeferred):
                self._waiting[event.tag] = event.at + event.timeout_seconds

    def see(self, command: Command, reaction: Reaction) -> None:
        """A timer is set or cleared; a call gets its deadline, or the end of its wait."""
        match command:
            case Note():
                pass  # most are
            case SetTimer():
                self._live[command.tag] = command.at
            case ClearTimer():
                self._live.pop(command.tag, None)
            case RunTool():
                self._due[command.tag] = command.deadline_at + self._story.calls[command.tag].backstop_seconds
                self._step = command.tag.step
            case RecordStep():
                self._due.clear()
            case CallModel():
                self._step = command.tag.step
            case AskApproval():
                self._step = command.tag.step
                assert reaction.event is not None
                wait = self._waits.get((command.tag, reaction.event.at))
                self._waiting.setdefault(command.tag, wait.due if wait is not None else 0.0)
            case CancelTool():
                self._due.pop(command.tag, None)
            case WithdrawApproval() | ReportFailure():
                self._waiting.pop(command.tag, None)

    def wrong_times(self, reaction: Reaction) -> Iterator[str]:
        """Timers that are set to no time at which anything is due."""
        asked: Sequence[SetTimer] = reaction.given(SetTimer)
        if len(asked) > 1 and len({(command.tag, command.at) for command in asked}) < len(asked):
            yield f"after {type(reaction.event).__name__} a timer is set twice to one time"
        for command in asked:
            yield from self._wrong_time(command, reaction)

    def _wrong_time(self, command: SetTimer, reaction: Reaction) -> Iterator[str]:
        story, deadline = self._story, reaction.deadline
        if story.start is not None and command.tag == story.start.tag:
            if abs(command.at - deadline) > EPSILON:
                yield f"the request's timer is set to {command.at:g}, its deadline is {deadline:g}"
            return
        calls = [call for call in story.calls.values() if call.tag.step == command.tag.step]
        dues = [run.deadline_at + call.backstop_seconds for call in calls for _, run in call.runs]
        dues += [wait.due for call in calls for wait in call.waits]
        if not any(abs(command.at - due) <= EPSILON for due in dues):
            yield f"the timer of step {command.tag.step} is set to {command.at:g}, which is no deadline of its calls"

    def missing(self, reaction: Reaction) -> Iterator[str]:
        """What waits without a timer, and which timers have nothing to wait for."""
        request = self._story.start
        if request is not None and reaction.only_waits is (request.tag in self._live):
            yield "its time stands still, and its timer runs" if reaction.only_waits else "the request has no timer"
        for due in (self._due, self._waiting):
            for tag, latest in due.items():
                if self._live.get(tag.at_step(tag.step), math.inf) > latest + EPSILON:
                    yield f"call {tag} has no timer at its deadline"
        for tag in self._live:
            if 0 < tag.step < self._step:
                yield f"the timer of {tag} outlived its step"

    def left(self) -> Iterator[str]:
        """Timers at the end of the request."""
        return (f"the timer of {tag} was neither cleared nor fired" for tag in self._live)


def timers(story: Story) -> Iterator[str]:
    """I22: the request has a timer while its time runs, each step one for its next call; each fires or is cleared."""
    if story.start is None:
        return
    watch, resumed = _Timers(story), False
    for reaction in story.reactions:
        watch.hear(reaction.event)
        yield from watch.wrong_times(reaction)
        for command in reaction.commands:
            watch.see(command, reaction)
        if Finish in reaction.by_kind:
            yield from watch.left()
            return
        # What was committed with an outcome is told first, then what was lost: with that the timers are set again.
        resumed = reaction.event is None or (resumed and isinstance(reaction.event, ToolCallCompleted))
        if not resumed:
            yield from watch.missing(reaction)


# I23.


def model_deadlines(story: Story) -> Iterator[str]:
    """I23: model calls are numbered one by one, each has its own deadline, and one that was lost begins after a pause.

    The pause is longer with each loss in a row, and not shorter than what the lost one still had to wait.
    """
    losses, was_for = 0, None
    for number, (before, model) in enumerate(zip((None, *story.asked), story.asked, strict=False), 1):
        event = model.reaction.event
        assert event is not None
        # A summary that was lost too often is not asked for again: what follows it at once is the step.
        losses = losses + 1 if isinstance(event, ModelLost) and was_for is model.command.purpose else 0
        was_for = model.command.purpose
        begins_at = event.at + _PAUSES[min(losses, len(_PAUSES) - 1)]
        if losses and before is not None:
            begins_at = max(begins_at, before.waits_until_at)
        if abs(model.command.not_before_at - (begins_at if losses else 0.0)) > EPSILON:
            yield f"model call {number} may begin at {model.command.not_before_at:g}, {losses} were lost before it"
        deadline = model.reaction.deadline
        expected = min(begins_at + STREAM_TOTAL_TIMEOUT_SECONDS, deadline)
        if model.command.purpose in _ASIDE_SECONDS:  # and a quarter of the time that is left
            most = _ASIDE_SECONDS[model.command.purpose]
            expected = min(begins_at + min(most, max(deadline - begins_at, 0.0) / 4), deadline)
        if abs(model.command.deadline_at - expected) > EPSILON:
            yield f"model call {number} may take until {model.command.deadline_at:g}, expected is {expected:g}"
        if model.asked_at is not None and model.asked_at < model.command.not_before_at - EPSILON:
            yield f"model call {number} began at {model.asked_at:g}, it says {model.command.not_before_at:g}"
        request = model.command.request
        if model.command.prompt_tokens != (counted := input_tokens(request)):
            yield f"model call {number} says that its prompt has {model.command.prompt_tokens} tokens, it has {counted}"
        if not request.stream or request.is_last_try:  # which try it is, is known to what sends it
            yield f"model call {number} is not to be streamed, or is said to be the last try"
        if model.command.tag.step != number:
            yield f"model call {number} has the step number {model.command.tag.step}"
