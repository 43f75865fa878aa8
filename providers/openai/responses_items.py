"""The items of the Responses API that are neither text, reasoning nor a call of ours: how each is shown, and whether it
can go back in a later request.

With `store: false` the server keeps no item, so one can go back only if it says all by itself (openai SDK,
ResponseInputItemParam; Codex, which always asks with `store: false`, sends searches, pictures and compactions back).
A call that is waiting for its output is refused without it ("No tool output found", "MCP approval requests do not have
an approval"), so it goes back only together with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from callboard.providers.json_values import Body

#: Of what an item says so much is shown.
_MAX_SHOWN_CHARS: Final = 2_000
#: What a server adds to an item that it does not take back.
_ONLY_IN_ANSWERS: Final = frozenset({"created_by"})


class ItemKind(Struct, frozen=True):
    """One kind of item."""

    name: str = ""
    """The tool; "" where the item itself names it."""
    says: tuple[str, ...] = ()
    """The fields with what was asked and what came of it, with dots for what is inside."""
    needs: tuple[str, ...] = ()
    """The fields without which it cannot go back."""
    missing: Mapping[str, object] = field(default_factory=dict)
    """Fields that a request must have and an answer may leave out."""
    answered_by: str = ""
    """The kind of item that it cannot go back without."""
    pairs_by: str = "call_id"
    """The field by which the two belong together."""
    goes_back: bool = True


_ITEM_KINDS: Final[Mapping[str, ItemKind]] = {
    "web_search_call": ItemKind(
        "web_search",
        ("action.query", "action.queries", "action.url", "action.pattern"),
        ("action",),
        {"status": "completed"},
    ),
    "file_search_call": ItemKind(
        "file_search", ("queries", "results.filename"), ("queries",), {"status": "completed", "results": None}
    ),
    "code_interpreter_call": ItemKind(
        "code_execution",
        ("code", "outputs.logs"),
        ("container_id",),
        {"status": "completed", "code": None, "outputs": None},
    ),
    "image_generation_call": ItemKind(
        "image_generation", ("revised_prompt", "error.message"), (), {"status": "completed", "result": None}
    ),
    "mcp_call": ItemKind("", ("server_label", "arguments", "output", "error"), ("arguments", "server_label")),
    "mcp_list_tools": ItemKind("mcp_list_tools", ("server_label", "tools.name", "error"), ("server_label", "tools")),
    "mcp_approval_request": ItemKind(
        "",
        ("server_label", "arguments"),
        answered_by="mcp_approval_response",
        pairs_by="approval_request_id",
    ),
    "compaction": ItemKind("compaction", (), ("encrypted_content",)),
    "custom_tool_call": ItemKind("", ("input",), answered_by="custom_tool_call_output"),
    "custom_tool_call_output": ItemKind("custom_tool", ("output",), ("call_id", "output")),
    "computer_call": ItemKind("computer", ("action.type", "actions.type"), answered_by="computer_call_output"),
    "computer_call_output": ItemKind("computer", ("output.image_url",), ("call_id", "output")),
    "shell_call": ItemKind("shell", ("action.commands",), answered_by="shell_call_output"),
    "shell_call_output": ItemKind("shell", ("output.stdout", "output.stderr"), ("call_id", "output")),
    "local_shell_call": ItemKind("shell", ("action.command",), answered_by="local_shell_call_output"),
    "local_shell_call_output": ItemKind("shell", ("output",), ("id", "output")),
    "apply_patch_call": ItemKind(
        "apply_patch", ("operation.type", "operation.path"), answered_by="apply_patch_call_output"
    ),
    "apply_patch_call_output": ItemKind("apply_patch", ("output",), ("call_id", "status")),
    "tool_search_call": ItemKind("tool_search", ("arguments",), answered_by="tool_search_output"),
    "tool_search_output": ItemKind("tool_search", ("tools.name",), ("tools",)),
    "program": ItemKind("program", ("code",), answered_by="program_output"),
    "program_output": ItemKind("program", ("result",), ("call_id", "result")),
}
#: A kind that is not known here is shown, and does not go back: no one can tell whether its server takes it.
_UNKNOWN: Final = ItemKind("", ("query", "queries", "input", "code", "arguments", "output", "text"), goes_back=False)


#: A search for tools, and what it has loaded.
TOOL_SEARCHES: Final = frozenset({"tool_search_call", "tool_search_output"})


def found_tools(item: Mapping[str, object]) -> tuple[str, ...]:
    """The functions that a search has loaded, those of namespaces among them."""
    return tuple(_functions(item.get("tools"))) if item.get("type") == "tool_search_output" else ()


def _functions(tools: object, *, in_namespace: bool = False) -> Iterator[str]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") == "namespace" and not in_namespace:
            yield from _functions(tool.get("tools"), in_namespace=True)
        elif isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
            yield name


def kind_of_item(kind: str) -> ItemKind:
    """What is known of items of this `type`."""
    return _ITEM_KINDS.get(kind, _UNKNOWN)


def tool_name(item: Mapping[str, object]) -> str:
    """The tool whose item this is."""
    kind = str(item.get("type"))
    named = item.get("name")
    return kind_of_item(kind).name or (named if isinstance(named, str) else "") or kind.removesuffix("_call")


def shown_text(item: Mapping[str, object]) -> str:
    """What was asked and what came of it, in short."""
    texts = [text for path in kind_of_item(str(item.get("type"))).says for text in _texts_at(item, path.split("."))]
    return "\n".join(dict.fromkeys(texts))[:_MAX_SHOWN_CHARS]


def _texts_at(value: object, path: Sequence[str]) -> list[str]:
    if isinstance(value, list):
        return [text for each in value for text in _texts_at(each, path)]
    if path:
        return _texts_at(value.get(path[0]), path[1:]) if isinstance(value, dict) else []
    return [value] if isinstance(value, str) and value else []


def sent_back(item: Mapping[str, object], beside: Sequence[Mapping[str, object]]) -> tuple[Body | None, str]:
    """(the item as a later request carries it, ""), or (None, why it cannot go back). `beside`: its turn's items."""
    kind = kind_of_item(str(item.get("type")))
    if not kind.goes_back:
        return None, "an item of a kind that is not known here"
    if lacking := [name for name in kind.needs if item.get(name) is None]:
        return None, f"an item without its {' and '.join(lacking)}"
    if kind.answered_by and not any(_answers(each, item, kind) for each in beside):
        return None, f"a call without its {kind.answered_by}"
    return {**kind.missing, **{name: value for name, value in item.items() if name not in _ONLY_IN_ANSWERS}}, ""


def _answers(other: Mapping[str, object], item: Mapping[str, object], kind: ItemKind) -> bool:
    key = item.get("call_id" if kind.pairs_by == "call_id" else "id")
    return other.get("type") == kind.answered_by and other.get(kind.pairs_by) == key
