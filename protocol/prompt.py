"""What the model sees: instructions, history, finished steps and tools, made into the next model call and cut to fit.

The window holds the prompt and the answer: the prompt is cut to what `budgets.answer_room` leaves of it. Order of
cutting, the cheapest loss first: old tool results are shortened; the oldest exchanges are dropped; the results of this
request's earlier steps are shortened; those steps are dropped; the last step's results are shortened. The instructions,
the user's message and the last step itself always stay. A result that would fill more than half of the window is
shortened to that as soon as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from callboard.protocol import content
from callboard.protocol.budgets import MIN_OUTPUT_TOKENS, Spending, Stop, allow_step, answer_room
from callboard.protocol.commands import Outcome
from callboard.protocol.content import Atom, Message
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_WINDOW_SHARE
from callboard.protocol.model import ModelRequest, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import ToolOffer
from callboard.protocol.token_estimate import PromptSize, TokenCounter
from callboard.protocol.tools import ToolDefinition

#: Role, separators and field names around each message or call.
MESSAGE_OVERHEAD_TOKENS: Final = 6
#: A picture at the largest size providers keep (Anthropic: width x height / 750, about 1,600).
IMAGE_TOKENS: Final = 1_600


def message_tokens(message: Message, count: TokenCounter) -> int:
    """Tokens of one message, what surrounds it included."""
    if isinstance(message, content.ToolMessage):
        return count(message.content) + MESSAGE_OVERHEAD_TOKENS
    if isinstance(message, content.SystemMessage):
        return count(message.text) + MESSAGE_OVERHEAD_TOKENS
    total = MESSAGE_OVERHEAD_TOKENS
    for part in message.parts:
        match part:
            case content.Text() | content.Thinking():
                total += count(part.text)
            case content.ToolCall():
                total += count(part.name) + count(part.arguments) + MESSAGE_OVERHEAD_TOKENS
            case content.Image():
                total += IMAGE_TOKENS
            case content.ServerTool():
                total += count(content.json_text(part.replay.data))
    return total


def tools_tokens(tools: Sequence[ToolDefinition], count: TokenCounter) -> int:
    """Tokens of what the model sees of its tools."""
    return sum(count(tool.name) + count(tool.description) + count(content.json_text(tool.parameters)) for tool in tools)


#: What stays of a shortened result: enough to see what it was.
SHORTENED_RESULT_CHARS: Final = 400
#: Of what stays, the share of the beginning: it says what the text is. The end has sums, errors and the latest lines.
HEAD_SHARE: Final = 2 / 3
#: How far a cut moves back to a line's end or, where there is none, to a space or comma: this share of the piece.
CUT_SLACK: Final = 0.25
#: History is cut to this share of the limit: cutting at each step would spoil the provider's prompt cache each time.
CUT_TO: Final = 0.75
_FORCED: Final = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


@dataclass(slots=True)
class _Piece:
    """An atom as it is shown, and its size, counted once."""

    full: Atom
    """As it is recorded: what is shortened again is shortened from this."""
    messages: Atom
    tokens: int
    is_measured: bool = False
    """Whether a provider has counted it, as part of a prompt."""


class PromptBuilder:
    """Holds what the model is shown, the tools on offer and the budgets; makes one ModelRequest after the other."""

    def __init__(self, started: RequestStarted, spent: Spending, count: TokenCounter) -> None:
        self._options = options = started.options
        self._count = count
        self._steps_taken = 0
        self._definitions = tuple(offer.definition for offer in started.tools)
        self._tools_tokens = tools_tokens(self._definitions, count)
        self.offers: dict[ToolName, ToolOffer] = {offer.definition.name: offer for offer in started.tools}
        self._spent = spent
        atoms = content.split_atoms(started.history)
        leading = 0
        while leading < len(atoms) and isinstance(atoms[leading][0], content.SystemMessage):
            leading += 1
        prompt: tuple[Message, ...] = (content.SystemMessage(options.system_prompt),) if options.system_prompt else ()
        window = options.context_tokens
        self._result_limit = None if window is None else int(window * MAX_RESULT_WINDOW_SHARE)
        self._head = self._piece(prompt + tuple(message for atom in atoms[:leading] for message in atom))
        self._old = [self._piece(atom) for atom in atoms[leading:]]
        self._user = self._piece((started.user,))
        self._steps: list[_Piece] = []
        self.size = PromptSize(options.token_ratio)
        """Of all messages and tool definitions."""
        self.size.add(self._tools_tokens + sum(piece.tokens for piece in self._pieces()))
        self._are_tools_measured = False
        self._flat: list[Message] = []
        self._flatten()

    @property
    def tokens(self) -> int:
        """Of all messages and tool definitions, as estimated by the counter and what providers said so far."""
        return self.size.tokens

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
        if not self.offers or (choice.mode in _FORCED and self._steps):
            # A call is forced once: forced at every step, the model could never answer.
            choice = ToolChoice()
        parallel = options.parallel_tool_calls if self.offers else None
        return ModelRequest(options.model, self.messages(), self._definitions, choice, parallel, sampling=sampling)

    def messages(self) -> tuple[Message, ...]:
        """What the model is shown; only this tuple itself is built for each step."""
        return tuple(self._flat)

    # What came of it.

    def charge(self, usage: Usage, cost: float, answer: content.AssistantMessage) -> str:
        """Count what a model call used, as `Spending.add` does, and return its note."""

        def estimate() -> Usage:
            return Usage(self.tokens, message_tokens(answer, self._count))

        note = self._spent.add(usage, cost, estimate, self._options)
        if self.size.measured(usage.input_tokens):
            self._are_tools_measured = True
            for piece in self._pieces():
                piece.is_measured = True
        return note

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results (and the notes after them): from now on the model is shown it."""
        piece = self._piece(messages)
        self._steps.append(piece)
        self._flat.extend(piece.messages)
        self.size.add(piece.tokens)

    def give_up_tools(self) -> None:
        """The model takes no tools: offer none from now on."""
        self.size.remove(self._tools_tokens, is_measured=self._are_tools_measured)
        self.offers, self._definitions = {}, ()

    # How it is made to fit.

    def fit(self) -> bool:
        """Cut until there is room for the prompt and its answer. False when what must stay leaves none for an answer.

        The room for the answer shrinks, down to MIN_OUTPUT_TOKENS, before a request is refused.
        """
        window = self._options.context_tokens
        if window is None:
            return True
        limit = window - answer_room(self._options)
        if self.tokens > limit:
            self._cut(limit)
        return self.tokens + MIN_OUTPUT_TOKENS <= window

    def _cut(self, limit: int) -> None:
        target = int(limit * CUT_TO)
        self._shorten(self._old, target)
        self._drop_old(target)
        self._shorten(self._steps[:-1], limit)
        while len(self._steps) > 1 and self.tokens > limit:
            self._drop(self._steps)
        self._shorten(self._steps[-1:], limit)
        self._flatten()

    def _pieces(self) -> tuple[_Piece, ...]:
        return (self._head, *self._old, self._user, *self._steps)

    def _piece(self, messages: Atom) -> _Piece:
        sizes = [message_tokens(message, self._count) for message in messages]
        limit = self._result_limit
        if limit is None or max(sizes, default=0) <= limit:
            return _Piece(messages, messages, sum(sizes))
        shown = tuple(
            shorten_to(message, limit, self._count) if size > limit else message
            for message, size in zip(messages, sizes, strict=True)
        )
        return _Piece(messages, shown, sum(message_tokens(message, self._count) for message in shown))

    def _flatten(self) -> None:
        self._flat = [message for piece in self._pieces() for message in piece.messages]

    def _shorten(self, pieces: Sequence[_Piece], target: int) -> None:
        for piece in pieces:
            if self.tokens <= target:
                return
            shown = tuple(shorten_result(message) for message in piece.full)
            tokens = sum(message_tokens(message, self._count) for message in shown)
            if tokens < piece.tokens:
                self.size.remove(piece.tokens, is_measured=piece.is_measured)
                self.size.add(tokens)
                piece.messages, piece.tokens, piece.is_measured = shown, tokens, False

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
