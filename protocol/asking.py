"""What the next model call of a request is, or why there must be none (I6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from callboard.protocol.budgets import Allowance, Spending, Stop, allow_step
from callboard.protocol.commands import Outcome
from callboard.protocol.content import Atom, Message, UserMessage
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest, ModelResponse, Sampling, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.prompt import TokenCounter, Transcript, message_tokens, tools_tokens
from callboard.protocol.turn import Turn

_FORCED = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


class Asking:
    """Holds the transcript, the tools on offer and the budgets; makes one ModelRequest after the other."""

    __slots__ = ("_count", "_options", "_steps_taken", "_tools_tokens", "_transcript", "offers", "spent")

    def __init__(
        self,
        options: RequestOptions,
        history: Sequence[Message],
        user: UserMessage,
        tools: Sequence[ToolOffer],
        count: TokenCounter,
    ) -> None:
        self._options = options
        self._count = count
        self._steps_taken = 0
        self._tools_tokens = tools_tokens([offer.definition for offer in tools], count)
        self._transcript = Transcript(
            options.system_prompt,
            history,
            user,
            limit_tokens=options.context_tokens,
            tools_tokens=self._tools_tokens,
            count=count,
        )
        self.offers: dict[ToolName, ToolOffer] = {offer.definition.name: offer for offer in tools}
        self.spent = Spending()

    def next_request(self, *, again: bool) -> ModelRequest | Stop:
        """The next model call; `again` when the last one came to nothing, and so was no step."""
        options = self._options
        if self._steps_taken >= options.max_steps and not again:
            return Stop(Outcome.STEP_LIMIT, f"The limit of {options.max_steps} steps was reached.")
        if not self._transcript.fit():
            return Stop(
                Outcome.TOKEN_LIMIT,
                f"What must be sent needs about {self._transcript.tokens} tokens; {options.context_tokens} may be.",
            )
        allowed = allow_step(options, self.spent, self._transcript.tokens)
        if isinstance(allowed, Stop):
            return allowed
        self._steps_taken += 0 if again else 1
        return self._request(allowed)

    def charge(self, response: ModelResponse, cost: float, turn: Turn) -> None:
        """Count what a model call used; estimated where the provider does not say."""
        estimated = Usage(self._transcript.tokens, message_tokens(turn.message, self._count))
        self.spent.add(response, cost, estimated)

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results: from now on part of what the model is shown."""
        self._transcript.add_step(messages)

    def give_up_tools(self) -> None:
        """The model takes no tools: offer none from now on."""
        self._transcript.tokens -= self._tools_tokens
        self.offers = {}

    def _request(self, allowed: Allowance) -> ModelRequest:
        options = self._options
        sampling: Sampling = options.sampling
        if allowed.max_output_tokens != sampling.max_output_tokens:
            sampling = replace(sampling, max_output_tokens=allowed.max_output_tokens)
        choice = options.tool_choice
        if not self.offers or (choice.mode in _FORCED and self._transcript.has_steps):
            # A call is forced once: forced at every step, the model could never answer.
            choice = ToolChoice()
        return ModelRequest(
            options.model,
            self._transcript.messages(),
            tuple(offer.definition for offer in self.offers.values()),
            choice,
            options.parallel_tool_calls if self.offers else None,
            sampling=sampling,
        )
