"""A TCP proxy that can lose what it is sent: for tests of a network that is cut without a word."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class TcpProxy:
    """Forwards 127.0.0.1:`port` to the port that it is given, as a context manager; on a thread of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._passes = threading.Event()
        self._passes.set()
        self._losing_after: bytes | None = None
        self.lost = threading.Event()
        """Something was sent that was lost."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> TcpProxy:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        ).result(10)
        self._server = server
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """From now on everything is lost, and no connection is closed."""
        self._passes.clear()

    def cut_after(self, sent: bytes) -> None:
        """As soon as the client has sent this, it is passed on and every answer is lost."""
        self._losing_after = sent

    def mend(self) -> None:
        """New connections work. Those from before have lost bytes, and are closed."""
        self._losing_after = None
        asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result(10)
        self.lost.clear()
        self._passes.set()

    async def _drop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        self._server.close()
        await self._drop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            theirs, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            both = [
                asyncio.create_task(self._forward(reader, to_server, is_client=True)),
                asyncio.create_task(self._forward(theirs, writer, is_client=False)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for forwarding in both:
                    forwarding.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                to_server.close()
        writer.close()
        self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool) -> None:
        while data := await reader.read(65_536):
            if not self._passes.is_set():
                self.lost.set()
                continue
            if is_client and self._losing_after is not None and self._losing_after in data:
                self._passes.clear()
            writer.write(data)
            await writer.drain()
