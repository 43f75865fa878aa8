from pydantic import BaseModel

from callboard import ask_sync


class Rain(BaseModel):
    city: str
    millimetres: int


print(ask_sync("Where is it wet?", model="openai/gpt-6-luna", output=Rain).output)
