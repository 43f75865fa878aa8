"""docs/wire_double.md: its shell example and its JSON example work."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.offenders import no_offenders

from callboard.actors.testing.wire_double import Api, FaultKind
from callboard.actors.testing.wire_double.script import RawAnswer, Turn, scripts_from_json

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "wire_double.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return str(text)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def documents(text: str) -> Iterator[Any]:
    """JSON documents, one directly after the other."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


def test_the_shell_example(tmp_path: Path) -> None:
    example = block("sh").replace("8399", str(free_port())).replace("python -m", f"{sys.executable} -m")
    script = tmp_path / "example.sh"
    script.write_text(example)
    ran = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=60)
    started, scripts, calling, answering, seen = documents(ran.stdout)
    assert started["url"].startswith("http://127.0.0.1:")
    assert scripts == {"scripts": [""]}
    assert calling["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert answering["choices"][0]["message"]["content"] == "It rains in Oslo."
    assert [request["number"] for request in seen["requests"]] == [0, 1]


def test_the_json_example() -> None:
    (script,) = scripts_from_json(block("json"))
    assert script.name == "limits"
    assert [type(answer) for answer in script.turns] == [Turn, Turn, Turn, RawAnswer]


def test_the_page_has_a_row_for_every_api_and_fault() -> None:
    no_offenders(name for name in (*Api, *FaultKind) if f"| `{name}` |" not in PAGE)
