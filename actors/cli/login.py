"""`callboard login copilot`: GitHub's device flow. The lasting token goes to a keyring or an owner-only file."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

from callboard import Settings
from callboard.actors.cli.terminal import print_line, printable
from callboard.providers.copilot import copilot_login
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.copilot.copilot_login import Http, Sleep, TokenStore
from callboard.providers.transport import HttpProvider


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Raises UsageError without a client id, ProviderError where GitHub refuses or cannot be reached."""
    settings = Settings.from_file(options.profile, options.config)
    github = HttpProvider(Copilot())
    try:
        store = copilot_login.token_store(settings.copilot_token_file)
        await sign_in(github.fetch, asyncio.sleep, settings.copilot_client_id, store, _say)
    finally:
        await github.aclose()


async def sign_in(http: Http, sleep: Sleep, client_id: str, store: TokenStore, say: Callable[[str], None]) -> None:
    """The whole flow; nothing is kept unless Copilot accepts the login."""
    code = await copilot_login.request_device_code(http, client_id)
    say(f"Open {code.verification_uri} and type {code.user_code}; waiting ...")
    secret = await copilot_login.wait_for_login(http, sleep, client_id, code)
    await copilot_login.exchange(http, secret, time.time())
    store.save(secret)
    say("Signed in. Ask with --model copilot/MODEL.")


def _say(text: str) -> None:
    print_line(printable(text))
