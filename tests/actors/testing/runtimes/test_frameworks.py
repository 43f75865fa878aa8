"""The adapters of the frameworks: opt in with `-m runtimes` (extra `runtimes`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.one_fault import CONVERSATIONS

from callboard.actors.testing.runtimes.harness import RUNTIMES, Harness, adapter_type, harness
from callboard.protocol.testing.observed import judge

pytestmark = pytest.mark.runtimes
FRAMEWORKS = ("pydantic-ai", "openai-agents", "langgraph")


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Harness]:
    with harness(FRAMEWORKS) as driver:
        yield driver


def test_all_frameworks_have_an_adapter() -> None:
    assert set(RUNTIMES) == {"callboard", "bare-loop", *FRAMEWORKS}


@pytest.mark.parametrize("runtime", FRAMEWORKS)
@pytest.mark.parametrize("fault", ["nothing", "async-raises", "plain-raises", "unknown", "cancel-stream"])
def test_what_every_framework_keeps(frameworks: Harness, runtime: str, fault: str) -> None:
    played = frameworks.play_with(adapter_type(runtime), CONVERSATIONS[fault], f"{runtime}-{fault}")
    assert {rule: found for rule, found in judge(played).items() if found} == {}


@pytest.mark.parametrize("runtime", FRAMEWORKS)
def test_a_tool_that_exits_is_seen(frameworks: Harness, runtime: str) -> None:
    played = frameworks.play_with(adapter_type(runtime), CONVERSATIONS["plain-exits"], f"{runtime}-exits")
    assert judge(played)["I10 blast radius: a plain tool that exits is one failed result"] != []
