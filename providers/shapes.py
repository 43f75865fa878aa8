"""Checks of what a provider sent, where a value of another type would travel on unnoticed."""

from __future__ import annotations

from typing import Any


def text_of(value: Any) -> str:
    """`value`, which must be a string; "" for null. Raises TypeError, which decoders report as malformed."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise TypeError(f"expected a string, not {type(value).__name__}")


def count_of(value: Any) -> int:
    """A number of tokens; 0 for null. Raises TypeError, which decoders report as malformed."""
    if value is None:
        return 0
    if isinstance(value, int | float):
        return int(value)
    raise TypeError(f"expected a number, not {type(value).__name__}")
