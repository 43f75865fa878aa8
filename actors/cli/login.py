"""`callboard login copilot`: GitHub's device flow. The lasting token goes to a keyring or an owner-only file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from callboard import Settings, UsageError
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.copilot.copilot_login import (
    CopilotTokens,
    Http,
    Sleep,
    TokenStore,
    request_device_code,
    token_store,
    wait_for_login,
)
from callboard.providers.transport import HttpProvider

_NO_CLIENT = (
    "signing in to Copilot needs the client id of a GitHub OAuth app with device flow; "
    "make one at https://github.com/settings/developers and set CALLBOARD_COPILOT_CLIENT_ID"
)


async def run(options: argparse.Namespace) -> None:
    """Raises UsageError without a client id, ProviderError where GitHub refuses or cannot be reached."""
    settings = Settings()
    github = HttpProvider(Copilot())
    try:
        store = token_store(settings.copilot_token_file)
        await sign_in(github.fetch, asyncio.sleep, settings.copilot_client_id, store, _say)
    finally:
        await github.aclose()


async def sign_in(http: Http, sleep: Sleep, client_id: str, store: TokenStore, say: Callable[[str], None]) -> None:
    """The whole flow; nothing is kept unless Copilot accepts the login."""
    if not client_id:
        raise UsageError(_NO_CLIENT)
    code = await request_device_code(http, client_id)
    say(f"Open {code.verification_uri} and type {code.user_code}; waiting ...")
    secret = await wait_for_login(http, sleep, client_id, code)
    await CopilotTokens(_Held(secret), http).current()
    store.save(secret)
    say("Signed in. Ask with --model copilot/MODEL.")


class _Held:
    """A token that is not kept yet."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def load(self) -> str:
        return self._secret

    def save(self, secret: str) -> None:
        self._secret = secret


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
