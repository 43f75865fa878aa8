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
from callboard.actors.index.token_count import (
    FEW_BYTES,
    FIRST_COUNTED,
    count_tokens,
    counted,
    most_tokens,
)
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
    texts = ["word " * number for number in range(1, 101)]
    assert [tokens for _, tokens in counted(texts, str, 0)] == list(map(exact, texts))
    assert len(round_trips) == 5  # 4, 8, 16, 32 and the rest
    round_trips.clear()
    assert next(counted(texts, str, 0)) == ("word ", exact("word "))
    assert len(round_trips) == 1
    assert FIRST_COUNTED * (2**5 - 1) >= 100 > FIRST_COUNTED * (2**4 - 1)


def test_what_has_no_more_bytes_than_it_may_have_tokens_is_not_counted(round_trips: list[int]) -> None:
    short, long = "Grüße, 世界 \udce9 ", "Grüße, 世界 " * 9
    assert list(counted([short, short], str, 20)) == [(short, 18), (short, 18)]
    assert round_trips == []
    assert list(counted([short, long, short], str, 20)) == [(short, 18), (long, exact(long)), (short, exact(short))]
    assert len(round_trips) == 1


@pytest.mark.parametrize("text", [*TEXTS, "".join(map(chr, range(0x4E00, 0x4F00))), "\U0001f9ff" * 99, " \n\t" * 99])
def test_no_text_has_more_tokens_than_most_tokens_says(text: str) -> None:
    assert most_tokens([text]) >= count_tokens([text])


def test_the_vocabulary_is_loaded_ahead_unless_there_are_only_a_few_small_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(token_count, "_child", lambda: begun.append(True))

    def loads(*folders: Path) -> bool:
        begun.clear()
        token_count.load_ahead(folders)
        return bool(begun)

    assert not loads(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a.py").write_text("a" * FEW_BYTES)
    assert not loads(tmp_path)
    (tmp_path / "b.py").write_text("b")
    assert loads(tmp_path)
    assert loads(tmp_path / "nowhere")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    assert loads(tmp_path / "folder")


def test_many_threads_share_the_child() -> None:
    texts = [f"def function_{number}(): pass\n" * number for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count_tokens, [[text] for text in texts])) == [[exact(text)] for text in texts]


def test_a_lost_child_costs_no_count() -> None:
    count_tokens(["one"])
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
