from pydantic import BaseModel
from pydantic_ai import Agent


class Rain(BaseModel):
    city: str
    millimetres: int


agent = Agent("openai:gpt-6-sol", output_type=Rain)
print(agent.run_sync("Where does it rain?").output)
