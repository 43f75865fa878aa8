"""Signing in to an MCP server that asks for it (OAuth 2.1, by the SDK): where the tokens are kept, and how a browser
comes back.

Tokens are in the user's own folder, readable by no one else. The browser is sent to the address that the server's
metadata names, once that was judged, and comes back to a port on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, BaseModel, ValidationError

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.http_client import JudgeAddress
from callboard.actors.mcp.mcp_servers import OAuth
from callboard.actors.policy.owners_file import replace_file

logger = logger_of("callboard.mcp")

#: For a person to sign in.
SIGN_IN_SECONDS: Final = 300.0
#: The browser's request: a line and some headers.
_MAX_REQUEST_BYTES: Final = 16_384
_PAGE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"callboard has what it needs; this page can be closed.\n"
)


class _Kept(BaseModel):
    """The file of one server."""

    url: str = ""
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None


class TokenFile:
    """Tokens of one server, and how callboard is registered there, in a file of mode 0600."""

    def __init__(self, path: Path, url: str, redirect: str, given: OAuthClientInformationFull | None) -> None:
        self._path = path
        self._url = url
        self._redirect = redirect
        self._given = given
        """The owner's own registration."""

    async def get_tokens(self) -> OAuthToken | None:
        return self._read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write(self._read().model_copy(update={"tokens": tokens}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """A registration whose browser came back to another port is of no use any more."""
        if self._given is not None:
            return self._given
        client = self._read().client
        redirects = [str(each) for each in client.redirect_uris or ()] if client is not None else []
        return client if not redirects or self._redirect in redirects else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write(self._read().model_copy(update={"client": client_info}))

    def _read(self) -> _Kept:
        try:
            kept = _Kept.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return _Kept(url=self._url)
        return kept if kept.url == self._url else _Kept(url=self._url)  # of a server that had this name before

    def _write(self, kept: _Kept) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, kept.model_dump_json(exclude_none=True).encode())


@contextlib.asynccontextmanager
async def signed_in(
    name: str, url: str, oauth: OAuth, folder: Path, judge: JudgeAddress, waits: Callable[[float], object]
) -> AsyncIterator[httpx2.Auth]:
    """What adds a token to each request, and gets one first where there is none. `waits` is told how many seconds a
    person now has to sign in."""
    path = folder / "mcp" / f"{name}.json"
    if oauth.machine:
        storage = TokenFile(path, url, "", None)
        yield ClientCredentialsOAuthProvider(
            url, storage, oauth.client_id, oauth.client_secret, scope=oauth.scope or None, issuer=oauth.issuer or None
        )
        return
    async with _browser(oauth.redirect_port) as back:
        metadata = OAuthClientMetadata(
            client_name="callboard",
            redirect_uris=[AnyUrl(back.address)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            scope=oauth.scope or None,
        )

        async def open_page(address: str) -> None:
            page = urlsplit(address)
            if page.scheme not in ("http", "https"):
                raise OAuthFlowError("the address to sign in at is refused: it is no web page")
            if page.hostname != urlsplit(url).hostname and (why := (await judge(address)).refused):
                raise OAuthFlowError(f"the address to sign in at is refused: {why}")
            waits(SIGN_IN_SECONDS)
            logger.warning("MCP server %s wants you to sign in; open %s", name, address)
            await asyncio.to_thread(webbrowser.open, address)

        yield OAuthClientProvider(
            url,
            metadata,
            TokenFile(path, url, back.address, _registered(oauth, back.address)),
            redirect_handler=open_page,
            callback_handler=back.wait,
            client_metadata_url=oauth.client_metadata_url or None,
        )


def _registered(oauth: OAuth, redirect: str) -> OAuthClientInformationFull | None:
    if not oauth.client_id:
        return None
    secret = oauth.client_secret or None
    return OAuthClientInformationFull(
        client_id=oauth.client_id,
        client_secret=secret,
        redirect_uris=[AnyUrl(redirect)],
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
    )


class _Callback:
    """The page on loopback to which the browser comes back."""

    def __init__(self) -> None:
        self.address = ""
        self._came: asyncio.Queue[AuthorizationCodeResult] = asyncio.Queue()

    async def wait(self) -> AuthorizationCodeResult:
        """Raises OAuthFlowError when the browser has not come in time."""
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS):
                return await self._came.get()
        except TimeoutError:
            raise OAuthFlowError(f"the sign-in was not completed within {SIGN_IN_SECONDS:g} s") from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of a browser."""
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n")
                target = head.decode("ascii", "replace").split(" ")[1:2] or ["/"]
                query = parse_qs(urlsplit(target[0]).query)
                if "code" in query or "error" in query:
                    said = {each: query[each][0] for each in ("code", "state", "iss") if each in query}
                    self._came.put_nowait(AuthorizationCodeResult(**{"code": "", **said}))
                writer.write(_PAGE)
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request to the page for signing in broke off")
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def _browser(port: int) -> AsyncIterator[_Callback]:
    back = _Callback()
    server = await asyncio.start_server(back.serve, "127.0.0.1", port, limit=_MAX_REQUEST_BYTES)
    back.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback"
    try:
        yield back
    finally:
        server.close()
