"""The clients of daemon_load.py, on bare sockets, so that they cost little: what they saw is one line of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

DEADLINE_SECONDS = 300.0


def request(port: int, key: str, method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {key}", "Connection: close",
        "Content-Type: application/json", f"Content-Length: {len(data)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + data


def question(*, is_streamed: bool = True) -> dict[str, object]:
    return {"model": "any", "stream": is_streamed, "messages": [{"role": "user", "content": "Say fifty words."}]}


async def stream(port: int, key: str) -> float:
    """Seconds to the first word of the answer. Raises ValueError for an answer that is not whole."""
    began = time.perf_counter()
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(request(port, key, "POST", "/v1/chat/completions", question()))
    first, seen = 0.0, bytearray()
    while data := await reading.read(65_536):
        seen += data
        if not first and b'"content":"word' in seen.replace(b'": "', b'":"'):
            first = time.perf_counter() - began
    writing.close()
    if not first or b"[DONE]" not in seen or seen.replace(b'": "', b'":"').count(b'"content":"') < 2:
        raise ValueError(seen[:300].decode(errors="replace"))
    return first


async def streams(port: int, key: str, count: int, per_second: float) -> dict[str, float]:
    async def one(number: int) -> float | Exception:
        await asyncio.sleep(number / per_second)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await stream(port, key)
        except Exception as error:  # noqa: BLE001 - it is counted, and the first is shown
            return error

    ends = await asyncio.gather(*map(one, range(count)))
    faults = [end for end in ends if isinstance(end, Exception)]
    if faults:
        sys.stderr.write(f"{len(faults)} failed, the first: {faults[0]!r}\n")
    firsts = sorted(end for end in ends if isinstance(end, float)) or [0.0]
    p50, p99 = (firsts[min(len(firsts) - 1, int(len(firsts) * share))] for share in (0.5, 0.99))
    return {"failed": len(faults), "first_p50_ms": p50 * 1_000, "first_p99_ms": p99 * 1_000}


async def followers(
    port: int, key: str, count: int, per_second: float, pid: int, idle_seconds: float
) -> dict[str, float]:
    """They follow one request that waits for its model; at the end it is cancelled, and all should see that."""
    from daemon_load import cpu_of, memory_of  # noqa: PLC0415 - it is a program, and imports the product

    begun = json.loads(await answer(port, request(port, key, "POST", "/api/requests", {"prompt": "Say fifty words."})))
    path = f"/api/requests/{begun['request_id']}/events"
    connected, told = 0, 0

    async def one(number: int) -> None:
        nonlocal connected, told
        await asyncio.sleep(number / per_second)
        reading, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(request(port, key, "GET", path))
        status = await reading.readline()
        connected += b" 200 " in status
        tail = b""
        while data := await reading.read(65_536):
            tail = (tail + data)[-4_096:]
        told += b"cancelled" in tail
        writing.close()

    following = [asyncio.ensure_future(one(number)) for number in range(count)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while connected < count and not all(each.done() for each in following):
            await asyncio.wait(following, timeout=0.1)
    memory, cpu = memory_of(pid), cpu_of(pid)
    await asyncio.sleep(idle_seconds)
    percent = (cpu_of(pid) - cpu) / idle_seconds * 100
    await answer(port, request(port, key, "POST", f"/api/requests/{begun['request_id']}/cancel", {}))
    await asyncio.wait(following, timeout=DEADLINE_SECONDS)
    return {"connected": connected, "with_followers_mb": memory, "cpu_percent": percent, "told": told}


async def stuck(port: int, key: str, count: int, per_second: float, pid: int) -> dict[str, float]:
    from daemon_load import OTHERS, memory_of  # noqa: PLC0415 - likewise

    held = []
    for _ in range(count):
        reading, writing = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writing.transport.pause_reading()  # type: ignore[attr-defined]
        writing.write(request(port, key, "POST", "/v1/chat/completions", question()))
        held.append((reading, writing))
        await asyncio.sleep(1 / per_second)
    began, peak, kernel, waiting = time.monotonic(), 0.0, 0, [0] * count
    others: list[asyncio.Task[bool]] = []
    while waiting and time.monotonic() - began < DEADLINE_SECONDS / 3:
        if len(others) < OTHERS:
            others.append(asyncio.ensure_future(other(port, key)))
        peak = max(peak, memory_of(pid))
        waiting = unread_bytes(port, pid)
        kernel = max(kernel, sum(waiting))
        await asyncio.sleep(0.5)
    seconds = time.monotonic() - began
    answered = sum(await asyncio.gather(*others))
    for _, writing in held:
        writing.close()
    return {
        "peak_mb": peak,
        "kernel_bytes": kernel,
        "cut": count - len(waiting),
        "seconds": seconds,
        "other_ok": answered,
    }


def unread_bytes(port: int, pid: int) -> list[int]:
    """What the kernel still has to send, of each connection to the server that has not ended."""
    local = f":{port:04X}"
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    ended = ("06", "0A")  # TIME_WAIT, which costs next to nothing; and the one that listens
    return [int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(local) and row[3] not in ended]


async def other(port: int, key: str) -> bool:
    """A client that behaves."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return bool(await answer(port, request(port, key, "GET", "/v1/models")))


async def answer(port: int, asked: bytes) -> bytes:
    """The body of an answer that is not streamed."""
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(asked)
    head, _, body = (await reading.read(-1)).partition(b"\r\n\r\n")
    writing.close()
    if b" 20" not in head.split(b"\r\n")[0]:
        raise ValueError((head + body)[:500].decode(errors="replace"))
    return body


def main() -> None:
    what, port, key, count, per_second, *more = sys.argv[1:]
    whom = (int(port), key, int(count), float(per_second))
    if what == "streams":
        seen = asyncio.run(streams(*whom))
    elif what == "followers":
        seen = asyncio.run(followers(*whom, int(more[0]), float(more[1])))
    else:
        seen = asyncio.run(stuck(*whom, int(more[0])))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
