from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


print(Runner.run_sync(Agent(name="Assistant", model="gpt-6-luna", tools=[weather]), "Is it wet in Oslo?").final_output)
