"""Counting tokens in a child process, and what happens when that is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import quicktok

from callboard.actors.index import token_count
from callboard.actors.index.token_count import count_tokens, load_ahead

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


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_count_is_the_tokenizers(text: str) -> None:
    assert count_tokens(text) == exact(text)


def test_many_threads_share_the_child() -> None:
    texts = [f"def function_{number}(): pass\n" * number for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count_tokens, texts)) == [exact(text) for text in texts]


def test_a_lost_child_costs_no_count() -> None:
    load_ahead()
    child = token_count._child()
    assert child._helper is not None
    child._helper._process.kill()
    try:
        assert count_tokens("one two three") == exact("one two three")
        assert count_tokens("four") == exact("four")
    finally:
        del token_count._children[os.getpid()]


def test_without_an_interpreter_to_start_the_count_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_count, "_children", {})
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert count_tokens("one two three") == exact("one two three")
