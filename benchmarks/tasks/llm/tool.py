import llm


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


model = llm.get_model("gpt-6-sol")
print(model.chain("Does it rain in Oslo?", tools=[weather]).text())
