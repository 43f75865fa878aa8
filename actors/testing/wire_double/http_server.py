"""The wire double as an HTTP server on a loopback port: picks the scripted answer, sends it, records what was asked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import JsonValue

from callboard.actors.testing.wire_double.answers import WireAnswer, error_answer, wire_answer
from callboard.actors.testing.wire_double.apis import APIS, api_of
from callboard.actors.testing.wire_double.pacing import Pacer
from callboard.actors.testing.wire_double.script import (
    Api,
    Fault,
    FaultKind,
    RawAnswer,
    Script,
    Turn,
    scripts_from_json,
)
from callboard.actors.testing.wire_double.sending import send
from callboard.actors.testing.wire_double.traffic import Exchange, Recorder
from callboard.actors.testing.wire_double.wire_api import (
    Document,
    Question,
    Said,
    WireApi,
    last_user_text,
    model_turns,
)
from callboard.protocol.errors import UsageError

_LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 4096
#: For answers that are being sent; 0 would mean no limit.
_SHUTDOWN_SECONDS: Final = 0.05
_CONTROL: Final = "/_double/"
_NAMED: Final = "/s/"
_COPILOT: Final = "/copilot/"
_EXCHANGE: Final = "/copilot_internal/v2/token"
#: What Copilot refuses to work without, beside the token.
_COPILOT_HEADERS: Final = ("editor-version", "copilot-integration-id")
_TOKEN_SECONDS: Final = 1800
#: What clients ask a server about itself, by the end of the path, as llama.cpp answers it; not recorded.
_ABOUT_ITSELF: Final[tuple[tuple[str, Document], ...]] = (
    ("/props", {"default_generation_settings": {"n_ctx": 131_072}}),
    ("/models", {"object": "list", "data": []}),
)


@dataclass(slots=True)
class _Playing:
    """A script, and how far it is."""

    script: Script
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    written: dict[tuple[Api | None, Question, Fault | None], WireAnswer] = field(default_factory=dict)
    """Answers that were rendered before: the same bytes serve again."""
    faults: Iterator[Fault | None] = field(init=False)

    def __post_init__(self) -> None:
        self.faults = self.script.random() if self.script.chances else itertools.repeat(None)


class WireDoubleServer:
    """Answers model requests from scripts, and /_double requests about itself."""

    def __init__(self, scripts: list[Script]) -> None:
        self._playing: dict[str, _Playing] = {}
        self._recorder = Recorder()
        self._pacer = Pacer()
        self._tokens = 0
        self._play(scripts)

    async def start(self, port: int) -> tuple[web.ServerRunner, str]:
        """Listen on a loopback port (0: any); the runner to clean up, and the address. OSError for a taken port."""
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, _LOOPBACK, port, backlog=_BACKLOG).start()
        return runner, f"http://{_LOOPBACK}:{runner.addresses[0][1]}"

    def _play(self, scripts: list[Script]) -> None:
        for script in scripts:
            self._playing[script.name] = _Playing(script)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        if request.path.startswith(_CONTROL):
            return self._control(request, body)
        about_itself = [told for end, told in _ABOUT_ITSELF if request.method == "GET" and request.path.endswith(end)]
        if about_itself:
            return _document(about_itself[0])
        exchange = Exchange(
            method=request.method,
            path=request.raw_path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=_parsed(body),
            at=time.monotonic(),
        )
        self._recorder.add(exchange, request.transport)
        answer = self._answer(exchange, request.path, str(request.url.origin()))
        try:
            return await send(request, answer, exchange, self._pacer)
        except ConnectionResetError:
            return (
                web.Response()
            )  # the client has closed the connection: nothing can be sent, and that is not an error here
        finally:
            exchange.client_left = exchange.ended_at is None
            exchange.ended_at = exchange.ended_at or time.monotonic()

    # What is answered.

    def _answer(self, exchange: Exchange, path: str, origin: str) -> WireAnswer:
        prefix, name, rest = _split(path)
        if exchange.method == "GET" and rest.startswith(_COPILOT) and rest.endswith(_EXCHANGE):
            return self._copilot_token(exchange, origin + prefix + _COPILOT.rstrip("/"))
        api = api_of(rest)
        exchange.api = api or ""
        wire = APIS[api or Api.CHAT]
        if exchange.method != "POST":
            return error_answer(wire, _refusal(404, f"The wire double answers POST requests, not {exchange.method}."))
        if rest.startswith(_COPILOT) and (refusal := self._copilot_refusal(exchange)) is not None:
            return error_answer(APIS[Api.COPILOT], refusal)
        body = exchange.body if isinstance(exchange.body, dict) else {}
        history = list(wire.history(body))
        playing = self._chosen(exchange, name, history, wire.question(body, exchange.path, 0).model)
        if playing is None:
            return error_answer(
                wire, _refusal(404, f"The wire double has no script for this request (named {name!r}).")
            )
        exchange.script = playing.script.name
        exchange.number = next(playing.numbers)
        if playing.script.by_turn and api is not None:
            turns = model_turns(history)
            exchange.number = turns if _has_user(history) else wire.turns_before(body) + turns
        return _scripted(playing, api, wire, wire.question(body, exchange.path, exchange.number))

    def _chosen(self, exchange: Exchange, name: str, history: list[Said], model: str) -> _Playing | None:
        """By path, header, last user message, model, else the script without a name. A name in the path or header must
        exist."""
        asked = name or exchange.headers.get("x-script", "")
        if asked:
            return self._playing.get(asked)
        names = (last_user_text(history), model, "")
        return next((self._playing[each] for each in names if each in self._playing), None)

    def _copilot_token(self, exchange: Exchange, address: str) -> WireAnswer:
        exchange.api = Api.COPILOT
        if not exchange.headers.get("authorization", "").startswith("token "):
            return error_answer(APIS[Api.COPILOT], _refusal(401, "Bad credentials: send `authorization: token ...`."))
        self._tokens += 1
        document: dict[str, JsonValue] = {
            "token": f"tid=double;n={self._tokens}",
            "expires_at": int(time.time()) + _TOKEN_SECONDS,
            "refresh_in": _TOKEN_SECONDS - 300,
            "endpoints": {"api": address},
        }
        return wire_answer(APIS[Api.COPILOT], RawAnswer(document), Question())

    def _copilot_refusal(self, exchange: Exchange) -> Fault | None:
        tokens = {f"Bearer tid=double;n={number}" for number in range(1, self._tokens + 1)}
        if exchange.headers.get("authorization") not in tokens:
            return _refusal(401, "unauthorized: get a token from copilot_internal/v2/token first")
        missing = [name for name in _COPILOT_HEADERS if name not in exchange.headers]
        return _refusal(400, f"bad request: missing {', '.join(missing)} header") if missing else None

    # What is said about itself.

    def _control(self, request: web.BaseRequest, body: bytes) -> web.Response:
        action = self._CONTROLS.get((request.method, request.path))
        if action is None:
            known = ", ".join(f"{method} {path}" for method, path in self._CONTROLS)
            return _document({"error": {"message": f"The wire double has no such path; known are: {known}."}}, 404)
        try:
            return action(self, body)
        except UsageError as error:
            return _document({"error": {"message": str(error)}}, 400)

    def _set_scripts(self, body: bytes) -> web.Response:
        self._play(scripts_from_json(body))
        return _document({"scripts": sorted(self._playing)})

    def _forget_scripts(self, body: bytes) -> web.Response:
        self._playing.clear()
        return _document({"scripts": []})

    def _requests(self, body: bytes) -> web.Response:
        return web.Response(body=self._recorder.to_json(), content_type="application/json")

    def _forget_requests(self, body: bytes) -> web.Response:
        self._recorder.forget()
        return _document({"requests": []})

    _CONTROLS: Final[Mapping[tuple[str, str], Callable[[Any, bytes], web.Response]]] = {
        ("POST", "/_double/script"): _set_scripts,
        ("DELETE", "/_double/script"): _forget_scripts,
        ("GET", "/_double/requests"): _requests,
        ("DELETE", "/_double/requests"): _forget_requests,
    }


def _split(path: str) -> tuple[str, str, str]:
    """("/s/NAME", NAME, the rest) of a path with a script's name; ("", "", the path) of any other."""
    if not path.startswith(_NAMED):
        return "", "", path
    name, _, rest = path.removeprefix(_NAMED).partition("/")
    return f"{_NAMED}{name}", name, f"/{rest}"


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _refusal(status: int, message: str) -> Fault:
    return Fault(FaultKind.STATUS, status=status, message=message)


def _document(document: Document, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")


def _has_user(history: list[Said]) -> bool:
    return any(said.speaker == "user" for said in history)


def _scripted(playing: _Playing, api: Api | None, wire: WireApi, question: Question) -> WireAnswer:
    fault = next(playing.faults)
    key = (api, question, fault)
    if key not in playing.written:
        playing.written[key] = _rendered(playing.script, api, wire, question, fault)
    return playing.written[key]


def _rendered(script: Script, api: Api | None, wire: WireApi, question: Question, fault: Fault | None) -> WireAnswer:
    if question.number >= len(script.turns):
        return error_answer(wire, _refusal(500, f"The script {script.name!r} has no answer {question.number}."))
    answer = script.turns[question.number]
    if api is None and isinstance(answer, Turn):
        return error_answer(wire, _refusal(404, "This path belongs to no wire API of the wire double."))
    if fault is not None and isinstance(answer, Turn):
        answer = replace(answer, fault=fault)
    return wire_answer(wire, answer, question)
