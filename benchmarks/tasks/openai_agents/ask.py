from agents import Agent, Runner

print(Runner.run_sync(Agent(name="Assistant", model="gpt-6-sol"), "Where does it rain?").final_output)
