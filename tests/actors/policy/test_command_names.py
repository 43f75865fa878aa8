"""Deny means deny: by however many words a denied command is run, it is denied or asked about, never allowed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.policy.command_names import MAX_WORDS, meant, readings
from callboard.actors.policy.judge import CallJudge
from callboard.actors.tools.decorator import tool
from callboard.protocol.content import json_text
from callboard.protocol.policy import Judgement, Policy, Rule
from callboard.protocol.tools import Decision, Risk

HERE = Path(__file__).parent
ALLOW = dict.fromkeys((Risk.READ, Risk.WRITE, Risk.EXECUTE, Risk.NETWORK), Decision.ALLOW)
#: Three ways in which an owner lets programs run.
ALLOWING = {
    "by the table": (),
    "by a rule for every call": (Rule("run_command", decision="allow"),),
    "by a pattern": (Rule("run_command", "*", "allow"),),
}


@tool(risk="execute", accesses={"command": "command", "cwd": "read"})
def run_command(command: str, cwd: str = ".") -> str:
    raise AssertionError("it is only judged")


def lines_of(name: str) -> Iterator[tuple[str, str]]:
    """With the heading that each stands under."""
    heading = ""
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and line[1].isalpha():
            heading = line[1:-1]
        elif line and not line.startswith("# "):
            yield heading, line.replace("␤", "\n")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("deny")
    root = base / "workspace"
    for folder in ("sub", "src", "infra", "pkg", "scripts"):
        (root / folder).mkdir(parents=True)
    for name in (
        "README.md",
        "file",
        "a",
        "b",
        "x.py",
        "run.sh",
        "build.sh",
        "configure",
        "gradlew",
        "scripts/push.sh",
    ):
        (root / name).write_text("x")
    (base / "bin").mkdir()
    for name in ("git", "rm", "docker", "npm", "kubectl", "terraform", "curl"):
        (base / "bin" / name).write_text("")
        (root / f"my{name}").symlink_to(f"../bin/{name}")
    return root


def judged(line: str, workspace: Path, denied: str, how: str = "by a rule for every call") -> Judgement:
    policy = Policy(ALLOW, rules=(*ALLOWING[how], Rule("*", f"{denied}*", "deny")))
    return CallJudge(policy, workspace).judge(run_command.owned, json_text({"command": line}))


WAYS = tuple(lines_of("deny_ways.txt"))
HARMLESS = tuple(line for _, line in lines_of("deny_harmless.txt"))


def test_the_lists_are_long() -> None:
    assert len(WAYS) >= 900
    assert len({line for denied, line in WAYS if denied == "git push"}) >= 500
    assert len(HARMLESS) >= 200


@pytest.mark.parametrize("how", ALLOWING)
def test_no_way_to_run_what_is_denied_is_allowed(workspace: Path, how: str) -> None:
    allowed = []
    for denied, line in WAYS:
        line = line.replace("./tool", f"./my{denied.split()[0]}")
        if judged(line, workspace, denied, how).decision is Decision.ALLOW:
            allowed.append((denied, line))
    assert allowed == []


@pytest.mark.parametrize("how", ALLOWING)
def test_what_does_something_else_stays_allowed(workspace: Path, how: str) -> None:
    said = {line: judged(line, workspace, "git push", how) for line in HARMLESS}
    assert {line: found.rule for line, found in said.items() if found.decision is not Decision.ALLOW} == {}


#: Denied outright, so that nobody need be asked; and what may be it, which is asked about.
DENIED = """
    git -C . push
    git --no-pager -c a.b=c push
    git --unknown value push
    /usr/lib/git-core/git-push
    uv run git push
    hyperfine 'git push'
    prlimit --nofile=10 git push
    no_such_program --opt x git push
    sh -c 'git -C . push'
    ./mygit --no-pager push
    env ./mygit push
    eval "git 'push'"
    find . -exec git push {} +
    docker run alpine/git:2 push
    command git "pu"sh
"""
ASKED = """
    git -c alias.p=push p
    git p
    alias g=git
    echo 'git push' | sh
    bash -s < run.sh
    xargs git
    ./no-such-program push
    ln -s x run.sh; ./run.sh
    python3.12 -c 'import os'
    make -f - < file
    git config core.pager x
    git -c core.pager=x log
    git rebase -x make main
    gh no-such-command
    cargo no-such-command
"""


@pytest.mark.parametrize("line", [each.strip() for each in DENIED.strip().splitlines()])
def test_what_is_seen_to_be_denied_is_denied(workspace: Path, line: str) -> None:
    assert judged(line, workspace, "git push").decision is Decision.DENY


@pytest.mark.parametrize("line", [each.strip() for each in ASKED.strip().splitlines()])
def test_what_may_be_denied_is_asked_about(workspace: Path, line: str) -> None:
    assert judged(line, workspace, "git push").decision is Decision.ASK


@pytest.mark.parametrize(
    ("denied", "lines"),
    [
        ("rm -rf", ["rm -fr x", "rm -r -f x", "rm --force --recursive x", "rm x -Rf", "rm -v -rf x"]),
        ("docker push", ["docker image push x", "docker -H y push x", "docker build --push .", "docker --x y push z"]),
        ("npm publish", ["npm publ", "npm --tag x pub", "npm -w x --silent publish"]),
        ("terraform destroy", ["terraform apply -destroy", "terraform -chdir=x apply -auto-approve -destroy"]),
        ("kubectl delete pod", ["kubectl delete -n x pod y", "kubectl -n x delete --force pod y"]),
        ("gh pr merge", ["gh -R a/b pr merge 1", "gh pr -R a/b merge 1", "gh pr --repo=a/b merge 1"]),
    ],
)
def test_other_words_for_the_same_are_denied(workspace: Path, denied: str, lines: list[str]) -> None:
    assert {line: judged(line, workspace, denied).decision for line in lines} == dict.fromkeys(lines, Decision.DENY)


def test_a_value_of_an_option_that_is_known_is_no_subcommand(workspace: Path) -> None:
    for line in ("git -C push status", "git --git-dir push log", "kubectl -n push get pods"):
        assert judged(line, workspace, "git push").decision is Decision.ALLOW
    assert judged("kubectl -n delete get pods", workspace, "kubectl delete").decision is Decision.ALLOW
    assert judged("docker --context push ps", workspace, "docker push").decision is Decision.ALLOW


def test_rules_that_allow_see_only_what_is_written(workspace: Path) -> None:
    judge = CallJudge(Policy(rules=(Rule("*", "npm test*", "allow"),)), workspace)
    for line in ("npm --silent test", "env npm test", "./mynpm test", "sh -c 'npm test'", "npm -w x test"):
        assert judge.judge(run_command.owned, json_text({"command": line})).decision is Decision.ASK


def test_readings_leave_out_options_with_and_without_a_value() -> None:
    assert set(readings(("tool", "-x", "a", "b", "-y", "c"))) == {
        ("tool", "-x", "a", "b", "-y", "c"),
        ("tool", "a", "b", "-y", "c"),
        ("tool", "b", "-y", "c"),
        ("tool", "a", "b", "c"),
        ("tool", "a", "b"),
        ("tool", "b", "c"),
        ("tool", "b"),
    }
    assert ("git", "push") in set(readings(("git", "-C", "x", "push")))
    assert ("git", "x", "push") not in set(readings(("git", "-C", "x", "push")))


def test_a_bound_that_is_reached_is_unclear_and_reached_soon() -> None:
    many = [f"x{number}" for number in range(MAX_WORDS)]
    started = time.process_time()
    assert meant(["tool", *many, "git", "push"]).unclear
    assert meant(["tool", *(word for each in many for word in (f"-{each}", each))]).unclear
    assert meant(["tool", *(f"{each} y" for each in many)]).unclear
    assert meant(["rm", "-abcdefghijklmnop", *many]).unclear
    assert meant(["eval"] * 2_000).unclear
    assert time.process_time() - started < 20
    assert not meant(["git", "add", *many, *many]).unclear  # its words are data


WRAPPING = """
    env; env A=b; sudo -u x; nohup; timeout 5; nice -n 3; uv run; poetry run; setsid; stdbuf -oL; strace -f; xvfb-run -a
    ; unheard-of; unheard-of --opt value; unheard-of --flag; npx; bundle exec; docker run x; ssh host; command; exec
    ; time; busybox; flock x; prlimit --nofile=1; chroot /; hyperfine --warmup 3; direnv exec .; xargs -n1; find . -exec
"""
WRAPPERS = st.sampled_from([each.strip() for each in WRAPPING.split(";")])
OPTIONS = {
    "git push": ["-C .", "--no-pager", "-c a.b=c", "--git-dir=x", "--work-tree x", "--unheard-of", "-P", "--new value"],
    "docker push": ["-H x", "--context y", "--debug", "-l info", "--unheard-of z"],
    "kubectl delete": ["-n x", "--context=y", "--kubeconfig z", "-v 3", "--unheard-of"],
    "npm publish": ["--registry x", "--silent", "-w y", "--prefix=z", "--unheard-of a"],
}
LINES = st.sampled_from(["sh -c {}", "bash -ec {}", "eval {}", "su -c {}", "watch {}", "ssh host {}", "unheard-of {}"])


@st.composite
def denied_lines(draw: st.DrawFn) -> tuple[str, str]:
    """What is denied, and a line that runs it: with options, quotes, wrappers, shells and other commands beside it."""
    denied = draw(st.sampled_from(sorted(OPTIONS)))
    program, subcommand = denied.split()
    given = draw(st.lists(st.sampled_from(OPTIONS[denied]), max_size=3))
    quoted = draw(st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "''{}", '{}""']))
    line = " ".join([draw(st.sampled_from([program, f"/usr/bin/{program}", f"./my{program}"])), *given, subcommand])
    line = line if given else quoted.format(line.split()[0]) + f" {subcommand}"
    for _ in range(draw(st.integers(0, 2))):
        line = f"{draw(WRAPPERS)} {line}"
    if draw(st.booleans()):
        line = draw(LINES).format(shlex.quote(line))
    return denied, draw(st.sampled_from(["{}", "ls; {}", "{} && ls", "ls | {}", "({})", "! {}"])).format(line)


@given(denied_lines())
def test_no_line_that_is_put_together_of_such_ways_is_allowed(workspace: Path, made: tuple[str, str]) -> None:
    denied, line = made
    for how in ALLOWING:
        assert judged(line, workspace, denied, how).decision is not Decision.ALLOW, line
