from pydantic_ai import Agent


def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


agent = Agent("openai:gpt-6-sol", tools=[weather])
print(agent.run_sync("Does it rain in Oslo?").output)
