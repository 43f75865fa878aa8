"""How fast: first index, warm queries against FTS5 in the same run, one changed file, memory.

    python benchmarks/retrieval_speed.py [--lines 1000000] [--queries 200] [--vectors]

With `--vectors` every tile gets one drawn at random, since only time and memory are measured, and the same questions
are asked once more, with their own vectors made by the local model as they come (each is asked once).

The tree is made of the Python files of this environment's installed packages, under other names if they are too few.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy

from callboard.actors.index import CodeIndex
from callboard.actors.index.bulk_embedding import LOCAL_MODEL
from callboard.actors.index.dense import normalized
from callboard.actors.index.lexical import LexicalIndex, stems_of
from callboard.actors.index.nearest import packed
from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileStat, ParsedFile
from callboard.actors.index.tokens import query_words
from callboard.actors.index.vectors import READ_ROWS, VectorCache


def sources() -> Iterator[Path]:
    packages = Path(sysconfig.get_paths()["purelib"])
    while True:
        yield from sorted(path for path in packages.rglob("*.py") if 500 < path.stat().st_size < 300_000)


def make_tree(folder: Path, lines: int) -> tuple[int, int]:
    """Copies files until there are as many lines; returns lines and bytes."""
    packages = Path(sysconfig.get_paths()["purelib"])
    done = size = 0
    for number, path in enumerate(sources()):
        if done >= lines:
            break
        content = path.read_bytes()
        target = folder / f"copy{number // 20_000}" / path.relative_to(packages)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        done += content.count(b"\n")
        size += len(content)
    return done, size


def child_cpu_seconds() -> float:
    """CPU time of the indexing process and its parsers: what other load on the machine does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1_000


def percentiles(times: list[float]) -> str:
    ordered = sorted(times)
    parts = ((share, ordered[int(len(ordered) * share / 100)]) for share in (50, 95, 99))
    return "   ".join(f"p{share} {value:8.2f}" for share, value in parts)


def questions(index: CodeIndex, count: int) -> list[str]:
    """The names of functions, as words, make questions of the length people ask."""
    symbols = index.symbols(kind="function", limit=20_000)
    step = max(1, len(symbols) // count)
    named = [f"where is {s.name.replace('_', ' ')} done in {s.canonical_path.split('.')[-2]}" for s in symbols[::step]]
    return named[:count]


def build_fts5(index: CodeIndex, path: Path) -> sqlite3.Connection:
    """The same chunks with the same words in SQLite's full-text index."""
    db = sqlite3.connect(path)
    db.execute("CREATE VIRTUAL TABLE chunks USING fts5(terms, content='', tokenize='porter unicode61')")
    for root in index.roots:
        for folder, _, names in os.walk(root):
            for name in names:
                status = os.stat(os.path.join(folder, name))
                parsed = parse_file(FileStat(os.path.join(folder, name), root, status.st_size, status.st_mtime_ns))
                if isinstance(parsed, ParsedFile):
                    db.executemany("INSERT INTO chunks(terms) VALUES (?)", [(chunk.terms,) for chunk in parsed.chunks])
    db.commit()
    return db


def fts5_search(db: sqlite3.Connection, question: str) -> None:
    match = " OR ".join(f'"{word}"' for word in query_words(question))
    db.execute("SELECT rowid FROM chunks WHERE chunks MATCH ? ORDER BY bm25(chunks) LIMIT 200", (match,)).fetchall()


def measure_one_file(index: CodeIndex, folder: Path, rounds: int = 30) -> list[float]:
    """From the write of a file until its new word is found."""
    target = folder / "copy0" / "changed.py"
    body = (folder / "copy0").rglob("*.py").__next__().read_text(errors="replace")[:8_000]
    times = []
    for number in range(rounds):
        target.write_text(f"def fresh_marker_{number}():\n    return {number}\n\n\n{body}")

        def until_found(number: int = number) -> None:
            index.refresh(paths=[str(target)])
            assert index.search(f"fresh_marker_{number}", 1)[0].name == f"fresh_marker_{number}"

        times.append(timed_ms(until_found))
    return times


def make_vectors(index: CodeIndex, store: Path) -> None:
    """A vector for every tile, drawn at random."""
    generator = numpy.random.default_rng(0)
    cache = VectorCache(store / "vectors.sqlite")
    digests = [passage.digest for passage in index._parts.store.passages()]
    for first in range(0, len(digests), READ_ROWS):
        some = digests[first : first + READ_ROWS]
        rows = generator.standard_normal((len(some), 384), numpy.float32)
        cache.put(LOCAL_MODEL.name, {key: packed(row) for key, row in zip(some, normalized(rows), strict=True)})
    cache.close()


def measure_vectors(work: Path, store: Path, asked: list[str]) -> None:
    with CodeIndex.open(work, store) as index:
        print(f"                     {index.settle(60)}")
        index.search("warm up", 5)
        print(f"query, with vectors  {percentiles([timed_ms(lambda q=q: index.search(q, 20)) for q in asked])} ms")  # type: ignore[misc]


def memory_mb(folder: Path, store: Path, embedder: str = "None") -> str:
    """Resident memory of a process that opens the index and asks 50 questions, and of the same without an index."""
    program = (
        "import sys\n"
        "from callboard.actors.index import CodeIndex, assemble\n"
        "if sys.argv[3] == 'yes':\n"
        f"  with CodeIndex.open(sys.argv[1], sys.argv[2], embedder={embedder}) as index:\n"
        "    index.warm(10)\n"
        "    for n in range(50): index.search(f'where is the connection {n} closed after an error', 20)\n"
        "    assemble(index, 'where is the connection closed', 4000)\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(status.split('VmHWM:')[1].split()[0]) // 1024)\n"
    )
    results = [
        subprocess.run([sys.executable, "-c", program, folder, store, yes], capture_output=True, text=True, check=True)
        for yes in ("no", "yes")
    ]
    return f"{results[1].stdout.strip()} MB (imports alone {results[0].stdout.strip()} MB)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--vectors", action="store_true", help="measure with a vector for every tile too")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="callboard-speed-"))
    try:
        run(folder, options.lines, options.queries, options.vectors)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, lines: int, query_count: int, vectors: bool) -> None:
    work, store = folder / "work", folder / "store"
    made, size = make_tree(work, lines)
    print(f"{made:,} lines, {size / 1e6:.1f} MB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with CodeIndex.open(work, store, embedder=None) as index:
        start = time.perf_counter()
        summary = index.refresh()
        seconds = time.perf_counter() - start
        cpu = child_cpu_seconds()
        print(f"first index          {seconds:8.1f} s    {cpu:.1f} s of CPU ({size / 1e6 / cpu:.1f} MB a CPU second)")
        print(f"                     {summary.files:,} files, ", end="")
        print(f"{summary.symbols:,} symbols, {summary.chunks:,} chunks")
        asked = questions(index, query_count)
        index.search("warm up", 5)
        cpu_before = time.process_time()
        ours = [timed_ms(lambda q=q: index.search(q, 20)) for q in asked]  # type: ignore[misc]
        cpu_ms = (time.process_time() - cpu_before) * 1_000 / len(asked)
        lexical = LexicalIndex(store / "lexical")
        stems = [dict.fromkeys(stems_of(" ".join(query_words(q)))) for q in asked]
        bare = [timed_ms(lambda s=s: lexical.search(s, 200)) for s in stems]  # type: ignore[misc]
        print(f"refresh, no change   {timed_ms(index.refresh):8.1f} ms")
        changed = measure_one_file(index, work)
        print(f"query, whole search  {percentiles(ours)} ms   {cpu_ms:.2f} ms of CPU on average")
        print(f"query, lexical only  {percentiles(bare)} ms")
        fts5 = build_fts5(index, folder / "fts5.sqlite")
        slow = [timed_ms(lambda q=q: fts5_search(fts5, q)) for q in asked]  # type: ignore[misc]
        print(f"query, FTS5          {percentiles(slow)} ms")
        ratio = statistics.median(slow) / statistics.median(bare)
        whole = statistics.median(slow) / statistics.median(ours)
        print(f"FTS5 / lexical       {ratio:8.1f} x   FTS5 / whole search {whole:.1f} x")
        print(f"one changed file     {percentiles(changed)} ms from write to found")
    if vectors:
        with CodeIndex.open(work, store, embedder=None) as index:
            make_vectors(index, store)
        measure_vectors(work, store, asked)
        print(f"memory with vectors  {memory_mb(work, store, repr('auto'))}")
    disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    print(f"index on disk        {disk / 1e6:8.1f} MB")
    print(f"memory of a reader   {memory_mb(work, store)}")


if __name__ == "__main__":
    main()
