"""`callboard chat --url`: a daemon as the partner of a conversation, by its native API (docs/native_api.md)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import httpx
import msgspec
import orjson
from pydantic import TypeAdapter, ValidationError

from callboard import Approval, AskApproval, RuntimeFailure, UsageError
from callboard.actors.cli.arguments import whole_id
from callboard.actors.cli.chat_partner import SHOWN_CONVERSATIONS, AnswerEnded, SoFar, StagedEdit, so_far
from callboard.actors.cli.listed_tools import ListedTool
from callboard.actors.cli.stream_items import DaemonEvent, SentEvent, item_of, sent_events
from callboard.actors.environment import token_of_environment
from callboard.actors.journal.saved_conversations import shown_id
from callboard.actors.requests.asking import Prompt
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.policy import Access, AccessKind, Mode
from callboard.protocol.tools import Risk

#: For a short answer. A daemon answers within milliseconds, or is gone.
ANSWER_SECONDS: Final = 30.0
#: A daemon says something every 15 s (server_events.HEARTBEAT_SECONDS): three of them missing are a lost connection.
SILENCE_SECONDS: Final = 50.0
#: How long a lost connection is tried again: a daemon starts again within a few seconds.
RESUME_SECONDS: Final = 60.0
#: Between two tries.
RETRY_SECONDS: Final = 0.3
MAX_TOKEN_BYTES: Final = 4_096
Approver = Callable[[AskApproval], Awaitable[Approval]]


def daemon_token(path: Path | None) -> str:
    """The bearer token: of the file, else of CALLBOARD_TOKEN. Raises UsageError."""
    if path is None:
        token = token_of_environment()
        if not token:
            raise UsageError("the daemon wants a token: CALLBOARD_TOKEN, or --token-file FILE")
    else:
        try:
            with path.open("rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UsageError(f"--token-file: {path} is not a file")
                token = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise UsageError(f"--token-file: {path} cannot be read: {error.strerror or error}") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        where = "CALLBOARD_TOKEN" if path is None else f"--token-file: {path}"
        raise UsageError(f"{where}: a token is one word of ASCII characters; `callboard tokens make` makes one")
    return token


class DaemonPartner:
    """A ChatPartner. `approve` is asked about the calls of its own questions; `remark` says what happens on the way."""

    def __init__(
        self, url: str, token: str, approve: Approver, remark: Callable[[str], object], *, model: str = ""
    ) -> None:
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(f"--url: {url!r:.200} is no address: {error}") from None
        if address.scheme not in ("http", "https") or not address.host or address.userinfo:
            raise UsageError(f"--url: {str(address.copy_with(userinfo=b''))!r:.200}: write http://127.0.0.1:8330")
        self._url = str(address).rstrip("/")
        self.model = model
        self.mode: Mode | None = None
        self.conversation_id = ""
        self._approve = approve
        self._remark = remark
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_SECONDS),
            trust_env=False,  # a token for this machine's daemon goes through no proxy
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        """Raises RuntimeFailure where it cannot be reached, or does not take the token."""
        await self._get("/api/tools")

    # -- a question

    async def ask(self, prompt: Prompt) -> AsyncGenerator[object, None]:
        if not isinstance(prompt, str):
            raise UsageError("a daemon is asked in words: attachments are for a runtime of this process")
        body = {"prompt": prompt, "model": self.model, "mode": self.mode, "conversation": self.conversation_id}
        started = await self._post("/api/requests", {name: value for name, value in body.items() if value})
        request_id = _text(started, "request_id")
        has_ended = False
        approvals: dict[Tag, asyncio.Task[None]] = {}
        try:
            async for item in self._follow(request_id):
                if isinstance(item, AskApproval):
                    approvals[item.tag] = asyncio.create_task(self._decide_call(item))
                elif (asking := approvals.pop(getattr(item, "tag", _NO_TAG), None)) is not None:
                    asking.cancel()  # answered elsewhere, or moot
                has_ended = isinstance(item, AnswerEnded)
                if has_ended:
                    await self._remember(request_id)
                yield item
        finally:
            for each in approvals.values():
                each.cancel()
            await asyncio.gather(*approvals.values(), return_exceptions=True)
            if not has_ended:
                with contextlib.suppress(RuntimeFailure):  # it has ended meanwhile, or the daemon is gone
                    await self._post(f"{_path('requests', request_id)}/cancel", {"reason": "cancelled at a terminal"})

    async def _remember(self, request_id: str) -> None:
        found = (await self._get(_path("requests", request_id))).get("request")
        if isinstance(found, dict):
            self.conversation_id = str(found.get("conversation_id") or self.conversation_id)

    async def _follow(self, request_id: str) -> AsyncIterator[object]:
        """All items, each once: a lost connection is gone on with behind the last event that came.

        So is a stream that the daemon ends before the reply, as for a reader that was too slow, or while it stops.
        """
        after, until = "", 0.0
        while True:
            why = "the connection to the daemon is lost"
            try:
                async for event in self._events(request_id, after):
                    item = item_of(event)
                    if isinstance(item, DaemonEvent):
                        why = item.message
                        break
                    after, until = event.id or after, 0.0
                    if item is not None:
                        yield item
                    if isinstance(item, AnswerEnded):
                        if item.error:
                            raise RuntimeFailure(item.error)
                        return
            except httpx.HTTPError as error:
                why = f"{why} ({str(error) or type(error).__name__})"
            now = asyncio.get_running_loop().time()
            if not until:
                until = now + RESUME_SECONDS
                self._remark(f"{why}; trying to go on")
            if now >= until:
                raise RuntimeFailure(f"{why}; the request is {request_id}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _events(self, request_id: str, after: str) -> AsyncIterator[SentEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        timeout = httpx.Timeout(ANSWER_SECONDS, read=SILENCE_SECONDS)
        path = f"{_path('requests', request_id)}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code >= 500:
                raise httpx.HTTPStatusError("not ready", request=answer.request, response=answer)
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                raise _refused(answer)
            async for event in sent_events(answer.aiter_bytes()):
                yield event

    async def _decide_call(self, item: AskApproval) -> None:
        """Ask the person, and hand the answer on. The daemon has the whole question, with its diff."""
        tag = item.tag
        try:
            question = await self._question_of(item)
            if question is None:
                return
            answer = await self._approve(question)
            body: dict[str, object] = {"answer": str(answer.kind), "reason": answer.reason}
            if answer.arguments is not None:
                body["arguments"] = dict(answer.arguments)
            path = f"{_path('approvals', tag.request_id)}/{tag.step}/{quote(str(tag.call_id), safe='')}"
            await self._post(path, body)
        except (RuntimeFailure, OSError) as failure:  # OSError: the terminal is gone
            self._remark(f"the question about {item.name} is still open in the daemon: {failure}")

    async def _question_of(self, item: AskApproval) -> AskApproval | None:
        """It is on the daemon's list a moment after the event; None where it never comes."""
        tag = item.tag
        key = (tag.request_id, tag.step, tag.call_id)
        until = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while asyncio.get_running_loop().time() < until:
            found = (await self._get("/api/approvals")).get("approvals")
            for each in found if isinstance(found, list) else ():
                if (each.get("request_id"), each.get("step"), each.get("call_id")) == key:
                    return _question(tag, each)
            await asyncio.sleep(RETRY_SECONDS)
        return None

    # -- everything else

    async def tools(self) -> Sequence[ListedTool]:
        return [_tool(each) for each in await self._list("/api/tools", "tools")]

    async def edits(self) -> Sequence[StagedEdit]:
        return [_edit(each) for each in await self._list("/api/edits", "edits")]

    async def decide(self, ids: Sequence[str] | None, *, approve: bool, reason: str = "") -> Sequence[StagedEdit]:
        body: dict[str, object] = {}
        if ids is not None:
            known = [each.id for each in await self.edits()]
            body["ids"] = [whole_id(each, known, "edit") for each in ids]
        if not approve:
            body["reason"] = reason
        found = (await self._post(f"/api/edits/{'approve' if approve else 'deny'}", body)).get("edits")
        return [_edit(each) for each in found] if isinstance(found, list) else []

    async def conversations(self) -> Sequence[tuple[str, ...]]:
        found = await self._list(f"/api/conversations?limit={SHOWN_CONVERSATIONS}", "conversations")
        return [(shown_id(str(each["id"])), str(each["title"])) for each in found]

    async def go_on_with(self, conversation_id: str) -> None:
        if conversation_id:  # by its first characters, too
            conversation_id = _text(await self._get(_path("conversations", conversation_id)), "id")
        self.conversation_id = conversation_id

    async def so_far(self) -> SoFar | None:
        if not self.conversation_id:
            return None
        messages = await self._list(_path("conversations", self.conversation_id), "messages")
        return so_far([(str(each.get("role", "")), str(each.get("text", ""))) for each in messages])

    async def fork(self) -> None:
        messages = await self._list(_path("conversations", self._own()), "messages")
        if not messages:
            raise UsageError("nothing was said in this conversation yet: there is nothing to fork")
        made = await self._post(f"{_path('conversations', self._own())}/fork", {"at": messages[-1]["id"]})
        self.conversation_id = _text(made, "conversation_id")

    async def export(self) -> str:
        found = await self._get(_path("conversations", self._own()))
        return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()

    def _own(self) -> str:
        if not self.conversation_id:
            raise UsageError("nothing was said in this conversation yet")
        return self.conversation_id

    # -- HTTP

    async def _list(self, path: str, name: str) -> Sequence[Mapping[str, object]]:
        found = (await self._get(path)).get(name)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    async def _get(self, path: str) -> Mapping[str, object]:
        return await self._call("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        return await self._call("POST", path, body)

    async def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Mapping[str, object]:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise RuntimeFailure(
                f"the daemon at {self._url} cannot be reached: {why}; is `callboard serve` running there?"
            ) from None
        if not answer.is_success:
            raise _refused(answer)
        try:
            return _OBJECT.validate_json(answer.content)
        except ValidationError:
            raise RuntimeFailure(f"what answers at {self._url} is no callboard daemon") from None


_OBJECT: Final = TypeAdapter(dict[str, object])
_NO_TAG: Final = Tag(RequestId(""), MessageId(""))


def _path(kind: str, name: str) -> str:
    return f"/api/{kind}/{quote(name, safe='')}"


def _text(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise RuntimeFailure(f"the daemon's answer has no {name}; is it of another version of callboard?")
    return value


def _refused(answer: httpx.Response) -> RuntimeFailure:
    """One line: what the daemon says, and what to do about a token."""
    try:
        error = _OBJECT.validate_json(answer.content).get("error")
    except ValidationError:
        error = None
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    advice = {
        401: "; check CALLBOARD_TOKEN or --token-file",
        403: "; the token may not do this",
        404: '; a daemon with `journal = "off"` keeps nothing that has ended, and cannot be talked to in this way'
        if "/requests/" in answer.url.path
        else "",
    }
    return RuntimeFailure(
        f"the daemon says {answer.status_code}: {message or answer.reason_phrase}{advice.get(answer.status_code, '')}"
    )


def _question(tag: Tag, shown: Mapping[str, object]) -> AskApproval:
    touches = shown.get("touches")
    pairs = [str(each).partition(" ") for each in touches] if isinstance(touches, list) else []
    kinds = {str(kind): kind for kind in AccessKind}
    risks = {str(risk): risk for risk in Risk}
    return AskApproval(
        tag=tag,
        name=ToolName(str(shown.get("tool", ""))),
        arguments=str(shown.get("arguments", "")),
        risk=risks.get(str(shown.get("risk")), Risk.UNDECLARED),
        is_after_untrusted=shown.get("is_after_untrusted") is True,
        rule=str(shown.get("why", "")),
        accesses=tuple(Access(kinds[kind], value) for kind, _, value in pairs if kind in kinds),
        preview=str(shown.get("diff", "")),
        confinement=str(shown.get("confinement", "")),
    )


def _tool(shown: Mapping[str, object]) -> ListedTool:
    fields = {**shown, "is_withdrawn": shown.get("decision") != "deny" and not shown.get("is_offered")}
    try:
        return msgspec.convert(fields, ListedTool)
    except msgspec.ValidationError as error:
        raise RuntimeFailure(f"the daemon's tool has another form than this callboard knows: {error}") from None


def _edit(shown: Mapping[str, object]) -> StagedEdit:
    files = shown.get("files")
    names = tuple(map(str, files)) if isinstance(files, list) else ()
    given = {name: str(shown.get(name, "")) for name in ("id", "state", "diff", "reason")}
    return StagedEdit(given["id"], given["state"], names, given["diff"], given["reason"])
