"""@tool: the definition of a function for a model, and what is refused, with the parameter named and the remedy."""

from __future__ import annotations

import datetime
import enum
import json
import socket
import sys
import threading
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from msgspec.structs import replace
from pydantic import BaseModel, Field, ValidationError

from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.shipping import unpack
from callboard.protocol.errors import UsageError
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Isolation, Latency, Origin, Risk


class Unit(enum.StrEnum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    title: str = Field(description="As on the map.")
    altitude: float = 0.0


@tool(risk="network", timeout=2.5, concurrency=2, latency="long", effect="repeat")
def forecast(place: Place, context: ToolContext, days: int = 1, unit: Unit = Unit.CELSIUS) -> list[str]:
    """Tell the weather.

    Not for seafarers.

    Args:
        place: Where.
        days: How many days
            from today.
    """
    return [f"{place.title} {unit} {context.effect_id}"] * days


def test_the_definition_is_what_signature_and_docstring_say() -> None:
    definition = forecast.definition
    assert definition.name == "forecast"
    assert definition.description == "Tell the weather.\n\nNot for seafarers."
    parameters = definition.parameters
    assert parameters["type"] == "object"
    assert parameters["required"] == ["place"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert list(properties) == ["place", "days", "unit"], "the context is not the model's business"
    assert properties["days"] == {"type": "integer", "description": "How many days\nfrom today.", "default": 1}
    assert properties["unit"]["default"] == "C"
    assert properties["place"]["description"] == "Where."
    place = parameters["$defs"]["Place"]
    assert "title" not in place, "titles repeat the names"
    assert place["properties"]["title"] == {"type": "string", "description": "As on the map."}


def test_the_contract_is_what_the_decorator_says() -> None:
    contract = forecast.contract
    assert (contract.risk, contract.latency, contract.isolation) == (Risk.NETWORK, Latency.LONG, Isolation.PROCESS)
    assert (contract.timeout_seconds, contract.concurrency, contract.effect) == (2.5, 2, "repeat")


def test_a_risk_that_is_not_said_is_undeclared() -> None:
    @tool
    def bare() -> None: ...

    @tool(timeout=1)
    def with_options() -> None: ...

    assert (bare.contract.risk, with_options.contract.risk) == (Risk.UNDECLARED, Risk.UNDECLARED)


def test_a_tool_is_from_elsewhere_until_its_owner_has_it() -> None:
    """So that a loader that forgets to say where its tools are from does not make them the owner's."""
    assert forecast.origin is Origin.ELSEWHERE
    assert forecast.owned.origin is Origin.OWNER
    assert forecast.owned is forecast.owned, "what is derived from it is made once"
    assert forecast.origin is Origin.ELSEWHERE
    assert replace(forecast.owned.contract, origin=Origin.ELSEWHERE) == forecast.contract


def test_bare_it_has_defaults_and_is_still_the_function() -> None:
    @tool
    def double(number: int) -> int:
        return 2 * number

    @tool
    async def later(number: int) -> int:
        return number

    assert isinstance(double, Tool)
    assert double(4) == 8
    assert double.contract.isolation is Isolation.PROCESS
    assert double.contract.timeout_seconds == 30
    assert later.contract.isolation is Isolation.TASK


def test_names_of_the_defining_function_are_found() -> None:
    class Local(BaseModel):
        depth: int

    @tool
    def look(local: Local) -> int:
        return local.depth

    assert look.definition.parameters["$defs"]["Local"]["properties"] == {"depth": {"type": "integer"}}


def test_one_def_that_is_executed_again_is_read_once() -> None:
    def make(prefix: str) -> Tool:
        @tool
        def greet(name: Annotated[str, Field(max_length=20)]) -> str:
            """Greet."""
            return prefix + name

        return greet

    first, second = make("hello "), make("goodbye ")
    assert first.signature is second.signature
    assert (first.function("you"), second.function("you")) == ("hello you", "goodbye you")


PAIRS: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
    "a local type": ((int, 1), (str, 1)),
    "a type with a list": ((int, 1), (Annotated[str, [2]], 1)),
    "a default": ((int, 1), (int, 2)),
    "no default": ((int, 1), (int, ...)),
    "a default that is a list": ((int, [1]), (int, [2])),
    "an equal default": ((int | bool, 1), (int | bool, True)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_one_def_with_other_types_or_defaults_is_another_tool(pair: tuple[tuple[Any, Any], tuple[Any, Any]]) -> None:
    def make(kind: Any, default: Any) -> Tool:
        if default is ...:

            @tool
            def required(value: kind) -> None: ...

            return required

        @tool
        def use(value: kind = default) -> None: ...

        return use

    names = {int: "integer", str: "string"}
    for kind, default in (*pair, *pair):
        parameters: Any = make(kind, default).definition.parameters
        found = parameters["properties"]["value"]
        assert found.get("default", ...) == default
        assert type(found.get("default", ...)) is type(default)
        assert found.get("type") in (names[kind] if isinstance(kind, type) else "string", None)
        assert ("value" in parameters.get("required", ())) is (default is ...)


def test_a_type_that_is_defined_again_under_its_name_is_another() -> None:
    space: dict[str, Any] = {"tool": tool, "dataclass": dataclass}
    make = "from __future__ import annotations\n@dataclass\nclass Place:\n    {}: str\n"
    exec(
        "from __future__ import annotations\ndef make():\n    @tool\n    def go(to: Place) -> None: ...\n    return go",
        space,
    )
    for field in ("town", "street"):
        exec(make.format(field), space)
        definition = space["make"]().definition
        assert list(definition.parameters["$defs"]["Place"]["properties"]) == [field]


def test_arguments_may_be_called_like_methods_of_pydantic() -> None:
    @tool
    def awkward(json: str, copy: int, model_config: bool, schema: list[str]) -> None: ...

    assert list(awkward.definition.parameters["properties"]) == ["json", "copy", "model_config", "schema"]


@dataclass
class Range:
    first: datetime.date
    last: datetime.date | None = None


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Annotated[int, Field(ge=1, le=5)], {"type": "integer", "minimum": 1, "maximum": 5}),
        (
            dict[str, list[float]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Range, {"$ref": "#/$defs/Range"}),
        (Any, {}),
    ],
)
def test_types_become_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    def look(value: str) -> None: ...

    look.__annotations__["value"] = annotation
    assert tool(look).definition.parameters["properties"]["value"] == schema


def test_a_default_that_json_cannot_carry_is_left_to_the_function() -> None:
    nothing: Any = object()

    @tool
    def look(city: Any = nothing, depth: float = float("inf")) -> bool:
        return city is nothing

    assert "default" not in look.definition.parameters["properties"]["city"]
    assert look.definition.parameters["properties"]["depth"] == {"type": "number"}


def test_a_schema_has_no_number_that_json_lacks() -> None:
    class Span(BaseModel):
        last: float = float("nan")
        first: Annotated[float, Field(ge=float("-inf"))] = 0.0
        both: list[float] = [1.0, float("inf")]

    @tool
    def look(span: Span, spans: list[Span] | None = None) -> None: ...

    numbers = json.dumps(look.definition.parameters)
    assert "NaN" not in numbers
    assert "Infinity" not in numbers
    assert look.definition.parameters["$defs"]["Span"]["properties"]["first"] == {"type": "number", "default": 0.0}


@dataclass
class Area:
    width: float


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '"nan"', '"inf"', '"-Infinity"'])
@pytest.mark.parametrize(("name", "wrapped"), [("depth", "%s"), ("area", '{"width": %s}'), ("depths", "[0, %s]")])
def test_numbers_that_are_not_finite_are_refused_with_the_argument_named(value: str, name: str, wrapped: str) -> None:
    @tool
    def look(depth: float = 0.0, area: Area | None = None, depths: Sequence[float] = ()) -> None: ...

    with pytest.raises(ValidationError, match="finite number") as refusal:
        look.signature.arguments.validate_json(f'{{"{name}": {wrapped % value}}}')
    assert refusal.value.errors()[0]["loc"][0] == name


def test_an_optional_context_is_a_context() -> None:
    @tool
    def look(city: str, context: ToolContext | None = None) -> None: ...

    assert list(look.definition.parameters["properties"]) == ["city"]
    assert look.signature.context_parameter == "context"


def test_a_method_of_an_object_may_be_a_tool() -> None:
    class Shelf:
        def __init__(self) -> None:
            self.books = ["Emma"]

        def find(self, title: str) -> bool:
            return title in self.books

    find = tool(isolation="thread")(Shelf().find)
    assert find("Emma")
    assert list(find.definition.parameters["properties"]) == ["title"]


# -- refusals -------------------------------------------------------------------------------------------------------


def untyped(city) -> None: ...  # type: ignore[no-untyped-def]


def socketed(line: socket.socket) -> None: ...


def unknown(city: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def starred(*cities: str) -> None: ...


def keyworded(**cities: str) -> None: ...


def positional(city: str, /) -> None: ...


class OldDict(typing.TypedDict):
    city: str


def old_dict(place: OldDict) -> None: ...


def opened() -> socket.socket:
    return socket.socket()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, ["'city'", "annotate it"]),
        (socketed, ["'line'", "socket", "no JSON Schema", "use a type"]),
        (unknown, ["'city'", "Nowhere", "define that name"]),
        (starred, ["'cities'", "list[...]"]),
        (keyworded, ["'cities'", "dict[str, ...]"]),
        (positional, ["'city'", "remove the `/`"]),
        (opened, ["result", "socket", "return a str"]),
        *([(old_dict, ["'place'", "typing_extensions.TypedDict"])] if sys.version_info < (3, 12) else []),
    ],
)
def test_a_signature_that_no_model_can_fill_is_refused(function: Callable[..., Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        tool(function)
    assert [word for word in [function.__name__, *words] if word not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, ["timeout=0", "600"]),
        ({"timeout": 601}, ["timeout=601", "600"]),
        ({"timeout": float("nan")}, ["timeout=nan", "number of seconds"]),
        ({"timeout": "10"}, ["timeout='10'", "number of seconds"]),
        ({"concurrency": 0}, ["concurrency=0", "1 or more"]),
        ({"risk": "none"}, ["risk='none'", "read, write, execute, network, undeclared"]),
        ({"latency": "slow"}, ["latency='slow'", "short, long"]),
        ({"isolation": "ray"}, ["isolation='ray'", "process, task, thread"]),
        ({"isolation": "task"}, ["isolation='task'", "async def"]),
        ({"isolation": "thread", "reuse": True}, ["reuse=True", "'thread'", "leave reuse out"]),
        ({"reuse": "yes"}, ["reuse='yes'", "True nor False"]),
        ({"name": "get weather"}, ["'get weather'", "1 to 64"]),
        ({"name": "x" * 65}, ["1 to 64"]),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], words: list[str]) -> None:
    def look() -> None: ...

    with pytest.raises(UsageError) as refusal:
        tool(**options)(look)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_process_isolation_of_an_async_def_is_refused() -> None:
    async def look() -> None: ...

    with pytest.raises(UsageError, match=r"look.*'process'.*async def"):
        tool(isolation="process")(look)


def test_reuse_of_a_child_process_is_asked_for_and_is_refused_where_there_is_none() -> None:
    @tool(reuse=True)
    def look() -> None: ...

    async def later() -> None: ...

    assert look.contract.reuse
    assert not forecast.contract.reuse, "a call finds a fresh process unless its tool says otherwise"
    with pytest.raises(UsageError, match=r"later.*reuse=True.*'task'"):
        tool(reuse=True)(later)


def test_something_that_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a function, not int"):
        tool(3)  # type: ignore[call-overload]


# -- shipping -------------------------------------------------------------------------------------------------------


def test_a_closure_that_cannot_be_shipped_is_refused_with_the_variable_named() -> None:
    gate = threading.Lock()

    @tool
    def guarded() -> bool:
        return gate.acquire()

    with pytest.raises(UsageError, match=r"guarded.*'gate'.*isolation='thread'"):
        guarded.check()


def test_a_thread_tool_need_not_be_shipped() -> None:
    gate = threading.Lock()

    @tool(isolation="thread")
    def guarded() -> bool:
        return gate.acquire()

    guarded.check()


def test_a_tool_may_use_names_that_are_defined_after_it() -> None:
    @tool
    def early() -> str:
        return late()

    def late() -> str:
        return "late"

    assert unpack(early.packed).function() == "late"


def test_a_tool_says_what_a_call_would_touch() -> None:
    @tool(risk="write", accesses={"source": "read", "targets": "write"}, paths=["notes"], hosts=[], trusted=True)
    def copy(source: str, targets: list[str], note: str = "") -> None:
        """Copy a file."""

    found = copy.accesses_of({"source": "a.txt", "targets": ["b.txt", "c.txt"], "note": "d"})
    assert found == (
        Access(AccessKind.READ, "a.txt", "source"),
        Access(AccessKind.WRITE, "b.txt", "targets.0"),
        Access(AccessKind.WRITE, "c.txt", "targets.1"),
    )
    assert copy.accesses_of({"source": 1}) == (), "the schema refuses such a call; there is nothing to judge"
    assert (copy.contract.paths, copy.contract.hosts, copy.contract.is_trusted) == (("notes",), (), True)


def test_a_function_says_what_a_call_would_touch() -> None:
    @tool(accesses=lambda arguments: [Access(AccessKind.DELETE, str(arguments["name"]) + ".txt", "name")])
    def forget(name: str) -> None:
        """Remove a note."""

    assert forget.accesses_of({"name": "a"}) == (Access(AccessKind.DELETE, "a.txt", "name"),)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accesses": {"pth": "read"}}, "accesses names 'pth', which is none of its arguments"),
        ({"accesses": {"path": "look"}}, "is none of read, write, delete, command, address"),
        ({"paths": "notes"}, "paths='notes' is not a list of texts"),
        ({"hosts": [""]}, "hosts=\\[''\\] is not a list of texts"),
    ],
)
def test_what_cannot_be_touched_is_refused(options: dict[str, Any], words: str) -> None:
    def look(path: str) -> None:
        """Look at a file."""

    with pytest.raises(UsageError, match=words):
        tool(**options)(look)
