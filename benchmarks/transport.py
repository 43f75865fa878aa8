"""What a model call costs above the bare loop: CPU a call of HttpProvider, aiohttp alone, and httpx's own client.

    python benchmarks/transport.py                  # one call after the other
    python benchmarks/transport.py --streams 1000   # as many streams open at once

A server in another process streams the same scripted answer to all rows, in as many socket writes as it has events; the
rows take turns. All rows but ours only read bytes: the difference is what translating and the seam cost.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Awaitable, Callable

import aiohttp
import httpx

from callboard.actors.testing.wire_double import Turn, WireDouble
from callboard.protocol.content import UserMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.transport import HttpProvider, HttpTransport

CALLS = 150
ROUNDS = 5
REQUEST = ModelRequest("fake-1", (UserMessage.of("Hi"),))
TEXT = "All the world's a stage, and all the men and women merely players. " * 3

Row = Callable[[], Awaitable[int]]


async def best_of(rows: dict[str, Row], streams: int) -> dict[str, float]:
    """Microseconds of CPU a call, the best of the rounds. `streams` are open at once."""
    calls = max(CALLS, streams)
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(ROUNDS if streams == 1 else 1):  # of many at once, one round takes minutes
        for name, row in rows.items():
            started = time.process_time()
            for _ in range(calls // streams):
                assert all(await asyncio.gather(*[row() for _ in range(streams)]))
            best[name] = min(best[name], (time.process_time() - started) / (calls // streams * streams) * 1e6)
    return best


async def compare(base_url: str, streams: int) -> None:
    adapter = OpenAIChat(base_url=base_url, api_key="k")
    provider, session = HttpProvider(adapter), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    over_aiohttp = httpx.AsyncClient(transport=HttpTransport(), timeout=None)
    stock = httpx.AsyncClient(trust_env=False, limits=limits, timeout=None)
    wire = adapter.encode(REQUEST)

    async def ours() -> int:
        return sum([len(events) async for events in provider.stream(REQUEST)])

    async def bare() -> int:
        async with session.post(wire.url, data=wire.body, headers=wire.headers) as response:
            return sum([len(chunk) async for chunk in response.content.iter_chunked(16384)])

    async def with_client(client: httpx.AsyncClient) -> int:
        async with client.stream("POST", wire.url, content=wire.body, headers=dict(wire.headers)) as response:
            return sum([len(chunk) async for chunk in response.aiter_raw()])

    rows: dict[str, Row] = {
        "aiohttp alone, bytes": bare,
        "httpx client on ours, bytes": lambda: with_client(over_aiohttp),
        "httpx client on httpcore, bytes": lambda: with_client(stock),
        "callboard, StreamEvents": ours,
    }
    cost = await best_of(rows, streams)
    floor = cost["aiohttp alone, bytes"]
    for name, microseconds in cost.items():
        print(f"  {name:<34} {microseconds:8.0f} us a call   {microseconds / floor:5.2f} x aiohttp alone")
    for closing in (provider.aclose(), session.close(), over_aiohttp.aclose(), stock.aclose()):
        await closing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1, help="how many are open at once (%(default)s)")
    streams = parser.parse_args().streams
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection a stream, at both ends
    for fragment in (len(TEXT), 4) if streams == 1 else (4,):
        print(f"An answer of {-(-len(TEXT) // fragment)} pieces, a socket write each, {streams} at once:")
        # With pauses where many are to be open: otherwise the first end before the last have begun.
        pause = 0.1 if streams > 1 else 0.0
        with WireDouble([Turn(TEXT, fragment=fragment, pause=pause)], by_turn=True) as double:
            asyncio.run(compare(double.base_url(), streams))


if __name__ == "__main__":
    main()
