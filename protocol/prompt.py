"""What the model sees: instructions, history, finished steps and tools, made into the next model call and cut to fit.

The window holds the prompt and the answer: the prompt is cut to what `budgets.answer_room` leaves of it. Order of
cutting, the cheapest loss first: old tool results are shortened; the oldest exchanges are dropped; the results of this
request's earlier steps are shortened; those steps are dropped; the last step's results are shortened. The instructions,
the user's message and the last step itself always stay. A result that would fill more than half of the window is
shortened to that as soon as it comes. Before any of this, where the options have a compaction, old results are cleared
and older exchanges summarised (compaction.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol import compaction, content, search_words
from callboard.protocol.asides import Aside
from callboard.protocol.budgets import MIN_OUTPUT_TOKENS, Spending, Stop, allow_step, answer_room
from callboard.protocol.calls_as_text import calls_as_text
from callboard.protocol.commands import Outcome
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Atom, Message
from callboard.protocol.events import ModelFailed, RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import OVERFLOW_SHARE
from callboard.protocol.model import (
    CallPurpose,
    ModelRequest,
    Sampling,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from callboard.protocol.options import ToolOffer, instructions, request_of
from callboard.protocol.output import AnsweredCall, OutputMode, mode_of
from callboard.protocol.prompt_tokens import PromptSize, TokenCounter, message_tokens, tools_tokens
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.tools import ToolDefinition

if TYPE_CHECKING:
    from callboard.protocol import tool_search
else:
    tool_search = lazy_module("callboard.protocol.tool_search")

#: What stays of a shortened result: enough to see what it was.
SHORTENED_RESULT_CHARS: Final = 400
#: Of what stays, the share of the beginning: it says what the text is. The end has sums, errors and the latest lines.
HEAD_SHARE: Final = 2 / 3
#: How far a cut moves back to a line's end or, where there is none, to a space or comma: this share of the piece.
CUT_SLACK: Final = 0.25
#: History is cut to this share of the limit: cutting at each step would spoil the provider's prompt cache each time.
CUT_TO: Final = 0.75
_FORCED: Final = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


class _Piece(Struct):
    """An atom as it is shown, and its size, counted once."""

    full: Atom
    """As it is recorded, or cleared: what is shortened again is shortened from this."""
    messages: Atom
    tokens: int
    is_measured: bool = False
    """Whether a provider has counted it, as part of a prompt."""
    number: int = 0
    """Of its first message in the conversation, from 1."""


def _last_question(history: Sequence[Message], begin: int) -> int:
    """Where the last message of a user is, at `begin` or behind it: a request without a question goes on from there."""
    places = range(len(history) - 1, begin - 1, -1)
    return next((place for place in places if isinstance(history[place], content.UserMessage)), begin)


class PromptBuilder:
    """Holds what the model is shown, the tools on offer and the budgets; makes one ModelRequest after the other."""

    def __init__(self, started: RequestStarted, spent: Spending, count: TokenCounter) -> None:
        self._options = options = started.options
        self._count = count
        self._steps_taken = 0
        self._model = options.model
        self._tells_calls = False
        """The model takes no tools: calls and results of the history are told in words."""
        self.definitions = tuple(offer.definition for offer in started.tools if offer.is_shown)
        """Of the tools that the model is shown."""
        self._all_offers = {offer.definition.name: offer for offer in started.tools}
        self.search = self._find_deferred(started.history)
        """None: no tool is deferred."""
        self.tools: tuple[ToolDefinition, ...]
        """What the model is shown of these, as far as they are found; with OutputMode.TOOL, the output tool, too."""
        self.output_mode: OutputMode | None
        """How the model is asked for an answer of a certain form; None: any text will do."""
        self._set_output_mode(options.output.modes if options.output is not None else ())
        self.offers: dict[ToolName, ToolOffer] = self._offers_found()
        """By the tools that may be called now."""
        self._spent = spent
        history = self._history = started.history
        self._leading = tuple(takewhile(lambda message: isinstance(message, content.SystemMessage), history))
        """What the history itself begins with: instructions of the conversation."""
        self.compacted = started.compacted if options.compaction is not None else Compacted()
        """What was done to the conversation so far, by earlier requests and by this one."""
        self._compacted_before = self.compacted
        self._summary: _SummaryPlan | None = None
        """The summary that is being asked for."""
        self._has_summarised = False
        """Or tried to: once a request."""
        begin = max(self.compacted.left_out, len(self._leading))
        self._most: int | None = None
        """What a prompt may have at the most, besides what the window says: set once a model has refused one."""
        self._head = self._make_head()
        question_at = len(history) if started.user.parts else _last_question(history, begin)
        self._question_at = question_at
        """So many messages of the history are before the question; behind it, with a request that goes on from results,
        is what has come of it so far."""
        self._old = self._pieces_of(history[begin:question_at], begin + 1)
        asked, *self._steps = self._pieces_of(history[question_at:] or (started.user,), question_at + 1)
        self._user = asked
        self._earlier = self._piece(self._in_their_place())
        self._has_stepped = False
        """This request has added a step."""
        self._next_number = max(len(history), question_at + 1) + 1
        self.size = PromptSize(options.token_ratio)
        """Of all messages and tool definitions."""
        self.size.add(self._beside_tokens + sum(piece.tokens for piece in self._pieces()))
        self._is_beside_measured = False
        self._flat: list[Message] = []
        self._cut_tokens = 0
        self._flatten()

    @property
    def tokens(self) -> int:
        """Of all messages and tool definitions, as estimated by the counter and what providers said so far."""
        return self.size.tokens

    def _set_output_mode(self, modes: Sequence[OutputMode]) -> None:
        """Take the best of these that is possible, and with it what is sent beside the messages."""
        output, self._modes, self.output_mode = self._options.output, tuple(modes), None
        offered, found = (self.definitions, ()) if self.search is None else (self.search.offered, self.search.found)
        self.tools, self._schema = (*offered, *found), None
        if output is not None:
            takes_calls = not self._tells_calls and self._options.tool_choice.mode is not ToolChoiceMode.NONE
            self.output_mode = mode_of(output, modes, has_tools=bool(self.definitions), takes_calls=takes_calls)
            if self.output_mode is OutputMode.TOOL:
                self.tools = (*offered, output.tool, *found)
            elif self.output_mode is OutputMode.NATIVE:
                self._schema = output.schema
        schema = self._count(content.json_text(self._schema)) if self._schema is not None else 0
        self._beside_tokens = tools_tokens(self.tools, self._count) + schema

    def _make_head(self) -> _Piece:
        told = instructions(self._options, has_tools=bool(self.definitions), mode=self.output_mode)
        return self._piece((*((content.SystemMessage(told),) if told else ()), *self._leading))

    # What is asked next.

    def next_request(self, *, again: bool) -> ModelRequest | Stop:
        """The next model call; `again` when the last one came to nothing, and so was no step."""
        options = self._options
        if self._steps_taken >= options.max_steps and not again:
            return Stop(Outcome.STEP_LIMIT, f"The limit of {options.max_steps} steps was reached.")
        if not self.fit():
            told = f"What must be sent needs about {self.tokens} tokens; the window has {options.context_tokens}."
            return Stop(Outcome.TOKEN_LIMIT, told)
        allowed = allow_step(options, self._spent, self.tokens)
        if isinstance(allowed, Stop):
            return allowed
        self._steps_taken += 0 if again else 1
        sampling, choice = options.sampling, options.tool_choice
        if allowed != sampling.max_output_tokens:
            sampling = replace(sampling, max_output_tokens=allowed)
        if not self._may_choose(choice):
            choice = ToolChoice(allowed=choice.allowed)
        own = () if options.output is None else (options.output.tool_name,)
        choice = choice.among([definition.name for definition in self.tools], own)
        found = self.search.told if self.search is not None else None
        asked = (self._model, self.tools, choice)
        how = request_of(options, *asked, response_schema=self._schema, sampling=sampling, tool_search=found)
        return replace(how, messages=self.messages())

    def _may_choose(self, choice: ToolChoice) -> bool:
        """A call is forced in the first step only, or the model could never answer; and no tool that is not shown."""
        if choice.mode in _FORCED and self._has_stepped:
            return False
        if choice.mode is ToolChoiceMode.NAMED:
            return any(definition.name == choice.name for definition in self.tools)
        return bool(self.tools or self._options.server_tools)

    def messages(self) -> tuple[Message, ...]:
        """What the model is shown; only this tuple itself is built for each step."""
        return tuple(self._flat)

    def told_cut(self) -> str:
        """What was cut to fit since this was asked last, in a sentence for a person; "" where nothing was."""
        cut, self._cut_tokens = self._cut_tokens, 0
        if cut <= 0:
            return ""
        told = f"Older messages and results of about {cut:,} tokens were shortened or left out of the prompt"
        window = self._options.context_tokens
        return f"{told}, to fit into the {f'{window:,} of the ' if window else ''}model's context."

    # What came of it.

    def charge(self, usage: Usage | None, cost: float | None, answer: content.AssistantMessage) -> str:
        """Count what a model call used, as `Spending.add` does, and return its note."""

        def estimate() -> Usage:
            return Usage(self.tokens, message_tokens(answer, self._count))

        note = self._spent.add(usage, cost, estimate, self._options)
        if usage is not None and self.size.measured(usage.input_tokens):
            self._is_beside_measured = True
            for piece in self._pieces():
                piece.is_measured = True
        return note

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results (and the notes after them): from now on the model is shown it."""
        if not messages:
            return
        self.read_found(messages)
        piece = self._piece(messages, self._next_number)
        self._next_number += len(messages)
        self._steps.append(piece)
        self._has_stepped = True
        self._flat.extend(piece.messages)
        self.size.add(piece.tokens)

    # Deferred tools (tool_search.py).

    def _find_deferred(self, history: Sequence[Message]) -> tool_search.DeferredTools | None:
        options, tools = self._options, self.definitions
        if options.tools_budget_tokens is None and not any(tool.deferred for tool in tools):
            return None
        self.definitions = tuple(map(tool_search.openly, tools))
        always = (compaction.READ_TOOL, options.tool_choice.name, *options.tool_choice.allowed)
        deferred = tool_search.deferred_names(tools, options.tools_budget_tokens, self._count, always)
        taken = {*self._all_offers, *({options.output.tool_name} if options.output else ())}
        return tool_search.DeferredTools(tools, deferred, taken, history) if deferred else None

    def _offers_found(self) -> dict[ToolName, ToolOffer]:
        hidden = self.search.hidden if self.search is not None else ()
        return {name: offer for name, offer in self._all_offers.items() if name not in hidden}

    def read_found(self, messages: Atom, *, with_calls: bool = True) -> None:
        """Offer what these messages have found from now on; what a provider found may be called in the same turn."""
        if self.search is not None and self.search.read(messages, with_calls=with_calls):
            self.offers = self._offers_found()
            self._ask_by(self._modes)

    def searched(
        self, turn: content.AssistantMessage, answers: Mapping[int, AnsweredCall]
    ) -> Mapping[int, AnsweredCall]:
        """These answers, and those of the calls of the turn that are about deferred tools, by their places."""
        return answers if self.search is None else {**self.search.answers(turn), **answers}

    def go_on_from(self, turn: content.AssistantMessage, response_id: str) -> None:
        """The provider knows this turn by this id: what follows it is sent, where the request began so. What it has
        found may be called in the turn itself."""
        self.read_found((turn,), with_calls=False)
        storage = self._options.storage
        if storage is not None and storage.previous_response_id and response_id:
            self._options = replace(
                self._options, storage=dataclasses.replace(storage, previous_response_id=response_id)
            )

    def give_up_tools(self, model: str) -> None:
        """This model takes no tools: from now on it is the one to ask, without them, and nothing speaks of them."""
        self.offers, self.definitions, self.search = {}, (), None
        self._model, self._tells_calls = model, True
        self._ask_by(self._modes)
        for piece in (*self._old, *self._steps):
            piece.full = tuple(map(compaction.without_read_hint, piece.full, _numbers(piece)))
            self._show(piece, tuple(map(compaction.without_read_hint, piece.messages, _numbers(piece))))
        self._put_earlier()
        self._flatten()

    def give_up_schema(self, model: str) -> bool:
        """This model takes no schema of the answer: from now on it is asked in another way. False: there is none."""
        others = tuple(mode for mode in self._modes if mode is not OutputMode.NATIVE)
        if self.output_mode is not OutputMode.NATIVE or not others:
            return False
        self._model = model
        self._ask_by(others)
        self._flatten()
        return True

    def _ask_by(self, modes: Sequence[OutputMode]) -> None:
        """Ask for the answer in one of these ways, with what tools there are now."""
        self.size.remove(self._beside_tokens, is_measured=self._is_beside_measured)
        self._set_output_mode(modes)
        self.size.add(self._beside_tokens)
        self._is_beside_measured = False
        self._show(self._head, self._make_head().full)

    # How it is made to fit.

    def fit(self) -> bool:
        """Cut until there is room for the prompt and its answer. False when what must stay leaves none for an answer.

        The room for the answer shrinks, down to MIN_OUTPUT_TOKENS, before a request is refused.
        """
        window = self._options.context_tokens
        limit = self._room()
        if limit is not None:
            self._keep_history_short(int(limit * self._options.history_share))
            if self.tokens > limit:
                self._cut(limit)
        return window is None or self.tokens + MIN_OUTPUT_TOKENS <= window

    def _room(self) -> int | None:
        """Tokens that a prompt may have; None: unlimited."""
        window = self._options.context_tokens
        if window is None:
            return self._most
        left = window - answer_room(self._options)
        return left if self._most is None else min(left, self._most)

    def cut_harder(self, context_tokens: int | None) -> bool:
        """The model has refused the prompt as too long: cut it to OVERFLOW_SHARE, and to the window that it named.

        Both hold for the rest of the request. False where what must stay does not fit, or nothing could be cut.
        """
        sent, window = self.tokens, self._options.context_tokens
        named = [tokens for tokens in (window, context_tokens) if tokens is not None]
        self._options = replace(self._options, context_tokens=min(named, default=None))
        self._most = int(sent * OVERFLOW_SHARE)
        fits = self.fit()
        self._most = max(self._most, self.tokens)  # what must stay may be more
        return fits and self.tokens < sent

    def _keep_history_short(self, limit: int) -> None:
        """The messages before the question have a share of their own."""
        over = sum(piece.tokens for piece in self._old) * self.size.ratio - limit
        if self._options.history_share < 1 and over > 0:
            before, target = self.tokens, int(self.tokens - over - limit * (1 - CUT_TO))
            self._shorten_old(target)
            self._drop_old(target)
            self._cut_tokens += before - self.tokens
            self._flatten()

    def _cut(self, limit: int) -> None:
        before, target = self.tokens, int(limit * CUT_TO)
        self._shorten_old(target)
        self._drop_old(target)
        if self.tokens > limit:
            self._show(self._earlier, ())
        self._shorten(self._steps[:-1], limit)
        while len(self._steps) > 1 and self.tokens > limit:
            self._drop(self._steps)
        self._shorten(self._steps[-1:], limit)
        self._cut_tokens += before - self.tokens
        self._flatten()

    def _pieces(self) -> tuple[_Piece, ...]:
        return (self._head, self._earlier, *self._old, self._user, *self._steps)

    def _pieces_of(self, messages: Sequence[Message], number: int) -> list[_Piece]:
        """One an atom; the first message has this number."""
        pieces: list[_Piece] = []
        for atom in content.split_atoms(messages):
            pieces.append(self._piece(atom, number))
            number += len(atom)
        return pieces

    def _piece(self, messages: Atom, number: int = 0) -> _Piece:
        if 0 < number <= self.compacted.cleared:
            messages = self._cleared(messages, number, self.compacted.cleared)
        sizes = [message_tokens(message, self._count) for message in messages]
        window = self._options.context_tokens
        limit = None if window is None else int(window * self._options.result_share)
        if (limit is None or max(sizes, default=0) <= limit) and not self._tells_calls:
            return _Piece(messages, messages, sum(sizes), number=number)
        shown = tuple(
            shorten_to(message, limit, self._count) if limit is not None and size > limit else message
            for message, size in zip(messages, sizes, strict=True)
        )
        return _Piece(messages, *self._in_words(shown), number=number)

    def _in_words(self, messages: Atom) -> tuple[Atom, int]:
        """As the model is shown it, and its tokens."""
        shown = calls_as_text(messages) if self._tells_calls else messages
        return shown, sum(message_tokens(message, self._count) for message in shown)

    def _show(self, piece: _Piece, messages: Atom) -> None:
        """Show these messages in place of those that the piece has shown."""
        shown, tokens = self._in_words(messages)
        if shown != piece.messages:
            self.size.remove(piece.tokens, is_measured=piece.is_measured)
            self.size.add(tokens)
            piece.messages, piece.tokens, piece.is_measured = shown, tokens, False

    def _flatten(self) -> None:
        self._flat = [message for piece in self._pieces() for message in piece.messages]

    def _shorten(self, pieces: Sequence[_Piece], target: int) -> None:
        for piece in pieces:
            if self.tokens <= target:
                return
            shortened = tuple(shorten_result(message) for message in piece.full)
            if self._in_words(shortened)[1] < piece.tokens:
                self._show(piece, shortened)

    def _drop(self, pieces: list[_Piece]) -> None:
        piece = pieces.pop(0)
        self.size.remove(piece.tokens, is_measured=piece.is_measured)

    def _drop_old(self, target: int) -> None:
        """Drop from the oldest on, and never let the rest begin with an answer to a question that is gone."""
        before = len(self._old)
        while self._old and self.tokens > target:
            self._drop(self._old)
        is_cut = len(self._old) < before
        while is_cut and self._old and not isinstance(self._old[0].messages[0], content.UserMessage):
            self._drop(self._old)
        if is_cut and self._options.compaction is not None:
            left_out = self._old[0].number - 1 if self._old else self._question_at
            self.compacted = replace(self.compacted, left_out=left_out)
            self._put_earlier()

    # Model calls beside the conversation (asides.py).

    def words_aside(self, queries: Sequence[str]) -> Aside | None:
        """What asks for further words to search by, besides these; None where no budget covers it."""
        asked = "\n".join(each.text for each in self._user.full if isinstance(each, content.UserMessage))
        request, count = self._beside(search_words.words_request(self._model, asked, queries))
        aside = Aside(CallPurpose.SEARCH_WORDS, request, count, search_words.TIMEOUT_SECONDS, max_attempts=1)
        return aside if self._is_covered(aside, self._options.context_tokens) else None

    def charge_failed(self, event: ModelFailed, aside: Aside | None, text: str) -> str:
        """As `charge`, of a call that failed, perhaps after several requests; `text`: what it had streamed."""
        if event.is_free:
            self._spent.last_usage = self._spent.last_cost = None
            return ""
        answer = content.AssistantMessage((content.Text(text),) if text else ())
        return self.charge_aside(aside, event.usage, event.cost, answer)

    def charge_aside(
        self, aside: Aside | None, usage: Usage | None, cost: float | None, answer: content.AssistantMessage
    ) -> str:
        """As `charge`, of a call that says nothing of the prompt, or of the next answer; None: it was no other one."""
        input_tokens = self.tokens if aside is None else math.ceil(aside.tokens * self.size.ratio)
        last = self._spent.last_output_tokens

        def estimate() -> Usage:
            return Usage(input_tokens, message_tokens(answer, self._count))

        note = self._spent.add(usage, cost, estimate, self._options)
        self._spent.last_output_tokens = last
        return note

    def _beside(self, request: ModelRequest) -> tuple[ModelRequest, int]:
        """With the headers of the request's own calls, and its tokens by our own count."""
        further = (each for each in self._options.provider_options if isinstance(each, ExtraFields))
        headers = tuple(ExtraFields(headers=each.headers, provider=each.provider) for each in further if each.headers)
        count = sum(message_tokens(message, self._count) for message in request.messages)
        return replace(request, provider_options=headers), count

    def _is_covered(self, aside: Aside, window: int | None) -> bool:
        """By the window of its model, and by the budgets together with what the next step itself needs: none is spent
        on such a call alone."""
        options = replace(self._options, context_tokens=None, sampling=aside.request.sampling)
        needed = self.tokens + max(self._spent.last_output_tokens, MIN_OUTPUT_TOKENS)
        most, size = aside.request.sampling.max_output_tokens or 0, math.ceil(aside.tokens * self.size.ratio)
        fits = window is None or size + most <= window
        return fits and allow_step(options, self._spent, size + needed) == most

    # Compaction: what is done before anything is cut (compaction.py).

    def next_summary(self) -> Aside | None:
        """Clear old results where that is due; then give what asks for a summary, where one is due. Before a step."""
        wanted, room = self._options.compaction, self._room()
        if wanted is None or room is None:
            return None
        if self.tokens > compaction.share_of(wanted.clear_at, room):
            self._clear(wanted.keep_results, room)
        if self._has_summarised or self.tokens <= compaction.share_of(wanted.summarise_at, room):
            return None
        self._summary = self._plan_summary(wanted, room)
        return None if self._summary is None else self._summary.aside

    def _clear(self, keep: int, room: int) -> None:
        """Clear all results but the latest ones, where that frees enough to be worth a prompt cache."""
        pieces = [*self._old, *self._steps[:-1]]
        results = [number for piece in pieces for number in _results(piece)]
        spare = max(keep - sum(len(_results(piece)) for piece in self._steps[-1:]), 0)
        last = results[len(results) - spare - 1] if len(results) > spare else 0
        cleared = [(piece, self._cleared(piece.full, piece.number, last)) for piece in pieces if piece.number <= last]
        saved = sum(max(piece.tokens - self._in_words(messages)[1], 0) for piece, messages in cleared)
        if last > self.compacted.cleared and saved * self.size.ratio >= compaction.WORTH_IT * room:
            self._show_cleared(cleared, last)

    def _show_cleared(self, cleared: Sequence[tuple[_Piece, Atom]], last: int) -> None:
        shorter = [(piece, messages) for piece, messages in cleared if self._in_words(messages)[1] < piece.tokens]
        if not shorter:
            return
        for piece, messages in shorter:
            piece.full = messages
            self._show(piece, messages)
        self.compacted = replace(self.compacted, cleared=last)
        self._flatten()

    def _shorten_old(self, target: int) -> None:
        """Shorten results of earlier requests; where compaction is on, clear them, so that they stay as they are."""
        if self._options.compaction is None:
            self._shorten(self._old, target)
        elif self._old and self.compacted.cleared < self._question_at:
            last = self._question_at
            self._show_cleared([(piece, self._cleared(piece.full, piece.number, last)) for piece in self._old], last)

    def _cleared(self, messages: Atom, number: int, last: int) -> Atom:
        return tuple(
            compaction.cleared(message, number + at, may_read=self._may_read) if number + at <= last else message
            for at, message in enumerate(messages)
        )

    @property
    def _may_read(self) -> bool:
        return any(definition.name == compaction.READ_TOOL for definition in self.definitions)

    def _plan_summary(self, wanted: compaction.Compaction, room: int) -> _SummaryPlan | None:
        """Of all but the latest exchanges. None where that would free too little, or no budget covers it."""
        kept, cut = 0.0, len(self._old)
        for at in range(len(self._old) - 1, -1, -1):
            kept += self._old[at].tokens * self.size.ratio
            if kept > wanted.keep * room:
                break
            if isinstance(self._old[at].messages[0], content.UserMessage):
                cut = at
        gone, ratio = self._old[:cut], self.size.ratio
        since = sum(piece.tokens for piece in self._old if piece.number > self.compacted.tried) * ratio
        if self.compacted.tried and since < compaction.TRIED_AGAIN_AFTER * room:
            return None
        if sum(piece.tokens for piece in gone) * ratio < compaction.WORTH_IT * room:
            return None
        tokens = min(int(wanted.summary * room), compaction.MAX_SUMMARY_TOKENS)
        if not gone or tokens < 1:
            return None  # the window has hardly room for an answer
        summarised = self._old[cut].number - 1 if cut < len(self._old) else self._question_at
        request, count = self._ask_summary(wanted, room, tokens, summarised)
        aside = Aside(CallPurpose.SUMMARY, request, count, compaction.SUMMARY_TIMEOUT_SECONDS)
        if not self._is_covered(aside, self._window_for_summaries(wanted, room)):
            return None
        return _SummaryPlan(aside, tokens, cut, summarised)

    def _window_for_summaries(self, wanted: compaction.Compaction, room: int) -> int:
        return (wanted.context_tokens if wanted.model else None) or self._options.context_tokens or room

    def _ask_summary(
        self, wanted: compaction.Compaction, room: int, tokens: int, last: int
    ) -> tuple[ModelRequest, int]:
        """What asks for a summary of the messages up to this one, and its tokens by our own count."""
        window = self._window_for_summaries(wanted, room)
        # Room to think, too: some models take what they think from it.
        most = max(answer_room(replace(self._options, context_tokens=window, sampling=Sampling())), tokens)
        model, before = wanted.model or self._model, self.compacted.summary

        def ask(lines: Sequence[str]) -> tuple[ModelRequest, int]:
            return self._beside(compaction.summary_request(model, lines, tokens, most, before))

        first = max(self.compacted.summarised, len(self._leading))
        limit = int((window - most) / self.size.ratio) - ask(())[1]
        return ask(compaction.transcript(self._history[first:last], first + 1, limit, self._count))

    def may_repeat_summary(self) -> bool:
        """Do the budgets cover it once more, with what the tries before have used?"""
        return self._summary is not None and self._is_covered(self._summary.aside, None)

    def end_summary(self, text: str) -> None:
        """The summary is made, or could not be ("")."""
        plan, self._summary, self._has_summarised = self._summary, None, True
        assert plan is not None
        if not text:
            self.compacted = replace(self.compacted, tried=self._question_at)
            return
        kept = compaction.fitted(text, plan.tokens, self._count)
        done = plan.summarised
        self.compacted = replace(self.compacted, summary=kept, summarised=done, left_out=done, tried=0)
        for _ in range(plan.pieces):
            self._drop(self._old)
        self._put_earlier()
        self._flatten()

    def told_compacted(self) -> tuple[Compacted, str] | None:
        """What was done since this was asked last, and in a sentence for a person; "" for a summary that failed."""
        before, now = self._compacted_before, self.compacted
        if now == before:
            return None
        self._compacted_before = now
        told: list[str] = []
        if now.cleared > before.cleared:
            told.append(f"the results of tool calls up to message {now.cleared} were cleared")
        if now.summarised > before.summarised:
            told.append(f"messages up to {now.summarised} were replaced by a summary")
        return now, f"To make room, {' and '.join(told)}; the conversation keeps them all." if told else ""

    def _in_their_place(self) -> Atom:
        """What is shown in place of messages that are left out; nothing where compaction is off."""
        first = len(self._leading) + 1
        if self.compacted.left_out < first:
            return ()
        return (compaction.earlier_message(first, self.compacted, may_read=self._may_read),)

    def _put_earlier(self) -> None:
        self._show(self._earlier, self._in_their_place())


class _SummaryPlan(Struct, frozen=True):
    """A summary that is asked for."""

    aside: Aside
    tokens: int
    """Which the summary may have."""
    pieces: int
    """How many of the oldest it takes the place of."""
    summarised: int
    """How many messages that is, with those of the summary before."""


def _numbers(piece: _Piece) -> range:
    return range(piece.number, piece.number + len(piece.messages))


def _results(piece: _Piece) -> list[int]:
    """The numbers of its results."""
    return [piece.number + at for at, message in enumerate(piece.full) if type(message) is content.ToolMessage]


# Long results.


def shorten_result(message: Message, chars: int = SHORTENED_RESULT_CHARS) -> Message:
    """A tool result cut to `chars` of its beginning and end, and what was left out; any other message as it is.

    So is a result that would hardly be shorter: one of up to twice as many characters.
    """
    if not isinstance(message, content.ToolMessage) or len(message.content) <= chars * 2:
        return message
    return replace(message, content=shorten_text(message.content, chars))


def shorten_to(message: Message, tokens: int, count: TokenCounter) -> Message:
    """A tool result of at most `tokens`, or as short as results get; any other message as it is."""
    if not isinstance(message, content.ToolMessage):
        return message
    shown, size = message.content, message_tokens(message, count)
    chars = len(shown)
    while size > tokens and chars > SHORTENED_RESULT_CHARS:
        # What is dense in tokens may be what stays: at most a tenth is kept more than fits, then it is cut again.
        chars = max(int(chars * min(tokens / size, 0.9)), SHORTENED_RESULT_CHARS)
        shown = shorten_text(message.content, chars)
        size = message_tokens(replace(message, content=shown), count)
    return replace(message, content=shown)


def shorten_text(text: str, chars: int) -> str:
    """The beginning and the end of a text, together at most `chars` characters, cut where a line ends if one is near.

    Between them it says how much is left out, and how to get it.
    """
    first = _cut_before(text, int(chars * HEAD_SHARE), int(chars * HEAD_SHARE * CUT_SLACK))
    last = _cut_after(text, len(text) - (chars - int(chars * HEAD_SHARE)), int(chars * (1 - HEAD_SHARE) * CUT_SLACK))
    left_out = text[first:last]
    lines = f" (about {left_out.count(chr(10)):,} lines)" if "\n" in left_out else ""
    told = (
        f"[... {last - first:,} of {len(text):,} characters{lines} are left out here: the result is too long for the "
        "model's context. For the rest, call the tool for less at a time: a range, a page, a narrower query. ...]"
    )
    return f"{text[:first]}\n{told}\n{text[last:]}"


def _cut_before(text: str, end: int, slack: int) -> int:
    """Where to end: behind the last line end, space or comma of the `slack` characters before `end`."""
    found = (text.rfind(mark, end - slack, end) + 1 for mark in ("\n", " ", ","))
    return next((at for at in found if at), end)


def _cut_after(text: str, start: int, slack: int) -> int:
    """Where to go on: behind the first line end, space or comma of the `slack` characters from `start` on."""
    found = (text.find(mark, start, start + slack) + 1 for mark in ("\n", " ", ","))
    return next((at for at in found if at), start)
