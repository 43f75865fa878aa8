"""What the model sees: instructions, history, finished steps and tools, made into the next model call and cut to fit.

Order of cutting, the cheapest loss first: old tool results are shortened; the oldest exchanges are dropped; the results
of this request's earlier steps are shortened; those steps are dropped; the last step's results are shortened. The
instructions, the user's message and the last step itself always stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from callboard.protocol import content
from callboard.protocol.budgets import Spending, Stop, allow_step
from callboard.protocol.commands import Outcome
from callboard.protocol.content import Atom, Message
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import ToolDefinition

TokenCounter = Callable[[str], int]
"""Tokens of a text; pure, never negative. The real tokenizer of a model, where one is installed."""

#: Characters a token: English prose has 4 to 4.5, code about 3. This is 4 with a margin, so that code fits too.
CHARS_PER_TOKEN: Final = 3.2
#: Role, separators and field names around each message or call.
MESSAGE_OVERHEAD_TOKENS: Final = 6
#: A picture at the largest size providers keep (Anthropic: width x height / 750, about 1,600).
IMAGE_TOKENS: Final = 1_600


def estimate_tokens(text: str) -> int:
    """Tokens of a text when no tokenizer is at hand."""
    return math.ceil(len(text) / CHARS_PER_TOKEN)


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
#: History is cut to this share of the limit: cutting at each step would spoil the provider's prompt cache each time.
CUT_TO: Final = 0.75
_FORCED: Final = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


@dataclass(slots=True)
class _Piece:
    """An atom and its size, counted once."""

    messages: Atom
    tokens: int


class PromptBuilder:
    """Holds what the model is shown, the tools on offer and the budgets; makes one ModelRequest after the other."""

    def __init__(self, started: RequestStarted, spent: Spending, count: TokenCounter) -> None:
        self._options = options = started.options
        self._count = count
        self._steps_taken = 0
        self.definitions = tuple(offer.definition for offer in started.tools if offer.is_shown)
        """Of the tools that the model is shown."""
        self._tools_tokens = tools_tokens(self.definitions, count)
        self.offers: dict[ToolName, ToolOffer] = {offer.definition.name: offer for offer in started.tools}
        self._spent = spent
        atoms = content.split_atoms(started.history)
        leading = 0
        while leading < len(atoms) and isinstance(atoms[leading][0], content.SystemMessage):
            leading += 1
        prompt: tuple[Message, ...] = (content.SystemMessage(options.system_prompt),) if options.system_prompt else ()
        self._head = self._piece(prompt + tuple(message for atom in atoms[:leading] for message in atom))
        self._old = [self._piece(atom) for atom in atoms[leading:]]
        self._user = self._piece((started.user,))
        self._steps: list[_Piece] = []
        self.tokens = self._tools_tokens + sum(piece.tokens for piece in (self._head, self._user, *self._old))
        """Of all messages and tool definitions, as estimated by the counter."""
        self._flat: list[Message] = []
        self._cut_tokens = 0
        self._flatten()

    # What is asked next.

    def next_request(self, *, again: bool) -> ModelRequest | Stop:
        """The next model call; `again` when the last one came to nothing, and so was no step."""
        options = self._options
        if self._steps_taken >= options.max_steps and not again:
            return Stop(Outcome.STEP_LIMIT, f"The limit of {options.max_steps} steps was reached.")
        before, fits = self.tokens, self.fit()
        self._cut_tokens += before - self.tokens
        if not fits:
            told = f"What must be sent needs about {self.tokens} tokens; {options.context_tokens} may be."
            return Stop(Outcome.TOKEN_LIMIT, told)
        allowed = allow_step(options, self._spent, self.tokens)
        if isinstance(allowed, Stop):
            return allowed
        self._steps_taken += 0 if again else 1
        sampling, choice = options.sampling, options.tool_choice
        if allowed != sampling.max_output_tokens:
            sampling = replace(sampling, max_output_tokens=allowed)
        if not self._may_choose(choice):
            choice = ToolChoice()
        parallel = options.parallel_tool_calls if self.definitions else None
        return ModelRequest(options.model, self.messages(), self.definitions, choice, parallel, sampling=sampling)

    def _may_choose(self, choice: ToolChoice) -> bool:
        """A call is forced in the first step only, or the model could never answer; and no tool that is not shown."""
        shown = [definition.name for definition in self.definitions]
        is_named = choice.mode is ToolChoiceMode.NAMED
        return bool(shown) and not (choice.mode in _FORCED and self._steps) and (not is_named or choice.name in shown)

    def messages(self) -> tuple[Message, ...]:
        """What the model is shown; only this tuple itself is built for each step."""
        return tuple(self._flat)

    def told_cut(self) -> str:
        """What was cut to fit since this was asked last, in a sentence for a person; "" where nothing was."""
        cut, self._cut_tokens = self._cut_tokens, 0
        if cut <= 0:
            return ""
        told = f"Older messages and results of about {cut:,} tokens were shortened or left out of the prompt"
        return f"{told}, to fit into the {self._options.context_tokens:,} of the model's context."

    # What came of it.

    def charge(self, usage: Usage, cost: float | None, answer: content.AssistantMessage) -> str:
        """Count what a model call used, as `Spending.add` does, and return its note."""

        def estimate() -> Usage:
            return Usage(self.tokens, message_tokens(answer, self._count))

        return self._spent.add(usage, cost, estimate, self._options)

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results (and the notes after them): from now on the model is shown it."""
        piece = self._piece(messages)
        self._steps.append(piece)
        self._flat.extend(messages)
        self.tokens += piece.tokens

    def give_up_tools(self) -> None:
        """The model takes no tools: offer none from now on."""
        self.tokens -= self._tools_tokens
        self.offers, self.definitions = {}, ()

    # How it is made to fit.

    def fit(self) -> bool:
        """Cut until the limit on the context holds. False when not even what must stay fits."""
        limit = self._options.context_tokens
        if limit is None or self.tokens <= limit:
            return True
        target = int(limit * CUT_TO)
        self._shorten(self._old, target)
        self._drop_old(target)
        self._shorten(self._steps[:-1], limit)
        while len(self._steps) > 1 and self.tokens > limit:
            self.tokens -= self._steps.pop(0).tokens
        self._shorten(self._steps[-1:], limit)
        self._flatten()
        return self.tokens <= limit

    def _piece(self, messages: Atom) -> _Piece:
        return _Piece(messages, sum(message_tokens(message, self._count) for message in messages))

    def _flatten(self) -> None:
        pieces = (self._head, *self._old, self._user, *self._steps)
        self._flat = [message for piece in pieces for message in piece.messages]

    def _shorten(self, pieces: Sequence[_Piece], target: int) -> None:
        for piece in pieces:
            if self.tokens <= target:
                return
            shortened = self._piece(tuple(shorten_result(message) for message in piece.messages))
            if shortened.tokens < piece.tokens:
                self.tokens += shortened.tokens - piece.tokens
                piece.messages, piece.tokens = shortened.messages, shortened.tokens

    def _drop_old(self, target: int) -> None:
        """Drop from the oldest on, and never let the rest begin with an answer to a question that is gone."""
        before = len(self._old)
        while self._old and self.tokens > target:
            self.tokens -= self._old.pop(0).tokens
        is_cut = len(self._old) < before
        while is_cut and self._old and not isinstance(self._old[0].messages[0], content.UserMessage):
            self.tokens -= self._old.pop(0).tokens


def shorten_result(message: Message) -> Message:
    """A tool result cut to its beginning, still JSON; any other message, and a short result, as it is."""
    if not isinstance(message, content.ToolMessage) or len(message.content) <= SHORTENED_RESULT_CHARS * 2:
        return message
    shortened = {
        "shortened": True,
        "beginning": message.content[:SHORTENED_RESULT_CHARS],
        "characters_left_out": len(message.content) - SHORTENED_RESULT_CHARS,
    }
    return replace(message, content=content.json_text(shortened))
