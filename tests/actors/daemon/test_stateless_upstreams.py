"""The stateless APIs between an official client and a model's server, all over real sockets: what a client brings back
reaches the model as its server wants it, whichever of the APIs it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.running_daemon import RunningDaemon, running_daemon
from support.sdk_types import Lazy
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Api, Call, Fault, FaultKind, RawAnswer, Turn

if TYPE_CHECKING:
    import anthropic
    import openai
    from anthropic.types import MessageParam, ToolParam
else:
    anthropic = Lazy("anthropic")
    openai = Lazy("openai")

SUPPORT = Path(__file__).parents[2] / "support"
CALENDAR: ToolParam = {
    "name": "calendar",
    "input_schema": {"type": "object", "properties": {"day": {"type": "string"}}},
}
#: Upstreams that keep their thinking apart from the text, by API.
UPSTREAMS = {
    Api.ANTHROPIC: "anthropic/claude-sonnet-5-5",
    Api.CHAT: "openai-compatible/m",
    Api.RESPONSES: "openai/gpt-5",
}
EMBEDDINGS = "openai-compatible/small"
BOTH = Turn("One moment.", (Call("calendar", {"day": "1"}), Call("weather", {"city": "Oslo"})), thinking="Which?")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon before the double, by each of its APIs."""
    with shared_double() as double:
        lines = [f'[default]\nmodel = "{UPSTREAMS[Api.ANTHROPIC]}"\n[daemon]\nembedding_model = "{EMBEDDINGS}"\n']
        for api, model in UPSTREAMS.items():
            url, provider = double.base_url(api), model.partition("/")[0]
            lines.append(f'[default.connections.{provider}]\nbase_url = "{url}"\napi_key = "a-key-for-the-double"\n')
        tools = ("--tools", str(SUPPORT / "daemon_tools.py"))
        with running_daemon(tmp_path_factory.mktemp("daemon"), *tools, config="\n".join(lines)) as found:
            yield found


@pytest.fixture
def claude(daemon: RunningDaemon) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=daemon.url, api_key=daemon.token, max_retries=0) as found:
        yield found


@pytest.fixture
def gpt(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as found:
        yield found


@pytest.mark.parametrize("api", UPSTREAMS)
def test_a_turn_goes_on_with_its_thinking_and_with_what_ran_here(api: Api, claude: anthropic.Anthropic) -> None:
    history: list[MessageParam] = [{"role": "user", "content": "what is planned?"}]
    with shared_double([BOTH, Turn("You are free.")]) as double:
        name = UPSTREAMS[api]
        first = claude.messages.create(model=name, max_tokens=99, messages=history, tools=[CALENDAR])
        assert first.stop_reason == "tool_use"
        history.append({"role": "assistant", "content": first.content})
        (call,) = (block for block in first.content if block.type == "tool_use")
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "free"}
        history.append({"role": "user", "content": [result]})
        last = claude.messages.create(model=name, max_tokens=99, messages=history, tools=[CALENDAR])
        sent = str(double.traffic().bodies[1])
    assert [block.text for block in last.content if block.type == "text"] == ["You are free."]
    assert "rain in Oslo" in sent
    assert "'free'" in sent
    assert "call_" not in call.id or call.id not in sent, "the model's server knows its own ids"


def test_a_signature_goes_to_the_client_and_back(claude: anthropic.Anthropic) -> None:
    history: list[MessageParam] = [{"role": "user", "content": "hello"}]
    with shared_double([Turn("Hi.", thinking="Hm."), Turn("Yes.")]) as double:
        with claude.messages.stream(model="claude-sonnet-5-5", max_tokens=99, messages=history) as stream:
            first = stream.get_final_message()
        (thinking,) = (block for block in first.content if isinstance(block, anthropic.types.ThinkingBlock))
        assert (thinking.thinking, bool(thinking.signature)) == ("Hm.", True)
        history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "again"}]
        claude.messages.create(model="claude-sonnet-5-5", max_tokens=99, messages=history)
        sent = double.traffic().bodies[1]["messages"][1]["content"][0]
    assert sent == {"type": "thinking", "thinking": "Hm.", "signature": thinking.signature}


def test_a_form_is_asked_for_natively(gpt: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with shared_double([Turn('{"a": 1}')]) as double:
        answer = gpt.chat.completions.create(
            model=UPSTREAMS[Api.RESPONSES],
            messages=[{"role": "user", "content": "a?"}],
            response_format=form,
            extra_body={"callboard": {"tools": []}},
        )
        sent = double.traffic().bodies[0]["text"]["format"]
    assert answer.choices[0].message.content == '{"a":1}'
    assert (sent["type"], sent["schema"]["required"]) == ("json_schema", ["a"])


def test_a_connection_that_breaks_is_retried_and_not_seen(gpt: openai.OpenAI) -> None:
    broken = Turn("You are free.", fault=Fault(FaultKind.CUT, after=2))
    with shared_double([broken, Turn("You are free.")]):
        chunks = gpt.chat.completions.create(
            model=UPSTREAMS[Api.CHAT], messages=[{"role": "user", "content": "hello"}], stream=True
        )
        said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == "You are free."


def test_texts_are_embedded_by_the_model_of_the_daemon(gpt: openai.OpenAI) -> None:
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    vectors = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 0.5]}], "usage": usage}
    with shared_double([RawAnswer(vectors)]) as double:
        found = gpt.embeddings.create(model="small", input=["hello"], encoding_format="float")
        sent = double.traffic().bodies
    assert found.data[0].embedding == [1.0, 0.5]
    assert found.model == "small"
    assert sent == [{"model": "small", "input": ["hello"], "encoding_format": "float"}]
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model="large", input="hello")
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.embeddings.create(model="small", input=[])
    assert caught.value.param == "input"


def test_an_embedding_model_that_refuses_is_an_error_without_its_key(gpt: openai.OpenAI) -> None:
    refused = RawAnswer({"error": {"message": "bad key a-key-for-the-double"}}, 401)
    with shared_double([refused]), pytest.raises(openai.InternalServerError) as caught:
        gpt.embeddings.create(model="small", input="hello")
    assert caught.value.code == "provider_authentication"
    assert "a-key-for-the-double" not in caught.value.response.text
