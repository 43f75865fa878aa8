"""Parsers and compiled queries, loaded once a process."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import semble_grammars  # type: ignore[import-untyped]
import tree_sitter

from callboard.actors.index.languages import Language
from callboard.protocol.errors import UsageError

#: Where semble-grammars unpacks its libraries. Its unpacking is atomic (temporary file, then rename), so parallel
#: processes may share the folder; only a HOME that cannot be written needs another one.
CACHE_VARIABLE = "SEMBLE_GRAMMARS_CACHE_DIR"


class Grammar(NamedTuple):
    """The parser of a language and the query that finds its symbols."""

    parser: tree_sitter.Parser
    query: tree_sitter.Query


@lru_cache(maxsize=64)
def load(language: Language) -> Grammar:
    """The parser and the symbol query of a language.

    Raises:
        UsageError: the grammar bundle cannot be unpacked or does not fit this platform.
    """
    try:
        grammar = _get(language)
    except semble_grammars.GrammarLoadError:
        grammar = _load_from_fallback(language)
    return Grammar(tree_sitter.Parser(grammar), tree_sitter.Query(grammar, language.query))


def _get(language: Language) -> tree_sitter.Language:
    try:
        grammar = semble_grammars.get_language(language.name)
    except (semble_grammars.UnsupportedPlatformError, semble_grammars.LanguageNotFoundError) as error:
        raise UsageError(f"no {language.name} grammar for this platform: {error}") from error
    assert isinstance(grammar, tree_sitter.Language)
    return grammar


def _load_from_fallback(language: Language) -> tree_sitter.Language:
    """HOME is not writable: unpack into a folder of this user under the temporary directory."""
    folder = Path(tempfile.gettempdir()) / f"callboard-grammars-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        os.environ[CACHE_VARIABLE] = str(folder)
        return _get(language)
    except (OSError, semble_grammars.GrammarLoadError) as error:
        raise UsageError(
            f"cannot unpack the {language.name} grammar ({error}); set {CACHE_VARIABLE} to a writable folder"
        ) from error
