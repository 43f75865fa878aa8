"""Which model has which tokenizer, and that its count is the real one: by another tokenizer, quicktok."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib
import inspect
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import quicktok  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.providers import tokenizers
from callboard.providers.tokenizers import FOLDER, PIECE_CHARS, VOCABULARIES, counter_for, counter_in, encoding_of

EXACT = sorted(VOCABULARIES.keys() - {"llama3"})
#: What the encodings split texts at. The third is an e and an accent, which Qwen's makes one letter.
PARTS = ["a", "B", "e\u0301", "1", "23", "'s", "'LL", "/", "-", "don't", "世", "한", "", "\n", "\r\n", "\t"]
#: Characters that this Python's Unicode has. Of the others (4,657 of Unicode 15 to 17, letters, marks or digits to
#: one of the tokenizers and to the other not yet), the two need not think the same.
TEXTS = st.text(st.characters(exclude_categories=["Cn", "Cs"]))


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


def exact(text: str, encoding: str = "cl100k_base") -> int:
    return int(quicktok.get_encoding(encoding).count(text))


@pytest.fixture
def not_loaded() -> Iterator[None]:
    """No vocabulary is loaded when the test begins, nor what it made of that when it has ended."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    tokenizers._loaded.cache_clear()
    tokenizers._LOADED.clear()


@pytest.mark.parametrize("encoding", sorted(set(tokenizers.ENCODINGS.values()) - {""}))
def test_each_encoding_ships(encoding: str) -> None:
    count = counter_in(encoding)
    assert count is not None
    assert count("Hello, world!") == exact("Hello, world!", encoding) > 0


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_the_vocabularies_of_openai_are_the_files_that_openai_publishes(name: str) -> None:
    """Written as OpenAI's file, ours has the hash that tiktoken names for it."""
    public = importlib.import_module("tiktoken_ext.openai_public")
    tokens = tokenizers._tokens(gzip.decompress((FOLDER / f"{name}.tokens.gz").read_bytes()))
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    assert hashlib.sha256(b"".join(lines)).hexdigest() in inspect.getsource(getattr(public, name))


@pytest.mark.parametrize("encoding", EXACT)
@given(text=TEXTS)
def test_the_count_is_that_of_another_tokenizer(encoding: str, text: str) -> None:
    count = counter_in(encoding)
    assert count is not None
    assert count(text) == exact(text, encoding)


@pytest.mark.parametrize("encoding", EXACT)
@given(parts=st.lists(st.sampled_from(PARTS)))
def test_so_it_is_for_texts_made_of_what_the_patterns_split_at(encoding: str, parts: list[str]) -> None:
    count = counter_in(encoding)
    assert count is not None
    for joined in ("".join(parts), " ".join(parts)):
        assert count(joined) == exact(joined, encoding)


@pytest.mark.parametrize("encoding", EXACT)
def test_a_long_text_is_cut_where_that_changes_nothing(encoding: str) -> None:
    sources = sorted(Path(tokenizers.__file__).parent.rglob("*.py"))
    text = "".join(path.read_text() for path in sources)
    assert len(text) > 10 * PIECE_CHARS
    count = counter_in(encoding)
    assert count is not None
    assert count(text) == exact(text, encoding)


@given(TEXTS)
def test_a_text_for_llama_3_is_never_counted_too_low(text: str) -> None:
    count = counter_in("llama3")
    assert count is not None
    assert count(text) >= exact(text, "llama3")


def test_code_for_llama_3_is_counted_within_a_percent() -> None:
    text = inspect.getsource(tokenizers)
    assert counter_for("ollama/llama3.1:8b")(text) <= 1.01 * exact(text, "llama3")


def test_half_of_a_surrogate_pair_is_counted() -> None:
    assert counter_for("openai/gpt-4")("a\ud800b") > 2


@pytest.mark.parametrize("text", ["-" * 300_000, "word " * 30_000, "年" * 50_000], ids=lambda text: text[:4])
def test_a_long_text_is_counted_in_pieces_and_hardly_differs(text: str) -> None:
    counted = counter_for("openai/gpt-4")(text)
    assert exact(text) <= counted <= exact(text) + 2 * len(text) // PIECE_CHARS + 2


@pytest.mark.parametrize("blank", [" ", "\t", "\n"])
def test_a_million_blanks_are_counted(blank: str) -> None:
    """On which tiktoken alone panics."""
    assert 1_000 < counter_for("openai/gpt-4o")(blank * 1_000_000) < 100_000


@pytest.mark.fresh_interpreter
def test_no_connection_is_opened_and_no_address_looked_up() -> None:
    program = (
        "import sys\n"
        "sys.addaudithook(lambda event, _: event.startswith('socket.') and sys.exit(f'the tokenizer did {event}'))\n"
        "from callboard.providers.tokenizers import VOCABULARIES, counter_in\n"
        "assert all(counter_in(each)('one two') == 2 for each in VOCABULARIES)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("not_loaded")
class TestFallback:
    """Where there is no usable tokenizer, tokens are estimated, and the log says so once."""

    def test_the_package_is_missing(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setitem(sys.modules, "tiktoken", None)
        with caplog.at_level(logging.INFO, "callboard"):
            assert [counter_for("openai/gpt-4") for _ in range(3)] == [estimate_tokens] * 3
        assert len(caplog.records) == 1
        assert caplog.records[0].levelno == logging.INFO

    def test_the_package_is_broken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "callboard")  # another test may have left it higher
        (tmp_path / "tiktoken.py").write_text("raise LookupError('no table')\n")
        monkeypatch.delitem(sys.modules, "tiktoken", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        assert [counter_for("openai/gpt-4") for _ in range(3)] == [estimate_tokens] * 3
        assert [record.getMessage() for record in caplog.records] == [
            "tokens are estimated, because the tokenizer cannot be loaded: LookupError: no table"
        ]

    def test_a_vocabulary_is_damaged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One bit of a real one; the others still count."""
        caplog.set_level(logging.WARNING, "callboard")
        shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
        damaged = tmp_path / "cl100k_base.tokens.gz"
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        monkeypatch.setattr(tokenizers, "FOLDER", tmp_path)
        assert [counter_for("openai/gpt-4") for _ in range(3)] == [estimate_tokens] * 3
        (record,) = caplog.records
        assert f"{damaged} is damaged" in record.getMessage()
        assert counter_for("openai/gpt-4o")("one two three") == 3

    def test_one_that_may_not_be_loaded_now_is_not(self) -> None:
        assert counter_for("openai/gpt-4", may_load=False) is estimate_tokens
        assert counter_for("openai/gpt-4") is not estimate_tokens
        assert counter_for("openai/gpt-4", may_load=False) is not estimate_tokens


def test_without_a_tokenizer_tokens_are_estimated() -> None:
    assert counter_for("anthropic/claude-sonnet-4-5") is estimate_tokens
