"""Tools of MCP servers in a real runtime. The servers are made by hand, so that they can break the protocol."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from callboard import Approval, AskApproval, McpServer, Policy, Rule, Runtime, Settings, tool
from callboard.actors.mcp import server_actor, server_link
from callboard.actors.mcp.remote_values import ServerState
from callboard.protocol.content import ToolMessage
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

from .conftest import is_settled, until

RAW = str(Path(__file__).parents[2] / "support" / "mcp_raw_server.py")
#: Of each test that waits for something: longer than a loaded machine takes.
PATIENCE_SECONDS = 30.0
#: Two hundred by `--hypothesis-profile=deep`.
KILLS = 200 if hypothesis_settings().max_examples > 1_000 else 6


def raw(mode: str = "fine", **more: Any) -> McpServer:
    return McpServer(command=sys.executable, args=(RAW, mode), **{"tools": {"*": "read"}, "timeout": 20.0, **more})


@asynccontextmanager
async def runtime_with(
    server: McpServer, approve: Callable[[AskApproval], Any] | None = None, **more: Any
) -> AsyncIterator[Runtime]:
    async with Runtime(Settings(mcp_servers={"raw": server}, **more), approve=approve) as runtime:
        # The runtime itself waits 10 s for it, in which a busy machine may not get so far.
        await until(lambda: is_settled(runtime.mcp_servers()[0]))
        yield runtime


def echo_of(runtime: Runtime) -> ToolOffer:
    """As the dispatcher has it: `runtime.tools()` shows a change sooner, and a request that begins between the two is
    rightly told that the tool has changed since."""
    return next(each for each in runtime.offered() if each.definition.name == "raw_echo")


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what works --------------------------------------------------------------------------------------------------------


async def test_the_tools_of_a_server_are_tools_of_the_runtime() -> None:
    async with runtime_with(raw()) as runtime:
        status = runtime.mcp_servers()[0]
        assert (status.name, status.state, status.title) == ("raw", ServerState.READY, "raw 0")
        assert (status.revision, status.connections) == ("2025-11-25", 1)
        assert "raw_echo" in status.tools
        assert (await runtime.call_tool("raw_echo", {"a": [1, "b"]})).content == '{"a": [1, "b"]}'
        media = await runtime.call_tool("raw_media")
        assert media.content == (
            "look:\n[image image/png, 3 bytes, which cannot be shown here]\n[resource raw://a: a]\n"
            "[resource raw://b]\ninside"
        )
        said = []
        assert (await runtime.call_tool("raw_progress", on_progress=said.append)).ok
        await until(lambda: said)
        assert [(each.message, each.fraction) for each in said] == [("a quarter", 0.25)]


async def test_what_the_owner_has_not_declared_is_asked_about() -> None:
    asked: list[AskApproval] = []

    def approve(question: AskApproval) -> bool:
        asked.append(question)
        return False

    async with runtime_with(raw(tools={"echo": "read"}), approve) as runtime:
        assert (await runtime.call_tool("raw_echo")).ok
        denied = await runtime.call_tool("raw_pid")
    assert denied.failure is not None
    assert denied.failure.code is FailureCode.DENIED
    assert [question.name for question in asked] == ["raw_pid"]


async def test_wrong_arguments_are_told_by_field_and_do_not_reach_the_server() -> None:
    async with runtime_with(raw()) as runtime:
        result = await runtime.call_tool("raw_typed", {"n": "x"})
    assert result.failure is not None
    assert (result.failure.code, result.failure.field) == (FailureCode.INVALID_ARGUMENTS, "n")
    assert result.failure.received == "'x'"


async def test_a_tool_that_comes_later_is_offered_later() -> None:
    async with runtime_with(raw()) as runtime:
        missing = await runtime.call_tool("raw_later")
        assert missing.failure is not None
        assert missing.failure.code is FailureCode.UNKNOWN_TOOL
        assert (await runtime.call_tool("raw_grow")).ok
        await until(lambda: "raw_later" in runtime.mcp_servers()[0].tools)
        assert (await runtime.call_tool("raw_later")).content == "more"


async def test_a_tool_whose_description_has_changed_is_asked_about_once() -> None:
    asked: list[str] = []

    def approve(question: AskApproval) -> bool:
        assert "describes it in another way" in question.rule
        asked.append(question.name)
        return True

    async with runtime_with(raw(), approve) as runtime:
        assert (await runtime.call_tool("raw_echo")).ok
        assert asked == []
        assert (await runtime.call_tool("raw_change")).ok
        await until(lambda: "author" in echo_of(runtime).definition.description)
        assert echo_of(runtime).contract.asks_because
        assert (await runtime.call_tool("raw_echo")).ok
        assert asked == ["raw_echo"]
        await until(lambda: not echo_of(runtime).contract.asks_because)
        assert (await runtime.call_tool("raw_echo")).ok
        assert asked == ["raw_echo"]


async def test_a_tool_that_has_changed_is_asked_about_whatever_allows_it(tmp_path: Path) -> None:
    """A rule of the owner, and an answer for always, were about another tool."""
    rules: list[str] = []

    def approve(question: AskApproval) -> Approval:
        rules.append(question.rule)
        return Approval.ALWAYS

    policy = Policy(rules=[Rule("raw_change", decision="allow")])
    async with runtime_with(raw(tools={}), approve, policy=policy, config_dir=tmp_path / "config") as runtime:
        for _ in range(2):
            assert (await runtime.call_tool("raw_echo")).ok
        assert len(rules) == 1
        assert (await runtime.call_tool("raw_change")).ok
        await until(lambda: echo_of(runtime).contract.asks_because)
        for _ in range(2):
            assert (await runtime.call_tool("raw_echo")).ok
    assert len(rules) == 2
    assert "describes it in another way" in rules[1]
    policy = Policy(rules=[Rule("raw_echo", decision="allow")])
    rules.clear()
    async with runtime_with(raw(tools={"change": "read"}), approve, policy=policy) as runtime:
        assert (await runtime.call_tool("raw_echo")).ok  # as it was before: again not as it was last approved
        assert len(rules) == 1


async def test_a_tool_that_changed_between_two_runs_is_asked_about(tmp_path: Path) -> None:
    asked: list[str] = []

    def approve(question: AskApproval) -> bool:
        asked.append(question.rule)
        return True

    words = tmp_path / "words"
    server = raw(env={"RAW_WORDS": str(words)})
    for text, questions in (("Echoes.", 0), ("Echoes.", 0), ("Sends it on.", 1), ("Sends it on.", 1)):
        words.write_text(text)
        async with runtime_with(server, approve) as runtime:
            assert (await runtime.call_tool("raw_echo")).ok
        assert len(asked) == questions, text
    (kept,) = (Settings().state_dir / "mcp").glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o666)
    async with runtime_with(server, approve) as runtime:
        assert (await runtime.call_tool("raw_echo")).ok
    assert "cannot be read" in asked[-1]


async def test_a_request_that_runs_does_not_call_a_tool_that_has_changed_since() -> None:
    @tool(risk="read", isolation="task")
    async def wait_for_the_change() -> str:
        await until(lambda: echo_of(runtime).contract.asks_because)
        return "it has changed"

    names = ("raw_change", "wait_for_the_change", "raw_echo")
    script = [*(ScriptedTurn(calls=(ScriptedCall(name),)) for name in names), ScriptedTurn("done")]
    settings = Settings(model="scripted/test", script=script, mcp_servers={"raw": raw()})
    async with Runtime(settings, [wait_for_the_change], approve=lambda _: True) as runtime:
        reply = await runtime.ask("go")
    results = [each for each in reply.messages if isinstance(each, ToolMessage)]
    assert [each.content for each in results[:2]] == ["changed", "it has changed"]
    assert "raw_echo has changed since this request began" in results[2].content


async def test_a_server_that_asks_back_is_answered_by_the_approver_or_declined() -> None:
    asked: list[AskApproval] = []

    def approve(question: AskApproval) -> Approval:
        asked.append(question)
        return Approval.ONCE.with_arguments({"color": "red"})

    async with runtime_with(raw(), approve) as runtime:
        filled = await runtime.call_tool("raw_ask")
        sampled = await runtime.call_tool("raw_sample")
    assert filled.content == '{"action": "accept", "content": {"color": "red"}}'
    assert "Sampling not supported" in sampled.content
    assert [(question.name, "Color?" in question.arguments) for question in asked] == [("raw_ask", True)]
    async with runtime_with(raw()) as runtime:
        assert (await runtime.call_tool("raw_ask")).content == '{"action": "decline"}'
    # An answer without what the form requires is none.
    async with runtime_with(raw(), lambda _: True) as runtime:
        assert (await runtime.call_tool("raw_ask")).content == '{"action": "decline"}'


# -- servers that lie --------------------------------------------------------------------------------------------------

LIES = {
    "typed": (FailureCode.INVALID_RESULT, {"n": 1}),
    "not_json": (FailureCode.INVALID_RESULT, {}),
    "deep": (FailureCode.INVALID_RESULT, {}),
    "wrong_shape": (FailureCode.INVALID_RESULT, {}),
    "huge": (FailureCode.INVALID_RESULT, {"megabytes": 32}),
    "large": (FailureCode.RESULT_TOO_LARGE, {}),
    "fail": (FailureCode.TOOL_ERROR, {}),
    "die": (FailureCode.OUTCOME_UNKNOWN, {}),
    "half_and_die": (FailureCode.OUTCOME_UNKNOWN, {}),
}


async def test_a_lie_is_one_failed_result_and_the_next_call_works() -> None:
    async with runtime_with(raw()) as runtime:
        for name, (code, arguments) in LIES.items():
            result = await runtime.call_tool(f"raw_{name}", arguments)
            assert result.failure is not None, name
            assert result.failure.code is code, (name, result.content)
            assert (await runtime.call_tool("raw_echo", {"after": name})).content == f'{{"after": "{name}"}}'


async def test_content_of_an_unknown_kind_is_left_out_with_a_note() -> None:
    async with runtime_with(raw()) as runtime:
        result = await runtime.call_tool("raw_unknown_content")
    assert result.content == "[a block of content was left out: its type 'hologram' is not known]"


async def test_noise_floods_and_second_answers_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "callboard.mcp")
    async with runtime_with(raw()) as runtime:
        assert (await runtime.call_tool("raw_noise")).content == "after the noise"
        assert (await runtime.call_tool("raw_flood", {"messages": 300})).content == "after the flood"
        assert (await runtime.call_tool("raw_twice")).content == "first"
        assert (await runtime.call_tool("raw_echo")).ok
        await until(lambda: "api_key=" in caplog.text)
    assert "sk-proj-Zq8v" not in caplog.text


@pytest.mark.parametrize("name", ["never", "wrong_id", "half"])
async def test_a_call_without_an_answer_ends_at_its_deadline(name: str) -> None:
    async with runtime_with(raw(timeout=0.5)) as runtime:
        result = await runtime.call_tool(f"raw_{name}")
        assert result.failure is not None
        assert result.failure.code is FailureCode.TIMED_OUT
        if name != "half":  # whose process is stuck
            assert (await runtime.call_tool("raw_was_cancelled")).content == "1"


async def test_a_server_that_does_not_read_is_a_call_that_times_out() -> None:
    async with runtime_with(raw("deaf", timeout=0.5)) as runtime:
        result = await runtime.call_tool("raw_echo", {"much": "x" * 500_000})
    assert result.failure is not None
    assert result.failure.code is FailureCode.TIMED_OUT


async def test_an_endless_list_is_cut() -> None:
    async with runtime_with(raw("pages")) as runtime:
        assert 0 < len(runtime.mcp_servers()[0].tools) <= 512


# -- servers that are not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mute", "exit"])
async def test_a_server_that_does_not_start_is_given_up_and_the_runtime_works(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_actor, "BACKOFF", server_actor.Backoff(0.0, 0.0))
    async with runtime_with(raw(mode, start_timeout=0.5)) as runtime:
        await until(lambda: runtime.mcp_servers()[0].state is ServerState.FAILED)
        status = runtime.mcp_servers()[0]
        assert ("did not answer within 0.5 s" if mode == "mute" else "no such database") in status.reason
        missing = await runtime.call_tool("raw_echo")
        assert missing.failure is not None
        assert missing.failure.code is FailureCode.UNKNOWN_TOOL
        assert all("mcp-" not in actor.name for actor in runtime.tree())


async def test_a_command_that_is_not_there_is_named() -> None:
    async with runtime_with(McpServer(command="no-such-command-of-mine")) as runtime:
        assert "there is no command 'no-such-command-of-mine'" in runtime.mcp_servers()[0].reason


async def test_tools_of_a_server_that_is_given_up_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_actor, "BUDGET", server_actor.Budget(0, 60.0))
    monkeypatch.setattr(server_actor.server_spec, "__defaults__", (server_actor.BUDGET,))
    async with runtime_with(raw()) as runtime:
        assert (await runtime.call_tool("raw_die")).failure is not None
        await until(lambda: runtime.mcp_servers()[0].state is ServerState.FAILED)
        assert not [offer for offer in runtime.tools() if offer.definition.name.startswith("raw_")]


# -- kill -9 at random moments -----------------------------------------------------------------------------------------


async def test_kills_at_random_moments_are_one_failed_result_each_and_the_host_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls side by side while their server is killed: each ends once, with its result or with what is known of it."""
    monkeypatch.setattr(server_actor, "BACKOFF", server_actor.Backoff(0.0, 0.0))
    monkeypatch.setattr(server_actor.server_spec, "__defaults__", (server_actor.Budget(10_000, 60.0),))
    monkeypatch.setattr(server_link, "RECONNECT_SECONDS", 15.0)
    chance = random.Random("kills")
    known = {FailureCode.OUTCOME_UNKNOWN, FailureCode.WITHDRAWN}
    pids: set[int] = set()
    was_cancelled: list[bool] = []

    async def host() -> None:
        try:
            async with runtime_with(raw(), tool_failure_budget=None) as runtime:
                for _ in range(KILLS):
                    pid = int((await runtime.call_tool("raw_pid")).content)
                    assert pid not in pids, "a killed server does not answer"
                    pids.add(pid)
                    calls = [asyncio.ensure_future(runtime.call_tool("raw_echo", {"n": n})) for n in range(5)]
                    await asyncio.sleep(chance.random() * 0.01)
                    os.kill(pid, signal.SIGKILL)
                    for n, result in enumerate(await asyncio.gather(*calls)):
                        assert result.content == f'{{"n": {n}}}' or (
                            result.failure is not None and result.failure.code in known
                        ), result.content
                    await until(lambda: not is_alive(pid))  # noqa: B023 - awaited here
                    await until(lambda: runtime.mcp_servers()[0].state is ServerState.READY)
        except asyncio.CancelledError:
            was_cancelled.append(True)
            raise
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    await host()
    assert not was_cancelled
    assert not [pid for pid in pids if is_alive(pid)]


async def test_no_process_is_left_behind() -> None:
    async with runtime_with(raw()) as runtime:
        pid = int((await runtime.call_tool("raw_pid")).content)
        child = int((await runtime.call_tool("raw_child")).content)
        assert is_alive(pid)
        assert is_alive(child)
    await until(lambda: not is_alive(pid) and not is_alive(child))


async def test_a_server_ends_with_a_host_that_is_killed(tmp_path: Path) -> None:
    host = tmp_path / "host.py"
    host.write_text(
        "import asyncio, sys\n"
        "from callboard import McpServer, Runtime, Settings\n"
        "async def main():\n"
        f"    server = McpServer(command=sys.executable, args=({RAW!r}, 'fine'), tools={{'*': 'read'}})\n"
        "    async with Runtime(Settings(mcp_servers={'raw': server})) as runtime:\n"
        "        print((await runtime.call_tool('raw_pid')).content, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, str(host), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        pid = int(await process.stdout.readline())
        assert is_alive(pid)
        process.kill()
        await process.wait()
    await until(lambda: not is_alive(pid))


async def test_a_stopped_runtime_can_be_started_again() -> None:
    runtime = Runtime(Settings(mcp_servers={"raw": raw()}))
    pids = []
    for _ in range(2):
        async with runtime:
            pids.append((await runtime.call_tool("raw_pid")).content)
    assert pids[0] != pids[1]


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    async with runtime_with(raw()) as runtime:
        calling = asyncio.ensure_future(runtime.call_tool("raw_never"))

        async def until_one(tool: str) -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await runtime.call_tool(tool)).content != "1":  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)

        await until_one("raw_was_asked")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await calling
        await until_one("raw_was_cancelled")
