"""The double over real HTTP: its faults, which script answers, what it records, and its command."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from callboard.actors.testing.wire_double import (
    Api,
    Call,
    Chance,
    Fault,
    FaultKind,
    RawAnswer,
    Script,
    Turn,
    WireDouble,
    sending,
)
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, ModelResponse
from callboard.providers.adapter import HttpAnswer, Timeouts, WireRequest
from callboard.providers.copilot.copilot_api import Copilot, CopilotProvider
from callboard.providers.copilot.copilot_login import EXCHANGE_URL, CopilotTokens, FileStore
from callboard.providers.provider_registry import adapter_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

COMMAND = [sys.executable, "-m", "callboard.actors.testing.wire_double"]
#: A silence that the tests wait for, and one that no test waits for.
SHORT, LONG = Timeouts(5, 0.2, 10), Timeouts(5, 10, 20)
PATIENCE_SECONDS = 20.0


@pytest.fixture(scope="module")
def running() -> Iterator[WireDouble]:
    with WireDouble() as double:
        yield double


@pytest.fixture
def double(running: WireDouble) -> WireDouble:
    running.reset()
    return running


async def asked(
    double: WireDouble, api: Api, *messages: Message, script: str = "", stream: bool = True, timeouts: Timeouts = LONG
) -> ModelResponse:
    adapter = adapter_for(api.value, base_url=double.base_url(api, script), api_key=copilot_token(double, api))
    provider = HttpProvider(adapter, timeouts=timeouts)
    builder = ResponseBuilder()
    try:
        async for events in provider.stream(ModelRequest("m", messages or (UserMessage.of("Hi"),), stream=stream)):
            builder.feed(events)
    finally:
        await provider.aclose()
    return builder.response()


def ask(double: WireDouble, api: Api = Api.CHAT, *messages: Message, **how: Any) -> ModelResponse:
    return asyncio.run(asked(double, api, *messages, **how))


def copilot_token(double: WireDouble, api: Api) -> str:
    if api is not Api.COPILOT:
        return "key"
    path, headers = "/copilot/copilot_internal/v2/token", {"authorization": "token secret"}
    status, body = talk(double, "GET", path, headers=headers)
    assert status == 200
    assert body["endpoints"]["api"] == double.base_url(Api.COPILOT)
    token: str = body["token"]
    return token


def talk(
    double: WireDouble, method: str, path: str, document: object = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """One request as any language makes it: status and JSON."""
    connection = HTTPConnection(urlsplit(double.url).netloc, timeout=5)
    try:
        body = document if isinstance(document, str) else json.dumps(document)
        connection.request(method, path, body if document is not None else None, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", Api)
def test_each_api_answers_streamed_and_whole(double: WireDouble, api: Api, stream: bool) -> None:
    double.play([Turn("It rains.", (Call("look", {"city": "Oslo"}, "call_1"),), "Hm")])
    found = ask(double, api, stream=stream)
    assert found.error is None
    assert (found.text, found.thinking) == ("It rains.", "Hm")
    assert [(call.call_id, call.arguments) for call in found.tool_calls] == [("call_1", '{"city":"Oslo"}')]
    request = double.requests()[-1]
    assert (request.api, request.method, request.script, request.number) == (api, "POST", "", 0)
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (FaultKind.STALL, ErrorKind.TIMEOUT, "sent nothing"),
        (FaultKind.DEAF, ErrorKind.TIMEOUT, "sent nothing"),
        (FaultKind.CUT, ErrorKind.CONNECTION, "it broke"),
        (FaultKind.RESET, ErrorKind.CONNECTION, "broke the connection off"),
        (FaultKind.CLOSE, ErrorKind.CONNECTION, "disconnected"),
        (FaultKind.GARBAGE, ErrorKind.MALFORMED, "JSON"),
        (FaultKind.HTML, ErrorKind.MALFORMED, "not JSON"),
        (FaultKind.STREAM_ERROR, ErrorKind.SERVER, "told to fail"),
        (FaultKind.STATUS, ErrorKind.SERVER, "told to fail"),
    ],
)
@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.ANTHROPIC, Api.GEMINI])
def test_each_fault_reaches_the_client(
    double: WireDouble, api: Api, kind: FaultKind, error: ErrorKind, words: str
) -> None:
    double.play([Turn("It rains.", fault=Fault(kind))])
    left = kind in (FaultKind.STALL, FaultKind.DEAF)
    found = ask(double, api, timeouts=SHORT if left else LONG)
    assert found.error is not None
    assert found.error.kind is error
    assert words in found.error.message
    # On a busy machine the client has given up before the server looks at its request.
    traffic = double.wait_until(lambda traffic: {each.ended_at is None for each in traffic.requests} == {False})
    assert traffic.requests[0].client_left is left


def test_an_answer_after_which_the_server_hangs_up_is_whole(double: WireDouble) -> None:
    double.play([Turn("whole", fault=Fault(FaultKind.HANGUP))])
    assert ask(double).text == "whole"
    assert double.wait_until(lambda traffic: traffic.open_connections == 0).connections == 1


def test_an_endless_answer_ends_when_the_client_leaves(double: WireDouble) -> None:
    double.play([Turn("on ", fault=Fault(FaultKind.ENDLESS))])
    connection = HTTPConnection(urlsplit(double.url).netloc, timeout=5)
    connection.request("POST", "/v1/chat/completions", '{"stream": true, "messages": []}')
    assert len(connection.getresponse().read(1_000_000)) == 1_000_000
    assert double.requests()[0].ended_at is None
    connection.close()
    (request,) = double.wait_until(lambda traffic: traffic.abandoned == 1).requests
    assert request.ended_at is not None
    assert request.at < request.ended_at <= time.monotonic()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_others_have_their_turn_beside_an_answer_that_is_read_at_once(loop: str) -> None:
    written = 0

    class ReadAtOnce:
        async def write(self, _: bytes) -> None:
            nonlocal written
            written += 1
            assert written < 10_000, "nobody else had a turn"

    async def answers() -> None:
        endless = asyncio.ensure_future(sending._write(cast(Any, ReadAtOnce()), itertools.repeat(b"piece")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert written >= 9 * sending.TURN_PIECES
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless

    make_loop = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(answers())


def test_a_slow_answer_has_a_pause_between_its_pieces(double: WireDouble) -> None:
    double.play([Turn("abcdefgh", fragment=1, pause=0.02)])
    assert ask(double).text == "abcdefgh"
    (request,) = double.requests()
    assert request.ended_at is not None
    # Ten pieces; only a lower bound, which no load of the machine can break.
    assert request.ended_at - request.at >= 8 * 0.02


def test_retry_after_is_a_header(double: WireDouble) -> None:
    double.play([Turn(fault=Fault(FaultKind.STATUS, status=429, retry_after=3))])
    error = ask(double).error
    assert error is not None
    assert (error.kind, error.retry_after) == (ErrorKind.RATE_LIMITED, 3.0)


def test_answers_come_in_order_and_then_there_are_none(double: WireDouble) -> None:
    double.play([Turn("first"), Turn("second")])
    assert [ask(double).text for _ in range(2)] == ["first", "second"]
    error = ask(double).error
    assert error is not None
    assert error.status == 500
    assert "has no answer 2" in error.message
    double.play([Turn("again")])
    assert ask(double).text == "again"


def conversation(turns: int) -> list[Message]:
    """A history with an earlier question and its answer, and so many turns of calls after the last question."""
    earlier = [SystemMessage("Be short."), UserMessage.of("Hi"), AssistantMessage((Text("Hello"),))]
    return [*earlier, UserMessage.of("Go"), *(each for number in range(turns) for each in step(number))]


def step(number: int) -> list[Message]:
    """Two calls and their results."""
    name = ToolName("look")
    calls = [ToolCall(CallId(f"call_{number}_{place}"), name, "{}") for place in range(2)]
    return [AssistantMessage(tuple(calls)), *(ToolMessage(call.call_id, name, "rain") for call in calls)]


@pytest.mark.parametrize("api", Api)
def test_by_turn_the_history_decides(double: WireDouble, api: Api) -> None:
    double.play([Turn("zero"), Turn("one"), Turn("two")], by_turn=True)
    for turns, text in [(2, "two"), (0, "zero"), (1, "one"), (0, "zero")]:
        assert ask(double, api, *conversation(turns)).text == text


def test_by_turn_a_response_id_counts_what_is_not_sent_again(double: WireDouble) -> None:
    double.play([Turn("zero"), Turn("one"), Turn("two")], by_turn=True)
    output = {"type": "function_call_output", "call_id": "call_0_0", "output": "rain"}
    given: list[dict[str, Any]] = [{"input": "Hi"}]
    for _ in range(2):
        status, answer = talk(double, "POST", "/v1/responses", given[-1])
        assert status == 200
        given.append({"input": [output], "previous_response_id": answer["id"]})
    assert talk(double, "POST", "/v1/responses", given[-1])[1]["output"][0]["content"][0]["text"] == "two"
    new = {"input": [{"role": "user", "content": "Again"}], "previous_response_id": answer["id"]}
    assert talk(double, "POST", "/v1/responses", new)[1]["output"][0]["content"][0]["text"] == "zero"


def test_a_script_is_chosen_by_path_header_message_model_or_is_the_one_without_a_name(double: WireDouble) -> None:
    names = ("", "path", "header", "message", "model")
    double.play_scripts(*(Script((Turn(f"by {name}"),) * 2, name=name) for name in names))

    def said(path: str, model: str, text: str, headers: dict[str, str] | None = None) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        status, answer = talk(double, "POST", f"{path}/v1/chat/completions", body, headers)
        content: str = answer["choices"][0]["message"]["content"] if status == 200 else answer["error"]["message"]
        return content

    assert said("/s/path", "model", "message", {"x-script": "header"}) == "by path"
    assert said("", "model", "message", {"x-script": "header"}) == "by header"
    assert said("", "model", "message") == "by message"
    assert said("", "model", "other") == "by model"
    assert said("", "other", "other") == "by "
    assert "no script for this request" in said("/s/unknown", "model", "message")
    assert [request.script for request in double.requests()] == ["path", "header", "message", "model", "", ""]


def test_gemini_names_its_model_in_the_path_and_streams_an_array_unless_asked_for_events(double: WireDouble) -> None:
    double.play([Turn("ab", fragment=1)], name="some-model", by_turn=True)
    body = {"contents": [{"parts": [{"text": "Hi"}]}]}
    status, chunks = talk(double, "POST", "/v1beta/models/some-model:streamGenerateContent", body)
    assert status == 200
    assert [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks] == ["a", "b", ""]


def test_one_connection_is_counted_once_and_questions_about_the_double_never(double: WireDouble) -> None:
    double.play([Turn("a")] * 3)

    async def twice() -> None:
        provider = HttpProvider(adapter_for("openai-compatible", base_url=double.base_url()), timeouts=LONG)
        for _ in range(2):
            async for _events in provider.stream(ModelRequest("m", (UserMessage.of("Hi"),))):
                continue
        assert double.traffic().open_connections == 1
        await provider.aclose()

    asyncio.run(twice())
    traffic = double.wait_until(lambda traffic: traffic.open_connections == 0)
    assert (traffic.connections, len(traffic.requests), traffic.abandoned) == (1, 2, 0)


def test_a_bad_script_is_refused_and_changes_nothing(double: WireDouble) -> None:
    double.play([Turn("still here")])
    status, answer = talk(double, "POST", "/_double/script", [{"turns": []}, {"turns": [{"text": 7}]}])
    assert status == 400
    assert answer["error"]["message"] == "The script is not valid at 1.turns.0.text: Input should be a valid string."
    with pytest.raises(UsageError, match="Invalid JSON"):
        double._ask("POST", "/_double/script", b"{")
    assert ask(double).text == "still here"


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/_double/nothing", 404, "known are: POST /_double/script"),
        ("GET", "/v1/files", 404, "answers POST requests, not GET"),
        ("POST", "/v1/nothing", 404, "belongs to no wire API"),
        ("POST", "/copilot/chat/completions", 401, "get a token"),
        ("GET", "/copilot/copilot_internal/v2/token", 401, "Bad credentials"),
    ],
)
def test_what_it_does_not_serve_is_said(double: WireDouble, method: str, path: str, status: int, says: str) -> None:
    double.play([Turn("a")])
    found, answer = talk(double, method, path, {} if method == "POST" else None)
    assert found == status
    assert says in answer["error"]["message"]


def test_what_clients_ask_before_a_conversation_is_answered_and_not_recorded(double: WireDouble) -> None:
    double.play([Turn("a")])
    assert talk(double, "GET", "/props") == (200, {"default_generation_settings": {"n_ctx": 131_072}})
    assert talk(double, "GET", "/s/b/props")[0] == 200
    assert talk(double, "GET", "/v1/models") == (200, {"object": "list", "data": []})
    assert double.traffic().requests == ()
    assert talk(double, "POST", "/v1/models", {})[0] == 404


def test_any_path_gets_a_raw_answer(double: WireDouble) -> None:
    double.play([RawAnswer({"data": []}, headers={"x-any": "1"})])
    assert talk(double, "POST", "/v1/embeddings", {"input": ["a"]}) == (200, {"data": []})


def test_a_body_that_is_no_json_is_kept_as_text(double: WireDouble) -> None:
    double.play([RawAnswer({})])
    talk(double, "POST", "/v1/chat/completions", "{half")
    assert double.traffic().bodies == ["{half"]


def test_copilot_wants_its_headers(double: WireDouble) -> None:
    token = copilot_token(double, Api.COPILOT)
    bearer = {"authorization": f"Bearer {token}"}
    status, answer = talk(double, "POST", "/copilot/chat/completions", {}, bearer)
    assert status == 400
    assert "editor-version" in answer["error"]["message"]


def test_our_copilot_provider_exchanges_its_login_and_renews_a_refused_token(
    double: WireDouble, tmp_path: Path
) -> None:
    double.play([Turn("first"), Turn(fault=Fault(FaultKind.STATUS, status=401)), Turn("second")])
    store = FileStore(tmp_path / "login")
    store.save("gho_secret")

    async def talk_thrice() -> list[str]:
        http = HttpProvider(adapter_for("openai-compatible", base_url=double.base_url()), timeouts=LONG)

        async def fetch(wire: WireRequest) -> HttpAnswer:
            assert wire.url == EXCHANGE_URL
            address = double.base_url(Api.COPILOT) + "/copilot_internal/v2/token"
            return await http.fetch(WireRequest(wire.method, address, wire.headers, wire.body))

        provider = CopilotProvider(CopilotTokens(store, fetch), HttpProvider(Copilot(), timeouts=LONG))
        texts = []
        for _ in range(3):
            builder = ResponseBuilder()
            async for events in provider.stream(ModelRequest("gpt-5", (UserMessage.of("Hi"),))):
                builder.feed(events)
            texts.append(builder.response().text)
        await provider.aclose()
        await http.aclose()
        return texts

    assert asyncio.run(talk_thrice()) == ["first", "", "second"], "the refusal is an error, to be tried again at once"
    assert sum(request.path.endswith("/token") for request in double.requests()) == 2


def test_a_first_script_that_is_refused_leaves_no_process() -> None:
    double = WireDouble([Turn(text=7)])  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="Expected `str`"), pytest.raises(UsageError, match=r"turns\.0\.text"):
        double.__enter__()
    assert double._process.poll() is not None


def test_waiting_has_a_bound(double: WireDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.testing.wire_double.client._PATIENCE_SECONDS", 0.05)
    with pytest.raises(AssertionError, match="the wire double saw Traffic"):
        double.wait_until(lambda traffic: traffic.connections == 7)


# The command.


def start(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    given: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *arguments], text=True, **{**given, **how})


def test_it_plays_a_file_and_ends_when_its_input_closes(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"turns": [{"text": "from the file"}]}')
    process = start("--port", "0", "--script", str(tmp_path / "script.json"))
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    double = WireDouble()
    double.url = line["url"]
    assert line["pid"] == process.pid
    assert line["url"].startswith("http://127.0.0.1:")
    assert ask(double).text == "from the file"
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_background_a_signal_ends_it(number: signal.Signals) -> None:
    process = start(stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    double = WireDouble()
    double.url = json.loads(process.stdout.readline())["url"]
    double.play([Turn("stalls", fault=Fault(FaultKind.STALL))])
    connection = HTTPConnection(urlsplit(double.url).netloc, timeout=5)
    connection.request("POST", "/v1/chat/completions", '{"stream": true}')
    assert connection.getresponse().status == 200
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    connection.close()
    assert (process.returncode, errors) == (0, "")
    with pytest.raises((ConnectionError, RemoteDisconnected)):
        talk(double, "GET", "/_double/requests")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--script", "no/such.json"], "The script no/such.json cannot be read: No such file or directory."),
        (["--script", "bad.json"], "The script is not valid: Invalid JSON"),
        (["--port", "-1"], "port"),
        (["--port", "taken"], "invalid int value"),
    ],
)
def test_a_wrong_start_is_one_sentence(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    process = start(*arguments, cwd=tmp_path)
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (2, "")
    assert says in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_port_that_is_taken_is_one_sentence(running: WireDouble) -> None:
    process = start("--port", str(urlsplit(running.url).port))
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (2, "")
    assert "address already in use" in errors
    assert "Traceback" not in errors


NOTE = "<system>\nBe brief.\n</system>"


@pytest.mark.parametrize(
    "asked",
    [
        [{"role": "user", "content": "mine"}, {"role": "user", "content": NOTE}],
        [{"role": "user", "content": [{"type": "text", "text": text} for text in ("mine", NOTE)]}],
        [{"role": "user", "content": f"mine\n\n{NOTE}"}],
    ],
    ids=["alone", "part", "joined"],
)  # fmt: skip
def test_a_note_of_the_runtime_is_not_what_the_user_asks(double: WireDouble, asked: list[dict[str, object]]) -> None:
    double.play_scripts(Script((Turn("for me"),), name="mine"), Script((Turn("for anyone"),)))
    _, answer = talk(double, "POST", "/v1/chat/completions", {"model": "m", "messages": asked})
    assert answer["choices"][0]["message"]["content"] == "for me"


# -- faults at random


REFUSED = Fault(FaultKind.STATUS, status=429)


def statuses(double: WireDouble, requests: int) -> list[int]:
    """Of so many requests, one after the other."""
    seen = []
    for _ in range(requests):
        question = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        seen.append(talk(double, "POST", "/v1/chat/completions", question)[0])
    return seen


def test_a_share_of_the_answers_has_a_fault_and_the_same_seed_gives_the_same(double: WireDouble) -> None:
    chances = (Chance(0.3, REFUSED), Chance(0.1, Fault(FaultKind.STATUS, status=500)))
    runs = []
    for seed in (1, 1, 2):
        double.play_scripts(Script((Turn("hello"),), by_turn=True, chances=chances, seed=seed))
        runs.append(statuses(double, 200))
    assert runs[0] == runs[1] != runs[2]
    assert 30 <= runs[0].count(429) <= 90
    assert 5 <= runs[0].count(500) <= 40
    assert set(runs[0]) == {200, 429, 500}


def test_without_chances_no_answer_has_a_fault_and_with_all_of_them_each(double: WireDouble) -> None:
    double.play_scripts(Script((Turn("hello"),), by_turn=True, chances=(Chance(1.0, REFUSED),)))
    assert set(statuses(double, 20)) == {429}
    double.play_scripts(Script((Turn("hello"),), by_turn=True, chances=(Chance(0.0, REFUSED),)))
    assert set(statuses(double, 20)) == {200}
