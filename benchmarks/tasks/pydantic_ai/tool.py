from pydantic_ai import Agent


def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


print(Agent("openai:gpt-6-luna", tools=[weather]).run_sync("Is it wet in Oslo?").output)
