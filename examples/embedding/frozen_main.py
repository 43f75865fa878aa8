"""A program frozen into one file.

    pip install pyinstaller
    pyinstaller --onefile examples/embedding/frozen_main.py
    dist/frozen_main

There is no Python beside it that could run child processes: the program is started once more instead, and the call at
the top runs callboard's part in it. Without that call, tools in child processes are refused.
"""

from __future__ import annotations

import callboard

callboard.freeze_support()


@callboard.tool
def weather(city: str) -> str:
    """The weather in a city now."""
    return f"It rains in {city}."


def main() -> None:
    """Ask."""
    with callboard.Runtime(tools=[weather]) as runtime:
        print(runtime.ask_sync("What is the weather in Oslo?").text)


if __name__ == "__main__":
    main()
