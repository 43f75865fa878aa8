"""Bearer tokens: who may do what, and for which tenant. Only their hashes are kept.

A token is 256 random bits, so that its SHA-256 needs no salt and no stretching: there is nothing to guess.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from callboard.actors.opened_folders import open_plain
from callboard.actors.policy.owners_file import locked_beside, replace_file
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.daemon")

#: Bytes of randomness in a token that we make.
TOKEN_BYTES: Final = 32
#: One that was chosen by a person must be at least this long.
MIN_TOKEN_CHARS: Final = 16
PREFIX: Final = "cb-"
#: Some hundred tokens; this bounds a file that is something else.
MAX_FILE_BYTES: Final = 1024 * 1024
#: Of removed tokens, so many are known by name in the log of refusals.
MAX_REMOVED: Final = 1_000


class Scope(IntEnum):
    """What a token may do; each scope includes those before it."""

    USE = 1
    """Ask, and read what its tenant has."""
    APPROVE = 2
    """Decide on approvals and staged edits, complete deferred calls."""
    ADMIN = 3
    """Restart and kill actors, replay dead letters, reload, read metrics and stacks."""

    @classmethod
    def of(cls, name: str) -> Scope:
        """By its name. Raises UsageError."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise UsageError(f"{name!r:.40} is no scope; use: {', '.join(each.name.lower() for each in cls)}") from None


class AccessToken(Struct, frozen=True):
    """One token, without its secret."""

    id: str
    """By which people and logs know it."""
    hashed: str
    """SHA-256 of the secret, as hex digits."""
    scope: Scope
    tenant: str
    note: str = ""
    made_at: float = 0.0
    """Wall-clock seconds."""

    def shown(self) -> dict[str, object]:
        """For people: without the hash."""
        return {
            "id": self.id,
            "scope": self.scope.name.lower(),
            "tenant": self.tenant,
            "note": self.note,
            "made_at": self.made_at,
        }


def hash_of(secret: str) -> str:
    """As it is kept."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class AccessTokens:
    """The tokens of a daemon: those of its file, which only its owner may read, and those that it was given."""

    def __init__(self, path: Path, given: Iterable[AccessToken] = ()) -> None:
        """Raises UsageError for a file that cannot be used."""
        self.path = path
        self._given = tuple(given)
        self._changing = threading.Lock()
        self._by_hash: Mapping[str, AccessToken] = {}
        self._removed: dict[str, AccessToken] = {}
        """The last `MAX_REMOVED` that counted when the file was read before."""
        self._seen: tuple[int, ...] = ()
        """The state of the file that was read last; () for no file."""
        self.fault = ""
        """Why the file cannot be read; none of its tokens counts then."""
        self.reload()

    def reload(self) -> None:
        """Read the file again. Raises UsageError; only the tokens that it was given count then."""
        self._seen = self._state()
        before, found = self._by_hash, list[AccessToken]()
        try:
            found = self._read()
            self.fault = ""
        except UsageError as error:
            self.fault = str(error)
            raise
        finally:
            self._by_hash = {each.hashed: each for each in (*found, *self._given)}
            gone = {hashed: each for hashed, each in before.items() if hashed not in self._by_hash}
            self._removed = dict([*self._removed.items(), *gone.items()][-MAX_REMOVED:])

    def find(self, secret: str) -> AccessToken | None:
        """The token with this secret. By its hash: how long the look takes says nothing of what was nearly right.

        A token that `callboard tokens` has made or removed counts at once: a look at the file's time takes 2 us.
        """
        self.look()
        return self._by_hash.get(hash_of(secret)) if secret else None

    def removed(self, secret: str) -> AccessToken | None:
        """The token with this secret, where it counts no more but has while this process runs."""
        return self._removed.get(hash_of(secret)) if secret else None

    def look(self) -> None:
        """Read the file again where it has changed, or could not be read. A removed token must not go on counting
        because the list without it cannot be read."""
        if self.fault or self._state() != self._seen:
            before = self.fault
            try:
                self.reload()
            except UsageError as error:
                if self.fault != before:
                    logger.error("no token of the file counts: %s", error)
            else:
                if before:
                    logger.warning("the tokens can be read again: %s", self.path)

    @property
    def tokens(self) -> tuple[AccessToken, ...]:
        """All, the oldest first."""
        return tuple(sorted(self._by_hash.values(), key=lambda each: each.made_at))

    def make(self, scope: Scope, tenant: str, note: str = "") -> tuple[AccessToken, str]:
        """A new token and its secret, which is nowhere else. Raises UsageError where the file cannot be written."""
        secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        made = AccessToken(secrets.token_hex(4), hash_of(secret), scope, tenant, note, time.time())
        with self._changed_alone():
            self._write([*self._read(), made])
        return made, secret

    def remove(self, token_id: str) -> bool:
        """It counts no more. False where the file has none of this id."""
        with self._changed_alone():
            before = self._read()
            kept = [each for each in before if each.id != token_id]
            if len(kept) < len(before):
                self._write(kept)
        return len(kept) < len(before)

    @contextlib.contextmanager
    def _changed_alone(self) -> Iterator[None]:
        """No other thread and no other process changes the file meanwhile. Raises UsageError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._changing, locked_beside(self.path):
                yield
                self.reload()
        except OSError as error:
            raise UsageError(f"the tokens cannot be written: {self.path}: {error.strerror or error}") from None

    def _state(self) -> tuple[int, ...]:
        """Another one after each change: a change makes a new file, and `chmod` sets the last of these times."""
        try:
            found = os.stat(self.path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> list[AccessToken]:
        try:
            with open(open_plain(os.path.realpath(self.path)), "rb") as held:
                mode = stat.S_IMODE(os.fstat(held.fileno()).st_mode)
                data = held.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"the tokens cannot be read: {self.path}: {error.strerror or error}") from None
        if mode & 0o077:
            raise UsageError(f"others may read {self.path}; run `chmod 600 {self.path}`")
        try:
            rows = orjson.loads(data)
            return [AccessToken(**{**row, "scope": Scope.of(row["scope"])}) for row in rows["tokens"]]
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{self.path} holds no tokens of callboard; move it away for new ones") from None

    def _write(self, tokens: Iterable[AccessToken]) -> None:
        rows = [{**asdict(each), "scope": each.scope.name.lower()} for each in tokens]
        replace_file(self.path, orjson.dumps({"tokens": rows}, option=orjson.OPT_INDENT_2))


def given_token(secret: str, tenant: str) -> AccessToken:
    """Of a variable: it may do all. Raises UsageError for what is too easy to guess or cannot be a header."""
    if len(secret) < MIN_TOKEN_CHARS or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UsageError(
            f"CALLBOARD_TOKEN must have {MIN_TOKEN_CHARS} or more characters, ASCII, no spaces; "
            "make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return AccessToken("CALLBOARD_TOKEN", hash_of(secret), Scope.ADMIN, tenant)


def for_owner(path: str, flags: int) -> int:
    """An opener of files that only their owner may read."""
    return os.open(path, flags, 0o600)
