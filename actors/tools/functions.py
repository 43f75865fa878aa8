"""What people give as a tool beside a plain function: wrappers, partials, objects that are called, methods.

Each becomes one function (or bound method) with a name, a signature and a kind, `def` or `async def`; or a sentence
says why it cannot.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, update_wrapper
from types import CodeType
from typing import Any, Final, cast, get_origin

from callboard.protocol.annotation_reading import annotations_of, forward_name, signature_of
from callboard.protocol.errors import UsageError

#: What a plain `def` may say that it returns: then it is to be awaited. Of asyncio by name: it is not loaded for this.
_AWAITABLE: Final = (Awaitable, Coroutine)
_OF_ASYNCIO: Final = frozenset(
    {("asyncio", "Future"), ("asyncio", "Task"), ("_asyncio", "Future"), ("_asyncio", "Task")}
)
_AWAITABLE_TEXT: Final = re.compile(r"(\w+\.)*(Awaitable|Coroutine|Task)\b|asyncio\.Future\b")
#: What a wrapper names that runs a loop itself: it gives the result, not a coroutine. And of whose modules `run` does.
_RUNS_LOOP: Final = frozenset({"run_until_complete", "run_coroutine_threadsafe", "async_to_sync", "Runner"})
_LOOPS: Final = frozenset({"asyncio", "anyio", "trio", "uvloop"})


def function_of(given: object) -> Callable[..., object]:
    """The function that a call of the tool is to run. Raises UsageError for what is none, with what to give instead."""
    if isinstance(given, staticmethod):
        given = given.__func__
    if inspect.isfunction(given) or inspect.ismethod(given):
        found: Callable[..., object] = given
        return found
    if isinstance(given, classmethod):
        name = given.__func__.__name__
        raise UsageError(
            f"@tool was given the classmethod {name!r} before its class is known; take @tool off, and make the tool of "
            f"the bound method: tool(YourClass.{name})"
        )
    if isinstance(given, property):
        raise UsageError("@tool needs a function, not a property; make it a method, and take tool(instance.method)")
    if isinstance(given, type):
        raise UsageError(
            f"@tool needs a function, not the class {given.__name__}; put a def around it, or give one of its "
            "instances if they can be called (and give options by name)"
        )
    if isinstance(given, partial) or (callable(given) and inspect.isfunction(innermost(given))):
        return _wrapper(given)
    call = getattr(given, "__call__", None)  # noqa: B004 - the method itself is what runs
    if inspect.ismethod(call):
        return call
    raise UsageError(
        f"@tool needs a function, not {type(given).__name__}; put a def around it (and give options by name)"
    )


def name_of(given: object) -> str:
    """As it is called where nothing else is said; that of its class for an object that is called."""
    while isinstance(given, partial):
        given = given.func
    return str(getattr(given, "__name__", type(given).__name__))


def doc_of(function: Callable[..., object]) -> str:
    """Its docstring, without the indentation; that of its class for an object whose `__call__` has none."""
    if inspect.ismethod(function) and function.__name__ == "__call__":
        own = function.__doc__ or type(function.__self__).__doc__
        return inspect.cleandoc(own) if own else ""
    return inspect.getdoc(function) or ""


def is_async(function: object) -> bool:
    """Is a call of it to be awaited? Seen through wrappers, which are plain functions for `inspect`."""
    while isinstance(function, partial):
        function = function.func
    is_function = inspect.isfunction(function) or inspect.ismethod(function)
    runs = function
    if not is_function:
        runs = getattr(function, "__call__", None)  # noqa: B004 - the method is meant
    if inspect.iscoroutinefunction(runs):
        return True
    wrapped = getattr(function, "__wrapped__", None)
    if callable(wrapped):
        return is_async(wrapped) and not _runs_a_loop(runs)
    return is_function and is_awaitable(annotations_of(function).get("return"))


def is_awaitable(returns: object) -> bool:
    """Is this annotation of a result one of something that is to be awaited?"""
    if text := forward_name(returns):
        return _AWAITABLE_TEXT.match(text) is not None
    kind = get_origin(returns) or returns
    names = (getattr(kind, "__module__", "").partition(".")[0], getattr(kind, "__qualname__", ""))
    return kind in _AWAITABLE or names in _OF_ASYNCIO


def _runs_a_loop(wrapper: object) -> bool:
    """Does this wrapper of an `async def` run it to its end itself? Then it is a plain function for who calls it."""
    code, names, loaded = getattr(wrapper, "__code__", None), set[str](), set[str]()
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        loaded.update(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    if names & _RUNS_LOOP or ("run" in names and loaded & _LOOPS):
        return True
    run = getattr(wrapper, "__globals__", {}).get("run") if "run" in loaded else None
    return str(getattr(run, "__module__", "")).partition(".")[0] in _LOOPS


def _wrapper(given: Callable[..., object]) -> Callable[..., object]:
    """A function in place of what only behaves like one. What a partial fixes is no argument of the tool any more."""
    shown = signature_as_shown(given)
    fixed: set[str] = set()
    inner: object = given
    while isinstance(inner, partial):
        fixed |= inner.keywords.keys()
        inner = inner.func
    left = [each for name, each in shown.parameters.items() if name not in fixed]

    def called(*args: object, **kwargs: object) -> object:
        return given(*args, **kwargs)

    async def awaited(*args: object, **kwargs: object) -> object:
        result: Any = given(*args, **kwargs)
        return await result

    made: Any = awaited if is_async(given) else called
    is_named = inspect.isroutine(inner) or hasattr(inner, "__wrapped__")
    call = inner if is_named else getattr(inner, "__call__", inner)  # noqa: B004 - as above
    update_wrapper(made, cast(Callable[..., object], call))
    made.__signature__ = shown.replace(parameters=left)
    made.__annotations__ = annotations_in(made.__signature__)
    made.__name__ = name_of(given)
    found: Callable[..., object] = made
    return found


def signature_as_shown(given: Callable[..., object]) -> inspect.Signature:
    """What it says that it takes. Raises UsageError."""
    try:
        return signature_of(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"@tool cannot read what {name_of(given)} takes: {error}") from error


def annotations_in(signature: inspect.Signature) -> dict[str, object]:
    """Those of the parameters, and of the result under "return": of a wrapper they are those of what it wraps."""
    none = inspect.Parameter.empty
    found = {name: each.annotation for name, each in signature.parameters.items() if each.annotation is not none}
    return found if signature.return_annotation is none else {**found, "return": signature.return_annotation}


def innermost(given: object) -> object:
    """What wrappers and partials lead to: where the names in its annotations are known."""
    while True:
        inner = _unwrapped(given)
        if not isinstance(inner, partial):
            return inner
        given = inner.func


def _unwrapped(given: object) -> object:
    try:
        return inspect.unwrap(cast(Callable[..., object], given))
    except ValueError:  # it wraps itself
        return given
