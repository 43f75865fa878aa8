"""The tool of these examples. It runs in a child process, which is killed when its request ends."""

from __future__ import annotations

import os
from urllib.parse import urlencode
from urllib.request import urlopen

from callboard import Settings, tool

SETTINGS = Settings(tool_environment=("WEATHER_URL",))
"""The model is that of CALLBOARD_MODEL. A tool in a child process sees no key that is not named here."""


@tool(risk="network", timeout=30)
def weather(city: str) -> str:
    """The weather in a city now."""
    service = os.environ.get("WEATHER_URL")
    if not service:
        return f"It rains in {city}."
    with urlopen(f"{service}?{urlencode({'city': city})}") as answer:
        return str(answer.read(), "utf-8")
