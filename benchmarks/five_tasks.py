"""Five small tasks (ask, tool, structured, stream, memory), each as the shortest program that a library's own
documentation would write: callboard beside pydantic-ai, openai-agents and llm.

    pip install -e '.[dev,runtimes]'
    python benchmarks/five_tasks.py                          # run all of them and print how long they are
    python benchmarks/five_tasks.py callboard                # only these libraries
    python benchmarks/five_tasks.py --page docs/five_tasks.md    # write the page, without running anything

Each program in benchmarks/tasks/ runs in a process of its own against the wire double, which is where its environment
says that OpenAI is. It is right if it ends well, prints what the model said, and has sent what the task needs: the
tool's result, the fields of the answer, a request for a stream, the earlier messages.

The rule for length: lines of the program as `ruff format` writes it at 120 columns, without blank lines, comments and
imports, all others counted. An object that is used once is made where it is used, where that fits on the line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from callboard.actors.testing.wire_double import Answer, Api, Asked, Call, Turn, WireDouble

TASKS = Path(__file__).with_name("tasks")
#: At ruff's default of 88 some of the others' programs would have to break lines.
WIDTH = 120
DEADLINE_SECONDS = 60.0
_BLOCK = re.compile(r"(<!-- generated: tasks -->\n).*(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Library:
    """One of those compared, and the folder of its programs."""

    name: str
    distribution: str
    folder: Path
    structured: Answer = Turn('{"city": "Oslo", "millimetres": 12}')
    """How the model gives a structured answer where this library asks for it in its usual way."""

    def program(self, task: str) -> Path:
        return self.folder / f"{task}.py"


LIBRARIES = {
    library.name: library
    for library in (
        Library("callboard", "callboard", TASKS / "callboard"),
        Library(
            "pydantic-ai",
            "pydantic-ai-slim",
            TASKS / "pydantic_ai",
            Turn(calls=(Call("final_result", {"city": "Oslo", "millimetres": 12}),)),
        ),
        Library("openai-agents", "openai-agents", TASKS / "openai_agents"),
        Library("llm", "llm", TASKS / "llm"),
    )
}


@dataclass(frozen=True)
class Task:
    """What a program has to do."""

    name: str
    meaning: str
    turns: tuple[Answer, ...]
    prints: str
    sends: tuple[str, ...]
    """In the JSON of the last request."""


WEATHER = Call("weather", {"city": "Oslo"})
STRUCTURED = "structured"
ALL_TASKS = {
    task.name: task
    for task in (
        Task("ask", "Ask, and print the answer.", (Turn("In Oslo."),), "In Oslo.\n", ("Where is it wet?",)),
        Task(
            "tool",
            "Let the model call a function.",
            (Turn(calls=(WEATHER,)), Turn("It rains in Oslo.")),
            "It rains in Oslo.\n",
            ("Is it wet in Oslo?", "12 mm of rain in Oslo", "The weather in a city."),
        ),
        Task(
            STRUCTURED,
            "Get an object of a class of your own.",
            (),
            "city='Oslo' millimetres=12\n",
            ("Where is it wet?", "city", "millimetres"),
        ),
        Task(
            "stream",
            "Print the answer while it comes.",
            (Turn("In Oslo and in Bergen."),),
            "In Oslo and in Bergen.",
            ("Where is it wet?", '"stream": true'),
        ),
        Task(
            "memory",
            "Ask a second question that needs the first.",
            (Turn("Hello, Ada."), Turn("You are Ada.")),
            "Hello, Ada.\nYou are Ada.\n",
            ("I am Ada.", "Hello, Ada.", "Who am I?"),
        ),
    )
}


def what_is_wrong(double: WireDouble, library: Library, task: Task, python: str = sys.executable) -> str:
    """Run one program and say in one sentence what it does not do; "" where it does all."""
    double.reset()
    double.play(task.turns or (library.structured,))
    with tempfile.TemporaryDirectory() as home:
        ran = subprocess.run(
            [python, library.program(task.name)],
            env={**environment(double.base_url(Api.RESPONSES)), "HOME": home},
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
    if ran.returncode != 0:
        return f"it ended with status {ran.returncode}: {ran.stderr.strip()[-2000:]}"
    if ran.stdout != task.prints:
        return f"it printed {ran.stdout!r}, not {task.prints!r}"
    return "; ".join(_not_sent(double.requests(), task))


def _not_sent(requests: Sequence[Asked], task: Task) -> Iterator[str]:
    expected = len(task.turns) or 1
    if len(requests) != expected:
        yield f"it sent {len(requests)} requests, not {expected}"
    elif requests:
        body = json.dumps(requests[-1].body)
        yield from (f"its last request has no {text!r}" for text in task.sends if text not in body)


def environment(base_url: str) -> dict[str, str]:
    """What a program finds: the OpenAI API is at `base_url`. The programs themselves say nothing of it."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return {
        **kept,
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "sk-none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "CALLBOARD_MODEL": "openai/gpt-6-luna",
        "CALLBOARD_BASE_URL": base_url,
    }


# -- how long they are


def length(source: str, width: int = WIDTH) -> int:
    """Lines of a program by the rule above."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={width}", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1 for number, line in lines if number not in imports and line.strip() and not line.strip().startswith("#")
    )


def lengths() -> Mapping[str, Mapping[str, int]]:
    """Of each task, by library."""
    return {
        task: {name: length(library.program(task).read_text()) for name, library in LIBRARIES.items()}
        for task in ALL_TASKS
    }


def table() -> str:
    """The lengths."""
    rows = [f"| task | {' | '.join(LIBRARIES)} |", "|---" * (len(LIBRARIES) + 1) + "|"]
    rows += [f"| {task} | {' | '.join(str(row[name]) for name in LIBRARIES)} |" for task, row in lengths().items()]
    return "\n".join(rows)


def page() -> str:
    """What docs/five_tasks.md shows between its markers: the lengths, and the programs."""
    parts = [f"{table()}\n"]
    for task in ALL_TASKS.values():
        parts.append(f"## {task.name.capitalize()}\n\n{task.meaning}\n")
        for library in LIBRARIES.values():
            source = library.program(task.name).read_text()
            remark = "<!-- not run: tests/test_five_tasks.py runs it -->"
            parts.append(f"{library.name}:\n\n{remark}\n```python\n{source}```\n")
    return "\n".join(parts)


def written(text: str) -> str:
    """The page with its generated part as it is now."""
    return _BLOCK.sub(lambda found: found[1] + page() + found[2], text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Five tasks, and how long the programs for them are.")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}; all of them")
    parser.add_argument("--page", type=Path, help="write the generated part of this page, and run nothing")
    chosen = parser.parse_args()
    if chosen.page:
        chosen.page.write_text(written(chosen.page.read_text()))
        return
    if unknown := set(chosen.libraries) - set(LIBRARIES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(LIBRARIES)}")
    failed = False
    with WireDouble() as double:
        for name in chosen.libraries or LIBRARIES:
            print(f"{name} {version(LIBRARIES[name].distribution)}")
            for task in ALL_TASKS.values():
                wrong = what_is_wrong(double, LIBRARIES[name], task)
                failed = failed or bool(wrong)
                print(f"  {task.name}: {wrong or 'right'}")
    print(f"\n{table()}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
