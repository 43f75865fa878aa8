from agents import Agent, Runner
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    millimetres: int


agent = Agent(name="Assistant", model="gpt-6-sol", output_type=Rain)
print(Runner.run_sync(agent, "Where does it rain?").final_output)
