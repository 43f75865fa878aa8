"""Checks for what users bring: their tools and their provider adapters. Each raises AssertionError.

A failure says what was wrong, with the smallest example that Hypothesis came to.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, get_type_hints

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from callboard.protocol.content import Message
from callboard.protocol.errors import ToolError
from callboard.protocol.history import is_json_object
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.model import ModelRequest
from callboard.protocol.stream import (
    Done,
    Error,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
)
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.testing.schema_values import schema_values
from callboard.protocol.testing.strategies import chunkings, histories
from callboard.protocol.tools import ToolDefinition

#: What OpenAI and Anthropic take as a tool's name; Gemini takes more.
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

#: The schema and the function do not speak of the same arguments: the tool would never run.
_OTHER_ARGUMENTS: Final = {"missing_argument", "missing_keyword_only_argument", "unexpected_keyword_argument"}


def _quiet(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


# Tools.


def definition_of(tool: Callable[..., Any]) -> ToolDefinition:
    """A tool's own definition, or one made from a plain function's signature and docstring."""
    given_one = getattr(tool, "definition", None)
    if isinstance(given_one, ToolDefinition):
        return given_one
    schema = _adapted(tool).json_schema()
    name = ToolName(getattr(tool, "__name__", "tool"))
    return ToolDefinition(name, inspect.getdoc(tool) or "", schema)


def check_tool(tool: Callable[..., Any], *, examples: int = 100) -> None:
    """Call a tool with whatever its schema lets a model send.

    It must return what it declares, something that can be written as JSON, of at most MAX_RESULT_BYTES, or raise
    ToolError; any other exception is a fault of the tool: the model would be told nothing that it can act on. `tool` is
    a callboard Tool or any function; it is called here and now, without isolation, so give it a harmless world. What
    the runtime knows (a ToolContext) is made up.
    """
    definition = definition_of(tool)
    assert _TOOL_NAME.fullmatch(definition.name), f"{definition.name!r} is no name that all providers take"
    assert definition.description, f"{definition.name} has no description: the model cannot know what it is for"
    plain = getattr(tool, "function", tool)
    function = _adapted(getattr(tool, "alone", plain))
    declared = TypeAdapter(get_type_hints(plain, include_extras=True).get("return", Any))

    @_quiet(examples)
    @given(schema_values(definition.parameters))
    def try_arguments(arguments: dict[str, Any]) -> None:
        told = f"{definition.name}({_json(arguments)})"
        try:
            result = function.validate_json(_json(arguments))
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        except ToolError:
            return
        except ValidationError as error:
            # The tool's own validators are stricter than its schema: the model is told, and the tool was not run.
            if not error.title.startswith("call[") or _OTHER_ARGUMENTS & {fault["type"] for fault in error.errors()}:
                raise AssertionError(f"{told} raised {error}") from error
            return
        except BaseException as error:  # whatever a tool does, SystemExit too, is the finding
            raise AssertionError(f"{told} raised {type(error).__name__}: {error}") from error
        _check_result(told, result, declared)

    try_arguments()


def _adapted(function: Any) -> TypeAdapter[Any]:
    """pydantic's view of a function: the schema of its arguments, and a call with validated ones."""
    return TypeAdapter(function)


async def _awaited(result: Any) -> Any:
    return await result


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _check_result(told: str, result: Any, declared: TypeAdapter[Any]) -> None:
    try:
        written = declared.dump_json(declared.validate_python(result))
    except ValidationError as error:
        raise AssertionError(f"{told} returned {result!r:.80}, which is not what it declares: {error}") from error
    except ValueError as error:
        raise AssertionError(f"{told} returned {result!r:.80}, which is no JSON: {error}") from error
    assert len(written) <= MAX_RESULT_BYTES, (
        f"{told} returned {len(written)} bytes; at most {MAX_RESULT_BYTES} are sent"
    )


# Provider adapters.


class DecoderLike(Protocol):
    """A decoder, by its shape: see callboard.providers.adapter."""

    def feed(self, data: bytes, /) -> list[StreamEvent]: ...
    def finish(self) -> list[StreamEvent]: ...


class AdapterLike(Protocol):
    """A provider adapter, by its shape: see callboard.providers.adapter."""

    def encode(self, request: ModelRequest, /) -> Any: ...
    def decoder(
        self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True
    ) -> DecoderLike: ...


def check_provider_adapter(
    adapter: AdapterLike,
    answers: Sequence[bytes] = (),
    *,
    headers: Mapping[str, str] | None = None,
    examples: int = 50,
) -> None:
    """Hold an adapter to its contract, with histories of every shape and recorded `answers` in any pieces.

    `encode` takes any legal history and gives the same bytes for the same request. A decoder gives the same events
    however the bytes were cut, ends with exactly one Done or Error, also when the answer breaks off anywhere or is
    garbage, and never completes a call whose arguments are not all there.
    """

    @_quiet(examples)
    @given(histories().filter(bool))  # no API takes a request without messages
    def encodes(history: tuple[Message, ...]) -> None:
        tools = tuple(offer.definition for offer in STANDARD_TOOLS)
        request = ModelRequest("model", history, tools)
        assert adapter.encode(request) == adapter.encode(request), f"encode gives different bytes for {request!r:.300}"

    @_quiet(examples)
    @given(st.data())
    def decodes(data: st.DataObject) -> None:
        answer = data.draw(st.sampled_from(list(answers)))
        whole = _decoded(adapter, [answer], headers)
        pieces = data.draw(chunkings(answer))
        assert merged(_decoded(adapter, pieces, headers)) == merged(whole), (
            f"cut into {pieces!r:.300} it reads differently"
        )
        _decoded(adapter, [answer[: data.draw(st.integers(0, len(answer)))]], headers)

    @_quiet(examples)
    @given(st.binary(max_size=200), st.sampled_from((200, 400, 404, 429, 500, 529)))
    def survives(garbage: bytes, status: int) -> None:
        _decoded(adapter, [garbage], headers, status)

    encodes()
    survives()
    if answers:
        decodes()


def _decoded(
    adapter: AdapterLike, pieces: Sequence[bytes], headers: Mapping[str, str] | None, status: int = 200
) -> list[StreamEvent]:
    decoder = adapter.decoder(status, headers)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    ends = [index for index, event in enumerate(events) if isinstance(event, Done | Error)]
    assert ends == [len(events) - 1], f"{pieces!r:.200} gave {len(ends)} ends: {events!r:.300}"
    arguments: dict[str, str] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            arguments[event.id] = arguments.get(event.id, "") + event.args_delta
        elif isinstance(event, ToolCallComplete):
            written = arguments.get(event.id, "{}")
            assert is_json_object(written), f"call {event.id} was completed with {written!r:.100}"
    return events


def merged(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """The stream with the deltas of one block joined: where a socket cut them says nothing."""
    joined: list[StreamEvent] = []
    for event in events:
        one = _join(joined[-1], event) if joined else None
        if one is None:
            joined.append(event)
        else:
            joined[-1] = one
    return joined


def _join(last: StreamEvent, event: StreamEvent) -> StreamEvent | None:
    """Two deltas as one; None when they are not of one block."""
    if isinstance(last, TextDelta) and isinstance(event, TextDelta) and last.block == event.block:
        return TextDelta(last.text + event.text, event.block, event.replay or last.replay)
    if isinstance(last, ThinkingDelta) and isinstance(event, ThinkingDelta) and last.block == event.block:
        return ThinkingDelta(last.text + event.text, event.block, event.replay or last.replay)
    if isinstance(last, ToolCallDelta) and isinstance(event, ToolCallDelta) and last.id == event.id:
        return ToolCallDelta(event.id, last.args_delta + event.args_delta)
    return None
