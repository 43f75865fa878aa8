from pydantic_ai import Agent

agent = Agent("openai:gpt-6-luna")
result = agent.run_sync("I am Ada.")
print(result.output)
print(agent.run_sync("Who am I?", conversation=result.conversation).output)
