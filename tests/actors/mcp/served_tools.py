"""Tools that `callboard mcp` serves in these tests."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from callboard import ToolContext, ToolError, tool
from callboard.actors.mcp.callers import caller

print("printed while the file is loaded")  # noqa: T201 - what must not reach a client


@dataclass
class Sum:
    total: int


@tool(risk="read", effect="repeat")
def add(a: int, b: int = 2) -> Sum:
    """Add two numbers."""
    return Sum(a + b)


class Person(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    family_name: str
    photo: bytes = b"\xff\xfe"
    shoe_size: float = Field(40, serialization_alias="size")


@tool(risk="read")
def person(name: str = Field("Doe", alias="familyName"), photo: bytes = b"") -> Person:
    """Make a person."""
    return Person(familyName=name, photo=photo)


@dataclass
class Coloured:
    of_hair: Annotated[str, Field(alias="ofHair")]


@tool(risk="read")
def coloured(person: Person) -> Coloured:
    """A dataclass with an alias."""
    return Coloured(person.family_name)


class Listed(TypedDict):
    raw_bytes: Annotated[bytes, Field(serialization_alias="rawBytes")]
    people: list[Person]


@tool(risk="read")
def listed(person: Person) -> Listed:
    """A TypedDict, made by its own names."""
    return {"raw_bytes": person.photo, "people": [person]}


class Node(BaseModel):
    child_nodes: list[Node] = Field([], alias="childNodes")

    @computed_field(alias="nodeCount")  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return 1 + sum(each.count for each in self.child_nodes)


@tool(risk="read")
def tree(depth: int) -> Node:
    """A model within itself, with what it computes."""
    return Node(childNodes=[tree(depth - 1)] if depth else [])


@tool(risk="read")
def words(count: int) -> list[str]:
    """Some words."""
    return ["word"] * count


@tool(risk="write")
def write(path: str) -> str:
    """Write a file."""
    Path(path).write_text("written")
    return "written"


@tool(risk="read")
async def noisy() -> str:
    """Print where only messages may go."""
    print("printed by a task")  # noqa: T201 - likewise
    os.write(1, b"written to the descriptor\n")
    return "quiet"


@tool(risk="read")
async def steps(context: ToolContext, fractions: list[float | None]) -> str:
    """Say how far it is."""
    for number, fraction in enumerate(fractions):
        context.progress(f"step {number}", fraction)
        await asyncio.sleep(0.12)
    return "done"


@tool  # without a risk it is not confined, and may write outside of the workspace
def hold(marker: str) -> str:
    """Hold a lock on the file until it is ended."""
    with open(marker, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("held")
        held.flush()
        time.sleep(60)
    return "never"


@tool(risk="read")
def crash() -> str:
    """Take the process down."""
    os._exit(3)


@tool(risk="read")
async def greet() -> str:
    """Ask who is there."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = await caller().elicit("Who is there?", schema, "who")
    if answer.action != "accept" or answer.content is None:
        raise ToolError("no name was given")
    return f"Hello {answer.content['name']}"
