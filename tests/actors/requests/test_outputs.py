"""Types of answers: their schemas, what is refused, and what becomes of a model's text."""

from __future__ import annotations

import datetime
import json
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from callboard.actors.requests.outputs import MisfitError, Output, OutputType, output_type
from callboard.protocol.errors import UsageError
from callboard.protocol.json_answers import MAX_OPENINGS
from callboard.protocol.limits import MAX_MISFIT_CHARS, OUTPUT_TRIES
from callboard.protocol.output import OutputMode

Item = TypeVar("Item")


class Place(BaseModel):
    """A place on a map."""

    name: str
    people: Annotated[int, Field(ge=0)] = 0


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    when: datetime.date
    price: Decimal


@dataclass
class Trip:
    days: int
    places: list[Place]


class Older(typing.TypedDict):
    """As most programs write it."""

    a: int
    b: NotRequired[str]


class Newer(typing_extensions.TypedDict):
    a: int
    b: typing_extensions.NotRequired[str]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    value: int = 0
    inner: list[Node] = []


class Page(BaseModel, Generic[Item]):
    items: list[Item]


class Checking(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "nowhere":
            raise ValueError("no such place")
        if name == "boom":
            raise KeyError("boom")
        if name == "exit":
            raise SystemExit(3)
        return name


class Foreign:
    """Nothing that JSON can carry."""


@dataclass
class Holds:
    a: int
    f: Foreign


class Within(typing_extensions.TypedDict):
    q: list[Holds]


class Calls(BaseModel):
    g: Callable[[int], int]


@dataclass
class Later:
    a: Nowhere  # type: ignore[name-defined] # noqa: F821


def known(kind: Any) -> OutputType[Any]:
    found = output_type(kind)
    assert found is not None
    return found


#: Each type: an answer that fits, as JSON, its object, and an answer that does not, with the place that is told.
ANSWERS: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "model": (Place, {"name": "Oslo"}, Place(name="Oslo"), {"people": 1}, "name: Field required"),
    "bound": (Place, {"name": "O", "people": 2}, Place(name="O", people=2), {"name": "O", "people": -1}, "people: "),
    "strict": (
        Strict,
        {"when": "2026-01-02", "price": "1.50"},
        Strict(when=datetime.date(2026, 1, 2), price=Decimal("1.50")),
        {"when": "2026-01-02", "price": "1", "more": 1},
        "more: Extra inputs are not permitted, received 1",
    ),
    "dataclass": (
        Trip,
        {"days": 2, "places": [{"name": "Oslo"}]},
        Trip(2, [Place(name="Oslo")]),
        {"days": 2, "places": [{"name": 3}]},
        "places.0.name: Input should be a valid string, received 3",
    ),
    "typing.TypedDict": (Older, {"a": 1}, {"a": 1}, {"a": "x"}, "a: "),
    "typing_extensions.TypedDict": (Newer, {"a": 1, "b": "c"}, {"a": 1, "b": "c"}, {"b": 1}, "a: Field required"),
    "list": (list[Place], {"value": [{"name": "Oslo"}]}, [Place(name="Oslo")], {"value": [{}]}, "value.0.name: "),
    "list of typing.TypedDict": (list[Older], {"value": [{"a": 1}]}, [{"a": 1}], {"value": [{}]}, "value.0.a: "),
    "union": (Place | Trip, {"value": {"days": 1, "places": []}}, Trip(1, []), {"value": {"days": 1}}, "value."),
    "union with a text": (Place | str, {"value": "no idea"}, "no idea", {"value": 3}, "value."),
    "optional": (int | None, {"value": None}, None, {"value": "x"}, "value: "),
    "literal": (Literal["a", "b"], {"value": "b"}, "b", {"value": "c"}, "value: Input should be 'a' or 'b'"),
    "enum": (Colour, {"value": "red"}, Colour.RED, {"value": "green"}, "value: "),
    "int": (int, {"value": 3}, 3, {"value": 3.5}, "value: "),
    "a large int": (int, {"value": 2**70}, 2**70, {"value": True, "x": []}, ""),
    "bool": (bool, {"value": False}, False, {"value": "maybe"}, "value: "),
    "date": (datetime.date, {"value": "2026-01-02"}, datetime.date(2026, 1, 2), {"value": "soon"}, "value: "),
    "annotated": (Annotated[str, Field(min_length=2)], {"value": "ab"}, "ab", {"value": "a"}, "value: "),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}, {"a": "x"}, "a: "),
    "tuple": (tuple[int, str], {"value": [1, "a"]}, (1, "a"), {"value": [1]}, "value.1: Field required"),
    "set": (set[int], {"value": [1, 1]}, {1}, {"value": 1}, "value: "),
    "recursive": (Node, {"inner": [{"value": 1}]}, Node(inner=[Node(value=1)]), {"inner": [{"inner": 1}]}, "inner.0."),
    "generic": (Page[int], {"items": [1]}, Page[int](items=[1]), {"items": ["x"]}, "items.0: "),
    "a validator": (Checking, {"name": "a"}, Checking(name="a"), {"name": "nowhere"}, "name: Value error, no such"),
    "anything": (Any, {"value": [{}]}, [{}], "[", "Invalid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_fits_is_its_object_and_one_that_does_not_is_told_where(name: str) -> None:
    kind, right, value, wrong, place = ANSWERS[name]
    output = known(kind)
    assert output.spec.schema["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(output.spec.schema)
    json.dumps(output.spec.schema, allow_nan=False)
    assert output.read(json.dumps(right)) == value
    assert output.check(json.dumps(right))[0].fits
    if place:
        checked, nothing = output.check(wrong if isinstance(wrong, str) else json.dumps(wrong))
        assert nothing is None
        assert place in checked.misfit
        assert not checked.is_broken


@pytest.mark.parametrize("name", [name for name in ANSWERS if "value" in ANSWERS[name][1]])
def test_the_field_around_a_value_may_be_left_out(name: str) -> None:
    """It is there for APIs that want an object at the root, and models know better."""
    kind, right, value, _, _ = ANSWERS[name]
    if not isinstance(right["value"], str):
        assert known(kind).read(json.dumps(right["value"])) == value


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Holds, "Holds: the field 'f' has no JSON Schema"),
        (Within, "Within: the field 'q.f' has no JSON Schema"),
        (Calls, "Calls: the field 'g' has no JSON Schema"),
        (list[Holds], "list[Holds]: the field 'f' has no JSON Schema"),
        (Later, "Later: the field 'a' has no JSON Schema"),
        (Foreign, "Foreign has no JSON Schema"),
        (list[Foreign], "list[Foreign] has no JSON Schema"),
        (Callable[[], int], "Callable[[], int] has no JSON Schema"),
        (Iterator[int], "Iterator[int] has no JSON Schema"),
        (Item, "~Item leaves ~Item open; name a type for it"),
        (list[Item], "list[~Item] leaves ~Item open"),
        (Page, "Page leaves ~Item open; name a type for it, as in Page[int]"),
        (5, "5 has no JSON Schema"),
        ("Nowhere", "Nowhere has no JSON Schema"),
        (Place(name="Oslo"), "has no JSON Schema"),
        (print, "<built-in function print> is a function; name the type that you want"),
        (lambda: 1, "is a function; name the type that you want"),
        (partial(Place, name="Oslo"), "is a function; name the type that you want"),
        (type[int], "type[int] holds a class, which JSON cannot carry"),
        (dict[str, list[type[Place]]], "holds a class, which JSON cannot carry"),
        (BaseModel, "BaseModel has no fields; name a class of your own"),
        (Annotated[Place, Output(mode="loud")], "there is no mode 'loud'; known are: native, tool, prompt"),
        (Annotated[Place, Output(tries=0)], "tries must be a whole number of 1 or more, not 0"),
        (Annotated[Place, Output(tries=True)], "tries must be a whole number of 1 or more, not True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_cannot_carry_is_refused_in_one_sentence_by_type_and_field(kind: Any, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        output_type(kind)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_field_may_have_the_name_of_what_a_schema_says() -> None:
    kind = typing_extensions.TypedDict("Kinds", {"type": Literal["generator", "is-subclass"], "ref": int})  # noqa: UP013 - "type" too
    assert known(kind).read('{"type": "is-subclass", "ref": 1}') == {"type": "is-subclass", "ref": 1}


def test_a_bare_text_is_asked_for_in_no_form() -> None:
    assert output_type(str) is None


def test_how_it_is_asked_for_is_said_beside_the_type() -> None:
    asked = Annotated[Place, Output(mode="tool", tries=5, name="Spot", description="Where?")]
    spec = known(asked).spec
    assert (spec.modes, spec.max_tries, spec.title, spec.description) == ((OutputMode.TOOL,), 5, "Spot", "Where?")
    assert spec.schema["description"] == "Where?", "the model reads it, however it is asked"
    plain = known(Place).spec
    assert (plain.modes, plain.max_tries, plain.title, plain.description) == (
        tuple(OutputMode), OUTPUT_TRIES, "Place", "A place on a map.",
    )  # fmt: skip


def test_a_type_is_looked_at_once_and_equal_types_are_told_apart() -> None:
    assert known(list[Place]) is known(list[Place])
    first, second = Annotated[int, 1], Annotated[int, True]
    # Early releases of Python 3.11 take the two for the same, and give the first for both.
    assert (known(first) is known(second)) is (first is second)
    assert known(Annotated[int, ["not hashable"]]).read("3") == 3
    for number in range(1_001):
        known(Literal[number])  # type: ignore[valid-type]
    assert known(Literal[0]).read('{"value": 0}') == 0


def test_whose_code_runs_is_known() -> None:
    class Starting(BaseModel):
        a: int

        def model_post_init(self, _context: object) -> None:
            """Code of the user's."""

    class Whole(BaseModel):
        a: int

        @model_validator(mode="after")
        def check(self) -> Whole:
            return self

    class Made(BaseModel):
        a: int = Field(default_factory=lambda: 1)

    @dataclass
    class After:
        a: int

        def __post_init__(self) -> None:
            """Code of the user's."""

    for theirs in (Checking, Starting, Whole, Made, After, list[Checking], dict[str, Checking | None]):
        assert not known(theirs).is_quick, theirs
    for ours in (Place, Trip, Older, Colour, Node, list[int], Place | str, dict[str, Decimal], datetime.datetime):
        assert known(ours).is_quick, ours


@pytest.mark.parametrize("name", ["boom", "exit"])
def test_a_validator_that_fails_otherwise_is_contained_and_named(name: str) -> None:
    checked, _ = known(Checking).check(json.dumps({"name": name}))
    assert checked.is_broken
    assert checked.misfit.startswith("the check of Checking raised ")
    assert ("KeyError: 'boom'" if name == "boom" else "SystemExit: 3") in checked.misfit


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400"])
def test_numbers_that_are_none_are_refused_by_name(number: str) -> None:
    checked, _ = known(list[float]).check(f'{{"value": [1, {number}]}}')
    assert f"it holds {number}, which is not a finite number" in checked.misfit


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('```json\n{"name": "Oslo"}\n```', "Oslo"),
        ('Here it is:\n```\n{"name": "Oslo"}\n```\nEnjoy!', "Oslo"),
        ('Sure! {"name": "Oslo"} is what you want.', "Oslo"),
        ('First {"name": "Oslo"}, no: {"name": "Rome"}', "Rome"),
        ('{"note": 1} and {"name": "Oslo"} and {"note": 2}', "Oslo"),
        ('"{\\"name\\": \\"Oslo\\"}"', "Oslo"),
        ('<think>{"name": "no"}</think>{"name": "Oslo"}', "Oslo"),
        ("{" * (MAX_OPENINGS - 1) + ' {"name": "Oslo"}', "Oslo"),
    ],
)
def test_json_with_something_around_it_is_found(text: str, name: str) -> None:
    assert known(Place).read(text) == Place(name=name)


@pytest.mark.parametrize("text", ["", "Oslo", "{", '{"name": ', "[]", "null", "[" * 10_000, '{"name":' * 10_000])
def test_a_text_without_it_is_refused(text: str) -> None:
    with pytest.raises(MisfitError):
        known(Place).read(text)


def test_what_is_told_is_bounded() -> None:
    wrong = json.dumps({"value": [{"name": "x" * 10_000, "people": -1}] * 500})
    checked, _ = known(list[Place]).check(wrong)
    assert len(checked.misfit) < MAX_MISFIT_CHARS + 100
    assert "and 480 more" in checked.misfit


def test_data_is_the_answer_before_it_is_validated() -> None:
    assert known(Place).data('```\n{"name": "Oslo", "more": [1]}\n```') == {"name": "Oslo", "more": [1]}
    assert known(list[int]).data('{"value": [1, "x"]}') == [1, "x"]
    assert known(int | None).data('{"value": null}') is None
    with pytest.raises(ValueError, match="expected ident"):
        known(Place).data("no")


# -- any value of a type


class Leaf(BaseModel):
    text: str
    number: int
    share: float = Field(allow_inf_nan=False)
    flag: bool | None = None
    when: datetime.datetime


class Tree(BaseModel):
    leaf: Leaf
    branches: list[Tree] = []
    by_name: dict[str, Leaf | int] = {}


LEAVES = st.builds(
    Leaf,
    text=st.text(),
    number=st.integers(),
    share=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.none() | st.booleans(),
    when=st.datetimes(),
)
TREES = st.recursive(
    st.builds(Tree, leaf=LEAVES),
    lambda inner: st.builds(
        Tree,
        leaf=LEAVES,
        branches=st.lists(inner, max_size=2),
        by_name=st.dictionaries(st.text(), LEAVES | st.integers(), max_size=2),
    ),
    max_leaves=4,
)


@given(TREES, st.sampled_from(["{}", "```json\n{}\n```", "So:\n```\n{}\n```", "\n\n{}\n"]))
def test_any_value_of_a_type_survives(value: Tree, around: str) -> None:
    document = value.model_dump_json()
    assert known(Tree).read(around.replace("{}", document)) == value
    wrapped = json.dumps({"value": [json.loads(document)]})
    assert known(list[Tree]).read(wrapped) == [value]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of numbers in a document that have no other type beside them."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "number":
            yield (*at, key)
        if key != "by_name":
            yield from _paths(inner, (*at, key))


@given(TREES, st.data())
def test_any_wrong_one_is_refused_with_its_place(value: Tree, data: st.DataObject) -> None:
    document = json.loads(value.model_dump_json())
    path = data.draw(st.sampled_from(list(_paths(document))))
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = "not a number"
    checked, _ = known(Tree).check(json.dumps(document))
    assert checked.misfit.startswith(".".join(map(str, path)) + ": Input should be a valid integer")


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_no_text_makes_a_check_fail(text: str) -> None:
    for kind in (Place, list[int], Tree, Place | str):
        checked, _ = known(kind).check(text)
        assert not checked.is_broken
