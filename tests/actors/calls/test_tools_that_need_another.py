"""A tool that is of no use without another is offered only with that one: `jobs` with `start_job`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from callboard import Policy, Rule, Runtime, Settings, tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

WITHOUT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mode": ({"policy": Policy({"read": "allow", "execute": "deny"})}, {}),
    "a table without its row": ({"policy": Policy({"read": "allow"})}, {}),
    "a rule": ({"policy": Policy(rules=(Rule("start_*", decision="deny"),))}, {}),
    "a rule of its risk": ({"policy": Policy(rules=(Rule(risk="execute", decision="deny"),))}, {}),
    "a selection": ({}, {"tools": ["jobs", "read_file"]}),
    "a selection of one": ({}, {"tools": ["jobs"]}),
}
WITH: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all": ({}, {}),
    "a selection": ({}, {"tools": ["jobs", "start_job"]}),
    "one that is asked about": ({"policy": Policy(rules=(Rule("start_job", decision="ask"),))}, {}),
    "careful": ({"policy": Policy(trust="careful")}, {}),
}


class Model:
    """Calls `jobs` once, and remembers which tools it was offered and what the call came to."""

    def __init__(self) -> None:
        self.offered: set[str] = set()

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        self.offered = {str(each.name) for each in request.tools}
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return ScriptedTurn("done")
        return ScriptedTurn(calls=(ScriptedCall("jobs", {"action": "list"}),))


@pytest.mark.parametrize("why", WITHOUT)
def test_jobs_is_not_offered_where_start_job_is_not(tmp_path: Path, why: str) -> None:
    settings, asked = WITHOUT[why]
    model = Model()
    with Runtime(Settings(model="scripted/m", script=model, workspace=tmp_path, **settings)) as runtime:
        reply = runtime.ask_sync("go", **asked)
        if not asked:
            assert "jobs" not in {offer.definition.name for offer in runtime.offered()}
            (listed,) = (offer for offer in runtime.tools() if offer.definition.name == "jobs")
            assert not listed.is_shown
    assert not {"jobs", "start_job"} & model.offered
    (failed,) = reply.failures
    assert failed.code is FailureCode.DENIED
    assert "jobs is of no use without start_job, which is not offered" in failed.message


@pytest.mark.parametrize("why", WITH)
def test_jobs_is_offered_with_start_job(tmp_path: Path, why: str) -> None:
    settings, asked = WITH[why]
    model = Model()
    with Runtime(Settings(model="scripted/m", script=model, workspace=tmp_path, **settings)) as runtime:
        reply = runtime.ask_sync("go", **asked)
        assert (not asked and {"jobs"} <= {offer.definition.name for offer in runtime.offered()}) or asked
    assert {"jobs", "start_job"} <= model.offered
    assert reply.failures == ()


def test_a_tool_of_the_owners_that_is_called_so_needs_no_other() -> None:
    @tool(risk="read", isolation="thread")
    def jobs(action: str) -> str:
        """Lists the open positions."""
        return f"{action}: none"

    model = Model()
    with Runtime(Settings(model="scripted/m", script=model), tools=[jobs]) as runtime:
        assert runtime.ask_sync("go").failures == ()
    assert model.offered == {"jobs"}


def test_any_tool_may_need_another() -> None:
    @tool(risk="write", isolation="thread")
    def opens() -> str:
        return "opened"

    @tool(name="jobs", risk="read", isolation="thread")
    def follows(action: str) -> str:
        return "seen"

    needs = dataclasses.replace(follows, contract=replace(follows.contract, only_with="opens"))
    for tools, given, is_offered in (
        ([needs, opens], {}, True),
        ([needs], {}, False),
        ([needs, opens], {"policy": Policy({"read": "allow"})}, False),
        ([needs, opens], {"policy": Policy(mode="ask")}, False),
        ([needs, opens], {"policy": Policy(mode="plan")}, False),
    ):
        model = Model()
        with Runtime(Settings(model="scripted/m", script=model, **given), tools=tools) as runtime:
            runtime.ask_sync("go")
        assert ("jobs" in model.offered) is is_offered, given
