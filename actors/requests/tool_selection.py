"""Which tools one question offers: some of the runtime's, and those that only it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from callboard.actors.config_file import similar
from callboard.actors.requests.client_tools import ClientTool
from callboard.actors.tools import Tool
from callboard.actors.tools.decorator import as_tool
from callboard.actors.tools.schema import is_ours
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.options import ToolOffer

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
else:
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

ALL: Final = "*"
"""In `tools=`: all of the runtime's."""


class ToolSelection(Struct, frozen=True):
    """What a question says of its tools."""

    names: frozenset[ToolName] | None = None
    """Of the runtime's; None: all of them."""
    own: Mapping[ToolName, Tool] = field(default_factory=dict)
    """Those that only this question has."""
    own_offers: tuple[ToolOffer, ...] = ()
    """With what the policy says of each; those that the asker runs among them."""

    def offers(self, of_runtime: Iterable[ToolOffer]) -> tuple[ToolOffer, ...]:
        """What the question offers, of what the runtime can offer now."""
        names = self.names
        if names is None:
            return (*of_runtime, *self.own_offers)
        chosen = (offer for offer in of_runtime if offer.definition.name in names)
        useful = (offer if offer.contract.only_with in ("", *names) else offer.of_no_use() for offer in chosen)
        return (*useful, *self.own_offers)


def selection_of(
    given: object, of_runtime: Mapping[ToolName, Tool], offer: Callable[[Tool], ToolOffer]
) -> ToolSelection:
    """`tools=` as it is meant; `offer` says what the policy makes of a tool.

    Raises UsageError for unknown and repeated names, and for what is no tool."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise wrong_calls.not_tools(given, "tools and names of tools")
    names: set[ToolName] = set()
    own: dict[ToolName, Tool] = {}
    outside: dict[ToolName, ToolOffer] = {}
    for each in given:
        if isinstance(each, ClientTool):
            _add_outside(each, outside)
        elif not isinstance(each, str):
            found = as_tool(each)
            if of_runtime.get(found.name) is found.owned:
                names.add(found.name)
            else:
                _add_own(found.owned, own, of_runtime)
        elif each != ALL and each not in of_runtime:
            known = ", ".join(of_runtime) or "none"
            hint = similar(each, dict.fromkeys(map(str, of_runtime)))
            advice = "" if hint else "; a function is given itself, neither called nor as a text"
            raise UsageError(f"there is no tool {each!r}{hint}; the tools of this runtime are: {known}{advice}")
        elif each in names:
            raise UsageError(f"tools names {each!r} twice; leave one out")
        else:
            names.add(ToolName(each))
    chosen = (set(of_runtime) if ALL in names else names) | own.keys()
    if both := sorted(chosen & outside.keys()):
        raise UsageError(f"two tools are called {both[0]!r}; rename one, or name the runtime's tools without it")
    offers = (*map(offer, own.values()), *outside.values())
    return ToolSelection(None if ALL in names else frozenset(names), own, offers)


def named_as_ours(name: str) -> str:
    """A tool of the user's has the name of one of callboard's own: rules, prompts and saved answers mean that one."""
    return (
        f"two tools are called {name!r}: yours, and one of callboard's own, which does not give way, since rules and "
        f'saved answers go by its name; rename yours with @tool(name="my_{name}")'
    )


def _add_outside(tool: ClientTool, outside: dict[ToolName, ToolOffer]) -> None:
    name = ToolName(tool.name)
    if name in outside:
        raise UsageError(f"two tools are called {tool.name!r}; rename one")
    outside[name] = tool.offer


def _add_own(tool: Tool, own: dict[ToolName, Tool], of_runtime: Mapping[ToolName, Tool]) -> None:
    if tool.name in own:
        raise UsageError(f"two tools are called {tool.name!r}; rename one with @tool(name=...)")
    if tool.name in of_runtime and is_ours(of_runtime[tool.name].function):
        raise UsageError(named_as_ours(tool.name))
    if tool.name in of_runtime:
        raise UsageError(
            f"this runtime has another tool {tool.name!r}; name that one as a text, or rename yours by @tool(name=...)"
        )
    tool.check()
    own[tool.name] = tool
