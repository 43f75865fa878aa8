"""No result of a built-in tool has an empty field, but for those that are the answer; and each fits its schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.small_tree import write_tree

from callboard import Policy, Runtime, Settings
from callboard.actors.builtins.tool_set import ADDED_AT_START
from callboard.actors.mcp.remote_schema import fit_result_schema, misfit
from callboard.providers.local.offline import CONTEXT_TOOL

#: What is written also when it is empty: "there is nothing" is the answer then.
ANSWERS = frozenset({"entries", "files", "hits", "items", "edges", "references", "jobs", "output", "answer", "context"})
PATCH = "--- a/pkg/client.py\n+++ b/pkg/client.py\n@@ -3 +3 @@\n-LIMIT = 3\n+LIMIT = 4\n"
CALLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("run_command", {"command": "true"}),  # the first, since it has the time that loading a process may take
    ("get_file_metadata", {"path": "pkg/client.py"}),
    ("get_file_metadata", {"path": "pkg"}),
    ("get_file_metadata", {"path": "nowhere"}),
    ("read_file", {"path": "pkg/client.py"}),
    ("read_file", {"path": "empty.txt"}),
    ("read_file", {"path": "nowhere"}),
    ("read_files", {"paths": ["pkg/client.py", "nowhere", "../x"]}),
    ("list_dir", {}),
    ("list_dir", {"path": "nothing"}),
    ("list_dir", {"path": "nowhere"}),
    ("find_files", {"name": "*.py"}),
    ("find_files", {"name": "nowhere"}),
    ("search_text", {"query": "retry"}),
    ("search_text", {"query": "nothing is so"}),
    ("run_command", {"command": "echo one"}),
    ("run_command", {"command": "kill -TERM $$"}),
    ("run_command", {"command": "printf 'a.py:1: error: Bad  [x]\\n'; exit 1"}),
    ("todo", {"items": []}),
    ("todo", {"items": [{"id": "1", "text": "a"}]}),
    ("code_item_lookup", {"name": "Client"}),
    ("code_item_lookup", {"name": "LIMIT"}),
    ("code_item_lookup", {"name": "nowhere"}),
    ("code_item_edges", {"name": "Client"}),
    ("code_item_edges", {"name": "retry"}),
    ("code_item_edges", {"name": "LIMIT"}),
    ("code_item_edges", {"name": "nowhere"}),
    ("find_references", {"name": "retry"}),
    ("find_references", {"name": "nowhere"}),
    ("codebase_overview", {}),
    ("codebase_overview", {"path": "pkg"}),
    ("codebase_overview", {"path": "nothing"}),
    ("codebase_overview", {"path": "nowhere"}),
    ("codebase_overview", {"path": "pkg/client.py"}),
    ("codebase_overview", {"path": "empty.txt"}),
    (CONTEXT_TOOL, {"queries": ["retry"]}),
    (CONTEXT_TOOL, {"queries": ["retry"], "paths": ["nowhere"]}),
    ("apply_code_edit", {"edits": [{"file": "pkg/server.py", "old_text": "pass", "new_text": "return 1"}]}),
    ("apply_patch", {"patch": PATCH}),
    ("create_file", {"path": "new.txt", "content": ""}),
    ("rename_file", {"path": "new.txt", "new_path": "newer.txt"}),
    ("delete_file", {"path": "newer.txt"}),
    ("jobs", {"action": "list"}),
    ("jobs", {"action": "poll", "id": "nowhere"}),
    ("start_job", {"command": "echo begun"}),
)

#: Of all calls together, beside a load of twelve.
pytestmark = pytest.mark.timeout(240)


def empty(value: object, path: str = "") -> Iterator[str]:
    """The paths of what is empty and is no answer."""
    inner: list[tuple[str, object]] = []
    if isinstance(value, dict):
        inner = [(f"{path}.{name}", each) for name, each in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}.{at}", each) for at, each in enumerate(value)]
    for where, each in inner:
        if each is None or each in ("", [], {}):
            if where.rpartition(".")[2] not in ANSWERS:
                yield where
        else:
            yield from empty(each, where)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, object], Any, Any]]:
    """Of each call: its tool, its arguments, the schema of results, and what came of it."""
    tmp = tmp_path_factory.mktemp("empty")
    work = tmp / "work"
    write_tree(work)
    (work / "empty.txt").touch()
    (work / "nothing").mkdir()
    policy = Policy(trust="manual")
    settings = Settings(
        workspace=work, state_dir=tmp / "state", policy=policy, auto_confirm_edits=True, model="offline/x"
    )

    async def run() -> list[tuple[str, dict[str, object], Any, Any]]:
        found = []
        async with Runtime(settings, ask_user=lambda _: None, approve=lambda _: True) as runtime:

            async def call(name: str, given: dict[str, object]) -> Any:
                result = await runtime.call_tool(name, given)
                tool = runtime.tool(name) or runtime._wiring.offered_tools[name]  # type: ignore[index]
                schema = tool.signature.result.json_schema(mode="serialization")
                assert result.failure is None, (name, given, result.failure)
                told = json.loads(result.content)
                found.append((name, given, schema, told))
                return told

            for name, given in CALLS:
                told = await call(name, given)
            for action in ("wait", "poll", "kill"):
                await call("jobs", {"action": action, "id": told["id"], "since": 1_000})
            await call("ask_user", {"question": "Which?"})
        return found

    return asyncio.run(run())


def test_no_field_is_empty(results: list[tuple[str, dict[str, object], Any, Any]]) -> None:
    assert [f"{name}({given}): {path}" for name, given, _, told in results for path in empty(told)] == []


def test_every_built_in_tool_was_called(results: list[tuple[str, dict[str, object], Any, Any]]) -> None:
    called = {name for name, *_ in results}
    assert {*ADDED_AT_START, CONTEXT_TOOL, "ask_user", "todo", "run_command", "search_text"} <= called
    assert all(told["version"] == 1 for _, _, _, told in results)


def test_every_result_fits_the_schema_that_its_tool_declares(
    results: list[tuple[str, dict[str, object], Any, Any]],
) -> None:
    for name, given, schema, told in results:
        fit = fit_result_schema(schema)
        assert fit is not None
        branches: Any = fit.get("anyOf", [fit])
        assert all("version" in each["properties"] for each in branches), name
        assert not misfit(fit, told), (name, given, told)
