"""What a command reads whose words are more than options and paths: `test`, `sed`, `awk`, `jq`, `git`, and what reads
below folders. What is not understood here is not known to read only.

What is `below` counts as reading only where the kernel holds it to that, since its words do not say all: git and
`--version` look at files that may name programs, a search meets whatever is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from callboard.actors.policy import command_table as table
from callboard.actors.policy.shell_grammar import LOOP_NAME


class Reads(Struct, frozen=True):
    """What a command reads, and no more."""

    paths: tuple[str, ...] = ()
    below: bool = False
    """Is it known to do no more only where it is held to that?"""


Words = Sequence[str | None]
"""Of a command, behind its name; None: not known before it runs, but no secret."""


def reads(name: str, words: Words) -> Reads | None:
    """What it reads; None where it is not known to do no more."""
    if name in _ANY_WORDS:
        return _ANY_WORDS[name](words)
    known = [word for word in words if word is not None]
    if len(known) < len(words):
        return None
    if known and len(known) == 1 and known[0] in table.VERSIONS.get(name, ()):
        return Reads(below=True)
    if name in _PROGRAMS:
        return _PROGRAMS[name](known)
    paths = table.read_paths(name, known)
    if paths is not None:
        return Reads(tuple(paths))
    below = table.READING_BELOW.get(name)
    paths = table.operands(below, known) if below is not None else None
    return None if paths is None else Reads(tuple(paths), below=True)


# -- the shell's own ----------------------------------------------------------------------------------------------


def _echo(words: Words) -> Reads | None:
    return Reads()


def _printf(words: Words) -> Reads | None:
    """With a format that is known and is no option: `-v` sets a variable."""
    return None if not words or words[0] is None or words[0].startswith("-") else Reads()


#: Of files and texts. Not `-v` and `-R`, which evaluate what they are given.
_UNARY_WORDS: Final = """
    -e -f -d -s -r -w -x -n -z -L -h -b -c -p -S -g -u -k -O -G -N -t
"""
_UNARY: Final = frozenset(_UNARY_WORDS.split())
_BINARY: Final = frozenset({"=", "==", "!=", "=~"})
#: They evaluate their sides as arithmetic in `[[`.
_NUMERIC: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_OF_FILES: Final = frozenset({"-nt", "-ot", "-ef"})


def _test(words: Words) -> Reads | None:
    """One comparison, or several that are joined."""
    found: list[str] = []
    for part in _split(list(words), ("&&", "||", "-a", "-o")):
        while part and part[0] == "!":
            part = part[1:]
        paths = _compared(part)
        if paths is None:
            return None
        found += paths
    return Reads(tuple(found))


def _split(words: list[str | None], joints: Sequence[str]) -> list[list[str | None]]:
    parts: list[list[str | None]] = [[]]
    for word in words:
        if word in joints:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _compared(part: list[str | None]) -> list[str] | None:
    """The files that it looks at."""
    match part:
        case [str(one)] if not one.startswith(("-", "(")):
            return []
        case [None]:
            return []
        case [str(operator), word] if operator in _UNARY:
            return [word] if word is not None and operator not in ("-n", "-z", "-t") else []
        case [_, str(operator), _] if operator in _BINARY:
            return []
        case [one, str(operator), other] if operator in _NUMERIC:
            return [] if all(word is not None and re.fullmatch(r"-?\d+", word) for word in (one, other)) else None
        case [str(one), str(operator), str(other)] if operator in _OF_FILES:
            return [one, other]
    return None


def _bracket(end: str) -> Callable[[Words], Reads | None]:
    return lambda words: _test(words[:-1]) if words[-1:] == [end] or words[-1:] == (end,) else None


def _read(words: Sequence[str]) -> Reads | None:
    options = [word for word in words if word.startswith("-")]
    names = [word for word in words if not word.startswith("-")]
    return Reads() if set(options) <= {"-r"} and names and all(map(LOOP_NAME.fullmatch, names)) else None


_SET_WORDS: Final = """
    -e -u -x +e +u +x -eu -ex -eux -o +o pipefail errexit nounset -euo -euxo -eo -uo
"""
_SET: Final = frozenset(_SET_WORDS.split())


def _set(words: Sequence[str]) -> Reads | None:
    """Without words it shows all variables."""
    return Reads() if words and _SET.issuperset(words) else None


def _command(words: Sequence[str]) -> Reads | None:
    return Reads() if words and words[0] in ("-v", "-V") else None


# -- languages ----------------------------------------------------------------------------------------------------

_SED_ADDRESS: Final = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\.)+/I?)"
_SED_PRINT: Final = rf"(?:{_SED_ADDRESS}(?:\s*,\s*(?:{_SED_ADDRESS}|[+~]\d+))?)?\s*!?\s*[pdq=]"
_SED_CHANGE: Final = (
    rf"(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?)?\s*s([/|#,:@])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gpiI\d]*"
)
#: One command that prints, leaves out, counts or replaces; or several of those that have no text in them.
_SED: Final = re.compile(rf"\s*(?:{_SED_CHANGE}|{_SED_PRINT}(?:\s*;\s*{_SED_PRINT})*)\s*;?\s*")


def _sed(words: Sequence[str]) -> Reads | None:
    scripts: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option in ("-e", "-ne", "--expression") and rest:
            scripts.append(rest.pop(0))
        elif not re.fullmatch(r"-[nErszu]+|--quiet|--silent|--regexp-extended|--debug", option):
            return None
    scripts = scripts or [rest.pop(0) if rest else ""]
    if not all(map(_SED.fullmatch, scripts)) or any(word.startswith("-") for word in rest):
        return None
    return Reads(tuple(rest))


#: What runs, reads or writes something else, in a program of awk's.
_AWK_REACHES: Final = re.compile(r"system|getline|close|fflush|@|ENVIRON|PROCINFO|ARG[VC]|\|")


def _awk(words: Sequence[str]) -> Reads | None:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-F", "-v") and rest:
            rest.pop(0)
        elif not re.fullmatch(r"-F.+|-v\w+=.*", option):
            return None
    # Before the first brace, > compares; behind it, it may write.
    if not rest or _AWK_REACHES.search(rest[0].replace("||", " ")) or ">" in rest[0].partition("{")[2]:
        return None
    if any(word.startswith("-") or "=" in word for word in rest[1:]):
        return None
    return Reads(tuple(rest[1:]), below=True)


_JQ_REACHES: Final = re.compile(
    r"\benv\b|\$ENV|\$__prog|\b(?:import|include|modulemeta|get_search_list|input_filename)\b"
)
_JQ_LONG_WORDS: Final = """
    --raw-output --compact-output --null-input --slurp --sort-keys --join-output --tab --exit-status --raw-input
    --color-output --monochrome-output --ascii-output --stream
"""
_JQ_LONG: Final = frozenset(_JQ_LONG_WORDS.split())


def _jq(words: Sequence[str]) -> Reads | None:
    operands: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--arg", "--argjson") and len(rest) >= 2:
            del rest[:2]
        elif word == "--indent" and rest:
            rest.pop(0)
        elif word.startswith("-"):
            if word not in _JQ_LONG and not re.fullmatch(r"-[rcnsSjeMCRa]+", word):
                return None
        else:
            operands.append(word)
    if not operands or _JQ_REACHES.search(operands[0]):
        return None
    return Reads(tuple(operands[1:]))


# -- git ----------------------------------------------------------------------------------------------------------

_DIFF: Final = """
    --stat --numstat --shortstat --name-only --name-status --summary --patch --no-patch --cached --staged
    --word-diff --color --no-color --no-renames --find-renames --minimal --patience --histogram --ignore-all-space
    --ignore-space-change --ignore-blank-lines --unified --raw --diff-filter --check --dirstat --relative
    --no-ext-diff --no-textconv --quiet --exit-code --function-context --text --binary --full-index --abbrev
    --no-prefix --merge-base --inter-hunk-context --diff-algorithm --compact-summary -p -u -s -w -b -M -C -R -z -W
    -a
"""
_REVISIONS: Final = """
    --oneline --graph --all --decorate --no-decorate --no-merges --merges --first-parent --reverse --since --until
    --after --before --author --committer --grep --all-match --invert-grep --follow --branches --tags --remotes
    --abbrev-commit --no-abbrev-commit --date --pretty --format --topo-order --date-order --max-count --skip
    --full-history --simplify-by-decoration --left-right --cherry-pick --cherry-mark --pickaxe-regex --pickaxe-all
    --show-pulls --relative-date --parents --children --boundary --ancestry-path --source --regexp-ignore-case
    --extended-regexp --perl-regexp --fixed-strings --no-walk --notes --no-notes --count -i -E -F -P -m -c --cc
"""
_REFS: Final = "--list --sort --format --contains --no-contains --merged --no-merged --points-at --column --no-column"
#: Of each that reads: its options, and the letters after which a value follows, in the same word or the next.
GIT: Final[Mapping[str, tuple[frozenset[str], str]]] = MappingProxyType(
    {
        name: (frozenset(options.split()), valued)
        for name, options, valued in (
            ("status", "-s -b -sb -u -uno -uall -unormal -z -v --short --branch --porcelain --long --ignored "
             "--untracked-files --show-stash --ahead-behind --column --no-column --renames --no-renames", ""),
            ("log", f"{_DIFF}{_REVISIONS}", "nSGLU"),
            ("show", f"{_DIFF}{_REVISIONS}", "nSGLU"),
            ("diff", _DIFF, "SGU"),
            ("whatchanged", f"{_DIFF}{_REVISIONS}", "nSGLU"),
            ("shortlog", f"{_REVISIONS} -s -n -e -sn -ne -sne -nse -ns -se --summary --numbered --email", ""),
            ("blame", "-w -M -C -s -e -l -t -f -n -p --porcelain --line-porcelain --show-email --show-name "
             "--show-number --date --root --abbrev --color-lines --first-parent --reverse", "L"),
            ("branch", f"-a -r -v -vv -av -avv -rv -l -i {_REFS} --all --remotes --show-current --verbose --no-color "
             "--color --abbrev --ignore-case", ""),
            ("tag", f"-l -n -i {_REFS} --no-color --color", ""),
            ("remote", "-v --verbose", ""),
            ("stash", "--stat --oneline --patch -p", ""),
            ("rev-parse", "--show-toplevel --abbrev-ref --short --verify --quiet -q --git-dir --git-common-dir "
             "--is-inside-work-tree --is-inside-git-dir --is-bare-repository --show-prefix --show-cdup --symbolic "
             "--symbolic-full-name --all --branches --tags --remotes --absolute-git-dir --is-shallow-repository", ""),
            ("rev-list", _REVISIONS, "n"),
            ("ls-files", "-c -d -m -o -i -s -u -k -z -t -v --cached --deleted --modified --others --ignored --stage "
             "--unmerged --killed --exclude-standard --error-unmatch --full-name --deduplicate --eol --directory", ""),
            ("ls-tree", "-r -d -t -l -z --name-only --name-status --full-name --full-tree --long --abbrev "
             "--format", ""),
            ("describe", "--tags --always --all --long --abbrev --dirty --exact-match --first-parent --contains "
             "--match --exclude --candidates", ""),
            ("reflog", f"{_REVISIONS} {_DIFF}", "n"),
            ("config", "--get --get-all --local --name-only --show-origin --show-scope --type --bool --int "
             "--default", ""),
            ("grep", "-n -i -l -L -c -w -v -E -F -P -G -h -H -I -o -p -W -q -a --line-number --ignore-case "
             "--word-regexp --files-with-matches --name-only --count --extended-regexp --fixed-strings --perl-regexp "
             "--cached --untracked --heading --break --show-function --function-context --no-color --color --and --or "
             "--not --only-matching --max-depth --invert-match --files-without-match --column --full-name "
             "-in -ni -nw -li -il -rn",
             "eABCm"),
            ("cat-file", "-p -t -s -e", ""),
            ("merge-base", "--is-ancestor --all --octopus --fork-point", ""),
            ("check-ignore", "-v -n -q --verbose --non-matching --quiet --no-index", ""),
            ("check-attr", "-a --all", ""),
            ("name-rev", "--name-only --tags --all --always", ""),
            ("for-each-ref", f"{_REFS} --count", ""),
            ("show-ref", "--heads --tags --branches --head -d --dereference --verify --hash -s -q", ""),
            ("count-objects", "-v -H -vH", ""),
            ("cherry", "-v", ""),
            ("diff-tree", f"{_DIFF} --no-commit-id -r -t --root", ""),
            ("version", "", ""),
        )
    }
)  # fmt: skip
#: Of these, one with operands does something else: what they may be there.
_GIT_OPERANDS: Final[Mapping[str, re.Pattern[str]]] = MappingProxyType(
    {
        "remote": re.compile(r"|get-url \S+"),
        "stash": re.compile(r"(?:list|show)(?: stash@\{\d+\})?"),
        "reflog": re.compile(r"|show(?: [\w/.@{}-]+)?|(?!expire|delete|drop|write)[\w/.@{}-]+"),
        "config": re.compile(r"(?:(?:user|core|branch|init|diff|merge|pull|push|color|remote)\.[\w./-]+)"),
        "version": re.compile(r""),
    }
)
#: Without one of these options, a word makes a branch or a tag.
_GIT_LISTS_WORDS: Final = """
    -l --list --contains --no-contains --merged --no-merged --points-at
"""
_GIT_LISTS: Final = frozenset(_GIT_LISTS_WORDS.split())
#: Formats that run the program that checks signatures.
_GIT_SIGNATURE: Final = re.compile(r"%[-+ ]?G|signature")


def _git(words: Sequence[str]) -> Reads | None:
    paths: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-C" and rest:
            paths.append(rest.pop(0))
        elif option not in ("--no-pager", "--no-optional-locks", "--literal-pathspecs"):
            return None
    if not rest or rest[0] not in GIT:
        return None
    command = rest.pop(0)
    if len(paths) > 1 or any(_GIT_SIGNATURE.search(word) for word in rest):
        return None
    operands = _git_operands(command, rest)
    if operands is None:
        return None
    folder = f"{paths[0]}/" if paths else ""
    named = [piece for word in operands for piece in (word, word.rpartition(":")[2]) if piece]
    return Reads(
        (*paths, *(piece if piece.startswith(("/", "~")) else f"{folder}{piece}" for piece in named)), below=True
    )


def _git_operands(command: str, words: list[str]) -> list[str] | None:
    options, valued = GIT[command]
    operands: list[str] = []
    given: set[str] = set()
    rest = words[::-1]
    is_pattern = command == "grep"
    while rest:
        word = rest.pop()
        if word == "--":
            operands += rest[::-1]
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
            continue
        given.add(word.partition("=")[0])
        if word.partition("=")[0] in options or (command not in ("status", "config") and re.fullmatch(r"-\d+", word)):
            continue
        if word[1] not in valued:
            return None
        is_pattern = is_pattern and word[1] != "e"
        value = word[2:] or (rest.pop() if rest else "-")
        if value.startswith("-"):
            return None
        operands += [value.rpartition(":")[2]] if word[1] == "L" and ":" in value else []
    if command in ("branch", "tag") and operands and not given & _GIT_LISTS:
        return None
    if (allowed := _GIT_OPERANDS.get(command)) is not None and not allowed.fullmatch(" ".join(operands)):
        return None
    if command in ("config", "remote", "stash", "branch", "tag", "version"):
        return []
    return operands[1:] if is_pattern else operands


#: Words of these may be unknown as long as they are no secrets.
_ANY_WORDS: Final[Mapping[str, Callable[[Words], Reads | None]]] = {
    "echo": _echo,
    "printf": _printf,
    "test": _test,
    "[": _bracket("]"),
    "[[": _bracket("]]"),
}
_PROGRAMS: Final[Mapping[str, Callable[[Sequence[str]], Reads | None]]] = {
    "read": _read,
    "set": _set,
    "command": _command,
    "sed": _sed,
    "awk": _awk,
    "gawk": _awk,
    "mawk": _awk,
    "jq": _jq,
    "git": _git,
}
