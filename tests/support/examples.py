"""How many examples a property draws, in one run and in another."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """So many in the deep stage (profile `thorough`, 100 examples), and in each run a fifth of them (20)."""
    return max(1, most * settings().max_examples // 100)
