"""A line of shell as the simple commands in it, by a real grammar (tree-sitter-bash, of the extra `index`).

The grammar was made for editors and forgives much, so three things are asked of a line before it counts as understood:
no error in the tree; nothing between its leaves but blanks; and the same words by a second reader (shlex). Of what is
left out here (here-documents, comments, loops, functions) the commands are found too, and the line counts as unclear.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

#: A longer line is a program; it is not looked into.
MAX_LINE_CHARS: Final = 10_000
#: Commands in commands, such as `sh -c "sh -c ..."`, deeper than this are not looked into.
MAX_DEPTH: Final = 6

#: Nodes that do nothing but join or hold what is in them.
_JOINING: Final = """
    program list pipeline subshell negated_command redirected_statement command command_name word number string
    string_content raw_string concatenation file_redirect file_descriptor variable_assignment variable_name
    variable_assignments
"""
_OF_WORDS: Final = """
    word number string raw_string ansi_c_string translated_string concatenation simple_expansion expansion
    command_substitution arithmetic_expansion process_substitution brace_expression extglob_pattern regex
    test_operator special_variable_name
"""
_NEUTRAL: Final = frozenset(_JOINING.split())
_WORDS: Final = frozenset(_OF_WORDS.split())
_OPERATORS: Final = "();<>|&\n"
#: The home of a user; `~+` and `~-` are other folders.
_HOME: Final = re.compile(r"~(?:[A-Za-z_][A-Za-z0-9_.-]*)?(?:/|$)")
_ESCAPED: Final = re.compile(r"\\(\n|.)", re.DOTALL)
#: A brace, and behind it a character of four bytes of UTF-8: the grammar's scanner reads memory that is not its own
#: then, and mostly the process dies (tree-sitter/tree-sitter-bash issue 337). No other line of 1,400,000 did.
_KILLS_THE_PARSER: Final = re.compile(r"\{.*[\U00010000-\U0010ffff]", re.DOTALL)
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\([$`"\\\n])')


class Word(Struct, frozen=True):
    """One word of a command."""

    source: str
    text: str | None
    """As the command gets it; None where that is only known when it runs: an expansion, or a pattern of files."""
    is_tilde: bool = False
    """Does it begin with a ~ that the shell replaces? Then `text` has it, too."""


class Redirection(Struct, frozen=True):
    """`>file`, `2>&1`, `<file`."""

    operator: str
    target: Word


class SimpleCommand(Struct, frozen=True):
    """Words that are run as one command."""

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    """In front of it; without words: of the shell itself."""


class ShellLine(Struct):
    """What is in a line."""

    commands: list[SimpleCommand] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    unclear: str = ""
    """Why there may be more in it than was found; "" if there is not."""


def read_line(line: str) -> ShellLine:
    """The commands of a line. Never raises for what it is."""
    if len(line) > MAX_LINE_CHARS:
        return ShellLine(unclear=f"a command of more than {MAX_LINE_CHARS:,} characters")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line):
        return ShellLine(unclear="control characters")
    if _KILLS_THE_PARSER.search(line):
        return ShellLine(unclear="a character above U+FFFF behind a brace")
    try:
        data = line.encode()
    except UnicodeEncodeError:
        return ShellLine(unclear="characters that are not UTF-8")
    parser = _parser()
    if parser is None:
        return ShellLine(unclear='commands are read by a grammar of the extra "index", which is not installed')
    root = parser.parse(data).root_node
    found = ShellLine()
    leaves = list(_take(root, found))
    if root.has_error:
        found.unclear = "it is not complete, or not of the shell"
    elif not found.unclear and not _is_whole(data, leaves):
        found.unclear = "parts of it are not understood"
    elif not found.unclear and _all_known(found) and _readings_differ(root, line):
        found.unclear = "it can be read in two ways"
    return found


@lru_cache(maxsize=1)
def _parser() -> Parser | None:
    from callboard.actors.index.grammars import NoGrammarError, grammar_for  # noqa: PLC0415 - the extra `index`

    try:
        grammar = grammar_for("bash")
    except NoGrammarError:  # nothing is understood then
        return None
    import tree_sitter  # noqa: PLC0415 - likewise

    return tree_sitter.Parser(grammar)


def _all_known(found: ShellLine) -> bool:
    words = [word for command in found.commands for word in command.words]
    words += [word for command in found.commands for _, word in command.assignments]
    return all(word.text is not None for word in (*words, *(each.target for each in found.redirections)))


def _take(node: Node, found: ShellLine) -> Iterator[Node]:
    """Take in what the node and those in it say; gives the leaves."""
    if node.is_named and node.type not in _NEUTRAL and not found.unclear:
        found.unclear = f"{'an' if node.type[0] in 'aeiou' else 'a'} {node.type.replace('_', ' ')}"
    if node.type == "command":
        found.commands.append(_command(node))
    elif node.type == "variable_assignment" and (node.parent is None or node.parent.type != "command"):
        found.commands.append(SimpleCommand((), (_assignment(node),)))
    elif node.type == "file_redirect":
        found.redirections.append(_redirection(node))
    if not node.children:
        yield node
    for child in node.children:
        yield from _take(child, found)


def _command(node: Node) -> SimpleCommand:
    words: list[Word] = []
    assignments: list[tuple[str, Word]] = []
    for child in node.children:
        if child.type == "variable_assignment":
            assignments.append(_assignment(child))
        elif child.type == "command_name":
            words.extend(_word(each) for each in child.children)
        elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            words.append(_word(child))
    return SimpleCommand(tuple(words), tuple(assignments))


def _assignment(node: Node) -> tuple[str, Word]:
    name, _, value = _text(node).partition("=")
    held = [child for child in node.children if child.type in _WORDS]
    return name, _word(held[-1]) if held else Word(value, value)


def _redirection(node: Node) -> Redirection:
    operator = next((child.type for child in node.children if not child.is_named), "")
    held = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    return Redirection(operator, _word(held[0]) if len(held) == 1 else Word(_text(node), None))


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _word(node: Node) -> Word:
    source = _text(node)
    tilde = source.startswith("~") and node.type in ("word", "concatenation")
    is_known = not tilde or _HOME.match(source) is not None
    return Word(source, _value(node) if is_known else None, tilde)


def _value(node: Node) -> str | None:
    """What a word stands for; None where that is only known when it runs."""
    source = _text(node)
    if source == "{}":
        return source
    if node.type == "concatenation":
        parts = [_value(child) for child in node.children]
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None
    if node.type == "raw_string":
        return source[1:-1]
    if node.type == "string":
        plain = _ESCAPED_IN_QUOTES.sub("", source[1:-1])
        if re.search(r"[$`]", plain) or not source.endswith('"'):
            return None
        return _ESCAPED_IN_QUOTES.sub(lambda found: found[1].replace("\n", ""), source[1:-1])
    if node.type in ("word", "number"):
        if re.search(r"[*?\[\]{}$`'\"]", _ESCAPED.sub("", source)):
            return None
        return _ESCAPED.sub(lambda found: found[1].replace("\n", ""), source)
    return None


def _is_whole(data: bytes, leaves: list[Node]) -> bool:
    """Is there nothing between the leaves but blanks?"""
    at = 0
    for leaf in sorted(leaves, key=lambda each: each.start_byte):
        if data[at : leaf.start_byte].replace(b"\\\n", b"").strip(b" \t\n"):
            return False
        at = max(at, leaf.end_byte)
    return not data[at:].replace(b"\\\n", b"").strip(b" \t\n")


def _readings_differ(root: Node, line: str) -> bool:
    """Does shlex find other words or operators in the line? Only asked where all words are known."""
    reader = shlex.shlex(line.replace("\\\n", ""), posix=True, punctuation_chars=_OPERATORS)
    reader.whitespace, reader.commenters, reader.whitespace_split = " \t", "", True
    try:
        second = list(reader)
    except ValueError:  # a quote that is not closed
        return True
    return _joined(_tokens(root)) != _joined(second)


def _tokens(node: Node) -> Iterator[str]:
    """The words, as they are known, and the operators, in their order."""
    if node.type == "variable_assignment":
        name, word = _assignment(node)
        yield f"{name}={word.text}"
    elif node.type in _WORDS:
        yield _value(node) or ""
    elif not node.children:
        yield _text(node)
    else:
        for child in node.children:
            yield from _tokens(child)


def _joined(tokens: Iterable[str]) -> list[str]:
    """With neighbouring operators as one, and without line ends, which only one of the readers has as tokens."""
    joined: list[str] = []
    follows_operator = False
    for token in tokens:
        text = token.strip("\n") if not token.strip(_OPERATORS) else token
        is_operator = bool(token) and not token.strip(_OPERATORS)
        if is_operator and not text:
            continue
        if is_operator and follows_operator:
            joined[-1] += text
        else:
            joined.append(text)
        follows_operator = is_operator
    return joined


def program_name(word: str) -> str:
    """Of the first word of a command: without its folder."""
    return os.path.basename(word)
