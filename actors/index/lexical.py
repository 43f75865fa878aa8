"""BM25 over the words of chunks, in tantivy. It stores only chunk ids and the words that find them.

tantivy writes a checksum at the end of each of its files and does not look at it again; here it is compared before a
file is used. What has no checksum (meta.json, the list of files) is compared with the fingerprint in the store.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

import tantivy

from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.disk import write_error
from callboard.actors.index.records import digest
from callboard.actors.index.tokens import terms_of

logger = logging.getLogger("callboard.index")

ANALYZER = "code"
#: tantivy's floor for one indexing thread; a small change needs no more.
SMALL_HEAP_BYTES = 15_000_000
#: For a first index: fewer, larger segments.
LARGE_HEAP_BYTES = 60_000_000
#: What a word of the same family counts beside the word itself. On 56 questions not used for tuning MRR .58 -> .60,
#: R@5 .80 -> .84, on the 79 of the benchmark no change; at 1 these fall from .527 to .511.
KIN_WEIGHT = 0.7
META: Final = "meta.json"
_SEGMENT_FILE: Final = re.compile(r"[0-9a-f]{32}\.")
#: The end of each of tantivy's files: length of the footer (JSON with the checksum of what is before it), its mark.
_FOOTER_END: Final = struct.Struct("<II")
_FOOTER_MARK: Final = 1337
#: Bytes read at a time for a checksum: about a millisecond of work.
_READ_BYTES: Final = 1_000_000
#: Files whose checksum was right, by path, with what tells that they are the same ones still. The two actors of a
#: workspace open one index: each file is read once a process.
_checked: dict[str, tuple[int, int, int]] = {}


@lru_cache(maxsize=1)
def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
    return builder.filter(tantivy.Filter.stemmer("english")).build()


@lru_cache(maxsize=1)
def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("file", indexed=True, fast=True)
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
        """Open or make it.

        Raises:
            BrokenIndexError: a file is damaged or missing.
            UsageError: it can be neither written nor read.
        """
        self._folder = folder
        self._links: tempfile.TemporaryDirectory[str] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.verify()
            self._index = self._opened()
            self._index.config_reader("manual")
            self._index.reload()
        except ValueError as error:
            self.close()
            if "Lockfile" in str(error):  # what cannot be made there is no damage
                raise write_error(folder.parent, error) from error
            raise BrokenIndexError(f"the lexical index {folder} is damaged: {error}") from error
        except OSError as error:
            self.close()
            raise write_error(folder.parent, error) from error

    def _opened(self) -> tantivy.Index:
        folder = self._folder
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            # Even to read, tantivy makes a lock file: it gets a folder where it can, with links to what is here.
            self._links = tempfile.TemporaryDirectory(prefix="callboard-index-")
            folder = Path(self._links.name)
            for each in self._folder.iterdir():
                if each.suffix != ".lock":
                    (folder / each.name).symlink_to(each)
        index = tantivy.Index(_schema(), str(folder))
        index.register_tokenizer(ANALYZER, _analyzer())
        return index

    def close(self) -> None:
        if self._links is not None:
            self._links.cleanup()

    def reload(self) -> None:
        """See what has been committed since. Raises BrokenIndexError."""
        self.verify()
        try:
            self._index.reload()
        except (OSError, ValueError) as error:
            raise BrokenIndexError(f"the lexical index {self._folder} is damaged: {error}") from error

    def verify(self) -> None:
        """Compare checksums, of each file once until it changes: about half a millisecond a megabyte.

        Raises:
            BrokenIndexError: a file does not hold what was written.
        """
        for name in self._segment_files():
            path = self._folder / name
            try:
                status = path.stat()
                seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                if _checked.get(str(path)) != seen:
                    _check_footer(path)
                    _checked[str(path)] = seen
            except FileNotFoundError:
                _checked.pop(str(path), None)  # merged into others by a writer meanwhile; or tantivy will miss it

    def _segment_files(self) -> list[str]:
        """Of the last commit."""
        try:
            meta = json.loads((self._folder / META).read_bytes())
            segments = {each["segment_id"].replace("-", "") for each in meta["segments"]}
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokenIndexError(f"the lexical index {self._folder} is damaged: {META}: {error!r}") from error
        return [name for name in os.listdir(self._folder) if name.partition(".")[0] in segments]

    def fingerprint(self) -> bytes:
        """Of the last commit: other bytes after each commit and merge."""
        try:
            return digest((self._folder / META).read_bytes())
        except OSError:
            return b""

    @property
    def document_count(self) -> int:
        return int(self._index.searcher().num_docs)

    def chunk_counts(self) -> Counter[int]:
        """Of each file, as searching sees them."""
        searcher = self._index.searcher()
        if not searcher.num_docs:
            return Counter()
        try:
            found = searcher.search(tantivy.Query.all_query(), searcher.num_docs, count=False).hits
            files = searcher.fast_field_values("file", [address for _, address in found])
        except (OSError, ValueError) as error:
            raise BrokenIndexError(f"the lexical index {self._folder} is damaged: {error}") from error
        return Counter(int(file) for file in files if file is not None)

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
            raise BrokenIndexError(f"the lexical index {self._folder} is damaged: {error}") from error
        pairs = zip(ids, found, strict=True)
        scored = [(int(chunk), float(score)) for chunk, (score, _) in pairs if chunk is not None]
        return sorted(scored, key=lambda each: (-each[1], each[0]))

    def _family(self, stem: str, kin: Sequence[str]) -> tantivy.Query:
        itself, *others = (tantivy.Query.term_query(_schema(), "body", each, "freq") for each in (stem, *kin))
        boosted = [tantivy.Query.boost_query(other, KIN_WEIGHT) for other in others]
        return tantivy.Query.disjunction_max_query([itself, *boosted]) if boosted else itself

    def weights(self, stems: Iterable[str]) -> dict[str, float]:
        """How much each stem says: the logarithm of how many times rarer it is than what all chunks hold."""
        searcher = self._index.searcher()
        count = searcher.num_docs
        return {stem: max(0.0, math.log((count + 1) / (searcher.doc_freq("body", stem) + 0.5))) for stem in stems}

    def writer(self, heap_bytes: int) -> LexicalWriter:
        """Only under the write lock of the layout. Raises UsageError."""
        try:
            return LexicalWriter(self._folder, self._index, self._index.writer(heap_bytes, 1))
        except (OSError, ValueError) as error:
            raise write_error(self._folder.parent, error) from error


class LexicalWriter:
    """The writing side; every method raises UsageError when it cannot be written. Nothing is seen by readers before
    `commit`."""

    def __init__(self, folder: Path, index: tantivy.Index, writer: tantivy.IndexWriter) -> None:
        self._folder = folder
        self._index = index
        self._writer = writer

    def delete_file(self, file: int) -> None:
        # Not delete_documents_by_term: tantivy-py 0.27 makes a signed term of an int, and an unsigned field has none.
        with self._writing():
            self._writer.delete_documents_by_query(tantivy.Query.term_query(_schema(), "file", file, "basic"))

    def clear(self) -> None:
        with self._writing():
            self._writer.delete_all_documents()

    def add_file(self, file: int, chunks: Iterable[tuple[int, str]]) -> None:
        """`chunks` are pairs of chunk id and words."""
        with self._writing():
            for chunk, terms in chunks:
                document = tantivy.Document()
                document.add_unsigned("file", file)
                document.add_unsigned("chunk", chunk)
                document.add_text("body", terms)
                self._writer.add_document(document)

    def commit(self) -> None:
        with self._writing():
            self._writer.commit()
            self._index.reload()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise write_error(self._folder.parent, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with self._writing():
                    # What is merged is not lost, queries stay fast, and nothing is written after this.
                    self._writer.wait_merging_threads()
                    self._index.reload()
        finally:
            # tantivy's own lock is held until the writer is gone, not until it is collected some time later.
            del self._writer
        if kind is not None:
            self._delete_unfinished()

    def _delete_unfinished(self) -> None:
        """Segments that were never committed: on a full disk they would keep the room that is wanted."""
        try:
            committed = json.loads((self._folder / META).read_bytes())["segments"]
            kept = {each["segment_id"].replace("-", "") for each in committed}
            for path in self._folder.iterdir():
                if _SEGMENT_FILE.match(path.name) and path.name.partition(".")[0] not in kept:
                    path.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            logger.warning("unfinished files of the index in %s could not be deleted", self._folder, exc_info=True)


def _check_footer(path: Path) -> None:
    """Raises BrokenIndexError when the checksum at the end of the file is not that of what is before it."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        try:
            stream.seek(-_FOOTER_END.size, os.SEEK_END)
            length, mark = _FOOTER_END.unpack(stream.read())
            body = size - _FOOTER_END.size - length
            if mark != _FOOTER_MARK or body < 0:
                raise ValueError("its end is not tantivy's")
            stream.seek(body)
            expected = json.loads(stream.read(length))["crc"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BrokenIndexError(f"the index file {path} is damaged: {error}") from error
        stream.seek(0)
        actual = 0
        while body > 0:
            piece = stream.read(min(body, _READ_BYTES))
            if not piece:
                break
            actual, body = zlib.crc32(piece, actual), body - len(piece)
    if actual != expected:
        raise BrokenIndexError(f"the index file {path} is damaged: its checksum is another one")
