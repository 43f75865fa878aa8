"""Credentials that expire: kept until shortly before they do, renewed once for all that wait, and once after a refusal.

A `RenewedCredential` is an `Authorizer` (adapter.py). Where the credential comes from is its `source`: a callback of
the user's (`bearer_of`), google-auth (vertex/google_credentials.py) or botocore (bedrock/aws_credentials.py).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from msgspec.structs import replace

from callboard.protocol.errors import ErrorKind, ProviderError, said
from callboard.protocol.masking import for_log
from callboard.providers.adapter import CREDENTIAL_HEADERS, Authorizer, WireRequest
from callboard.providers.http_errors import snippet

#: For one new credential. Metadata servers and token endpoints answer within a second or two.
RENEWAL_SECONDS: Final = 30.0
#: A credential is renewed this long before it ends, so that it outlives the requests that carry it.
RENEW_BEFORE_SECONDS: Final = 300.0
#: One that came in place of a refused one and is refused so soon itself: a third will not be better.
_FRESH_SECONDS: Final = 60.0


class CredentialError(ProviderError):
    """There is no credential, or no new one. `retryable`: the next try may get one."""

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(ErrorKind.AUTHENTICATION, message)
        self.retryable = retryable


class Expiring(Protocol):
    """A credential."""

    @property
    def expires_at(self) -> float | None:
        """Unix time; None: not known, so its source is asked for each request, and keeps it as long as it may."""


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. A callback may return one in place of a str, to say how long it is valid."""

    text: str = field(repr=False)
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Key(Token):
    """A key, which goes where the API takes one: `x-api-key`, `x-goog-api-key`, a bearer token ..."""


#: The key of an adapter whose key a callback gives: that takes its place in the headers.
KEY_PLACE: Final = "given-by-a-callback"
TokenCallback = Callable[[], str | Token | Awaitable[str | Token]]
"""Gives a key or a bearer token, such as `azure.identity.get_bearer_token_provider(...)`. A function that is not async
runs in a thread of its own; what it gives as a str is asked for again with each request."""

_C = TypeVar("_C", bound=Expiring)
_T = TypeVar("_T")
Source = Callable[[bool], Awaitable[_C]]
"""Called with True where the last credential was refused: then one from a cache is of no use."""


class RenewedCredential(Authorizer, Generic[_C]):
    """Authorizes requests with what `source` gives.

    Concurrent callers share one renewal, and it goes on where one of them is cancelled. Usable by several event loops
    one after the other. `todo` ends each error: what the user can do.
    """

    def __init__(
        self,
        source: Source[_C],
        sign: Callable[[WireRequest, _C], WireRequest],
        *,
        todo: str,
        seconds: float = RENEWAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._sign, self._todo = source, sign, todo
        self._seconds, self._clock = seconds, clock
        self._kept: _C | None = None
        self._renewal: asyncio.Task[_C] | None = None
        self._is_after_refusal = False
        """What the source was told for that renewal."""
        self._after_refusal: tuple[_C, float] | None = None
        """The last credential that came in place of a refused one, and when."""

    async def authorize(self, wire: WireRequest, /) -> WireRequest:
        """See `Authorizer.authorize`."""
        kept = self._kept
        if kept is None or kept.expires_at is None or self._clock() >= kept.expires_at - RENEW_BEFORE_SECONDS:
            kept = await self._renewed(False)
        return replace(self._sign(wire, kept), credential=kept)

    async def is_renewed(self, refused: WireRequest, /) -> bool:
        """See `Authorizer.is_renewed`."""
        if self._kept is not None and self._kept != refused.credential:
            return True  # another call has renewed it meanwhile
        if self._after_refusal is not None:
            last, came_at = self._after_refusal
            # Not only the last one: of a token of unknown life, each request has its own.
            if refused.credential in (last, self._kept) and self._clock() - came_at < _FRESH_SECONDS:
                self._kept = None
                return False
        self._kept = None
        found = await self._renewed(True)
        if found == refused.credential:
            return False
        self._after_refusal = found, self._clock()
        return True

    async def _renewed(self, was_refused: bool) -> _C:
        if was_refused and (renewal := self._running()) and not self._is_after_refusal:
            await asyncio.wait({renewal})  # its source may have looked into a cache
        renewal = self._running()
        if renewal is None:
            renewal = self._renewal = asyncio.create_task(self._renew(was_refused))
            renewal.add_done_callback(_looked_at)
            self._is_after_refusal = was_refused
        return await asyncio.shield(renewal)

    def _running(self) -> asyncio.Task[_C] | None:
        renewal = self._renewal
        if renewal is None or renewal.done() or renewal.get_loop() is not asyncio.get_running_loop():
            return None
        return renewal

    async def _renew(self, was_refused: bool) -> _C:
        try:
            async with asyncio.timeout(self._seconds):
                self._kept = await self._source(was_refused)
        except TimeoutError:
            raise CredentialError(f"no credential came within {self._seconds:g} s; {self._todo}", True) from None
        except CredentialError as error:
            raise CredentialError(f"{error}; {self._todo}", error.retryable) from None
        return self._kept


def _looked_at(renewal: asyncio.Task[_C]) -> None:
    """Read the failure of a renewal whose callers were all cancelled, so that asyncio does not warn of it."""
    if not renewal.cancelled():
        renewal.exception()


def with_bearer(wire: WireRequest, token: Token) -> WireRequest:
    """The request with this token in place of any other credential; a Key goes where the adapter has put KEY_PLACE.
    CredentialError for one that no header can hold."""
    if not token.text or not token.text.isascii() or not token.text.isprintable() or " " in token.text:
        raise CredentialError("the token is not one word of ASCII")
    if isinstance(token, Key):
        placed = {name: value.replace(KEY_PLACE, token.text) for name, value in wire.headers.items()}
        return replace(wire, headers=placed)
    headers = {name: value for name, value in wire.headers.items() if name not in CREDENTIAL_HEADERS}
    return replace(wire, headers={**headers, "authorization": f"Bearer {token.text}"})


def bearer_of(
    callback: TokenCallback,
    *,
    kind: type[Token] = Token,
    seconds: float = RENEWAL_SECONDS,
    clock: Callable[[], float] = time.time,
) -> RenewedCredential[Token]:
    """Authorizes by what `callback` gives. A str is of this `kind`."""
    in_thread = InThread(callback)
    # A function, a functools.partial of one, or an object with __call__.
    is_async = any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__)))

    async def source(was_refused: bool) -> Token:
        try:
            given: object = callback() if is_async else await in_thread()
            found = await given if inspect.isawaitable(given) else given
        except CredentialError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            why = f"the token callback failed: {described(error)}"
            raise CredentialError(why, retryable=isinstance(error, OSError)) from None
        if not isinstance(found, str | Token):
            raise CredentialError(f"the token callback gave a {type(found).__name__}, not a str")
        return kind(found) if isinstance(found, str) else found

    todo = "look at the callback that was given as token"
    return RenewedCredential(source, with_bearer, todo=todo, seconds=seconds, clock=clock)


def token_authorizer(token: TokenCallback | str, kind: type[Token] = Token) -> RenewedCredential[Token]:
    """Authorizes by a bearer token that is given as it is, or by what a callback gives, as in `bearer_of`."""
    if not isinstance(token, str):
        return bearer_of(token, kind=kind)
    given = Token(token, math.inf)

    async def source(was_refused: bool) -> Token:
        return given

    return RenewedCredential(source, with_bearer, todo="look at the token that was given")


def described(error: BaseException) -> str:
    """An exception of a library's or a user's, in a few words and without what looks like a key."""
    return for_log(snippet(said(error))).rstrip(".")


class InThread(Generic[_T]):
    """A function that blocks, called from event loops: in a daemon thread, which keeps no program from its end, and
    never in two at once. While one call hangs, the next ones wait for it and not beside it."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._running: Future[_T] | None = None

    async def __call__(self) -> _T:
        running = self._running
        if running is None or running.done():
            running = Future()
            running.set_running_or_notify_cancel()  # from here on, no waiting task that is cancelled cancels it
            threading.Thread(target=self._run, args=(running,), name="callboard-credential", daemon=True).start()
            self._running = running  # only now: for one without a thread everybody would wait for ever
        return await asyncio.wrap_future(running)

    def _run(self, future: Future[_T]) -> None:
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - it belongs to the task that waits
            future.set_exception(error)
        else:
            future.set_result(result)
