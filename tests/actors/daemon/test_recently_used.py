"""What the daemon keeps in memory of turns and replies: bounded in number and in bytes, the rest from the journal."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from callboard import ClientTool, Reply, Runtime, Settings
from callboard.actors.daemon.recently_used import MAX_BYTES, RecentlyUsed, bytes_of
from callboard.actors.daemon.recorded_turns import RecordedTurn, RecordedTurns
from callboard.actors.daemon.response_records import ResponseRecords
from callboard.protocol.commands import Outcome
from callboard.protocol.content import AssistantMessage, Text
from callboard.protocol.ids import RequestId
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

MB = 1024 * 1024


def turn_of(size_bytes: int) -> RecordedTurn:
    return RecordedTurn((), AssistantMessage((Text("x" * size_bytes),)), (), (), ())


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 400), st.booleans())))
def test_neither_number_nor_bytes_pass_the_bound_and_the_latest_is_there(
    steps: list[tuple[str, int, bool]],
) -> None:
    kept = RecentlyUsed[str](most=4, max_bytes=1_000)
    used: list[str] = []
    """The latest last."""
    for name, size, is_kept in steps:
        if is_kept:
            kept.keep(name, "x" * size)
        elif kept.find(name) is None:
            continue
        used = [*(each for each in used if each != name), name]
        assert len(kept) == 1 or (len(kept) <= 4 and kept.size_bytes <= 1_000)
        assert [each for each in used if each in kept._values] == list(kept._values) == used[-len(kept) :]
    for name in "abcdef":
        kept.drop(name)
    assert (len(kept), kept.size_bytes) == (0, 0)


def test_the_estimate_is_about_what_the_memory_holds() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [turn_of(1_000 + number) for number in range(500)]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 * grown < bytes_of(held) < 1.5 * grown
    assert bytes_of((held, held, {"again": held})) < bytes_of(held) + 1_000


def test_turns_with_large_answers_do_not_fill_the_memory() -> None:
    turns = RecordedTurns()
    for number in range(100):
        turns.keep(str(number), turn_of(1 * MB))
    assert turns.size_bytes <= MAX_BYTES

    async def find(request_id: str) -> RecordedTurn | None:
        return await turns.find(Runtime(), request_id)

    assert asyncio.run(find("99")) == turn_of(1 * MB)
    assert asyncio.run(find("0")) is None


def test_a_turn_that_was_dropped_is_read_from_the_journal(tmp_path: Path) -> None:
    turn = ScriptedTurn("x" * MB, calls=(ScriptedCall("calendar"),))
    settings = Settings(model="scripted/x", script=lambda request: turn, journal=tmp_path / "journal.db")
    turns = RecordedTurns()

    async def asked() -> None:
        async with Runtime(settings) as runtime:
            reply = await runtime.ask("?", tools=[ClientTool("calendar")])
            assert reply.outcome is Outcome.CALLS_OUTSIDE
            first = await turns.find(runtime, reply.request_id)
            assert first is not None
            assert len(first.turn.text) == MB
            for number in range(MAX_BYTES // MB):
                turns.keep(str(number), turn_of(1 * MB))
            assert turns._turns.find(reply.request_id) is None
            assert await turns.find(runtime, reply.request_id) == first

    asyncio.run(asked())


def test_replies_that_are_large_do_not_fill_the_memory() -> None:
    records = ResponseRecords(None)
    for number in range(100):
        text = "x" * MB
        records.keep_reply(Reply(text, None, RequestId(str(number)), Outcome.ANSWERED, (), None, (), text))
    assert records.replies_bytes <= MAX_BYTES
    assert records.reply("0") is None
    assert records.reply("99") is not None
    records.close()
