"""`callboard acp` with the official SDK's own client, over real pipes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.sdk_types import Lazy
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Call, Turn

if TYPE_CHECKING:
    import acp
    from acp import helpers, schema
else:
    acp, helpers, schema = Lazy("acp"), Lazy("acp.helpers"), Lazy("acp.schema")

RAW_SERVER = str(Path(__file__).parents[2] / "support/mcp_raw_server.py")
TOOLS = '''
import time
from callboard import tool

@tool(risk="read")
def look(path: str) -> str:
    """Look."""
    return "looked at " + path

@tool(risk="read", timeout=60)
def sleeps() -> str:
    """Sleep."""
    time.sleep(50)
    return "slept"
'''


class Editor:
    """Notes what it is shown, and answers with `answer`."""

    def __init__(self, answer: str = "once") -> None:
        self.answer = answer
        self.updates: list[Any] = []
        self.questions: list[schema.ToolCallUpdate] = []
        self.changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption], **_: Any
    ) -> acp.RequestPermissionResponse:
        self.questions.append(tool_call)
        assert self.answer in [each.option_id for each in options]
        chosen = schema.AllowedOutcome(outcome="selected", option_id=self.answer)
        return acp.RequestPermissionResponse(outcome=chosen)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    def text(self) -> str:
        return "".join(each.content.text for each in self.updates if isinstance(each, schema.AgentMessageChunk))

    def statuses(self) -> list[str]:
        return [each.status for each in self.updates if isinstance(each, schema.ToolCallProgress) and each.status]


@asynccontextmanager
async def editing(callboard: Any, editor: Editor, turns: Sequence[Turn], *arguments: str) -> AsyncIterator[Any]:
    (callboard.workspace / "own_tools.py").write_text(TOOLS)
    environment = {"HOME": str(callboard.home), "PYTHONPATH": ":".join(sys.path), **callboard.environment}
    with shared_double(turns) as double:
        command = ["-m", "callboard.actors.cli", "acp", "--model", "openai-compatible/any"]
        command += ["--base-url", double.base_url(), "--tools", str(callboard.workspace / "own_tools.py"), *arguments]
        patient = {"shutdown_timeout": 30}  # after its 2 s the SDK sends SIGTERM, also to what has just ended
        spawned = acp.spawn_agent_process(editor, sys.executable, *command, env=environment, transport_kwargs=patient)
        async with spawned as (connection, _):
            found = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            assert found.protocol_version == acp.PROTOCOL_VERSION
            yield connection


def run(talk: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(talk, 50))


def test_a_prompt_with_a_tool_call(callboard: Any) -> None:
    turns = (Turn("", (Call("look", {"path": "a.py"}),)), Turn("It is fine."))

    async def talk() -> None:
        editor = Editor()
        async with editing(callboard, editor, turns) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace))
            reply = await agent.prompt(session_id=session.session_id, prompt=[helpers.text_block("look at a.py")])
            assert reply.stop_reason == "end_turn"
        assert editor.text() == "It is fine."
        started = next(each for each in editor.updates if isinstance(each, schema.ToolCallStart))
        assert (started.title, started.kind) == ("look", "read")
        assert started.locations is not None
        assert started.locations[0].path == str(callboard.workspace / "a.py")
        assert editor.statuses() == ["in_progress", "completed"]

    run(talk())


def test_modes_are_listed_set_and_told_and_count_for_the_next_prompt(callboard: Any) -> None:
    path = callboard.workspace / "a.py"
    path.write_text("one = 1\n")
    edit = Call("create_file", {"path": "new.py", "content": "x"})
    run_it = Call("run_command", {"command": "cat a.py"})
    turns = (Turn("", (edit, run_it)), Turn("Planned."), Turn("", (edit,)), Turn("Built."))

    async def talk() -> None:
        editor = Editor()
        journal = ("--journal", str(callboard.home / "j.db"), "--mode", "ask")
        async with editing(callboard, editor, turns, *journal) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace))
            assert session.modes.current_mode_id == "ask"
            assert [each.id for each in session.modes.available_modes] == ["ask", "plan", "build"]
            assert all(each.name and each.description for each in session.modes.available_modes)
            await agent.set_session_mode(session_id=session.session_id, mode_id="plan")
            told = [each for each in editor.updates if isinstance(each, schema.CurrentModeUpdate)]
            assert [each.current_mode_id for each in told] == ["plan"]
            prompt = [helpers.text_block("plan it")]
            reply = await agent.prompt(session_id=session.session_id, prompt=prompt)
            assert reply.stop_reason == "end_turn"
            assert sorted(editor.statuses()) == ["completed", "completed", "in_progress", "in_progress"]
            assert editor.questions == []
            assert not (callboard.workspace / "new.py").exists()
            for wrong, session_id in (("all", session.session_id), ("plan", "no-such-session")):
                with pytest.raises(acp.RequestError):
                    await agent.set_session_mode(session_id=session_id, mode_id=wrong)
            loaded = await agent.load_session(cwd=str(callboard.workspace), session_id=session.session_id)
            assert loaded.modes.current_mode_id == "plan"
            await agent.set_session_mode(session_id=session.session_id, mode_id="build")
            await agent.prompt(session_id=session.session_id, prompt=prompt)
            assert len(editor.questions) == 1
            assert (callboard.workspace / "new.py").read_text() == "x"

    run(talk())


@pytest.mark.parametrize(("answer", "after"), [("once", "two = 2\n"), ("deny", "one = 1\n")])
def test_an_edit_is_shown_as_a_diff_and_applied_or_not(callboard: Any, answer: str, after: str) -> None:
    path = callboard.workspace / "a.py"
    path.write_text("one = 1\n")
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one = 1\n+two = 2\n"
    arguments = {"patch": patch}
    turns = (Turn("", (Call("apply_patch", arguments),)), Turn("Done."))

    async def talk() -> None:
        editor = Editor(answer)
        async with editing(callboard, editor, turns) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace))
            await agent.prompt(session_id=session.session_id, prompt=[helpers.text_block("change it")])
        assert editor.questions, editor.updates
        [diff] = [
            each for each in editor.questions[0].content or [] if isinstance(each, schema.FileEditToolCallContent)
        ]
        assert (diff.path, diff.old_text, diff.new_text) == (str(path), "one = 1", "two = 2")
        assert editor.statuses()[-1] == "completed"  # also a denial is a result, which the model reads
        assert path.read_text() == after

    run(talk())


def test_the_tools_of_the_editors_mcp_servers_are_asked_about(callboard: Any) -> None:
    turns = (Turn("", (Call("raw_server_echo", {"a": 1}),)), Turn("It echoed."))
    server = schema.McpServerStdio(name="raw server", command=sys.executable, args=[RAW_SERVER, "fine"], env=[])

    async def talk() -> None:
        editor = Editor()
        async with editing(callboard, editor, turns) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace), mcp_servers=[server])
            await agent.prompt(session_id=session.session_id, prompt=[helpers.text_block("echo")])
            assert [each.title for each in editor.questions] == ["raw_server_echo"]
            assert editor.statuses()[-1] == "completed"
            with pytest.raises(acp.RequestError, match="two of them are called 'raw_server'"):
                await agent.new_session(cwd=str(callboard.workspace), mcp_servers=[server, server])
            sse = schema.SseMcpServer(type="sse", name="old", url="http://127.0.0.1:1/sse", headers=[])
            with pytest.raises(acp.RequestError, match="only servers with a command or with streamable HTTP"):
                await agent.new_session(cwd=str(callboard.workspace), mcp_servers=[sse])

    run(talk())


def test_cancel_ends_the_tool(callboard: Any) -> None:
    turns = (Turn("", (Call("sleeps", {}),)), Turn("Never."))

    async def talk() -> None:
        editor = Editor()
        async with editing(callboard, editor, turns) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace))
            asked = asyncio.create_task(
                agent.prompt(session_id=session.session_id, prompt=[helpers.text_block("sleep")])
            )
            await editor.until(lambda: "in_progress" in editor.statuses())
            await agent.cancel(session_id=session.session_id)
            assert (await asked).stop_reason == "cancelled"

    run(talk())


def test_a_session_is_loaded_from_the_journal(callboard: Any, tmp_path: Path) -> None:
    turns = (Turn("The first answer."),)
    journal = ("--journal", str(tmp_path / "own.db"))
    names: list[str] = []

    async def first() -> None:
        async with editing(callboard, Editor(), turns, *journal) as agent:
            session = await agent.new_session(cwd=str(callboard.workspace))
            await agent.prompt(session_id=session.session_id, prompt=[helpers.text_block("the first question")])
            names.append(session.session_id)

    async def second() -> None:
        editor = Editor()
        async with editing(callboard, editor, turns, *journal) as agent:
            await agent.load_session(cwd=str(callboard.workspace), session_id=names[0])
            await editor.until(lambda: "The first answer." in editor.text())
            said = [each.content.text for each in editor.updates if isinstance(each, schema.UserMessageChunk)]
            assert said == ["the first question"]
            with pytest.raises(acp.RequestError, match="nope"):
                await agent.load_session(cwd=str(callboard.workspace), session_id="nope")

    run(first())
    run(second())


def test_what_is_wrong_is_said_in_one_line(callboard: Any) -> None:
    turns = (Turn("Never."),)

    async def talk() -> None:
        async with editing(callboard, Editor(), turns) as agent:
            with pytest.raises(acp.RequestError, match="no absolute path"):
                await agent.new_session(cwd="not/there")
            with pytest.raises(acp.RequestError, match="there is no session"):
                await agent.prompt(session_id="nope", prompt=[helpers.text_block("hello")])
            with pytest.raises(acp.RequestError, match="no journal"):
                await agent.load_session(cwd=str(callboard.workspace), session_id="nope")

    run(talk())


LINES = st.one_of(
    st.text(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result"]), inner, max_size=4)
        ),
        max_leaves=8,
    ).map(json.dumps),
    st.builds(
        lambda method, params: json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}),
        st.sampled_from(["initialize", "session/new", "session/prompt", "session/cancel", "session/load", "nope"]),
        st.none() | st.dictionaries(st.sampled_from(["sessionId", "cwd", "prompt"]), st.text(max_size=5), max_size=3),
    ),
)


def fed(callboard: Any, text: str) -> Any:
    """What `callboard acp` says to this, and how it ends."""
    path = callboard.home / "lines"
    path.write_text(text, errors="replace")
    reading = subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE)
    try:
        return callboard.finish(callboard.start("acp", stdin=reading.stdout))
    finally:
        if reading.stdout is not None:
            reading.stdout.close()
        reading.wait(30)


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(lines=st.lists(LINES, min_size=20, max_size=60))
def test_no_line_kills_it(callboard: Any, lines: list[str]) -> None:
    ask = {"jsonrpc": "2.0", "id": 4711, "method": "initialize", "params": {"protocolVersion": 1}}
    sent = "".join(f"{line.replace(chr(10), ' ')}\n" for line in [*lines, json.dumps(ask)])
    done = fed(callboard, sent)
    assert done.status == 0, done.err
    # Nothing else is on stdout. Lines end at "\n" alone: JSON may hold U+2028, which an error gives back.
    answers = [json.loads(line) for line in done.out.split("\n") if line]
    assert [each for each in answers if each.get("id") == 4711 and "result" in each]
    assert "Traceback" not in done.err
