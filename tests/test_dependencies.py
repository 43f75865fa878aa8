"""docs/dependencies.md has one row for each requirement of setup.cfg; its script measures what is installed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

import dependency_sizes  # noqa: E402 - both folders are on the path from here on
from dependency_sizes import CORE, HEADER, NOT_MEASURED, brought_extras, measured_columns, requirements  # noqa: E402
from support.offenders import no_offenders  # noqa: E402

PAGE = (ROOT / "docs" / "dependencies.md").read_text()
SECTIONS = {found[1]: found[2] for found in re.finditer(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)}
COLUMNS = HEADER.splitlines()[0].count("|") - 1


def rows(extra: str) -> list[list[str]]:
    return [
        [each.strip() for each in line.strip("|").split(" | ")]
        for line in SECTIONS[extra].splitlines()
        if line.startswith("| `")
    ]


def key(requirement: Requirement) -> tuple[str, frozenset[str], str]:
    return requirement.name, frozenset(requirement.extras), str(requirement.specifier)


def test_each_extra_has_a_section_which_names_the_extras_that_it_brings() -> None:
    assert list(SECTIONS) == list(requirements())
    for extra, text in SECTIONS.items():
        brought = re.search(r" With ([^.]*)\.\n", text)
        assert sorted(re.findall(r"`([\w-]+)`", brought[1] if brought else "")) == brought_extras()[extra], extra


def test_each_requirement_has_one_row_with_its_range_and_there_are_no_others() -> None:
    of_extras = requirements()
    wanted = Counter((extra, key(each)) for extra in of_extras for each in of_extras[extra])
    on_page = Counter((extra, key(Requirement(row[0].strip("`")))) for extra in of_extras for row in rows(extra))
    no_offenders(f"no row of {extra}: {each}" for extra, each in (wanted - on_page).elements())
    no_offenders(f"no requirement of {extra}: {each}" for extra, each in (on_page - wanted).elements())


def test_each_row_says_why_and_has_all_columns() -> None:
    every = [(extra, row) for extra in requirements() for row in rows(extra)]
    no_offenders(
        f"{extra}: {row}" for extra, row in every if len(row) != COLUMNS or not all(row) or row[1] == NOT_MEASURED
    )


def test_what_is_measured_is_what_is_installed() -> None:
    place, stage, seen, wheel, size, pulled = measured_columns(Requirement("pykka"))
    found = distribution("pykka")
    assert (place, stage, seen) == ("github.com/jodal/pykka, Apache-2.0", "production/stable", found.version)
    assert pulled == "nothing"
    assert {wheel, size} == {"<0.1"}
    grammars = measured_columns(Requirement("semble-grammars"))
    # The wheels of release 0.1.2, which is the only one that may be installed, have 6.7 to 7.3 MB, by platform.
    assert grammars[2] == "0.1.2"
    assert 6.5 < float(grammars[3]) < 7.5
    assert grammars[5].startswith("1, ")  # tree-sitter


def test_what_an_extra_of_a_requirement_brings_counts() -> None:
    (without, with_it) = (dependency_sizes.pulled_in(Requirement(name)) for name in ("psycopg", "psycopg[binary]"))
    assert with_it.keys() - without.keys() == {"psycopg-binary"}


def test_what_is_not_installed_is_not_measured() -> None:
    assert measured_columns(Requirement("no-package-has-this-name")) == [NOT_MEASURED] * 6


def test_a_page_is_measured_again_and_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# Page\n\n## Others\n\n| `a` | b |\n\n## `{CORE}`\n\nAlways.\n\n{HEADER}| `pykka >=4, <5` | actors | old |\n"
        f"| `gone >=1` | nothing | old |\n\n## `empty`\n\nText.\n"
    )
    monkeypatch.setattr(dependency_sizes, "PAGE", page)
    monkeypatch.setattr(dependency_sizes, "requirements", lambda: {CORE: [Requirement("pykka >=4, <5")]})
    monkeypatch.setattr(sys, "argv", ["dependency_sizes.py", "--write"])
    dependency_sizes.main()
    version = distribution("pykka").version
    assert page.read_text() == (
        f"# Page\n\n## Others\n\n| `a` | b |\n\n## `{CORE}`\n\nAlways.\n\n{HEADER}| `pykka >=4, <5` | actors | "
        f"github.com/jodal/pykka, Apache-2.0 | production/stable | {version} | <0.1 | <0.1 | nothing |\n"
        f"\n## `empty`\n\nText.\n"
    )
