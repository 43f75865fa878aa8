"""The tables of the chaos suite: what is in them, and that the page shows them as they are."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from support.imports import SOURCES, module_of, parsed

from callboard.actors.kernel import Actor
from callboard.actors.testing import chaos
from callboard.actors.testing.__main__ import render
from callboard.actors.testing.chaos.crashing import targets
from callboard.actors.testing.chaos.hosts import HOSTS
from callboard.actors.testing.chaos.infrastructure import HARMS
from callboard.actors.testing.chaos.suite import RUNNERS
from callboard.actors.testing.chaos.table import WAYS, contained_table
from callboard.actors.testing.ways.answers import POISONS, WIRE_FAULTS
from callboard.actors.testing.ways.case import NOT_CONTAINED, at, known
from callboard.actors.testing.ways.following import CHANGES
from callboard.protocol.errors import UsageError

PAGE = Path(__file__).resolve().parents[4] / "docs" / "supervision.md"
CASES = chaos.all_cases()


def test_there_are_at_least_150_cases_and_no_two_are_called_the_same() -> None:
    tools_and_hosts = [case for case in CASES if case.group is not chaos.Group.ACTOR]
    assert len(tools_and_hosts) >= 150
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []


def test_every_group_and_every_level_has_cases_and_a_runner() -> None:
    assert {case.group for case in CASES} == set(chaos.Group) == set(RUNNERS)
    assert {case.level for case in CASES} == set(chaos.Level)


def test_no_case_is_made_of_what_is_not_contained() -> None:
    assert [case.name for case in CASES if case.expected == NOT_CONTAINED or not case.expected] == []


def actors_in_the_source() -> set[str]:
    """The classes of the product that are actors, read from the files: what is imported makes no difference."""
    bases = {
        f"{module_of(path)}.{node.name}": {_name_of(base) for base in node.bases}
        for path in SOURCES
        if "testing" not in path.parts
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    }
    names = {"Actor"}
    while more := {each.rpartition(".")[2] for each, given in bases.items() if given & names} - names:
        names |= more
    return {each for each, given in bases.items() if given & names}


def _name_of(base: ast.expr) -> str:
    """`X` of X, X[...] and module.X."""
    if isinstance(base, ast.Subscript):
        return _name_of(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def test_every_actor_in_the_source_is_crashed_but_the_supervisors() -> None:
    crashed = {f"{each.actor.__module__}.{each.actor.__qualname__}" for each in targets()}
    assert crashed == actors_in_the_source() - {"callboard.actors.kernel.supervisor.Supervisor"}
    assert "callboard.actors.edits.editor.Editor" in crashed


def test_each_actor_that_states_its_messages_is_crashed_on_all_of_them() -> None:
    crashed = {(target.actor.__name__, target.message) for target in targets()}
    assert len({name for name, _ in crashed}) >= 4
    for target in targets():
        assert issubclass(target.actor, Actor)
        assert {(target.actor.__name__, message) for message in target.actor.messages()} <= crashed
    real = [case for case in CASES if case.group is chaos.Group.ACTOR and case.name.endswith("/real")]
    assert len(real) == len(targets()) * 3  # once to three times in a row
    simulated = {case.name.split("/")[1] for case in CASES if case.name.endswith("/simulated")}
    assert {"ToolDispatcher", "LlmManager", "RequestSession", "Telemetry"} <= simulated


def test_the_page_shows_the_tables_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- written: contained -->" in page
    assert render(page) == page, "run: python -m callboard.actors.testing docs docs/supervision.md"


def test_ways_of_a_kind_that_are_contained_alike_are_one_row_of_the_page() -> None:
    rows = [line.strip("| ").split(" | ") for line in contained_table().partition("\n\n")[0].splitlines()[2:]]
    found = [
        (re.split(r" \(\d+\)|:", what)[0], *("" if end not in ("-", NOT_CONTAINED[0]) else end for end in ends))
        for what, *ends in rows
    ]
    assert len(found) == len(set(found))
    assert len(found) > len({kind for kind, *_ in found})  # kinds of which some are contained elsewhere than others


def test_no_case_is_missing_in_the_rows_and_each_way_to_end_is_in_them() -> None:
    table = contained_table()
    counts = [int(count) for count in re.findall(r"^\| [^|:]+? \((\d+)\): ", table, re.M)]
    alone = [line for line in table.splitlines() if re.match(r"\| [^|(]+?: ", line)]
    ways = sum(map(len, WAYS.values())) + len(CHANGES) + len(POISONS) + len(WIRE_FAULTS) + len(HOSTS) + len(HARMS)
    assert sum(counts) + len(alone) == ways
    words = {word for case in CASES for word in case.expected} - {"ok"}
    assert {word for word in words if f"`{word}`" not in table} == set()


def test_an_unknown_word_is_no_expectation() -> None:
    with pytest.raises(ValueError, match="'chrashed' is none of the FailureCodes"):
        known("ok chrashed")


def test_what_is_left_out_is_no_case_and_a_dash_is_not_contained() -> None:
    assert at(process="ok", task="-") == {chaos.Level.PROCESS: ("ok",), chaos.Level.TASK: NOT_CONTAINED}


def test_cases_are_chosen_by_patterns() -> None:
    assert [case.name for case in chaos.chosen(["hang/gil/*"])] == ["hang/gil/process"]
    assert {case.level for case in chaos.chosen(["*/task"])} == {chaos.Level.TASK}
    assert chaos.chosen([]) == CASES


def test_a_pattern_without_a_case_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no case is called 'dye/\*'; see"):
        chaos.chosen(["die/*", "dye/*"])
