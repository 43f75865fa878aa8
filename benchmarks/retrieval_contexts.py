"""What the context for a question holds: whether an answer is whole in it, whether it says that nothing fits, and
whether it keeps to its budget, counted by a tokenizer that callboard does not use (quicktok, extra `dev`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import quicktok
from retrieval_corpora import Question

from callboard.actors.index import CodeIndex, assemble
from callboard.protocol.code_fences import AssembledContext, CodeFence, ContextFit, parse_fences

TOKEN_BUDGET = 16_000
SMALL_BUDGET = 2_000
TOKENIZER = quicktok.get_encoding("o200k_base")


class Contexts:
    """Contexts of any indexes, and how full they were."""

    def __init__(self) -> None:
        self.used: list[float] = []
        """Of each context, its tokens in units of its budget."""

    def is_whole(self, index: CodeIndex, question: Question) -> bool:
        """Whether one of the answers is whole in a context of `TOKEN_BUDGET`."""
        context = self._context(index, question.text, TOKEN_BUDGET)
        fences = [
            fence for item in context.context for fence in parse_fences(item.snippet) if isinstance(fence, CodeFence)
        ]
        shown = [
            (fence.path, _line(fence, fence.start_byte) + 1, _line(fence, fence.end_byte - 1) + 1) for fence in fences
        ]
        return any(
            path == answer.path and first <= answer.start_line and answer.end_line <= last
            for path, first, last in shown
            for answer in question.answers
        )

    def told_nothing(self, index: CodeIndex, texts: Sequence[str]) -> list[bool]:
        """Of each question, whether the answer says that nothing fits."""
        return [self._context(index, text, SMALL_BUDGET).fit is ContextFit.NOTHING for text in texts]

    def _context(self, index: CodeIndex, text: str, budget: int) -> AssembledContext:
        context = assemble(index, text, budget)
        self.used.append(TOKENIZER.count(orjson.dumps(context.as_json()).decode()) / budget)
        return context

    def __str__(self) -> str:
        over, most = sum(share > 1 for share in self.used), max(self.used, default=0.0)
        return f"contexts over their budget: {over} of {len(self.used)}; the fullest used {most:.1%} of it"


def _line(fence: CodeFence, offset: int) -> int:
    return Path(fence.path).read_bytes()[:offset].count(b"\n")
