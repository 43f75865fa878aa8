"""Reads a provider's error, in any document that it may come in, and finds its kind by the table (error_table.py).

Where status and code say no more than that the request is bad, the words of the message may, and so may the error of
another server that a gateway passes on inside its own. Whether trying again can help follows from the kind
(protocol.errors), unless the provider says otherwise by `x-should-retry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.errors import KINDS_OF_ERRORS, RETRYABLE_KINDS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error
from callboard.providers.error_table import ANY, KINDS, NOT_JSON, SPENT_QUOTAS, kind_of_phrase, unwrapped, window_of
from callboard.providers.json_values import SHAPE_ERRORS, Json, JsonObject, loads
from callboard.providers.retry import details_of, retry_after_seconds, should_retry, wait_in_words

#: Shorter "keys" are placeholders ("EMPTY", "ollama"), which would blot out words.
SHORTEST_SECRET: Final = 8
_K = ErrorKind

_HTTP_STATUS: Final = re.compile(r"0|[1-5]\d\d")
#: Of these, the error that is passed on counts where it is of another kind.
_VAGUE: Final = frozenset({_K.INVALID_REQUEST, _K.OTHER, _K.SERVER})
#: Of a list of errors so many are told.
_MAX_ENTRIES: Final = 3
#: Gateways pass on errors of gateways: OpenRouter's of Vertex's of Anthropic's is the deepest seen.
_MAX_LAYERS: Final = 4


def make_error(
    kind: ErrorKind,
    message: str,
    raw: str = "",
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
    status: int = 0,
    code: str = "",
    context_tokens: int | None = None,
) -> Error:
    """An Error whose `retryable` follows from its kind, unless it is given.

    A wait that is longer than any we keep is said in the message: it is the reason why nothing is tried again.
    """
    retryable = kind in RETRYABLE_KINDS if retryable is None else retryable
    if retryable and retry_after is not None and retry_after > MAX_RETRY_AFTER_SECONDS:
        asked = f"{retry_after:,.0f}" if retry_after < 1e15 else f"{retry_after:g}"
        message = (
            f"{message} The provider asks to wait {asked} s; callboard waits {MAX_RETRY_AFTER_SECONDS:g} s at most, so "
            "the call is not tried again."
        )
    return Error(kind, message, retryable, retry_after, raw, status, code, context_tokens=context_tokens)


def scrubbed(error: Error, secret: str | None) -> Error:
    """The error without the key, which some servers repeat in what they refuse."""
    message, raw, code = (without_key(text, secret) for text in (error.message, error.raw, error.code))
    return replace(error, message=message, raw=raw, code=code)


def without_key(text: str, secret: str | None) -> str:
    """The text without the key, nor the beginning of one that was cut off with the text around it."""
    if not secret or len(secret) < SHORTEST_SECRET:
        return text
    text = text.replace(secret, "***")
    for length in range(len(secret) - 1, SHORTEST_SECRET - 1, -1):
        text = text.replace(secret[:length], "***")
    return text


def snippet(data: bytes | str) -> str:
    """The start of a bad answer, on one line, short enough for a message."""
    head = data[: ERROR_SNIPPET_CHARS * 4]
    text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    return " ".join(text.split())[:ERROR_SNIPPET_CHARS]


def shown_address(url: str) -> str:
    """An address for a message: without a user, a password or a query, which may hold a key."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is no number, or brackets without an IPv6 address
        return "an address that cannot be read"
    host = f"[{host}]" if ":" in host else host
    return snippet(f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}")


def error_kind(family: str, status: int, codes: tuple[str, ...] = ()) -> ErrorKind:
    """The kind of an error by the table above."""
    for word in map(str.lower, codes):
        if SPENT_QUOTAS.search(word):
            return _K.QUOTA_SPENT
        for key in ((family, status, word), (family, 0, word), (ANY, 0, word)):
            # A type as broad as "invalid_request_error" must not hide what the status says (401, 404, 413, 429).
            if key in KINDS and not (KINDS[key] is _K.INVALID_REQUEST and status not in (0, 200, 400)):
                return KINDS[key]
    if kind := KINDS.get((family, status, "")) or KINDS.get((ANY, status, "")):
        return kind
    if status >= 500:
        return _K.SERVER
    return _K.INVALID_REQUEST if status >= 400 else _K.OTHER


def by_status(error: Error) -> Error:
    """Of a request without tools, or without a schema: an error about them means something else, as its status says.
    What a server says by a 500 (llama.cpp) is no fault that passes: it cannot do it."""
    if error.kind not in _ABOUT_A_PART:
        return error
    kind = error_kind(ANY, error.status)
    return replace(error, kind=_K.UNSUPPORTED if kind is _K.SERVER else kind)


_ABOUT_A_PART: Final = frozenset({_K.TOOLS_UNSUPPORTED, _K.SCHEMA_UNSUPPORTED})
#: No header makes these pass: Anthropic asks to try again (x-should-retry) after a 429 that asks for money.
_FINAL: Final = frozenset({_K.BILLING, _K.QUOTA_SPENT})


class _Said(NamedTuple):
    """What one error document says. Codes are the provider's code, type and status words, the most telling first."""

    message: str
    codes: tuple[str, ...] = ()
    status: int = 0
    """The HTTP status that it names; 0: none."""
    context_tokens: int | None = None
    inner: Json = None
    """The error of another server that this one passes on."""
    inner_server: str = ""
    family: str = ""
    """Whose codes they are, where the document's form tells."""


def _read_error(payload: Json) -> _Said:
    """Known shapes: {"error": {..} | "text"}, FastAPI's {"detail": "text" | [{"loc", "msg"}]}, {"code", "message"},
    {"status_code", "message"}, MiniMax's {"base_resp": {"status_code", "status_msg"}}."""
    payload = _first(payload)  # Gemini wraps the error of a stream in an array
    if not isinstance(payload, dict):
        return _Said(_shown(payload))
    error, base = payload.get("error"), payload.get("base_resp")
    if isinstance(base, dict) and not error:
        return _Said(str(base.get("status_msg") or ""), _words(base.get("status_code")), family="minimax")
    inner = error or payload.get("detail") or payload.get("errors") or payload
    if isinstance(inner, list) and (said := _validation(inner)):
        return _Said(said, ("validation_error",), _status(payload.get("status")))
    inner = _first(inner) or payload
    if not isinstance(inner, dict):
        words = _words(payload.get("code"), payload.get("type"), payload.get("error_type"))
        return _Said(_shown(inner), words, _status(payload.get("status")), inner=_document(inner))
    told: Json = next((inner[name] for name in _MESSAGES if inner.get(name)), None)
    message = told or inner.get("error") or payload.get("message") or inner
    code, kind, status = inner.get("code"), inner.get("type"), inner.get("status")
    number = _status(code) or _status(inner.get("status_code")) or _status(status)
    reasons = [*_spent_quotas(inner), *(detail.get("reason") for detail in details_of(inner))]  # as API_KEY_INVALID
    for holder in (inner.get("details"), inner.get("innererror")):  # Anthropic's, Azure's
        reasons += [holder.get("error_code"), holder.get("code")] if isinstance(holder, dict) else []
    metadata = inner.get("metadata")  # OpenRouter: whose error it is, and the error as that server sent it
    metadata = metadata if isinstance(metadata, dict) else {}
    raw, server = metadata.get("raw"), metadata.get("provider_name")
    passed_on = message if isinstance(message, dict) and message is not inner else _document(message)
    return _Said(
        _shown(message),
        _words(*reasons, code, kind, status, inner.get("status_code"), inner.get("error_code")),
        number,
        window_of(inner.get("n_ctx")),  # llama.cpp
        _document(raw) or raw or passed_on,
        server if isinstance(server, str) else "",
    )


def _validation(entries: list[Json]) -> str:
    """FastAPI's list of what is wrong, each entry with its place; "" for another list."""
    told = []
    for entry in entries[:_MAX_ENTRIES]:
        words, place = (entry.get("msg"), entry.get("loc")) if isinstance(entry, dict) else (None, None)
        if isinstance(words, str):
            told.append(f"{'.'.join(map(str, place))}: {words}" if isinstance(place, list) else words)
    return "; ".join(told)


def _spent_quotas(error: JsonObject) -> Iterator[str]:
    """The ids of quotas of a day, of which Gemini says only in the details that they are used up."""
    for detail in details_of(error):
        violations, metadata = detail.get("violations"), detail.get("metadata")
        holders = [*(violations if isinstance(violations, list) else ()), metadata]
        for holder in holders:
            names = (holder.get("quotaId"), holder.get("quota_limit")) if isinstance(holder, dict) else ()
            yield from (name for name in names if isinstance(name, str) and SPENT_QUOTAS.search(name))


#: Fields by which a document of a stream, or a whole answer, is an answer.
_ANSWERS: Final = frozenset({"choices", "candidates", "content", "output", "response", "delta", "item"})
_CODES: Final = ("code", "status_code", "error_code", "error_type")
#: Where the words of an error stand. The later names are those of Baidu ("Error codes") and of Java servers.
_MESSAGES: Final = ("message", "msg", "error_msg", "error_message", "errorMessage")
_GOOD: Final = (None, "", 0, "0", 200, "200", "ok", "OK", "success", "SUCCESS")


def is_error(document: JsonObject, *, whole: bool = False) -> bool:
    """Is this an error, of any form? Seen inside answers of HTTP 200: MiniMax's `base_resp`, FastAPI's `detail`,
    {"code", "message"}. In a whole answer a bare {"message"} is one too: there is nothing else in it."""
    if document.get("error"):
        return True
    base = document.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in _GOOD:
        return True
    if not _ANSWERS.isdisjoint(document) and any(document.get(name) for name in _ANSWERS):
        return False
    if document.get("detail") or (whole and document.get("errors")):
        return True
    has_words = any(isinstance(document.get(name), str) for name in _MESSAGES)
    return has_words and (whole or any(document.get(name) not in _GOOD for name in _CODES))


def _layers(payload: Json) -> Iterator[_Said]:
    """The error, then the error of another server that it passes on, and so on."""
    for _ in range(_MAX_LAYERS):
        said = _read_error(payload)
        yield said
        payload = said.inner
        if not payload:
            return


def _document(value: Json) -> Json:
    """The JSON document that a text holds: some gateways pass an error on so, and LiteLLM puts words before and behind
    it. None for any other text."""
    text = unwrapped(value) if isinstance(value, str) else ""
    if not text.startswith(("{", "[")):
        return None
    try:
        return loads(text[: max(text.rfind("}"), text.rfind("]")) + 1].encode())
    except SHAPE_ERRORS:
        return None


def _kind_of(family: str, status: int, layers: Sequence[_Said]) -> tuple[ErrorKind, int | None]:
    """The kind of an error and the window that it names: the first layer decides, unless it says little."""
    kind = error_kind(layers[0].family or family, status, layers[0].codes)
    context_tokens = next((said.context_tokens for said in layers if said.context_tokens), None)
    for said in layers:
        by_words, named = kind_of_phrase(family, said.message, kind)
        if by_words is not None:
            return by_words, named or context_tokens
    for said in layers[1:]:
        inner = error_kind(said.family or ANY, said.status, said.codes)
        if (kind in _VAGUE and inner not in _VAGUE) or (kind is _K.RATE_LIMITED and inner in _FINAL):
            return inner, context_tokens
    return kind, context_tokens


def error_from_payload(
    family: str, payload: Json, status: int = 200, headers: Mapping[str, str] | None = None, raw: bytes | None = None
) -> Error:
    """The Error that a JSON error document means. `status` is the HTTP status it came with, 200 inside a stream.

    `headers` have lower case names. `raw` is shown as snippet, the payload itself where it is left out.
    """
    shown = snippet(json_text(payload) if raw is None else raw)
    payload, headers, layers = _first(payload), headers or {}, tuple(_layers(payload))
    real_status = status if status >= 400 else layers[0].status or status
    kind, context_tokens = _kind_of(family, real_status, layers)
    wait = retry_after_seconds(headers, payload)
    if wait is None and (KINDS_OF_ERRORS[kind].is_waited or kind is _K.QUOTA_SPENT):
        wait = next((said for said in (wait_in_words(each.message) for each in layers) if said is not None), None)
    if kind is _K.QUOTA_SPENT and wait is not None and wait <= MAX_RETRY_AFTER_SECONDS:
        wait = None  # Google's RetryInfo names seconds for a quota of the day
    return make_error(
        kind,
        _message_of(layers) or f"The provider sent an error without a message (HTTP {real_status}).",
        shown,
        retryable=False if kind in _FINAL else should_retry(headers),
        retry_after=wait,
        status=real_status if real_status >= 400 else 0,
        code=snippet(next((code for said in layers for code in said.codes), "")),
        context_tokens=context_tokens if kind is _K.CONTEXT_LENGTH else None,
    )


def error_from_words(
    family: str, words: bytes, unknown: ErrorKind, preface: str = "", headers: Mapping[str, str] | None = None
) -> Error:
    """The Error that a server's own words in a stream mean, where they are no document of its API: plain text, a
    proxy's page, JSON that nothing announces. `unknown` is the kind where they say nothing that the table knows."""
    try:
        payload = loads(words)
    except SHAPE_ERRORS:
        payload = None
    if not isinstance(payload, dict | list):
        payload = {"message": words.decode("utf-8", "replace")}
    error = error_from_payload(family, payload, headers=headers, raw=words)
    if error.kind is _K.OTHER:
        error = make_error(unknown, error.message, error.raw, retry_after=error.retry_after, code=error.code)
    return replace(error, message=preface + error.message)


def _message_of(layers: Sequence[_Said]) -> str:
    """What to show: the gateway's words, and those of the server behind it."""
    outer, innermost = layers[0], layers[-1]
    server = next((said.inner_server for said in layers if said.inner_server), "")
    if innermost is outer:
        return snippet(f"{outer.message} ({server})" if server and outer.message else outer.message)
    behind = f"{server}: {innermost.message}" if server else innermost.message
    return snippet(behind if _document(outer.message) else f"{outer.message} ({behind})")


def error_from_body(family: str, status: int, headers: Mapping[str, str], body: bytes) -> Error:
    """The Error that an HTTP answer with an error status means. Never raises, for any body."""
    try:
        return error_from_payload(family, loads(body), status, headers, body)
    except SHAPE_ERRORS:
        what = f"{NOT_JSON}it said: {snippet(body)}" if body.strip() else f"{NOT_JSON}the body was empty"
    return error_from_payload(family, {"message": what}, status, headers, body)


def _first(payload: Json) -> Json:
    """The first of a list of errors; anything else as it is."""
    return next(iter(payload), {}) if isinstance(payload, list) else payload


def _shown(value: Json) -> str:
    """A message as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def _words(*values: Json) -> tuple[str, ...]:
    """Codes among these values: words, and numbers that are no HTTP status."""
    numbers = (str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values)
    return tuple(word for word in numbers if isinstance(word, str) and word and not _HTTP_STATUS.fullmatch(word))


def _status(value: Json) -> int:
    """400 or "400" as a status; 0 for what is none."""
    if not isinstance(value, int | str) or (isinstance(value, int) and not 0 <= value <= 999):
        return 0
    number = int(value) if str(value).isdecimal() and len(str(value)) == 3 else 0
    return number if number >= 400 else 0
