"""Counting tokens in a child process, and what happens when that is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import quicktok

import callboard
from callboard.actors.index import token_count
from callboard.actors.index.token_count import FIRST_COUNTED, count_tokens, counted, load_ahead
from callboard.actors.processes.spawning import Helper
from callboard.providers import tokenizers

TEXTS = [
    "",
    "def f():\n    return 1\n",
    "Grüße, 世界 🎉",
    "a b " * 50_000,
    "<|endoftext|>",
    "\x00\x01",
    "half \udce9 pair",
]


def exact(text: str) -> int:
    return int(quicktok.get_encoding("o200k_base").count(text.encode("utf-8", "replace").decode()))


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each question to a helper process."""
    asked: list[int] = []
    ask = Helper.ask

    def heard(helper: Helper, question: bytes, seconds: float) -> bytes:
        asked.append(len(question))
        return ask(helper, question, seconds)

    monkeypatch.setattr(Helper, "ask", heard)
    return asked


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_count_is_the_tokenizers(text: str) -> None:
    assert count_tokens([text]) == [exact(text)]


def test_texts_are_counted_together_in_one_round_trip(round_trips: list[int]) -> None:
    assert count_tokens(TEXTS) == list(map(exact, TEXTS))
    assert count_tokens([]) == []
    assert len(round_trips) == 2


def test_a_search_for_the_first_that_will_do_takes_few_round_trips(round_trips: list[int]) -> None:
    texts = ["word " * number for number in range(100)]
    assert [tokens for _, tokens in counted(texts, str)] == list(map(exact, texts))
    assert len(round_trips) == 5  # 4, 8, 16, 32 and the rest
    round_trips.clear()
    assert next(counted(texts, str)) == ("", 0)
    assert len(round_trips) == 1
    assert FIRST_COUNTED * (2**5 - 1) >= 100 > FIRST_COUNTED * (2**4 - 1)


def test_many_threads_share_the_child() -> None:
    texts = [f"def function_{number}(): pass\n" * number for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count_tokens, [[text] for text in texts])) == [[exact(text)] for text in texts]


def test_a_lost_child_costs_no_count() -> None:
    load_ahead()
    child = token_count._child()
    assert child._helper is not None
    child._helper._process.kill()
    try:
        assert count_tokens(["one two three"]) == [exact("one two three")]
        assert count_tokens(["four", "five"]) == [exact("four"), exact("five")]
    finally:
        del token_count._children[os.getpid()]


def test_without_an_interpreter_to_start_the_count_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_count, "_children", {})
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert count_tokens(["one two three", ""]) == [exact("one two three"), 0]


COUNTS_TWICE = """
import logging
logging.basicConfig(format="%(message)s")
from callboard.actors.index.token_count import count_tokens
from callboard.protocol.prompt_tokens import estimate_tokens
for text in ("one two three", "def f(x): return x"):
    assert count_tokens([text]) == [estimate_tokens(text)]
"""


def test_with_a_damaged_vocabulary_tokens_are_estimated_and_the_log_says_so_once(tmp_path: Path) -> None:
    """In a copy of callboard, whose child process finds the same damage and ends."""
    package = tmp_path / "callboard"
    package.mkdir()
    for entry in Path(callboard.__file__).parent.iterdir():
        if entry.name != "providers":
            (package / entry.name).symlink_to(entry.resolve())
    copied = shutil.copytree(tokenizers.FOLDER.parent, package / "providers")
    with (copied / "vocabularies" / "o200k_base.tokens.gz").open("r+b") as file:
        file.seek(500_000)
        file.write(b"damage")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", COUNTS_TWICE], env=environment, check=True, stderr=subprocess.PIPE, text=True
    )
    (line,) = ran.stderr.splitlines()
    assert line.startswith("tokens are estimated, because the tokenizer cannot be loaded: ")
    assert f"{copied}/vocabularies/o200k_base.tokens.gz is damaged" in line
