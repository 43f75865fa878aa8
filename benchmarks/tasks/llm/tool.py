import llm


def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 mm of rain in {city}"


print(llm.get_model("gpt-6-luna").chain("Is it wet in Oslo?", tools=[weather]).text())
