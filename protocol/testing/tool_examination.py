"""One call of a user's tool, and all that is looked at: see `check_tool`. Runs in the process of tool_child.py."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, Final, get_type_hints

import orjson
from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from callboard.protocol.annotation_reading import signature_of
from callboard.protocol.errors import ToolError
from callboard.protocol.limits import MAX_RESULT_BYTES, TOOL_GRACE_SECONDS
from callboard.protocol.testing.tool_child import Entering, Verdict
from callboard.protocol.testing.tool_surroundings import Surroundings, environment_change, leak
from callboard.protocol.tools import Deferred, Effect

#: The schema and the function do not speak of the same arguments: the tool would never run.
_OTHER_ARGUMENTS: Final = {"missing_argument", "missing_keyword_only_argument", "unexpected_keyword_argument"}
#: Of a result or an exception's text, in a message.
_SHOWN_CHARS: Final = 120
#: Calls of an async tool that are cancelled; it would take the time of all others otherwise.
MAX_CANCELLED: Final = 20
#: A cancelled tool may clean up for this long: twice what the runtime gives it, for a slow machine.
CANCEL_SECONDS: Final = 2 * TOOL_GRACE_SECONDS


class _Outcome(Struct, frozen=True):
    """How a call ended; exactly one of the first three says it, none of them means that it gave `value`."""

    refused: ValidationError | None = None
    told: ToolError | None = None
    raised: BaseException | None = None
    value: Any = None

    @property
    def kind(self) -> str:
        if self.raised is not None:
            return f"raises {type(self.raised).__name__}"
        return "raises ToolError" if self.told is not None else "returns a result"


class _WorldUnread(Exception):
    """The test's own function has failed."""


class Examination:
    """A tool, ready to be examined call by call. Made in the test's own process: a schema that pydantic cannot make is
    said there."""

    def __init__(self, tool: Any, world: Callable[[], object] | None = None) -> None:
        """`world` reads what the tool may change outside."""
        self._tool = tool
        self._world = world
        self._plain = getattr(tool, "function", tool)
        self.may_repeat = getattr(getattr(tool, "contract", None), "effect", Effect.ONCE) is Effect.REPEAT
        self._adapter: TypeAdapter[Any] = TypeAdapter(self._entering())  # type: ignore[arg-type]  # pydantic takes functions
        self._declared = _declared(tool, self._plain)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._effects = 0
        self._cancelled = 0
        self._suspended = False
        self._changed = ""
        """What the call has done to the environment."""
        self._bound: Mapping[str, Any] | None = None
        self._on_enter: Entering = lambda plain: None
        self._sent: Any = None

    def __call__(self, arguments: str, entering: Entering) -> Verdict:
        """Call the tool with these arguments, JSON text."""
        self._loop = self._loop or asyncio.new_event_loop()
        self._effects += 1
        self._on_enter, self._sent, self._bound = entering, orjson.loads(arguments), None
        before, environment = Surroundings.now(self._loop), dict(os.environ)
        outcome = self._once(arguments)
        self._changed = environment_change(environment)
        if outcome.refused is not None:
            faults = {fault["type"] for fault in outcome.refused.errors()}
            why = _faults(outcome.refused)
            return Verdict(f"cannot be called: {why}" if _OTHER_ARGUMENTS & faults else "", refusal=why)
        return Verdict(self._finding(arguments, outcome, before), True, self._bound == self._sent)

    def _finding(self, arguments: str, outcome: _Outcome, before: Surroundings) -> str:
        assert self._loop is not None
        self._on_enter = lambda plain: None
        if outcome.raised is not None:
            return f"raised {_text_of(outcome.raised)}"
        if outcome.told is not None and (fault := _unreadable(outcome.told)):
            return fault
        if outcome.told is None and (fault := _fault_of_result(outcome.value, self._declared)):
            return fault
        if self._changed:
            return self._changed
        if fault := leak(lambda: self._once(arguments), self._loop, before):
            return fault
        try:
            if self.may_repeat and (fault := self._fault_of_repeat(arguments, outcome)):
                return fault
        except _WorldUnread as error:
            return str(error)
        return self._fault_of_cancel(arguments) if self._suspended else ""

    # Calling.

    def _entering(self) -> Callable[..., Any]:
        """The function, with a note that its body begins: pydantic has taken the arguments."""
        as_effect = getattr(self._tool, "alone_as", None)
        shown = getattr(self._tool, "alone", self._plain)

        @wraps(shown)
        def entering(*args: Any, **kwargs: Any) -> Any:
            self._bound = {**dict(zip(signature_of(shown).parameters, args, strict=False)), **kwargs}
            self._on_enter(self._bound == self._sent)
            function = as_effect(f"effect-{self._effects}") if as_effect else self._plain
            return function(*args, **kwargs)

        return entering

    def _once(self, arguments: str) -> _Outcome:
        self._bound = None
        try:
            result = self._adapter.validate_json(arguments)
            if inspect.isawaitable(result):
                result = self._run(_finished(result, self))
        except ToolError as error:
            return _Outcome(told=error)
        except ValidationError as error:
            return _Outcome(refused=error) if self._bound is None else _Outcome(raised=error)
        except BaseException as error:  # noqa: BLE001 - whatever a tool does, SystemExit too, is the finding
            return _Outcome(raised=error)
        return _Outcome(value=result)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """On one loop for all calls, as in the runtime: what a call leaves on it is seen."""
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        before = asyncio.all_tasks(self._loop)
        try:
            return self._loop.run_until_complete(coroutine)
        except (KeyboardInterrupt, SystemExit):
            # They leave the loop at once; what waited for the tool must not count as left behind by it.
            for task in asyncio.all_tasks(self._loop) - before:
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            raise

    def note_suspended(self) -> None:
        """The tool waits for something, and so can be cancelled there."""
        self._suspended = True

    # Again, and cancelled.

    def _fault_of_repeat(self, arguments: str, first: _Outcome) -> str:
        """The same call again, with the same effect id: the runtime does that when it cannot know whether it ran."""
        written = self._written(first)
        before, world = dict(_named_data(self._plain)), self._read_world()
        second = self._once(arguments)
        if second.kind != first.kind:
            fault = f"{first.kind} at first and {second.kind} when called again"
        elif (again := self._written(second)) != written:
            fault = f"gives {_short(written)} at first and {_short(again)} when called again"
        elif (now := self._written(first)) != written:
            fault = f"a second call turns its first result {_short(written)} into {_short(now)}"
        elif (after := self._read_world()) != world:
            fault = f"a second call changes the world from {_short(_repr(world))} to {_short(_repr(after))}"
        else:
            changed = ((name, now) for name, now in _named_data(self._plain) if now != before.get(name, now))
            fault = next((f"a second call changes {n} from {_short(before[n])} to {_short(v)}" for n, v in changed), "")
        return f'has effect="repeat", but {fault}' if fault else ""

    def _read_world(self) -> object:
        """As it is now: what it is read into may be one object that changes."""
        if self._world is None:
            return None
        try:
            read = self._world()
            if inspect.isawaitable(read):
                read = self._run(_awaited(read))
        except Exception as error:
            raise _WorldUnread(f"cannot be judged: world() raised {_text_of(error)}") from error
        try:
            kept = copy.deepcopy(read)
            is_comparable = bool(copy.deepcopy(kept) == kept)
        except Exception:  # noqa: BLE001 - a class of the test's
            is_comparable = False
        if not is_comparable:
            given = f"world() gives {_short(_repr(read))}"
            raise _WorldUnread(
                f"cannot be judged: {given}; it must give what can be copied and compared, as a list of tuples"
            )
        return kept

    def _written(self, outcome: _Outcome) -> str:
        """The result as JSON. What a ToolError says may differ: the time, the attempt."""
        if outcome.kind != "returns a result":
            return ""
        return self._declared.dump_json(outcome.value).decode()

    def _fault_of_cancel(self, arguments: str) -> str:
        """A tool that waits must end when it is cancelled: a deadline is kept by that."""
        self._suspended = False
        if self._cancelled >= MAX_CANCELLED:
            return ""
        self._cancelled += 1
        self._effects += 1
        outcome = self._adapter.validate_json(arguments)
        fault: str = self._run(_cancelled(outcome))
        self._suspended = False
        return fault


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


async def _finished(awaitable: Any, examination: Examination) -> Any:
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    if not task.done():
        examination.note_suspended()
    await asyncio.wait({task})
    for _ in range(3):  # what the tool has just cancelled may end
        await asyncio.sleep(0)
    return await task


async def _cancelled(awaitable: Any) -> str:
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    if task.done():
        return ""
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not task.done():
        return f"goes on for more than {CANCEL_SECONDS:g} s after it was cancelled"
    if task.cancelled():
        return ""
    error = task.exception()
    if error is None:
        return "swallows its cancellation: it was cancelled, and returned a result"
    return f"turns its cancellation into {_text_of(error)}"


# Results.


def _declared(tool: Any, plain: Any) -> TypeAdapter[Any]:
    """What the tool says that it returns; a callboard Tool has found that out already."""
    result = getattr(getattr(tool, "signature", None), "result", None)
    if isinstance(result, TypeAdapter):
        return result
    return TypeAdapter(get_type_hints(plain, include_extras=True).get("return", Any))


def _fault_of_result(result: Any, declared: TypeAdapter[Any]) -> str:
    if isinstance(result, Deferred):  # what it declares is what comes from outside
        return ""
    shown = _short(_repr(result))
    try:
        value = declared.validate_python(result, strict=True)
        number = _not_finite(declared.dump_python(value))
        written = declared.dump_json(value)
    except ValidationError as error:
        return f"returned {shown}, which is not what it declares: {_faults(error)}"
    except Exception as error:  # noqa: BLE001 - serialisers and properties are code of the tool's author too
        return f"returned {shown}, which is no JSON: {_text_of(error)}"
    if number:
        return f"returned {shown}: JSON has no {number}"
    if len(written) > MAX_RESULT_BYTES:
        return f"returned {len(written)} bytes; at most {MAX_RESULT_BYTES} are sent"
    return ""


def _not_finite(value: Any) -> str:
    """The first NaN or infinity in a result, "" where all numbers are finite."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else str(value)
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    return next((found for item in items if (found := _not_finite(item))), "")


def _named_data(function: Any) -> Iterator[tuple[str, str]]:
    """The data that a function's code names outside of it, as text: what a second call may change."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(plain, FunctionType):
        return
    named = inspect.getclosurevars(plain)
    for name, value in {**named.globals, **named.nonlocals, "self": getattr(function, "__self__", None)}.items():
        if callable(value) or isinstance(value, ModuleType):
            continue
        yield name, _repr(vars(value) if hasattr(value, "__dict__") else value)


# Words.


def _text_of(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        return f"ValidationError: {_faults(error)}"
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as fault:  # noqa: BLE001 - a __str__ of the tool's own
        return f"{kind}, whose text cannot be read: its __str__ raises {type(fault).__name__}"
    return f"{kind}: {' '.join(text.split())}" if text else kind


def _unreadable(error: ToolError) -> str:
    """A ToolError's text is what the model reads."""
    try:
        text = str(error)
    except Exception as fault:  # noqa: BLE001 - as above
        return f"raised {type(error).__name__}, whose text cannot be read: its __str__ raises {type(fault).__name__}"
    return "" if text.strip() else f"raised {type(error).__name__} without a text: it is all that the model reads"


def _faults(error: ValidationError) -> str:
    """On one line, without the addresses that pydantic adds."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'the value'}: {fault['msg']}" for fault in error.errors()[:3]
    )


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as fault:  # noqa: BLE001 - a __repr__ of the tool's own
        return f"<{type(value).__name__}, whose repr raises {type(fault).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
