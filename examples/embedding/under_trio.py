"""trio, or another async library that is not asyncio: ask on a thread.

    pip install trio
    python examples/embedding/under_trio.py

The runtime has a loop thread of its own and needs none of the host's.
"""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import trio
from weather import SETTINGS, weather

from callboard import Reply, Runtime


async def ask(runtime: Runtime, question: str) -> Reply:
    """Ask; leaving the cancel scope cancels the request."""
    request_id = uuid4().hex
    waiting = partial(runtime.ask_sync, question, request_id=request_id)
    try:
        return await trio.to_thread.run_sync(waiting, abandon_on_cancel=True)
    except trio.Cancelled:
        runtime.cancel(request_id)
        raise


async def main() -> None:
    """Three questions side by side, at most 20 seconds."""

    async def show(city: str) -> None:
        print((await ask(runtime, f"What is the weather in {city}?")).text)

    with Runtime(SETTINGS, tools=[weather]) as runtime, trio.move_on_after(20) as limit:
        async with trio.open_nursery() as nursery:
            for city in ("Oslo", "Bergen", "Tromsø"):
                nursery.start_soon(show, city)
    if limit.cancelled_caught:
        print("No answer within 20 s.")


if __name__ == "__main__":
    trio.run(main)
