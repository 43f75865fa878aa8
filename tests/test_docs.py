"""What the README and docs/ show works: their commands and their Python are run, their links lead somewhere.

A block after `<!-- not run: REASON -->` is not run; one of Python without imports is a fragment, and only parsed. The
model of a program is the wire double: it tells of the weather in Oslo, or says what `<!-- model: [TURN, ...] -->`
before the block holds (docs/wire_double.md has the fields of a turn); `<!-- other runtime: [TURN, ...] -->` is the same
for a program that needs the extra `runtimes`, which `-m runtimes` runs.

What is printed is looked at too. `It prints:` and a block of text behind a block are what it prints, to the letter
(behind one of sh, `...` is anything). `<!-- prints: ... -->` before it is the same with `...` for anything; of a block
of bash it has a line for each command, which is somewhere in what that prints. `<!-- logs: ... -->` is of stderr.
`<!-- prints nothing: REASON -->` says why there is nothing to look at. An answer of curl's with an error's status fails
its block.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]

from support.homes import with_models  # noqa: E402
from support.offenders import no_offenders, places  # noqa: E402 - tests/ is on the path from here on
from support.shared_double import shared_double  # noqa: E402

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

PAGES = [*sorted({*ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}), *sorted((ROOT / "docs").rglob("*.md"))]
REMARK = r"<!-- (not run|model|other runtime|prints nothing|prints|logs):\s((?:[^\n]|\n(?!```|<!--))*?)\s?-->\n"
FENCE = re.compile(
    rf"^(?P<remarks>(?:{REMARK})*)"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$(?:\n\nIt prints:\n\n```text\n(?P<prints>.*?)^```$)?",
    re.M | re.S,
)
OSLO: list[Answer] = [Turn(calls=(Call("weather", {"city": "Oslo"}),)), Turn("It rains in Oslo.")]
MODEL = re.compile(r'model="([^"]+/[^"]+)"')
"""That a program names: its provider is then at the wire double."""
ANY = "openai-compatible/any"
"""The model of what names none."""
TURNS = TypeAdapter(list[Answer])
DEADLINE_SECONDS = 120.0
IN_QUOTES = re.compile(r"""'[^']*'|"[^"$`\\!]*\"""")
"""Where no character has a meaning for bash."""
ROOMS_APART = ("cli", "daemon", "index", "journal", "mcp", "testing")
"""Half of actors/, which takes half of the time to index; what the first command asks for is near the other rooms."""
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
    """To the letter."""
    said: Mapping[str, str]
    """What is remarked of it, by the kind of the remark."""

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
                said = dict(re.findall(REMARK, found["remarks"]))
                script = said.get("model") or said.get("other runtime")
                turns = OSLO if script is None else TURNS.validate_json(script)
                is_run, is_other = "not run" not in said, "other runtime" in said
                yield Block(page, line, language, found["text"], is_run, is_other, turns, found["prints"], said)


def is_fragment(block: Block) -> bool:
    return re.search(r"^(from|import) ", block.text, re.M) is None


BLOCKS = list(blocks("python"))
PROGRAMS = [
    pytest.param(block, id=str(block), marks=[pytest.mark.runtimes] if block.needs_runtimes else [])
    for block in BLOCKS
    if block.is_run and not is_fragment(block)
]
SCRIPTS = [pytest.param(block, id=str(block)) for block in blocks("sh") if block.is_run]


def commands_in(block: Block) -> list[str]:
    return [line.partition(" #")[0].strip() for line in block.text.splitlines() if line.strip()]


COMMANDS = [
    pytest.param(command, prints, id=f"{block}: {command}")
    for block in blocks("bash")
    if block.is_run
    for command, prints in zip_longest(commands_in(block), block.said.get("prints", "").splitlines())
]


def is_what_was_printed(expected: str, printed: str) -> bool:
    """All of it; `...` is anything."""
    return re.fullmatch(".*?".join(map(re.escape, expected.strip().split("..."))), printed.strip(), re.S) is not None


def test_each_block_that_is_run_says_what_it_prints() -> None:
    run = [block for language in ("python", "bash", "sh") for block in blocks(language) if block.is_run]
    looked_at = [each for each in run if each.prints is not None or {"prints", "logs", "prints nothing"} & {*each.said}]
    no_offenders(str(block) for block in run if block not in looked_at and not is_fragment(block))
    assert all(len(block.said.get("prints nothing", "because")) > 5 for block in run)


def test_what_was_printed_is_looked_at() -> None:
    assert is_what_was_printed("a ... c\n", "a b\nb c")
    assert not is_what_was_printed("a ... c", "a b c d")
    assert not is_what_was_printed("a.c", "abc")
    (block,) = found_blocks('<!-- model: ["x"] -->\n<!-- prints:\na\n... c\n-->\n```python\nimport a\n```\n')
    assert block == {"model": '["x"]', "prints": "a\n... c"}


def found_blocks(text: str) -> list[dict[str, str]]:
    return [dict(re.findall(REMARK, found["remarks"])) for found in FENCE.finditer(text)]


def run(
    command: list[str], cwd: Path, home: Path, piped: Mapping[str, Any] = MappingProxyType({}), **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**kept, "HOME": str(with_models(home)), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        **{"stdin": subprocess.DEVNULL, **piped},
    )


def test_all_python_can_be_parsed() -> None:
    no_offenders(f"{block}: {error}" for block in BLOCKS for error in syntax_errors(block.text))


def syntax_errors(text: str) -> list[str]:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return [str(error)]
    return []


def model_at(url: str, name: str = ANY) -> dict[str, str]:
    """The variables that a program or a command has for its model, and other runtimes for theirs."""
    return {
        "CALLBOARD_MODEL": name,
        "CALLBOARD_BASE_URL": url,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


@pytest.mark.parametrize("block", PROGRAMS)
def test_python(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(block.text)
    with shared_double(block.turns, by_turn=block.turns is OSLO) as server:
        named = MODEL.search(block.text)
        environment = model_at(server.base_url(), named[1] if named else ANY)
        ran = run([sys.executable, str(script)], tmp_path, tmp_path, **environment)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if block.prints is not None:
        assert ran.stdout == block.prints
    elif "prints nothing" in block.said:
        assert ran.stdout == ""
    for kind, printed in (("prints", ran.stdout), ("logs", ran.stderr)):
        if kind in block.said:
            assert is_what_was_printed(block.said[kind], printed), printed


def callboard_in(tmp_path: Path) -> tuple[Path, str]:
    """A small folder, and a PATH with the command."""
    folder, programs = tmp_path / "folder", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    (folder / "retry.py").write_text("def retries_decided():\n    return True\n")
    callboard = programs / "callboard"
    callboard.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m callboard.actors.cli "$@"\n')
    callboard.chmod(0o755)
    return folder, f"{programs}{os.pathsep}{os.environ['PATH']}"


#: In front of a script: it ends at what fails, and an answer of HTTP that is an error fails.
STRICT = 'set -eu\ncurl() { command curl --fail-with-body "$@"; }\n'


@pytest.mark.parametrize("block", SCRIPTS)
def test_script(block: Block, tmp_path: Path) -> None:
    """Run as a whole, its ports being others."""
    folder, path = callboard_in(tmp_path)
    text = re.sub(r"\b8\d{3}\b", str(free_port()), block.text).replace("python -m", f"{sys.executable} -m")
    with shared_double(block.turns) as server:
        ran = run(["bash", "-c", STRICT + text], folder, tmp_path, PATH=path, **model_at(server.base_url()))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    expected = block.said.get("prints", block.prints)
    assert expected is not None
    assert is_what_was_printed(expected, ran.stdout), ran.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(("command", "prints"), COMMANDS)
def test_command(command: str, prints: str, tmp_path: Path) -> None:
    """Run by bash in a small folder, without the set-up: .ci/run runs that, and is the second command."""
    if command == "bash .ci/run":
        assert os.access(ROOT / ".ci" / "run", os.R_OK)
        return
    folder, path = callboard_in(tmp_path)
    line = command
    if FIRST in command:
        line = f"callboard ask {command.partition(FIRST)[2]}"
        (folder / "worker.py").write_text("def kill_hanging_worker(deadline):\n    return True\n")
    first, _, last = line.rpartition(" | ")
    program, *arguments = shlex.split(last)
    if program == "callboard" and not set(IN_QUOTES.sub("", last)) & set("|&;<>()$`\\*?[#~="):
        with contextlib.ExitStack() as stack:  # as bash would do: what comes before it is piped into it
            piped: dict[str, Any] = {}
            if first:
                feeds = subprocess.Popen(["bash", "-c", first], cwd=folder, stdout=subprocess.PIPE)
                piped["stdin"] = stack.enter_context(feeds).stdout
            command_line = [sys.executable, "-m", "callboard.actors.cli", *arguments]
            ran = run(command_line, folder, tmp_path, piped, PATH=path)
    else:
        ran = run(["bash", "-c", line], folder, tmp_path, PATH=path)
    assert ran.returncode == 0, ran.stderr
    assert is_what_was_printed(f"...{prints}...", ran.stdout), ran.stdout


@pytest.mark.repeats
def test_the_first_command_finds_its_answer_in_this_repository(tmp_path: Path) -> None:
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if FIRST in line]
    ignored = shutil.ignore_patterns("__pycache__", "data", *(() if os.environ.get("CALLBOARD_DEEP") else ROOMS_APART))
    shutil.copytree(ROOT / "actors", tmp_path / "actors", ignore=ignored)
    command = [sys.executable, "-m", "callboard.actors.cli", "ask", *shlex.split(line.partition(FIRST)[2])]
    ran = run(command, tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"actors/(workers|calls|processes)/\w+\.py:\d+-\d+", ran.stdout), ran.stdout


def test_links_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#\s]+)\)|\bsrc(?:set)?=\"([^\"]+)\"")
    found = [(page, where, to[1] or to[2]) for page in PAGES for where, to in places(link, page)]
    links = [each for each in found if "://" not in each[2]]
    assert len(links) > 100
    no_offenders(f"{where} leads to {to}" for page, where, to in links if not (page.parent / to).exists())


def test_headings_that_the_readme_leads_to_exist() -> None:
    """Of other pages the build of the site tells."""
    link = re.compile(r"\]\(([\w/.]+\.md)#([^)\s]+)\)")
    links = [each for page in ROOT.glob("*.md") for each in places(link, page)]
    assert len(links) > 3
    no_offenders(f"{where} leads to {to[1]}#{to[2]}" for where, to in links if to[2] not in anchors(ROOT / to[1]))


def anchors(page: Path) -> set[str]:
    """By which its headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_marks_are_those_of_the_comparison() -> None:
    row = re.compile(r"^\| ?\[([^]]+)\]\((?:docs/compared\.md)?#[^)]+\) ?\|(.*)\|$", re.M)
    marks, cells = (
        {name.lower(): [each.strip() for each in text.split("|")] for name, text in row.findall(page.read_text())}
        for page in (ROOT / "README.md", ROOT / "docs" / "compared.md")
    )
    assert len(marks) == 12
    assert marks == {name: ["✓" if cell == "✓" else "✗" for cell in found] for name, found in cells.items()}


#: Words of what a page shows: its prose, tables and code, which take their time to read.
WORDS_OF_A_PAGE, WORDS_OF_THE_README, WORDS_OF_THE_DOCS = 2_500, 1_200, 60_000
REMARKS = re.compile(r"<!--.*?-->", re.S)


def words(page: Path) -> int:
    return len(REMARKS.sub("", page.read_text()).split())


def test_pages_can_be_read_in_one_go() -> None:
    limits = {page: WORDS_OF_THE_README if page.name == "README.md" else WORDS_OF_A_PAGE for page in PAGES}
    counted = {page: words(page) for page in PAGES}
    no_offenders(f"{shown(page)}: {counted[page]} words" for page, limit in limits.items() if counted[page] > limit)
    of_docs = {page: count for page, count in counted.items() if page.parent != ROOT}
    assert len(of_docs) > 40
    assert sum(of_docs.values()) <= WORDS_OF_THE_DOCS


#: What these mean here is not what a reader would guess. The first time that a page has one, it is in a link: to the
#: glossary, or to a page of its own.
OWN_WORDS = (
    "dead letter", "incarnation", "inside at balanced", "ledger", "outcome unknown", "quirk", "restart intensity",
    "settle", "span", "step", "tenant", "wire double", "withdrawn",
)  # fmt: skip
#: What is not prose: blocks of code, remarks, headings, names in code.
NOT_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|^#.*?$|`[^`\n]*`", re.S | re.M)
LINKED = re.compile(r"\[[^\]]*\]\([^)]*\)", re.S)


def first_uses(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Of these words in prose, each with where it stands in the text."""
    prose = NOT_PROSE.sub(lambda code: re.sub(r"\S", " ", code[0]), text)
    for word in OWN_WORDS:
        if use := re.search(r"\b" + word.replace(" ", r"\s+") + r"(s|d)?\b", prose, re.I):
            yield word, use


def is_linked(text: str, use: re.Match[str]) -> bool:
    return any(link.start() < use.start() < link.end() for link in LINKED.finditer(text))


def test_own_words_lead_to_the_glossary_where_a_page_first_has_them() -> None:
    pages = {page: page.read_text() for page in PAGES if page.name != "glossary.md"}
    no_offenders(
        f"{shown(page)}: {word}"
        for page, text in pages.items()
        for word, use in first_uses(text)
        if not is_linked(text, use)
    )


def test_a_word_that_is_not_explained_is_found() -> None:
    text = (
        "# Steps\n`step`\n```text\nspan\n```\na [dead letter](glossary.md#dead-letter), a wire\ndouble, a dead letter"
    )
    assert [(word, is_linked(text, use)) for word, use in first_uses(text)] == [
        ("dead letter", True),
        ("wire double", False),
    ]


def test_files_that_a_page_names_exist() -> None:
    file = re.compile(r"`((?:actors|protocol|providers|tests|docs|benchmarks|examples)/[\w/]+\.\w+)`")
    named = [each for page in PAGES for each in places(file, page)]
    assert len(named) > 20
    no_offenders(f"{where} names {found[1]}" for where, found in named if not (ROOT / found[1]).exists())


def test_the_architecture_page_names_every_file_of_actors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = [path.name for path in (ROOT / "actors").glob("*.py") if path.name != "__init__.py"]
    no_offenders(name for name in modules if f"`{name}`" not in page)


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


def running(text: str) -> str:
    """Without the blocks of code, each line where it was."""
    return re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)


def names_that_are_not_there(code: str) -> Iterator[str]:
    """Of what a page sets as code in its running text: attributes, keyword arguments and modules of callboard."""
    for owner, name in re.findall(r"(?<![\w./])(\w+)\.(\w+)", code):
        if owner in OWNERS and name != "py" and name not in members(OWNERS[owner]):
            yield f"{owner}.{name}"
    for called, arguments in re.findall(r"(?<![\w.])(@?\w+)\(([^()]*)", code):
        if called in CALLS:
            known = keywords(CALLS[called])
            yield from (f"{called}({name}=)" for name in re.findall(r"(\w+)=", arguments) if name not in known)
    for name in re.findall(r"(?<![\w./-])callboard\.(?:actors|protocol|providers)(?:\.\w+)*", code):
        if not is_there(name):
            yield name


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


def test_what_a_page_names_exists() -> None:
    codes = [each for page in PAGES for each in places(CODE, page, running(page.read_text()))]
    assert len(codes) > 1000
    no_offenders(f"{where} names {name}" for where, code in codes for name in names_that_are_not_there(code[1]))


def test_a_name_that_is_not_there_is_found() -> None:
    text = """
`runtime.ask` and `runtime.answer`, `Settings(model="x", modle="y")`, `@tool(risk="read", danger=1)`,
`callboard.protocol.model.Sampling`, `callboard.protocol.nothing`, `ask_sync("?", tools=[], model="x", tool=1)`.
```python
runtime.nothing()
```
"""
    found = [name for code in CODE.findall(running(text)) for name in names_that_are_not_there(code)]
    assert found == [
        "runtime.answer", "Settings(modle=)", "@tool(danger=)", "callboard.protocol.nothing", "ask_sync(tool=)"
    ]  # fmt: skip
