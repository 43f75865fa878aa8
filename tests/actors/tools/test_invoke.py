"""One call where it runs: any text in, a result or one failure out, never an exception."""

from __future__ import annotations

import json
import math
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import pytest
import quicktok  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict

from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.invoke import MAX_MESSAGE_CHARS, Result
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.masking import has_mask
from callboard.protocol.tools import FailureCode, ToolFailure

CONTEXT = ToolContext(
    RunTool(Tag(RequestId("r"), MessageId("m"), 1, CallId("c")), ToolName("any"), "{}", 0.0, "effect")
)

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | finite | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def run(tool: Tool, arguments: str = "{}") -> Result:
    return tool.invoker.call(arguments, CONTEXT)


def failure(result: Result) -> ToolFailure:
    assert isinstance(result, ToolFailure), result
    assert orjson.dumps(result.to_wire()), "a model must be able to read it"
    return result


class Filter(BaseModel):
    name: str
    limit: int = 10


@tool
def search(text: str, filters: list[Filter], deep: bool = False) -> int:
    return len(filters)


@tool
def echo(value: Any) -> Any:
    return value


@tool
def counted(big: int = 1, share: float = 0.5, page: int = 2) -> str:
    return repr((big, share, page))


def test_null_for_one_that_has_a_default_leaves_the_others_as_they_are() -> None:
    assert run(counted, f'{{"big": {2**70 + 1}, "share": null, "page": null}}') == f"({2**70 + 1}, 0.5, 2)"
    failed = run(counted, '{"share": NaN, "page": null}')
    assert isinstance(failed, ToolFailure)
    assert (failed.code, failed.field) == (FailureCode.INVALID_ARGUMENTS, "share")


@given(st.text() | json_values.map(json.dumps))
def test_any_text_as_arguments_is_a_result_or_a_failure(arguments: str) -> None:
    result = run(search, arguments)
    assert isinstance(result, str) or failure(result).code is FailureCode.INVALID_ARGUMENTS


@given(json_values)
def test_any_json_value_goes_through(value: Any) -> None:
    encodable = json.dumps({"value": value}).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    result = run(echo, encodable)
    assert isinstance(result, str)
    expected = json.loads(encodable)["value"]
    assert (result if isinstance(expected, str) else json.loads(result)) == expected


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('two "words"\nand a line', 'two "words"\nand a line'),
        ("", ""),
        ("NaN", "NaN"),
        ('{"ok": false}', '{"ok": false}'),
        ("null", "null"),
        (None, "null"),
        (12, "12"),
        (["a"], '["a"]'),
        (date(2026, 11, 22), "2026-11-22"),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
    ],
    ids=repr,
)
def test_a_text_is_given_as_it_is_and_anything_else_as_json(value: Any, shown: str) -> None:
    @tool
    def give() -> Any:
        return value

    assert run(give) == shown


def test_a_text_costs_no_more_tokens_than_it_has() -> None:
    code = Path(__file__).read_text()

    @tool
    def read() -> str:
        return code

    count = quicktok.get_encoding("o200k_base").count
    assert count(str(run(read))) == count(code)


@pytest.mark.parametrize(
    ("arguments", "field", "received"),
    [
        ('{"text": "a", "filters": [{"name": "x"}, {"name": 3}]}', "filters.1.name", "3"),
        ('{"filters": []}', "text", "nothing"),
        ('{"text": "a", "filters": [], "deeper": 1}', "deeper", "1"),
        ('{"text": "a", "filters": "' + "x" * 1_000 + '"}', "filters", "'" + "x" * 199 + "... (802 characters more)"),
        ("[]", "", "[]"),
        ('{"text": ', "", "'{\"text\": '"),
    ],
)
def test_a_wrong_argument_is_told_by_its_path(arguments: str, field: str, received: str) -> None:
    found = failure(run(search, arguments))
    assert found.code is FailureCode.INVALID_ARGUMENTS
    assert (found.field, found.received) == (field, received)
    assert found.expected
    assert found.retry_hint


def test_many_faults_are_told_briefly() -> None:
    arguments = json.dumps({"text": "a", "filters": [{"name": n} for n in range(100)]})
    assert failure(run(search, arguments)).message.endswith("; and 95 more")


def test_a_validator_that_raises_anything_is_a_failure() -> None:
    def explode(value: int) -> int:
        raise KeyError(value)

    @tool
    def look(depth: Annotated[int, AfterValidator(explode)]) -> None: ...

    assert failure(run(look, '{"depth": 1}')).message == "KeyError: 1"


def test_the_text_of_an_error_is_bounded_and_readable() -> None:
    @tool
    def look() -> None:
        raise ToolError("\ud800" + "x" * 5_000)

    message = failure(run(look)).message
    assert message.startswith("\\ud800xxx")
    assert message.endswith("... (3,006 characters more)")
    assert len(message) < MAX_MESSAGE_CHARS + 40


def test_a_result_may_have_just_as_many_bytes_as_allowed() -> None:
    @tool
    def fill(size: int) -> str:
        return "x" * size

    assert isinstance(run(fill, json.dumps({"size": MAX_RESULT_BYTES})), str)
    assert failure(run(fill, json.dumps({"size": MAX_RESULT_BYTES + 1}))).code is FailureCode.RESULT_TOO_LARGE


def test_a_result_of_another_type_than_declared_is_refused() -> None:
    @tool
    def count() -> int:
        return "many"  # type: ignore[return-value]

    found = failure(run(count))
    assert found.code is FailureCode.INVALID_RESULT
    assert "its result: Input should be a valid integer" in found.message


class Words(BaseModel):
    """Says itself how it writes what is no number."""

    model_config = ConfigDict(ser_json_inf_nan="strings")
    depth: float


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    depth: float


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (math.nan, "nan, which"),
        ([1.5, math.inf], "inf at 1"),
        ({"a": [{"b": -math.inf}]}, "-inf at a.0.b"),
        ({"a": {"b": (1, 2, math.nan)}, "c": None}, "nan at a.b.2"),
        (Constants(depth=math.inf), "inf at depth"),
    ],
)
def test_what_is_no_json_number_is_refused_by_name(value: object, wrong: str) -> None:
    @tool
    def divide() -> Any:
        return value

    found = failure(run(divide))
    assert found.code is FailureCode.INVALID_RESULT
    assert wrong in found.message
    assert found.retry_hint


@pytest.mark.parametrize(
    "value", [None, [None, "NaN", "Infinity", "null"], {"a": None, "b": 1.5}, Words(depth=math.nan)]
)
def test_what_only_looks_like_it_goes_through(value: object) -> None:
    @tool
    def look() -> Any:
        return value

    assert isinstance(run(look), str)


def test_a_result_of_too_many_items_is_refused_before_it_is_written() -> None:
    written = []

    class Loud:
        def __repr__(self) -> str:
            written.append(self)
            return "loud"

    @tool
    def fill() -> Any:
        return [Loud()] * (MAX_RESULT_BYTES + 1)

    assert failure(run(fill)).code is FailureCode.RESULT_TOO_LARGE
    assert not written


class Mute(ToolError):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


@pytest.mark.parametrize("error", [Mute("x"), SystemExit(Mute("x"))])
def test_an_error_without_a_text_is_a_failure_like_any_other(error: BaseException) -> None:
    @tool
    def look() -> None:
        raise error

    assert "<Mute, whose text raises KeyboardInterrupt>" in failure(run(look)).message


@pytest.mark.parametrize("before", [0, MAX_MESSAGE_CHARS - 12], ids=["whole", "cut"])
def test_a_key_in_an_exception_is_masked(before: int) -> None:
    """An exception quotes what its tool never meant to show: the address with the password, the refused header."""
    key = "sk-proj-" + "a1B2c3D4" * 6

    @tool
    def look() -> None:
        raise ConnectionError(f"{'x' * before} {key}")

    message = failure(run(look)).message
    assert has_mask(message)
    assert key[:10] not in message


def test_every_text_of_a_failure_is_bounded() -> None:
    names = Literal[tuple(f"name-{number}" for number in range(5_000))]  # type: ignore[valid-type]

    @tool
    def look(names: list[names]) -> None: ...  # type: ignore[valid-type]

    found = failure(run(look, json.dumps({"names": ["x" * 100_000] * 100, "k" * 100_000: 1})))
    for text in (found.message, found.field, found.expected, found.received):
        assert len(text) < 2 * MAX_MESSAGE_CHARS


@pytest.mark.parametrize("value", [object(), b"\xff", {1: {2: object()}}])
def test_a_result_that_cannot_be_written_is_refused(value: object) -> None:
    @tool
    def look() -> Any:
        return value

    assert failure(run(look)).code is FailureCode.INVALID_RESULT


def test_a_tool_error_can_say_which_argument_was_wrong() -> None:
    @tool
    def read(line: int) -> None:
        raise ToolError("no such line", field="line", expected="1 to 5", received="6", retry_hint="Read line 5.")

    failed = failure(run(read, '{"line": 6}'))
    assert failed.code is FailureCode.INVALID_ARGUMENTS
    assert (failed.field, failed.expected, failed.received) == ("line", "1 to 5", "6")
    assert failed.retry_hint == "Read line 5."


def test_a_tool_error_of_a_user_need_not_have_our_fields() -> None:
    class Own(ToolError):
        def __init__(self) -> None:
            """Without a word to its base."""

        @property
        def field(self) -> str:
            raise RuntimeError

    @tool
    def look() -> None:
        raise Own

    failed = failure(run(look))
    assert (failed.code, failed.field) == (FailureCode.TOOL_ERROR, "")
