"""Tools as people are shown them, by `callboard tools` and by `/tools` in a conversation: a row each, or all of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from callboard import Decision, UsageError
from callboard.actors.cli.columns import table, wrapped
from callboard.actors.cli.terminal import cleaned, printable
from callboard.actors.config_file import similar
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import depends_on_call, staged

_HEADINGS: Final = ("TOOL", "RISK", "POLICY", "WHAT IT DOES")
#: What the policy's decision means for a model.
_POLICY: Final = {Decision.ALLOW: "allowed", Decision.ASK: "asked", Decision.DENY: "not offered"}
#: Where each call is judged, by its arguments; and where the edit is asked about which a call has staged.
_BY_RULE: Final = ((depends_on_call, "each call"), (staged, "staged"))


class ListedTool(Struct, frozen=True):
    """One tool."""

    name: str
    risk: str
    decision: Decision
    rule: str
    """Why the policy decides so."""
    isolation: str
    timeout_seconds: float
    confinement: str
    description: str
    parameters: Mapping[str, object]
    is_withdrawn: bool
    """It fails too often; one that is denied is not asked for its health."""

    @classmethod
    def of(cls, offer: ToolOffer, offered: frozenset[str], workspace: Path | None = None) -> Self:
        """A runtime's, of which these are offered now."""
        contract, definition = offer.contract, offer.definition
        confined = offer.confinement
        return cls(
            definition.name,
            contract.risk,
            offer.decision,
            offer.rule,
            contract.isolation,
            contract.timeout_seconds,
            confined if workspace is None else confined.replace(str(workspace), "the workspace"),
            definition.description,
            definition.parameters,
            offer.decision is not Decision.DENY and definition.name not in offered,
        )

    @property
    def policy(self) -> str:
        """What the policy says, in a word or two."""
        shown = (shown for words, shown in _BY_RULE if words(self.name) == self.rule)
        return next(shown, _POLICY[self.decision])

    @property
    def state(self) -> str:
        return "withdrawn" if self.is_withdrawn else "healthy"


def tools_shown(tools: Sequence[ListedTool], names: Sequence[str], columns: int | None) -> str:
    """A row each; or all that there is to say of those that are named. Raises UsageError for a name that is none."""
    if not names:
        return table([_HEADINGS, *map(_row, tools)], columns) if tools else "no tools"
    return "\n\n".join("\n".join(_details(each, columns)) for each in chosen(tools, names))


def chosen(tools: Sequence[ListedTool], names: Sequence[str]) -> list[ListedTool]:
    """Those of these names; without names all. Raises UsageError."""
    known = {each.name: each for each in tools}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no tool {name!r:.60}{similar(name, known)}; `callboard tools` lists them")
    return [known[name] for name in names or known]


def _row(tool: ListedTool) -> tuple[str, ...]:
    policy = tool.state if tool.is_withdrawn else tool.policy
    first_line = tool.description.partition("\n")[0]
    return tuple(map(printable, (tool.name, tool.risk, policy, first_line)))


def _details(tool: ListedTool, columns: int | None) -> Iterator[str]:
    yield printable(tool.name)
    told = {
        "risk": tool.risk,
        "policy": f"{tool.policy}: {tool.rule}" if tool.rule else tool.policy,
        "state": tool.state,
        "runs in": f"{tool.isolation}, for at most {tool.timeout_seconds:g} s",
        "confined to": tool.confinement,
    }
    for title, text in told.items():
        yield wrapped(f"  {title}: {printable(text)}", columns, "    ")
    for line in cleaned(tool.description).strip().split("\n"):
        yield wrapped(f"  {line}".rstrip(), columns, "  ")
    arguments = tool.parameters.get("properties")
    for name, schema in arguments.items() if isinstance(arguments, Mapping) else ():
        yield wrapped(f"  {printable(_argument(name, schema, tool.parameters))}", columns, "    ")


def _argument(name: str, schema: object, parameters: Mapping[str, object]) -> str:
    required = parameters.get("required")
    optional = "" if isinstance(required, Sequence) and name in required else ", may be left out"
    if not isinstance(schema, Mapping):
        return name
    described = schema.get("description")
    return f"- {name} ({_type(schema)}{optional})" + (f": {described}" if described else "")


def _type(schema: Mapping[str, object]) -> str:
    """In the words of JSON Schema."""
    several = schema.get("anyOf")
    if isinstance(several, Sequence):
        return " or ".join(dict.fromkeys(_type(each) for each in several if isinstance(each, Mapping)))
    choices = schema.get("enum")
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        return " | ".join(map(str, choices))
    return str(schema.get("type", "anything"))
