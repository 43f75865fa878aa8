"""What a request cannot be started with: asked before anything is sent, and by the session for a journal's sake."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from callboard.protocol.compaction import Compacted, compacted_faults, compaction_faults
from callboard.protocol.content import Message, history_faults
from callboard.protocol.errors import UsageError
from callboard.protocol.limits import TOKEN_RATIO_BOUNDS
from callboard.protocol.model import sampling_faults
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.output import spec_faults
from callboard.protocol.tools import wait_fault

#: Fields of the options that are amounts, and of which type: True is not one token.
_AMOUNTS: Final = (
    ("token_budget", (int,), "a whole number"),
    ("tools_budget_tokens", (int,), "a whole number"),
    ("context_tokens", (int,), "a whole number"),
    ("cost_budget", (int, float), "a number"),
    ("input_price", (int, float), "a number"),
    ("output_price", (int, float), "a number"),
)
_SHARES: Final = ("history_share", "result_share")


def check_start(
    history: Sequence[Message],
    options: RequestOptions,
    tools: Sequence[ToolOffer] = (),
    compacted: Compacted | None = None,
) -> None:
    """Raise UsageError, with all that is wrong, when no request can be started with these.

    A session refuses such a RequestStarted as an illegal event; ask here first, and the caller is answered at once.
    """
    faults = [f"the history is not legal: {fault}" for fault in history_faults(history)[:3]]
    if len({offer.definition.name for offer in tools}) < len(tools):
        faults.append("two of the tools offered share a name")
    faults += sampling_faults(options.sampling)
    if options.compaction is not None:
        faults += (f"compaction: {fault}" for fault in compaction_faults(options.compaction))
        faults += (f"compacted: {fault}" for fault in compacted_faults(compacted or Compacted(), history))
    if options.output is not None:
        faults += spec_faults(options.output, {offer.definition.name for offer in tools})
    if faults := [*faults, *_limit_faults(options)]:
        raise UsageError("; ".join(faults))


def _limit_faults(options: RequestOptions) -> Iterator[str]:
    if options.max_attempts < 1:
        yield f"max_attempts must be 1 or more, got {options.max_attempts}"
    if not 0 < options.timeout_seconds < math.inf:
        yield f"timeout_seconds must be above 0 and finite, got {options.timeout_seconds}"
    if fault := wait_fault("approval_timeout_seconds", options.approval_timeout_seconds):
        yield fault
    for name, types, kind in _AMOUNTS:
        amount: float | None = getattr(options, name)
        if amount is not None and (type(amount) not in types or not 0 <= amount < math.inf):
            yield f"{name} must be {kind} from 0 on, got {amount}"
    for name in _SHARES:
        if not 0 < getattr(options, name) <= 1:
            yield f"{name} must be above 0 and at most 1, got {getattr(options, name)}"
    if options.cost_budget is not None and None in (options.input_price, options.output_price):
        yield "cost_budget needs input_price and output_price; without them it could not be kept"
    if not 1.0 <= options.token_ratio <= TOKEN_RATIO_BOUNDS[1]:
        yield f"token_ratio must be from 1 to {TOKEN_RATIO_BOUNDS[1]:g}, got {options.token_ratio}"
