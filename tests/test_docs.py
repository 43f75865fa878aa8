"""What the README and docs/ show works: their commands and their Python are run, their links lead somewhere.

A block after `<!-- not run: REASON -->` is not run; one of Python without imports is a fragment, and only parsed. The
model of a program is the wire double: it tells of the weather in Oslo, or says what `<!-- model: [TURN, ...] -->`
before the block holds (docs/wire_double.md has the fields of a turn); `<!-- other runtime: [TURN, ...] -->` is the same
for a program that needs the extra `runtimes`, which `-m runtimes` runs. `It prints:` and a block of text behind a
program are compared with what it prints.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.shared_double import shared_double  # noqa: E402 - tests/ is on the path from here on

from callboard import (  # noqa: E402
    AskOptions,
    Conversation,
    Reply,
    Runtime,
    Settings,
    StepReport,
    Stream,
    ToolContext,
    ask_sync,
    tool,
)
from callboard.actors.telemetry.metrics import METRICS  # noqa: E402
from callboard.actors.testing.wire_double import Answer, Call, Turn  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<remark>not run|model|other runtime): (?P<said>[^\n]*(?:\n(?!```)[^\n]+)*?) ?-->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$(?:\n\nIt prints:\n\n```text\n(?P<prints>.*?)^```$)?",
    re.M | re.S,
)
OSLO: list[Answer] = [Turn(calls=(Call("weather", {"city": "Oslo"}),)), Turn("It rains in Oslo.")]
MODEL = re.compile(r'model="([^"]+/[^"]+)"')
"""That a program names: its provider is then at the wire double."""
TURNS = TypeAdapter(list[Answer])
DEADLINE_SECONDS = 120.0
FIRST = ".venv/bin/callboard ask "
"""Of the first command, what comes after the installing; .ci/run runs the whole line."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    is_run: bool
    needs_runtimes: bool
    turns: list[Answer]
    prints: str | None

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def shown(page: Path) -> str:
    return page.name if page.parent == ROOT else page.relative_to(ROOT / "docs").as_posix()


def blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            if found["language"] == language:
                line = text.count("\n", 0, found.start("text")) + 1
                remark = found["remark"]
                turns = TURNS.validate_json(found["said"]) if remark in ("model", "other runtime") else OSLO
                is_other = remark == "other runtime"
                yield Block(page, line, language, found["text"], remark != "not run", is_other, turns, found["prints"])


def is_fragment(block: Block) -> bool:
    return re.search(r"^(from|import) ", block.text, re.M) is None


PYTHON = [
    pytest.param(block, id=str(block), marks=[pytest.mark.runtimes] if block.needs_runtimes else [])
    for block in blocks("python")
]
COMMANDS = [
    pytest.param(line.partition(" #")[0].strip(), id=f"{block}: {line.partition(' #')[0].strip()}")
    for block in blocks("bash")
    for line in block.text.splitlines()
    if line.strip() and block.is_run
]


def run(command: list[str], cwd: Path, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**kept, "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


@pytest.mark.parametrize("block", PYTHON)
def test_python(block: Block, tmp_path: Path) -> None:
    ast.parse(block.text)
    if is_fragment(block) or not block.is_run:
        return
    script = tmp_path / "snippet.py"
    script.write_text(block.text)
    with shared_double(block.turns, by_turn=block.turns is OSLO) as server:
        named = MODEL.search(block.text)
        environment = {
            "CALLBOARD_MODEL": named[1] if named else "openai-compatible/any",
            "CALLBOARD_BASE_URL": server.base_url(),
            "OPENAI_BASE_URL": server.base_url(),  # for other runtimes
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        ran = run([sys.executable, str(script)], tmp_path, tmp_path, **environment)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if block.prints is not None:
        assert ran.stdout == block.prints
    elif block.page.name == "README.md":
        assert "It rains in Oslo." in ran.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, tmp_path: Path) -> None:
    """Run by bash in a small folder, without the set-up: .ci/run runs that, and is the second command."""
    if command == "bash .ci/run":
        assert os.access(ROOT / ".ci" / "run", os.R_OK)
        return
    folder, programs = tmp_path / "folder", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    (folder / "retry.py").write_text("def retries_decided():\n    return True\n")
    callboard = programs / "callboard"
    callboard.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m callboard.actors.cli "$@"\n')
    callboard.chmod(0o755)
    line = f"callboard ask {command.partition(FIRST)[2]}" if FIRST in command else command
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    ran = run(["bash", "-c", line], folder, tmp_path, PATH=path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_the_first_command_finds_its_answer_in_this_repository(tmp_path: Path) -> None:
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if FIRST in line]
    shutil.copytree(ROOT / "actors", tmp_path / "actors", ignore=shutil.ignore_patterns("__pycache__", "data"))
    command = [sys.executable, "-m", "callboard.actors.cli", "ask", *shlex.split(line.partition(FIRST)[2])]
    ran = run(command, tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"actors/(workers|calls|processes)/\w+\.py:\d+-\d+", ran.stdout), ran.stdout


LINKS = [
    pytest.param(page, link, id=f"{shown(page)}: {link}")
    for page in PAGES
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    if "://" not in link
]


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_links_lead_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists()


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:actors|protocol|providers|tests|docs|benchmarks|examples)/[\w/]+\.\w+)`", page.read_text()
    ):
        assert (ROOT / name).exists(), name


def test_the_architecture_page_names_every_file_of_actors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = [path.name for path in (ROOT / "actors").glob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if f"`{name}`" not in page] == []


#: What a name in a page is, by the word before its dot.
OWNERS: dict[str, type] = {
    "AskOptions": AskOptions,
    "Conversation": Conversation,
    "Reply": Reply,
    "Runtime": Runtime,
    "Settings": Settings,
    "StepReport": StepReport,
    "Stream": Stream,
    "ToolContext": ToolContext,
    "conversation": Conversation,
    "reply": Reply,
    "rt": Runtime,
    "runtime": Runtime,
    "settings": Settings,
}
CALLS: dict[str, Callable[..., object]] = {
    "@tool": tool, "Runtime": Runtime, "Settings": Settings, "ask": ask_sync, "ask_sync": ask_sync
}  # fmt: skip
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def names_that_are_not_there(text: str) -> list[str]:
    """Of what a page says in its running text: attributes, keyword arguments and modules of callboard."""
    wrong = []
    for code in CODE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        for owner, name in re.findall(r"(?<![\w./])(\w+)\.(\w+)", code):
            if owner in OWNERS and name != "py" and name not in members(OWNERS[owner]):
                wrong.append(f"{owner}.{name}")
        for called, arguments in re.findall(r"(?<![\w.])(@?\w+)\(([^()]*)", code):
            if called in CALLS:
                known = keywords(CALLS[called])
                wrong += [f"{called}({name}=)" for name in re.findall(r"(\w+)=", arguments) if name not in known]
        wrong += [
            name
            for name in re.findall(r"(?<![\w./-])callboard\.(?:actors|protocol|providers)(?:\.\w+)*", code)
            if not is_there(name)
        ]
    return wrong


def members(kind: type) -> set[str]:
    return {*dir(kind), *get_type_hints(kind)}


def keywords(called: Callable[..., object]) -> set[str]:
    if called is Settings:
        return set(Settings.model_fields)
    more = set(AskOptions.__annotations__) if called is ask_sync else set()
    return {*inspect.signature(called).parameters, *more}


def is_there(name: str) -> bool:
    """A module, what is in one, or a metric."""
    module, _, attribute = name.rpartition(".")
    if name in METRICS:
        return True
    try:
        return importlib.util.find_spec(name) is not None or hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return bool(module) and is_there(module) and hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_what_a_page_names_exists(page: Path) -> None:
    assert names_that_are_not_there(page.read_text()) == []


def test_a_name_that_is_not_there_is_found() -> None:
    text = """
`runtime.ask` and `runtime.answer`, `Settings(model="x", modle="y")`, `@tool(risk="read", danger=1)`,
`callboard.protocol.model.Sampling`, `callboard.protocol.nothing`, `ask_sync("?", tools=[], model="x", tool=1)`.
```python
runtime.nothing()
```
"""
    assert names_that_are_not_there(text) == [
        "runtime.answer", "Settings(modle=)", "@tool(danger=)", "callboard.protocol.nothing", "ask_sync(tool=)"
    ]  # fmt: skip
