"""A history for a model that takes no tools, and what a session shows such a model."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given

from callboard.protocol.calls_as_text import calls_as_text, written_call
from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
    split_atoms,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.testing.strategies import histories
from callboard.protocol.testing.told_calls import in_words

CALL = ToolCall(CallId("a"), ToolName("look"), '{"x":1}', replay=Replay("gemini", {"signature": "s"}))
RESULT = ToolMessage(CallId("a"), ToolName("look"), "seen")


def test_a_call_is_a_sentence_and_a_result_a_message_of_the_user() -> None:
    turn = AssistantMessage((Thinking("hm", Replay("anthropic", {})), Text("I look.", Replay("gemini", {})), CALL))
    told = calls_as_text((UserMessage.of("go"), turn, RESULT, SystemMessage("a note")))
    assert told == (
        UserMessage.of("go"),
        AssistantMessage((Text("I look."), Text('\n[Called look with {"x":1}]'))),
        UserMessage.of("[look returned]\nseen"),
        SystemMessage("a note"),
    )


def test_pictures_of_a_result_stay() -> None:
    picture = Image("image/png", "AAAA")
    told = calls_as_text((ToolMessage(CallId("a"), ToolName("shot"), "done", media=(picture,)),))
    assert told == (UserMessage((Text("[shot returned]\ndone"), picture)),)


def test_a_turn_without_calls_stays_as_it_is() -> None:
    turn = AssistantMessage((Thinking("hm", Replay("anthropic", {})), Text("Yes.")))
    assert calls_as_text((turn,)) == (turn,)


@given(histories())
def test_no_call_or_result_is_left_and_nothing_else_is_changed(history: tuple[Message, ...]) -> None:
    told = calls_as_text(history)
    assert not history_faults(told)
    assert all(not isinstance(message, ToolMessage) for message in told)
    assert all(not message.tool_calls for message in told if isinstance(message, AssistantMessage))
    kept = [message for message in history if isinstance(message, UserMessage | SystemMessage)]
    assert [message for message in told if message in kept] == kept
    assert told == in_words(history), "as the rules read it"
    assert told == tuple(message for atom in split_atoms(history) for message in calls_as_text(atom))


OFFERED = (ToolName("weather"), ToolName("write_file"))
CITY = '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>'
DSML = '<｜DSML｜{}>\n<｜DSML｜invoke name="weather">\n' + CITY
JSON_CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
INVOKE = '<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>'
XML = "<parameter=city>\nOslo\n</parameter>"


@pytest.mark.parametrize(
    "text",
    [
        # Hermes and Qwen (vllm issue 40801), several, cut, behind a thought, with the end of the turn.
        f"<tool_call>\n{JSON_CALL}\n</tool_call>",
        f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>",
        '\n <tool_call>{"name": "weather", "arguments": {"city": "Os',
        f"<think>Let me see.</think>\n\n<tool_call>{JSON_CALL}</tool_call><|im_end|>",
        # Qwen3-Coder, with and without its outer tags; Llama's custom tools.
        f"<tool_call>\n<function=weather>\n{XML}\n</function>\n</tool_call>",
        f"<function=weather>\n{XML}\n</function>",
        '<function=weather>{"city": "Oslo"}</function>',
        # DeepSeek's DSML, V4 and V3.2 (docs of vllm.parser), doubled bars (xagent issue 806), and its older tokens.
        DSML.format("tool_calls") + "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        DSML.format("function_calls") + "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        DSML.format("tool_calls").replace("｜", "｜｜") + "\n</｜｜DSML｜｜invoke>\n</｜｜DSML｜｜tool_calls>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        # Kimi K2, GLM, MiniMax M2, Granite, Mistral (two forms), Nemotron, Cohere, gpt-oss, LFM2, Gemma 3 and 4.
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        f"<|tool_call|>[{JSON_CALL}]",
        f"<tool_call>[{JSON_CALL}]",
        f"[TOOL_CALLS] [{JSON_CALL}]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}',
        f"<TOOLCALL>[{JSON_CALL}]</TOOLCALL>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {}}]<|END_ACTION|>',
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        '<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>',
        '```tool_code\nprint(default_api.weather(city="Oslo"))\n```',
        '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>',
        # Llama 3: its tag with JSON or Python behind it, bare JSON; Llama 4's list. Qwen2.5-Coder's (omlx issue 2565).
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}<|eom_id|>',
        '<|python_tag|>weather.call(city="Oslo")',
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
        '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
        '[weather(city="Oslo"), weather(city="Bergen")]',
        JSON_CALL,
        f"[{JSON_CALL}, {JSON_CALL}]",
        # Claude's block and OpenAI's call as the text of an answer; Gemma 4's without its tags (openclaude issue 380).
        '{"type":"tool_use","id":"toolu_1","name":"weather","input":{"city":"Oslo"}}',
        '[{"type": "tool_use", "name": "weather", "input": {}}]',
        '{"type":"function","function":{"name":"weather","arguments":{"city":"Oslo"}}}',
        '{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}',
        'call:weather{city:<|"|>Oslo<|"|>}',
        'call:weather{city: "Oslo"}\ncall:weather{city: "Bergen"}',
        f"```json\n{JSON_CALL}\n```",
        '```json\n{"type":"tool_use","name":"weather","input":{"city":"Oslo"}}\n```',
        # A stray word (claude-code issues 64700, 68354, 69841).
        f"court\n{INVOKE}",
        f"call\n\n{INVOKE}",
        f"court\n<function_calls>\n{INVOKE}\n</function_calls>",
    ],
)
def test_an_answer_that_is_only_a_call_in_a_models_own_markup(text: str) -> None:
    assert written_call(text, OFFERED) == "weather"
    assert written_call(text, ()) is None
    assert written_call(text, (ToolName("other"),)) is None
    assert written_call(f"Models write calls so: {text}", OFFERED) is None
    assert written_call(f"```\n{text}\n```", OFFERED) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It rains in Oslo.",
        f"<tool_call>{JSON_CALL}</tool_call> is how Hermes writes a call.",
        f"<tool_call>{JSON_CALL}</tool_call>, not <tool_call>{JSON_CALL}</tool_call>",
        "<tool_call> is the tag that you ask for.",
        '{"name": "weather", "wind": 3}',
        '{"name": "weather", "arguments": {}, "explanation": "as asked"}',
        '{"city": "Oslo"}',
        '{"type": "tool_use", "name": "weather", "input": {}, "note": "as asked"}',
        '{"type": "tool_use", "name": "weather"}',
        '{"type": "event", "function": {"name": "weather", "arguments": {}}}',
        '{"type": "function", "function": {"name": "weather", "description": "W", "parameters": {}}}',
        '{"calls": [{"type": "tool_use", "name": "weather", "input": {}}]}',
        "call:weather is how Gemma calls it",
        'call:weather{city: "Oslo"} is how Gemma calls it',
        "call: weather{}",
        f"```json\n{JSON_CALL}\n```\nThis is the call.",
        f"```json\n{JSON_CALL}\n```\n```json\n{JSON_CALL}\n```",
        '```json\n{"city": "Oslo"}\n```',
        f"A stray word\n{INVOKE}",
        f"Example:\n{INVOKE}",
        f"court\n{INVOKE}\nSo it is written.",
        f"court {INVOKE}",
        f"court\n{JSON_CALL}",
        "[1, 2]",
        '["weather"]',
        "[weather](https://example.org)",
        "[see weather(city) below] for more",
        "```python\nweather(city)\n```",
        "weather(city='Oslo')",
        "<p>weather</p>",
    ],
)
def test_an_answer_that_quotes_or_only_looks_like_one_is_an_answer(text: str) -> None:
    assert written_call(text, OFFERED) is None


def test_looking_for_a_written_call_takes_time_by_length() -> None:
    for text in (
        "<tool_call>" * 9_000,
        "[" * 99_999,
        '{"name":' * 12_000,
        "<tool_call></tool_call>" * 4_000,
        "[a(" * 33_000,
        "call:a{" * 14_000,
        "```json\n" * 12_000,
        "a\n" + "\n" * 90_000 + "<",
    ):
        began = perf_counter()
        written_call(text, OFFERED)
        assert perf_counter() - began < 2
