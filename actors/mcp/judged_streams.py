"""What a server answers, judged piece by piece before the SDK reads it.

The SDK takes an answer as a whole or not at all: one tool without a name hides all of its page, one block of a kind
that it does not know takes the result with it. So each piece that the protocol's schema refuses is taken out here, in
the streams between the transport and the SDK, and it is kept why. Errors that came from the server are marked here,
too: by its code alone one cannot tell an error of the server's from one that the SDK makes up for a lost connection.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from types import TracebackType
from typing import Final, Protocol, Self

from mcp.client._transport import TransportStreams
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from mcp_types.methods import parse_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from callboard.actors.tools.invoke import safe_text, shortened

#: Wrong pieces of one answer that are named; what follows the last of them is not looked at.
MAX_NAMED: Final = 512
#: Pieces that are judged together, and only where that fails one by one: of many, a few may be wrong.
TOGETHER: Final = 64
#: Of a name, and of a reason.
MAX_NAME_CHARS: Final = 100
MAX_WHY_CHARS: Final = 200
#: In the data of an error that stands for an answer which cannot be read.
NOT_READABLE: Final = object()
#: Before the handshake there is none; the SDK takes this one, too.
_FIRST_REVISION: Final = "2025-11-25"


class FromServer(Struct, frozen=True):
    """In place of an error's data: the error came from the server, as the answer to a request of ours."""

    data: object


# -- what stands in the place of a piece, where a gap would not be seen ----------------------------------------------


def _block(_piece: object, note: str) -> object:
    return {"type": "text", "text": f"[{note}]"}


def _message(piece: object, note: str) -> object:
    role = piece.get("role") if isinstance(piece, Mapping) else None
    return {"role": role if role in ("user", "assistant") else "user", "content": _block(piece, note)}


def _contents(piece: object, note: str) -> object:
    uri = piece.get("uri") if isinstance(piece, Mapping) else None
    return {"uri": uri if isinstance(uri, str) else "", "text": f"[{note}]"}


class _Row(Struct, frozen=True):
    pieces: str
    """The field that has the list."""
    in_its_place: Callable[[object, str], object] | None = None
    one: str = ""
    """Of such a piece, in words."""


_ROWS: Final[Mapping[str, _Row]] = {
    "tools/list": _Row("tools"),
    "resources/list": _Row("resources"),
    "prompts/list": _Row("prompts"),
    "tools/call": _Row("content", _block, "a block of content"),
    "prompts/get": _Row("messages", _message, "a message"),
    "resources/read": _Row("contents", _contents, "a part of the contents"),
}
#: Of an answer, beside its list: without these the rest is as good.
_SPARED: Final = ("_meta", "nextCursor", "ttlMs", "cacheScope")
#: Of a block, likewise: a text is not lost since its `priority` is above 1.
_SPARED_OF_A_BLOCK: Final = ("annotations", "_meta")
#: The kinds of blocks, as the SDK calls them in its errors; it says of each what a block lacks to be one.
_KINDS: Final = {
    "text": "TextContent",
    "image": "ImageContent",
    "audio": "AudioContent",
    "resource_link": "ResourceLink",
    "resource": "EmbeddedResource",
}


def judge(method: str, revision: str, result: dict[str, object]) -> dict[str, str]:
    """Take out of a result what the protocol refuses of it: what that is, by its name or its position, and why.

    A result that is wrong as a whole stays as it is.
    """
    row = _ROWS[method]
    pieces = result.get(row.pieces)
    if not isinstance(pieces, list):
        return {}
    if len(pieces) <= TOGETHER and method != "tools/list" and not _faults(method, revision, result):
        return {}
    left_out: dict[str, str] = {}
    frame = {**result, row.pieces: []}
    while faults := _faults(method, revision, frame):
        field = next((part for part in faults[0]["loc"] if part in _SPARED and part in frame), None)
        if field is None:
            return {}
        left_out[str(field)] = _why(faults[0], "")
        del frame[str(field)], result[str(field)]
    kept, wrong = list[object](), 0
    for position, (piece, why) in enumerate(_judged(method, revision, frame, pieces)):
        if not why:
            kept.append(piece)
            continue
        name = _name_of(piece, row, position)
        if (wrong := wrong + 1) > MAX_NAMED:
            name, why = f"{len(pieces) - position:,} more", "they are not looked at: too many before them are wrong"
        left_out.setdefault(name, why)
        if row.in_its_place is not None:
            kept.append(row.in_its_place(piece, f"{row.one} was left out: {why}"))
        if wrong > MAX_NAMED:
            break
    result[row.pieces] = kept
    return left_out


def _judged(
    method: str, revision: str, frame: Mapping[str, object], pieces: Sequence[object]
) -> Iterator[tuple[object, str]]:
    """Each piece, and why it cannot be used."""
    row = _ROWS[method]
    for start in range(0, len(pieces), TOGETHER):
        some = pieces[start : start + TOGETHER]
        are_fitting = not _faults(method, revision, {**frame, row.pieces: some})
        for piece in some:
            why = "" if are_fitting else _why_of(piece, _faults(method, revision, {**frame, row.pieces: [piece]}), row)
            if why and row.in_its_place is _block and isinstance(piece, Mapping):
                plain = {name: each for name, each in piece.items() if name not in _SPARED_OF_A_BLOCK}
                if not _faults(method, revision, {**frame, row.pieces: [plain]}):
                    yield plain, ""
                    continue
            if not why and method == "tools/list":
                why = _unusable(piece, revision)
            yield piece, why


def _unusable(piece: object, revision: str) -> str:
    """Of a tool, what the schema allows and no client can use: an empty name; since 2026-07-28 a header that may not
    be sent, for which the SDK drops the tool without a word to us."""
    assert isinstance(piece, Mapping)
    if not piece["name"]:
        return "name: it is empty"
    if revision not in MODERN_PROTOCOL_VERSIONS:
        return ""
    return shortened(find_invalid_x_mcp_header(piece["inputSchema"]) or "", MAX_WHY_CHARS)


def _faults(method: str, revision: str, result: Mapping[str, object]) -> list[ErrorDetails]:
    """What the SDK would say of it."""
    try:
        parse_server_result(method, revision, result)
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False)
    except KeyError:  # a revision in which there is no such method
        return []
    except (ValueError, RecursionError) as error:  # deeper than pydantic writes
        return [ErrorDetails(type="depth", loc=(), msg=str(error), input=None)]
    return []


def _why_of(piece: object, faults: Sequence[ErrorDetails], row: _Row) -> str:
    if not faults:
        return ""
    block = piece.get("content") if row.in_its_place is _message and isinstance(piece, Mapping) else piece
    if row.in_its_place not in (_block, _message) or not isinstance(block, Mapping):
        return _why(faults[0], row.pieces)
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        return shortened(f"its type {kind!r:.50} is not known", MAX_WHY_CHARS)
    own = next((each for each in faults if _KINDS[kind] in each["loc"]), faults[0])
    return _why(own, _KINDS[kind])


def _why(fault: ErrorDetails, below: str) -> str:
    """One fault by its field, which is told from `below` on."""
    where = [str(part) for part in fault["loc"]]
    where = where[where.index(below) + 1 :] if below in where else where
    got = "" if fault["type"] in ("missing", "depth") else f", not {safe_text(repr, fault['input'])[:50]}"
    field = ".".join(where[1:] if where[:1] and where[0].isdigit() else where)
    return shortened(f"{field or 'it'}: {fault['msg']}{got}", MAX_WHY_CHARS)


def _name_of(piece: object, row: _Row, position: int) -> str:
    name = (piece.get("name") or piece.get("uri")) if isinstance(piece, Mapping) else None
    return name[:MAX_NAME_CHARS] if isinstance(name, str) and name else f"{row.pieces}[{position}]"


def mended(text: bytes) -> bytes | None:
    """A message that pydantic does not read and that says what it means; None where it is fine, or says nothing.

    There may be half of a pair of surrogates in it, as where JavaScript has cut a text within an emoji (JSON.stringify
    writes it so, by ECMA-262), or an error without its message, or with a code that is no whole number.
    """
    if b'"error"' not in text and b"\\ud" not in text and b"\\uD" not in text:
        return None
    with contextlib.suppress(ValueError):
        jsonrpc_message_adapter.validate_json(text, by_name=False)
        return None
    try:
        told = json.loads(text)
        error = told.get("error") if isinstance(told, dict) else None
        if error is not None and "id" in told:
            said = error if isinstance(error, dict) else {"message": error}
            code, message = said.get("code"), said.get("message")
            told["error"] = {
                "code": code if isinstance(code, int) and not isinstance(code, bool) else 0,
                "message": message if isinstance(message, str) else "",
                "data": said.get("data", None if isinstance(message, str) else message),
            }
        written = json.dumps(told, ensure_ascii=False).encode(errors="replace")
        jsonrpc_message_adapter.validate_json(written, by_name=False)
    except (ValueError, RecursionError):
        return None
    return written


# -- the streams -------------------------------------------------------------------------------------------------------


class JudgedTransport:
    """A transport whose answers are judged before the SDK has them."""

    def __init__(
        self,
        inner: AbstractAsyncContextManager[TransportStreams],
        revision: Callable[[], str | None],
        told: Callable[[str, Mapping[str, str]], object],
    ) -> None:
        """`revision` is that which is spoken; `told` hears, by the method, what was left out of each answer."""
        self._inner = inner
        self._revision = revision
        self._told = told
        self._asked: dict[RequestId, str] = {}
        """Methods of the requests that are under way."""

    async def __aenter__(self) -> TransportStreams:
        reads, writes = await self._inner.__aenter__()
        return _Answers(reads, self._answered), _Requests(writes, self._sent)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, at)

    def _sent(self, message: object) -> None:
        if isinstance(message, JSONRPCRequest) and message.method in _ROWS:
            self._asked[coerce_request_id(message.id)] = message.method
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            gone = (message.params or {}).get("requestId")
            if isinstance(gone, int | str):
                self._asked.pop(coerce_request_id(gone), None)

    def _answered(self, message: object) -> None:
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id is None:
            return
        method = self._asked.pop(coerce_request_id(message.id), None)
        if method is None:
            return
        if isinstance(message, JSONRPCError):
            if message.error.data is not NOT_READABLE:
                message.error.data = FromServer(message.error.data)
            return
        self._told(method, judge(method, self._revision() or _FIRST_REVISION, message.result))


class _Ends(Protocol):
    async def aclose(self) -> None: ...


class _Closed:
    """A stream that ends with the one that it stands for."""

    def __init__(self, inner: _Ends) -> None:
        self._ends = inner

    async def aclose(self) -> None:
        await self._ends.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


class _Requests(_Closed):
    def __init__(self, inner: WriteStream[SessionMessage], sent: Callable[[object], object]) -> None:
        super().__init__(inner)
        self._inner = inner
        self._sent = sent

    async def send(self, item: SessionMessage, /) -> None:
        self._sent(item.message)
        await self._inner.send(item)


class _Answers(_Closed):
    def __init__(self, inner: ReadStream[SessionMessage | Exception], answered: Callable[[object], object]) -> None:
        super().__init__(inner)
        self._inner = inner
        self._answered = answered

    @property
    def last_context(self) -> Context | None:
        """In which the last message was received: the SDK handles it in there."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._judged(await anext(self._inner))

    async def receive(self) -> SessionMessage | Exception:
        return self._judged(await self._inner.receive())

    def _judged(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, SessionMessage):
            self._answered(item.message)
        return item
