"""BM25 over the words of chunks, in tantivy. It stores only chunk ids and the words that find them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import tantivy

from callboard.actors.index.layout import BrokenIndexError
from callboard.actors.index.tokens import terms_of
from callboard.protocol.errors import UsageError

ANALYZER = "code"
#: tantivy's floor for one indexing thread; a small change needs no more.
SMALL_HEAP_BYTES = 15_000_000
#: For a first index: fewer, larger segments.
LARGE_HEAP_BYTES = 60_000_000
#: What a word of the same family counts beside the word itself. On 56 questions not used for tuning MRR .58 -> .60,
#: R@5 .80 -> .84, on the 79 of the benchmark no change; at 1 these fall from .527 to .511.
KIN_WEIGHT = 0.7
#: Above this many segments a writer waits for merging before it closes, so that queries stay fast.
MAX_SEGMENTS = 12


@lru_cache(maxsize=1)
def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
    return builder.filter(tantivy.Filter.stemmer("english")).build()


@lru_cache(maxsize=1)
def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("file", indexed=True)
    builder.add_unsigned_field("chunk", fast=True)
    builder.add_text_field("body", tokenizer_name=ANALYZER, index_option="freq")
    return builder.build()


def stems_of(words: str) -> list[str]:
    """The stem of each of the words (lower case, separated by spaces), as the index holds it."""
    return list(_analyzer().analyze(words))


@lru_cache(maxsize=100_000)
def name_stems(name: str) -> frozenset[str]:
    """The stems of an identifier's parts. Remembered: the same names come up in question after question."""
    return frozenset(stems_of(terms_of(name)))


class LexicalIndex:
    """Reading side; `writer()` gives the writing side."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._index = tantivy.Index(_schema(), str(folder))
            self._index.register_tokenizer(ANALYZER, _analyzer())
            self._index.config_reader("manual")
            self._index.reload()
        except ValueError as error:
            raise BrokenIndexError(f"the lexical index {folder} is broken: {error}") from error
        except OSError as error:
            raise UsageError(f"the lexical index {folder} cannot be used: {error}; name another folder") from error

    def reload(self) -> None:
        """See what has been committed since."""
        self._index.reload()

    @property
    def document_count(self) -> int:
        return int(self._index.searcher().num_docs)

    def search(
        self, stems: Iterable[str], limit: int, kin: Mapping[str, Sequence[str]] | None = None
    ) -> list[tuple[int, float]]:
        """The best chunks by BM25 with their scores, best first; ties by chunk id so that an answer does not depend on
        segments.

        `kin` names stems that stand in for one of the others, for less: the best of them counts, not their sum.
        """
        terms = [(tantivy.Occur.Should, self._family(stem, (kin or {}).get(stem, ()))) for stem in stems]
        if not terms:
            return []
        try:
            searcher = self._index.searcher()
            found = searcher.search(tantivy.Query.boolean_query(terms), limit, count=False).hits
            ids = searcher.fast_field_values("chunk", [address for _, address in found])
        except (OSError, ValueError) as error:
            raise BrokenIndexError(f"the lexical index is broken: {error}; open it again to have it rebuilt") from error
        pairs = zip(ids, found, strict=True)
        scored = [(int(chunk), float(score)) for chunk, (score, _) in pairs if chunk is not None]
        return sorted(scored, key=lambda each: (-each[1], each[0]))

    def _family(self, stem: str, kin: Sequence[str]) -> tantivy.Query:
        itself, *others = (tantivy.Query.term_query(_schema(), "body", each, "freq") for each in (stem, *kin))
        boosted = [tantivy.Query.boost_query(other, KIN_WEIGHT) for other in others]
        return tantivy.Query.disjunction_max_query([itself, *boosted]) if boosted else itself

    def writer(self, heap_bytes: int) -> LexicalWriter:
        """Only under the write lock of the layout."""
        try:
            return LexicalWriter(self._index, self._index.writer(heap_bytes, 1))
        except (OSError, ValueError) as error:
            raise UsageError(f"the lexical index cannot be written: {error}") from error


class LexicalWriter:
    """The writing side. Nothing is seen by readers before `commit`."""

    def __init__(self, index: tantivy.Index, writer: tantivy.IndexWriter) -> None:
        self._index = index
        self._writer = writer

    def delete_file(self, file: int) -> None:
        # Not delete_documents_by_term: tantivy-py 0.27 makes a signed term of an int, and an unsigned field has none.
        self._writer.delete_documents_by_query(tantivy.Query.term_query(_schema(), "file", file, "basic"))

    def clear(self) -> None:
        self._writer.delete_all_documents()

    def add_file(self, file: int, chunks: Iterable[tuple[int, str]]) -> None:
        """`chunks` are pairs of chunk id and words."""
        for chunk, terms in chunks:
            document = tantivy.Document()
            document.add_unsigned("file", file)
            document.add_unsigned("chunk", chunk)
            document.add_text("body", terms)
            self._writer.add_document(document)

    def commit(self) -> None:
        try:
            self._writer.commit()
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write the lexical index: {error}; free some space and index again") from error
        self._index.reload()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._index.searcher().num_segments > MAX_SEGMENTS:
            self._writer.wait_merging_threads()
            self._index.reload()
        # tantivy's own lock is held until the writer is gone, not until it is collected some time later.
        del self._writer
