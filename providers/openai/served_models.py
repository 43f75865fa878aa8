"""Which models a server has: GET {base}/models, as OpenAI does it and most compatible servers do."""

from __future__ import annotations

from typing import Final

from callboard.protocol.errors import ErrorKind, ProviderError
from callboard.providers.adapter import Timeouts, WireRequest
from callboard.providers.http_errors import error_from_body, scrubbed, shown_address, snippet
from callboard.providers.json_values import SHAPE_ERRORS, JsonObject, list_at, loads
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.request_encoding import bearer
from callboard.providers.transport import HttpProvider

#: A list of names is at hand; a person waits for it.
LIST_TIMEOUTS: Final = Timeouts(connect_seconds=5.0, idle_seconds=5.0, total_seconds=5.0)
#: Where a server keeps its list, and what it calls a name: OpenAI's `data[].id`; Ollama's own API has `models[].name`.
_LISTS: Final = (("data", "id"), ("models", "name"))


async def served_models(
    base_url: str, api_key: str | None = None, timeouts: Timeouts = LIST_TIMEOUTS
) -> tuple[str, ...]:
    """The names, in the server's order. Raises ProviderError, with address and status, where it names none."""
    adapter = OpenAIChat(base_url=base_url, api_key=api_key, dialect=ChatDialect())
    url = f"{adapter.dialect.address(base_url)}/models"
    http, where = HttpProvider(adapter, timeouts=timeouts), shown_address(url)
    try:
        answer = await http.fetch(WireRequest("GET", url, bearer(api_key), b""))
    except ProviderError as unreached:
        todo = "check the address, and that a server runs there" if unreached.kind is ErrorKind.CONNECTION else _TODO
        raise ProviderError(unreached.kind, f"{str(unreached).rstrip('.')}; {todo}") from unreached
    finally:
        await http.aclose()
    if answer.status >= 400:
        error = scrubbed(error_from_body(adapter.name, answer.status, {}, answer.body), api_key)
        todo = _ABOUT_THE_KEY.get(error.kind, _TODO)
        message = f"{where} answered HTTP {answer.status}: {error.message.rstrip('.')}; {todo}"
        raise ProviderError(error.kind, message, status=answer.status)
    document = _document(answer.body)
    if document is None:
        what = snippet(answer.body) or "nothing"
        raise ProviderError(ErrorKind.MALFORMED, f"{where} answered HTTP {answer.status} without JSON: {what}; {_TODO}")
    for place, field in _LISTS:
        found = (each.get(field) for each in list_at(document, place) if isinstance(each, dict))
        if names := tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name)):
            return names
    raise ProviderError(ErrorKind.NOT_FOUND, f"{where} names no models; {_TODO}")


def _document(body: bytes) -> JsonObject | None:
    """The answer as an object; Together sends the list alone. None for anything else."""
    try:
        found = loads(body)
    except SHAPE_ERRORS:
        return None
    return {"data": found} if isinstance(found, list) else found if isinstance(found, dict) else None


_TODO: Final = "check that it is the address of the API, with /v1 if it has one, or name the model"
_ABOUT_THE_KEY: Final = {
    ErrorKind.AUTHENTICATION: "check the key in CALLBOARD_API_KEY",
    ErrorKind.PERMISSION: "check what the key in CALLBOARD_API_KEY may use",
}
