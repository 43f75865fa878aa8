import llm
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    millimetres: int


print(Rain.model_validate_json(llm.get_model("gpt-6-luna").prompt("Where is it wet?", schema=Rain).text()))
