"""What people decorate beside a plain function: it becomes a tool of the right kind, or a sentence says why not."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from asyncio import run
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from callboard import Runtime, Settings, tool
from callboard.actors.tools.decorator import Tool
from callboard.protocol.errors import UsageError
from callboard.protocol.tools import FailureCode, Isolation

Anything = Callable[..., Any]


async def find(name: str, times: int = 1) -> str:
    """Find it."""
    await asyncio.sleep(0)
    return f"found {name} {times}"


def look(name: str, times: int = 1) -> str:
    """Look at it."""
    return f"saw {name} {times}"


def traced(function: Anything) -> Anything:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return wrapper


def in_a_context(function: Anything) -> Anything:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return contextvars.copy_context().run(function, *args, **kwargs)

    return wrapper


def ran_by_asyncio(function: Anything) -> Anything:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


def ran_by_run(function: Anything) -> Anything:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return run(function(*args, **kwargs))

    return wrapper


def ran_by_a_loop(function: Anything) -> Anything:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        def inner() -> object:
            loop = asyncio.new_event_loop()
            try:
                return loop.run_until_complete(function(*args, **kwargs))
            finally:
                loop.close()

        return inner()

    return wrapper


class Counted:
    """A decorator that is a class."""

    def __init__(self, function: Anything) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **kwargs)


class Finder:
    """Finds things."""

    def __init__(self, word: str = "found") -> None:
        self.word = word

    async def __call__(self, name: str, times: int = 1) -> str:
        """Find it."""
        return f"{self.word} {name} {times}"

    def look(self, name: str, times: int = 1) -> str:
        """Look at it."""
        return f"saw {name} {times}"

    @classmethod
    def shared(cls, name: str, times: int = 1) -> str:
        return f"saw {name} {times}"

    @staticmethod
    async def apart(name: str, times: int = 1) -> str:
        return f"found {name} {times}"


class Looker:
    """Looks at things."""

    def __call__(self, name: str, times: int = 1) -> str:
        return f"saw {name} {times}"


def promised(name: str, times: int = 1) -> Coroutine[Any, Any, str]:
    return find(name, times)


def to_be_awaited(name: str, times: int = 1) -> Awaitable[str]:
    return find(name, times)


def as_a_task(name: str, times: int = 1) -> asyncio.Task[str]:
    return asyncio.ensure_future(find(name, times))  # type: ignore[return-value]


@functools.lru_cache
def cached(name: str, times: int = 1) -> str:
    return f"saw {name} {times}"


ASYNC: dict[str, Any] = {
    "wraps": traced(find),
    "wraps twice": traced(traced(find)),
    "wraps in a context": in_a_context(find),
    "a class that wraps": Counted(find),
    "partial": functools.partial(find),
    "partial of a wrapper": functools.partial(traced(find)),
    "wraps a partial": traced(functools.partial(find)),
    "an object": Finder(),
    "partial of an object": functools.partial(Finder()),
    "a static method": Finder.__dict__["apart"],
    "a coroutine by its type": promised,
    "an awaitable by its type": to_be_awaited,
    "a task by its type": as_a_task,
}
PLAIN: dict[str, Any] = {
    "wraps": traced(look),
    "a class that wraps": Counted(look),
    "partial": functools.partial(look),
    "an object": Looker(),
    "a bound method": Finder().look,
    "a class method": Finder.shared,
    "a cache": cached,
    "run by asyncio": ran_by_asyncio(find),
    "run by run": ran_by_run(find),
    "run by a loop": ran_by_a_loop(find),
}


def made(function: Any, name: str, **options: Any) -> Tool:
    found: Tool = tool(name=name.replace(" ", "_"), **options)(function)
    return found


@pytest.fixture(scope="module")
def tools() -> dict[str, Tool]:
    awaited = {f"async {name}": made(each, f"async {name}") for name, each in ASYNC.items()}
    return awaited | {f"plain {name}": made(each, f"plain {name}", isolation="thread") for name, each in PLAIN.items()}


@pytest.mark.parametrize("name", ASYNC)
def test_what_is_to_be_awaited_is_an_async_tool(name: str) -> None:
    assert made(ASYNC[name], name).contract.isolation is Isolation.TASK


@pytest.mark.parametrize("name", PLAIN)
def test_what_gives_its_result_is_a_plain_tool(name: str) -> None:
    assert made(PLAIN[name], name).contract.isolation is Isolation.PROCESS


async def test_each_runs(tools: dict[str, Tool]) -> None:
    in_processes = [
        made(PLAIN[name], f"process {name}", timeout=120) for name in ("partial", "a cache", "an object", "run by run")
    ]
    called = [*tools.values(), *in_processes]
    async with Runtime(Settings(model="scripted/model", script=["x"]), tools=called) as runtime:
        results = [await runtime.call_tool(each.name, {"name": "Ann", "times": 2}) for each in called]
    assert {each.name: each.content for each in results if each.content not in ("found Ann 2", "saw Ann 2")} == {}
    shown = [each.definition.parameters["properties"] for each in called]
    assert all(each == {"name": {"type": "string"}, "times": {"type": "integer", "default": 1}} for each in shown)


def test_what_a_partial_fixes_is_no_argument() -> None:
    class Connection:
        """No schema can be made of it."""

    async def query(connection: Connection, sql: str, limit: int = 10) -> str:
        """Ask the database."""
        return f"{type(connection).__name__} {sql} {limit}"

    fixed = tool(functools.partial(query, connection=Connection(), limit=3))
    assert (fixed.name, fixed.definition.description) == ("query", "Ask the database.")
    assert list(fixed.definition.parameters["properties"]) == ["sql"]  # type: ignore[call-overload]
    first = tool(functools.partial(query, Connection()))
    assert list(first.definition.parameters["properties"]) == ["sql", "limit"]  # type: ignore[call-overload]


def test_an_object_has_the_name_of_its_class_and_the_words_of_its_call() -> None:
    found = tool(Finder("saw"))
    assert (found.name, found.definition.description) == ("Finder", "Find it.")
    assert tool(Looker()).definition.description == "Looks at things."

    class Silent:
        def __call__(self) -> str:
            return ""

    assert tool(Silent()).definition.description == ""


def returns_one(name: str) -> str:
    return find(name)  # type: ignore[return-value]


def says_nothing(name: str):  # type: ignore[no-untyped-def]
    return find(name)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    "given",
    [
        made(returns_one, "one", isolation="thread"), made(says_nothing, "nothing", isolation="thread"),
        made(returns_one, "process", timeout=120), made(traced(find), "told to be", isolation="process", timeout=120),
    ],
    ids=lambda given: given.name,
)  # fmt: skip
async def test_a_coroutine_that_no_one_awaits_is_said_clearly(given: Tool) -> None:
    async with Runtime(Settings(model="scripted/model", script=["x"]), tools=[given]) as runtime:
        failure = (await runtime.call_tool(given.name, {"name": "Ann"})).failure
    assert failure is not None
    assert failure.code is FailureCode.INVALID_RESULT
    assert "the tool returned a coroutine, which no one awaits" in failure.message
    assert failure.retry_hint == "The tool itself is at fault. Use another tool, or go on without it."


async def streams(name: str) -> AsyncIterator[str]:
    yield name


class Body:
    def read(self, name: str) -> str:
        return name

    @classmethod
    def shared(cls, name: str) -> str:
        return name

    @property
    def text(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Body.read, r"tool read: it is a method, and its 'self' .* take @tool off, .*: tool\(instance.read\)"),
        (Body.__dict__["shared"], r"the classmethod 'shared' .* tool\(YourClass.shared\)"),
        (Body.__dict__["text"], r"not a property; make it a method"),
        (Body, r"not the class Body; put a def around it, or give one of its instances"),
        (len, r"needs a function, not builtin_function_or_method; put a def around it"),
        (3, r"needs a function, not int"),
        ("look", r"needs a function, not str"),
        (Body(), r"needs a function, not Body"),
        (streams, r"its result has type AsyncIterator, which cannot be written as JSON"),
        (functools.partial(look, unknown=3), r"cannot read what look takes: partial object .* has incorrect arguments"),
    ],
    ids=["method", "classmethod", "property", "class", "builtin", "int", "text", "object", "generator", "partial"],
)
def test_what_cannot_be_a_tool_is_told_in_a_sentence(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        tool(given)
    assert "\n" not in str(refused.value)


def test_a_method_in_the_body_of_a_class_gets_the_right_advice() -> None:
    with pytest.raises(UsageError, match=r"tool\(instance.look\)"):

        class Service:
            @tool
            def look(self, name: str) -> str:
                return name

    with pytest.raises(UsageError, match=r"tool\(instance.find\)"):

        class Other:
            @tool
            async def find(self, name: str) -> str:
                return name

    class Right:
        @staticmethod
        @tool
        def look(name: str) -> str:
            return name

        def see(self, name: str) -> str:
            return name

    assert isinstance(Right.look, Tool)
    assert tool(Right().see).name == "see"


def test_who_says_where_it_runs_is_believed() -> None:
    assert made(traced(find), "a", isolation="thread").contract.isolation is Isolation.THREAD
    with pytest.raises(UsageError, match="runs a plain `def`, but this is an `async def`"):
        made(find, "b", isolation="thread")
    with pytest.raises(UsageError, match="isolation='task' runs an `async def`"):
        made(traced(look), "c", isolation="task")
