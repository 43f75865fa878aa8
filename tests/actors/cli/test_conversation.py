"""Whole conversations with a real HTTP server in another process: parallel calls in fragments, tools that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.marked import processes_with
from support.shared_double import shared_double

from callboard.actors import Reply, Runtime, Settings, tool
from callboard.actors.testing.wire_double import Call, Turn
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.events import ToolCallCompleted

MODEL = "openai-compatible/any"
Until = Callable[[Callable[[], bool]], None]


def results_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(call id, content) of the tool messages a server was sent, in their order."""
    return [(each["tool_call_id"], each["content"]) for each in body["messages"] if each["role"] == "tool"]


@tool
async def quick(value: str) -> str:
    """Is done at once."""
    return f"quick {value}"


@tool(timeout=20)
def fails(value: str) -> str:
    """Raises."""
    raise ValueError(f"no {value}")


def test_four_parallel_calls_in_fragments_go_back_in_the_models_order(tmp_path: Path) -> None:
    others_have_ended = tmp_path / "ended"

    @tool(timeout=20)
    def slow(value: str) -> str:
        """Takes longer than the others."""
        while not others_have_ended.exists():
            time.sleep(0.01)
        return f"slow {value}"

    calls = (
        Call("slow", {"value": "ä" * 10}, "call_1"),
        Call("quick", {"value": "b"}, "call_2"),
        Call("fails", {"value": "c"}, "call_3"),
        Call("quick", {"value": "d"}, "call_4"),
    )
    ended: list[str] = []

    async def ask(url: str) -> Reply:
        settings = Settings(model=MODEL, base_url=url)
        async with Runtime(settings, tools=[slow, quick, fails]) as runtime:
            async for event in runtime.stream("Do four things."):
                if isinstance(event, ToolCallCompleted):
                    ended.append(event.content)
                    if len(ended) == 2:
                        others_have_ended.touch()
                if isinstance(event, Reply):
                    return event
        raise AssertionError("no reply")

    with shared_double([Turn("Let me see.", calls, fragment=3), Turn("All done.", fragment=2)]) as server:
        reply = asyncio.run(ask(server.base_url()))
        first, second = server.traffic().bodies
    assert reply.text == "All done."
    assert len(reply.steps) == 2
    assert [each["function"]["name"] for each in first["tools"]] == ["slow", "quick", "fails"]
    assert [call_id for call_id, _ in results_of(second)] == ["call_1", "call_2", "call_3", "call_4"]
    contents = [content for _, content in results_of(second)]
    assert "slow " + "ä" * 10 in contents[0]
    assert "quick b" in contents[1]
    assert json.loads(contents[2])["code"] == "tool_error"
    assert "quick d" in contents[3]
    assert "slow" in ended[-1]  # it ended last, and comes first


def test_the_command_line_runs_the_tools_of_the_workspace(callboard: Any) -> None:
    where = callboard.workspace
    calls = (
        Call("read_file", {"path": "weather.py"}, "call_a"),
        Call("list_dir", {"path": "."}, "call_b"),
        Call("request_code_context", {"token_budget": 1000, "queries": ["weather"]}, "call_c"),
        Call("read_file", {"path": "../../etc/passwd"}, "call_d"),
    )
    with shared_double([Turn("", calls, fragment=5), Turn("It is in weather.py.", fragment=3)]) as server:
        ran = callboard.run("ask", "where is the weather?", "--model", MODEL, "--base-url", server.base_url())
        first, second = server.traffic().bodies
    assert ran.status == 0, ran.err
    assert ran.out == "It is in weather.py.\n"
    offered = {each["function"]["name"] for each in first["tools"]}
    assert offered >= {"read_file", "list_dir", "request_code_context"}
    results = results_of(second)
    assert [call_id for call_id, _ in results] == ["call_a", "call_b", "call_c", "call_d"]
    assert "def fetch_weather" in results[0][1]
    assert "weather.py" in results[1][1]
    found = json.loads(results[2][1])["context"][0]
    (fence,) = parse_fences(found["snippet"])
    assert isinstance(fence, CodeFence)
    assert (fence.path, found["lines"]) == (str(where / "weather.py"), "1-3")
    assert json.loads(results[3][1])["ok"] is False
    for name, *_ in (("read_file",), ("list_dir",), ("request_code_context",)):
        assert f"> {name}" in ran.err


#: Time for a process to begin in on a busy machine, where 2 s have been too few.
DEADLINE_SECONDS = 4.0


@tool(timeout=DEADLINE_SECONDS)
def hangs(folder: str) -> None:
    """Never ends, nor does its child."""
    subprocess.Popen(["sh", "-c", "sleep 1000; :", f"{folder}/hangs"])
    (Path(folder) / "hangs").touch()
    while True:
        pass


@tool(timeout=DEADLINE_SECONDS)
def sleeps_in_c(folder: str) -> None:
    """Sleeps where no Python signal handler and no exception gets in."""
    (Path(folder) / "sleeps_in_c").touch()
    ctypes.PyDLL(None).sleep(1000)


@tool(timeout=20)
def exits(folder: str) -> None:
    """Takes its process down, and leaves a child."""
    subprocess.Popen(["sh", "-c", "sleep 1000; :", f"{folder}/exits"])
    (Path(folder) / "exits").touch()
    os._exit(1)


def test_tools_that_hang_sleep_in_c_and_exit_are_one_failed_result_each(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["hangs", "sleeps_in_c", "exits"]
    calls = tuple(Call(name, {"folder": str(tmp_path)}, f"call_{name}") for name in names)
    with shared_double([Turn("", calls), Turn("Three of them failed.")]) as server:
        monkeypatch.setenv("CALLBOARD_TEST", str(tmp_path))  # now that the server has started, which must not have it
        settings = Settings(model=MODEL, base_url=server.base_url(), tool_environment=("CALLBOARD_TEST",))
        with Runtime(settings, tools=[hangs, sleeps_in_c, exits]) as runtime:
            reply = runtime.ask_sync("Try them.")
            assert {each.name for each in tmp_path.iterdir()} == set(names)
            until(lambda: not started_with(str(tmp_path)))
        until(lambda: not processes_with(f"CALLBOARD_TEST={tmp_path}"))
        body = server.traffic().bodies[1]
    assert reply.text == "Three of them failed."
    failures = [json.loads(content) for _, content in results_of(body)]
    assert [(each["tool"], each["code"]) for each in failures] == [
        ("hangs", "timed_out"),
        ("sleeps_in_c", "timed_out"),
        ("exits", "crashed"),
    ]


def started_with(word: str) -> list[str]:
    """The live processes that have the word in their command line; their pids in a namespace say nothing here."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if word.encode() in path.read_bytes() else []
    return found
