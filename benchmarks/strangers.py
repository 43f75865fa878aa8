"""How well a stranger is answered: questions that paraphrase, about repositories whose sources are at hand.

    python benchmarks/strangers.py --root fastify=DIR --root jsoup=DIR    # stranger_questions.toml says which there are
    python benchmarks/strangers.py --sources DIR --stores DIR              # all that are in DIR/NAME; indexes are kept
    python benchmarks/strangers.py --sources DIR --words benchmarks/stranger_words.json  # and with words of a model

stranger_words.json has four further queries for each question but fastify's, written by a language model (Claude) that
had read the question alone. It knows these projects, as most models do: of private code it would know less.

Printed for the tuning half and the test half, for each peer that is installed (retrieval_baselines.py; not with
`--ours`) and for ours without vectors, with those that are made first (and the CPU seconds and the time that these
take) and with all: MRR@10 / R@1 / R@5 / R@20 of code questions and of how-to questions. For
ours: the share of code questions whose right span is whole in a context of 16,000 tokens, and the shares of questions
that are told to have no answer here: of those that have one, of those about something that such a project might have
and this one has not, and of those about the other projects. Last, how many of all contexts have more tokens than
their budget, counted by a tokenizer that callboard does not use (quicktok, extra `dev`).
"""

from __future__ import annotations

import argparse
import re
import resource
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
from retrieval import all_chunks, ours, ranks
from retrieval_baselines import peers
from retrieval_contexts import TOKEN_BUDGET, Contexts
from retrieval_corpora import Question, Target

from callboard.actors.index import CodeIndex

SETTLE_SECONDS = 3_600.0
SLICE_SECONDS = 0.5
STRANGERS = tomllib.loads(Path(__file__).with_name("stranger_questions.toml").read_text())
"""By corpus: its language, source and half, and its questions, each a kind, a text and answers."""


def targets(index: CodeIndex, answers: Sequence[str]) -> Iterator[Target]:
    """The places of `file suffix:symbol` or `file suffix:heading`."""
    for answer in answers:
        suffix, _, name = answer.partition(":")
        for symbol in index.symbols(name=re.sub(r"[`*]", "", name), limit=1_000):
            if symbol.path.endswith(f"/{suffix}"):
                yield Target(symbol.path, symbol.start_line, symbol.end_line)


class Tally:
    """Results of all corpora, by half, what was measured and with what."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, str, str], list[int | None]] = defaultdict(list)
        self.shares: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
        self.contexts = Contexts()

    def show(self) -> None:
        print("\nMRR@10 / R@1 / R@5 / R@20")
        for (half, kind, adapter), places in self.ranks.items():
            print(f"  {half:8} {kind:8} {adapter:22} {figures(places)}  n={len(places)}")
        print(f"shares (whole: in a context of {TOKEN_BUDGET:,} tokens; told: that nothing fits)")
        for (half, what, adapter), found in self.shares.items():
            print(f"  {half:8} {what:28} {adapter:16} {sum(found) / len(found):.2f}  n={len(found)}")
        print(self.contexts)


def figures(places: Sequence[int | None]) -> str:
    count = max(1, len(places))
    mrr = sum(1 / place for place in places if place is not None and place <= 10) / count
    within = [sum(place is not None and place <= most for place in places) / count for most in (1, 5, 20)]
    return " / ".join([f"{mrr:.3f}", *(f"{share:.2f}" for share in within)])


def made_ready(index: CodeIndex) -> str:
    """Makes the vectors that are made first; what that took."""
    index.refresh()
    start, before = time.monotonic(), children_seconds()
    while not (state := index.make_vectors(SLICE_SECONDS)).is_ready:
        if state.note:
            raise SystemExit(str(state))
    seconds = time.monotonic() - start
    assert index._dense is not None
    index._dense.maker.close()  # its processes end, and their time counts
    index.warm(SETTLE_SECONDS)
    return f"{state.made:,} tiles until ready: {children_seconds() - before:.0f} s of CPU, {seconds:.0f} s"


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    name: str, root: Path, store: Path, tally: Tally, further: Mapping[str, Sequence[str]], *, with_peers: bool
) -> None:
    half = STRANGERS[name]["half"]
    with (
        tempfile.TemporaryDirectory(prefix="callboard-strangers-") as other,
        CodeIndex.open(root, other) as first,
        CodeIndex.open(root, store, embedder=None) as words,
        CodeIndex.open(root, store) as dense,
    ):
        summary = words.refresh()
        print(f"{name}: {summary.files:,} files, {summary.chunks:,} tiles; {made_ready(first)}", flush=True)
        print(f"  {dense.settle(SETTLE_SECONDS)}", flush=True)
        mine = {"ours, words": words, "ours, first vectors": first, "ours, vectors": dense}
        searches = peers(root, all_chunks(words)) if with_peers else {}
        searches |= {adapter: ours(index) for adapter, index in mine.items()}
        if further:
            searches |= {f"{adapter}, words of a model": ours(index, further) for adapter, index in mine.items()}
        asked: dict[str, list[Question]] = defaultdict(list)
        for kind, text, *answers in STRANGERS[name]["questions"]:
            asked[kind].append(Question(text, tuple(targets(words, answers))))
        for kind, adapter in ((kind, adapter) for kind in ("code", "howto") for adapter in searches):
            found = ranks(searches[adapter], [each for each in asked[kind] if each.answers])
            tally.ranks[half, kind, adapter] += found
            print(f"  {kind:8} {adapter:22} {figures(found)}", flush=True)
        sets: dict[str, Sequence[str]] = {
            "told: answerable": [each.text for each in asked["code"]],
            "told: absent here": [each.text for each in asked["absent"]],
            "told: of other projects": questions_of_others(name, half),
        }
        for adapter, index in mine.items():
            whole = [tally.contexts.is_whole(index, each) for each in asked["code"] if each.answers]
            tally.shares[half, "whole", adapter] += whole
            for what, texts in sets.items():
                tally.shares[half, what, adapter] += tally.contexts.told_nothing(index, texts)


def questions_of_others(name: str, half: str) -> list[str]:
    """Code questions about the other projects of a half."""
    return [
        text
        for other, corpus in STRANGERS.items()
        if other != name and corpus["half"] == half
        for kind, text, *_ in corpus["questions"]
        if kind == "code"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="NAME=DIR", help="where a corpus is")
    parser.add_argument("--sources", type=Path, help="a folder with a folder NAME for each corpus")
    parser.add_argument("--stores", type=Path, help="where indexes are kept for the next run")
    parser.add_argument("--words", type=Path, help="JSON: further queries by question")
    parser.add_argument("--ours", action="store_true", help="without the peers")
    parser.add_argument("--half", choices=("tuning", "test"), help="only this half")
    options = parser.parse_args()
    roots = {
        name: options.sources / name for name in STRANGERS if options.sources and (options.sources / name).is_dir()
    }
    roots |= {name: Path(path) for name, path in (each.split("=", 1) for each in options.root)}
    if unknown := sorted(set(roots) - set(STRANGERS)):
        parser.error(f"there are no questions about {unknown[0]}; there are some about {', '.join(STRANGERS)}")
    tally, further = Tally(), orjson.loads(options.words.read_bytes()) if options.words else {}
    with tempfile.TemporaryDirectory(prefix="callboard-strangers-") as folder:
        for name, root in roots.items():
            if options.half in (None, STRANGERS[name]["half"]):
                store = (options.stores or Path(folder)).resolve() / name
                measure(name, root.resolve(), store, tally, further, with_peers=not options.ours)
    tally.show()


if __name__ == "__main__":
    main()
