"""The tools over the code index, as a model calls them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.small_tree import write_tree

from callboard.actors import Runtime, Settings
from callboard.actors.tools import Tool, ToolContext
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure

Call = tuple[str, Mapping[str, object]]


def answers(workspace: Path, *calls: Call) -> list[Any]:
    """What each of the calls is answered: JSON, or a failure."""

    async def call_all() -> list[Any]:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            return [await answer(runtime._wiring.offered_tools[ToolName(name)], given) for name, given in calls]

    return asyncio.run(call_all())


async def answer(tool: Tool, given: Mapping[str, object]) -> Any:
    arguments = json.dumps(given)
    run = RunTool(Tag(RequestId("r"), MessageId("m")), tool.name, arguments, time.monotonic() + 30, "")
    result = await tool.invoker.call_async(arguments, ToolContext(run))
    return json.loads(result) if isinstance(result, str) else result


def fence_in(snippet: str) -> CodeFence:
    (fence,) = parse_fences(snippet)
    assert isinstance(fence, CodeFence)
    return fence


def exact(snippet: str) -> bool:
    """Whether the code in the fence is what the file has there."""
    fence = fence_in(snippet)
    return Path(fence.path).read_bytes()[fence.start_byte : fence.end_byte].decode() == fence.code


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_tree(tmp_path)


def test_an_item_is_shown_with_its_code_and_place(workspace: Path) -> None:
    found, missing, module, many = answers(
        workspace,
        ("code_item_lookup", {"name": "Store.Get"}),
        ("code_item_lookup", {"name": "Sotre"}),
        ("code_item_lookup", {"name": "web.view"}),
        ("code_item_lookup", {"name": "open", "kind": "method", "file": "src/net.rs"}),
    )
    (item,) = found["items"]
    assert (found["exists"], found["version"]) == (True, 1)
    assert (item["canonical_path"], item["kind"], item["lines"], item["doc"]) == (
        "store.store.Store.Get", "method", "5-6", "Get reads.",
    )  # fmt: skip
    assert exact(item["snippet"])
    assert (missing["exists"], missing["items"]) == (False, [])
    assert missing["candidates"][0]["canonical_path"] == "store.store.Store"
    assert [each["kind"] for each in module["items"]] == ["file"]
    assert [each["canonical_path"] for each in many["items"]] == ["net::Conn::open", "net::Wire::open"]


def test_a_long_item_is_cut_at_a_line_and_many_items_are_named(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def long():\n" + "    x = 1\n" * 5_000)
    (tmp_path / "many.py").write_text("".join(f"class C{n}:\n    def go(self): ...\n" for n in range(60)))
    cut, many = answers(
        tmp_path, ("code_item_lookup", {"name": "long"}), ("code_item_lookup", {"name": "go", "kind": "method"})
    )
    (item,) = cut["items"]
    assert exact(item["snippet"])
    assert fence_in(item["snippet"]).code.endswith("x = 1")
    assert "read_file" in item["note"]
    assert (len(many["items"]), len(many["others"])) == (8, 30)
    assert "More than 38 items" in many["note"]


def test_edges_say_how_sure_they_are(workspace: Path) -> None:
    struct, chosen, several, missing = answers(
        workspace,
        ("code_item_edges", {"name": "Conn"}),
        ("code_item_edges", {"name": "Client", "relations": ["contains"], "limit": 1}),
        ("code_item_edges", {"name": "retry"}),
        ("code_item_edges", {"name": "Clint"}),
    )
    assert [each["kind"] for each in struct["items"]] == ["struct", "impl"]
    (method,) = struct["edges"]["contains"]
    assert (method["canonical_path"], method["certainty"]) == ("net::Conn::open", "exact")
    assert method["place"] == f"{workspace}/src/net.rs:5"
    assert list(chosen["edges"]) == ["contains"]
    assert chosen["left_out"] == {"contains": 1}
    assert (several["exists"], "items" in several, several["edges"]) == (True, False, {})
    assert {each["canonical_path"] for each in several["candidates"]} == {
        "pkg.client.Client.retry", "pkg.server.Server.retry",
    }  # fmt: skip
    assert (missing["exists"], missing["candidates"][0]["name"]) == (False, "Client")


def test_a_file_without_symbols_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\npaint the fence\n")
    edges, found = answers(tmp_path, ("code_item_edges", {"name": "notes.md"}), ("find_references", {"name": "paint"}))
    assert "does not know the syntax" in edges["note"]
    assert [each["usages"] for each in found["references"]] == [["text"]]


def test_references_come_in_pages(workspace: Path) -> None:
    whole, first, below = answers(
        workspace,
        ("find_references", {"name": "Client.send"}),
        ("find_references", {"name": "send", "limit": 1}),
        ("find_references", {"name": "paint", "path": "web/view.ts", "usages": ["definition"]}),
    )
    places = [each["place"].removeprefix(f"{workspace}/") for each in whole["references"]]
    assert places == ["pkg/client.py:14", "pkg/server.py:9", "pkg/server.py:10"]
    assert all(exact(each["snippet"]) for each in whole["references"])
    assert ("next" in whole, whole["files_searched"]) == (False, 11)
    pages = [first["references"][0]["place"]]
    after = first["next"]
    while after:
        (page,) = answers(workspace, ("find_references", {"name": "send", "limit": 1, "after": after}))
        pages += [each["place"] for each in page["references"]]
        after = page.get("next")
    assert pages == [each["place"] for each in whole["references"]]
    assert [each["usages"] for each in below["references"]] == [["definition"]]


def test_an_overview_fits_its_budget_and_is_the_same_each_time(workspace: Path) -> None:
    (workspace / "pyproject.toml").write_text("[project]\n")
    (workspace / "tests").mkdir()
    (workspace / "tests" / "test_long.py").write_text("def test(): ...\n" * 500)
    small, large, again, part, missing = answers(
        workspace,
        ("codebase_overview", {"token_budget": 300}),
        ("codebase_overview", {"token_budget": 4_000}),
        ("codebase_overview", {"token_budget": 4_000}),
        ("codebase_overview", {"path": "web"}),
        ("codebase_overview", {"path": "nowhere"}),
    )
    assert large == again
    assert len(json.dumps(small)) < len(json.dumps(large))
    assert small["left_out"]
    assert {each["name"]: each["files"] for each in large["languages"]} == {
        "python": 3, "rust": 2, "go": 2, "typescript": 2, "c": 2, "java": 1, "text": 1,
    }  # fmt: skip
    assert (large["manifests"], large["entry_points"]) == (["pyproject.toml"], ["cmd/main.go"])
    assert [each["file"] for each in part["modules"]] == ["view.ts", "page.ts"]
    assert part["modules"][0]["items"] == ["class View 1-3", "function paint 5-5", "enum Shade 6-6"]
    assert "tests/test_long.py" not in {each["file"] for each in large["modules"]}
    assert (missing["exists"], missing["files"]) == (False, 0)


WRONG: Sequence[tuple[str, Mapping[str, object], str]] = (
    ("code_item_lookup", {"name": ""}, "name"),
    ("code_item_lookup", {"name": "x", "kind": "banana"}, "kind"),
    ("code_item_lookup", {"name": "x", "extra": 1}, "extra"),
    ("code_item_lookup", {"name": "x" * 501}, "name"),
    ("code_item_edges", {"name": "x", "relations": ["loves"]}, "relations.0"),
    ("code_item_edges", {"name": "x", "limit": 0}, "limit"),
    ("find_references", {"name": "a b"}, "name"),
    ("find_references", {"name": "x", "after": "nowhere"}, "after"),
    ("find_references", {"name": "x", "path": "../outside"}, "path"),
    ("codebase_overview", {"path": "/etc"}, "path"),
    ("codebase_overview", {"token_budget": 10}, "token_budget"),
)


def test_wrong_arguments_are_named(workspace: Path) -> None:
    failures = answers(workspace, *((name, given) for name, given, _ in WRONG))
    for failure, (name, _, field) in zip(failures, WRONG, strict=True):
        assert isinstance(failure, ToolFailure), name
        assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENTS, field)
        assert failure.expected


def test_a_file_that_is_secret_is_in_no_answer(workspace: Path) -> None:
    (workspace / ".callboardignore").write_text("pkg/\n")
    found = answers(
        workspace,
        ("code_item_lookup", {"name": "Client"}),
        ("find_references", {"name": "Client"}),
        ("codebase_overview", {}),
    )
    assert "client.py" not in json.dumps(found)
