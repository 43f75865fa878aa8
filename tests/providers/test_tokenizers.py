"""Which model has which tokenizer, and that its count is the real one."""

from __future__ import annotations

import sys

import pytest
import quicktok  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.providers import tokenizers
from callboard.providers.tokenizers import PIECE_CHARS, counter_for, encoding_of


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("openai/gpt-5", "o200k_base"),
        ("openai/gpt-5-mini-2026-01-01", "o200k_base"),
        ("openai/gpt-5.2", "o200k_base"),
        ("openrouter/openai/gpt-4o-mini", "o200k_base"),
        ("copilot/gpt-4.1", "o200k_base"),
        ("openai/o3", "o200k_base"),
        ("openai/o3-mini", "o200k_base"),
        ("openai/gpt-4-turbo", "cl100k_base"),
        ("openai-chat/gpt-3.5-turbo", "cl100k_base"),
        ("groq/openai/gpt-oss-120b", "o200k_harmony"),
        ("ollama/llama3.1:8b", "llama3"),
        ("together/meta-llama/Llama-3.3-70B-Instruct-Turbo", "llama3"),
        ("ollama/qwen3:4b", "qwen3"),
        ("ollama/qwen2.5-coder:7b", "qwen3"),
        ("ollama/qwen3.5:9b", ""),
        ("openai/gpt-50", ""),
        ("openai/gpt-4oh", ""),
        ("anthropic/claude-sonnet-4-5", ""),
        ("gemini/gemini-2.5-pro", ""),
        ("ollama/llama32k", ""),
        ("offline/gpt-4o", ""),
        ("scripted/gpt-4o", ""),
        ("", ""),
    ],
)
def test_the_encoding_of_a_model(model: str, encoding: str) -> None:
    assert encoding_of(model) == encoding


@pytest.mark.parametrize("encoding", sorted(set(tokenizers.ENCODINGS.values()) - {""}))
def test_each_encoding_ships(encoding: str) -> None:
    assert quicktok.get_encoding(encoding).count("Hello, world!") > 0


@given(st.text())
def test_the_count_is_the_tokenizers_own(text: str) -> None:
    assert counter_for("openai/gpt-4")(text) == quicktok.get_encoding("cl100k_base").count(text)


def test_half_of_a_surrogate_pair_is_counted() -> None:
    assert counter_for("openai/gpt-4")("a\ud800b") > 2


@pytest.mark.parametrize("text", ["-" * 300_000, "word " * 30_000, "年" * 50_000], ids=lambda text: text[:4])
def test_a_long_text_is_counted_in_pieces_and_hardly_differs(text: str) -> None:
    exact = quicktok.get_encoding("cl100k_base").count(text)
    counted = counter_for("openai/gpt-4")(text)
    assert exact <= counted <= exact + 2 * len(text) // PIECE_CHARS + 2


def test_without_the_package_tokens_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quicktok", None)
    tokenizers._vocabulary.cache_clear()
    try:
        assert counter_for("openai/gpt-4") is estimate_tokens
    finally:
        tokenizers._vocabulary.cache_clear()


def test_without_a_tokenizer_tokens_are_estimated() -> None:
    assert counter_for("anthropic/claude-sonnet-4-5") is estimate_tokens
