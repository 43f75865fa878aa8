"""One request's whole logic, without I/O: events in, commands out. The tables in `states.py` decide what happens.

    session = Session()
    commands = session.apply(RequestStarted(...))      # SetTimer, CallModel
    commands = session.apply(ModelResponded(...))      # RunTool, RunTool, SetTimer
    ...                                                # until a Finish comes out

A session has no clock, no randomness and no memory outside itself: the same events give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from callboard.protocol import commands, compaction, events, limits, search_words, states, step
from callboard.protocol.asides import Aside
from callboard.protocol.attempts import Attempts
from callboard.protocol.budgets import Spending, Stop
from callboard.protocol.calls_as_text import written_call
from callboard.protocol.clock import RequestClock
from callboard.protocol.commands import Command, NoteKind, Outcome
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    is_from_outside,
    is_json_object,
)
from callboard.protocol.cut_answer import CutAnswer
from callboard.protocol.errors import ASK_AGAIN_KINDS, ErrorKind, ProtocolError, UsageError, with_advice
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag
from callboard.protocol.model import (
    CallPurpose,
    Error,
    FinishReason,
    ModelRequest,
    ModelResponse,
    Restarted,
    TextDelta,
)
from callboard.protocol.options import RequestOptions, ToolFallback
from callboard.protocol.output import ASKED_BY, NO_ANSWERS, OutputTries, Ruling, check_fault
from callboard.protocol.prompt import PromptBuilder
from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens
from callboard.protocol.search_words import FirstSearch, HeldTurn
from callboard.protocol.start_check import check_start
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.step import NO_WORDS, CallFailure, OpenCall, SearchWords, Turn, TurnVerdict
from callboard.protocol.step_log import StepLog
from callboard.protocol.tools import wait_fault
from callboard.protocol.turn_text import TurnText


class Session:
    """The protocol of one request. Give a `tag` to fix whose it is; otherwise RequestStarted does."""

    def __init__(self, tag: Tag | None = None, *, count_tokens: TokenCounter = estimate_tokens) -> None:
        self.count_tokens = count_tokens
        self.tag = tag.request if tag is not None else step.NO_REQUEST
        """The request's tag; empty until it started."""
        self.state = RequestState.NEW
        self.spent = Spending()
        """What the request has used so far."""
        self._facts = states.RequestFacts()
        self._reason = ""
        self.step = self.tag
        """The tag of the current model call; each model call has a number of its own, repeated ones too."""
        self._due: tuple[ModelRequest, float] | None = None
        self._model_calls = 0
        self._aside: Aside | None = None
        """The current model call, or the one that is due, is beside the conversation."""
        self._held: HeldTurn | None = None
        """Its calls begin when there are further words to search by."""
        self._first_search = FirstSearch()
        self._attempts: Attempts
        self._left_out: set[str] = set()
        """What was already said that the API cannot express: once a request is enough."""
        self._clock = RequestClock(0.0)
        self._options: RequestOptions
        self._prompt: PromptBuilder
        self._repeats: step.Repeats
        self._output: OutputTries | None = None
        self._ruling: Ruling | None = None
        """How the request ends when no call of the open step is open any more: its turn held the answer."""
        self._batch = step.NO_CALLS
        self._has_read_untrusted = False
        """The prompt has held text from outside, or what was said after such text; known where the options ask it."""
        self._streamed = TurnText()
        self._notices: tuple[Message, ...] = ()
        """What came from outside for the model to read, and is not recorded yet."""
        self._text = ""
        self._finish_reason = FinishReason.OTHER
        self._log = StepLog()
        self._recorded: list[commands.RecordStep | commands.RecordCompaction] = []
        self._open_turn: commands.OpenTurn | None = None
        """How the request has ended: with a turn whose calls are for the one who has asked."""
        self._last: tuple[Command, ...] = ()
        """Given out once more after a crash: the request's timer, if its time runs, or what it finished with."""

    @property
    def calls(self) -> dict[Tag, CallState]:
        """The calls of the current step, and the state of each."""
        return {tag: call.state for tag, call in self._batch.calls.items()}

    def call_of(self, tag: Tag) -> ToolCall:
        """One of the calls of the current step."""
        return self._batch.calls[tag].call

    @property
    def has_recorded(self) -> bool:
        """The question is in the conversation: it comes with the first step."""
        return bool(self._steps)

    @property
    def recorded(self) -> tuple[Message, ...]:
        """What this request has added to the conversation so far: whole steps only."""
        return tuple(message for record in self._steps for message in record.messages)

    @property
    def _steps(self) -> list[commands.RecordStep]:
        return [record for record in self._recorded if isinstance(record, commands.RecordStep)]

    # Applying events.

    def apply(self, event: Event) -> tuple[Command, ...]:
        """Take one event in; the commands that follow from it come out, in the order in which to carry them out.

        Raises ProtocolError, and leaves everything as it was, for an event that is illegal now: of another request or
        step, for a call that already ended, after the end.
        """
        try:
            take_in, row = _LEGAL[self.state][type(event)]
        except KeyError:
            raise ProtocolError(self.state, event) from None
        todo = take_in(self, event)
        facts = self._facts
        for guard, state, then in row:
            if guard(facts):
                self.state = state
                if then is not None:
                    todo += then(self, event)
                return tuple(todo)
        raise AssertionError(f"{type(event).__name__} leads nowhere from {self.state}: {facts}")

    def to_journal(self, event: Event) -> tuple[Event, ...]:
        """What a journal must hold of this event; ask before it is applied, write when it was not refused.

        Deltas need not be written one by one: what was streamed of a turn that is cut short by this event comes as one
        ModelStreamed before it, and is nothing to write when the turn arrives whole.
        """
        if type(event) is events.ModelStreamed and not self._streamed.would_be_too_long(event.events):
            return ()
        if not self._streamed.has_begun or type(event) is events.ModelResponded:
            return (event,)
        # Restarted: an earlier line may hold some of it already, or text that is void by now.
        so_far = (Restarted("journal"), TextDelta(self._streamed.text))
        return (events.ModelStreamed(self.step, event.at, so_far), event)

    @classmethod
    def replay(cls, journal: Iterable[Event], *, count_tokens: TokenCounter = estimate_tokens) -> Session:
        """The session that these events lead to: what a journal, or any prefix of one, rebuilds (I8).

        Give the `count_tokens` that it had: what was cut from a history depends on it.
        """
        session = cls(count_tokens=count_tokens)
        for event in journal:
            session.apply(event)
        return session

    def resume_commands(self) -> tuple[Command, ...]:
        """What to do first with a replayed session; then apply (and journal) its `loss_event`, if there is one.

        Records and timers are given out once more: a RecordStep is recognised by its tag, a timer replaces its like. A
        session that had finished gives its last commands once more.
        """
        return (*self._recorded, *self._last)

    def loss_event(self, at: float) -> Event | None:
        """After a crash, this session's open work is lost: the event that says so; None when it had none."""
        if self.state is RequestState.CALLING_MODEL:
            return events.ModelLost(self.step, at, with_process=True)
        return events.ToolsLost(self.step, at) if self.state is RequestState.RUNNING_TOOLS else None

    def asks_again_at(self, at: float) -> float:
        """When a model call that was lost then is asked again; until it is, its loss need not count."""
        return self._attempts.begins_again_at(at, self._attempts.losses + 1)

    # Whose event is it?

    def _check_request(self, event: Event) -> None:
        if event.tag[:2] != self.tag[:2]:
            told = f"it is of request {event.tag.request_id!r}, this is {self.tag.request_id!r}"
            raise ProtocolError(self.state, event, told)

    def _check_step(self, event: Event) -> None:
        if event.tag != self.step:
            self._check_request(event)
            raise ProtocolError(self.state, event, f"it is of step {event.tag.step}, the open one is {self.step.step}")

    def _call_of(self, event: Event) -> OpenCall:
        """The open call that the event is about, in a state in which it may come."""
        call = self._batch.calls.get(event.tag)
        if call is None:
            self._check_request(event)
            told = f"step {self.step.step} has no call {event.tag.call_id!r} of step {event.tag.step}"
            raise ProtocolError(self.state, event, told)
        if type(event) not in states.CALL_TRANSITIONS[call.state]:
            raise ProtocolError(self.state, event, f"call {event.tag.call_id!r} is {call.state}")
        return call

    # The request.

    def _request_started(self, event: events.RequestStarted) -> list[Command]:
        if self.tag is not step.NO_REQUEST:
            self._check_request(event)
        options = event.options
        try:
            check_start(event.history, options, event.tools, event.compacted)
        except UsageError as error:
            raise ProtocolError(self.state, event, str(error)) from error
        self._prompt = PromptBuilder(event, self.spent, self.count_tokens)
        self.tag = self.step = event.tag.request
        self._options, self._attempts = options, Attempts(options.max_attempts)
        self._repeats, self._cut = step.Repeats(options.repeated_call_limit), CutAnswer(options)
        self._output = OutputTries(options.output) if options.output is not None else None
        self._read((*event.history, event.user) if options.ask_after_untrusted else ())
        self._clock = RequestClock(deadline_at := event.at + options.timeout_seconds)
        self._last = (commands.SetTimer(self.tag, deadline_at),)
        notes = [commands.Note(self.tag, note, NoteKind.ASSUMED) for note in event.notes]
        if not options.takes_tools and self._may_give_up_tools:
            self._prompt.give_up_tools(options.model)
            told = f"{options.model} takes no tools, as it has said before; it is asked without them."
            notes.append(commands.Note(self.tag, told, NoteKind.TOOL_FALLBACK))
        self._plan_next()
        return [*self._last, *notes]

    def _cancel_requested(self, event: events.CancelRequested) -> list[Command]:
        self._check_request(event)
        self._end(Outcome.CANCELLED, event.reason or "the request was cancelled.")
        return self._let_go(event)

    def _deadline_passed(self, event: events.DeadlinePassed) -> list[Command]:
        if event.tag != self.tag:
            self._check_step(event)
            if self._batch.timer_at is None:
                raise ProtocolError(self.state, event, "this step has no timer")
            return self._after_calls(self._batch.expire(event.at), event.at)
        deadline_at = self._clock.deadline_at(event.at)
        if event.at < deadline_at - limits.CLOCK_TOLERANCE_SECONDS:
            return [] if self._clock.is_halted else [commands.SetTimer(self.tag, deadline_at)]
        told = f"deadline of {self._options.timeout_seconds:g} s passed{self._attempts.failures}."
        self._end(Outcome.TIMED_OUT, f"the request's {told}")
        return self._let_go(event)

    # The model.

    def _plan_next(self, *, again: bool = False, not_before_at: float = 0.0) -> None:
        """Prepare the next model call, or the end by a limit; `again` when the last call came to nothing."""
        self._aside = None if again else self._prompt.next_summary()
        request = self._prompt.next_request(again=again) if self._aside is None else self._aside.request
        if isinstance(request, Stop):
            self._end(request.outcome, request.reason)
        else:
            self._due = request, not_before_at

    def _call_model(self, event: Event) -> list[Command]:
        assert self._due is not None
        request, not_before_at = self._due
        self._due = None
        self._model_calls += 1
        self.step = self.tag.at_step(self._model_calls)
        self._streamed.forget()
        self._attempts.begin(not_before_at)
        self._finish_reason = FinishReason.OTHER
        asked_at, left = max(event.at, not_before_at), self._attempts.left
        self._log.asked(self.step.step, asked_at, self._purpose)
        ends_at = self._clock.deadline_at(event.at)
        deadline_at = min(asked_at + limits.STREAM_TOTAL_TIMEOUT_SECONDS, ends_at)
        todo, counted = self._told_compacted(), self._prompt.size.own_count
        if (aside := self._aside) is not None:
            deadline_at, counted = aside.deadline_at(asked_at, ends_at), aside.tokens
            left = min(left, aside.max_attempts or left)
        elif told := self._prompt.told_cut():
            todo.append(commands.Note(self.step, told, NoteKind.TRIMMED))
        call = commands.CallModel(self.step, request, deadline_at, not_before_at, left, counted, self._purpose)
        return [*todo, call]

    def _model_streamed(self, event: events.ModelStreamed) -> list[Command]:
        if event.tag != self.step:
            self._check_step(event)
        if self._aside is not None:
            return []  # no part of the answer
        self._streamed.add(event.events)
        if self._streamed.is_too_long:
            self._streamed.forget()  # what no person could read is not recorded
            return [commands.StopModel(self.step), *self._end(Outcome.FAILED, step.TOO_LONG)]
        return []

    def _model_noted(self, event: events.ModelNoted) -> list[Command]:
        self._check_step(event)
        self._attempts.noted(event)
        return [commands.Note(self.step, event.text, event.kind)]

    def _told_left_out(self, found: tuple[str, ...], doubt: str = "") -> list[Command]:
        new = [text for text in dict.fromkeys(found) if text not in self._left_out]
        self._left_out.update(new)
        told: list[Command] = [commands.Note(self.step, text, NoteKind.LEFT_OUT) for text in new]
        return [*told, commands.Note(self.step, doubt, NoteKind.ESTIMATED)] if doubt else told

    def _model_responded(self, event: events.ModelResponded) -> list[Command]:
        self._check_step(event)
        form = self._options.output if self._aside is None else None
        if (form or event.checked) and (fault := check_fault(form, event.response, event.checked)):
            raise ProtocolError(self.state, event, fault)
        self._attempts.ended(event.requests)
        if self._aside is not None:
            return self._aside_responded(event, self._aside)
        response = event.response
        is_too_long = step.is_too_long(response)
        turn = step.tidy(ModelResponse() if is_too_long else response)
        self._streamed.forget(turn.message.text)
        doubt = self._prompt.charge(response.usage, event.cost, turn.message)
        self._log.responded(event, self.spent.last_usage, self.spent.last_cost)
        notes = self._told_left_out(response.notes, doubt)
        if is_too_long:
            return notes + self._end(Outcome.FAILED, step.TOO_LONG)
        return notes + (self._model_error(response.error, event.at) if response.error else self._take_turn(event, turn))

    def _take_turn(self, event: events.ModelResponded, turn: Turn) -> list[Command]:
        """The model call has not failed: what its turn leads to."""
        response = event.response
        self._finish_reason = response.finish_reason
        shown = () if self._output else [tool.name for tool in self._prompt.definitions]  # else a misfit is told again
        written = written_call(turn.message.text, shown)
        verdict, reason = step.judge(response, turn, self._attempts.may_ask_again, written)
        if verdict is TurnVerdict.ASK_AGAIN:
            return self._ask_again(reason)
        if verdict is TurnVerdict.FAIL:
            return self._end(Outcome.FAILED, reason)
        self._attempts.end_step()
        self._prompt.go_on_from(turn.message, response.response_id)
        self._streamed.forget()
        self._text = self._cut.took(turn.message.text, response.finish_reason, verdict)
        reason = self._cut.note or reason
        notes: list[Command] = [commands.Note(self.step, reason, NoteKind.CUT)] if reason else []
        if verdict is TurnVerdict.GO_ON:
            record = self._record((turn.message,), is_whole=False)  # only the turn itself may be sent back
            self._plan_next()
            return [*notes, record]
        ruling = self._output.rule(response, event.checked, reason) if self._output is not None else None
        if ruling is not None and self._output is not None:
            self._text = ruling.text
            if told_misfit := self._output.told_again(ruling):
                notes.append(commands.Note(self.step, told_misfit, NoteKind.MISFIT))
        if verdict is TurnVerdict.RUN_CALLS:
            told = (step.CUT_TOLD.format(response.finish_reason),) if reason else ()
            if self._options.expand_search and self._waits_for_words(turn, told, ruling):
                return notes
            return notes + self._run_calls(turn, event.at, told, ruling)
        return notes + self._answer(turn.message, ruling or Ruling(Outcome.ANSWERED, reason))

    def _answer(self, message: AssistantMessage, ruling: Ruling) -> list[Command]:
        """The turn has no calls. It ends the request, or the model reads why its answer was not taken."""
        told = self._cut.told
        if ruling.outcome is None and self._output is not None:
            told = self._output.spec.told_misfit(ruling.misfit, self._prompt.output_mode)
        record = self._record((message, SystemMessage(told)) if told else (message,))
        if told:
            self._plan_next()
        else:
            self._end(ruling.outcome or Outcome.ANSWERED, ruling.reason)
        return [record]

    def _model_failed(self, event: events.ModelFailed) -> list[Command]:
        self._check_step(event)
        self._attempts.failed(event)
        doubt = self._prompt.charge_failed(event, self._aside, self._streamed.text)
        self._log.failed(event, self.spent.last_usage, self.spent.last_cost)
        return self._told_left_out(event.error.notes, doubt) + self._model_error(event.error, event.at, event.model)

    def _model_lost(self, event: events.ModelLost) -> list[Command]:
        # A request beside one that crashes the holder of all model calls must outlive that, so it is asked again as
        # often as any step is. The one at fault must not be: for it alone, ModelFailed says `internal_error`.
        self._check_step(event)
        attempts = self._attempts
        may_ask_again = attempts.lost(event)
        self._log.lost(event.at)
        if self._purpose is CallPurpose.SEARCH_WORDS:
            return self._end_words((), "the model call was lost", event.at)
        if not may_ask_again:
            tries = f"after {attempts.sent} tries: " if attempts.sent else ""
            told = f"{tries}the model call was lost {attempts.losses} times"
            if self._purpose is CallPurpose.SUMMARY:
                return self._summary_failed(told)
            return self._end(Outcome.FAILED, f"{ErrorKind.INTERNAL}: {told}")
        not_before_at = attempts.begins_again_at(event.at, attempts.losses)
        told = f"the model call was lost; it is asked again after {not_before_at - event.at:.4g} s."
        return self._ask_again(told, not_before_at)

    # Model calls beside the conversation, whose answers are no turns.

    @property
    def _purpose(self) -> CallPurpose:
        return CallPurpose.TURN if self._aside is None else self._aside.purpose

    def _aside_responded(self, event: events.ModelResponded, aside: Aside) -> list[Command]:
        response = event.response
        notes = self._told_left_out((), self._prompt.charge_aside(aside, response.usage, event.cost, response.message))
        self._log.responded(event, self.spent.last_usage, self.spent.last_cost)
        if aside.purpose is CallPurpose.SEARCH_WORDS:
            return notes + self._end_words(*search_words.words_in(response), event.at)
        text, why, may_repeat = compaction.summary_text(response)
        if not text:
            return notes + self._summary_failed(why, may_repeat=may_repeat)
        self._end_summary(text)
        return notes + self._told_compacted()

    def _waits_for_words(self, turn: Turn, told: tuple[str, ...], ruling: Ruling | None) -> bool:
        """Whether its calls begin when the model has given further words for the first search of the request."""
        search = self._first_search.in_turn(turn.calls, self._prompt.offers)
        keys = [] if search is None else [step.digest(*each) for each in turn.signatures]
        if search is None or ruling is not None or self._repeats.next_step(keys)[1]:
            return False
        if (aside := self._prompt.words_aside(search.queries)) is not None:
            self._aside, self._due = aside, (aside.request, 0.0)
            self._held = HeldTurn(self.step, turn, told, self._finish_reason, search.place)
        return aside is not None

    def _end_words(self, words: tuple[str, ...], why: str, at: float) -> list[Command]:
        """Begin the calls of the turn, with these words for its search or, where they could not be had, without."""
        held, self._held, self._aside = self._held, None, None
        assert held is not None
        self._attempts.end_step()
        self.step, self._finish_reason = held.tag, held.finish_reason
        told = f"It was searched without further words: {why}."
        notes = [] if words else [commands.Note(self.step, told, NoteKind.WORDS_FAILED)]
        return notes + self._run_calls(held.turn, at, held.told, None, {held.place: words})

    def _summary_failed(self, why: str, *, may_repeat: bool = False) -> list[Command]:
        """Ask again, as often as for a step and within the budgets; then go on without it: older messages are cut."""
        if may_repeat and self._attempts.may_ask_again and self._prompt.may_repeat_summary():
            return self._ask_again(f"{why}.")
        self._end_summary("")
        told = f"Older messages could not be summarised: {why}; what does not fit is left out."
        return [commands.Note(self.step, told, NoteKind.SUMMARY_FAILED), *self._told_compacted()]

    def _end_summary(self, text: str) -> None:
        self._attempts.end_step()
        self._prompt.end_summary(text)
        self._plan_next()

    def _told_compacted(self) -> list[Command]:
        """What was done to earlier messages: kept beside the conversation, and said."""
        if (done := self._prompt.told_compacted()) is None:
            return []
        compacted, told = done
        record = commands.RecordCompaction(self.step, compacted)
        self._recorded.append(record)
        notes = [commands.Note(self.step, told, NoteKind.COMPACTED)] if told else []
        return [*notes, record]

    def _model_error(self, error: Error, at: float, model: str = "") -> list[Command]:
        model, sent = model or self._options.model, self._attempts.sent
        if self._purpose is CallPurpose.SEARCH_WORDS:
            return self._end_words((), f"the model call failed ({error.kind})", at)
        if self._purpose is CallPurpose.SUMMARY and error.kind is not ErrorKind.INTERNAL:
            repeats = error.kind in ASK_AGAIN_KINDS
            return self._summary_failed(f"the model call failed ({error.kind})", may_repeat=repeats)
        if self._attempts.may_ask_again:
            if error.kind is ErrorKind.TOOLS_UNSUPPORTED and self._may_give_up_tools:
                self._prompt.give_up_tools(model)
                self._plan_next(again=True)
                told = f"{model} takes no tools; it is asked again without them."
                return [commands.Note(self.step, told, NoteKind.TOOL_FALLBACK)]
            if error.kind is ErrorKind.SCHEMA_UNSUPPORTED and self._prompt.give_up_schema(model):
                self._plan_next(again=True)
                told = f"{model} takes no schema of the answer, or not this one; {ASKED_BY[self._prompt.output_mode]}."
                return [commands.Note(self.step, told, NoteKind.SCHEMA_FALLBACK)]
            if error.kind is ErrorKind.CONTEXT_LENGTH and self._cuts_harder(error):
                window = f", which takes {error.context_tokens:,} tokens" if error.context_tokens else ""
                return self._ask_again(f"the prompt was too long for {model}{window}; more of it is left out now.")
            if error.kind in ASK_AGAIN_KINDS:
                return self._ask_again(f"the model call failed ({error.kind}).")
        tries = f"after {sent} tries: " if sent > 1 else ""
        return self._end(Outcome.FAILED, f"{error.kind}: {tries}{with_advice(error.kind, error.message)}")

    @property
    def _may_give_up_tools(self) -> bool:
        """Also where only the output tool is offered: the answer's form can be asked for in words."""
        prompt, fallback = self._prompt, self._options.tool_fallback
        return bool(prompt.tools) and (not prompt.definitions or fallback is ToolFallback.RETRY_WITHOUT_TOOLS)

    def _cuts_harder(self, error: Error) -> bool:
        return self._attempts.may_cut_harder() and self._prompt.cut_harder(error.context_tokens)

    def _ask_again(self, reason: str, not_before_at: float = 0.0) -> list[Command]:
        if self._aside is not None:
            self._due = self._aside.request, not_before_at
        else:
            self._plan_next(again=True, not_before_at=not_before_at)
        return [commands.Note(self.step, self._attempts.asked_again(reason), NoteKind.ASKED_AGAIN)]

    # The calls of a step.

    def _run_calls(
        self, turn: Turn, at: float, notes: tuple[str, ...], ruling: Ruling | None, words: SearchWords = NO_WORDS
    ) -> list[Command]:
        options = self._options
        self._read((turn.message,))
        self._batch = step.Batch(
            self.step,
            turn.message,
            self._clock,
            notes,
            options.max_attempts,
            options.approval_timeout_seconds,
            self._has_read_untrusted,
            words,
        )
        answers = self._prompt.searched(turn.message, ruling.calls if ruling is not None else NO_ANSWERS)
        todo = self._batch.begin(turn, self._prompt.offers, self._repeats, at, answers)
        self._ruling = ruling if ruling is not None and ruling.outcome is not None else None
        if self._batch.ends_run and self._ruling is None:
            told = f"The model repeated a call after {self._repeats.limit} equal results in a row."
            self._end(Outcome.REPEATED_CALLS, told)
            return [*todo, self._close_batch()]
        return self._after_calls(todo, at)

    def _approval_granted(self, event: events.ApprovalGranted) -> list[Command]:
        call = self._call_of(event)
        if event.arguments and not is_json_object(event.arguments):
            raise ProtocolError(self.state, event, "its arguments are not a JSON object")
        return self._after_calls(self._batch.granted(call, event), event.at)

    def _tool_call_deferred(self, event: events.ToolCallDeferred) -> list[Command]:
        call = self._call_of(event)
        if fault := wait_fault("timeout_seconds", event.timeout_seconds):
            raise ProtocolError(self.state, event, fault)
        return self._after_calls(self._batch.defer(call, event), event.at)

    def _tool_call_started(self, event: events.ToolCallStarted) -> list[Command]:
        call = self._call_of(event)
        call.enter(events.ToolCallStarted)
        call.facts.runs += 1
        call.begun_at = event.at
        return []

    def _call_ended(self, event: CallFailure | events.ToolCallCompleted) -> list[Command]:
        return self._after_calls(self._batch.end(self._call_of(event), event), event.at)

    def _tools_lost(self, event: events.ToolsLost) -> list[Command]:
        self._check_step(event)
        return self._after_calls(self._batch.resend(event.at), event.at)

    def _after_calls(self, todo: list[Command], at: float) -> list[Command]:
        """Wait for the calls still open; with none, the step is finished and the next one begins (I4)."""
        batch = self._batch
        if batch.is_to_hand_out:
            if self._ruling is None:
                return [*todo, *batch.clear(), *self._hand_out(at)]
            todo += batch.give_up_outside(at)
        if self._clock.is_to_halt(at, only_waits=batch.only_waits) is not self._clock.is_halted:
            todo.append(self._turn_clock(at))
        self._facts.open_calls = batch.open
        if not batch.open:
            todo += batch.clear()
            todo.append(self._close_batch())
            if self._ruling is not None and self._ruling.outcome is not None:
                self._end(self._ruling.outcome, self._ruling.reason)
            else:
                self._plan_next()
        return todo

    def _hand_out(self, at: float) -> list[Command]:
        """The step ends with calls for the one who has asked. It is not recorded before their results have come; the
        question is, where that was not."""
        self._open_turn = self._batch.hand_out(at)
        self._log.calls_ended(self._batch.reports())
        self._batch, self._facts.open_calls = step.NO_CALLS, 0
        self._end(Outcome.CALLS_OUTSIDE, "")
        told = [commands.CallOutside(self.step.at_call(each.call_id), each) for each in self._open_turn.outside]
        return [*told, *([] if self.has_recorded else [self._record(())])]

    def _turn_clock(self, at: float) -> commands.SetTimer | commands.ClearTimer:
        """The request's time stands still from now on, or runs again."""
        deadline_at = self._clock.turn(at)
        turned = commands.ClearTimer(self.tag) if deadline_at is None else commands.SetTimer(self.tag, deadline_at)
        self._last = () if deadline_at is None else (turned,)
        return turned

    def _close_batch(self) -> commands.RecordStep:
        messages = self._batch.messages()
        self._log.calls_ended(self._batch.reports())
        self._repeats.learn(self._batch.outcomes())
        self._batch, self._facts.open_calls = step.NO_CALLS, 0
        return self._record(messages)

    def _notice_came(self, event: events.NoticeCame) -> list[Command]:
        self._check_request(event)
        self._notices += (SystemMessage(event.text),)
        return []

    def _record(self, messages: tuple[Message, ...], *, is_whole: bool = True) -> commands.RecordStep:
        if is_whole and self._notices:
            messages, self._notices = messages + self._notices, ()
        self._prompt.add_step(messages)
        self._read(messages)
        record = commands.RecordStep(self.step, messages)
        self._recorded.append(record)
        return record

    def _read(self, messages: tuple[Message, ...]) -> None:
        """Notice text from outside, where that changes what may run unasked."""
        if self._options.ask_after_untrusted and not self._has_read_untrusted:
            self._has_read_untrusted = any(map(is_from_outside, messages))

    @property
    def _is_recorded(self) -> bool:
        """The current step is: so it is where the request ends after a turn that was paused."""
        return any(record.tag == self.step for record in self._steps)

    # The end.

    def _end(self, outcome: Outcome, reason: str) -> list[Command]:
        """The request ends so; the commands that say it come from `_finish`, and none from here."""
        self._facts.outcome, self._reason = outcome, reason
        return []

    def _let_go(self, event: events.CancelRequested | events.DeadlinePassed) -> list[Command]:
        """Stop what is open; an open step is closed with a result for each of its calls (I2)."""
        if self._batch is step.NO_CALLS:
            stop = commands.StopModel(self.step)
            if self._held is not None:  # its calls have not begun: what it says counts as that of a turn that was cut
                self.step = self._held.tag
                self._streamed.forget(self._held.turn.message.text)
            return [stop]
        return [*self._batch.abandon(event, self._reason), self._close_batch()]

    def _finish(self, event: Event) -> list[Command]:
        """The last commands. What was streamed of a cut turn stays in the history: the person has read it."""
        todo: list[Command] = []
        partial = self._streamed.text
        if partial or (self._notices and not self._is_recorded):
            todo.append(self._record((AssistantMessage((Text(partial),)),) if partial else ()))
            self._text = self._cut.text + partial if partial else self._text
        self._streamed.forget()
        outcome = self._facts.outcome
        assert outcome is not None
        spent, steps = self.spent, self._log.reports(event.at)
        ending = (self._reason, self._finish_reason, self._open_turn)
        finish = commands.Finish(self.tag, outcome, self._text, spent.usage, spent.cost, steps, *ending)
        self._last = (commands.ClearTimer(self.tag), finish)
        return [*todo, *self._last]


_Handler = Callable[[Session, Any], list[Command]]

#: Takes an event in: checks whose it is (or raises), notes what it says, gives the commands that follow from that
#: alone. Where the event leads is not decided here: `apply` asks the guards of its row.
_TAKE_IN: Final[Mapping[type[Event], _Handler]] = {
    events.RequestStarted: Session._request_started,
    events.ModelStreamed: Session._model_streamed,
    events.ModelNoted: Session._model_noted,
    events.ModelResponded: Session._model_responded,
    events.ModelFailed: Session._model_failed,
    events.ModelLost: Session._model_lost,
    events.ApprovalGranted: Session._approval_granted,
    events.ApprovalDenied: Session._call_ended,
    events.ToolCallStarted: Session._tool_call_started,
    events.ToolCallDeferred: Session._tool_call_deferred,
    events.ToolCallCompleted: Session._call_ended,
    events.ToolCallFailed: Session._call_ended,
    events.ToolCallTimedOut: Session._call_ended,
    events.ToolCallCancelled: Session._call_ended,
    events.ToolsLost: Session._tools_lost,
    events.NoticeCame: Session._notice_came,
    events.CancelRequested: Session._cancel_requested,
    events.DeadlinePassed: Session._deadline_passed,
}


def _then(guard: states.RequestGuard, state: RequestState) -> _Handler | None:
    """What else is done on the way along an arrow: asking the model where that is due, or ending the request."""
    if state is RequestState.FINISHED:
        return Session._finish
    return Session._call_model if guard is states.model_due else None


#: The table, with what takes each event in and what is done on the way: looked up once, since `apply` is called a lot.
_LEGAL: Final = {
    state: {
        kind: (_TAKE_IN[kind], [(guard, after, _then(guard, after)) for guard, after in arrows])
        for kind, arrows in rows.items()
    }
    for state, rows in states.REQUEST_TRANSITIONS.items()
}
