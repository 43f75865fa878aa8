"""After any sequence of edits, renames, deletions and restarts the incremental index equals a fresh one."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from callboard.actors.index import CodeIndex

NAMES = [
    "a.py",
    "pkg/b.py",
    "pkg/__init__.py",
    "c.rs",
    "notes.md",
    "pkg/deep/d.go",
    "e.bin",
    ".gitignore",
    "pkg/.gitignore",
]
TEXTS = [
    b"def alpha():\n    return beta()\n",
    b"class Gamma:\n    def alpha(self):\n        pass\n\n    def delta(self): ...\n",
    b"fn epsilon() { zeta(); }\n",
    b"def broken(:\n  x = (\n",
    b"# eta theta\n\nplain words about alpha\n",
    b"\0binary",
    b"caf\xe9 = 1\ndef iota(): pass\n",
    b"package p\nfunc Kappa() {}\n",
    b"*.bin\npkg/deep\n",
    b"!b.py\na.py\n",
    b"",
]
QUERIES = ["alpha", "beta gamma", "delta", "epsilon zeta", "eta theta words", "iota", "kappa", "broken"]

View = dict[str, list[tuple[object, ...]]]


def view(index: CodeIndex) -> View:
    """All that a caller can see, without ids and times."""
    hits: View = {
        query: sorted(
            (hit.path, hit.start_byte, hit.end_byte, hit.start_line, hit.canonical_path, hit.digest)
            for hit in index.search(query, 50)
        )
        for query in QUERIES
    }
    symbols = [
        (s.path, s.kind, s.canonical_path, s.ordinal, s.start_byte, s.end_byte, s.digest)
        for s in index.symbols(limit=999)
    ]
    edges = [(e.kind, e.source, e.target, e.path) for s in index.symbols(limit=999) for e in index.edges(s)]
    return {**hits, "symbols": list(symbols), "edges": list(edges)}


class IncrementalIndex(RuleBasedStateMachine):
    files = Bundle("files")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="callboard-test-"))
        self.work = self.folder / "work"
        self.work.mkdir()
        self.index = self.open("incremental")
        self.index.refresh()

    def open(self, store: str) -> CodeIndex:
        return CodeIndex.open(self.work, self.folder / store, embedder=None)

    @rule(name=st.sampled_from(NAMES), text=st.sampled_from(TEXTS))
    def write(self, name: str, text: bytes) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        (self.work / name).unlink(missing_ok=True)

    @rule(old=st.sampled_from(NAMES), new=st.sampled_from(NAMES))
    def rename(self, old: str, new: str) -> None:
        if (self.work / old).exists():
            (self.work / new).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.work / old, self.work / new)

    @rule()
    def delete_folder(self) -> None:
        shutil.rmtree(self.work / "pkg", ignore_errors=True)

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=3))
    def refresh_some(self, names: list[str]) -> None:
        self.index.refresh(paths=[str(self.work / name) for name in names])

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = self.open("incremental")

    @rule()
    def is_as_a_fresh_one(self) -> None:
        self.index.refresh()
        fresh = self.open("fresh")
        try:
            fresh.refresh()
            assert view(self.index) == view(fresh)
            assert self.index._parts.lexical.document_count == fresh._parts.lexical.document_count
        finally:
            fresh.close()
            shutil.rmtree(self.folder / "fresh")

    @invariant()
    def spans_are_inside_what_was_indexed(self) -> None:
        for hit in self.index.search("alpha", 50):
            assert 0 <= hit.start_byte < hit.end_byte
            assert 1 <= hit.start_line <= hit.end_line

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)


TestIncrementalIndex = IncrementalIndex.TestCase
TestIncrementalIndex.settings = settings(
    max_examples=examples(20),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
