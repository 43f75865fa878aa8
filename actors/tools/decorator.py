"""`@tool`: a function, its definition for the model, and its contract with the runtime."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Literal, overload
from weakref import WeakValueDictionary

from msgspec.structs import replace
from typing_extensions import ParamSpec, TypeVar

from callboard.actors.processes.spawning import why_not
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Invoker
from callboard.actors.tools.schema import RESOURCE_PARAMETER, Signature, describe, is_ours, read_signature
from callboard.actors.tools.shipping import pack
from callboard.actors.tools.transaction import Statements
from callboard.protocol import limits
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Effect, Isolation, Latency, Origin, Risk, ToolContract, ToolDefinition

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
    from callboard.actors.tools import functions, kept, resources
    from callboard.protocol import annotation_reading
else:
    annotation_reading = lazy_module("callboard.protocol.annotation_reading")
    functions = lazy_module("callboard.actors.tools.functions")
    kept = lazy_module("callboard.actors.tools.kept")
    resources = lazy_module("callboard.actors.tools.resources")
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

P = ParamSpec("P", default=...)
R = TypeVar("R", covariant=True, default=object)
Choice = TypeVar("Choice", bound=StrEnum)

RiskName = Literal["read", "write", "execute", "network", "undeclared"]
IsolationName = Literal["process", "task", "thread", "caller"]
LatencyName = Literal["short", "long"]
EffectName = Literal["repeat", "once", "transaction"]
AccessName = Literal["read", "write", "delete", "command", "address"]
Accesses = Mapping[str, AccessKind | AccessName] | Callable[[Mapping[str, object]], Iterable[Access]]
"""What a call would touch: the kind of access by the argument that names it, or a function of all arguments."""

#: The names that every provider takes (OpenAI's rule, the narrowest).
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Called directly, it is that function."""

    function: Callable[P, R]
    definition: ToolDefinition
    contract: ToolContract
    signature: Signature
    accesses: Accesses = field(default_factory=dict)
    """What a call would touch, by its arguments; see `accesses_of`."""
    resource: resources.Factory | None = None
    """Opens what the function gets as its parameter `resource`, once where its calls run."""

    def accesses_of(self, arguments: Mapping[str, object]) -> tuple[Access, ...]:
        """What a call with these arguments would touch. A function given as `accesses` may raise anything."""
        if callable(self.accesses):
            return tuple(self.accesses(arguments))
        named = [(name, AccessKind(kind), arguments.get(name)) for name, kind in self.accesses.items()]
        return tuple(access for name, kind, value in named for access in _named(name, kind, value))

    @property
    def name(self) -> ToolName:
        """As the model knows it."""
        return self.definition.name

    @property
    def origin(self) -> Origin:
        """Who brought it to the runtime."""
        return self.contract.origin

    @cached_property
    def owned(self) -> Tool[P, R]:
        """The tool as its owner's own: what a runtime makes of the tools passed to it."""
        return dataclasses.replace(self, contract=replace(self.contract, origin=Origin.OWNER))

    @cached_property
    def packed(self) -> bytes:
        """The tool as a child process gets it. Raises UsageError when it cannot be shipped."""
        return pack(self.name, self.function, self.signature, self.resource)

    @cached_property
    def invoker(self) -> Invoker:
        """The tool ready to be called, in this process. Making it builds validators, 1 ms: ask for it off the loop."""
        return Invoker(self.name, self.function, self.signature, self.resource)

    @property
    def alone(self) -> Callable[..., R]:
        """The function for a call outside of a runtime: its ToolContext, where it takes one, is made up, and its
        resource is opened for the call. The statements of its transaction are checked and forgotten."""
        return self.alone_as("alone")

    def alone_as(self, effect_id: str) -> Callable[..., R]:
        """`alone`, as the call with this effect id: twice the same id is the same call, run again."""
        function: Callable[..., R] = self.function
        hidden, runs = [self.signature.context_parameter], function
        if self.resource is not None:
            hidden.append(RESOURCE_PARAMETER)
            runs = resources.opened_for(function, self.resource, is_async=self.contract.isolation in _ASYNC)
        if not any(hidden):
            return function

        @wraps(function)
        def alone(*args: object, **kwargs: object) -> R:
            tag = Tag(RequestId("alone"), MessageId("alone"))
            run = RunTool(tag, self.name, "{}", time.monotonic() + self.contract.timeout_seconds, effect_id)
            context = ToolContext(run)
            if self.contract.effect is Effect.TRANSACTION:
                context = context.within(Statements())
            made_up = {self.signature.context_parameter: context} if self.signature.context_parameter else {}
            return runs(*args, **kwargs, **made_up)

        shown = annotation_reading.signature_of(function)
        left = [parameter for parameter in shown.parameters.values() if parameter.name not in hidden]
        alone.__signature__ = shown.replace(parameters=left)  # type: ignore[attr-defined]
        alone.__annotations__ = functions.annotations_in(alone.__signature__)  # type: ignore[attr-defined]
        return alone

    def check(self) -> None:
        """Raise UsageError if the tool cannot run where its contract says; ask when it is registered.

        Not asked at the decorator already: a function may use names that its module defines further down.
        """
        if self.contract.isolation is Isolation.PROCESS:
            if reason := why_not():
                raise UsageError(f"tool {self.name} cannot run: {reason}")
            if not is_ours(self.function):
                self.packed  # noqa: B018 - making it is the check

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function, here and now."""
        return self.function(*args, **kwargs)

    def __getstate__(self) -> dict[str, object]:
        """Without what is derived from it."""
        derived = ("packed", "invoker", "owned")
        return {name: value for name, value in self.__dict__.items() if name not in derived}


def _named(name: str, kind: AccessKind, value: object) -> Iterator[Access]:
    """What an argument names: a text is one thing, a list of texts several."""
    if isinstance(value, str):
        yield Access(kind, value, name)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _named(f"{name}.{at}", kind, each)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    risk: Risk | RiskName = Risk.UNDECLARED,
    timeout: float = limits.DEFAULT_TOOL_TIMEOUT_SECONDS,
    isolation: Isolation | IsolationName | None = None,
    concurrency: int | None = None,
    latency: Latency | LatencyName = Latency.SHORT,
    effect: Effect | EffectName = Effect.ONCE,
    needs_approval: bool = False,
    reuse: bool = False,
    paths: Sequence[str] | None = None,
    hosts: Sequence[str] | None = None,
    trusted: bool = False,
    accesses: Accesses = ...,
    can_be_held: bool | None = None,
    deferred: bool = False,
    resource: resources.Factory | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    risk: Risk | RiskName = Risk.UNDECLARED,
    timeout: float = limits.DEFAULT_TOOL_TIMEOUT_SECONDS,
    isolation: Isolation | IsolationName | None = None,
    concurrency: int | None = None,
    latency: Latency | LatencyName = Latency.SHORT,
    effect: Effect | EffectName = Effect.ONCE,
    needs_approval: bool = False,
    reuse: bool = False,
    paths: Sequence[str] | None = None,
    hosts: Sequence[str] | None = None,
    trusted: bool = False,
    accesses: Accesses = MappingProxyType({}),
    can_be_held: bool | None = None,
    deferred: bool = False,
    resource: resources.Factory | None = None,
    **unknown: object,
) -> object:
    """Make a function a tool, as `@tool` or `@tool(timeout=10)`.

    `timeout` is in seconds. `isolation` is `process` for a `def` and `task` for an `async def` unless it is given, and
    `concurrency` (calls at the same time, of all requests together) what `limits.TOOL_CONCURRENCY` says of it.
    `risk` says what the function can do to the world, and so who must approve its calls. Without it the risk is
    `undeclared`: a policy allows that for functions passed to the runtime, and asks about those from elsewhere.
    `effect` says what becomes of a call when its process died and it is not known whether it ran: it is run again
    (`repeat`), the model reads that it may have had its effect (`once`, unless it is given), or its effect is
    committed together with its outcome, in the journal's database (`transaction`; docs/tools.md).
    `accesses` says what a call would touch, so that a policy can judge each call by it: `{"path": "read"}`, the kind of
    access (read, write, delete, command, address) by the argument that names the path, command or URL (a text, or a
    list of texts), or a function that makes `Access`es of the arguments. `paths` and `hosts` are all that a confined
    call may touch (the workspace and any host unless they are given). `trusted=True`: its results are the owner's own
    words, which do not try to steer the model. `can_be_held=False`: a call that only runs a line which reads needs to
    write or to connect itself (it logs, or sends the line elsewhere), so the kernel must not hold it to reading; else a
    tool that runs lines in a child process of each call's own can be held. `deferred=True`: a model is not shown the
    tool from the beginning, and finds it by searching (docs/tools.md).
    `resource` opens what the tool needs and keeps (a pool, a session): a function without arguments that yields it once
    or returns a context manager of it. The tool gets it as its parameter `resource`, which the model does not see. It
    is opened by the first call on each loop or thread, or in each child process, and closed with it (docs/tools.md).
    The model's description and the arguments' JSON Schema come from docstring and signature. Raises UsageError for
    anything that could not work, naming the parameter and the remedy.

    A call in a process finds a fresh child, forked ahead from one that has loaded the tool, so nothing that a call
    changes there reaches the next. `reuse=True` keeps the child for further calls, of any request, where a call itself
    loads what is expensive (a model, a connection). Working directory, umask, environment, sys.path, recursion limit
    and the handlers of SIGINT, SIGTERM and SIGALRM are then put back between calls. The rest can leak into the next
    call: module and context variables, caches, patched modules, open files and connections, rlimits, random state.
    """

    for wrong in unknown:
        raise wrong_calls.no_tool_option(wrong, (*(tool.__kwdefaults__ or ()),))

    def decorate(given: Callable[..., object]) -> Tool:
        function = functions.function_of(given)
        known_as = _name_of(given, name)
        try:
            runs_in = _isolation(function, isolation)
            contract = ToolContract(
                risk=_choice("risk", Risk, risk),
                timeout_seconds=_deadline(timeout),
                isolation=runs_in,
                concurrency=_concurrency(concurrency, runs_in),
                latency=_choice("latency", Latency, latency),
                effect=_choice("effect", Effect, effect),
                needs_approval=needs_approval,
                reuse=_reuse(reuse, runs_in),
                paths=_texts("paths", paths),
                hosts=_texts("hosts", hosts),
                is_trusted=trusted,
                can_be_held=_can_be_held(can_be_held, runs_in, risk, reuse),
            )
            _flag("deferred", deferred)
            hidden = _resource(resource, function, runs_in)
        except ValueError as wrong:
            raise UsageError(f"tool {known_as}: {wrong}") from None
        signature = read_signature(function, known_as, local_names, hidden)
        definition = ToolDefinition(
            ToolName(known_as), description or describe(function), signature.json_schema(), deferred=deferred
        )
        return Tool(function, definition, contract, signature, _accesses(known_as, accesses, signature), resource)

    frame = inspect.currentframe()
    local_names: Mapping[str, object] = frame.f_back.f_locals if frame and frame.f_back else {}
    return decorate if function is None else decorate(function)


def as_tool(given: object) -> Tool:
    """A tool as it is, and a plain function as `@tool` alone makes it one: the same function is always the same tool.

    The tool of a bound method, or of what only behaves like a function, is the same as long as it is in use. Raises
    UsageError for what is neither, and where `@tool` would.
    """
    if isinstance(given, Tool):
        return given
    if not callable(given) or isinstance(given, type):
        raise wrong_calls.not_a_tool(given)
    if inspect.isfunction(given):
        shelf = kept.shelf_of(given)
        found = shelf.get(_TOOL) if shelf is not None else None
        if not isinstance(found, Tool):
            found = tool(given)
            if shelf is not None:
                shelf.keep(_TOOL, found)
        return found
    key = (id(given.__self__), id(given.__func__)) if inspect.ismethod(given) else (id(given), 0)
    made = _in_use.get(key)
    if made is None:
        made = _in_use[key] = tool(given)
    return made


#: Under which a function keeps its tool.
_TOOL: Final = "tool"
#: By the ids of what each tool holds, which are its own for as long as the tool lives.
_in_use: Final[WeakValueDictionary[tuple[int, int], Tool]] = WeakValueDictionary()


def _name_of(given: object, name: str) -> str:
    name = name or functions.name_of(given)
    if not NAME.fullmatch(name):
        raise UsageError(f"tool name {name!r} is not 1 to 64 letters, digits, _ or -; give one with @tool(name=...)")
    return name


# -- options: a ValueError says what is wrong with one ------------------------------------------------------------


def _choice(option: str, choices: type[Choice], value: str) -> Choice:
    if value not in list(choices):
        raise ValueError(f"{option}={value!r} is none of {', '.join(choices)}")
    return choices(value)


def _deadline(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"timeout={seconds!r} is not a number of seconds")
    if not 0 < seconds <= limits.MAX_TOOL_TIMEOUT_SECONDS:
        most = f"{limits.MAX_TOOL_TIMEOUT_SECONDS:g}"
        raise ValueError(f"timeout={seconds!r} is out of range; give more than 0 and at most {most} seconds")
    return float(seconds)


def _concurrency(calls: int | None, isolation: Isolation) -> int:
    if calls is None:
        return limits.TOOL_CONCURRENCY[isolation.value]
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        raise ValueError(f"concurrency={calls!r} is not a whole number of 1 or more")
    return calls


def _flag(option: str, given: bool | None) -> None:
    if not isinstance(given, bool):
        raise ValueError(f"{option}={given!r} is neither True nor False")


def _reuse(reuse: bool, isolation: Isolation) -> bool:
    _flag("reuse", reuse)
    if reuse and isolation is not Isolation.PROCESS:
        raise ValueError(
            f"reuse=True keeps a child process for further calls, but isolation={isolation.value!r} has none; "
            "leave reuse out, or use isolation='process' with a plain `def`"
        )
    return reuse


def _resource(factory: object, function: Callable[..., object], isolation: Isolation) -> str:
    """The parameter that gets what it opens; "" where there is none."""
    if factory is None:
        return ""
    resources.check(factory, is_async=isolation in _ASYNC)
    if RESOURCE_PARAMETER not in functions.signature_as_shown(function).parameters:
        raise ValueError(f"resource= is passed to a parameter called {RESOURCE_PARAMETER!r}, which it has not: add one")
    return RESOURCE_PARAMETER


def _can_be_held(given: bool | None, isolation: Isolation, risk: str, reuse: bool) -> bool:
    if given is not None:
        _flag("can_be_held", given)
    runs_programs = isolation is Isolation.PROCESS and risk == Risk.EXECUTE and not reuse
    return runs_programs if given is None else given


def _texts(option: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(each, str) and each for each in given):
        raise ValueError(f"{option}={given!r} is not a list of texts that are not empty")
    return tuple(given)


def _accesses(tool_name: str, given: Accesses, signature: Signature) -> Accesses:
    """Checked, since an argument that is misspelt would never be judged; by the names that a model sends."""
    if callable(given):
        return given
    known = {name: each.shown for each in signature.parameters for name in (each.name, each.shown)}
    for name, kind in given.items():
        if name not in known:
            raise UsageError(f"tool {tool_name}: accesses names {name!r}, which is none of its arguments")
        if kind not in list(AccessKind):
            raise UsageError(f"tool {tool_name}: accesses={{{name!r}: {kind!r}}} is none of {', '.join(AccessKind)}")
    return {known[name]: AccessKind(kind) for name, kind in given.items()}


def _isolation(function: Callable[..., object], wanted: Isolation | str | None) -> Isolation:
    awaited = functions.is_async(function)
    if wanted is None:
        return Isolation.TASK if awaited else Isolation.PROCESS
    isolation = _choice("isolation", Isolation, wanted)
    if inspect.iscoroutinefunction(function) and isolation not in _ASYNC:
        raise ValueError(
            f"isolation={isolation.value!r} runs a plain `def`, but this is an `async def`; "
            "make it a `def`, or leave isolation out"
        )
    if not awaited and isolation in _ASYNC:
        raise ValueError(
            f"isolation={isolation.value!r} runs an `async def`, and a `def` would block {_ASYNC[isolation]}; "
            "make it an `async def`, or use 'process' or 'thread'"
        )
    return isolation


#: Where an `async def` can run, and whose loop that is.
_ASYNC: Final = MappingProxyType(
    {Isolation.TASK: "the loop of all others", Isolation.CALLER: "the loop of your program"}
)
