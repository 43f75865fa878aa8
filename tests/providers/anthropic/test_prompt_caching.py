"""Prompt caching: where the marks are, how many, for how long, and what cached tokens cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.histories import histories
from support.wire import answer, body, sse

from callboard.protocol.content import (
    AssistantMessage,
    Document,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import PromptCache, Usage
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.catalog import Catalog, ModelInfo, Prices

ADAPTER = Anthropic(api_key="k")
TOOLS = (ToolDefinition(ToolName("lookup"), "Looks up."), ToolDefinition(ToolName("now"), "The time."))
EPHEMERAL = {"type": "ephemeral"}


def step(number: int, *, calls: int = 1, text: str = "done") -> list[Message]:
    """A turn with calls, and their results."""
    ids = [CallId(f"toolu_{number}_{place}") for place in range(calls)]
    turn = AssistantMessage(tuple(ToolCall(call_id, ToolName("lookup"), "{}") for call_id in ids))
    return [turn, *(ToolMessage(call_id, ToolName("lookup"), text) for call_id in ids)]


def marks(sent: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Where the marks are, in the order in which the API reads them."""
    found = [("tools", tool) for tool in sent.get("tools", ())]
    system = sent.get("system", [])
    found += [("system", block) for block in system if isinstance(block, dict)]
    for place, message in enumerate(sent["messages"]):
        found += [(f"message {place}", block) for block in message["content"]]
    return [(place, block["cache_control"]) for place, block in found if "cache_control" in block]


def test_quirk_82_tools_instructions_and_the_last_turn_are_marked_unasked() -> None:
    sent = body(ADAPTER, SystemMessage("Be brief."), UserMessage.of("Hi"), *step(1), tools=TOOLS)
    assert marks(sent) == [
        ("tools", EPHEMERAL),
        ("system", EPHEMERAL),
        ("message 0", EPHEMERAL),
        ("message 2", EPHEMERAL),
    ]
    assert "cache_control" not in sent["tools"][0], "one mark is enough for all tools"
    assert sent["system"] == [{"type": "text", "text": "Be brief.", "cache_control": EPHEMERAL}]


def test_an_hour_is_the_same_for_all_marks() -> None:
    """A mark for an hour may not follow one for minutes."""
    history = (SystemMessage("Be brief."), UserMessage.of("Hi"), *step(1))
    sent = body(ADAPTER, *history, tools=TOOLS, prompt_cache=PromptCache.ONE_HOUR)
    assert [control for _, control in marks(sent)] == [{"type": "ephemeral", "ttl": "1h"}] * 4


def test_off_sends_none() -> None:
    sent = body(ADAPTER, SystemMessage("Be brief."), UserMessage.of("Hi"), tools=TOOLS, prompt_cache=PromptCache.OFF)
    assert "cache_control" not in json.dumps(sent)
    assert sent["system"] == "Be brief."


def test_each_step_marks_where_the_last_one_ended_however_long_its_turn_was() -> None:
    """The API looks back 20 blocks from a mark: after a turn of thirty calls that would find nothing."""
    history: list[Message] = [SystemMessage("Be brief."), UserMessage.of("Hi")]
    before: dict[str, Any] = {}
    for number in range(4):
        sent = body(ADAPTER, *history, tools=TOOLS)
        places = [place for place, _ in marks(sent)]
        assert places[-1] == f"message {len(sent['messages']) - 1}"
        if before:
            last = len(before["messages"]) - 1
            assert f"message {last}" in places, "what the request before has written is read"
            assert "cache_control" in sent["messages"][last]["content"][-1]
        before = sent
        history += step(number, calls=30)


def test_no_mark_is_on_thinking_nor_on_an_empty_result() -> None:
    """400: "cache_control cannot be set for empty text blocks"."""
    thought = Thinking("Hm", Replay("anthropic", {"signature": "s"}))
    results = step(1, calls=2)
    empty = ToolMessage(CallId("toolu_1_1"), ToolName("lookup"), "")
    sent = body(ADAPTER, UserMessage.of("Hi"), AssistantMessage((thought, *results[0].parts)), results[1], empty)  # type: ignore[union-attr]
    first, second = sent["messages"][2]["content"]
    assert "cache_control" in first
    assert "cache_control" not in second
    assert not any("cache_control" in block for block in sent["messages"][1]["content"])


def test_turns_of_empty_results_leave_their_marks_to_the_turns_before() -> None:
    asked, *rest = [UserMessage.of("Hi"), *step(1), *step(2), *step(3, text=""), *step(4, calls=2, text="")]
    sent = body(ADAPTER, asked, *rest, tools=TOOLS)
    assert [place for place, _ in marks(sent)] == ["tools", "message 2", "message 4"]
    sent = body(ADAPTER, *step(1, text=""), *step(2, text=""), tools=TOOLS)
    assert [place for place, _ in marks(sent)] == ["tools", "message 0"]


def test_a_document_and_a_server_tool_can_carry_the_mark() -> None:
    asked = UserMessage((Text("Read"), Document(text="A long text")))
    sent = body(ADAPTER, asked, tools=TOOLS, server_tools=(WebSearch(),))
    assert sent["messages"][0]["content"][-1]["type"] == "document"
    assert [place for place, _ in marks(sent)] == ["tools", "message 0"]
    assert sent["tools"][-1]["name"] == "web_search"


MARKED = {"type": "text", "text": "x", "cache_control": EPHEMERAL}


@pytest.mark.parametrize(
    ("options", "cache", "ours"),
    [
        ({"system": [MARKED]}, PromptCache.FIVE_MINUTES, ["tools", "message 0", "message 2"]),
        ({"system": [MARKED, MARKED, MARKED]}, PromptCache.FIVE_MINUTES, ["message 2"]),
        ({"system": [MARKED] * 4}, PromptCache.FIVE_MINUTES, []),
        ({"cache_control": EPHEMERAL}, PromptCache.FIVE_MINUTES, ["tools", "system", "message 0"]),
        ({"system": [MARKED]}, PromptCache.OFF, []),
    ],
    ids=["one", "three", "four", "the api's own", "off"],
)
def test_the_callers_own_marks_count_towards_the_four(
    options: dict[str, Any], cache: PromptCache, ours: list[str]
) -> None:
    history = (SystemMessage("Be brief."), UserMessage.of("Hi"), *step(1))
    sent = body(ADAPTER, *history, tools=TOOLS, provider_options=(ExtraFields(options),), prompt_cache=cache)
    own = len([block for block in options.get("system", ()) if "cache_control" in block])
    found = [place for place, _ in marks(sent)]
    assert len(found) + ("cache_control" in sent) <= 4
    assert [place for place in found if not (place == "system" and own)] == ours


def test_our_marks_last_as_long_as_the_callers_own() -> None:
    """400: "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"."""
    hour = {"type": "ephemeral", "ttl": "1h"}
    sent = body(ADAPTER, tools=TOOLS, provider_options=(ExtraFields({"system": [{**MARKED, "cache_control": hour}]}),))
    assert [control for _, control in marks(sent)] == [hour] * 3
    mixed = [{**MARKED, "cache_control": hour}, MARKED]
    sent = body(ADAPTER, tools=TOOLS, provider_options=(ExtraFields({"system": mixed}),))
    assert [place for place, _ in marks(sent)] == ["system", "system"]


#: A call that was cut, and what stands for its result.
CUT_CALL = (
    AssistantMessage((ToolCall(CallId(""), ToolName("lookup"), '{"a": 1', complete=False),)),
    ToolMessage(CallId(""), ToolName("lookup"), ""),
)


@settings(max_examples=examples(60), deadline=None)
@given(histories(), st.sampled_from(list(PromptCache)), st.booleans())
@example((AssistantMessage(()), AssistantMessage(()), *CUT_CALL, *CUT_CALL), PromptCache.FIVE_MINUTES, False)
def test_any_history_has_at_most_four_marks_and_is_otherwise_the_same(
    messages: tuple[Message, ...], cache: PromptCache, has_tools: bool
) -> None:
    tools = TOOLS if has_tools else ()
    sent = body(ADAPTER, *messages, tools=tools, prompt_cache=cache)
    plain = body(ADAPTER, *messages, tools=tools, prompt_cache=PromptCache.OFF)
    found = marks(sent)
    assert len(found) == json.dumps(sent).count('"cache_control"') <= (0 if cache is PromptCache.OFF else 4)
    if cache is not PromptCache.OFF:
        assert found or not any(_can_be_marked(block) for m in sent["messages"] for block in m["content"])
    if isinstance(system := sent.get("system"), list):
        sent["system"] = system[0]["text"]
    assert _without_marks(sent) == plain


def _can_be_marked(block: dict[str, Any]) -> bool:
    return block["type"] in ("text", "image", "document") or (block["type"] == "tool_result" and block["content"] != "")


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_marks(child) for key, child in value.items() if key != "cache_control"}
    return [_without_marks(child) for child in value] if isinstance(value, list) else value


# What it costs.


def test_writes_and_reads_are_told_apart_and_priced() -> None:
    counts = {
        "input_tokens": 100,
        "cache_read_input_tokens": 10_000,
        "cache_creation_input_tokens": 3_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 2_000},
        "output_tokens": 1,
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}}
    turn = answer(
        ADAPTER, sse([{"type": "message_start", "message": {"usage": counts}}, end, {"type": "message_stop"}])
    )
    assert turn.usage == Usage(13_100, 50, cached_tokens=10_000, cache_write_tokens=3_000, cache_write_1h_tokens=2_000)
    # Claude Sonnet 4.5: $3 for a million tokens of input, a tenth of it for reads, 1.25 and 2 times for writes.
    dollars = (100 * 3 + 10_000 * 0.3 + 1_000 * 3.75 + 2_000 * 6 + 50 * 15) / 1e6
    assert Catalog().cost("anthropic", "claude-sonnet-4-5", turn.usage) == pytest.approx(dollars)
    given = Prices(3e-6, 15e-6, 0.3e-6, 3.75e-6, 6e-6)
    assert given.cost(turn.usage) == pytest.approx(dollars)
    assert Catalog().info("anthropic", "claude-sonnet-4-5").prices == Prices(3e-6, 15e-6, 0.3e-6, 3.75e-6, 6e-6, 0.01)


def test_a_write_without_a_price_of_its_own_costs_what_other_input_does() -> None:
    usage = Usage(1_000, 0, cache_write_tokens=1_000, cache_write_1h_tokens=1_000)
    assert Catalog().cost("deepseek", "deepseek-chat", usage) == Catalog().cost(
        "deepseek", "deepseek-chat", Usage(1_000, 0)
    )
    assert Prices(1.0, 2.0).cost(usage) == 1_000.0
    assert Prices(1.0, 2.0, cache_write=1.25).cost(usage) == 1_250.0


def test_searches_are_billed_by_their_number_and_without_a_price_the_cost_is_not_known() -> None:
    once, never = Usage(1_000, 10, web_searches=1), Usage(1_000, 10)
    plain = Catalog().cost("anthropic", "claude-sonnet-4-5", never)
    assert plain is not None
    assert Catalog().cost("anthropic", "claude-sonnet-4-5", once) == pytest.approx(plain + 0.01)
    assert Catalog().cost("deepseek", "deepseek-chat", once) is None
    mine = Catalog({"mine/*": ModelInfo(prices=Prices(1e-6, 1e-6, web_search=0.02))})
    assert mine.cost("mine", "m", once) == pytest.approx(0.00101 + 0.02)


def test_sound_costs_its_own_price_and_without_one_the_cost_is_not_known() -> None:
    spoken = Usage(1_000, 100, input_audio_tokens=200, output_audio_tokens=50)
    assert Catalog().cost("openai", "gpt-audio", spoken) == pytest.approx(
        (800 * 2.5 + 200 * 32 + 50 * 10 + 50 * 64) / 1e6
    )
    assert Catalog().cost("openai", "gpt-4o", spoken) is None
    heard = Usage(1_000, 100, input_audio_tokens=200)
    assert Catalog().cost("gemini", "gemini-2.5-pro", heard) == Catalog().cost(
        "gemini", "gemini-2.5-pro", Usage(1_000, 100)
    ), "Google lists a price for sound only where it is another one"
    both = Usage(1_000, 10, cached_tokens=500, input_audio_tokens=200)
    assert Catalog().cost("gemini", "gemini-2.5-flash", both) is not None
    assert Catalog().cost("gemini", "gemini-2.5-flash", Usage(1_000, 10, cached_tokens=900, input_audio_tokens=200))


def test_a_budget_reckons_with_all_input_being_written() -> None:
    catalog, model = Catalog(), "claude-sonnet-4-5"
    by_cache = {cache: catalog.dearest("anthropic", model, 100_000, cache) for cache in PromptCache}
    assert [round(prices.input * 1e6, 2) for prices in by_cache.values() if prices] == [3.0, 3.75, 6.0]
    for cache, prices in by_cache.items():
        written = Usage(1_000, 10, cache_write_tokens=1_000, cache_write_1h_tokens=1_000 * (cache == "1h"))
        cost = catalog.cost("anthropic", model, Usage(1_000, 10) if cache == "off" else written)
        assert prices is not None
        assert cost is not None
        assert cost <= prices.cost(Usage(1_000, 10)) + 1e-12
