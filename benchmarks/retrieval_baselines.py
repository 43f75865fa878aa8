"""What ours is compared with: a search as with grep, and BM25 over words as they are written."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import tantivy
from retrieval_corpora import Target

from callboard.actors.index.walk import Walk

WINDOW_LINES = 15
_WORD = re.compile(r"[a-z0-9_]{3,}")


class Grep:
    """The windows of 15 lines that hold most of the question's words: what a person does with grep -C."""

    def __init__(self, root: Path) -> None:
        self._lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in Walk(str(root), ""):
            for number, line in enumerate(Path(file.path).read_text(errors="replace").lower().splitlines(), 1):
                for word in set(_WORD.findall(line)):
                    self._lines[word][file.path].append(number)

    def search(self, query: str, k: int) -> list[Target]:
        windows: dict[tuple[str, int], set[str]] = defaultdict(set)
        for word in set(_WORD.findall(query.lower())):
            for path, numbers in self._lines.get(word, {}).items():
                for number in numbers:
                    windows[path, number // WINDOW_LINES].add(word)
        best = sorted(windows.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:k]
        return [Target(path, n * WINDOW_LINES, n * WINDOW_LINES + WINDOW_LINES - 1) for (path, n), _ in best]


class RawBm25:
    """tantivy as it comes, over the same chunks: no splitting, no stems, no names, no stop words."""

    def __init__(self, chunks: list[tuple[Target, str]]) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_unsigned_field("chunk", fast=True)
        builder.add_text_field("body")
        self._index = tantivy.Index(builder.build())
        self._targets = [target for target, _ in chunks]
        with self._index.writer(60_000_000, 1) as writer:
            for number, (_, text) in enumerate(chunks):
                document = tantivy.Document()
                document.add_unsigned("chunk", number)
                document.add_text("body", text)
                writer.add_document(document)
            writer.commit()
        self._index.reload()

    def search(self, query: str, k: int) -> list[Target]:
        words = " ".join(re.findall(r"\w+", query))
        parsed, _ = self._index.parse_query_lenient(words, ["body"])
        searcher = self._index.searcher()
        addresses = [address for _, address in searcher.search(parsed, k).hits]
        return [self._targets[int(n)] for n in searcher.fast_field_values("chunk", addresses) if n is not None]
