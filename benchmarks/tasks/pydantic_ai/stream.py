from pydantic_ai import Agent

for text in Agent("openai:gpt-6-luna").run_stream_sync("Where is it wet?").stream_text(delta=True):
    print(text, end="")
