from pydantic_ai import Agent

print(Agent("openai:gpt-6-sol").run_sync("Where does it rain?").output)
