from agents import Agent, Runner
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    millimetres: int


print(Runner.run_sync(Agent(name="Assistant", model="gpt-6-sol", output_type=Rain), "Where does it rain?").final_output)
