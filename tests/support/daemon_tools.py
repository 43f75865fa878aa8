"""Tools of a daemon in tests."""

from __future__ import annotations

from callboard import tool


@tool(isolation="task")
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"
