"""A vector that is not there is unknown: what holds the words of a question is found first, and fits."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from callboard.actors.index import CodeIndex, assemble, vector_making
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.fit import AskedWords, fit_of
from callboard.actors.index.ranking import order, worth
from callboard.actors.index.store import ChunkRow
from callboard.actors.index.tokens import query_words, terms_of
from callboard.protocol.code_fences import ContextFit

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

SECONDS = 60.0
DIMENSIONS = 1_024
"""So many that two words are never near each other by chance."""
QUESTION = "where is the penguin glacier thawed?"
GLACIER = '''
def thaw_glacier(penguin):
    """Each penguin has a glacier that is thawed here."""
    sample = penguin.glacier.thawed()
    return sample.warm()
'''
TOPICS = ("journal", "socket", "parser", "token", "budget", "folder", "thread", "signal", "mailbox", "actor")


class Words(Embedder):
    """A vector for each word, and their mean for a text: near is what shares words."""

    model = "words"
    batch_size = 8
    fails = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        if type(self).fails:
            raise OSError("refused")
        return numpy.array([_meant(text) for text in texts], dtype=numpy.float32)

    def close(self) -> None:
        pass


def _meant(text: str) -> Vectors:
    terms = dict.fromkeys(terms_of(" ".join(query_words(text))).split())
    words = [numpy.random.default_rng(zlib.crc32(word.encode())).normal(size=DIMENSIONS) for word in terms]
    total = numpy.sum(words, axis=0) if words else numpy.ones(DIMENSIONS)
    return numpy.asarray(total / numpy.linalg.norm(total), dtype=numpy.float32)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for topic in TOPICS:
        functions = (
            f"def {verb}_{topic}(where):\n    '''Where the {topic} is {verb}ed.'''\n"
            + "".join(f"    {topic}_{n} = {verb}(where, '{topic}', {n})\n" for n in range(12))
            for verb in ("open", "read", "count", "lock")
        )
        (folder / f"{topic}.py").write_text("\n".join(functions))
    return folder


@pytest.fixture
def index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CodeIndex]:
    monkeypatch.setattr(Words, "fails", False)
    with CodeIndex.open(workspace, embedder=EmbeddingModel("words", Words, Words)) as opened:
        yield opened


def glacier(index: CodeIndex) -> None:
    (Path(index.roots[0]) / "glacier.py").write_text(GLACIER)
    index.refresh()


def all_known(index: CodeIndex) -> None:
    glacier(index)
    assert not index.settle(SECONDS).missing


def none_made(index: CodeIndex) -> None:
    glacier(index)


def half_made(index: CodeIndex) -> None:
    """All but those of the file that is asked for, which is among the least likely."""
    index.refresh()
    assert not index.settle(SECONDS).missing
    (Path(index.roots[0]) / "tests").mkdir()
    (Path(index.roots[0]) / "tests" / "test_glacier.py").write_text(GLACIER)
    index.refresh()
    assert index.make_vectors(0.0).missing


def a_new_file(index: CodeIndex) -> None:
    index.refresh()
    assert not index.settle(SECONDS).missing
    glacier(index)


def a_changed_file(index: CodeIndex) -> None:
    changed = Path(index.roots[0]) / "journal.py"
    index.refresh()
    assert not index.settle(SECONDS).missing
    changed.write_text(changed.read_text() + GLACIER)
    index.refresh()


def a_renamed_file(index: CodeIndex) -> None:
    all_known(index)
    (Path(index.roots[0]) / "glacier.py").rename(Path(index.roots[0]) / "renamed.py")
    index.refresh()


def removed_vectors(index: CodeIndex) -> None:
    all_known(index)
    assert index._dense is not None
    index._dense._cache.forget("words")


def the_model_fails_at_the_file(index: CodeIndex) -> None:
    index.refresh()
    assert not index.settle(SECONDS).missing
    glacier(index)
    Words.fails = True
    assert "refused" in index.settle(SECONDS).note
    Words.fails = False


def the_model_fails_at_the_question(index: CodeIndex) -> None:
    all_known(index)
    Words.fails = True


def an_index_built_again(index: CodeIndex) -> None:
    all_known(index)
    index._layout.condemn("for the test")
    index.refresh()


SITUATIONS = (
    all_known,
    none_made,
    half_made,
    a_new_file,
    a_changed_file,
    a_renamed_file,
    removed_vectors,
    the_model_fails_at_the_file,
    the_model_fails_at_the_question,
    an_index_built_again,
)


@pytest.mark.parametrize("happens", SITUATIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("question", [QUESTION, "thaw the glacier of a penguin"], ids=["sentence", "words"])
def test_what_holds_all_words_is_first_and_fits(
    index: CodeIndex, happens: Callable[[CodeIndex], None], question: str
) -> None:
    happens(index)
    answer = assemble(index, [question], 4_000)
    assert answer.context[0].name == "thaw_glacier"
    assert answer.fit is not ContextFit.NOTHING


def test_what_holds_nothing_of_a_question_is_still_said_to_fit_nothing(index: CodeIndex) -> None:
    a_new_file(index)
    assert assemble(index, ["how are fingerprints of passports compared at airports?"], 4_000).fit is ContextFit.NOTHING


def test_vectors_that_are_made_for_others_do_not_change_the_order_of_what_has_none(
    index: CodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every share of vectors that are made, the place that holds all words is the first."""
    monkeypatch.setattr(vector_making, "GROUP", 4)
    index.refresh()
    glacier(index)
    assert index._dense is not None
    while True:
        moments = iter((0.0, 0.5, 1.5))
        state = index._dense.maker.make(1.0, lambda: next(moments))  # noqa: B023  used at once
        index.warm(SECONDS)
        assert index.search(QUESTION, 1)[0].name == "thaw_glacier", state
        if not state.missing:
            break


def row(number: int, code_chars: int = 2_000) -> ChunkRow:
    whole = (0, code_chars, b"")
    name = f"f{number}"
    return ChunkRow(
        f"/w/m{number}.py", 0, code_chars, 1, 9, name, name, "function", b"", "/w", "python", "utf-8", code_chars,
        number, whole, number,
    )  # fmt: skip


def test_one_that_is_likely_has_the_benefit_of_the_doubt_and_an_unlikely_one_has_not() -> None:
    lexical = {1: 10.0, 2: 6.0, 3: 6.0}
    dense = {1: 0.3, 2: 0.65}
    reached = worth(row(1))
    likely = order({1: row(1), 2: row(2), 3: row(3)}, lexical, {}, dense, reached=reached)
    assert [found.chunk for _, found in likely] == [3, 2, 1]
    unlikely = order({1: row(1), 2: row(2), 3: row(3, 100)}, lexical, {}, dense, reached=reached)
    assert [found.chunk for _, found in unlikely] == [2, 1, 3]
    slightly = {1: row(1), 2: row(2), 3: row(3, 400), 4: row(4, 100)}
    dense[4] = 0.0  # a still less likely one, which a question has asked for
    assert [found.chunk for _, found in order(slightly, lexical, {}, dense, reached=reached)] == [2, 1, 3, 4]
    all_made = order(slightly, lexical, {}, dense, reached=worth(row(4, 100)))
    assert [found.chunk for _, found in all_made] == [3, 2, 1, 4]


def test_an_unknown_place_is_judged_by_itself_and_a_known_one_by_its_nearness() -> None:
    words = {"glacier": 5.0, "penguin": 5.0}
    full, empty = frozenset(words), frozenset[str]()
    far = {(f"/w/{n}.py", 0): 0.05 for n in range(6)}
    others = [(place, empty) for place in far]
    asked = AskedWords({word: word for word in words}, words, far)
    assert fit_of([asked], [(("/w/new.py", 0), full), *others]) is ContextFit.GOOD
    assert fit_of([asked], [(("/w/new.py", 0), empty), *others]) is ContextFit.NOTHING
    assert fit_of([asked], [(("/w/0.py", 0), full), *others[1:]]) is ContextFit.NOTHING  # it is known to be far away
    none_known = AskedWords(asked.words, words, {})
    assert fit_of([none_known], [(("/w/new.py", 0), full), *others]) is ContextFit.UNSURE
