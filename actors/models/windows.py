"""How many tokens a model takes: found out once for each model, when a request first needs it, and remembered."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from callboard.actors.models.llm_manager import Route, is_cancelled
from callboard.actors.models.refusals import MAX_MODELS
from callboard.protocol.errors import said
from callboard.providers.adapter import Provider
from callboard.providers.context_window import ask_window

logger = logging.getLogger("callboard")

#: Where no table and no server tells: what current small models take. Too little only cuts early.
ASSUMED_CONTEXT_TOKENS: Final = 32_768
#: A server that did not tell is asked again after this long: it may have been starting, or have loaded the model since.
ASK_AGAIN_SECONDS: Final = 60.0
#: Providers without a model behind them: nothing is too long for them.
UNLIMITED: Final = frozenset({"offline", "scripted"})

AskWindow = Callable[[Provider, str, str], Awaitable[int | None]]
"""From the provider, its name and the model's to the window; None where the server does not tell."""


class Window(Struct, frozen=True):
    """How many tokens a model takes. `note` says so where that is only assumed."""

    tokens: int | None
    """Input and output together; None: unlimited."""
    note: str = ""


FindWindow = Callable[[Callable[[Window], None]], None]
"""Finds the window of one model and tells it, once, on the loop thread; not where the loop ends before."""


class Windows:
    """Of all models of a started runtime, on its loop thread."""

    def __init__(self, ask: AskWindow = ask_window) -> None:
        self._ask = ask
        self._found: dict[str, tuple[Window, float]] = {}
        """By the route's name, and until when it holds, by the loop's clock."""
        self._asking: dict[str, asyncio.Task[Window]] = {}

    def find(self, route: Route, told: Callable[[Window], None]) -> None:
        """See FindWindow. Requests that need it at the same time share one question."""
        loop, name = asyncio.get_running_loop(), route.name
        window, holds_until = self._found.get(name, (Window(None), -math.inf))
        if loop.time() < holds_until:
            told(window)
            return
        if name not in self._asking:
            self._asking[name] = loop.create_task(self._find(route), name=f"the window of {name}")
        self._asking[name].add_done_callback(lambda done: None if done.cancelled() else told(done.result()))

    def forget(self) -> None:
        """The names stand for other servers from now on: they are asked again."""
        self._found.clear()

    def cancel(self) -> None:
        """Ask no longer: the providers' connections are about to be closed."""
        for asking in self._asking.values():
            asking.cancel()

    async def _find(self, route: Route) -> Window:
        name, loop = route.name, asyncio.get_running_loop()
        try:
            tokens = await self._ask(route.provider, name.partition("/")[0], route.model)
        except BaseException as error:  # of a provider written by a user; the request goes on without
            if is_cancelled():
                raise
            logger.warning("the window of %s could not be asked for: %s", name, said(error))
            tokens = None
        finally:
            del self._asking[name]
        if tokens is not None:
            window, holds_until = Window(tokens), math.inf
        else:
            window, holds_until = _assumed(name), loop.time() + ASK_AGAIN_SECONDS
            if name not in self._found:  # once
                logger.warning("%s", window.note)
        self._found[name] = window, holds_until
        if len(self._found) > MAX_MODELS:
            del self._found[next(iter(self._found))]
        return window


def _assumed(name: str) -> Window:
    return Window(
        ASSUMED_CONTEXT_TOKENS,
        f"how many tokens {name} takes is not known: {ASSUMED_CONTEXT_TOKENS:,} are assumed, and older messages are "
        "cut to fit; set context_tokens to the right number",
    )
