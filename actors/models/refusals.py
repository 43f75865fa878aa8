"""What models said of themselves when they refused a request: that they take no tools or no schema of the answer, or
how small their window is."""

from __future__ import annotations

from typing import Final, TypeVar

#: For so long a model is asked without tools: routes change, and servers are started with other options.
NO_TOOLS_SECONDS: Final = 3_600.0
#: For so long it is asked for an answer's form in another way than by a schema.
NO_SCHEMA_SECONDS: Final = 3_600.0
#: For so long a window is believed. Shorter, because a window that is too small can refuse a question: a model that was
#: loaded with a larger one (LM Studio, Ollama) is found out by asking it.
WINDOW_SECONDS: Final = 300.0
#: Models of which something is remembered: more than any settings name.
MAX_MODELS: Final = 1_000

_T = TypeVar("_T")


class Refusals:
    """Learned by the LLM manager as models refuse, on the loop; read when a request begins, on any thread.

    It belongs to the runtime and outlives the manager. `name` is "provider/model", `now` the runtime's clock (seconds).
    """

    def __init__(self, *, remembers_no_tools: bool = True) -> None:
        """`remembers_no_tools`: not where such a refusal is to end the request, each time (ToolFallback.FAIL)."""
        self._remembers_no_tools = remembers_no_tools
        self._no_tools: dict[str, float] = {}
        """Until when it is believed."""
        self._no_schemas: dict[str, float] = {}
        self._windows: dict[str, tuple[int, float]] = {}

    def forget(self, *, remembers_no_tools: bool) -> None:
        """The names may stand for other models from now on."""
        self._remembers_no_tools = remembers_no_tools
        for memory in (self._no_tools, self._no_schemas, self._windows):
            memory.clear()

    def learn_no_tools(self, name: str, now: float) -> None:
        """The model takes no tools."""
        if self._remembers_no_tools:
            _remember(self._no_tools, name, now + NO_TOOLS_SECONDS)

    def forget_no_tools(self, name: str) -> None:
        """It refused a request without tools in the same words: they meant something else."""
        self._no_tools.pop(name, None)

    def takes_tools(self, name: str, now: float) -> bool:
        """True unless it has refused them within the hour."""
        return self._no_tools.get(name, now) <= now

    def learn_no_schema(self, name: str, now: float) -> None:
        """The model takes no schema of the answer, or not one that it was sent."""
        _remember(self._no_schemas, name, now + NO_SCHEMA_SECONDS)

    def takes_schemas(self, name: str, now: float) -> bool:
        """True unless it has refused one within the hour."""
        return self._no_schemas.get(name, now) <= now

    def learn_window(self, name: str, tokens: int, now: float) -> None:
        """The model takes no more tokens than these, its answer included."""
        _remember(self._windows, name, (tokens, now + WINDOW_SECONDS))

    def window(self, name: str, now: float) -> int | None:
        """The window that it named not long ago, when it refused a prompt as too long; None: it has not."""
        tokens, until = self._windows.get(name, (0, now))
        return tokens if until > now else None


def _remember(memory: dict[str, _T], name: str, value: _T) -> None:
    memory.pop(name, None)
    memory[name] = value
    if len(memory) > MAX_MODELS:
        del memory[next(iter(memory))]
