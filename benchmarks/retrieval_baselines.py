"""What ours is compared with: a search as with grep, ripgrep itself, BM25 by two libraries, and semble.

bm25s (with PyStemmer) and semble are no requirements of callboard: `pip install bm25s PyStemmer semble`. semble's model
is downloaded at first use; where that cannot be done, its words alone are searched, and the name says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import tantivy
from retrieval_corpora import Target

from callboard.actors.index.walk import Walk

Search = Callable[[str, int], list[Target]]

WINDOW_LINES = 15
_WORD = re.compile(r"[a-z0-9_]{3,}")


def peers(root: Path, chunks: list[tuple[Target, str]]) -> dict[str, Search]:
    """All that are installed, over the files of a workspace and the tiles that ours has made of them."""
    found: dict[str, Search] = {"grep": Grep(root).search}
    if shutil.which("rg"):
        found["ripgrep"] = Ripgrep(root).search
    found["tantivy, as it comes"] = TantivyBm25(chunks, "default").search
    found["tantivy, en_stem"] = TantivyBm25(chunks, "en_stem").search
    if find_spec("bm25s") and find_spec("Stemmer"):
        found["bm25s, 40 lines"] = Bm25sWindows(root).search
    if find_spec("semble"):
        semble = Semble(root)
        found[semble.name] = semble.search
    return found


def windows(matches: Iterable[tuple[str, int, Iterable[str]]], k: int) -> list[Target]:
    """The stretches of 15 lines with the most words, out of (path, line, words in it)."""
    held: dict[tuple[str, int], set[str]] = defaultdict(set)
    for path, line, words in matches:
        held[path, line // WINDOW_LINES].update(words)
    best = sorted(held.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:k]
    return [Target(path, n * WINDOW_LINES, n * WINDOW_LINES + WINDOW_LINES - 1) for (path, n), _ in best]


class Ripgrep:
    """`rg` with every word of the question: what a person, or a model with a shell, does."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def search(self, query: str, k: int) -> list[Target]:
        patterns = [f"--regexp={word}" for word in sorted(set(_WORD.findall(query.lower())))]
        command = ["rg", "--json", "--ignore-case", "--fixed-strings", *patterns, "--", str(self._root)]
        printed = subprocess.run(command, capture_output=True, check=False).stdout
        return windows(self._matches(printed.splitlines()), k)

    @staticmethod
    def _matches(lines: Iterable[bytes]) -> Iterable[tuple[str, int, Iterable[str]]]:
        for line in lines:
            event = json.loads(line)
            data = event["data"]
            if event["type"] == "match" and "text" in data["path"]:
                words = {each["match"].get("text", "").lower() for each in data["submatches"]}
                yield data["path"]["text"], data["line_number"], words


class Grep:
    """The windows of 15 lines that hold most of the question's words: what a person does with grep -C."""

    def __init__(self, root: Path) -> None:
        self._lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in Walk(str(root), ""):
            for number, line in enumerate(Path(file.path).read_text(errors="replace").lower().splitlines(), 1):
                for word in set(_WORD.findall(line)):
                    self._lines[word][file.path].append(number)

    def search(self, query: str, k: int) -> list[Target]:
        matches = (
            (path, number, (word,))
            for word in set(_WORD.findall(query.lower()))
            for path, numbers in self._lines.get(word, {}).items()
            for number in numbers
        )
        return windows(matches, k)


class TantivyBm25:
    """tantivy over the same tiles with a tokenizer of its own: no splitting, no names, no stop words."""

    def __init__(self, chunks: list[tuple[Target, str]], tokenizer: str) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_unsigned_field("chunk", fast=True)
        builder.add_text_field("body", tokenizer_name=tokenizer)
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


class Bm25sWindows:
    """bm25s over windows of 40 lines: words split as identifiers are, English stems and stop words."""

    LINES = 40

    def __init__(self, root: Path) -> None:
        import bm25s  # type: ignore[import-not-found]  # noqa: PLC0415  no requirement
        import Stemmer  # type: ignore[import-not-found]  # noqa: PLC0415

        self._library, self._stemmer = bm25s, Stemmer.Stemmer("english")
        self._targets: list[Target] = []
        texts = []
        for file in Walk(str(root), ""):
            lines = Path(file.path).read_text(errors="replace").splitlines()
            for first in range(0, len(lines), self.LINES):
                part = lines[first : first + self.LINES]
                self._targets.append(Target(file.path, first + 1, first + len(part)))
                texts.append(" ".join(part))
        self._index = bm25s.BM25()
        self._index.index(self._tokens(texts), show_progress=False)

    def _tokens(self, texts: list[str]) -> object:
        split = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text) for text in texts]
        return self._library.tokenize(split, stopwords="en", stemmer=self._stemmer, show_progress=False)

    def search(self, query: str, k: int) -> list[Target]:
        found, _ = self._index.retrieve(self._tokens([query]), k=min(k, len(self._targets)), show_progress=False)
        return [self._targets[int(each)] for each in found[0]]


class Semble:
    """semble over code and docs, with its model; where that cannot be had, its words alone."""

    def __init__(self, root: Path) -> None:
        from semble import ContentType, SembleIndex  # type: ignore[import-not-found]  # noqa: PLC0415  no requirement

        self._root, content = root, [ContentType.CODE, ContentType.DOCS]
        try:
            self._index = SembleIndex.from_path(root, content)
            self.name, self._share = "semble", None
        except OSError:  # of the hub that cannot be reached
            self._index = SembleIndex.from_path(root, content, model_path=_empty_model())
            self.name, self._share = "semble, words alone", 0.0

    def search(self, query: str, k: int) -> list[Target]:
        found = self._index.search(query, k, alpha=self._share)
        return [
            Target(str(self._root / each.chunk.file_path), each.chunk.start_line, each.chunk.end_line) for each in found
        ]


def _empty_model() -> str:
    """A model whose vectors say nothing, which semble needs to make an index at all."""
    import numpy  # noqa: PLC0415
    from model2vec import StaticModel  # type: ignore[import-not-found]  # noqa: PLC0415
    from tokenizers import Tokenizer, models  # noqa: PLC0415

    folder = tempfile.mkdtemp(prefix="callboard-semble-")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, "[UNK]"))
    StaticModel(numpy.ones((2, 4), numpy.float32), tokenizer).save_pretrained(folder)
    return folder
