"""How long templates are kept: by use, by what loading them takes, by number and by their own memory; real children."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from msgspec.structs import replace

from callboard import Runtime, Settings, Tool, tool
from callboard.actors.processes import supply
from callboard.actors.processes.source import ProcessSource
from callboard.actors.processes.supply import (
    MAX_KEPT_SECONDS,
    MAX_TEMPLATES,
    MAX_TEMPLATES_BYTES,
    Template,
    TemplateState,
    superfluous,
)
from callboard.actors.tools.tool_file import forget_modules, load_tool_file, tools_in
from callboard.protocol.content import UserMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]
IDLE = 30.0
MB = 1024 * 1024


@tool
def some() -> int:
    """Say which process runs it."""
    return os.getpid()


def template(used_at: float = 0.0, **more: Any) -> Template:
    made = Template(ref(some), some.name, b"", False, used_at)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def left(given: list[Template], now: float) -> list[Template]:
    gone = list(superfluous(given, now, IDLE))
    return [each for each in given if each not in gone]


def test_one_that_was_not_used_for_a_while_goes_and_one_that_took_long_to_load_later() -> None:
    quick, slow, endless = template(loading_seconds=0.01), template(loading_seconds=0.5), template(loading_seconds=60)
    given = [quick, slow, endless]
    assert left(given, IDLE - 1) == given
    assert left(given, IDLE) == [slow, endless]
    assert left(given, 500) == [endless]
    assert left(given, MAX_KEPT_SECONDS) == []


def test_of_too_many_and_of_too_large_ones_those_go_that_were_not_used_for_longest() -> None:
    many = [template(number) for number in range(MAX_TEMPLATES + 2)]
    assert left(many, MAX_TEMPLATES) == [each for each in many[2:] if MAX_TEMPLATES - each.used_at < IDLE]
    fresh = [template() for _ in range(MAX_TEMPLATES + 2)]
    assert left(fresh, 1) == fresh[2:]
    third = MAX_TEMPLATES_BYTES // 3
    large = [template(own_bytes=third, loading_seconds=60) for _ in range(5)]
    assert left(large, IDLE - 1) == large, "what is in use would be loaded again for each call"
    assert left(large, IDLE) == large[2:]


def test_a_huge_one_stays_while_it_is_used_and_costs_no_small_one_its_place() -> None:
    small = template(own_bytes=MB, loading_seconds=60)
    huge = template(own_bytes=2 * MAX_TEMPLATES_BYTES, loading_seconds=60)
    assert left([small, huge], IDLE) == [huge]
    assert left([huge, small], IDLE) == [small]
    assert left([small, huge, small], IDLE) == [small, small]


def test_one_that_loads_is_let_finish_but_where_its_tool_is_gone() -> None:
    loading, replaced = (template(state=TemplateState.LOADING, is_replaced=each) for each in (False, True))
    assert left([loading, replaced], 2 * IDLE) == [loading]


def test_one_for_which_a_call_waits_never_goes_and_a_replaced_one_at_once() -> None:
    replaced, waited_for = template(is_replaced=True), template(is_replaced=True)
    waited_for.waiting.append(None)  # type: ignore[arg-type]
    assert left([replaced, waited_for], MAX_KEPT_SECONDS) == [waited_for]


# -- with children


def script(request: ModelRequest) -> ScriptedTurn:
    last = request.messages[-1]
    if isinstance(last, UserMessage):
        return ScriptedTurn(calls=tuple(ScriptedCall(name, {}) for name in last.text.split()))
    return ScriptedTurn(getattr(last, "content", ""))


SETTINGS = Settings(model="scripted/x", script=script)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(SETTINGS) as runtime:
        yield runtime


def source_of(runtime: Runtime, pool: str = "process-short") -> ProcessSource:
    running = runtime._running
    assert running is not None
    actor = running.system.ref(f"root/tools/{pool}/source")._cell.actor
    assert isinstance(actor, ProcessSource)
    return actor


def whoami(**options: Any) -> Tool[..., Any]:
    def f() -> int:
        """Say which process runs it."""
        return os.getpid()

    make: Any = tool
    made: Tool[..., Any] = make(**options)(f)
    return made


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_of_tools_that_were_replaced(runtime: Runtime, until: Until) -> None:
    for reuse in (False, True):
        pool = "process-short-reuse" if reuse else "process-short"
        for _ in range(8):
            runtime.reload_sync(SETTINGS, [whoami(reuse=reuse)])
            assert runtime.ask_sync("f").text.isdigit()
        source = source_of(runtime, pool)
        until(lambda: len(source._templates) == 1)  # noqa: B023
        until(lambda: len(source._servers) == 2)  # noqa: B023
        until(lambda: all(source._is_kept(each.template) for each in source._children.values()))  # noqa: B023
        runtime.reload_sync(SETTINGS, [])


def test_a_replaced_tool_that_still_runs_keeps_its_child_and_no_template(
    runtime: Runtime, until: Until, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"

    def waiting(**options: Any) -> Tool[..., Any]:
        def f() -> str:
            """Wait."""
            begun.write_text("")
            while not go_on.exists():
                time.sleep(0.01)
            return "ended"

        make: Any = tool
        made: Tool[..., Any] = make(timeout=30, **options)(f)
        return made

    for reuse in (False, True):
        runtime.reload_sync(SETTINGS, [waiting(reuse=reuse)])
        identity = runtime.start_request_sync("f")
        until(begun.exists)
        replaced = waiting(reuse=reuse)
        runtime.reload_sync(SETTINGS, [replaced])
        source = source_of(runtime, "process-short-reuse" if reuse else "process-short")
        until(lambda: len(source._servers) == 1)  # noqa: B023
        go_on.write_text("")
        assert runtime.result_sync(identity).text == "ended"
        until(lambda: not source._children and not source._templates)  # noqa: B023
        assert len(source._servers) == 1
        for each in (begun, go_on):
            each.unlink()


def test_a_template_counts_the_memory_of_its_own_and_the_largest_ones_do_not_stay(
    runtime: Runtime, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "MAX_TEMPLATES_BYTES", 80 * MB)
    monkeypatch.setattr(supply, "KEPT_PER_LOADING", 1e6)
    file = tmp_path / "large_templates.py"
    made = '\n@tool\ndef {0}() -> int:\n    """Say how large."""\n    return len(LARGE)\n'
    text = "from callboard import tool\nLARGE = b'x' * 50_000_000\n"
    file.write_text(text + "".join(made.format(name) for name in ("one", "two", "three")))
    tools = tools_in(load_tool_file(file))
    runtime.reload_sync(SETTINGS, [*tools, some])
    assert runtime.ask_sync("some").text
    source = source_of(runtime)
    source._options = replace(source._options, idle_seconds=0.2)
    for name in ("one", "two", "three"):
        assert runtime.ask_sync(f"{name} some").text
        until(lambda: {each.name for each in source._templates.values()} == {name, "some"})  # noqa: B023
        sizes = {str(each.name): each.own_bytes for each in source._templates.values()}
        assert 50_000_000 <= sizes[name] < 70 * MB
        assert 0 < sizes["some"] < 20 * MB
    forget_modules(tools)


def test_a_tool_that_cannot_be_forked_is_remembered_as_long_as_one_that_takes_as_long_to_load(
    runtime: Runtime, tmp_path: Path
) -> None:
    file = tmp_path / "unfit_templates.py"
    file.write_text(
        "import threading\nfrom callboard import tool\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        '@tool\ndef f() -> int:\n    """Say a number."""\n    return 1\n'
    )
    tools = tools_in(load_tool_file(file))
    runtime.reload_sync(SETTINGS, tools)
    assert runtime.ask_sync("f").text == "1"
    (template,) = source_of(runtime)._templates.values()
    assert template.state is TemplateState.UNFIT
    assert template.loading_seconds > 0
    forget_modules(tools)
