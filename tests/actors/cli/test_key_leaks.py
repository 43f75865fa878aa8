"""More than forty ways in which a key might leak; each is walked for real, and what comes out is searched.

Two kinds of key: `KEY` opens a provider and is in no known format, so that masking alone would not save it; `WRITTEN`
is written in a file of the workspace.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.file_tools import file_tools
from support.key_samples import PRIVATE_KEY
from support.shared_double import shared_double
from support.tracing import SpansInMemory

from callboard.actors.calls.approvals import ApprovalCallback
from callboard.actors.cli import chat_commands, chat_partner
from callboard.actors.cli.acp_updates import SHOWN_RESULT_CHARS, SessionUpdates
from callboard.actors.cli.screen import SHOWN_ARGUMENTS_CHARS, Screen
from callboard.actors.index import CodeIndex, assemble
from callboard.actors.models.routing import Router
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Answer, Api, Call, RawAnswer, Turn, WireDouble
from callboard.actors.tools import Tool, tool
from callboard.protocol.commands import RunTool
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import CallboardError, ToolError, UsageError
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.masking import for_log, has_mask, mask
from callboard.protocol.model import ModelRequest
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.copilot.copilot_login import CopilotTokens, FileStore, exchange
from callboard.providers.openai.embeddings import EmbeddingApi
from callboard.providers.provider_registry import provider_for
from callboard.providers.rate_limit import RateLimits
from callboard.providers.transport import HttpProvider

KEY = "wk7Qz2Tn9XvB4mLs8RpD1cHyE6uJ"
WRITTEN = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
#: So many characters of a key in a row are a leak.
PIECE = 12
APIS = {
    "openai-compatible": Api.CHAT,
    "openai": Api.RESPONSES,
    "anthropic": Api.ANTHROPIC,
    "gemini": Api.GEMINI,
    "openrouter": Api.OPENROUTER,
}
#: Errors that repeat the key, as a server may write them: also so that the cut of a long text goes through it.
ECHOES = {
    "401": RawAnswer({"error": {"message": f"Incorrect API key provided: {KEY}.", "code": KEY}}, 401),
    "403 as text": RawAnswer(f"denied for {KEY}", 403),
    "400 with the key everywhere": RawAnswer({KEY: [KEY, {"error": KEY}]}, 400),
    "500 with a long body": RawAnswer("x" * 280 + f" {KEY} " + "y" * 400, 500),
    "400 cut in the key": RawAnswer({"error": {"message": "z" * 490 + KEY + "z" * 400}}, 400),
    "200 that is no JSON": RawAnswer(f"<html>{KEY}</html>", 200),
    "an error in the stream": RawAnswer(
        f'data: {{"error": {{"message": "no such key: {KEY}", "code": 401}}}}\n\n',
        200,
        {"content-type": "text/event-stream"},
    ),
    "redirect": RawAnswer("", 302, {"location": f"http://127.0.0.1:9/login?key={KEY}"}),
    "retry-after": RawAnswer({"error": {"message": KEY}}, 429, {"retry-after": "0.001", "x-request-id": KEY}),
}


@dataclass
class Stage:
    """What a way may use."""

    tmp_path: Path
    caplog: pytest.LogCaptureFixture
    callboard: Any
    """The command line in a process of its own; see conftest.py."""

    @property
    def logs(self) -> str:
        """Every record of every logger, with all that hangs on it."""
        return "\n".join(f"{record.getMessage()} {vars(record)!r} {_told(record)}" for record in self.caplog.records)


def _told(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""


def everything(error: BaseException) -> str:
    """An exception with its causes, their attributes and the frames' source."""
    seen, shown = list[BaseException](), list[str]()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or each in seen:
            continue
        seen.append(each)
        shown += [repr(each), str(each), repr(getattr(each, "__dict__", "")), repr(each.args)]
        todo += [each.__cause__, each.__context__]
    return "\n".join([*shown, *traceback.format_exception(error)])


def asked(settings: Settings, tools: Iterable[Tool] = (), approve: ApprovalCallback | None = None) -> str:
    """All that a runtime shows of one request: reply or error, events, tree, dead letters, counts."""
    with Runtime(settings, tools, approve=approve) as runtime:
        try:
            reply: object = runtime.ask_sync("go")
        except CallboardError as error:
            reply = everything(error) + repr(getattr(error, "reply", ""))
        looked_at = (runtime.tree(), runtime.dead_letters(), runtime.metrics(), runtime.statistics(), runtime.tools())
        return f"{reply!r} {looked_at!r} {runtime!r} {vars(runtime)!r} {vars(runtime._wiring)!r}"


def settings_for(server_url: str, provider: str = "openai-compatible", **more: object) -> Settings:
    return Settings(model=f"{provider}/fake-1", base_url=server_url, api_key=KEY, max_attempts=1, **more)


# -- settings ----------------------------------------------------------------------------------------------------------


def settings_shown(show: Callable[[Settings], object]) -> Callable[[Stage], object]:
    return lambda stage: show(Settings(model="openai/gpt-5", api_key=KEY))


def pickled(settings: Settings) -> object:
    try:
        return pickle.dumps(settings)
    except TypeError as error:
        return str(error)


def as_json(settings: Settings) -> object:
    return settings.model_dump_json()


def settings_refused(stage: Stage) -> object:
    with pytest.raises(UsageError) as refused:
        Settings(model="openai/gpt-5", api_key=KEY, max_steps=0, no_such_thing=KEY, workspace=f"/nowhere/{KEY}"[:9])
    return everything(refused.value)


def settings_of_a_wrong_type(stage: Stage) -> object:
    with pytest.raises(UsageError) as refused:
        Settings(model="openai/gpt-5", api_key=[KEY])
    return everything(refused.value)


def password_in_the_address(stage: Stage) -> object:
    settings = Settings(model="openai-compatible/m", base_url=f"http://ann:{KEY}@127.0.0.1:9/v1", max_attempts=1)
    return repr(settings), str(settings), asked(settings), stage.logs


# -- providers ---------------------------------------------------------------------------------------------------------


def provider_shown(provider: str, stage: Stage) -> object:
    found, name = provider_for(f"{provider}/m", api_key=KEY, base_url="http://127.0.0.1:9/v1")
    assert isinstance(found, HttpProvider)
    wire = found.adapter.encode(ModelRequest(name, (UserMessage.of("Hi"),)))
    assert KEY in str(dict(wire.headers)) + wire.url  # it is sent, and it is shown nowhere
    shown = [
        repr(each) for each in (found, found.adapter, wire, found.adapter.decoder(200), found.adapter.decoder(401))
    ]
    return shown, wire.url, wire.notes, str(wire)


def echoed(provider: str, echo: str, stage: Stage) -> object:
    """The server repeats the key that it refuses: in the error, the reply, the logs, and what the runtime shows."""
    with shared_double([ECHOES[echo]]) as server:
        shown = asked(settings_for(server.base_url(APIS[provider]), provider))
        assert server.requests(), "it was asked"
    return shown, stage.logs


def logged_with_content(stage: Stage) -> object:
    with shared_double([ECHOES["401"]]) as server:
        asked(settings_for(server.base_url(), log_content=True))
    return stage.logs


def answered_and_logged(stage: Stage) -> object:
    """Nothing goes wrong, and every logger of the process says all that it can."""
    with shared_double([Turn("fine")]) as server:
        shown = asked(settings_for(server.base_url()))
    assert "fine" in shown
    return shown, stage.logs


def not_connected(stage: Stage) -> object:
    return asked(settings_for("http://127.0.0.1:9/v1")), stage.logs


def redirected_with_the_key(stage: Stage) -> object:
    """A redirect is not followed: the key goes to the address that was given, and to no other."""
    with shared_double([RawAnswer("", 307, {"location": "/s/other/v1/chat/completions"}), Turn("taken")]) as server:
        asked(settings_for(server.base_url()))
        return [request.path for request in server.requests()][1:]


def unsendable(more: str, stage: Stage) -> object:
    """A key with a line break would be a header of its own, one beyond ASCII none at all: refused, and not repeated."""
    with pytest.raises(UsageError) as refused:
        Settings(model="openai-compatible/m", base_url="http://127.0.0.1:9/v1", api_key=KEY + more)
    return everything(refused.value), stage.logs


def unsendable_by_a_provider(more: str, stage: Stage) -> object:
    """The same for a provider that is used without settings."""

    async def ask() -> None:
        provider, name = provider_for("openai-compatible/m", api_key=KEY + more, base_url="http://127.0.0.1:9/v1")
        async for _ in provider.stream(ModelRequest(name, (UserMessage.of("Hi"),))):
            raise AssertionError("it was sent")

    with pytest.raises(UsageError) as refused:
        asyncio.run(ask())
    return everything(refused.value), stage.logs


def embeddings_refused(echo: str, stage: Stage) -> object:
    async def post(url: str) -> None:
        api = EmbeddingApi("openai/e", base_url=url, api_key=KEY)
        try:
            await api.post({"input": ["x"]})
        finally:
            await api.aclose()

    with shared_double([ECHOES[echo]]) as server, pytest.raises(CallboardError) as failed:
        asyncio.run(post(server.base_url()))
    return everything(failed.value), stage.logs


def copilot_exchange_refused(stage: Stage) -> object:
    async def refuses(wire: WireRequest) -> HttpAnswer:
        assert KEY in str(dict(wire.headers))
        return HttpAnswer(401, json.dumps({"message": f"Bad credentials {KEY}", "error": KEY}).encode())

    with pytest.raises(CallboardError) as failed:
        asyncio.run(exchange(refuses, KEY, 0.0))
    return everything(failed.value)


def copilot_tokens_shown(stage: Stage) -> object:
    store = FileStore(stage.tmp_path / "config" / "copilot-token")
    store.save(KEY)

    async def answers(wire: WireRequest) -> HttpAnswer:
        return HttpAnswer(200, json.dumps({"token": f"{KEY}2", "expires_at": 9e9}).encode())

    tokens = CopilotTokens(store, answers, lambda: 0.0)
    token = asyncio.run(tokens.current())
    modes = [oct((stage.tmp_path / "config" / name).stat().st_mode)[-2:] for name in (".", "copilot-token")]
    assert modes == ["00", "00"]
    return repr(store), repr(tokens), repr(token), str(token)


def route_shown(stage: Stage) -> object:
    settings = Settings(model="openai/gpt-5", api_key=KEY)
    limits = RateLimits(lambda: 0.0, {})
    return repr(Router(settings, limits).route("openai/gpt-5")), repr(limits), repr(vars(limits))


def spans_of_a_failure(stage: Stage) -> object:
    traced = SpansInMemory()
    with shared_double([ECHOES["401"]]) as server:
        runtime = Runtime(settings_for(server.base_url(), log_content=True))
        traced.trace(runtime)
        with runtime, pytest.raises(CallboardError):
            runtime.ask_sync("go")
    assert traced.finished()
    return traced.exported()


# -- tools and their processes


@tool(risk="read")
def look_around() -> dict[str, str]:
    """What a tool in a child process finds out about its host, read as it would read it."""
    import os  # noqa: PLC0415

    found = {"environment": repr(dict(os.environ))}
    for process in ("self", str(os.getppid())):
        for what in ("environ", "cmdline"):
            try:
                found[f"{process} {what}"] = Path(f"/proc/{process}/{what}").read_bytes().decode("latin-1")
            except OSError as error:
                found[f"{process} {what}"] = type(error).__name__
    return found


@tool(risk="read")
def search_memory(first_backwards: str, rest_backwards: str) -> list[str]:
    """Looks for a key in all memory of the tool's own process, template and all.

    The key comes in two parts and backwards, and is never put together here: it would be found where it was.
    """
    first, rest = first_backwards[::-1].encode(), rest_backwards[::-1].encode()
    found = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if "r" not in rights or "[v" in line:
                continue
            begin, end = (int(each, 16) for each in span.split("-"))
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except (OSError, OverflowError):
                continue
            at = content.find(first)
            while at >= 0:
                if content.startswith(rest, at + len(first)):
                    found.append(f"{begin + at:x}")
                at = content.find(first, at + 1)
    return found


@tool(risk="write")
def write_note(text: str) -> str:
    """Writes."""
    return f"wrote {text}"


def seen_by_a_tool(stage: Stage) -> object:
    with shared_double([Turn(calls=(Call("look_around", {}, "c1"),)), Turn("done")], by_turn=True) as server:
        asked(settings_for(server.base_url()), [look_around])
        result = str(server.traffic().bodies[-1]["messages"][-1]["content"])
    assert "self environ" in result
    return result


def in_the_memory_of_a_tool(stage: Stage) -> object:
    key = "wk" + os.urandom(12).hex()  # in no module that the child imports
    call = Call("search_memory", {"first_backwards": key[:10][::-1], "rest_backwards": key[10:][::-1]}, "c1")
    with shared_double([Turn(calls=(call,)), Turn("done")], by_turn=True) as server:
        asked(Settings(model="openai-compatible/m", base_url=server.base_url(), api_key=key), [search_memory])
        result = server.traffic().bodies[-1]["messages"][-1]["content"]
    assert isinstance(result, str)
    assert result == "[]", result
    return result


def captured_by_a_tool(stage: Stage) -> object:
    """A tool that closes over the settings would carry the key into its child process: it is refused."""
    settings = Settings(model="offline/x", api_key=KEY)

    @tool
    def nosy() -> str:
        return str(settings.api_key)

    with pytest.raises(UsageError, match="cannot be shipped") as refused:
        Runtime(settings, [nosy])
    return everything(refused.value)


def raised_by_a_tool(log_content: bool, stage: Stage) -> object:
    """A tool whose exception quotes a key from a file it read: masked where callboard shows it."""

    @tool(risk="read", isolation="thread")
    def fails() -> str:
        raise RuntimeError(f"the server said: api_key={WRITTEN} is wrong")

    with shared_double([Turn(calls=(Call("fails", {}, "c1"),)), Turn("done")], by_turn=True) as server:
        asked(settings_for(server.base_url(), log_content=log_content), [fails])
    return stage.logs


def asked_about(stage: Stage) -> object:
    questions: list[object] = []
    call = Call("write_note", {"text": "hello"}, "c1")

    def approve(question: object) -> bool:
        questions.append(question)
        return False

    with shared_double([Turn(calls=(call,)), Turn("done")], by_turn=True) as server:
        asked(settings_for(server.base_url()), [write_note], approve)
    assert questions
    return repr(questions)


def a_mask_written_back(stage: Stage) -> object:
    """A model that writes what it was shown: the call is not run, and the key in the file not lost."""
    shown = mask(f"KEY = '{WRITTEN}'")
    call, ran = Call("write_note", {"text": shown}, "c1"), list[object]()
    with shared_double([Turn(calls=(call,)), Turn("done")], by_turn=True) as server:
        asked(settings_for(server.base_url()), [write_note], lambda question: not ran.append(question))
        result = json.loads(server.traffic().bodies[-1]["messages"][-1]["content"])
    assert result["code"] == "invalid_arguments"
    assert not ran
    return result


# -- files and the index -----------------------------------------------------------------------------------------------


def workspace(stage: Stage) -> Path:
    root = stage.tmp_path / "work"
    root.mkdir()
    (root / "conf.py").write_text(f'def connect_service():\n    return Service(api_key="{WRITTEN}", size=3)\n')
    (root / "other.py").write_text(
        'def connect_service_again():\n    """Connects the service."""\n    return connect_service()\n'
    )
    (root / ".env").write_text(f"OPENAI_API_KEY={WRITTEN}\n")
    (root / "deploy.txt").write_text(f"{PRIVATE_KEY}\nconnect_service\n")
    (root / "notes.txt").symlink_to(root / ".env")
    return root


def read(path: str, stage: Stage) -> object:
    read_file, _ = file_tools(workspace(stage))
    try:
        return read_file(path)
    except ToolError as refusal:
        return str(refusal)


def listed(stage: Stage) -> object:
    _, list_dir = file_tools(workspace(stage))
    found = str(list_dir(".", 3))
    assert ".env" not in found
    return found


def found_by_search(stage: Stage) -> object:
    with CodeIndex.open(workspace(stage), stage.tmp_path / "store", embedder=None) as index:
        index.refresh()
        context = str(assemble(index, "connect service", 4_000).as_json())
    assert has_mask(context)
    return context


def kept_in_the_index(stage: Stage) -> object:
    """In none of its files: neither in SQLite's pages nor among the words of the text index, in pieces or whole."""
    with CodeIndex.open(workspace(stage), stage.tmp_path / "store", embedder=None) as index:
        index.refresh()
        index.search("connect service")
    data = b"".join(path.read_bytes() for path in (stage.tmp_path / "store").rglob("*") if path.is_file())
    assert b"connect" in data
    return data.decode("latin-1")


def sent_to_an_embedding_api(stage: Stage) -> object:
    async def search(settings: Settings, server: WireDouble) -> tuple[object, object]:
        async with Runtime(settings) as runtime:
            await runtime.refresh_index()
            assert runtime._wiring.search is not None
            traffic = await asyncio.to_thread(
                server.wait_until, lambda traffic: "conf connect service" in str(traffic.bodies)
            )
            return str(traffic.bodies), await runtime._wiring.search.search("connect service", 2_000)

    answers = [
        RawAnswer({"data": [{"index": n, "embedding": [1.0, float(n)]} for n in range(count)]}) for count in (3, 2, 2)
    ]
    with shared_double(answers) as server:
        settings = Settings(
            model="offline/x",
            workspace=workspace(stage),
            embedding_model="openai-compatible/e",
            embedding_base_url=server.base_url(),
        )
        return asyncio.run(search(settings, server))


def told_to_a_model(stage: Stage) -> object:
    """Every byte that a model is sent after it has asked for the file by each tool."""
    calls = (
        Call("read_file", {"path": "conf.py"}, "c1"),
        Call("read_file", {"path": ".env"}, "c2"),
        Call("read_file", {"path": "notes.txt"}, "c3"),
        Call("request_code_context", {"queries": ["connect service"]}, "c4"),
        Call("list_dir", {"path": "."}, "c5"),
    )
    with shared_double([Turn(calls=calls), Turn("done")], by_turn=True) as server:
        asked(settings_for(server.base_url(), workspace=workspace(stage)))
        sent = str(server.traffic().bodies)
    assert "connect_service" in sent
    return sent, stage.logs


# -- the command line


def typed(arguments: tuple[str, ...], stage: Stage, answer: Answer | None = None) -> object:
    """The command with the key in its environment; what it prints on both streams."""
    stage.callboard.environment["OPENAI_API_KEY"] = stage.callboard.environment["CALLBOARD_API_KEY"] = KEY
    with shared_double([answer or ECHOES["401"]]) as server:
        stage.callboard.environment["CALLBOARD_BASE_URL"] = server.base_url()
        ran = stage.callboard.run(*arguments)
    assert ran.out + ran.err
    return ran.out, ran.err


def typed_password(stage: Stage) -> object:
    ran = stage.callboard.run(
        "ask", "hi", "--model", "openai-compatible/m", "--base-url", f"http://a:{KEY}@127.0.0.1:9"
    )
    assert ran.status
    return ran.out, ran.err


def asked_offline(stage: Stage) -> object:
    (stage.callboard.workspace / "conf.py").write_text(f'def connect():\n    return Service(api_key="{WRITTEN}")\n')
    ran = stage.callboard.run("ask", "where do we connect to the service?")
    assert "connect" in ran.out
    return ran.out, ran.err


WAYS: dict[str, Callable[[Stage], object]] = {
    "repr of settings": settings_shown(repr),
    "str of settings": settings_shown(str),
    "settings formatted": settings_shown(lambda settings: f"{settings} {settings.__dict__} {settings.api_key}"),
    "settings dumped": settings_shown(lambda settings: str(settings.model_dump())),
    "settings as JSON": settings_shown(lambda settings: settings.model_dump_json()),
    "settings copied": settings_shown(lambda settings: repr((copy.copy(settings), settings.model_copy()))),
    "settings pickled": settings_shown(pickled),
    "settings refused": settings_refused,
    "a key of a wrong type": settings_of_a_wrong_type,
    "a password in the address": password_in_the_address,
    **{f"repr of the provider {provider}": partial(provider_shown, provider) for provider in APIS},
    "a route and its limits": route_shown,
    **{f"{provider} answers 401 with the key": partial(echoed, provider, "401") for provider in APIS},
    **{f"a server answers {echo}": partial(echoed, "openai-compatible", echo) for echo in ECHOES if echo != "401"},
    "a redirect": redirected_with_the_key,
    "a failure logged with content": logged_with_content,
    "a request at level DEBUG": answered_and_logged,
    "no connection": not_connected,
    "a line break in the key": partial(unsendable, "\r\nx: y"),
    "a key beyond ASCII": partial(unsendable, "é"),
    "a provider's key with a line break": partial(unsendable_by_a_provider, "\r\nx: y"),
    "a provider's key beyond ASCII": partial(unsendable_by_a_provider, "\u2028"),
    **{f"embeddings: {echo}": partial(embeddings_refused, echo) for echo in ("401", "200 that is no JSON")},
    "embeddings: cut in the key": partial(embeddings_refused, "400 cut in the key"),
    "Copilot's exchange refused": copilot_exchange_refused,
    "Copilot's tokens": copilot_tokens_shown,
    "spans": spans_of_a_failure,
    "environment and command lines seen by a tool": seen_by_a_tool,
    "the memory of a tool": in_the_memory_of_a_tool,
    "settings captured by a tool": captured_by_a_tool,
    "an exception of a tool in the log": partial(raised_by_a_tool, False),
    "an exception of a tool in the log, with content": partial(raised_by_a_tool, True),
    "an approval": asked_about,
    "a mask written back": a_mask_written_back,
    "a file read": partial(read, "conf.py"),
    "a secret file read": partial(read, ".env"),
    "a secret file read through a link": partial(read, "notes.txt"),
    "a private key read": partial(read, "deploy.txt"),
    "a folder listed": listed,
    "code found": found_by_search,
    "the files of the index": kept_in_the_index,
    "texts sent to an embedding API": sent_to_an_embedding_api,
    "what a model is sent": told_to_a_model,
    "callboard doctor": partial(typed, ("doctor", "--model", "openai-compatible/m")),
    "callboard ask, refused": partial(typed, ("ask", "hi", "--model", "openai-compatible/m")),
    "callboard ask --json, refused": partial(typed, ("ask", "hi", "--json", "--model", "openai-compatible/m")),
    "callboard tools": partial(typed, ("tools",)),
    "callboard with a wrong option": partial(typed, ("ask", "hi", "--max-steps", "no")),
    "callboard with a password in the address": typed_password,
    "callboard ask, offline": asked_offline,
}


def leaked(shown: object) -> list[str]:
    text = shown.decode("latin-1") if isinstance(shown, bytes) else str(shown)
    secrets = (KEY, WRITTEN[8:], *PRIVATE_KEY.splitlines()[1:-1])
    forms = [*secrets, *(base64.b64encode(secret.encode()).decode() for secret in secrets)]
    return [form for form in forms if any(form[at : at + PIECE] in text for at in range(len(form) - PIECE + 1))]


def test_there_are_forty_ways() -> None:
    assert len(WAYS) >= 40


@pytest.mark.parametrize("way", WAYS)
def test_no_key_leaks(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, callboard: Any) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "aiohttp", "asyncio", "callboard"):
        caplog.set_level(logging.DEBUG, name)
    assert leaked(WAYS[way](Stage(tmp_path, caplog, callboard))) == []


@pytest.mark.parametrize("columns", [None, 80, 24])
async def test_the_last_exchange_of_a_conversation_is_masked_before_it_is_cut(
    columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the lines of a terminal, and to the last of an answer's lines."""
    monkeypatch.setattr(chat_commands, "columns_of", lambda _: columns)
    named, long = f"here it is, password = {KEY}", PRIVATE_KEY + "\nand a line" * 28
    for question, answer in ((named, "Thanks."), ("and?", named), ("and?", long)):
        said = chat_partner.SoFar("a title", question, answer)
        partner = SimpleNamespace(conversation_id="c", so_far=partial(asyncio.sleep, 0, said))
        shown = for_log(await chat_commands.so_far_shown(cast("chat_partner.ChatPartner", partner)))
        assert has_mask(shown)
        assert KEY not in shown
        assert not any(line in shown for line in PRIVATE_KEY.split("\n")[1:-1] if line)


def test_the_arguments_of_a_call_are_masked_before_they_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of a key does not look like one."""
    text = json.dumps({"text": "x" * (SHOWN_ARGUMENTS_CHARS - 30) + f" {WRITTEN}"})
    Screen(quiet=True).show(RunTool(Tag(RequestId("r"), MessageId("m"), 1), ToolName("note"), text, 0.0, ""))
    shown = capsys.readouterr().err
    assert "⌧" in shown
    assert WRITTEN[:PIECE] not in shown


def test_a_result_is_masked_before_it_is_cut_for_an_editor(tmp_path: Path) -> None:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
    text = "x" * (SHOWN_RESULT_CHARS - 20) + f" {WRITTEN} " + "y" * 100
    (told,) = SessionUpdates(tmp_path, lambda _: None).of_item(ToolCallCompleted(tag, 0.0, text))
    shown = told.model_dump_json()
    assert "more characters" in shown
    assert WRITTEN[:PIECE] not in shown
