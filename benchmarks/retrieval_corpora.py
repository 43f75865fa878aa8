"""Corpora for retrieval: source trees without their documentation, and the documentation as questions.

The method of CodeSearchNet: the query is the first sentence of a function's docstring, the answer is the function; the
tree that is searched has every docstring and doc comment taken out.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from callboard.actors.index import CodeIndex
from callboard.actors.index.encodings import source_of
from callboard.actors.index.languages import language_of
from callboard.actors.index.parsing import parse_content
from callboard.actors.index.records import FileStat

SEED = 7
MIN_WORDS, MAX_WORDS = 4, 30
MIN_LINES = 3
_DOC_COMMENT = re.compile(rb"\A(?:/\*\*.*?\*/|(?:[ \t]*///[^\n]*\n)+)", re.DOTALL)
_SENTENCE_END = re.compile(r"\.\s|\.$|\n\s*\n|\n\s*[@:*-]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the answer stands: lines from 1, inclusive."""

    path: str
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answers: tuple[Target, ...]


def package_root(name: str) -> Path | None:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def stripped_copy(source: Path, target: Path) -> dict[tuple[str, str], str]:
    """Copies the sources without documentation; returns (file, canonical path) -> first sentence of what was taken."""
    sentences: dict[tuple[str, str], str] = {}
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".py", ".ts", ".js", ".rs") or not path.is_file() or path.name.endswith(".d.ts"):
            continue
        if {"tests", "test", "node_modules", "dist", "build"} & set(path.relative_to(source).parts):
            continue
        relative = path.relative_to(source)
        content = path.read_bytes()
        spans = list(_python_docs(content) if path.suffix == ".py" else _comment_docs(path, source, content))
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        for start, end, _, _ in sorted(spans, reverse=True):
            content = content[:start] + (b"pass" if path.suffix == ".py" else b"") + content[end:]
        copy.write_bytes(content)
        for _, _, name, text in spans:
            if name and (sentence := first_sentence(text)):
                sentences[str(copy), name] = sentence
    return sentences


def _python_docs(content: bytes) -> Iterator[tuple[int, int, str, str]]:
    """Start, end, dotted name within the file (functions only) and text of each docstring."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "") if isinstance(child, ast.stmt) else ""
            pending.append((f"{prefix}.{name}".strip(".") if name else prefix, child))
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is not None:
            doc = node.body[0]
            assert doc.end_lineno is not None
            assert doc.end_col_offset is not None
            first = starts[doc.lineno - 1] + doc.col_offset
            last = starts[doc.end_lineno - 1] + doc.end_col_offset
            yield first, last, "" if isinstance(node, ast.Module | ast.ClassDef) else prefix, text


def _comment_docs(path: Path, root: Path, content: bytes) -> Iterator[tuple[int, int, str, str]]:
    stat = FileStat(str(path), str(root), len(content), 0)
    seen: set[int] = set()
    for symbol in parse_content(stat, source_of(content), language_of(str(path), content), 0).symbols[1:]:
        found = _DOC_COMMENT.match(content[symbol.start_byte : symbol.end_byte])
        if found is None or symbol.start_byte in seen:
            continue
        seen.add(symbol.start_byte)
        text = re.sub(r"^[ \t]*(/\*\*|\*/|///|\*)[ \t]?", "", found.group().decode("utf-8", "replace"), flags=re.M)
        name = symbol.name if symbol.kind in ("function", "method") else ""
        yield symbol.start_byte, symbol.start_byte + found.end(), name, text.replace("*/", "")


def first_sentence(text: str) -> str:
    sentence = " ".join(_SENTENCE_END.split(text.strip(), maxsplit=1)[0].split())
    words = sentence.split()
    return sentence if MIN_WORDS <= len(words) <= MAX_WORDS and sentence.isascii() else ""


def docstring_questions(index: CodeIndex, sentences: dict[tuple[str, str], str], count: int) -> list[Question]:
    """A sample of the sentences whose function is long enough to have a body worth finding."""
    found = []
    for (path, name), sentence in sorted(sentences.items()):
        symbols = index.symbols(name=name.rsplit(".", 1)[-1], path=path, limit=50)
        fitting = [s for s in symbols if s.canonical_path.endswith(name) and s.end_line - s.start_line >= MIN_LINES]
        if len(fitting) == 1:
            target = Target(path, fitting[0].start_line, fitting[0].end_line)
            found.append(Question(sentence, (target,)))
    random.Random(SEED).shuffle(found)
    return found[:count]


def make_corpus(source: Path, folder: Path) -> tuple[Path, dict[tuple[str, str], str]]:
    target = folder / source.name
    shutil.rmtree(target, ignore_errors=True)
    return target, stripped_copy(source, target)


def plain_questions(index: CodeIndex, entries: list[tuple[str, tuple[str, ...]]]) -> list[Question]:
    """Hand-written questions with their answers looked up; one whose answers are not in this version is left out."""
    questions = []
    for text, answers in entries:
        targets = []
        for answer in answers:
            suffix, _, name = answer.rpartition(":")
            symbols = index.symbols(name=name, limit=1_000)
            targets += [Target(s.path, s.start_line, s.end_line) for s in symbols if s.path.endswith("/" + suffix)]
        if targets:
            questions.append(Question(text, tuple(targets)))
    return questions
