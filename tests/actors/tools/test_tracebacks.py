"""Where a tool raised: all of it for the host, and the part without content for every log."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.file_tools import file_tools

from callboard.actors.processes import child
from callboard.actors.tools import Tool, ToolContext, tool, tracebacks
from callboard.actors.tools.tracebacks import (
    MAX_FRAMES_BYTES,
    MAX_TRACEBACK_BYTES,
    Told,
    bounded,
    told_of,
    told_of_crash,
)
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.masking import mask
from callboard.protocol.tools import FailureCode, ToolFailure

CONTEXT = ToolContext(
    RunTool(Tag(RequestId("r"), MessageId("m"), 1, CallId("c")), ToolName("any"), "{}", 0.0, "effect")
)
HERE = f'File "{__file__}", line '


def failure(tool: Tool, arguments: str = "{}") -> ToolFailure:
    result = tool.invoker.call(arguments, CONTEXT)
    assert isinstance(result, ToolFailure), result
    return result


def caught(run: object) -> Told:
    assert callable(run)
    try:
        run()
    except BaseException as error:  # noqa: BLE001 - any
        return told_of(error)
    raise AssertionError("it raises nothing")


def test_a_tool_that_raises_leaves_its_traceback_and_its_frames() -> None:
    def inner() -> None:
        raise LookupError("the station 'secret' is gone")

    @tool(isolation="thread")
    def weather() -> None:
        inner()

    failed = failure(weather)
    assert failed.code is FailureCode.TOOL_ERROR
    assert "in weather\n    inner()" in failed.traceback
    assert failed.traceback.endswith("LookupError: the station 'secret' is gone\n")
    names = [line.rpartition(" ")[2] for line in failed.frames.splitlines()]
    assert names == ["LookupError", "weather", "inner"]
    assert failed.frames.count(HERE) == 2
    assert "secret" not in failed.frames
    assert "invoke.py" not in failed.traceback + failed.frames, "our own frames are not the tool's"


def test_a_model_reads_neither() -> None:
    failed = ToolFailure(ToolName("x"), FailureCode.TOOL_ERROR, "no", traceback="T", frames="F")
    assert not {"traceback", "frames"} & failed.to_wire().keys()


def test_an_async_tool_leaves_it_too() -> None:
    @tool
    async def weather() -> None:
        raise ToolError("no such town")

    failed = asyncio.run(weather.invoker.call_async("{}", CONTEXT))
    assert isinstance(failed, ToolFailure)
    assert failed.traceback.endswith("ToolError: no such town\n")
    assert [line.split(", in ")[-1] for line in failed.frames.splitlines()[1:]] == ["weather"]


@pytest.mark.parametrize("error", [SystemExit(3), MemoryError("m"), KeyboardInterrupt(), GeneratorExit("g")], ids=repr)
def test_what_is_no_exception_leaves_it_too(error: BaseException) -> None:
    @tool(isolation="thread")
    def leave() -> None:
        raise error

    failed = failure(leave)
    assert type(error).__name__ in failed.frames.splitlines()[0]
    assert "in leave" in failed.frames
    assert "raise error" in failed.traceback


def test_an_endless_recursion_is_told_in_a_few_lines() -> None:
    @tool(isolation="thread")
    def forever(n: int = 0) -> int:
        def again(n: int) -> int:
            return again(n + 1) + 1

        return again(n)

    failed = failure(forever)
    for text in (failed.traceback, failed.frames):
        assert "RecursionError" in text
        assert "more times" in text
        assert text.count("in again") < 10


def test_causes_contexts_and_groups_are_followed() -> None:
    def grouped() -> None:
        try:
            try:
                raise KeyError("first word")
            except KeyError as error:
                raise ValueError("second word") from error
        except ValueError:
            raise ExceptionGroup("third word", [OSError("fourth word"), TypeError("fifth word")]) from None

    def chained() -> None:
        try:
            grouped()
        except ExceptionGroup as error:
            raise RuntimeError("sixth word") from error

    told = caught(chained)
    assert all(f"{which} word" in told.traceback for which in ("third", "fourth", "fifth", "sixth"))
    kinds = [line for line in told.frames.splitlines() if not line.startswith("  ")]
    assert kinds == ["RuntimeError", "caused by ExceptionGroup", "in it OSError", "in it TypeError"]
    assert "word" not in told.frames


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert told_of(first).frames.splitlines() == ["ValueError", "caused by ValueError"]


def test_an_exception_that_defends_itself_is_told_by_its_name() -> None:
    class Sly(Exception):
        @property
        def __cause__(self) -> BaseException | None:  # type: ignore[override]
            raise SystemExit("no")

        def __str__(self) -> str:
            raise SystemExit("no")

    told = caught(lambda: (_ for _ in ()).throw(Sly()))
    assert "Sly" in told.traceback
    assert "Sly" in told.frames


def test_a_message_of_megabytes_is_cut_and_its_ends_are_kept() -> None:
    def shout() -> None:
        raise ValueError("a" * 5_000_000 + " the end")

    told = caught(shout)
    assert len(told.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert told.traceback.startswith("Traceback (most recent call last)")
    assert told.traceback.endswith(" the end\n")
    assert "left out" in told.traceback


def test_keys_in_it_are_masked() -> None:
    key = "sk-proj-" + "a1B2c3D4" * 6

    def leak() -> None:
        raise ValueError(f"wrong key: {key}")

    told = caught(leak)
    assert "ValueError: wrong key: " in told.traceback
    assert key not in told.traceback


def test_tools_that_callboard_brings_keep_their_frames(tmp_path: Path) -> None:
    read, _ = file_tools(tmp_path)
    assert "workspace.py" in failure(read, '{"path": "../there.py"}').frames


def test_frames_hold_no_source_line() -> None:
    def tell() -> None:
        raise ValueError("x")  # the word kumquat is in this line

    told = caught(tell)
    assert "kumquat" in told.traceback
    assert "kumquat" not in told.frames


@given(st.text(), st.integers(200, 2_000))
def test_bounded_holds_its_limit_and_keeps_what_fits(text: str, limit: int) -> None:
    kept = bounded(text * 50, limit)
    assert len(kept.encode()) <= limit
    if len(text.encode(errors="backslashreplace")) * 50 <= limit:
        assert kept == mask((text * 50).encode(errors="backslashreplace").decode())


@given(st.recursive(st.just(None), lambda inner: st.lists(inner, min_size=1, max_size=40), max_leaves=60))
def test_any_tree_of_groups_is_told_within_its_bounds(tree: list[object] | None) -> None:
    def made(node: object) -> Exception:
        return ExceptionGroup("g", [made(each) for each in node]) if isinstance(node, list) else ValueError("v")

    told = told_of(made(tree))
    assert len(told.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert len(told.frames.encode()) <= MAX_FRAMES_BYTES
    assert traceback.format_exception_only(made(tree))[0].split("(")[0].split(":")[0].strip() in told.traceback


def test_the_frames_of_a_crash_are_the_tools_own() -> None:
    dump = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        f'  File "{__file__}", line 3 in reads\n'
        f'  File "{tracebacks.__file__.replace("tracebacks", "invoke")}", line 72 in call\n'
        f'  File "{child.__file__}", line 104 in _run\n'
        '  File "<string>", line 6 in <module>\n'
    )
    told = told_of_crash(f"printed before\n{dump}")
    assert told.frames == f'  File "{__file__}", line 3 in reads'
    assert told.traceback == dump
