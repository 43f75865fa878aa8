from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


agent = Agent(name="Assistant", model="gpt-6-sol", tools=[weather])
print(Runner.run_sync(agent, "Does it rain in Oslo?").final_output)
