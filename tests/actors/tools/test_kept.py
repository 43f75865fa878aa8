"""What a user makes for one question, or for one runtime, goes when that has ended."""

from __future__ import annotations

import asyncio
import functools
import gc
import pickle
import typing
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from callboard import Approval, AskApproval, Output, Runtime, Settings, json_schema, tool
from callboard.actors.requests.outputs import output_type
from callboard.actors.tools.decorator import as_tool
from callboard.actors.tools.kept import Shelf, shelf_for, shelf_of
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn
from tests.support.conditions import wait_until

#: How often each kind is passed: one may be the last that something has seen.
TIMES = 4


class Captured:
    """A connection, a session, what else a function closes over."""


def calls_look(request: typing.Any) -> ScriptedTurn | str:
    if type(request.messages[-1]).__name__ == "UserMessage" and request.tools:
        return ScriptedTurn(calls=(ScriptedCall("look", {"n": 1}),))
    return '{"n": 1}'


Options = dict[str, typing.Any]
Made = tuple[list[object], Options]


def plain_closure() -> Made:
    captured = Captured()

    async def look(n: int) -> str:
        return str(captured)

    return [captured, look], {"tools": [look]}


def lambda_of_a_script() -> Made:
    captured = Captured()
    look: typing.Any = lambda n: str(captured)  # noqa: E731 - it is what is passed
    look.__name__, look.__annotations__ = "look", {"n": int, "return": str}
    return [captured, look], {"tools": [tool(isolation="thread")(look)]}


def bound_method() -> Made:
    class Service:
        async def look(self, n: int) -> str:
            return str(self)

    service = Service()
    return [service, Service], {"tools": [service.look]}


def partial_function() -> Made:
    captured = Captured()

    async def look(captured: Captured, n: int) -> str:
        return str(captured)

    return [captured, look], {"tools": [functools.partial(look, captured)]}


def callable_object() -> Made:
    class Look:
        async def __call__(self, n: int) -> str:
            return str(self)

    look = Look()
    return [look, Look], {"tools": [tool(name="look")(look)]}


def wrapped_function() -> Made:
    captured = Captured()

    async def look(n: int) -> str:
        return str(captured)

    @functools.wraps(look)
    def traced(*args: object, **kwargs: object) -> object:
        return look(*args, **kwargs)  # type: ignore[arg-type]

    return [captured, look, traced], {"tools": [traced]}


def function_in_a_process() -> Made:
    bound = [1]

    class Kept(list[int]):
        pass

    kept = Kept(bound)

    def look(n: int) -> str:
        return str(kept)

    return [look, kept], {"tools": [tool(timeout=120)(look)]}


def model_of_arguments() -> Made:
    class Where(BaseModel):
        a: int = 1

    def look(n: int, where: Where = Where(), others: list[Where] | None = None) -> Where | None:  # noqa: B008
        return where

    return [Where, look], {"tools": [tool(isolation="thread")(look)]}


def two_classes_of_arguments() -> Made:
    @dataclass
    class Place:
        a: int = 1

    class Size(Enum):
        LARGE = 1

    @tool
    async def look(n: int, place: Place | None = None, size: Size = Size.LARGE) -> list[Place]:
        return []

    return [Place, Size, look], {"tools": [look]}


def field_with_a_factory() -> Made:
    captured = Captured()

    def made() -> str:
        return str(captured)

    @tool
    async def look(n: int = Field(1, ge=1), text: str = Field(default_factory=made)) -> str:
        return text

    return [captured, made], {"tools": [look]}


def function_of_accesses() -> Made:
    captured = Captured()

    def accesses(_: object) -> list[typing.Any]:
        assert captured
        return []

    @tool(accesses=accesses)
    async def look(n: int) -> str:
        return ""

    return [captured, accesses], {"tools": [look]}


def output_model() -> Made:
    class Answer(BaseModel):
        n: int

    return [Answer], {"output": Answer}


def output_dataclass() -> Made:
    @dataclass
    class Answer:
        n: int

    return [Answer], {"output": Answer}


def output_typed_dict() -> Made:
    class Answer(TypedDict):
        n: int

    return [Answer], {"output": Answer}


def output_union() -> Made:
    class Answer(BaseModel):
        n: int

    class Other(BaseModel):
        m: int

    return [Answer, Other], {"output": Answer | Other}


def output_that_says_how() -> Made:
    class Answer(BaseModel):
        n: int

    # Without the cache that `typing` has of its own.
    return [Answer], {"output": Annotated[Answer, Output(tries=2), []]}


def output_by_a_schema() -> Made:
    class Schema(dict[str, object]):
        pass

    schema = Schema(type="object", properties={"n": {"type": "integer"}}, title="Answer")
    return [schema], {"output": json_schema(schema)}


PASSED: list[Callable[[], Made]] = [
    plain_closure, lambda_of_a_script, bound_method, partial_function, callable_object, wrapped_function,
    function_in_a_process, model_of_arguments, two_classes_of_arguments, field_with_a_factory, function_of_accesses,
    output_model, output_dataclass, output_typed_dict, output_union, output_that_says_how, output_by_a_schema,
]  # fmt: skip


def left(kept: dict[str, list[weakref.ref[object]]], spared: float = 0) -> dict[str, int]:
    """How many of each kind are alive, where it is more than the last of each."""
    gc.collect()
    counted = {name: sum(each() is not None for each in references) for name, references in kept.items()}
    return {name: count for name, count in counted.items() if count > spared * len(kept[name])}


@pytest.mark.timeout(180)
async def test_what_is_passed_for_a_question_goes_with_it() -> None:
    kept: dict[str, list[weakref.ref[object]]] = {}
    async with Runtime(Settings(model="scripted/model", script=calls_look)) as runtime:
        for kind in PASSED:
            for _ in range(TIMES):
                made, options = kind()
                kept.setdefault(kind.__name__, []).extend(map(weakref.ref, made))
                reply = await runtime.ask("q", **options)
                assert not reply.failures, (kind.__name__, reply.failures)
                del made, options, reply
        await asyncio.to_thread(wait_until, lambda: not left(kept, spared=1 / TIMES), every=0.1)
    await asyncio.to_thread(wait_until, lambda: not left(kept), every=0.1)


async def test_what_is_passed_for_a_runtime_goes_with_it() -> None:
    kept: dict[str, list[weakref.ref[object]]] = {}
    for _ in range(TIMES):
        captured = {name: Captured() for name in ("script", "approve", "tool", "asked")}

        def script(request: object, captured: Captured = captured["script"]) -> ScriptedTurn | str:
            return calls_look(request) if captured else ""

        async def approve(question: AskApproval, captured: Captured = captured["approve"]) -> Approval:
            return Approval.ONCE if captured else Approval.DENY

        @tool(needs_approval=True)
        async def look(n: int, captured: object = captured["tool"]) -> str:
            return str(captured)

        class Answer(BaseModel):
            n: int

        settings = Settings(model="scripted/model", script=script)
        runtime = Runtime(settings, tools=[look], approve=approve)
        for name, each in {**captured, "look": look, "Answer": Answer, "runtime": runtime}.items():
            kept.setdefault(name, []).append(weakref.ref(each))
        kept["script"].append(weakref.ref(script))
        kept["approve"].append(weakref.ref(approve))
        async with runtime:
            reply = await runtime.ask("q", output=Answer)
            assert not reply.failures
        del captured, script, approve, look, Answer, settings, runtime, name, each, reply
    await asyncio.to_thread(wait_until, lambda: not left(kept, spared=1 / TIMES), every=0.1)


def test_the_same_function_is_the_same_tool_and_a_wrapper_of_it_another() -> None:
    def look(n: int) -> str:
        return ""

    look_tool = as_tool(look)
    assert as_tool(look) is look_tool

    @functools.wraps(look)
    def traced(*args: object, **kwargs: object) -> object:
        return look(*args, **kwargs)  # type: ignore[arg-type]

    assert as_tool(traced) is as_tool(traced) is not look_tool
    assert as_tool(look) is look_tool, "though the wrapper has taken its attributes over"

    class Service:
        def look(self, n: int) -> str:
            return ""

    service = Service()
    held = as_tool(service.look)
    assert as_tool(service.look) is held is not as_tool(Service().look)
    fixed = functools.partial(look, 1)
    assert as_tool(fixed).definition.parameters["properties"] == {}


def test_a_type_is_looked_at_once() -> None:
    class Answer(BaseModel):
        n: int

    for kind in (Answer, list[Answer], Answer | None, Annotated[Answer, Output(tries=2)], list[int], Literal["a"]):
        assert output_type(kind) is output_type(kind), kind  # type: ignore[arg-type]


class Module(BaseModel):
    n: int


class Colour(Enum):
    RED = 1


@dataclass(slots=True)
class Slotted:
    n: int


@pytest.mark.parametrize(
    ("parts", "owner"),
    [
        ((int, str, None, 3, "x"), "ours"), ((list[dict[str, int | None]], typing.Any), "ours"),
        ((Annotated[str, "text"], typing.Optional[int], (1, "a")), "ours"),  # noqa: UP045 - as people write it
        ((Callable[[int], Awaitable[str]], Field, typing), "ours"),
        ((Module, list[Module], int), Module), ((Colour.RED, str), Colour), ((Slotted,), Slotted),
        ((Annotated[Module, Output(tries=2)],), Module),
        ((Module, Colour), None), ((object(),), None), ((lambda: 1,), None), ((Field(3),), None),
        ((typing.TypeVar("T", bound=Module),), None), ((pytest,), None), (({"a": Captured()},), None),
    ],
)  # fmt: skip
def test_where_it_is_kept(parts: tuple[object, ...], owner: object) -> None:
    ours = shelf_for(int)
    assert isinstance(ours, Shelf)
    found = shelf_for(*parts)
    assert found is (ours if owner == "ours" else owner if owner is None else shelf_of(owner))


def test_a_shelf_is_of_one_object_and_stays_with_it() -> None:
    shelf = shelf_of(Module)
    assert shelf is not None
    shelf.keep("a", 1)

    class Below(Module):
        pass

    assert shelf_of(Below) is not shelf, "a subclass has its own"
    assert pickle.loads(pickle.dumps(shelf)) == {}, "and another process begins without"
    for number in range(1_000):
        shelf.keep(number, number)
    assert len(shelf) <= 64
    assert shelf_of(int) is None, "nothing can be written on it"
