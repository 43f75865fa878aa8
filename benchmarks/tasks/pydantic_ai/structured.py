from pydantic import BaseModel
from pydantic_ai import Agent


class Rain(BaseModel):
    city: str
    millimetres: int


print(Agent("openai:gpt-6-luna", output_type=Rain).run_sync("Where is it wet?").output)
