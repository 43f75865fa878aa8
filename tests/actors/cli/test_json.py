"""`--json`: one object on stdout, also when a command fails; the exit status is the same as without it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.shared_double import shared_double, stall

from callboard.actors.cli.sources import Sources
from callboard.actors.testing.wire_double import Call, Fault, FaultKind, RawAnswer, Turn
from callboard.protocol.code_fences import render_fence

MODEL = "openai-compatible/any"
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def test_every_field_of_an_answer(callboard: Any) -> None:
    ran = callboard.run("ask", "where is the weather fetched?", "--json")
    reply = json.loads(ran.out)
    assert list(reply) == FIELDS
    assert (reply["outcome"], reply["model"], reply["steps"]) == ("answered", "offline/code-context", 2)
    assert reply["usage"].keys() >= {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"}
    assert (reply["finish_reason"], reply["notes"]) == ("stop", [])
    assert "weather.py:1-3" in reply["text"]
    (source,) = reply["sources"]
    assert source["file"] == str(callboard.workspace / "weather.py")
    assert (source["lines"], source["name"], source["found_by"]) == ("1-3", "fetch_weather", "request_code_context")
    assert "\x1b" not in ran.err


FIELDS = ["text", "request_id", "outcome", "finish_reason", "model", "steps", "usage", "cost", "notes", "sources"]


def test_sources_are_what_the_tools_showed_and_what_the_answer_cites(callboard: Any) -> None:
    folder = callboard.workspace
    (folder / "sky.py").write_text("one\ntwo\nthree\nfour\n")
    calls = (Call("read_file", {"path": "sky.py", "start_line": 2, "end_line": 3}, "call_a"),)
    cited = render_fence(str(folder / "weather.py"), 0, 24, "def fetch_weather(city):")
    invented = render_fence("/etc/passwd", 0, 4, "root") + render_fence(str(folder / "sky.py"), 0, 9_999, "x")
    with shared_double([Turn("", calls), Turn(f"See:\n{cited}\n{invented}")]) as server:
        ran = callboard.run("ask", "x", "--json", "--model", MODEL, "--base-url", server.base_url())
    assert ran.status == DONE, ran.err
    assert json.loads(ran.out)["sources"] == [
        {"file": str(folder / "sky.py"), "lines": "2-3", "name": "", "found_by": "read_file"},
        {"file": str(folder / "weather.py"), "lines": "1-1", "name": "", "found_by": "answer"},
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "kind", "says"),
    [
        (["ask", "", "--json"], USAGE, "usage", "the question is empty"),
        (["ask", "--json"], USAGE, "usage", "the following arguments are required: QUESTION"),
        (["ask", "x", "--json", "--modle", "y"], USAGE, "usage", "unrecognized arguments: --modle"),
        (["dance", "--json"], USAGE, "usage", "invalid choice: 'dance'"),
        (["ask", "x", "--json", "--model", "nobody/x"], USAGE, "usage", "There is no provider 'nobody'"),
        (["ask", "x", "--json", "--workspace", "no/such"], USAGE, "usage", "there is no folder"),
        (["ask", "x", "--json", "--profile", "p"], USAGE, "usage", "there is no profile 'p'"),
        (["tools", "--json", "--workspace", "no/such"], USAGE, "usage", "there is no folder"),
        (["ask", os.fsdecode(b"caf\xe9"), "--json"], USAGE, "usage", "not valid UTF-8"),
        (["ask", "x", "--json", "--workspace", os.fsdecode(b"caf\xe9")], USAGE, "usage", "not valid UTF-8"),
        (["ask", "x", "--json", "--model", MODEL, "--base-url", "http://127.0.0.1:1/v1"], FAILED, "connection", ":1"),
    ],
    ids=str,
)
def test_a_failure_is_an_object_too(here: Any, arguments: list[str], status: int, kind: str, says: str) -> None:
    ran = here(*arguments)
    shown = json.loads(ran.out)
    assert (ran.status, shown["error"]["kind"], shown["error"]["status"]) == (status, kind, None)
    assert says in shown["error"]["message"]
    assert (shown["text"], "request_id" in shown) == ("", True)
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_without_it_and_behind_two_dashes_there_is_none(here: Any) -> None:
    for arguments in (["ask", ""], ["dance"], ["dance", "--", "--json"]):
        assert here(*arguments).out == ""


def test_what_there_was_of_an_answer_comes_with_its_failure(callboard: Any) -> None:
    calls = (Call("read_file", {"path": "weather.py"}, "call_a"),)
    refusal = RawAnswer({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, 401)
    busy = Turn(fault=Fault(FaultKind.STATUS, status=503))
    with shared_double([busy, Turn("Let me look.", calls), refusal]) as server:
        ran = callboard.run("ask", "x", "--json", "--model", MODEL, "--base-url", server.base_url())
    shown = json.loads(ran.out)
    assert list(shown) == [*FIELDS, "error"]
    assert (ran.status, shown["error"]["kind"], shown["error"]["status"]) == (FAILED, "authentication", 401)
    assert (shown["outcome"], shown["steps"], shown["model"]) == ("failed", 2, MODEL)
    assert shown["sources"][0]["file"] == str(callboard.workspace / "weather.py")
    assert any("status 503" in note for note in shown["notes"])
    assert shown["request_id"]


def test_an_interrupted_answer_has_what_had_come(callboard: Any) -> None:
    calls = (Call("read_file", {"path": "weather.py"}, "call_a"),)
    with shared_double([Turn("Let me look.", calls), stall()]) as server:
        process = callboard.start("ask", "x", "--json", "--model", MODEL, "--base-url", server.base_url())
        while not process.stderr.readline().startswith(b"< read_file"):
            assert process.poll() is None
        ran = callboard.interrupt(process)
    shown = json.loads(ran.out)
    assert (ran.status, shown["error"]["kind"]) == (INTERRUPTED, "interrupted")
    assert (shown["text"], shown["model"], shown["outcome"]) == ("Let me look.", MODEL, None)
    assert shown["sources"][0]["found_by"] == "read_file"
    assert shown["request_id"]


def test_no_character_of_an_answer_reaches_the_terminal_unescaped(callboard: Any) -> None:
    text = "a\x1b]0;x\x07\x9b31m\u202eb"
    with shared_double([Turn(text)]) as server:
        ran = callboard.run("ask", "x", "--json", "--model", MODEL, "--base-url", server.base_url())
    assert json.loads(ran.out)["text"] == text
    assert not set("\x1b\x07\x9b\u202e") & set(ran.out)


def test_a_place_outside_of_the_workspace_or_without_file_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_text("one\ntwo\n")
    (tmp_path / "out.py").write_text("one\ntwo\n")
    (tmp_path / "in" / "link.py").symlink_to(tmp_path / "out.py")
    places = ["in/a.py", "out.py", "in/link.py", "in/../out.py", "in/none.py", "in", "in/a\0.py"]
    text = "\n".join(render_fence(str(tmp_path / place), 4, 7, "two") for place in places)
    assert [each["file"] for each in Sources(tmp_path / "in").all(text)] == [str(tmp_path / "in" / "a.py")]
    assert Sources().all(text) == []
