"""docs/coming_from: what it says that callboard has not is not there; what it says that the others have is
(`-m runtimes`, their newest versions)."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import callboard
from callboard import AskOptions, Conversation, Runtime, Settings, ToolContext, tool
from callboard.providers.provider_table import ROWS

ROOT = Path(__file__).resolve().parents[1]


def vocabulary() -> set[str]:
    """All that a program can say to callboard, in lower case."""
    names = {*callboard.__all__, *Settings.model_fields, *AskOptions.__annotations__}
    names |= {*inspect.signature(tool).parameters, *dir(Runtime), *dir(ToolContext), *dir(Conversation)}
    return {name.lower() for name in names if not name.startswith("_")}


def lacks(*words: str) -> Callable[[], bool]:
    """No name has one of these words in it."""
    return lambda: not [name for name in vocabulary() for word in words if word in name]


def is_for_linux() -> bool:
    systems = re.findall(r"Operating System :: (.+)", (ROOT / "setup.cfg").read_text())
    return systems == ["POSIX :: Linux"]


#: Of each page, in order: how a line of "has, and callboard has not" begins, what is tried of callboard, and where the
#: others have it.
LINUX = ("macOS and Windows", is_for_linux, ())
LACKS = {
    "pydantic_ai": (
        ("Typed dependencies", lacks("deps", "dependenc"), ("pydantic_ai:RunContext.deps",)),
        ("Functions as output", lacks("validator"), ("pydantic_ai:Agent.output_validator",)),
        (
            "Toolsets",
            lacks("toolset", "graph", "eval", "ag_ui", "vercel"),
            ("pydantic_ai.toolsets:CombinedToolset", "pydantic_graph", "pydantic_ai.ui", "pydantic_ai:Agent.to_web"),
        ),
        ("Durable runs on Temporal", lacks("temporal", "dbos", "prefect"), ("pydantic_ai.durable_exec",)),
        ("Batches", lacks("batch", "embed_", "realtime"), ("pydantic_ai.embeddings", "pydantic_ai.realtime")),
        LINUX,
    ),
    "openai_agents": (
        ("Handoffs", lacks("handoff", "as_tool"), ("agents:handoff", "agents:Agent.as_tool")),
        ("Guardrails", lacks("guardrail"), ("agents:input_guardrail", "agents:output_guardrail")),
        ("Voice", lacks("voice", "realtime", "computer"), ("agents.voice", "agents.realtime", "agents:ComputerTool")),
        ("Sessions", lacks("session", "redis", "mongo"), ("agents.extensions.memory", "agents:SQLiteSession")),
        LINUX,
    ),
    "langgraph": (
        ("Graphs", lacks("graph", "node", "reducer"), ("langgraph.graph:StateGraph",)),
        ("Middleware", lacks("middleware", "hook"), ("langchain.agents.middleware:AgentMiddleware",)),
        ("Integrations with hundreds", lambda: len(ROWS) < 100, ("langchain.chat_models:init_chat_model",)),
        LINUX,
    ),
}


def lines_of(page: str) -> list[str]:
    """Of the section about what callboard has not."""
    text = (ROOT / "docs" / "coming_from" / f"{page}.md").read_text()
    (section,) = re.findall(r"^## What .+ has, and callboard has not$(.*?)^## ", text, re.M | re.S)
    return re.findall(r"^- (.*)", section, re.M)


@pytest.mark.parametrize("page", LACKS)
def test_what_callboard_has_not_is_not_there(page: str) -> None:
    lines = lines_of(page)
    assert len(lines) == len(LACKS[page])
    for line, (begins, holds, _) in zip(lines, LACKS[page], strict=True):
        assert line.startswith(begins)
        assert holds(), line


def test_a_word_that_is_there_is_found() -> None:
    assert not lacks("mcp")()
    assert not lacks("journal")()


@pytest.mark.runtimes
@pytest.mark.parametrize("page", LACKS)
def test_what_the_others_have_is_there(page: str) -> None:
    for _, _, places in LACKS[page]:
        for place in places:
            module, _, names = place.partition(":")
            if not names:
                assert find_spec(module) is not None, place
                continue
            owner = importlib.import_module(module)
            for name in names.split("."):
                assert hasattr(owner, name) or name in owner.__annotations__, place
                owner = getattr(owner, name, None)
