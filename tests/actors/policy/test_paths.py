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
