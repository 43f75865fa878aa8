from pydantic_ai import Agent

print(Agent("openai:gpt-6-luna").run_sync("Where is it wet?").output)
