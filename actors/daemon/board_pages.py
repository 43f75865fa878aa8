"""The board in a browser: its page, its style and its program, and what it reads.

The page needs no token: it holds nothing. Its program asks for one, and sends it with each call.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import json_response, not_found
from callboard.actors.daemon.board_rows import approval
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.endpoint import Endpoint, HandleOpen, HttpCall
from callboard.actors.daemon.native_io import path_step, waited
from callboard.actors.daemon.server_events import EventStream

#: Nothing from elsewhere, nothing inline, in no frame (W3C Content Security Policy 3).
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/board/board.css": ("board.css", "text/css"),
    "/board/approvals.js": ("approvals.js", "text/javascript"),
    "/board/board.js": ("board.js", "text/javascript"),
    "/board/lanes.js": ("lanes.js", "text/javascript"),
    "/board/requests.js": ("requests.js", "text/javascript"),
    "/board/rows.js": ("rows.js", "text/javascript"),
    "/board/daemon.js": ("daemon.js", "text/javascript"),
    "/board/dom.js": ("dom.js", "text/javascript"),
    "/board/icon.svg": ("icon.svg", "image/svg+xml"),
}


def _page(name: str, kind: str) -> HandleOpen:
    text = files("callboard.actors.daemon").joinpath("board", name).read_bytes()

    async def answer(_: Daemon, __: Request) -> Response:
        return Response(text, 200, _HEADERS, kind)

    return answer


async def board(call: HttpCall) -> Response:
    """The board as JSON: the sections that the token may see, each with its rows."""
    found = await call.daemon.boards.of(call.tenant).snapshot()
    return json_response({"tenant": call.tenant.name, **found.whole(call.token.scope)})


async def board_events(call: HttpCall) -> Response:
    """The board as events: `board` is the whole of it, `changes` what differs from the event before."""
    return EventStream(call.daemon.boards.of(call.tenant).follow(call.token.scope))


async def board_approval(call: HttpCall) -> Response:
    """A row of the section `approvals` whose texts the board has cut: all of it."""
    key = (call.path("request_id"), path_step(call), call.path("call_id"))
    found = next((each for each in call.tenant.desk.open if each.key == key), None)
    if found is None:
        raise not_found("no such call waits for approval")
    return json_response(await waited(lambda: approval(found, None)))


ENDPOINTS: Final = (
    *(
        Endpoint("GET", path, handle_open=_page(*file), scope=None, summary=f"The board: {file[0]}")
        for path, file in _FILES.items()
    ),
    Endpoint("GET", "/api/board", board, summary="What is stuck, what runs, what was used: the board as JSON"),
    Endpoint(
        "GET", "/api/board/approvals/{request_id}/{step:int}/{call_id:path}", board_approval, scope=Scope.APPROVE,
        summary="An approval of the board, uncut",
    ),
    Endpoint("GET", "/api/board/events", board_events, is_stream=True, summary="The board, and what changes on it"),
)  # fmt: skip
