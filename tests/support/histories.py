"""Legal histories, as nasty as they can get: foreign and own replays, odd ids and names, empty texts, cut calls."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.ids import CallId, ToolName

texts = st.one_of(st.sampled_from(["", " ", "\n", "Hello", "héllo \u2028 wörld 🎭"]), st.text(max_size=12))
call_ids = st.one_of(
    st.sampled_from(
        ["", "call_1", "toolu_01", "functions.list_dir:0", "list_dir:0", "a b", "ü", "x" * 90, "a.b", "a_b"]
    ),
    st.text(max_size=8),
)
tool_names = st.sampled_from(["lookup", "list_dir", "functions.read", "no such tool!", "", "x" * 80])
json_objects = st.dictionaries(
    st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=4), st.none()), max_size=3
)
json_texts = json_objects.map(json.dumps)
REPLAYS = (
    None,
    Replay("anthropic", {"signature": "c2ln"}),
    Replay("anthropic", {"data": "cmVk"}),
    Replay("gemini", {"thoughtSignature": "dGhv"}),
    Replay("gemini", {"thoughtSignature": "dGhv", "id": "g1"}),
    Replay("openai-responses", {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}),
    Replay("openai-responses", {"type": "reasoning", "id": "rs_2", "summary": []}),
    Replay("openai-responses", {"phase": "commentary"}),
    Replay("elsewhere", {"anything": 1}),
)
#: Which replays a provider puts on which part: an adapter never sees its own on another kind.
_text_replays = st.sampled_from([None, REPLAYS[3], REPLAYS[7], REPLAYS[8]])
_thinking_replays = st.sampled_from([None, *REPLAYS[1:4], *REPLAYS[5:7], REPLAYS[8]])
_call_replays = st.sampled_from([None, REPLAYS[3], REPLAYS[4], REPLAYS[8]])
_SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
_server_blocks = st.sampled_from(
    [
        ServerTool("server_tool_use", Replay("anthropic", _SEARCH)),
        ServerTool("executableCode", Replay("gemini", {"executableCode": {"language": "PYTHON", "code": "1"}})),
        ServerTool("web_search_call", Replay("openai-responses", {"type": "web_search_call", "id": "ws_1"})),
    ]
)


# Each strategy is made once: to make one takes Hypothesis longer than to draw from it.
_flags = st.booleans()
_half_calls = st.one_of(st.sampled_from(['{"a": 1', "", "[1]", "no"]), st.text())
_prose = st.lists(
    st.one_of(
        st.tuples(texts, _text_replays).map(lambda given: Text(*given)),
        st.tuples(texts, _thinking_replays).map(lambda given: Thinking(*given)),
        _server_blocks,
    ),
    max_size=4,
)
_ids = st.lists(call_ids, unique=True, max_size=3)
_contents = st.one_of(json_texts, texts)
_perhaps_text = st.lists(texts, max_size=1)
_one_in_five = st.integers(0, 4)


def _call(draw: st.DrawFn, call_id: str) -> ToolCall:
    complete = draw(_flags)
    arguments = draw(json_texts if complete else _half_calls)
    return ToolCall(CallId(call_id), ToolName(draw(tool_names)), arguments, complete, draw(_call_replays))


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """One model turn with the results of its calls, in their order, and perhaps a note behind them."""
    prose: list[AssistantPart] = draw(_prose)
    asked = [_call(draw, call_id) for call_id in draw(_ids)]
    results = [ToolMessage(call.call_id, call.name, draw(_contents), draw(_flags)) for call in asked]
    behind = map(Text, draw(_perhaps_text)) if draw(_one_in_five) == 0 else ()
    notes = map(SystemMessage, draw(_perhaps_text))
    return [AssistantMessage((*prose, *asked, *behind)), *results, *notes]


images = st.sampled_from(
    [
        Image("image/png", "aWcK"),
        Image(url="https://example.org/a.png"),
        Image("image/png", url="https://example.org/b"),
    ]
)
user_messages = st.lists(st.one_of(texts.map(Text), images), max_size=3).map(lambda parts: UserMessage(tuple(parts)))


_told = st.lists(texts, max_size=2)
_one_in_four = st.integers(0, 3)
_turns = st.lists(turns(), max_size=4)
_perhaps_asked = st.lists(user_messages, max_size=1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """A whole conversation. It may begin with a model's turn, as a trimmed one does."""
    messages: list[Message] = [*map(SystemMessage, draw(_told))]
    if draw(_one_in_four):
        messages.append(draw(user_messages))
    for turn in draw(_turns):
        messages += turn
        messages += draw(_perhaps_asked)
    asked = any(isinstance(message, UserMessage | ToolMessage) for message in messages)
    if not asked or isinstance(messages[-1], AssistantMessage):
        messages.append(draw(user_messages))
    return tuple(messages)
