from callboard import ask_sync


def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


print(ask_sync("Is it wet in Oslo?", model="openai/gpt-6-luna", tools=[weather]))
