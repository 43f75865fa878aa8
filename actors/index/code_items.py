"""Items of code (functions, classes, methods ...) found by name, with exact spans: what the tools look up and edit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from callboard.protocol.errors import UsageError

#: Words for a kind, in whatever language the asker thinks, and the kinds of the index that they mean.
KINDS: Final[Mapping[str, frozenset[str]]] = {
    word: frozenset(kinds.split())
    for words, kinds in (
        ("function fn func def procedure sub", "function method"),
        ("method constructor", "method"),
        ("class record object", "class"),
        ("struct structure union", "struct"),
        ("enum enumeration", "enum"),
        ("interface protocol annotation", "interface"),
        ("trait", "trait interface"),
        ("impl implementation", "impl"),
        ("module mod namespace package", "module file"),
        ("file", "file"),
        ("type typedef alias", "type"),
        ("constant const static variable var let", "constant"),
        ("property field attribute", "property"),
        ("macro", "macro"),
    )
    for word in words.split()
}
#: What joins the names of a path, in one language or another; `#` only between names, since it begins a private one in
#: JavaScript.
_SEPARATOR = re.compile(r"::|(?<=\w)#(?=\w)")
#: In front of a path, these name no module.
_RELATIVE = re.compile(r"^(?:(?:crate|self|super)\.)+")


class CodeItem(Struct, frozen=True):
    """One definition. Bytes are those of the file on disk, end exclusive; lines count from 1, inclusive."""

    file: str
    """Absolute."""
    canonical_path: str
    """With the separators of its language: `pkg.client.Client.retry`, `net::Client::retry`."""
    name: str
    kind: str
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    hash: str
    """Of the whole file's bytes when its span was found, in hex (`records.digest`)."""
    language: str = ""
    encoding: str = "utf-8"
    """What the span's bytes are decoded with."""
    ordinal: int = 0
    """Which of the items of this canonical path in this file, counted from 0."""


def kinds_of(word: str) -> frozenset[str]:
    """The index's kinds for a word; none: any kind. Raises UsageError for a word that names no kind."""
    if not word.strip():
        return frozenset()
    kinds = KINDS.get(word.strip().lower())
    if kinds is None:
        raise UsageError(f"kind {word!r} is unknown; give one of {', '.join(sorted(KINDS))}, or none")
    return kinds


def plain_path(name: str) -> str:
    """A name or path as it is compared: with dots, without `()` behind it and `crate::` before it."""
    text = unicodedata.normalize("NFC", name.strip()).removesuffix("()")
    return _RELATIVE.sub("", _SEPARATOR.sub(".", text)).strip(".")
