"""A line of shell as the simple commands in it, by a real grammar (tree-sitter-bash, of the extra `index`).

The grammar was made for editors and forgives much, so three things are asked of a line before it counts as understood:
no error in the tree; nothing between its leaves but blanks; and the same words by a second reader (shlex). A loop over
words is read once for each of them, so that its commands have them as words. Of what is left out here (here-documents,
functions, `case`) the commands are found too, and the line counts as unclear.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

#: A longer line is a program; it is not looked into.
MAX_LINE_CHARS: Final = 10_000
#: Commands in commands, such as `sh -c "sh -c ..."`, deeper than this are not looked into.
MAX_DEPTH: Final = 6
#: Commands of one line, those of a loop once for each of its words.
MAX_COMMANDS: Final = 500

#: Nodes that do nothing but join or hold what is in them.
_JOINING: Final = """
    program list pipeline subshell negated_command redirected_statement command command_name word number string
    string_content raw_string concatenation file_redirect file_descriptor variable_assignment variable_name
    variable_assignments simple_expansion special_variable_name command_substitution herestring_redirect comment
    compound_statement do_group if_statement elif_clause else_clause while_statement for_statement test_command
    unary_expression binary_expression parenthesized_expression test_operator extglob_pattern regex
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
#: Names that a loop or `read` may set: such as mean something to a shell or a program are of capitals, or end so.
LOOP_NAME: Final = re.compile(r"(?!.*proxy)[a-z][a-z0-9_]*")
#: Variables whose values are no secrets.
_PLAIN_VARIABLES_WORDS: Final = """
    ? # $ ! 0 - _ PWD OLDPWD HOME USER LOGNAME SHELL LANG PATH HOSTNAME
"""
_PLAIN_VARIABLES: Final = frozenset(_PLAIN_VARIABLES_WORDS.split())
#: What stays one word, and the same, where it stands without quotes.
_PLAIN_VALUE: Final = re.compile(r"[\w./@%+=:,-]+")
#: A pattern of files that means the same to Python.
_PATTERN: Final = re.compile(r"(?=.*[*?])[\w./@%+=:,*?-]+")
_ARITHMETIC: Final = re.compile(r"\$\(\([\d\s+*/%()-]*\)\)")
_KILLS_THE_PARSER: Final = re.compile(r"\{.*[\U00010000-\U0010ffff]", re.DOTALL)
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\([$`"\\\n])')


class Word(Struct, frozen=True):
    """One word of a command."""

    source: str
    text: str | None
    """As the command gets it; None where that is only known when it runs: an expansion, or a pattern of files."""
    is_tilde: bool = False
    """Does it begin with a ~ that the shell replaces? Then `text` has it, too."""
    pattern: str = ""
    """Of files: it stands for those that there are, or for itself."""
    is_shown: bool = False
    """Not known before it runs, but no secret either: what a command prints, a plain variable."""


class Redirection(Struct, frozen=True):
    """`>file`, `2>&1`, `<file`."""

    operator: str
    target: Word


class SimpleCommand(Struct, frozen=True):
    """Words that are run as one command."""

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    """In front of it; without words: of the shell itself."""
    given: Word | None = None
    """A here-string."""
    repeats: bool = False
    """Does a `while` run it any number of times?"""


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
    found = ShellLine(unclear=_not_understood(root))
    _Collector(found).take(root, {})
    leaves = list(_leaves(root))
    if root.has_error:
        found.unclear = "it is not complete, or not of the shell"
    elif not found.unclear and not _is_whole(data, leaves):
        found.unclear = "parts of it are not understood"
    elif not found.unclear and _readings_differ(root, data):
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


def _not_understood(node: Node) -> str:
    """The first thing in it that is not; "" where all is."""
    if node.is_named and node.type == "arithmetic_expansion" and _ARITHMETIC.fullmatch(_text(node)):
        return ""
    is_known = _CHECKED[node.type](node) if node.type in _CHECKED else node.type in _NEUTRAL
    if node.is_named and not is_known:
        return f"{'an' if node.type[0] in 'aeiou' else 'a'} {node.type.replace('_', ' ')}"
    return next(filter(None, map(_not_understood, node.children)), "")


#: Of which only some are understood.
_CHECKED: Final[Mapping[str, Callable[[Node], bool]]] = {
    "for_statement": lambda node: (
        _text(node.children[0]) == "for"
        and node.child_by_field_name("value") is not None
        and LOOP_NAME.fullmatch(_text(_field(node, "variable"))) is not None
    ),
    "test_command": lambda node: node.children[0].type in ("[", "[["),
    "command_substitution": lambda node: node.children[0].type == "$(",
    "expansion": lambda node: re.fullmatch(r"\$\{\w+\}", _text(node)) is not None,
}


def _field(node: Node, name: str) -> Node:
    found = node.child_by_field_name(name)
    return node if found is None else found


def _leaves(node: Node) -> Iterator[Node]:
    if not node.children:
        yield node
    for child in node.children:
        yield from _leaves(child)


Bound = Mapping[str, "Word"]
"""Variables of loops, with what they stand for in the turn that is read."""


class _Collector:
    """Takes in what a tree says."""

    def __init__(self, found: ShellLine) -> None:
        self._found = found
        self._whiles = 0

    def take(self, node: Node, bound: Bound) -> None:
        """The node and those in it."""
        if len(self._found.commands) > MAX_COMMANDS:
            self._found.unclear = self._found.unclear or f"more than {MAX_COMMANDS} commands"
            return
        if node.type == "for_statement":
            self._take_for(node, bound)
            return
        if node.type == "while_statement":
            self._whiles += 1
            bound = {**bound, **dict.fromkeys(_names_read(node), Word("", None, is_shown=True))}
        if node.type == "command":
            self._add(_command(node, bound))
        elif node.type == "test_command":
            self._add(SimpleCommand(tuple(_test_words(node, bound))))
        elif node.type == "variable_assignment" and (node.parent is None or node.parent.type != "command"):
            self._add(SimpleCommand((), (_assignment(node, bound),)))
        elif node.type == "file_redirect":
            self._found.redirections.append(_redirection(node, bound))
        for child in node.children:
            self.take(child, bound)
        if node.type == "while_statement":
            self._whiles -= 1

    def _add(self, command: SimpleCommand) -> None:
        self._found.commands.append(replace(command, repeats=self._whiles > 0))

    def _take_for(self, node: Node, bound: Bound) -> None:
        """Its body once for each of its words."""
        name, values, body = _field(node, "variable"), node.children_by_field_name("value"), _field(node, "body")
        for value in values:
            self.take(value, bound)
        for value in values:
            self.take(body, {**bound, _text(name): _word(value, bound)})
        if body is node or not values:
            self._found.unclear = self._found.unclear or "a loop without words"


def _names_read(node: Node) -> Iterator[str]:
    """Of `while read NAME`."""
    condition = node.child_by_field_name("condition")
    if condition is not None and condition.type == "command":
        words = [word.text or "" for word in _command(condition, {}).words]
        if words[:1] == ["read"]:
            yield from (word for word in words[1:] if LOOP_NAME.fullmatch(word))


def _command(node: Node, bound: Bound) -> SimpleCommand:
    words: list[Word] = []
    assignments: list[tuple[str, Word]] = []
    given: Word | None = None
    for child in node.children:
        if child.type == "variable_assignment":
            assignments.append(_assignment(child, bound))
        elif child.type == "command_name":
            words.extend(_word(each, bound) for each in child.children)
        elif child.type == "herestring_redirect":
            given = _word(child.children[-1], bound)
        elif child.type not in ("file_redirect", "heredoc_redirect"):
            words.append(_word(child, bound))
    return SimpleCommand(tuple(words), tuple(assignments), given)


def _test_words(node: Node, bound: Bound) -> Iterator[Word]:
    """Of `[ ... ]` or `[[ ... ]]`."""
    for child in node.children:
        if child.type in ("extglob_pattern", "regex"):
            text = _text(child)
            yield Word(text, None if re.search(r"[$`]", text) else text)
        elif child.type in _WORDS and child.type != "test_operator":
            yield _word(child, bound)
        elif child.children:
            yield from _test_words(child, bound)
        else:
            yield Word(_text(child), _text(child))


def _assignment(node: Node, bound: Bound) -> tuple[str, Word]:
    name, _, value = _text(node).partition("=")
    held = [child for child in node.children if child.type in _WORDS]
    return name, _word(held[-1], bound) if held else Word(value, value)


def _redirection(node: Node, bound: Bound) -> Redirection:
    operator = next((child.type for child in node.children if not child.is_named), "")
    held = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    return Redirection(operator, _word(held[0], bound) if len(held) == 1 else Word(_text(node), None))


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _word(node: Node, bound: Bound) -> Word:
    source = _text(node)
    tilde = source.startswith("~") and node.type in ("word", "concatenation")
    if tilde and _HOME.match(source) is None:
        return Word(source, None, is_tilde=True)
    if (text := _value(node)) is not None:
        return Word(source, text, tilde)
    if not tilde and node.type == "word" and _PATTERN.fullmatch(source):
        return Word(source, None, pattern=source)
    parts = [_part(each, bound) for each in _parts_of(node)]
    if all(part.text is not None for part in parts):
        return Word(source, "".join(part.text or "" for part in parts), tilde)
    if all(part.pattern or _PLAIN_VALUE.fullmatch(part.text or "") for part in parts):
        return Word(source, None, pattern="".join(part.pattern or part.text or "" for part in parts))
    return Word(source, None, tilde, is_shown=all(part.is_shown or part.text is not None for part in parts))


def _parts_of(node: Node) -> Iterable[Node]:
    return node.children if node.type == "concatenation" else (node,)


def _part(node: Node, bound: Bound) -> Word:
    """What it stands for."""
    source = _text(node)
    if (text := _value(node)) is not None:
        return Word(source, text)
    if node.type == "word" and _PATTERN.fullmatch(source):
        return Word(source, None, pattern=source)
    if node.type == "string":
        return _of_string(node, bound)
    found = _expanded(node, bound)
    if found.text is not None and not _PLAIN_VALUE.fullmatch(found.text):
        return Word(source, None, is_shown=True)  # several words, or a pattern
    return found


def _of_string(node: Node, bound: Bound) -> Word:
    """What is in double quotes, around expansions."""
    parts: list[Word] = []
    data, at = node.text or b"", 1
    inner = [child for child in node.children if child.type in _EXPANSIONS]
    for child in inner:
        begin, end = child.start_byte - node.start_byte, child.end_byte - node.start_byte
        parts += [_quoted(data[at:begin].decode()), _expanded(child, bound)]
        at = end
    parts.append(_quoted(data[at:-1].decode()))
    source = _text(node)
    if all(part.text is not None for part in parts):
        return Word(source, "".join(part.text or "" for part in parts))
    patterns = [part for part in parts if part.pattern or part.text]
    if all(part.pattern or _PLAIN_VALUE.fullmatch(part.text or "") for part in patterns) and any(
        part.pattern for part in patterns
    ):
        return Word(source, None, pattern="".join(part.pattern or part.text or "" for part in patterns))
    return Word(source, None, is_shown=all(part.is_shown or part.text is not None for part in parts))


_EXPANSIONS: Final = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def _expanded(node: Node, bound: Bound) -> Word:
    """Within quotes."""
    source = _text(node)
    if node.type in ("simple_expansion", "expansion"):
        name = source.strip("${}")
        return bound.get(name, Word(source, None, is_shown=name in _PLAIN_VARIABLES))
    return Word(source, None, is_shown=node.type in ("command_substitution", "arithmetic_expansion"))


def _quoted(text: str) -> Word:
    """What stands in double quotes; a `$` that nothing follows is one."""
    plain = _ESCAPED_IN_QUOTES.sub("", text)
    if re.search(r"\$[\w({?#@*!$'\"-]|`", plain):
        return Word(text, None)
    return Word(text, _ESCAPED_IN_QUOTES.sub(lambda found: found[1].replace("\n", ""), text))


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
        if any(child.type in _EXPANSIONS for child in node.children) or not source.endswith('"'):
            return None
        return _quoted(source[1:-1]).text
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


def _readings_differ(root: Node, data: bytes) -> bool:
    """Does shlex find other words or operators in the line? Comments aside, which end where the line ends."""
    text = bytearray(data)
    for leaf in _leaves(root):
        if leaf.type == "comment":
            before = data[: leaf.start_byte][-1:]
            if before and before not in b" \t\n;&|()":
                return True
            text[leaf.start_byte : leaf.end_byte] = b" " * (leaf.end_byte - leaf.start_byte)
    try:
        return _joined(_tokens(root)) != _joined(_shlex(text.decode()))
    except ValueError:  # a quote that is not closed
        return True


def _shlex(text: str) -> list[str]:
    reader = shlex.shlex(text.replace("\\\n", ""), posix=True, punctuation_chars=_OPERATORS)
    reader.whitespace, reader.commenters, reader.whitespace_split = " \t", "", True
    return list(reader)


def _tokens(node: Node) -> Iterator[str]:
    """The words, as they are known, and the operators, in their order. Raises ValueError."""
    if node.type == "variable_assignment":
        name, word = _assignment(node, {})
        yield from [f"{name}={word.text}"] if word.text is not None else _shlex(_text(node))
    elif node.type in _WORDS:
        value = _value(node)
        yield from [value] if value is not None else _shlex(_text(node))
    elif node.type == "comment":
        return
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
