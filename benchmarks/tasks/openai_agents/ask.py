from agents import Agent, Runner

print(Runner.run_sync(Agent(name="Assistant", model="gpt-6-luna"), "Where is it wet?").final_output)
