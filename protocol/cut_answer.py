"""An answer that was cut at the limit of output tokens, gone on with in further steps: their texts are joined."""

from __future__ import annotations

from typing import Final

from callboard.protocol.model import FinishReason
from callboard.protocol.options import RequestOptions
from callboard.protocol.step import TurnVerdict

#: What the model reads behind its turn. No API is asked to go on with a half turn of its own ("prefill"), since most
#: refuse one as the last message.
GO_ON_TOLD: Final = (
    "Your answer was cut off at the limit of output tokens. Go on exactly where it stops, in the middle of a word if "
    "it stops there: repeat nothing of it, and say nothing of this."
)


class CutAnswer:
    """What was said so far of an answer that was cut. One of a certain form is none: it is asked for again whole."""

    def __init__(self, options: RequestOptions) -> None:
        self._most = options.continue_cut_answers if options.output is None else 0
        self._times = 0
        self.text = ""
        """Of the turns that were cut, in their order."""
        self._goes_on = False

    def took(self, text: str, reason: FinishReason, verdict: TurnVerdict) -> str:
        """A turn has come that counts; the text of the answer so far. A turn with calls begins another answer."""
        is_answer = verdict is TurnVerdict.ANSWER
        whole = self.text + text if is_answer else text
        self._goes_on = is_answer and bool(text) and reason is FinishReason.LENGTH and self._times < self._most
        self._times += self._goes_on
        self.text = whole if self._goes_on else ""
        return whole

    @property
    def told(self) -> str:
        """What the model reads behind the turn that came last; "" where that is not to be gone on with."""
        return GO_ON_TOLD if self._goes_on else ""

    @property
    def note(self) -> str:
        """The same for a person."""
        so_often = f"{self._times} of {self._most}"
        told = f"The answer was cut off at the limit of output tokens; the model is asked to go on ({so_often})."
        return told if self._goes_on else ""
