"""Budgets are checked before a step, never after (I6): pure decisions on what was spent and what the step will need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from callboard.protocol.commands import Outcome
from callboard.protocol.limits import ANSWER_WINDOW_SHARE, MAX_ANSWER_ROOM_TOKENS, MAX_CALL_COST, MAX_CALL_TOKENS
from callboard.protocol.model import Usage, counts_of
from callboard.protocol.options import RequestOptions

#: A step which may answer less than this is not worth its input.
MIN_OUTPUT_TOKENS: Final = 16


class Spending(Struct):
    """What the request has used so far."""

    usage: Usage | None = Usage()
    """As the providers reported it. None once one did not, or reported what cannot be true."""
    counted: Usage = Usage()
    """Against the budget: what was not reported is estimated."""
    cost: float | None = 0.0
    """US dollars. None once the cost of a model call was not known: what is added to that is not known either."""
    charged: float = 0.0
    """US dollars against the budget: what is not known is estimated by the prices of the request."""
    last_output_tokens: int = 0
    last_usage: Usage | None = None
    """Of the last model call, as reported; None where it was not, or cannot be true."""
    last_cost: float | None = None

    def add(
        self, usage: Usage | None, cost: float | None, estimate: Callable[[], Usage], options: RequestOptions
    ) -> str:
        """Count one model call. What a provider does not report is estimated, and so is what cannot be true.

        A usage or cost that is NaN, negative or absurd would make each later comparison with a budget meaningless.
        Returns a note on such a value; empty when there is none.
        """
        usage_is_sound, cost_is_sound = usage is None or _is_sound(usage), cost is None or 0 <= cost <= MAX_CALL_COST
        reported = usage if usage_is_sound else None
        counted = reported or Usage()
        if not counted.total_tokens:
            counted = estimate()
        elif not counted.input_tokens:
            # A prompt is never empty: Ollama has left out the count of one that it held in its cache.
            counted += Usage(estimate().input_tokens)
        self.last_usage, self.last_cost = reported, cost if cost_is_sound else None
        by_prices = _by_prices(options, counted.input_tokens, counted.output_tokens)
        if not cost_is_sound:
            cost = by_prices
        self.usage = None if self.usage is None or reported is None else self.usage + reported
        self.counted += counted
        self.cost = None if self.cost is None or cost is None else self.cost + cost
        self.charged += (by_prices or 0.0) if cost is None else cost
        self.last_output_tokens = counted.output_tokens
        wrong = [name for name, sound in (("usage", usage_is_sound), ("cost", cost_is_sound)) if not sound]
        return f"The provider's {' and '.join(wrong)} of this step cannot be true; estimated instead." if wrong else ""

    @property
    def total_tokens(self) -> int:
        """All that counts against the token budget."""
        return self.counted.total_tokens


def _is_sound(usage: Usage) -> bool:
    counts = counts_of(usage)
    total = sum(counts)
    # A fraction or NaN in one of them makes a float of the sum.
    return isinstance(total, int) and total <= MAX_CALL_TOKENS and min(counts) >= 0


def _by_prices(options: RequestOptions, input_tokens: int, output_tokens: int) -> float | None:
    """US dollars for so many tokens; None where a price is not known."""
    if options.input_price is None or options.output_price is None:
        return None
    return input_tokens * options.input_price + output_tokens * options.output_price


class Stop(Struct, frozen=True):
    """The step must not be asked."""

    outcome: Outcome
    reason: str


def answer_room(options: RequestOptions) -> int:
    """Tokens of the window that the prompt leaves for the answer; 0 where the window is not known."""
    window, asked = options.context_tokens, options.sampling.max_output_tokens
    if window is None:
        return 0
    wanted = (
        min(int(window * ANSWER_WINDOW_SHARE), MAX_ANSWER_ROOM_TOKENS) if asked is None else min(asked, window // 2)
    )
    return max(wanted, MIN_OUTPUT_TOKENS)


def allow_step(options: RequestOptions, spent: Spending, input_tokens: int) -> int | Stop | None:
    """The most output tokens of one more model call of this input (None: no limit of ours), or why it must not be."""
    limits = [options.sampling.max_output_tokens]
    needed_output = max(MIN_OUTPUT_TOKENS, spent.last_output_tokens)
    if options.token_budget is not None:
        tokens_left = options.token_budget - spent.total_tokens - input_tokens
        if tokens_left < needed_output:
            return Stop(
                Outcome.TOKEN_LIMIT,
                f"The next step needs about {input_tokens} input and {needed_output} output tokens; of the budget of "
                f"{options.token_budget}, {spent.total_tokens} are used.",
            )
        limits.append(tokens_left)
    if options.cost_budget is not None:
        left, input_cost = options.cost_budget - spent.charged, _by_prices(options, input_tokens, 0)
        estimate = _by_prices(options, input_tokens, needed_output)
        if input_cost is None or estimate is None:
            return Stop(Outcome.COST_LIMIT, "What a step costs is not known, so the cost budget could not be kept.")
        if left <= 0 or estimate > left:
            return Stop(
                Outcome.COST_LIMIT,
                f"The next step costs about ${estimate:.4f}; of the budget of ${options.cost_budget:.4f}, "
                f"${spent.charged:.4f} are spent.",
            )
        if options.output_price:
            limits.append(int((left - input_cost) / options.output_price))
    given = [limit for limit in limits if limit is not None]
    if options.context_tokens is not None:
        left_of_window = options.context_tokens - input_tokens
        if given or left_of_window < answer_room(options):
            given.append(left_of_window)
    return min(given, default=None)
