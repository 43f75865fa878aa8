"""Pictures and files that are asked about: `ask --image FILE --file FILE`."""

from __future__ import annotations

import base64
import mimetypes
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from callboard import Audio, Document, Image, Video
from callboard.protocol.errors import UsageError

#: What the largest provider takes inline (Gemini: requests of 20 MB; OpenAI and Anthropic 32 MB).
MAX_FILE_BYTES: Final = 20_000_000
Part = Image | Audio | Video | Document
_KINDS: Final[Mapping[str, type[Part]]] = {"image": Image, "audio": Audio, "video": Video}


def attached(images: Iterable[Path], files: Iterable[Path]) -> list[Part]:
    """The parts, pictures first. Raises UsageError for a file that cannot be read, or is none of what it should be."""
    return [*(_part(path, "--image") for path in images), *(_part(path, "--file") for path in files)]


def _part(path: Path, option: str) -> Part:
    data = _read(path, option)
    media_type = mimetypes.guess_type(path.name)[0] or _by_content(data)
    kind = media_type.partition("/")[0]
    if option == "--image" and kind != "image":
        raise UsageError(f"{option}: {path} is no picture by its name ({media_type}); give it as --file")
    if kind == "text" or media_type == "application/json":
        return Document(text=data.decode("utf-8", "replace"), name=path.name)
    return _KINDS.get(kind, Document)(media_type, base64.b64encode(data).decode(), name=path.name)


def _read(path: Path, option: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise UsageError(f"{option}: {path} is not a file; name one")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror or error}") from None
    if not data:
        raise UsageError(f"{option}: {path} is empty")
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{option}: {path} is larger than {MAX_FILE_BYTES:,} bytes; give less of it")
    return data


def _by_content(data: bytes) -> str:
    """Of a file whose name does not tell: text, where it is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"
