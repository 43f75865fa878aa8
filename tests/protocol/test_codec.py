"""Events and messages to bytes and back."""

from __future__ import annotations

from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.protocol.codec import CodecError, decode_event, decode_messages, encode_event, encode_messages
from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Citation,
    Document,
    Image,
    Media,
    Message,
    Replay,
    Text,
    Thinking,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelResponded, ModelStreamed, RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import (
    NEVER_LIKELY,
    CitationDelta,
    Error,
    MediaDelta,
    ModelResponse,
    StreamEvent,
    TokenLogprob,
    Usage,
)
from callboard.protocol.options import RequestOptions
from callboard.protocol.states import RequestState
from callboard.protocol.testing import Scenario, drive
from callboard.protocol.testing.strategies import histories, json_values, scenarios, stream_events, texts

TAG = Tag(RequestId("r"), MessageId("m"), 3)
STARTED = RequestStarted(TAG.request, 0.0, (), UserMessage.of("x"), RequestOptions("p/m"))


@given(histories())
def test_messages_round_trip(history: tuple[Message, ...]) -> None:
    assert decode_messages(encode_messages(history)) == history


@settings(deadline=None, max_examples=examples(50))
@given(scenarios(3, 3))
def test_events_round_trip(scenario: Scenario) -> None:
    for event in drive(scenario).applied:
        line = encode_event(event)
        assert decode_event(line) == event
        assert b"\n" not in line


@given(stream_events(), texts())
def test_streams_round_trip(events: list[StreamEvent], text: str) -> None:
    streamed = ModelStreamed(TAG, 1.5, tuple(events))
    assert decode_event(encode_event(streamed)) == streamed


sources = {"media_type": texts(), "data_base64": texts(), "url": texts(), "file_id": texts(), "name": texts()}
media = st.one_of(
    *(st.builds(kind, **sources) for kind in (Image, Audio, Video)),
    st.builds(Document, **sources, text=texts(), citations=st.booleans()),
)
citations = st.builds(
    Citation, texts(), texts(), texts(), st.none() | st.integers(0, 10**9), raw=st.dictionaries(texts(), json_values())
)


@given(st.lists(media, max_size=3), st.lists(citations, max_size=2))
def test_media_and_citations_round_trip(shown: list[Media], cited: list[Citation]) -> None:
    given_parts = tuple(part for part in shown if isinstance(part, Image | Audio | Video | Document))
    answered = tuple(part for part in shown if isinstance(part, Image | Audio | Document))
    history = (
        UserMessage(given_parts),
        AssistantMessage((Text("a", None, tuple(cited)), *answered)),
        ToolMessage(CallId("c"), ToolName("t"), "done", media=tuple(shown)),
    )
    assert decode_messages(encode_messages(history)) == history
    events = (CitationDelta(tuple(cited), 1), *(MediaDelta(part) for part in answered))
    streamed = ModelStreamed(TAG, 1.5, events)
    assert decode_event(encode_event(streamed)) == streamed


def test_what_is_not_known_of_an_answer_and_what_is_round_trips() -> None:
    whole = ModelResponse(
        usage=None, response_id="r", provider_request_id="q", service_tier="flex",
        logprobs=(TokenLogprob("a", -0.5, (("a", -0.5), ("b", -1.0))),),
    )  # fmt: skip
    event = ModelResponded(TAG, 1.0, whole)
    assert decode_event(encode_event(event)) == event


@given(st.dictionaries(texts(), json_values()))
def test_data_of_providers_comes_back_as_it_was(data: dict[str, object]) -> None:
    event = ModelResponded(TAG, 1.0, ModelResponse((Thinking("t", Replay("x", data)),), raw_usage=data))
    assert decode_event(encode_event(event)) == event


def test_parts_that_look_alike_and_names_in_foreign_data_stay_apart() -> None:
    data = {"$": "Text", "text": "not ours"}
    response = ModelResponse((Text("a"), Thinking("a", Replay("x", data))), error=Error(ErrorKind.OTHER, "e"))
    event = ModelResponded(TAG, 1.0, response)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("data", [{}, {"big": 2**70}], ids=["orjson", "stdlib"])
def test_a_number_that_json_lacks_leaves_a_line_that_can_be_read(bad: float, data: dict[str, object]) -> None:
    usage = Usage(bad, 3)  # type: ignore[arg-type]
    event = ModelResponded(
        TAG.at_step(1), 1.0, ModelResponse((Text("x"),), usage=usage, raw_usage={"n": bad, **data}), bad
    )
    back = decode_event(encode_event(event))
    assert isinstance(back, ModelResponded)
    assert back.cost == -1.0, "as little true as what it was; null is a cost that is not known"
    assert (back.response.usage, back.response.raw_usage) == (Usage(-1, 3), {"n": None, **data})
    one, other = (Session.replay([STARTED, found]) for found in (event, back))
    assert (one.spent.usage, one.spent.cost) == (other.spent.usage, other.spent.cost)
    assert one.state is other.state is RequestState.FINISHED
    failed = ModelFailed(TAG.at_step(1), 1.0, Error(ErrorKind.SERVER, "down"), usage=usage, cost=bad)
    told = decode_event(encode_event(failed))
    assert isinstance(told, ModelFailed)
    assert (told.usage, told.cost) == (Usage(-1, 3), -1.0)


@pytest.mark.parametrize("bad", [2**64, -(2**70), 10**400, float("nan"), float("inf")], ids=str)
def test_an_absurd_place_leaves_a_line_that_can_be_read(bad: int) -> None:
    cited = Text("x", None, (Citation("u", start=bad, end=bad, document=bad, raw={"place": 10**400}),))
    [back] = decode_messages(encode_messages([AssistantMessage((cited,))]))
    place = bad if isinstance(bad, int) else None
    kept = Citation("u", start=place, end=place, document=place, raw={"place": 10**400})
    assert back == AssistantMessage((Text("x", None, (kept,)),))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_probability_that_json_lacks_leaves_a_line_that_can_be_read(bad: float) -> None:
    tokens = (TokenLogprob("a", bad, (("a", bad), ("b", -0.5))), TokenLogprob("c", -0.1))
    back = decode_event(encode_event(ModelResponded(TAG, 1.0, ModelResponse((Text("ac"),), logprobs=tokens))))
    assert isinstance(back, ModelResponded)
    read = (TokenLogprob("a", NEVER_LIKELY, (("a", NEVER_LIKELY), ("b", -0.5))), TokenLogprob("c", -0.1))
    assert back.response.logprobs == read


@pytest.mark.parametrize("cost", [None, 0.0, 0.25])
def test_a_cost_that_is_not_known_stays_unknown(cost: float | None) -> None:
    event = ModelResponded(TAG.at_step(1), 1.0, ModelResponse((Text("x"),)), cost)
    assert decode_event(encode_event(event)) == event


def test_a_mapping_proxy_and_a_lone_surrogate_can_be_written() -> None:
    odd = ModelResponded(TAG, 1.0, ModelResponse((Text("a\ud800b", Replay("x", MappingProxyType({"k": (1, 2)}))),)))
    back = decode_event(encode_event(odd))
    assert isinstance(back, ModelResponded)
    assert back.response.text == "a\ufffdb"
    assert isinstance(back.response.parts[0], Text)
    assert back.response.parts[0].replay == Replay("x", {"k": [1, 2]})


def test_options_are_written_whole_and_other_defaults_are_not() -> None:
    """A limit of the options may have another default one day (tests/protocol/test_values.py has the rule)."""
    started = RequestStarted(TAG, 0.0, (), UserMessage.of("x"), RequestOptions("p/m"))
    written = orjson.loads(encode_event(started))["event"]
    assert "tools" not in written
    assert written["history"] == []
    assert written["options"].keys() == {"$", *RequestOptions.__struct_fields__}
    assert decode_event(encode_event(started)) == started


def test_what_only_equals_a_default_is_written() -> None:
    event = ModelResponded(TAG, 1.0, ModelResponse(()), cost=0.0, first_event_at=0.0)
    written = orjson.loads(encode_event(event))["event"]
    assert (written["cost"], written["first_event_at"]) == (0.0, 0.0)
    assert decode_event(encode_event(event)) == event


def test_an_older_journal_lacks_newer_fields() -> None:
    written = orjson.loads(encode_event(RequestStarted(TAG, 0.0, (), UserMessage.of("x"), RequestOptions("p/m"))))
    del written["event"]["options"]["max_attempts"]
    assert "compacted" not in written["event"]
    written["event"]["someday"] = 1
    assert decode_event(orjson.dumps(written)) == RequestStarted(
        TAG, 0.0, (), UserMessage.of("x"), RequestOptions("p/m")
    )
    failed = ModelFailed(TAG.at_step(1), 1.0, Error(ErrorKind.SERVER, "down"))
    assert set(orjson.loads(encode_event(failed))["event"]) == {"$", "tag", "at", "error"}
    assert failed.is_free, "what an older journal has says nothing of it"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "not JSON"),
        (b"[]", "expected an object with 'event' in it"),
        (b'{"v":1}', "expected an object with 'event' in it"),
        (b'{"v":9,"event":{}}', "written in format 9; this version reads 1"),
        (b'{"v":1,"event":{"$":"Nothing"}}', "event: unknown class 'Nothing'"),
        (b'{"v":1,"event":{"x":1}}', "event: unknown class None"),
        (b'{"v":1,"event":{"$":["Text"]}}', "event: unknown class"),
        (b'{"v":1,"event":{"$":"Text","text":"x"}}', "expected an event, found Text"),
        (b'{"v":1,"event":{"$":"ModelLost","tag":["r","m",1,""]}}', "event.at: Field required"),
        (b'{"v":1,"event":{"$":"ModelLost","tag":["r"],"at":1}}', "event.tag"),
        (b'{"v":1,"event":' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        (b'{"v":1,"event":7}', "expected an event, found int"),
    ],
)
def test_bad_bytes_are_told_apart(data: bytes, told: str) -> None:
    with pytest.raises(CodecError, match=told.replace("[", "\\[").replace("'", ".")):
        decode_event(data)


@given(st.binary() | json_values().map(lambda value: orjson.dumps({"v": 1, "event": value})))
def test_no_bytes_do_anything_but_decode_or_raise_codec_error(data: bytes) -> None:
    for decode in (decode_event, decode_messages):
        with pytest.raises(CodecError):
            decode(data)


def test_messages_must_be_messages() -> None:
    with pytest.raises(CodecError, match="expected a list of messages"):
        decode_messages(b'{"v":1,"messages":[{"$":"Text","text":"x"}]}')


@pytest.mark.parametrize("top", [b"5", b"[5]", b"[[1]]", b'{"a":1}', b"[null]", b'"ab"'])
def test_likelihoods_of_another_form_are_told_with_their_place(top: bytes) -> None:
    response = b'{"$":"ModelResponse","parts":[],"logprobs":[{"$":"TokenLogprob","token":"a","logprob":null,"top":%b}]}'
    event = b'{"v":1,"event":{"$":"ModelResponded","tag":["r","m",1,""],"at":1,"response":%b}}' % (response % top)
    with pytest.raises(CodecError, match=r"event\.response\.logprobs\[0\]\.top"):
        decode_event(event)
