"""What was learned of each model's tokenizer: the provider's input tokens by our count of the same prompt."""

from __future__ import annotations

from typing import Final

from callboard.actors.models.refusals import MAX_MODELS
from callboard.protocol.prompt_tokens import measured_ratio

#: The share of the newest measurement: after five of them, two thirds of the ratio are theirs.
NEWEST_SHARE: Final = 0.2


class TokenRatios:
    """Learned by the LLM manager as answers come, on the loop; read when a request begins, on any thread.

    It belongs to the runtime and outlives the manager. A request is given the ratio with its options, and goes by that
    until its own first answer, so a replay of its events needs nothing of what is here.
    """

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}
        """By "provider/model"."""

    def learn(self, name: str, input_tokens: int, own_count: int) -> None:
        """The provider has counted a prompt. Ignored where that cannot be true, or tells nothing of other prompts."""
        ratio = measured_ratio(input_tokens, own_count)
        if ratio is not None:
            known = self._ratios.get(name, ratio)
            self._ratios[name] = known + NEWEST_SHARE * (ratio - known)
            if len(self._ratios) > MAX_MODELS:
                del self._ratios[next(iter(self._ratios))]

    def forget(self) -> None:
        """The names may stand for other models from now on."""
        self._ratios.clear()

    def ratio(self, name: str) -> float:
        """For text that the provider has not counted: at least 1, since a lower ratio holds only where it was found."""
        return max(self._ratios.get(name, 1.0), 1.0)
