"""Arguments of the built-in tools that there are not, or that are out of bounds, as a model is told of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from callboard.actors.builtins.tool_set import ADDED_AT_START
from callboard.actors.index.rag import (
    MAX_FILTER_CHARS,
    MAX_FILTERS,
    MAX_QUERY_CHARS,
    MAX_TOKEN_BUDGET,
    MIN_TOKEN_BUDGET,
)
from callboard.actors.index.searching import MAX_QUERIES
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import Tool
from callboard.actors.tools.invoke import MEANT
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.providers.local.offline import CONTEXT_TOOL

#: What models write, and which argument is meant.
NEAR = (
    (CONTEXT_TOOL, "hint", "queries"),
    (CONTEXT_TOOL, "Query", "queries"),
    (CONTEXT_TOOL, "querys", "queries"),
    (CONTEXT_TOOL, "max_tokens", "token_budget"),
    (CONTEXT_TOOL, "files", "paths"),
    ("read_file", "file_path", "path"),
    ("read_file", "offset", "start_line"),
    ("read_file", "start_lin", "start_line"),
    ("run_command", "cmd", "command"),
    ("run_command", "timeout", "timeout_seconds"),
    ("run_command", "workdir", "cwd"),
    ("search_text", "pattern", "query"),
    ("start_job", "timeout_seconds", "max_seconds"),
    ("code_item_lookup", "symbol", "name"),
    ("apply_patch", "diff", "patch"),
    ("create_file", "text", "content"),
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tool]:
    """All that a workspace brings, some of them at the start."""
    work = tmp_path_factory.mktemp("work")

    async def offered() -> dict[str, Tool]:
        async with Runtime(Settings(workspace=work, model="offline/x")) as runtime:
            return {str(name): tool for name, tool in runtime._wiring.offered_tools.items()}

    return asyncio.run(offered())


def failure_of(tool: Tool, **given: Any) -> ToolFailure | None:
    return tool.invoker.fault_of(json.dumps(given))


@pytest.mark.parametrize(("name", "written", "meant"), NEAR)
def test_a_name_beside_one_is_answered_with_the_one_that_is_meant(
    tools: dict[str, Tool], name: str, written: str, meant: str
) -> None:
    told = failure_of(tools[name], **{written: "x"})
    assert told is not None
    assert told.code is FailureCode.INVALID_ARGUMENTS
    assert f"{written}: there is no such argument; use {meant}" in told.message


def test_a_name_beside_none_is_answered_with_all_that_there_are(tools: dict[str, Tool]) -> None:
    told = failure_of(tools[CONTEXT_TOOL], xyzzy=1)
    assert told is not None
    assert told.message.endswith("it takes queries, token_budget, paths, languages, kinds")


def test_what_models_write_means_one_argument_of_a_tool(tools: dict[str, Tool]) -> None:
    assert {*ADDED_AT_START, CONTEXT_TOOL} <= tools.keys()
    arguments = {name: [each.shown for each in tool.signature.parameters] for name, tool in tools.items()}
    assert MEANT.keys() <= {each for known in arguments.values() for each in known}
    for name, known in arguments.items():
        written = Counter(word for each in known for word in MEANT.get(each, ()) if word not in known)
        assert [word for word, times in written.items() if times > 1] == [], name


#: Each bound of `request_code_context`: what is at it, and what is beyond it.
BOUNDS = (
    ("queries", ["x"] * MAX_QUERIES, ["x"] * (MAX_QUERIES + 1)),
    ("queries", ["x" * MAX_QUERY_CHARS], ["x" * (MAX_QUERY_CHARS + 1)]),
    ("token_budget", MIN_TOKEN_BUDGET, MIN_TOKEN_BUDGET - 1),
    ("token_budget", MAX_TOKEN_BUDGET, MAX_TOKEN_BUDGET + 1),
    *((name, ["x"] * MAX_FILTERS, ["x"] * (MAX_FILTERS + 1)) for name in ("paths", "languages", "kinds")),
    *((name, ["x" * MAX_FILTER_CHARS], ["x" * (MAX_FILTER_CHARS + 1)]) for name in ("paths", "languages", "kinds")),
)


@pytest.mark.parametrize(("name", "at", "beyond"), BOUNDS, ids=[f"{name}-{at}"[:24] for name, at, _ in BOUNDS])
def test_each_bound_of_a_question_about_code_holds(tools: dict[str, Tool], name: str, at: Any, beyond: Any) -> None:
    assert failure_of(tools[CONTEXT_TOOL], **{name: at}) is None
    told = failure_of(tools[CONTEXT_TOOL], **{name: beyond})
    assert told is not None
    assert told.field.partition(".")[0] == name


def test_the_schema_has_the_bounds_too(tools: dict[str, Tool]) -> None:
    properties: Any = tools[CONTEXT_TOOL].signature.json_schema()["properties"]
    budget = properties["token_budget"]
    assert (budget["minimum"], budget["maximum"]) == (MIN_TOKEN_BUDGET, MAX_TOKEN_BUDGET)
    assert properties["queries"]["maxItems"] == MAX_QUERIES
    assert properties["queries"]["items"]["maxLength"] == MAX_QUERY_CHARS
    for name in ("paths", "languages", "kinds"):
        assert properties[name]["maxItems"] == MAX_FILTERS
        assert properties[name]["items"]["maxLength"] == MAX_FILTER_CHARS
