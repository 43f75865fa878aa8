"""Where secret files are, and how the templates of a pool share what one has found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.processes import secret_places
from callboard.actors.processes.secret_places import find, find_shared
from callboard.actors.secret_files import NO_RULES, SecretRules


@pytest.fixture
def shared() -> Iterator[int]:
    made = os.memfd_create("places")
    yield made
    os.close(made)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("src/.env", ".git/config", "lib/site-packages/x/key.pem", "own/key.pem", "notes.txt", "skip/key.pem"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".envrc").symlink_to(tmp_path / "notes.txt")
    return tmp_path


def test_secret_files_and_folders_are_found_and_packages_and_links_are_left(root: Path) -> None:
    found = find([str(root)], str(root), NO_RULES, frozenset({f"{root}/skip"}))
    assert sorted(found.files) == [f"{root}/own/key.pem", f"{root}/src/.env"]
    assert found.folders == [f"{root}/.git"]


def test_the_rules_of_the_owner_hold_and_a_declared_file_is_judged_by_its_name(root: Path) -> None:
    found = find([str(root), f"{root}/src/.env"], str(root), SecretRules(("notes.txt", "!own/*.pem")), frozenset())
    assert sorted(found.files) == [f"{root}/notes.txt", f"{root}/skip/key.pem", f"{root}/src/.env", f"{root}/src/.env"]


def test_what_a_walk_has_no_time_for_is_covered_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_places, "MAX_NAMES", 1)
    found = find([str(root)], str(root), NO_RULES, frozenset())
    assert {f"{root}/src", f"{root}/lib", f"{root}/own"} <= set(found.folders)


def test_what_was_found_is_shared_until_it_is_old(root: Path, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(secret_places.time, "monotonic", lambda: now[0])
    first = find_shared(shared, (str(root),), str(root), NO_RULES, frozenset())
    (root / "later.pem").touch()
    assert find_shared(shared, (str(root),), str(root), NO_RULES, frozenset()) == first
    assert find_shared(shared, (f"{root}/own",), str(root), NO_RULES, frozenset()).files == [f"{root}/own/key.pem"]
    now[0] += secret_places.FRESH_SECONDS + 1
    assert f"{root}/later.pem" in find_shared(shared, (str(root),), str(root), NO_RULES, frozenset()).files
