"""`--tools FILE`: tools of one's own, and one clear sentence for a file that cannot be used."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard import UsageError
from callboard.actors.testing.wire_double import Call, Turn
from callboard.actors.tools.tool_file import load_tool_file, load_tool_text, tools_in

TOOLS = '''
from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from beside_them import FACTOR
from callboard import tool

lock = Lock()  # a module that cannot be copied to a child, and so is imported there


@dataclass
class Doubled:
    number: int


@tool(risk="read")
def double(number: int) -> Doubled:
    """Double it."""
    with lock:
        return Doubled(FACTOR * number)


@tool
async def later(text: str) -> str:
    """Say it later."""
    return text
'''


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).endswith("_tools.py"):
            del sys.modules[name]
    sys.path[:] = path


def test_the_tools_of_a_file_run_in_processes_and_on_the_loop(callboard: Any) -> None:
    (callboard.workspace / "my_tools.py").write_text(TOOLS)
    (callboard.workspace / "beside_them.py").write_text("FACTOR = 2\n")
    calls = (Call("double", {"number": 21}, "call_a"), Call("later", {"text": "hello"}, "call_b"))
    with shared_double([Turn("", calls), Turn("Done.")]) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url(), "--tools", "my_tools.py")
        result = callboard.run("ask", "x", *where)
        told = json.dumps(server.requests()[-1].body["messages"])
    assert result.status == 0, result.err
    assert r"{\"number\":42}" in told
    assert "hello" in told


def test_a_model_is_offered_the_tools_of_the_file_and_not_those_that_it_imports(here: Any) -> None:
    Path("own_tools.py").write_text(TOOLS.replace("beside_them", "other_tools"))
    Path("other_tools.py").write_text(
        "from callboard import tool\nFACTOR = 3\n@tool\ndef hidden() -> int:\n    '''H.'''\n    return 1\n"
    )
    told = json.loads(here("tools", "--tools", "own_tools.py", "--json").out)
    listed = {each["name"]: each for each in told["tools"]}
    assert {"double", "later"} <= set(listed)
    assert "hidden" not in listed
    assert listed["double"]["parameters"]["properties"]["number"]["type"] == "integer"
    assert listed["later"]["policy"] == "allowed", "its owner has named the file"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("def f(:\n    pass", "line 1: SyntaxError"),
        ("x = 1\nimport no_such_module_at_all", "line 2: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
        ("def plain():\n    return 1", "defines no tool"),
        ("from callboard import tool\n@tool(timeout=0)\ndef f() -> int:\n    return 1", "line 2: UsageError"),
        ("raise ValueError('two\\nlines')", "line 1: ValueError: two lines"),
        ("\0", "null bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(here: Any, content: str, told: str) -> None:
    Path("broken_tools.py").write_text(content)
    result = here("tools", "--tools", "broken_tools.py")
    assert result.status == 2
    assert "broken_tools.py" in result.sentence
    assert told in result.sentence
    assert "broken_tools" not in sys.modules or told == "defines no tool"


def test_two_files_with_a_tool_of_one_name_and_files_that_are_none(here: Any) -> None:
    text = "from callboard import tool\n@tool\ndef same() -> int:\n    '''S.'''\n    return 1\n"
    Path("one_tools.py").write_text(text)
    Path("two_tools.py").write_text(text)
    assert "two tools are called 'same'" in here("tools", "--tools", "one_tools.py", "--tools", "two_tools.py").sentence
    assert "there is no such file" in here("tools", "--tools", "none.py").sentence
    assert "not a Python file" in here("tools", "--tools", ".").sentence
    Path("json.py").write_text(text)
    assert "rename the file" in here("tools", "--tools", "json.py").sentence


def test_a_text_that_was_read_before_is_run_and_not_what_the_file_holds_by_now(tmp_path: Path) -> None:
    file = tmp_path / "seen_tools.py"
    file.write_text("raise ValueError('changed since')")
    text = b"from callboard import tool\n@tool\ndef seen() -> int:\n    '''S.'''\n    return 1\n"
    (found,) = tools_in(load_tool_text(file, text))
    assert found.name == "seen"
    assert found.packed, "it can be shipped to a child"
    with pytest.raises(UsageError, match="changed since"):
        load_tool_file(file)
    with pytest.raises(UsageError, match="No module named 'beside'"):
        load_tool_text(file, b"import beside")
