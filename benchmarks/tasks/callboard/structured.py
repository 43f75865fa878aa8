from pydantic import BaseModel

from callboard import ask_sync


class Rain(BaseModel):
    city: str
    millimetres: int


print(ask_sync("Where does it rain?", model="openai/gpt-6-sol", output=Rain).output)
