"""Lines that were written without a look at the tables: what of them runs unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.actors.policy.judge import CallJudge
from callboard.actors.tools import Tool
from callboard.actors.tools.decorator import tool
from callboard.protocol.content import json_text
from callboard.protocol.policy import Judgement, Policy, Trust
from callboard.protocol.tools import Decision, Hold

HERE = Path(__file__).parent
#: Of the harmless ones.
MOST_ASKED = 0.1


def lines_of(name: str) -> list[str]:
    """In them, ␤ is a line end."""
    return [line.replace("␤", "\n") for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()]


@tool(risk="execute", accesses={"command": "command"})
def run_line(command: str) -> str:
    raise AssertionError("it is only judged")


@tool(risk="execute", accesses={"command": "command"}, can_be_held=False)
def run_elsewhere(command: str) -> str:
    raise AssertionError("it is only judged")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lists") / "workspace"
    return furnish(root)


def furnish(root: Path) -> Path:
    """The files that the lists are about."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root.parent / "outside.txt").write_text("outside\n", encoding="utf-8")
    return root


FILES = {
    "README.md": "# Read me\n\nTODO\n",
    "src/app.py": "import os\n\n\ndef main():\n    return 1  # TODO\n",
    "src/util.py": "class Util:\n    pass\n",
    "tests/test_app.py": "import app\n",
    "docs/guide.md": "A guide.\n",
    "a.txt": "one\ntwo\n",
    "b.txt": "one\nthree\n",
    "data.csv": "a,1\nb,2\n",
    "data.json": '[{"a": 2}]\n',
    "package.json": '{"name": "x", "version": "1", "scripts": {"test": "true"}, "dependencies": {}}\n',
    "pyproject.toml": '[project]\nversion = "1"\n',
    ".env": "KEY=secret\n",
}


def judged(line: str, workspace: Path, what: Tool = run_line.owned, trust: Trust = Trust.BALANCED) -> Judgement:
    return CallJudge(Policy(trust=trust), workspace).judge(what, json_text({"command": line}))


def test_the_lists_are_long_and_say_nothing_twice() -> None:
    for name, least in (("dangerous", 500), ("harmless", 250)):
        lines = lines_of(name)
        assert len(lines) == len(set(lines)) >= least


@pytest.mark.parametrize("trust", Trust)
def test_no_dangerous_line_runs_unasked(workspace: Path, trust: Trust) -> None:
    for what in (run_line.owned, run_elsewhere.owned):
        lines = lines_of("dangerous")
        assert [line for line in lines if judged(line, workspace, what, trust).decision is Decision.ALLOW] == []


def test_few_reading_lines_are_asked_about(workspace: Path) -> None:
    lines = lines_of("harmless")
    asked = [line for line in lines if judged(line, workspace).decision is not Decision.ALLOW]
    assert len(asked) <= MOST_ASKED * len(lines), asked


def test_what_runs_unasked_is_held_and_what_must_be_is_asked_about_where_it_cannot_be(workspace: Path) -> None:
    for line in lines_of("harmless"):
        found = judged(line, workspace)
        if found.decision is not Decision.ALLOW:
            continue
        assert found.hold is not Hold.NONE, line
        elsewhere = judged(line, workspace, run_elsewhere.owned)
        assert elsewhere.hold is Hold.NONE
        assert found.hold is Hold.READING or elsewhere.decision is not Decision.ALLOW, line
