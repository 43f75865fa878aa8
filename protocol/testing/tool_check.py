"""`check_tool`: a user's tool, called with what its schema lets a model send, and watched closely."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

import orjson
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import find as smallest
from hypothesis.errors import NoSuchExample, Unsatisfiable
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from callboard.protocol.ids import ToolName
from callboard.protocol.testing.schema_values import boundary_values, schema_values
from callboard.protocol.testing.tool_child import Child, Verdict
from callboard.protocol.testing.tool_examination import Examination
from callboard.protocol.testing.tool_literals import literals_of
from callboard.protocol.tools import Isolation, ToolDefinition

#: One call, unless the tool's own timeout is shorter: a test that takes longer is not run often.
DEFAULT_CALL_SECONDS: Final = 5.0
DEFAULT_CHECK_SECONDS: Final = 60.0
#: After a finding, as long as this (or three calls) is spent on making its arguments smaller.
SHRINK_SECONDS: Final = 3.0
#: A check that could make fewer calls than this has seen nothing worth the name.
MIN_CALLS: Final = 10
#: Examples that are drawn before the time is looked at.
_BATCH: Final = 100
#: Of the arguments, before what was found; the line that makes the call again has all of them.
_SHOWN_CHARS: Final = 300
#: What OpenAI and Anthropic take as a tool's name; Gemini takes more.
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: Calls that give a generator of random numbers its seed: of the standard library, numpy, torch, jax and Faker.
_SEEDING: Final = frozenset(
    {"Random", "seed", "seed_instance", "default_rng", "RandomState", "SeedSequence", "manual_seed", "PRNGKey"}
    | {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
)


def definition_of(tool: Callable[..., Any]) -> ToolDefinition:
    """A tool's own definition, or one made from a plain function's signature and docstring."""
    given_one = getattr(tool, "definition", None)
    if isinstance(given_one, ToolDefinition):
        return given_one
    adapter: TypeAdapter[Any] = TypeAdapter(tool)  # type: ignore[arg-type]  # pydantic takes functions
    schema = adapter.json_schema()
    name = ToolName(getattr(tool, "__name__", "tool"))
    return ToolDefinition(name, inspect.getdoc(tool) or "", schema)


def check_tool(
    tool: Callable[..., Any],
    *,
    examples: int = 100,
    seconds: float = DEFAULT_CHECK_SECONDS,
    call_seconds: float | None = None,
    arguments: Sequence[Mapping[str, Any]] = (),
    world: Callable[[], object] | None = None,
) -> None:
    """Call a tool with what its schema lets a model send: `examples` drawn calls, and before them each argument at its
    bounds, at each member of its enum, and at each value that the tool's code compares with.

    A tool must return what it declares, strictly, as JSON of at most MAX_RESULT_BYTES, or raise ToolError; in time; and
    leave no thread, task, file, socket or process behind, and os.environ as it was. One with `effect="repeat"` must do
    nothing more when it is called again with the same effect id: not to its own data, and not outside, where `world`
    (sync or async) reads what it may change, such as the rows of a table. An async one must end when it is cancelled.
    The first breach raises AssertionError with the arguments and a line that makes the call again.

    All calls are made in one process. Each call of a process tool finds its module as it was loaded: a counter of the
    module's, or a generator of random numbers that gets a seed there, gives all of them the same. That is a UserWarning
    here, as far as the module's text shows it.

    `tool` is a callboard Tool or any function. It is called in a forked child process (Linux), which is killed where a
    call takes longer than `call_seconds` (the tool's own timeout, at most 5 s), so it may hang or crash; but files,
    network and databases are the real ones: give it a harmless world. A ToolContext is made up. The whole check takes
    about `seconds` at most. `arguments` are calls of your own, made first: needed where the tool's validators refuse
    all that is drawn by its schema, since a check whose calls never reached the tool's body fails.
    """
    try:
        definition = definition_of(tool)
        examination = Examination(tool, world)
    except PydanticUserError as error:
        raise AssertionError(f"{tool!r:.80} cannot be described to a model: {error.message}") from None
    assert _TOOL_NAME.fullmatch(definition.name), f"{definition.name!r} is no name that all providers take"
    if not definition.description:  # no assert: where pytest rewrites it, the sentence would not stay one
        raise AssertionError(f"{definition.name} has no description: the model cannot know what it is for")
    for what in _same_in_each_call(tool):
        said = f"{definition.name}: each call finds its module as it was loaded, so {what} gives all calls the same"
        warnings.warn(f"{said}; make it in the function", stacklevel=2)
    trial = _Trial(tool, definition, Child(examination), seconds, call_seconds)
    try:
        for own in arguments:
            trial.call(dict(own))
        trial.draw(examples)
        trial.check_reached(min(examples, MIN_CALLS))
    except _Found as found:
        raise AssertionError(str(found)) from None
    finally:
        trial.close()


class _Found(AssertionError):
    """What was found, as it is told to the user."""


class _Trial:
    """One check of one tool."""

    def __init__(
        self, tool: Any, definition: ToolDefinition, child: Child, seconds: float, call_seconds: float | None
    ) -> None:
        self._tool = tool
        self._name = definition.name
        self._schema = definition.parameters
        self._child = child
        self._call_seconds, self._limit = _call_limit(tool, seconds, call_seconds)
        self._seconds = seconds
        self._stop_at = time.monotonic() + seconds
        self._verdicts: dict[str, Verdict] = {}
        """By arguments. A call is made once: a tool with a memory must not make Hypothesis doubt what it saw."""
        self._found = False

    def close(self) -> None:
        self._child.close()

    def call(self, arguments: Mapping[str, Any]) -> None:
        """Raises _Found. Calls that come after the time is over are not made."""
        text = orjson.dumps(arguments).decode()
        verdict = self._verdicts.get(text)
        if verdict is None:
            left = self._stop_at - time.monotonic()
            if left <= 0:
                return
            verdict = self._child.call(text, self._call_seconds, self._limit)
            self._verdicts[text] = verdict
        if verdict.finding:
            if not self._found:
                self._found = True
                self._stop_at = time.monotonic() + max(SHRINK_SECONDS, 3 * self._call_seconds)
            shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
            raise _Found(f"{self._name}({shown}) {verdict.finding}; call it again: {self._line(text, verdict)}")

    def draw(self, examples: int) -> None:
        """First each argument at its edges, then whole calls."""
        hints = literals_of(getattr(self._tool, "function", self._tool))
        drawn = schema_values(self._schema, hints=hints)
        for arguments in self._edges(drawn, hints):
            self.call(arguments)

        # In batches: Hypothesis cannot be told to stop, and a schema may have fewer values than examples are asked for.
        for first in range(0, examples, _BATCH):
            made = len(self._verdicts)
            _quiet(min(_BATCH, examples - first))(given(drawn)(self.call))()
            if time.monotonic() >= self._stop_at or len(self._verdicts) == made:
                return

    def check_reached(self, least: int) -> None:
        """What was not reached proves nothing."""
        made = self._verdicts.values()
        if not any(verdict.entered for verdict in made):
            refusal = next((verdict.refusal for verdict in made if verdict.refusal), "there was no time for a call")
            raise _Found(
                f"{self._name}: none of {len(made)} calls reached the tool's body ({refusal}), so nothing was checked: "
                "give arguments=[{...}] that it takes"
            )
        if len(made) < least and time.monotonic() >= self._stop_at:
            raise _Found(
                f"{self._name}: only {len(made)} calls could be made within {self._seconds:g} s, too few to tell: "
                "give more seconds"
            )

    def _edges(self, drawn: Any, hints: Any) -> Iterator[dict[str, Any]]:
        try:
            plain = smallest(drawn, lambda value: True, settings=_quiet(100))
        except (NoSuchExample, Unsatisfiable):
            return
        yield plain
        properties: Any = self._schema.get("properties", {})
        for name, part in properties.items():
            for value in boundary_values(part, self._schema, hints):
                yield {**plain, name: value}

    def _line(self, arguments: str, verdict: Verdict) -> str:
        """Python that makes this very call; pydantic makes the arguments where they are not plain JSON values."""
        function = getattr(self._tool, "function", self._tool)
        name = getattr(function, "__name__", self._name)
        if getattr(self._tool, "alone", function) is not function:
            name = f"{name}.alone"
        if verdict.plain:
            line = f"{name}(**{orjson.loads(arguments)!r})"
        else:
            line = f"pydantic.TypeAdapter({name}).validate_json({arguments!r})"
        return f"asyncio.run({line})" if inspect.iscoroutinefunction(function) else line


def _same_in_each_call(tool: Any) -> Iterator[str]:
    """What the module of a process tool makes once, and each of its calls then finds anew."""
    function = inspect.unwrap(getattr(tool, "function", tool))
    contract = getattr(tool, "contract", None)
    if inspect.iscoroutinefunction(function) or (
        contract is not None and (contract.isolation is not Isolation.PROCESS or contract.reuse)
    ):
        return
    module = sys.modules.get(getattr(function, "__module__", ""))
    try:
        body = ast.parse(inspect.getsource(module)).body if module is not None else []
    except (OSError, TypeError, SyntaxError):  # there is no text of it
        return
    for statement in body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (f"`{ast.unparse(each)}` in line {each.lineno}" for each in ast.walk(statement) if _seeds(each))
    for name, value in vars(module).items():
        if isinstance(value, itertools.count):
            yield f"the counter {name!r}"


def _seeds(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = [*node.args, *(each.value for each in node.keywords)]
    return name in _SEEDING and any(not (isinstance(each, ast.Constant) and each.value is None) for each in given)


def _call_limit(tool: Any, seconds: float, call_seconds: float | None) -> tuple[float, str]:
    own = getattr(getattr(tool, "contract", None), "timeout_seconds", None)
    if own is not None and own <= (call_seconds or min(DEFAULT_CALL_SECONDS, seconds / 2)):
        return own, f"its own timeout of {own:g} s"
    limit = call_seconds or min(DEFAULT_CALL_SECONDS, seconds / 2)
    return limit, f"{limit:g} s (call_seconds)"


def _quiet(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
