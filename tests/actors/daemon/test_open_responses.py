"""Answers of /v1/responses, whole and streamed, against the document of Open Responses; then schemathesis by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.open_responses import OpenResponsesCheck, asked_deeply
from support.running_daemon import RunningDaemon
from support.schemathesis_runs import check_with_schemathesis
from support.stateless_daemon import stateless_daemon

from callboard.actors.daemon import response_runs
from callboard.actors.daemon.response_records import ResponseRecord

CONFIG = """
[daemon]
models = {"gpt-4o" = "scripted/model"}
limits = {requests_per_minute = 1000000}
"""
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALENDAR = {"type": "function", "name": "calendar", "parameters": CITY}
NAMED = {"type": "function", "name": "calendar"}
SETTINGS: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.5,
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "instructions": "Be brief.",
    "service_tier": "auto",
    "truncation": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}
BODIES: dict[str, dict[str, Any]] = {
    "text": {"input": "hello"},
    "settings": {"input": "think hello", **SETTINGS},
    "reasoning": {"input": "hello", "reasoning": {"effort": "low", "summary": "auto"}},
    "client's tool": {"input": 'call [["calendar", {"city": "Rome"}]]', "tools": [CALENDAR]},
    "daemon's tool": {"input": 'call [["weather", {"city": "Rome"}]]', "tools": [CALENDAR]},
    "named tool": {"input": "hello", "tools": [CALENDAR], "tool_choice": NAMED},
    "allowed tools": {"input": "x", "tools": [CALENDAR], "tool_choice": {"type": "allowed_tools", "tools": [NAMED]}},
    "schema": {"input": "x", "text": {"format": {"type": "json_schema", "name": "place", "schema": CITY}}},
    "object": {"input": "x", "text": {"format": {"type": "json_object"}, "verbosity": "low"}},
    "cut off": {"input": "short hello"},
    "background": {"input": "hello", "background": True},
    "fails": {"input": "fail rate_limited"},
    "breaks off": {"input": "break abcdef"},
    "wrong": {"input": [{"type": "message", "role": "nobody", "content": "x"}]},
}
#: What schemathesis sends to one operation.
EXAMPLES = 25
#: The last message may be no question, and a model may be asked for what it does not take.
ACCEPTED = '[checks]\npositive_data_acceptance.expected-statuses = ["2xx", 400, 404]\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    # Without a model of its own: the document wants one in each request.
    with stateless_daemon(tmp_path_factory.mktemp("daemon"), CONFIG, "--nameless") as found:
        yield found


@pytest.fixture(scope="module")
def check() -> OpenResponsesCheck:
    return OpenResponsesCheck()


def events_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("case", BODIES)
def test_a_whole_answer_is_as_the_document_has_it(case: str, daemon: RunningDaemon, check: OpenResponsesCheck) -> None:
    answer = daemon.post("/v1/responses", {"model": "gpt-4o", **BODIES[case]})
    if answer.status_code != 200:
        assert not check.faults("ErrorPayload", answer.json()["error"])
        return
    assert not check.faults("ResponseResource", answer.json())
    assert not check.faults("ResponseResource", daemon.get(f"/v1/responses/{answer.json()['id']}").json())


@pytest.mark.parametrize("case", [case for case in BODIES if case != "wrong"])
def test_a_streamed_answer_is_as_the_document_has_it(
    case: str, daemon: RunningDaemon, check: OpenResponsesCheck
) -> None:
    answer = daemon.post("/v1/responses", {"model": "gpt-4o", **BODIES[case], "stream": True})
    events = events_in(answer.text)
    assert [fault for event in events for fault in check.event_faults(event)] == []
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")


def test_a_compacted_conversation_is_as_the_document_has_it(daemon: RunningDaemon, check: OpenResponsesCheck) -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
    ]
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = daemon.post("/v1/responses/compact", {"model": "gpt-4o", "input": items})
    assert not check.faults("CompactResource", answer.json())


def test_an_error_in_a_stream_is_as_both_documents_have_it(
    monkeypatch: pytest.MonkeyPatch, check: OpenResponsesCheck
) -> None:
    async def stopped(*_: object) -> AsyncGenerator[dict[str, object], None]:
        raise response_runs.ResponseLeft
        yield {}

    async def sent() -> list[bytes]:
        tenant: Any = None
        return [
            data async for data in response_runs.sent_events(tenant, ResponseRecord("r", 0, "", [], {}, False, False))
        ]

    monkeypatch.setattr(response_runs, "events_of", stopped)
    (event,) = events_in(b"".join(asyncio.run(sent())).decode())
    assert not check.event_faults(event)
    assert (event["code"], event["error"]["code"]) == ("unknown", "unknown"), "it goes on, so it is no refusal"


@pytest.mark.deep
def test_schemathesis_finds_nothing_else(daemon: RunningDaemon, tmp_path: Path) -> None:
    document = tmp_path / "document.json"
    document.write_text(json.dumps(asked_deeply()))
    check_with_schemathesis(daemon, tmp_path, document, ACCEPTED, EXAMPLES, base="/v1")
