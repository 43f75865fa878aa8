"""The converted embedding model: made once, compared with its hash, and done without where it cannot be made."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

from callboard.actors.index import integer_model, minilm
from callboard.actors.index.minilm import MODEL_SHA256, LocalEmbedder, convert_ahead

TEXTS = ["delete a user account", "read a date from text", "", "retry a request that failed " * 20]

pytestmark = pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "callboard" / "models"


def put_damaged(models: Path) -> Path:
    damaged = models / f"{MODEL_SHA256[:16]}-int8-{integer_model.VERSION}-{'0' * 64}.onnx"
    damaged.write_bytes(b"something else")
    return damaged


@dataclass(frozen=True)
class Conversion:
    plain: Any
    """The vectors of the model that was not yet converted."""
    damaged: Path
    old: Path
    new: Path
    made: set[Path]
    """What else was in the folder afterwards."""


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversion]:
    """In a folder with a damaged model and with what killed conversions have left; it takes some seconds of CPU."""
    home = tmp_path_factory.mktemp("home")
    models = home / ".cache" / "callboard" / "models"
    old, new = models / "old.converting", models / "new.converting"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "plain.onnx").write_bytes(b"half")
    hours_ago = time.time() - 2 * integer_model.LEFTOVER_SECONDS
    os.utime(old, (hours_ago, hours_ago))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("HOME", str(home))
        plain = LocalEmbedder(threads=1).embed(TEXTS)
        damaged = put_damaged(models)
        convert_ahead()
        yield Conversion(plain, damaged, old, new, set(models.iterdir()) - {old, new})


def test_it_is_made_once_and_gives_nearly_the_vectors_of_the_other(conversion: Conversion) -> None:
    (file,) = conversion.made
    assert integer_model.kept_model(MODEL_SHA256) == file
    assert file.stat().st_mode & 0o777 == 0o600
    converted = LocalEmbedder(threads=1).embed(TEXTS)
    assert not numpy.array_equal(conversion.plain, converted)
    assert (conversion.plain * converted).sum(axis=1).min() > 0.97
    before = file.stat()
    convert_ahead()
    assert file.stat() == before


def test_a_damaged_one_is_not_loaded(models: Path) -> None:
    models.mkdir(parents=True)
    damaged = put_damaged(models)
    assert integer_model.kept_model(MODEL_SHA256) is None
    assert not damaged.exists()


def test_a_damaged_one_is_made_again(conversion: Conversion) -> None:
    (file,) = conversion.made
    assert file != conversion.damaged


def test_what_a_killed_conversion_left_is_deleted_by_a_later_one(conversion: Conversion) -> None:
    assert not conversion.old.exists()
    assert conversion.new.exists()


def test_where_it_cannot_be_kept_the_model_works_without_it(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    models.parent.mkdir(parents=True)
    models.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "callboard.index"):
        convert_ahead()
    assert "works at half its speed: it cannot be converted" in caplog.text
    assert LocalEmbedder(threads=1).embed(TEXTS).shape == (4, 384)


def test_a_model_that_cannot_be_converted_is_said(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "other.onnx"
    source.write_bytes(b"not a model")
    with caplog.at_level(logging.WARNING, "callboard.index"):
        integer_model.convert(source, "f" * 64)
    assert "it cannot be converted" in caplog.text
    assert integer_model.kept_model("f" * 64) is None
    assert list(models.iterdir()) == []
