"""The daemon under steady load with faults, for a long time: are its memory, threads and descriptors flat?

    python benchmarks/daemon_soak.py                       # 30 minutes at 50 requests a second
    python benchmarks/daemon_soak.py --minutes 3           # a short one
    python benchmarks/daemon_soak.py --save                # keeps the figures and draws docs/images/soak.svg

The model server (the wire double) asks for a tool in each request, and answers some with errors, stalls and cuts; some
clients leave in the middle of an answer, and some do not read. One call in a hundred hangs until its deadline.
Flat means: the last third of the time needs no more than the second third, but for `NOISE`. Each request of a client
that stays must be answered in full, but for those (`BORNE`) of which the model failed too often in a row. The exit
status is 0 where both are so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from daemon_clients import question, request
from daemon_load import Contender, callboard_before, cpu_of, memory_of

from callboard.actors.testing.wire_double import (
    Call,
    Chance,
    Fault,
    FaultKind,
    Script,
    Tokens,
    Turn,
    WireDouble,
)

PER_SECOND = 50
SAMPLE_SECONDS = 5.0
#: Of one request, before its client gives up; a hung tool has 2 s, a stalled model 5 s.
CLIENT_SECONDS = 60.0
SETTINGS = "stream_idle_timeout_seconds = 5"
#: How a request may end: answered in full, or its client left.
RIGHT_ENDS = {"200", "left"}
#: Each of the four requests of a model call fails with 6.5% (FAULTS), so of two calls 1 in 28,000 requests ends with an
#: error that says so. A few times as many are borne, since they are few.
BORNE = {"200 error": 1e-4}
#: Memory of a process that allocates and frees goes up and down by this share; three threads and five descriptors come
#: and go.
NOISE = {"memory_mb": 0.03, "threads": 0.10, "descriptors": 0.15}
FAULTS = (
    Chance(0.03, Fault(FaultKind.STATUS, status=429, message="Too many requests.", retry_after=0.2)),
    Chance(0.02, Fault(FaultKind.STATUS, status=500)),
    Chance(0.005, Fault(FaultKind.STALL, after=3)),
    Chance(0.01, Fault(FaultKind.CUT, after=3)),
)
TOOLS = '''
import asyncio, random, time
from callboard import tool

@tool(risk="read", timeout=2, effect="repeat")
async def lookup(city: str) -> str:
    """Look a city up."""
    if random.random() < 0.01:
        await asyncio.sleep(30)
    if random.random() < 0.0005:
        time.sleep(30)  # holds its loop, which is replaced
    return f"{city}: rain"
'''


@dataclass(frozen=True)
class Sample:
    """The daemon at one moment."""

    seconds: float
    memory_mb: float
    threads: float
    descriptors: float
    cpu_percent: float


def sample(pid: int, seconds: float, cpu_percent: float) -> Sample:
    threads = next(
        int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Threads" in line
    )
    return Sample(seconds, memory_of(pid), threads, len(os.listdir(f"/proc/{pid}/fd")), cpu_percent)


async def one(contender: Contender, rng: random.Random, ends: Counter[str]) -> None:
    """One client: most read to the end, some leave, some do not read for a while."""
    manner = rng.choices(["reads", "leaves", "stops"], [94, 4, 2])[0]
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            reading, writing = await asyncio.open_connection("127.0.0.1", contender.port)
            writing.write(request(contender.port, contender.key, "POST", "/v1/chat/completions", question()))
            head = await reading.readuntil(b"\r\n\r\n")
            if manner == "leaves":
                writing.close()
                ends["left"] += 1
                return
            if manner == "stops":
                await asyncio.sleep(3)
            body = await reading.read(-1)
            writing.close()
            status = head.split()[1].decode()
            whole = b"[DONE]" in body or b'"error"' in body
            failed = " error" if b'"error"' in body else ""
            ends[status + failed + ("" if whole else " cut")] += 1
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        ends[type(error).__name__] += 1


async def load(contender: Contender, seconds: float, per_second: float) -> tuple[list[Sample], Counter[str]]:
    """Requests at even times, whatever becomes of those before them."""
    rng, ends, open_ = random.Random(7), Counter[str](), set[asyncio.Task[None]]()
    samples: list[Sample] = []
    began = last = time.monotonic()
    cpu = cpu_of(contender.pid)
    sent = 0
    while (now := time.monotonic()) - began < seconds:
        while sent < (now - began) * per_second:
            task = asyncio.ensure_future(one(contender, rng, ends))
            open_.add(task)
            task.add_done_callback(open_.discard)
            sent += 1
        if now - last >= SAMPLE_SECONDS:
            spent = cpu_of(contender.pid)
            samples.append(sample(contender.pid, now - began, (spent - cpu) / (now - last) * 100))
            last, cpu = now, spent
        await asyncio.sleep(0.01)
    if open_:
        await asyncio.wait(open_, timeout=CLIENT_SECONDS)
    ends["never ended"] += len(open_)
    return samples, ends


def thirds(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of each third of the time."""
    size = max(1, len(values) // 3)
    parts = (values[:size], values[size : 2 * size], values[2 * size :])
    first, second, third = (statistics.median(part) if part else 0.0 for part in parts)
    return first, second, third


def judge(samples: Sequence[Sample], ends: Mapping[str, int]) -> bool:
    """Print the thirds of each figure, and how requests ended; True where all are flat and were answered."""
    print(f"{'':12} {'first':>9} {'second':>9} {'third':>9}   third of the time, medians")
    is_right = True
    for name, noise in NOISE.items():
        first, second, third = thirds([getattr(each, name) for each in samples])
        is_flat = third <= second * (1 + noise)
        is_right = is_right and is_flat
        print(f"{name:12} {first:9.1f} {second:9.1f} {third:9.1f}   {'flat' if is_flat else 'GROWS'}")
    wrong = {name: count for name, count in ends.items() if count and name not in RIGHT_ENDS}
    allowed = {name: max(2.0, share * sum(ends.values())) for name, share in BORNE.items()}
    print(f"requests that were not answered in full: {wrong or 'none'}")
    print(f"CPU: {statistics.median(each.cpu_percent for each in samples):.0f}% of a core")
    return is_right and all(count <= allowed.get(name, 0) for name, count in wrong.items())


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Memory, threads and descriptors over time, each by its own scale, as SVG."""
    width, height, colours = 720, 90, {"memory_mb": "#2563eb", "threads": "#16a34a", "descriptors": "#d97706"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * 3 + 30}" font-family="sans-serif">'
    ]
    lines.append('<rect width="100%" height="100%" fill="#ffffff"/>')
    last = samples[-1].seconds
    for row, (name, colour) in enumerate(colours.items()):
        values = [getattr(each, name) for each in samples]
        top, base = max(values) * 1.25, (row + 1) * height
        points = " ".join(
            f"{each.seconds / last * (width - 20) + 10:.1f},{base - value / top * (height - 25):.1f}"
            for each, value in zip(samples, values, strict=True)
        )
        title = f"{name.replace('_mb', ' in MB')}: at the end {values[-1]:.0f}, at the most {max(values):.0f}"
        lines.append(f'<text x="10" y="{base - height + 18}" font-size="13" fill="#111111">{title}</text>')
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(f'<line x1="10" y1="{base}" x2="{width - 10}" y2="{base}" stroke="#999999"/>')
    lines.append(
        f'<text x="10" y="{height * 3 + 20}" font-size="12" fill="#111111">0 to {last / 60:.0f} minutes</text>'
    )
    path.write_text("\n".join([*lines, "</svg>", ""]))


def scripts() -> Script:
    """A call of the tool, then the answer; each a fragment a tick."""
    asks = Turn(calls=(Call("lookup", {"city": "Oslo"}),), fragment=9, usage=Tokens(100, 50))
    says = Turn(" ".join(["word"] * 30), fragment=5, pause=0.01, usage=Tokens(100, 50))
    return Script((asks, says), by_turn=True, chances=FAULTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--per-second", type=float, default=PER_SECOND)
    parser.add_argument("--save", action="store_true", help="keep the figures and the picture in docs/images")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, WireDouble() as double:
        double.play_scripts(scripts())
        tools = Path(folder) / "soak_tools.py"
        tools.write_text(TOOLS)
        with callboard_before(double, Path(folder), "--tools", str(tools), settings=SETTINGS) as contender:
            samples, ends = asyncio.run(load(contender, options.minutes * 60, options.per_second))
            if options.save:
                images = Path(__file__).parent.parent / "docs/images"
                figures = {"ends": dict(ends), "samples": [asdict(each) for each in samples]}
                (images / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
                draw(samples, images / "soak.svg")
            print(f"{options.minutes:g} minutes at {options.per_second:g} requests a second: {dict(ends)}")
            return 0 if judge(samples, ends) else 1


if __name__ == "__main__":
    sys.exit(main())
