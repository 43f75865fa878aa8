"""What holds of all values: which of them the collector may ignore, what is written of a default, what a repr shows."""

from __future__ import annotations

import ast
import copy
import dataclasses
import gc
import importlib
import json
import pickle
import re
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields
from pydantic import TypeAdapter, ValidationError
from support.imports import parsed

from callboard.protocol.content import Citation, Image, Replay, Text, ToolCall
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import Usage
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import RemoteMcp
from callboard.protocol.values import Value

ROOT = Path(__file__).resolve().parents[2]


@cache
def structs() -> tuple[type[Struct], ...]:
    """All of the protocol, by reading the folder: what is imported already is not what there is."""
    found = {
        cls: None
        for path in sorted((ROOT / "protocol").glob("*.py"))
        for cls in vars(importlib.import_module(f"callboard.protocol.{path.stem}")).values()
        if isinstance(cls, type) and issubclass(cls, Struct) and cls.__module__.startswith("callboard.")
    }
    return tuple(found)


@cache
def classes() -> tuple[tuple[str, ast.ClassDef], ...]:
    """All of the product, each with its file, from the source."""
    gc.disable()  # it would look at the trees again and again: 6 s with it, 1 s without
    try:
        return tuple(
            (str(path.relative_to(ROOT)), node)
            for layer in ("protocol", "providers", "actors")
            for path in sorted((ROOT / layer).rglob("*.py"))
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ClassDef)
        )
    finally:
        gc.enable()


PLAIN = (bool, int, float, str, bytes, type(None), object, Path)


def leads_to(kind: Any, seen: set[Any]) -> str:
    """What in this type a cycle could go through; "" where none can, or where it has been `seen`."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN or kind in seen or origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return ""
    if origin in (Union, types.UnionType, tuple, frozenset, Mapping):
        return next((found for each in inner if each is not ... and (found := leads_to(each, seen))), "")
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple
        return next((found for each in get_type_hints(kind).values() if (found := leads_to(each, seen))), "")
    if isinstance(kind, type) and issubclass(kind, Struct) and not kind.__struct_config__.gc:
        return _of_fields({each.name: each.type for each in fields(kind)}, kind, seen)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[union-attr]
        return _of_fields(get_type_hints(kind), kind, seen)
    return str(kind)


def _of_fields(kinds: Mapping[str, Any], cls: Any, seen: set[Any]) -> str:
    seen.add(cls)
    for name, kind in kinds.items():
        if found := leads_to(kind, seen):
            return f"{cls.__name__}.{name}: {found}"
    return ""


def test_no_cycle_goes_through_a_value_that_the_collector_ignores() -> None:
    """Its fields lead to plain values, enums, tuples, frozen values, and to JSON behind `Mapping`, which is read only:
    never to a Ref, an actor, a function, or a list or dict that is changed."""
    ignored = [cls for cls in structs() if not cls.__struct_config__.gc]
    assert len(ignored) > 80
    assert not [cls for cls in ignored if not cls.__struct_config__.frozen]
    seen = set[Any]()
    assert not [found for cls in ignored if (found := leads_to(cls, seen))]
    elsewhere = [
        f"{path}: {node.name}"
        for path, node in classes()
        if (any(each.arg == "gc" for each in node.keywords) and path != "protocol/values.py")
        or (any(ast.unparse(base) == "Value" for base in node.bases) and not path.startswith("protocol/"))
    ]
    assert not elsewhere, "the rule above does not see these"


#: Defaults that are more than nothing and are not written all the same: each says what a value without it always meant.
FIXED = {
    "ToolCall.complete", "ModelRequest.tool_choice", "ModelRequest.sampling", "ModelRequest.stream",
    "ModelRequest.prompt_cache", "StepReport.finish_reason", "StepReport.purpose", "CallModel.attempts",
    "CallModel.purpose", "Note.kind", "Finish.finish_reason", "ModelResponse.finish_reason", "ToolOffer.contract",
    "ToolOffer.decision", "RequestStarted.compacted", "ModelResponded.requests", "ModelFailed.requests",
    "ModelFailed.usage", "ToolChoice.mode", "AudioOut.voice", "AudioOut.format", "OutputSpec.title", "OutputSpec.modes",
    "OutputSpec.max_tries", "OutputSpec.tool_name", "Deferred.timeout_seconds",
}  # fmt: skip


def test_a_default_that_may_change_is_written() -> None:
    unwritten = {
        f"{cls.__name__}.{each.name}"
        for cls in structs()
        if issubclass(cls, Value) and cls.__struct_config__.omit_defaults
        for each in fields(cls)
        if each.default is not NODEFAULT and each.default
    }
    assert unwritten == FIXED


#: Fields that may hold a secret, by their names.
SECRET = re.compile(
    r"(^|_)(api_?key|authorization|bearer|body|cookies?|credentials?|env|environ(ment)?|headers|secrets?|token)$"
)
#: Fields with such a name that hold none.
HARMLESS = {
    "actors/daemon/endpoint.py: Endpoint.body": "the class by which a body is checked",
    "actors/daemon/endpoint.py: HttpCall.token": "an AccessToken, which has the digest",
    "actors/index/refresh.py: Request.secrets": "patterns of file names",
    "actors/index/walk.py: Walk._secrets": "patterns of file names",
    "actors/journal/encoding.py: _BeginningParts.headers": "names",
    "actors/journal/journal_records.py: Needs.headers": "names",
    "actors/journal/postgres_calls.py: CallTransaction.token": "the number of a lease",
    "actors/testing/wire_double/answers.py: WireAnswer.headers": "what the double sends",
    "actors/testing/wire_double/script.py: RawAnswer.body": "what the double sends",
    "actors/testing/wire_double/script.py: RawAnswer.headers": "what the double sends",
    "actors/testing/wire_double/traffic.py: Asked.body": "what a test has sent to the double, to be looked at",
    "actors/testing/wire_double/traffic.py: Asked.headers": "what a test has sent to the double, to be looked at",
    "actors/testing/wire_double/traffic.py: Exchange.body": "what a test has sent to the double, to be looked at",
    "actors/testing/wire_double/traffic.py: Exchange.headers": "what a test has sent to the double, to be looked at",
    "actors/tools/context.py: ToolContext.trace_headers": "ids of a trace",
    "protocol/model.py: TokenLogprob.token": "a word of an answer",
    "protocol/testing/answers/__init__.py: Answer.headers": "of a recorded answer",
    "protocol/testing/hunting.py: Found.token": "replays a run",
    "providers/anthropic/messages_dialects.py: MessagesDialect.bearer": "a bool",
    "providers/bedrock/event_stream.py: Frame.headers": "of a frame of an answer",
    "providers/own_options.py: OptionTable.headers": "names",
}


def is_value(node: ast.ClassDef) -> bool:
    return _is_dataclass(node) or any(ast.unparse(base) in ("Struct", "Value") for base in node.bases)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list)


def _shown_secrets(node: ast.ClassDef) -> Iterator[str]:
    own_repr = any(
        (isinstance(each, ast.FunctionDef) and each.name == "__repr__")
        or (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__repr__")
        for each in node.body
    )
    for each in node.body:
        is_secret = isinstance(each, ast.AnnAssign) and SECRET.search(ast.unparse(each.target))
        if is_secret and not own_repr and "repr=False" not in ast.unparse(each):
            yield ast.unparse(each.target)


def test_no_repr_shows_a_secret() -> None:
    """A Struct shows all of its fields: one that may hold a key, a header or an environment has a repr of its own."""
    shown = {
        f"{path}: {node.name}.{name}" for path, node in classes() if is_value(node) for name in _shown_secrets(node)
    }
    assert shown == set(HARMLESS)


@pytest.mark.parametrize(
    "value",
    [RemoteMcp("n", "u", "sekret"), RemoteMcp("n", "u", headers={"x": "sekret"}), ExtraFields(headers={"x": "sekret"})],
)
def test_such_a_repr_has_the_other_fields(value: Struct) -> None:
    assert "sekret" not in repr(value)
    assert repr(value).startswith(type(value).__name__ + "(")
    assert all(f"{name}=" in repr(value) for name in ("url" if isinstance(value, RemoteMcp) else "body",))


def test_a_value_is_one_that_can_be_matched_copied_and_used_as_a_key() -> None:
    call = ToolCall(CallId("c"), ToolName("t"), "{}")
    match call:
        case ToolCall(call_id, _, arguments):
            assert (call_id, arguments) == ("c", "{}")
    assert pickle.loads(pickle.dumps(call)) == copy.deepcopy(call) == call
    assert {call: 1}[ToolCall(CallId("c"), ToolName("t"), "{}")] == 1
    with pytest.raises(AttributeError, match="immutable"):
        call.arguments = "[]"  # type: ignore[misc]


@pytest.mark.parametrize(
    "value",
    [
        Image("image/png", "aGk="),
        Usage(1, 2),
        Text("x", None, (Citation("u", raw={"a": [1]}),)),
        Replay("o", {"b": {}}),
    ],
)
def test_pydantic_takes_and_writes_one_as_a_dataclass(value: Value) -> None:
    """A tool of a user's may return one, alone or in something else."""
    adapter = TypeAdapter(dict[str, type(value)])  # type: ignore[misc]
    written = adapter.dump_json({"it": value})
    assert adapter.validate_json(written) == {"it": value}
    assert adapter.validate_python({"it": value})["it"] is value
    assert json.loads(written)["it"].keys() == set(value.__struct_fields__)
    assert adapter.json_schema()["type"] == "object"
    with pytest.raises(ValidationError, match="unheard"):
        adapter.validate_python({"it": {"unheard": 1}})


PYDANTIC = "pydantic reads or writes it"
SECRETS = "fields that no repr shows"
SET_LATER = "fields that are set after `__init__`"
LOOKED_UP_ONCE = "has a `cached_property`"
#: Where values are dataclasses, and why: a class takes fifteen times as long to make, an instance ten times.
DATACLASSES = {
    "actors/builtins/asking_user.py": PYDANTIC,
    "actors/builtins/code_lookup.py": PYDANTIC,
    "actors/builtins/command_output.py": PYDANTIC,
    "actors/builtins/find_references.py": PYDANTIC,
    "actors/builtins/job_tools.py": PYDANTIC,
    "actors/builtins/jobs.py": PYDANTIC,
    "actors/builtins/listing.py": PYDANTIC,
    "actors/builtins/overview.py": PYDANTIC,
    "actors/builtins/reading.py": PYDANTIC,
    "actors/builtins/run_command.py": PYDANTIC,
    "actors/builtins/text_search.py": PYDANTIC,
    "actors/builtins/todo_list.py": PYDANTIC,
    "actors/connection.py": PYDANTIC,
    "actors/daemon/approval_desk.py": SECRETS,
    "actors/daemon/board_feed.py": LOOKED_UP_ONCE,
    "actors/daemon/endpoint.py": SECRETS,
    "actors/daemon/token_rates.py": SET_LATER,
    "actors/edits/editing.py": PYDANTIC,
    "actors/edits/planning.py": PYDANTIC,
    "actors/edits/proposals.py": PYDANTIC,
    "actors/index/walk.py": SET_LATER,
    "actors/journal/tables.py": LOOKED_UP_ONCE,
    "actors/kernel/actor.py": SET_LATER,
    "actors/kernel/cell.py": SET_LATER,
    "actors/mcp/known_tools.py": PYDANTIC,
    "actors/mcp/mcp_caller.py": "has attributes that are no fields",
    "actors/mcp/mcp_servers.py": PYDANTIC,
    "actors/mcp/remote_tools.py": "a Tool, see actors/tools/decorator.py",
    "actors/mcp/tool_server.py": SET_LATER,
    "actors/policy/saved_rules.py": PYDANTIC,
    "actors/policy/workspace_trust.py": PYDANTIC,
    "actors/processes/run_shell.py": PYDANTIC,
    "actors/secret_files.py": PYDANTIC,
    "actors/testing/wire_double/http_server.py": SET_LATER,
    "actors/testing/wire_double/script.py": PYDANTIC,
    "actors/tools/context.py": SECRETS,
    "actors/tools/decorator.py": LOOKED_UP_ONCE,
    "actors/tools/schema.py": LOOKED_UP_ONCE,
    "protocol/compaction.py": PYDANTIC,
    "protocol/model.py": PYDANTIC,
    "protocol/policy.py": PYDANTIC,
    "protocol/testing/answers/__init__.py": SECRETS,
    "protocol/testing/observation.py": SET_LATER,
    "protocol/testing/story.py": SET_LATER,
    "providers/bedrock/aws_credentials.py": SECRETS,
    "providers/catalog.py": PYDANTIC,
    "providers/copilot/copilot_login.py": SECRETS,
    "providers/credentials.py": SECRETS,
    "providers/retry.py": "a default that no repr shows",
    "providers/vertex/google_credentials.py": SECRETS,
}


def test_values_are_structs_but_where_a_reason_is_written() -> None:
    assert {path for path, node in classes() if _is_dataclass(node)} == set(DATACLASSES)
