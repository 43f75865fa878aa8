"""Where paths lead, on real trees with links."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.policy.paths import Paths, follow
from callboard.protocol.ids import ToolName
from callboard.protocol.policy import AccessKind, Judgement, Location, Policy, Rule, Touch
from callboard.protocol.tools import Decision, Origin, Risk, ToolContract

READER = ToolContract(risk=Risk.READ, origin=Origin.OWNER)
WRITER = ToolContract(risk=Risk.WRITE, origin=Origin.OWNER)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """`inside` is the workspace; beside it is what is outside of it."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        for name in ("inside/a/b", "inside/secrets", "outside/c"):
            (base / name).mkdir(parents=True)
        for name in ("inside/x", "inside/a/y", "inside/.env", "inside/secrets/z", "outside/w", "outside/c/v"):
            (base / name).write_text("x")
        links = {
            "inside/out": "../outside",
            "inside/a/up": "../..",
            "inside/a/back": "../../inside",
            "inside/self": ".",
            "inside/loop": "loop",
            "inside/ping": "pong",
            "inside/pong": "ping",
            "inside/dangling": "../outside/none",
            "inside/a/none": "nowhere/x",
            "inside/key": ".env",
            "inside/etc": "/etc",
            "inside/proc": "/proc/self/cwd",
            "inside/chain": "a/back/out/c",
            "outside/in": "../inside/a",
        }
        for name, target in links.items():
            (base / name).symlink_to(target)
        yield base


def decision(tree: Path, path: str, kind: AccessKind = AccessKind.READ, policy: Policy | None = None) -> Judgement:
    contract = READER if kind is AccessKind.READ else WRITER
    touches = Paths(tree / "inside").touches(kind, path)
    return (policy or Policy()).judge(ToolName("file"), contract, touches)


#: A path and what happens to a tool that reads it, at every trust level.
READ = {
    "x": "allow",
    ".": "allow",
    "": "allow",
    "./x": "allow",
    "a/../x": "allow",
    "a//y": "allow",
    "a/y/": "allow",
    "no/such/file": "allow",
    "self/self/x": "allow",
    "a/back/x": "allow",
    "a/none": "allow",
    "out/in/y": "allow",
    "{tree}/inside/x": "allow",
    "{tree}/outside/../inside/x": "allow",
    "{tree}/outside/in/y": "allow",
    "..": "ask",
    "../outside/w": "ask",
    "a/../../outside/w": "ask",
    "no/../../outside/w": "ask",
    "out": "ask",
    "out/w": "ask",
    "out/none": "ask",
    "chain/v": "ask",
    "a/up": "ask",
    "a/up/outside/w": "ask",
    "out/../x": "ask",
    "a/back/../outside/w": "ask",
    "dangling": "ask",
    "etc/passwd": "ask",
    "/": "ask",
    "/etc/passwd": "ask",
    "/proc/self/root/etc/passwd": "ask",
    "/proc/self/cwd/x": "ask",
    "/proc/1/root{tree}/inside/x": "ask",
    "/dev/fd/3": "ask",
    "/dev/stdin": "ask",
    "proc/x": "ask",
    "loop": "ask",
    "ping/x": "ask",
    "x\0y": "ask",
    "~/x": "ask",
    "~": "ask",
    "{tree}/INSIDE/x": "ask",
    "{tree}/inside2": "ask",
    "{tree}/inside/../inside2": "ask",
    "a" * 300: "ask",
    ".env": "deny",
    "./a/../.env": "deny",
    ".ENV": "deny",
    "\uff0eenv": "deny",
    "key": "deny",
    ".env/": "deny",
    "a/back/.env": "deny",
    "{tree}/outside/in/../.env": "deny",
    ".git/config": "deny",
    "~/.ssh/id_rsa": "deny",
    "/root/.aws/credentials": "deny",
    "/home/x/.netrc": "deny",
}


@pytest.mark.parametrize(("path", "expected"), READ.items(), ids=[repr(path)[:40] for path in READ])
def test_a_path_that_is_read_is_judged_by_where_it_leads(tree: Path, path: str, expected: str) -> None:
    path = path.replace("{tree}", str(tree))
    for trust in ("careful", "balanced", "manual"):
        assert decision(tree, path, policy=Policy(trust=trust)).decision == expected


def test_what_is_written_or_deleted_is_never_allowed_by_the_table(tree: Path) -> None:
    allows_writing = Policy({Risk.WRITE: Decision.ALLOW})
    for path in ("x", "no/file", "out/w", ".env", ".callboardignore"):
        for kind in (AccessKind.WRITE, AccessKind.DELETE):
            assert decision(tree, path, kind).decision is not Decision.ALLOW
    assert decision(tree, "x", AccessKind.WRITE, allows_writing).decision is Decision.ALLOW
    assert decision(tree, "x", AccessKind.DELETE, allows_writing).decision is Decision.ASK
    assert decision(tree, ".callboardignore", AccessKind.WRITE, allows_writing).decision is Decision.DENY
    assert decision(tree, "out/w", AccessKind.WRITE, Policy(trust="careful")).decision is Decision.DENY


def test_rules_are_compared_with_where_a_path_leads(tree: Path) -> None:
    policy = Policy(
        {Risk.READ: Decision.ALLOW, Risk.WRITE: Decision.ASK},
        rules=(
            Rule("*", path="secrets/**", decision="deny"),
            Rule("file", path="a/*", decision="allow"),
        ),
    )
    expected = {
        "secrets": "deny",
        "secrets/z": "deny",
        "SECRETS/z": "deny",
        "secrets./z": "deny",
        "secrets/no/such": "deny",
        "a/back/secrets/z": "deny",
        "self/secrets/../secrets/z": "deny",
        "a/y": "allow",
        "a/new": "allow",
        "A/new": "ask",
        "a/b/new": "ask",
        "a/../x": "ask",
        "a/back": "ask",
        "out/in/y": "allow",
    }
    found = {path: str(decision(tree, path, AccessKind.WRITE, policy).decision) for path in expected}
    assert found == expected


NAMES = st.sampled_from(
    ["a", "b", "x", "y", "..", ".", "", "out", "up", "back", "self", "in", "c", "chain", "none", "dangling", "no"]
)


@given(st.lists(NAMES, max_size=8), st.booleans())
def test_a_path_is_followed_as_the_system_does_it(tree: Path, names: list[str], from_outside: bool) -> None:
    path = os.path.join(tree, "outside" if from_outside else "inside", *names)
    found = follow(path)
    assert found.unclear == ""
    assert found.place == os.path.realpath(path)


@given(st.lists(NAMES | st.sampled_from(["loop", "ping", "etc", "proc", "key"]), max_size=8))
def test_what_is_inside_by_the_resolver_can_be_opened_inside_only(tree: Path, names: list[str]) -> None:
    """By the kernel: it is asked where an opened file is."""
    path = os.path.join(*names) if names else ""
    touches: list[Touch] = list(Paths(tree / "inside").touches(AccessKind.READ, path))
    try:
        opened = os.open(tree / "inside" / path, os.O_PATH)
    except OSError:
        return
    try:
        place = os.readlink(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)
    is_inside = place == str(tree / "inside") or place.startswith(f"{tree}/inside/")
    if all(touch.place is Location.INSIDE for touch in touches):
        assert is_inside
    assert is_inside or any(touch.place is Location.OUTSIDE for touch in touches)


#: Places that an editor, an agent, a shell, a hook or CI runs when it reads them.
GUARDED = """
    .vscode/tasks.json .vscode/settings.json .vscode a/.vscode/launch.json .devcontainer/devcontainer.json
    .devcontainer.json .husky/pre-commit .husky/_/husky.sh .githooks/pre-push .github/workflows/ci.yml
    .github/workflows/new/x.yaml .github/actions/x/action.yml .gitlab-ci.yml
    a/.gitlab-ci.yml ci/test.gitlab-ci.yml
    .mcp.json .cursor/mcp.json .cursor/rules/x.mdc .claude/settings.json .claude/hooks/x.sh
    .idea/runConfigurations/x.xml
    .idea/workspace.xml .run/x.run.xml .pre-commit-config.yaml .circleci/config.yml Jenkinsfile ci/Jenkinsfile.release
    azure-pipelines.yml azure-pipelines-release.yml .travis.yml bitbucket-pipelines.yml .buildkite/pipeline.yml
    .bashrc .zshrc .profile a/.bash_aliases .config/fish/config.fish .tmux.conf .inputrc lefthook.yml .lintstagedrc.json
    .gitattributes .gitmodules x.code-workspace .exrc .vimrc .nvim.lua .dir-locals.el .gdbinit sitecustomize.py x.pth
    .gitpod.yml mise.toml .mise.toml .tool-versions .woodpecker.yml .drone.yml appveyor.yml .zed/tasks.json
    .continue/config.yaml .gemini/settings.json .codex/config.toml .windsurf/hooks.json opencode.json
"""
#: The same, as other file systems and careless writing would have them.
ALSO_GUARDED = """
    .VSCode/tasks.json .GITHUB/Workflows/x.yml JENKINSFILE ./a/../.vscode/x a//../.vscode//x .vscode./tasks.json
    .husky\u200b/pre-commit \uff0evscode/x .vscode::$INDEX_ALLOCATION/x {tree}/inside/.vscode/x a/back/.vscode/x
    out/in/.vscode/x .Claude/settings.json .gitlab-ci.YML
    self/self/.husky/x code/tasks.json code deep/hooked/pre-push
"""
UNGUARDED = """
    Makefile conftest.py pyproject.toml package.json setup.py a/y README.md .github/CODEOWNERS
    .github/ISSUE_TEMPLATE/x.md
    vscode/x src/claude/x.py docs/jenkins.md
    workflows/x.yml .gitignore .editorconfig Dockerfile tests/github/workflows/x
    .github/pull_request_template.md profile.py bashrc.md idea/x cursor.py azure.yml tox.ini CLAUDE.md
"""


@pytest.fixture(scope="module")
def linked(tree: Path) -> Path:
    """With links by which `code` is .vscode, and deep/hooked is deep/.husky."""
    root = tree / "inside"
    (root / "code").mkdir()
    (root / "deep" / "hooked").mkdir(parents=True)
    (root / ".vscode").symlink_to("code")
    (root / "deep" / ".husky").symlink_to("hooked")
    return tree


def guarded(tree: Path, path: str, kind: AccessKind) -> bool:
    return any(touch.guarded for touch in Paths(tree / "inside").touches(kind, path.replace("{tree}", str(tree))))


def test_places_that_are_run_when_they_are_read_are_guarded(linked: Path) -> None:
    for kind in (AccessKind.WRITE, AccessKind.DELETE):
        paths = [*GUARDED.split(), *ALSO_GUARDED.split()]
        assert [path for path in paths if not guarded(linked, path, kind)] == []
        assert [path for path in UNGUARDED.split() if guarded(linked, path, kind)] == []
    assert not guarded(linked, ".vscode/tasks.json", AccessKind.READ)


def test_no_table_allows_a_change_of_a_guarded_place(linked: Path) -> None:
    allows = Policy({Risk.WRITE: Decision.ALLOW, Risk.READ: Decision.ALLOW})
    assert decision(linked, "a/new", AccessKind.WRITE, allows).decision is Decision.ALLOW
    assert decision(linked, ".github/workflows/x.yml", AccessKind.WRITE, allows).decision is Decision.ASK
    assert decision(linked, ".github/workflows/x.yml", AccessKind.READ, allows).decision is Decision.ALLOW
    by_rule = Policy(rules=(Rule("*", path=".github/**", decision="allow"),))
    assert decision(linked, ".github/workflows/x.yml", AccessKind.WRITE, by_rule).decision is Decision.ALLOW
