from agents import Agent, Runner, SQLiteSession

agent = Agent(name="Assistant", model="gpt-6-luna")
session = SQLiteSession("ada")
print(Runner.run_sync(agent, "I am Ada.", session=session).final_output)
print(Runner.run_sync(agent, "Who am I?", session=session).final_output)
