"""What cannot be undone is never allowed by a table, only by a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.actors.policy.judge import CallJudge
from callboard.actors.policy.undo_table import why_not_undone
from callboard.actors.tools.decorator import tool
from callboard.protocol.content import json_text
from callboard.protocol.policy import Judgement, Policy, Rule
from callboard.protocol.tools import Decision, Risk

HERE = Path(__file__).parent
ALLOWS_ALL = Policy(dict.fromkeys(Risk, Decision.ALLOW))


@tool(risk="execute", accesses={"command": "command"})
def run_command(command: str) -> str:
    raise AssertionError("it is only judged")


def lines_of(name: str) -> list[str]:
    text = (HERE / name).read_text(encoding="utf-8")
    return [line.replace("␤", "\n") for line in text.splitlines() if line and not line.startswith("# ")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undone")
    for name in ("README.md", "a", "b", "file", "run.sh", "build.sh", "configure", "gradlew"):
        (root / name).write_text("x")
    for name in ("src", "sub", "scripts"):
        (root / name).mkdir()
    (root / "scripts" / "push.sh").write_text("x")
    (root / "mygit").symlink_to("/usr/bin/git")
    return root


def judged(line: str, workspace: Path, policy: Policy = ALLOWS_ALL) -> Judgement:
    return CallJudge(policy, workspace).judge(run_command.owned, json_text({"command": line}))


UNDONE = lines_of("undone.txt")


def test_no_table_allows_what_cannot_be_undone(workspace: Path) -> None:
    assert len(UNDONE) >= 900
    assert [line for line in UNDONE if judged(line, workspace).decision is Decision.ALLOW] == []


def test_a_table_allows_what_is_built_tested_and_looked_at(workspace: Path) -> None:
    lines = lines_of("deny_harmless.txt")
    assert {
        line: judged(line, workspace).rule for line in lines if judged(line, workspace).decision is not Decision.ALLOW
    } == {}


def test_a_rule_allows_it(workspace: Path) -> None:
    for line in ("cp a b", "git branch -M a", "tofu destroy", "curl -X DELETE https://x", "ln -sf a b"):
        policy = Policy(rules=(Rule("*", line, "allow"),))
        assert judged(line, workspace, policy).decision is Decision.ALLOW


def test_it_is_said_why(workspace: Path) -> None:
    assert judged("tofu destroy", workspace).rule == (
        "run_command runs programs (tofu: it cannot be undone); you are asked each time"
    )
    assert judged("timeout 5 tofu destroy", workspace).rule.endswith("it cannot be undone); you are asked each time")


@pytest.mark.parametrize(
    ("without", "with_it"),
    [
        ("git branch x", "git branch -M x"),
        ("git branch --list", "git branch -lD x"),
        ("git checkout main", "git checkout README.md"),
        ("git checkout -b x", "git checkout -B x"),
        ("git reset HEAD~1", "git reset --har HEAD~1"),
        ("git stash", "git stash drop"),
        ("git tag v1", "git tag -fam x v1"),
        ("git log", "git unheard-of"),
        ("git merge x", "git merge --abort"),
        ("curl https://x", "curl -sXPUT https://x"),
        ("curl -X GET https://x", "curl -X PATCH https://x"),
        ("curl -o - https://x", "curl -o x https://x"),
        ("curl -H 'X-Delete: d' https://x", "curl --dat x https://x"),
        ("wget -qO- https://x", "wget --metho=PUT https://x"),
        ("http https://x", "http https://x a=b"),
        ("gcc -o new a", "gcc -o README.md a"),
        ("pandoc a --output=new", "pandoc a --output=README.md"),
        ("ruff check .", "ruff check --fix ."),
        ("black --check .", "black ."),
        ("cargo fmt --check", "cargo fmt"),
        ("cargo build --release", "cargo publish"),
        ("docker run --rm x", "docker rm x"),
        ("docker build -t push .", "docker -D push x"),
        ("kubectl -n delete get pods", "kubectl -n get delete pods"),
        ("aws s3 ls", "aws s3 mb s3://x"),
        ("aws ec2 describe-instances", "aws ec2 start-instances"),
        ("gh pr view 1", "gh pr ready 1"),
        ("terraform plan", "terraform refresh"),
        ("pytest -k delete", "unheard-of -k delete"),
        ("make test", "make deploy"),
        ("npm run build", "npm run db:reset"),
        ("./gradlew test", "./gradlew publishToMavenLocal"),
        ("ln -s a new", "ln -snf a new"),
    ],
)
def test_the_word_that_makes_the_difference(workspace: Path, without: str, with_it: str) -> None:
    found = [judged(line, workspace).decision for line in (without, with_it)]
    assert found == [Decision.ALLOW, Decision.ASK]


def test_ordinary_words_are_programs_only_where_a_command_begins() -> None:
    def why(*words: str, is_first: bool) -> str:
        return why_not_undone(words, lambda name: False, is_first=is_first)

    assert why("init", "0", is_first=True)
    assert not why("init", "0", is_first=False)
    assert why("rm", "x", is_first=False)
