"""Annotations are read in one place, which makes none that its author keeps for type checkers."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef

import pytest
from support.imports import parsed

from callboard.actors.tools import tool
from callboard.actors.tools.invoke import Invoker
from callboard.actors.tools.shipping import unpack
from callboard.protocol.annotation_reading import annotations_of, forward_name, settle, signature_of
from callboard.protocol.errors import UsageError
from tests.support.offenders import no_offenders

if TYPE_CHECKING:
    from somewhere import Missing  # type: ignore[import-not-found]

ROOT = Path(__file__).parents[2]
#: Where annotations are read, and where those of classes of ours are, which are texts.
READERS = {
    "protocol/annotation_reading.py": "the place",
    "actors/requests/asking.py": "the names of our own options",
    "actors/requests/direct_calls.py": "the names of our own options",
    "actors/tools/functions.py": "gives a wrapper those of what it wraps",
    "actors/tools/decorator.py": "gives a wrapper those of what it wraps",
}


def product_files() -> Iterator[Path]:
    for room in ("actors", "protocol", "providers"):
        yield from (ROOT / room).rglob("*.py")


def reads_annotations(file: Path) -> list[str]:
    tree = parsed(file)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.attr}"
        for node in found
        if node.attr == "__annotations__"
        or (node.attr in ("signature", "get_annotations") and getattr(node.value, "id", "") == "inspect")
    ]


def test_no_other_file_reads_annotations() -> None:
    no_offenders([
        each
        for file in product_files()
        if str(file.relative_to(ROOT)) not in READERS
        for each in reads_annotations(file)
    ])  # fmt: skip


def of_text(a: Missing, b: list[Missing] | None = None) -> Missing:
    return a


class Below:
    first: int


class Row(Below):
    n: Missing
    own: int


def test_what_only_type_checkers_know_is_a_name() -> None:
    assert {name: forward_name(each) for name, each in annotations_of(of_text).items()} == {
        "a": "Missing", "b": "list[Missing] | None", "return": "Missing",
    }  # fmt: skip
    assert list(signature_of(of_text).parameters) == ["a", "b"]
    assert list(annotations_of(Row)) == ["n", "own"], "not those of its bases"
    assert (forward_name(ForwardRef("Missing")), forward_name(int), forward_name(3)) == ("Missing", "", "")


@pytest.mark.parametrize("thing", [3, "text", None, functools.partial(of_text, 1), print, int, ModuleType("m")])
def test_what_has_none_has_none(thing: object) -> None:
    assert annotations_of(thing) == {}


def test_a_tool_that_needs_such_a_name_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"the type of parameter 'a' \(Missing\) cannot be resolved: .* not under"):
        tool(of_text)


def test_settled_annotations_are_what_they_were() -> None:
    before = annotations_of(Row), annotations_of(of_text)
    settle(Row)
    settle(of_text)
    settle(int)
    assert (annotations_of(Row), annotations_of(of_text)) == before


#: Without `from __future__ import annotations`: from 3.14 on these are made when they are asked for.
LATE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from pydantic import BaseModel

if TYPE_CHECKING:
    from somewhere import Missing

@dataclass
class Row:
    later: Later
    text: "Later | None" = None

class Model(BaseModel):
    rows: list[Row]

class Typed(TypedDict):
    a: int
    b: NotRequired[Later]

class Tuple(NamedTuple):
    later: Later

class Plain:
    x: Missing

    def get(self, x: Missing) -> Missing:
        return x

@dataclass
class Later:
    a: int

def helper(x: Missing, y: list[Missing]) -> Missing:
    return Plain().get(x)

def look(row: Row, model: Model | None, typed: Typed, pair: Tuple) -> list[Later]:
    return helper([row.later, *pair, typed["b"]], [])

def unknown(n: int, x: list[Missing]) -> str:
    return ""
"""


@pytest.fixture
def late() -> Iterator[ModuleType]:
    module = ModuleType("annotated_late")
    sys.modules[module.__name__] = module
    exec(compile(LATE, "annotated_late.py", "exec", dont_inherit=True), vars(module))
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="such a module cannot be loaded before 3.14")
def test_what_is_annotated_late_is_read_and_shipped(late: ModuleType) -> None:
    assert {name: forward_name(each) for name, each in annotations_of(late.Plain).items()} == {"x": "Missing"}
    assert list(signature_of(late.helper).parameters) == ["x", "y"]
    with pytest.raises(UsageError, match=r"cannot be resolved: name 'Missing' is not defined"):
        tool(late.unknown)
    packed = tool(late.look).packed
    del sys.modules[late.__name__]
    name, function, signature = unpack(packed)
    arguments: Any = {
        "row": {"later": {"a": 1}}, "model": {"rows": []}, "typed": {"a": 1, "b": {"a": 3}}, "pair": [{"a": 2}],
    }  # fmt: skip
    given = signature.arguments.validate_python(arguments)
    assert Invoker(name, function, signature).result_of(function(**given)) == '[{"a":1},{"a":2},{"a":3}]'
