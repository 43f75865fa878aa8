"""The order of hits: what a place is worth, and which words find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex
from callboard.actors.index.ranking import WantedAnswer, prior
from callboard.actors.index.tokens import kin_of, query_words

CODE = prior("src/pool.py", "python", "function")


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("src/pool.pyi", "python"),
        ("types/pool.d.ts", "typescript"),
        ("deps/lua/src/pool.c", "c"),
        ("tests/pool.py", "python"),
        ("src/pool_test.go", "go"),
        ("spec/pool_spec.rb", "ruby"),
        ("src/PoolSpec.scala", "scala"),
        ("src/pool.spec.ts", "typescript"),
        ("docs/pool.md", "text"),
        ("src/pool_pb2.py", "python"),
    ],
)
def test_an_implementation_comes_first(path: str, language: str) -> None:
    assert prior(path, language, "function") < CODE


@pytest.mark.parametrize("path", ["src/input_spec.py", "api/PodSpec.java", "src/latest.py", "src/protest.py"])
def test_what_only_sounds_like_a_test_is_none(path: str) -> None:
    assert prior(path, "python", "function") == CODE


def test_asked_for_tests_they_are_worth_as_much() -> None:
    assert prior("src/pool_test.go", "go", "function", wanted=WantedAnswer.TESTS) == CODE


@pytest.mark.parametrize(
    ("word", "kin"),
    [("recovery", "recover"), ("parsed", "parser"), ("parser", "parse"), ("resolve", "resolver"), ("writes", "writer")],
)
def test_the_family_of_a_word(word: str, kin: str) -> None:
    assert kin in kin_of(word)


@pytest.mark.parametrize("word", ["user", "error", "body", "py", "sha256", "\u00fcber"])
def test_words_without_a_family(word: str) -> None:
    assert not {"us", "err", "bod"} & set(kin_of(word))


def test_prepositions_are_not_looked_for() -> None:
    assert query_words("Where does recovery replay the log after a crash?") == ["recovery", "replay", "log", "crash"]


BODY = "".join(f"    total = total + item[{n}] * weight[{n}]\n" for n in range(20))
FILES = {
    "pool.rs": f"fn drop_idle(item: &X) {{\n{BODY}}}\n\n"
    f"#[cfg(test)]\nmod tests {{\n    fn drop_idle_twice() {{\n{BODY}    drop_idle(drop_idle(idle))\n}}\n}}\n",
    "recover.py": f"def recover_log(item, weight):\n    total = 0\n{BODY}    return total\n",
}


@pytest.fixture
def index(tmp_path: Path) -> CodeIndex:
    root = tmp_path / "repo"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    index = CodeIndex.open(root, tmp_path / "store", embedder=None)
    index.refresh()
    return index


def test_tests_within_the_file_come_after_what_they_test(index: CodeIndex) -> None:
    names = [hit.name for hit in index.search("drop idle") if hit.path.endswith(".rs")]
    assert names.index("drop_idle") < names.index("drop_idle_twice")


def test_a_question_finds_the_family_of_its_words(index: CodeIndex) -> None:
    assert index.search("Where is the recovery?")[0].name == "recover_log"


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("How do I add a provider?", WantedAnswer.GUIDE),
        ("The check fails in my cluster. What must I change?", WantedAnswer.GUIDE),
        ("Show me an example of a tool", WantedAnswer.GUIDE),
        ("How can one program act as several tools?", WantedAnswer.CODE),
        ("How does it know what I should see?", WantedAnswer.CODE),
        ("Which tests cover the parser?", WantedAnswer.TESTS),
    ],
)
def test_what_kind_of_answer_is_wanted_is_told_by_the_words(question: str, wanted: WantedAnswer) -> None:
    assert WantedAnswer.by(question) is wanted


@pytest.mark.parametrize(
    ("questions", "wanted"),
    [
        (["how do I log in?", "login session cookie"], [WantedAnswer.GUIDE] * 2),
        (["login session cookie", "fake login for tests", "how to log in"], [WantedAnswer.GUIDE] * 3),
        (["where is a login checked?", "fake login for tests"], [WantedAnswer.CODE, WantedAnswer.TESTS]),
        ([], []),
    ],
)
def test_other_ways_to_ask_for_a_guide_ask_for_one_too(questions: list[str], wanted: list[WantedAnswer]) -> None:
    assert WantedAnswer.of_all(questions) == wanted
