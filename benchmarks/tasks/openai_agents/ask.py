from agents import Agent, Runner

agent = Agent(name="Assistant", model="gpt-6-sol")
print(Runner.run_sync(agent, "Where does it rain?").final_output)
