"""A script, without `if __name__ == "__main__":`. Its child processes never run it again.

python examples/embedding/script.py
"""

from callboard import Runtime, Settings, tool


@tool
def weather(city: str) -> str:
    """The weather in a city now."""
    return f"It rains in {city}."


with Runtime(Settings(), tools=[weather]) as runtime:
    print(runtime.ask_sync("What is the weather in Oslo?").text)
