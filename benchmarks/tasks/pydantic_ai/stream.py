from pydantic_ai import Agent

result = Agent("openai:gpt-6-sol").run_stream_sync("Where does it rain?")
for text in result.stream_text(delta=True):
    print(text, end="")
