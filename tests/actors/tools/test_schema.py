"""What a signature says beside its types: Fields, texts, aliases, defaults; and that both ways have the same names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator
from typing import Annotated, Any

import annotated_doc
import msgspec
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import Doc, TypedDict, Unpack

from callboard import Runtime, Settings, ToolContext, tool
from callboard.actors.tools.decorator import Tool
from callboard.protocol.errors import UsageError
from callboard.protocol.policy import Access, AccessKind


class Person(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    user_name: str
    last_seen: int = 0


class Both(BaseModel):
    a: str = Field("x", validation_alias="inA", serialization_alias="outA")


class Named(TypedDict):
    user_name: Annotated[str, Field(alias="userName")]


@dataclasses.dataclass
class Place:
    of_town: Annotated[str, Field(alias="ofTown")]


def made() -> list[str]:
    return ["made"]


TOOLS: list[Tool] = []


def served(function: Any) -> Tool:
    found: Tool = tool(isolation="thread")(function)
    TOOLS.append(found)
    return found


@served
def bounded(n: int = Field(3, ge=1, le=5, description="How many.")) -> str:
    return repr(n)


@served
def required(city: str = Field(description="Its name.", min_length=2, max_length=20, pattern="^[A-Z]")) -> str:
    return repr(city)


@served
def factory(
    items: list[str] = Field(default_factory=made),  # noqa: B008 - as people write it
    more: list[int] = Field(default_factory=list),  # noqa: B008 - likewise
) -> str:
    items.append("changed")
    more.append(1)
    return repr((items, more))


@served
def aliased(
    from_: str = Field(alias="from"),
    to: str = Field("here", validation_alias="goal", serialization_alias="end"),
    via: str = Field("none", validation_alias=AliasChoices("via", "by", "over")),
) -> str:
    return repr((from_, to, via))


@served
def beside(
    a: Annotated[int, Field(4, ge=2)],
    b: Annotated[int, Field(ge=2)] = 5,
    c: Annotated[int, Field(6, le=9)] = 7,
    d: Annotated[int, Field(ge=1)] = Field(8, le=9),
    e: Annotated[list[int], Field(max_length=1)] = Field([9]),  # noqa: B008 - as people write it
) -> str:
    return repr((a, b, c, d, e))


@served
def mixed(a: int, context: ToolContext, b: str = Field("q", min_length=1), *, c: int | None = Field(None)) -> str:
    return repr((a, b, c, bool(context)))


@served
def nulls(n: int = 3, o: int | None = 5, s: str = "s", p: Person = Person(userName="z"), a: Any = 1) -> str:  # noqa: B008
    return repr((n, o, s, p.user_name, a))


@served
def person(person: Person) -> Person:
    return person


@served
def both(given: Both) -> Both:
    return given


@served
def many(n: int) -> dict[str, list[Person]]:
    return {"people": [Person(userName="a")] * n}


@served
def named(x: str) -> Named:
    return {"user_name": x}


@served
def by_alias(x: str) -> Named:
    return {"userName": x}  # type: ignore[typeddict-item, typeddict-unknown-key]  # as its JSON has it


@served
def place(given: Place) -> list[Place]:
    return [given]


CALLS: list[tuple[str, dict[str, object], str]] = [
    ("bounded", {}, "3"),
    ("bounded", {"n": 5}, "5"),
    ("bounded", {"n": None}, "3"),
    ("required", {"city": "Oslo"}, "'Oslo'"),
    ("factory", {}, "(['made', 'changed'], [1])"),
    ("factory", {"items": None, "more": [2]}, "(['made', 'changed'], [2, 1])"),
    ("aliased", {"from": "a"}, "('a', 'here', 'none')"),
    ("aliased", {"from": "a", "goal": "b", "via": "c"}, "('a', 'b', 'c')"),
    ("aliased", {"from": "a", "goal": None, "over": "d"}, "('a', 'here', 'd')"),
    ("beside", {}, "(4, 5, 7, 8, [9])"),
    ("beside", {"a": 2, "b": 2, "c": 9, "d": 9, "e": []}, "(2, 2, 9, 9, [])"),
    ("mixed", {"a": 1}, "(1, 'q', None, True)"),
    ("mixed", {"a": 1, "b": None, "c": 2}, "(1, 'q', 2, True)"),
    ("nulls", {"n": None, "o": None, "s": None, "p": None, "a": None}, "(3, None, 's', 'z', None)"),
    ("person", {"person": {"userName": "a", "lastSeen": 2}}, '{"userName":"a","lastSeen":2}'),
    ("both", {"given": {"inA": "k"}}, '{"outA":"k"}'),
    ("many", {"n": 1}, '{"people":[{"userName":"a","lastSeen":0}]}'),
    ("named", {"x": "a"}, '{"userName":"a"}'),
    ("by_alias", {"x": "a"}, '{"userName":"a"}'),
    ("place", {"given": {"ofTown": "b"}}, '[{"ofTown":"b"}]'),
]
WRONG: list[tuple[str, dict[str, object], str]] = [
    ("bounded", {"n": 99}, "n"),
    ("required", {}, "city"),
    ("required", {"city": "o"}, "city"),
    ("required", {"city": None}, "city"),
    ("aliased", {"from_": "a"}, "from"),
    ("aliased", {"from": None}, "from"),
    ("beside", {"a": 1}, "a"),
    ("beside", {"d": 10}, "d"),
    ("beside", {"e": [1, 2]}, "e"),
    ("mixed", {"a": 1, "b": ""}, "b"),
    ("nulls", {"n": None, "unknown": None}, "unknown"),
    ("person", {"person": {"user_name": "a"}}, "person.userName"),
    ("person", {"person": {"userName": "a", "lastSeen": None}}, "person.lastSeen"),
]


async def test_arguments_and_results_have_the_names_of_the_schemas() -> None:
    found, wrong = [], []
    async with Runtime(Settings(model="scripted/model", script=["x"]), tools=TOOLS) as runtime:
        for name, arguments, _ in CALLS:
            found.append((name, arguments, (await runtime.call_tool(name, arguments)).content))
        for name, arguments, _ in WRONG:
            failure = (await runtime.call_tool(name, arguments)).failure
            wrong.append((name, arguments, failure.field if failure is not None else ""))
    assert found == CALLS
    assert wrong == WRONG


def shown(given: Tool) -> dict[str, Any]:
    properties: Any = given.definition.parameters["properties"]
    return dict(properties)


def test_what_a_field_says_is_in_the_schema() -> None:
    assert shown(bounded) == {
        "n": {"type": "integer", "default": 3, "minimum": 1, "maximum": 5, "description": "How many."}
    }
    assert "required" not in bounded.definition.parameters
    assert shown(required)["city"] == {
        "type": "string", "description": "Its name.", "minLength": 2, "maxLength": 20, "pattern": "^[A-Z]",
    }  # fmt: skip
    assert required.definition.parameters["required"] == ["city"]
    assert list(shown(aliased)) == ["from", "goal", "via"]
    assert aliased.definition.parameters["required"] == ["from"]
    assert {name: each.get("default") for name, each in shown(beside).items()} == {
        "a": 4,
        "b": 5,
        "c": 7,
        "d": 8,
        "e": [9],
    }
    assert shown(beside)["d"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 8}
    assert shown(nulls)["p"]["default"] == {"userName": "z", "lastSeen": 0}, "a default has the names of the schema"


def test_a_text_beside_a_type_is_its_description() -> None:
    @tool
    def look(
        a: Annotated[str, "The first."],
        b: Annotated[int, Doc("The second.")] = 1,
        c: Annotated[int, annotated_doc.Doc("The third.")] = 1,
        d: Annotated[int, Field(ge=1), "The fourth."] = 1,
        e: Annotated[int, Field(description="The fifth."), "Not this."] = 1,
        f: Annotated[str, 3, "The sixth.", "not this"] = "",
        g: Annotated[int, "The seventh."] = Field(1, ge=0),
        h: int = 1,
    ) -> str:
        """Look.

        Args:
            a: Not this.
            h: The eighth.
        """
        return ""

    told = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
    assert [each["description"] for each in shown(look).values()] == [f"The {each}." for each in told]
    assert shown(look)["g"]["minimum"] == 0


def test_accesses_are_by_the_names_that_a_model_sends() -> None:
    @tool(accesses={"path": "read", "target": "write"})
    def copy(path: str = Field(alias="from"), to: str = Field(alias="target")) -> str:
        return path + to

    assert copy.accesses_of({"from": "a", "target": "b"}) == (
        Access(AccessKind.READ, "a", "from"), Access(AccessKind.WRITE, "b", "target"),
    )  # fmt: skip


class Declared:
    """As fastapi's, of which no copy is needed here."""


Depends = type("Depends", (Declared,), {})
OptionInfo = type("OptionInfo", (Declared,), {})


class Options(TypedDict):
    a: int


def test_what_cannot_be_meant_is_refused_in_a_sentence() -> None:  # noqa: C901 - each is a `def` of one line
    def dataclass_field(n: int = dataclasses.field(default=3)) -> str: ...
    def msgspec_field(n: int = msgspec.field(default=3)) -> str: ...
    def depends(n: int = Depends()) -> str: ...
    def option(n: int = OptionInfo()) -> str: ...
    def dots(n: int = ...) -> str: ...  # type: ignore[assignment]
    def path(n: str = Field(validation_alias=AliasPath("a", "b"))) -> str: ...
    def choices(n: str = Field(validation_alias=AliasChoices("n", AliasPath("a", 0)))) -> str: ...
    def twice(a: str = Field(alias="b"), b: str = "") -> str: ...
    def positional(a: str, /) -> str: ...
    def keywords(**options: Unpack[Options]) -> str: ...
    def generates(a: int) -> AsyncIterator[str]: ...
    def contradicts(a: Annotated[list[int], Field(default_factory=list)] = [9]) -> str: ...  # noqa: B006

    refusals = {
        dataclass_field: "the default of parameter 'n' is a dataclasses.Field, which is no value",
        msgspec_field: "which is no value; write the value itself, or pydantic.Field",
        depends: "Depends, which is no value",
        option: "OptionInfo, which is no value",
        dots: "is `...`, which is no value",
        path: "the alias of parameter 'n' is a path into another one",
        choices: "the alias of parameter 'n' is a path into another one",
        twice: "two parameters are called 'b' for the model",
        positional: "is positional-only, but a model passes arguments by name",
        keywords: "takes any name; declare the parameters",
        generates: "which cannot be written as JSON",
        contradicts: "what parameter 'a' says contradicts itself: cannot specify both default and default_factory",
    }
    for function, why in refusals.items():
        with pytest.raises(UsageError) as refused:
            tool(function)
        assert why in str(refused.value), function
        assert "\n" not in str(refused.value)


def test_a_default_that_json_has_not_is_the_functions_own() -> None:
    unset = object()

    @tool
    def look(a: float = math.inf, b: Any = unset, c: float = Field(math.nan)) -> str:
        return ""

    assert [each.get("default") for each in shown(look).values()] == [None, None, None]
