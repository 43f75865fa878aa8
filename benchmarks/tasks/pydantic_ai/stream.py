from pydantic_ai import Agent

for text in Agent("openai:gpt-6-sol").run_stream_sync("Where does it rain?").stream_text(delta=True):
    print(text, end="")
