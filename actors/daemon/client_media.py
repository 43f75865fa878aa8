"""Pictures, sound and files as clients send them: data: URLs, base64, addresses and ids to our content parts."""

from __future__ import annotations

import re
from binascii import Error as BadBase64
from binascii import a2b_base64
from typing import Final

from callboard.actors.daemon.api_errors import bad_field
from callboard.protocol.content import Audio, Document, Image, Video

#: RFC 2397, with base64. The media type may have parameters.
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,(.*)", re.DOTALL)
#: Formats of sound by the names that Chat Completions has for them, where the media type is called otherwise.
_SOUNDS: Final = {"mp3": "audio/mpeg", "pcm16": "audio/pcm", "m4a": "audio/mp4"}


def image_of(url: str, param: str) -> Image:
    """A picture by a data: URL or an address. Raises ApiError."""
    return Image(url=url) if _is_address(url) else Image(*_bytes_of(url, param))


def video_of(url: str, param: str) -> Video:
    """A film, likewise."""
    return Video(url=url) if _is_address(url) else Video(*_bytes_of(url, param))


def file_of(data: str, name: str, param: str) -> Document:
    """A file by a data: URL (or an address). A plain text comes as text. Raises ApiError."""
    if _is_address(data):
        return Document(url=data, name=name)
    media_type, encoded = _bytes_of(data, param)
    return Document(media_type, encoded, name=name)


def sound_of(data: str, sound_format: str, param: str) -> Audio:
    """Sound by its base64. Raises ApiError."""
    return Audio(_SOUNDS.get(sound_format, f"audio/{sound_format}"), checked_base64(data, param))


def checked_base64(data: str, param: str) -> str:
    """The base64 as it is. Raises ApiError for what is none."""
    try:
        a2b_base64(data, strict_mode=True)
    except (BadBase64, ValueError):
        raise bad_field(param, f"{param} must be base64") from None
    return data


def _is_address(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _bytes_of(url: str, param: str) -> tuple[str, str]:
    """(media type, base64) of a data: URL."""
    found = _DATA_URL.fullmatch(url)
    if found is None or not found[1]:
        raise bad_field(param, f"{param} must be an http(s) address or data:TYPE;base64,BYTES")
    return found[1], checked_base64(found[2], param)
