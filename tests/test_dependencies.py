"""docs/dependencies.md says why each requirement of setup.cfg is there; its script measures what is installed."""

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
from dependency_sizes import (  # noqa: E402
    CORE,
    NOT_MEASURED,
    SIZES_HEADER,
    brought_extras,
    measured_columns,
    name_of,
    reasons,
    requirements,
)
from support.offenders import no_offenders  # noqa: E402

PAGE = (ROOT / "docs" / "dependencies.md").read_text()


def test_each_extra_has_a_row_which_names_the_extras_that_it_brings() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|", PAGE.partition(SIZES_HEADER)[2], re.M)
    assert {extra: re.findall(r"`([\w-]+)`", brings) for extra, brings in rows} == brought_extras()


def test_each_requirement_has_one_reason_and_there_are_no_others() -> None:
    wanted = Counter((extra, name_of(each)) for extra, found in requirements().items() for each in found)
    listed = re.sub(r"\A.*?^## Why each is there$", "", PAGE, flags=re.M | re.S)
    on_page: Counter[tuple[str, str]] = Counter()
    for section in re.findall(r"^### `.*?(?=^### |\Z)", listed, re.M | re.S):
        extra = section.partition("`")[2].partition("`")[0]
        names = (
            name for item in re.findall(r"^- ([^:]*): .", section, re.M) for name in re.findall(r"`([^`]+)`", item)
        )
        on_page.update((extra, name) for name in names)
    no_offenders(f"no reason of {extra}: {each}" for extra, each in (wanted - on_page).elements())
    no_offenders(f"no requirement of {extra}: {each}" for extra, each in (on_page - wanted).elements())
    assert reasons(PAGE).keys() == wanted.keys()
    assert all(reasons(PAGE).values())


def test_of_an_extra_counts_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that its packages need and that its extras bring, but for what the core has."""
    few = {extra: requirements()[extra] for extra in (CORE, "index", "grammars", "telemetry")}
    monkeypatch.setattr(dependency_sizes, "requirements", lambda: few)
    rows = dict(re.findall(r"^\| `([\w-]+)` \| [^|]* \| (.*) \|$", dependency_sizes.sizes(), re.M))
    of_index, of_grammars = (rows[extra].split(" | ") for extra in ("index", "grammars"))
    assert int(of_grammars[0]) == len(few["grammars"]) + int(of_index[0])
    assert float(of_grammars[1]) > float(of_index[1]) > 40
    assert of_grammars[2].startswith("tantivy")
    assert rows["telemetry"].startswith("2 | ")


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
    before, after = "# Page\n\n<!-- written: sizes -->\n", "<!-- end -->\n\n## Why\n\n### `core`\n\n- `pykka`: actors\n"
    page.write_text(f"{before}old\n{after}")
    monkeypatch.setattr(dependency_sizes, "PAGE", page)
    monkeypatch.setattr(dependency_sizes, "requirements", lambda: {CORE: [Requirement("pykka >=4, <5")]})
    monkeypatch.setattr(sys, "argv", ["dependency_sizes.py", "--write"])
    dependency_sizes.main()
    assert page.read_text() == f"{before}{SIZES_HEADER}| `core` | - | 1 | <0.1 | - |\n{after}"


def test_all_that_is_known_of_a_package_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dependency_sizes, "requirements", lambda: {CORE: [Requirement("pykka >=4, <5")]})
    monkeypatch.setattr(sys, "argv", ["dependency_sizes.py"])
    dependency_sizes.main()
    version = distribution("pykka").version
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == (
        f"| `pykka >=4, <5` | {reasons(PAGE)[CORE, 'pykka']} | github.com/jodal/pykka, Apache-2.0 | "
        f"production/stable | {version} | <0.1 | <0.1 | nothing |"
    )
