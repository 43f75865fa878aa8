from agents import Agent, Runner
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    millimetres: int


print(Runner.run_sync(Agent(name="Assistant", model="gpt-6-luna", output_type=Rain), "Where is it wet?").final_output)
