"""What the daemon gives to a client and wants back unchanged: a text with a code that only its own key makes.

It is signed (HMAC-SHA256), not encrypted: the text is a summary of the client's own conversation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

_KEY_BYTES: Final = 32
_CODE_BYTES: Final = hashlib.sha256().digest_size
#: In front of the text that is signed, so that no code counts for another purpose.
_PURPOSE: Final = b"callboard compaction 1\0"


def new_key() -> bytes:
    """A random key."""
    return secrets.token_bytes(_KEY_BYTES)


class SummarySeal:
    """Signs and checks with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, text: str) -> str:
        """The text and its code, in base64."""
        data = text.encode()
        return base64.urlsafe_b64encode(self._code(data) + data).decode()

    def open(self, sealed: str) -> str | None:
        """The text; None where another key has signed it, or where it was changed."""
        try:
            found = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
            text = found[_CODE_BYTES:].decode()
        except (binascii.Error, ValueError):
            return None
        is_ours = hmac.compare_digest(found[:_CODE_BYTES], self._code(found[_CODE_BYTES:]))
        return text if is_ours else None

    def _code(self, data: bytes) -> bytes:
        return hmac.digest(self._key, _PURPOSE + data, "sha256")
