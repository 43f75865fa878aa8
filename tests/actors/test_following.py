"""Runtime.follow and Runtime.start_request: any request, any number of followers, from any id on, over SIGKILL too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import Followed, FollowerTooSlow, Reply, RequestEnded, Runtime, Settings, TextDelta, UsageError, tool
from callboard.actors.requests import request_feed
from callboard.actors.requests.ended_feeds import EndedFeeds
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.ids import RequestId
from callboard.protocol.model import ModelRequest, Restarted
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


@tool(isolation="thread", risk="read", effect="repeat")
def twice(x: int) -> int:
    """Twice a number."""
    return 2 * x


def script(request: ModelRequest) -> ScriptedTurn:
    results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
    if len(results) < 2:
        text = f"I shall double {len(results)}. "
        return ScriptedTurn(text, calls=(ScriptedCall("twice", {"x": len(results)}),), chunk_chars=3)
    return ScriptedTurn(f"It is {results[-1]}.", chunk_chars=2)


def settings_with(journal: Path | None) -> Settings:
    return Settings(model="scripted/x", script=script, journal=journal)


async def all_of(runtime: Runtime, request_id: str, after: str = "") -> list[Followed]:
    return [each async for each in runtime.follow(request_id, after)]


def forget_feeds(runtime: Runtime) -> None:
    """As after a new start: what comes now comes from the journal."""
    assert runtime._running is not None
    runtime._running.ended_feeds = EndedFeeds()


def is_followed(runtime: Runtime, request_id: str) -> bool:
    assert runtime._running is not None
    return runtime._running.requests[RequestId(request_id)].feed is not None


def seen(items: list[Followed]) -> tuple[str, list[str]]:
    """What a reader makes of it: the text, and the durable items. A Restarted takes back the text of its turn."""
    whole, turn, durable = "", "", []
    for item in (each.item for each in items):
        match item:
            case TextDelta(text):
                turn += text
            case Restarted():
                turn = ""
            case _ if type(item).__module__.endswith((".events", ".commands", ".replies")):
                whole, turn = whole + turn, ""
                durable.append(f"{type(item).__name__} {getattr(item, 'tag', '')}")
    return whole, durable


def test_the_ids_are_ordered_and_each_is_where_one_can_go_on(tmp_path: Path) -> None:
    async def followed(journal: Path | None) -> None:
        async with Runtime(settings_with(journal), [twice]) as runtime:
            request_id = await runtime.start_request("what is it?")
            items = await all_of(runtime, request_id)
            assert isinstance(items[-1].item, Reply)
            assert items[-1].item.text == "It is 2."
            ids = [each.id for each in items]
            assert ids == sorted(set(ids))
            assert seen(items)[0] == "I shall double 0. I shall double 1. It is 2."
            for number, own in enumerate(ids):
                assert await all_of(runtime, request_id, own) == items[number + 1 :]

    asyncio.run(followed(tmp_path / "journal.db"))
    asyncio.run(followed(None))


def test_what_the_journal_gives_is_what_was_seen_live_from_each_id_on(tmp_path: Path) -> None:
    async def followed() -> None:
        async with Runtime(settings_with(tmp_path / "journal.db"), [twice]) as runtime:
            request_id = await runtime.start_request("what is it?")
            live = await all_of(runtime, request_id)
            forget_feeds(runtime)
            recorded = await all_of(runtime, request_id)
            assert seen(recorded) == seen(live)
            ids = [each.id for each in recorded]
            assert ids == sorted(set(ids))
            for number, each in enumerate(recorded):
                rest = await all_of(runtime, request_id, each.id)
                assert [each.id for each in rest] == ids[number + 1 :]
            for cut, each in enumerate(live, 1):
                assert seen([*live[:cut], *await all_of(runtime, request_id, each.id)]) == seen(live)

    asyncio.run(followed())


def test_many_follow_a_request_that_runs_and_leaving_does_not_end_it() -> None:
    async def followed() -> None:
        async with Runtime(settings_with(None), [twice]) as runtime:
            request_id = await runtime.start_request("what is it?")
            async for first in runtime.follow(request_id):
                assert first.id
                break
            many = await asyncio.gather(*(all_of(runtime, request_id) for _ in range(50)))
            assert all(each == many[0] for each in many)
            assert isinstance(many[0][-1].item, Reply)

    asyncio.run(followed())


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_request_that_was_asked_can_be_followed_while_it_runs(
    tmp_path: Path, until: Until, has_journal: bool
) -> None:
    """Begun by `ask`, it is read along from then on; what was before comes from the journal, where there is one."""

    async def followed() -> None:
        has_begun, may_end = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        @tool(risk="read")
        async def waits() -> str:
            """Wait."""
            loop.call_soon_threadsafe(has_begun.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(may_end.wait(), loop))
            return "done"

        def calls(request: ModelRequest) -> ScriptedTurn:
            read = any(isinstance(message, ToolMessage) for message in request.messages)
            return ScriptedTurn("good", chunk_chars=1) if read else ScriptedTurn("so", calls=(ScriptedCall("waits"),))

        journal = tmp_path / "journal.db" if has_journal else None
        async with Runtime(Settings(model="scripted/x", script=calls, journal=journal), [waits]) as runtime:
            asking = asyncio.create_task(runtime.ask("?", request_id="r1"))
            await asyncio.wait_for(has_begun.wait(), 20)
            follower = runtime.follow("r1")
            following = asyncio.create_task(anext(follower))  # type: ignore[arg-type]
            if has_journal:
                first = await asyncio.wait_for(following, 20)
                assert type(first.item).__name__ == "RequestStarted"
                may_end.set()
                items = [first, *[each async for each in follower]]
                assert seen(items)[0] == "sogood"
                pieces = [each.item.text for each in items if isinstance(each.item, TextDelta)]
                assert pieces == ["so", "g", "o", "o", "d"]
            else:
                await asyncio.to_thread(until, lambda: is_followed(runtime, "r1"))
                may_end.set()
                first = await asyncio.wait_for(following, 20)
                assert isinstance(first.item, ToolCallCompleted)
                assert [each async for each in follower][-1].item == await asking
            assert (await asking).text == "good"

    asyncio.run(followed())


def test_a_follower_that_reads_too_little_is_cut_and_the_request_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_feed, "MAX_UNREAD_BYTES", 20_000)

    async def followed() -> None:
        may_talk = asyncio.Event()
        loop = asyncio.get_running_loop()

        @tool(risk="read")
        async def wait() -> str:
            """Wait."""
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(may_talk.wait(), loop))
            return "now"

        asks, talks = ScriptedTurn("", calls=(ScriptedCall("wait", {}),)), ScriptedTurn("word " * 5_000, chunk_chars=5)
        async with Runtime(Settings(model="scripted/x", script=[asks, talks]), tools=[wait]) as runtime:
            request_id = await runtime.start_request("talk")
            follower = runtime.follow(request_id)
            first = await anext(follower)
            may_talk.set()
            reply = await runtime.result(request_id)
            read = [first]

            async def read_on() -> None:
                async for each in follower:
                    read.append(each)

            with pytest.raises(FollowerTooSlow) as cut:
                await read_on()
            assert f"after={read[-1].id!r}" in str(cut.value)
            assert len(reply.text) == 25_000
            with pytest.raises(FollowerTooSlow, match="no longer kept"):
                await all_of(runtime, request_id, first.id)

    asyncio.run(followed())


def test_a_request_that_ends_without_an_answer_raises_what_ask_raises(tmp_path: Path) -> None:
    async def followed() -> None:
        never = Settings(
            model="scripted/x",
            script=lambda request: ScriptedTurn("xyz", chunk_chars=1, delay_seconds=600),
            journal=tmp_path / "j.db",
        )
        async with Runtime(never) as runtime:
            request_id = await runtime.start_request("?")
            follower = runtime.follow(request_id)
            await anext(follower)
            assert runtime.cancel(request_id)
            with pytest.raises(RequestEnded):
                async for _ in follower:
                    pass
            forget_feeds(runtime)
            with pytest.raises(RequestEnded):
                await all_of(runtime, request_id)

    asyncio.run(followed())


def test_bad_ids(tmp_path: Path) -> None:
    async def followed(journal: Path | None) -> None:
        async with Runtime(settings_with(journal), [twice]) as runtime:
            with pytest.raises(UsageError, match="has a request with the id 'no such'"):
                await all_of(runtime, "no such")
            with pytest.raises(UsageError, match="is no id of a followed request"):
                runtime.follow("no such", "garbage\n")

    asyncio.run(followed(tmp_path / "journal.db"))
    asyncio.run(followed(None))


PROGRAM = """
import asyncio, json, os, signal, sys
from callboard import Runtime
from tests.actors.test_following import settings_with, twice
from pathlib import Path

folder, cut, after = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def line(each):
    item = each.item
    kind = type(item).__name__
    text = item.text if kind in ("TextDelta", "Reply") else ""
    return [each.id, kind, str(getattr(item, "tag", "")), text]

async def main():
    is_first = not os.path.exists(f"{folder}/journal.db")
    async with Runtime(settings_with(Path(f"{folder}/journal.db")), [twice]) as runtime:
        if is_first:
            await runtime.start_request("what is it?", request_id="r1")
        read = 0
        async for each in runtime.follow("r1", after):
            print(json.dumps(line(each)), flush=True)
            read += 1
            if read == cut:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def run(folder: str, cut: int, after: str) -> list[list[str]]:
    program = [sys.executable, "-c", PROGRAM, folder, str(cut), after]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, cwd=os.getcwd())
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return [json.loads(each) for each in ran.stdout.splitlines()]


def reader_of(lines: list[list[str]]) -> tuple[str, list[tuple[str, str]]]:
    """What one reader makes of it all."""
    whole, turn, durable = "", "", []
    streamed = {"TextDelta", "Restarted", "Done", "ToolCallStart", "ToolCallDelta", "ToolCallComplete"}
    for _, kind, tag, text in lines:
        if kind == "TextDelta":
            turn += text
        elif kind == "Restarted":
            turn = ""
        elif kind not in streamed:
            whole, turn = whole + turn, ""
            durable.append((kind, tag))
    return whole, durable


@pytest.mark.timeout(120)
@settings(max_examples=max(2, settings().max_examples * 6 // 100))
@given(cuts=st.lists(st.integers(1, 20), min_size=1, max_size=2))
def test_a_follower_goes_on_after_sigkill_of_the_process(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines: list[list[str]] = []
        for cut in [*cuts, 0]:
            lines += run(folder, cut, lines[-1][0] if lines else "")
            if lines[-1][1] == "Reply":
                break
        text, durable = reader_of(lines)
        assert lines[-1][1] == "Reply"
        assert text == "I shall double 0. I shall double 1. It is 2."
        # A call that had begun is run again, which its new events say; each outcome comes once.
        ends = [each for each in durable if each[0] not in ("RunTool", "ToolCallStarted")]
        assert len(ends) == len(set(ends))
        assert [kind for kind, _ in ends].count("ToolCallCompleted") == 2
        ids = [each[0] for each in lines]
        assert ids == sorted(set(ids))
