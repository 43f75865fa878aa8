"""Every tool and every output type passes the same mending on its way to a model, wherever it comes from; over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, HttpUrl
from support.running_daemon import running_daemon
from support.shared_double import shared_double

from callboard import McpServer
from callboard.actors.mcp.remote_values import ServerState
from callboard.actors.requests.client_tools import ClientTool
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, RawAnswer, Turn, WireDouble
from callboard.actors.tools import tool

SUPPORT = Path(__file__).parents[1] / "support"
#: What OpenAI refuses a whole request for: a lookaround, an array without items. And what it would not read: a
#: definition of draft 7, `nullable` of OpenAPI.
ODD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mail": {"type": "string", "pattern": "^(?!a)", "description": "Whose."},
        "tags": {"type": "array"},
        "node": {"$ref": "#/definitions/Node"},
        "name": {"type": "string", "nullable": True},
    },
    "definitions": {"Node": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


@tool(isolation="thread")
def pay(
    mail: Annotated[str, Field(json_schema_extra={"pattern": "^(?!a)"}, description="Whose.")],
    tags: list,  # type: ignore[type-arg]
) -> str:
    return f"{mail} {tags}"


def runtime_for(server: WireDouble, api: Api = Api.CHAT, **more: Any) -> Runtime:
    model = {Api.CHAT: "openai-chat/gpt-5", Api.RESPONSES: "openai/gpt-5", Api.ANTHROPIC: "anthropic/claude-sonnet-5-5"}
    tools = more.pop("tools", [])
    settings = Settings(model=model[api], base_url=server.base_url(api), api_key="k", **more)
    return Runtime(settings, tools=tools)


def sent(server: WireDouble, name: str) -> dict[str, Any]:
    """The parameters of the tool as the model's server got them."""
    for body in server.traffic().bodies:
        for each in body.get("tools", ()):
            told = each.get("function", each)
            if told["name"] == name:
                found: dict[str, Any] = told["parameters"]
                return found
    raise AssertionError(f"{name} was not sent")


def faults(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if "(?!" in str(schema.get("pattern", "")):
            yield "regex lookaround is not supported"
        if schema.get("type") == "array" and "items" not in schema:
            yield "array schema missing items"
        if str(schema.get("$ref", "#/$defs/")).startswith("#/definitions"):
            yield "a reference that leads nowhere"
        for each in schema.values():
            yield from faults(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from faults(each)


def check_odd(parameters: Mapping[str, Any]) -> None:
    assert list(faults(parameters)) == []
    properties = parameters["properties"]
    assert properties["mail"] == {"type": "string", "description": 'Whose.\n(pattern: "^(?!a)")'}
    assert properties["tags"]["items"] == {}
    assert properties["name"] == {"type": ["string", "null"]}


def test_a_tool_written_in_python() -> None:
    with shared_double([Turn("Done.")]) as server, runtime_for(server, tools=[pay]) as runtime:
        runtime.ask_sync("pay")
        parameters = sent(server, "pay")
    assert list(faults(parameters)) == []
    assert parameters["properties"]["mail"]["description"] == 'Whose.\n(pattern: "^(?!a)")'
    assert parameters["properties"]["tags"]["items"] == {}


def test_a_tool_of_the_asker_s() -> None:
    with shared_double([Turn("Done.")]) as server, runtime_for(server) as runtime:
        runtime.ask_sync("hi", tools=[ClientTool("odd", "d", ODD)])
        check_odd(sent(server, "odd"))


def test_a_tool_of_an_mcp_server(tmp_path: Path, until: Callable[[Callable[[], bool]], None]) -> None:
    file = tmp_path / "told.json"
    listed = {"tools": [{"name": "odd", "inputSchema": ODD}]}
    file.write_text(json.dumps({"tools/list": {"": {"result": listed}}}))
    program = (str(SUPPORT / "mcp_told_server.py"), str(file))
    there = McpServer(command=sys.executable, args=program, tools={"*": "read"})
    with (
        shared_double([Turn("Done.")]) as server,
        runtime_for(server, mcp_servers={"told": there}) as runtime,
    ):
        until(lambda: runtime.mcp("told").status.state is ServerState.READY)
        runtime.ask_sync("hi")
        parameters = sent(server, "told_odd")
    check_odd(parameters)
    assert parameters["properties"]["node"] == {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_tool_of_a_client_of_the_daemon(path: str, tmp_path: Path) -> None:
    asked = {"model": "openai-chat/gpt-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    function = {"name": "odd", "description": "d", "parameters": ODD}
    body: dict[str, Any] = {
        "/v1/chat/completions": {**asked, "tools": [{"type": "function", "function": function}]},
        "/v1/messages": {**asked, "tools": [{"name": "odd", "description": "d", "input_schema": ODD}]},
        "/v1/responses": {"model": asked["model"], "input": "hi", "tools": [{"type": "function", **function}]},
    }[path]
    with shared_double([Turn("Done.")]) as server:
        connection = f'[default.connections.openai-chat]\nbase_url = "{server.base_url(Api.CHAT)}"\napi_key = "k"\n'
        config = f'[default]\nmodel = "{asked["model"]}"\n{connection}'
        with running_daemon(tmp_path, config=config) as daemon:
            answer = daemon.post(path, body)
            assert answer.status_code == 200, answer.text
        check_odd(sent(server, "odd"))


class Link(BaseModel):
    url: HttpUrl


class Span(BaseModel):
    span: tuple[int, str]


class Whatever(BaseModel):
    value: Any


@dataclass
class Place:
    name: str


@pytest.mark.parametrize(
    ("kind", "text", "strict"),
    [
        (Link, '{"url": "https://x.org/"}', True),
        (Span, '{"span": [1, "a"]}', True),
        (Whatever, '{"value": [1]}', False),
        (Decimal, '{"value": "1.5"}', True),
        (dict[str, int], '{"a": 1}', False),
        (Place, '{"name": "Oslo"}', True),
    ],
)
@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES])
def test_output_types_are_asked_for_as_openai_takes_them(kind: Any, text: str, strict: bool, api: Api) -> None:
    with shared_double([Turn(text)]) as server, runtime_for(server, api) as runtime:
        runtime.ask_sync("hi", output=kind)
        (body,) = server.traffic().bodies
    form = body["response_format"]["json_schema"] if api is Api.CHAT else body["text"]["format"]
    assert form["strict"] is strict
    assert list(faults(form["schema"])) == []
    assert '"uri"' not in json.dumps(form["schema"].get("properties", {}).get("url", {}).get("format", ""))


REFUSALS = {
    Api.ANTHROPIC: [
        "Schemas contains too many optional parameters (25), which would make grammar compilation inefficient. Reduce "
        "the number of optional parameters in your tool schemas (limit: 24).",
        "Schema is too complex for compilation. Try reducing the number of tools or simplifying tool schemas.",
        "The compiled grammar is too large, which would cause performance issues. Simplify your tool schemas or reduce "
        "the number of strict tools.",
        "tools.0.custom: For 'array' type, property 'maxItems' is not supported",  # litellm 39115
        "Too many strict tools (28). The maximum number of strict tools supported is 20. Try reducing the number of "
        "tools marked as strict.",  # pydantic-ai 5579
    ],
    Api.RESPONSES: ["Invalid schema for function 'odd': In context=('properties', 'a'), 'oneOf' is not permitted."],
    Api.CHAT: ["Invalid schema for function 'odd': In context=('properties', 'a'), schema must have a 'type' key."],
}


@pytest.mark.parametrize(("api", "said"), [(api, said) for api in REFUSALS for said in REFUSALS[api]])
def test_a_strict_tool_that_is_refused_all_the_same_is_sent_without_strict(api: Api, said: str) -> None:
    error = {"message": said, "type": "invalid_request_error"}
    refused = RawAnswer({"type": "error", "error": error} if api is Api.ANTHROPIC else {"error": error}, 400)
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    own = ClientTool("odd", "d", parameters, strict=True)
    with shared_double([refused, Turn("one"), Turn("two")]) as server, runtime_for(server, api) as runtime:
        first = runtime.ask_sync("hi", tools=[own])
        assert runtime.ask_sync("hi", tools=[own]).text == "two"
        bodies = server.traffic().bodies
    strict = [each.get("function", each).get("strict", False) for body in bodies for each in body["tools"]]
    assert strict == [True, False, False]
    assert first.text == "one"
    assert any(note.endswith("its schema was refused: odd without strict now.") for note in first.notes)
