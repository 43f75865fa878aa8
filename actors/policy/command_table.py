"""What known commands do: a table. A command that it does not name may do anything.

A reading command is named with the options with which it only reads; with any other option it counts as unknown. Not in
it, on purpose: `git` (it runs what .git/config names: core.fsmonitor, diff and filter drivers, aliases, pagers), `rg`
(searches folders, and runs --pre), `diff` (of folders it shows all files), `env` and `ps` (they show secrets), `awk`,
`sed`, `less`, `vim`, `man`, `tar` (they run commands), `tree`, `tee`, `xxd` (write).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

#: Of `find`: tests and actions that only look at names, with how many words follow each.
_FIND_TESTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("-print", "-print0", "-empty", "-not", "!", "-o", "-or", "-a", "-and", "-prune", "-readable"), 0),
    **dict.fromkeys(("(", ")", "-true", "-false", "-writable", "-executable", "-daystart", "-mount", "-xdev"), 0),
    **dict.fromkeys(("-name", "-iname", "-path", "-ipath", "-wholename", "-type", "-maxdepth", "-mindepth"), 1),
    **dict.fromkeys(("-size", "-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin", "-perm", "-links"), 1),
}


class ReadingCommand(Struct, frozen=True):
    """A command that only reads, with the options with which it does no more."""

    flags: str = ""
    """Letters that may follow one dash, also together."""
    valued: str = ""
    """Those after which a value follows, in the same word or the next."""
    long: str = ""
    """Those after two dashes, with or without `=value`."""
    skip: int = 0
    """Its first operands that are no paths."""
    pattern_option: str = ""
    """An option that stands in for these."""
    most: int = 1_000
    """Operands it may have; one more is written."""
    reads_files: bool = True
    """Are its operands paths?"""
    prefix: str = ""
    """What every operand begins with."""


_SUMS: Final = ReadingCommand("btz", "", "tag")
READING: Final[Mapping[str, ReadingCommand]] = MappingProxyType(
    {
        "ls": ReadingCommand(
            "aAlhtrS1FdCnosiQpgUXckGBbmqxNLHvuZfR",
            "I",
            "all almost-all color human-readable reverse recursive size sort time group-directories-first classify "
            "directory full-time inode ignore time-style numeric-uid-gid",
        ),
        "cat": ReadingCommand("AbeEnstTuv", "", "number number-nonblank show-all show-ends show-tabs squeeze-blank"),
        "head": ReadingCommand("qvz0123456789", "nc", "lines bytes quiet silent verbose"),
        "tail": ReadingCommand("qvz0123456789", "nc", "lines bytes quiet silent verbose"),
        "wc": ReadingCommand("clmwL", "", "bytes chars lines words max-line-length"),
        "nl": ReadingCommand("p", "bdfhilnsvw"),
        "tac": ReadingCommand(),
        "rev": ReadingCommand(),
        "cut": ReadingCommand("sz", "dfcb", "delimiter fields characters bytes only-delimited complement"),
        "sort": ReadingCommand("bdfghiMnrRuVzcCs", "kt", "unique reverse numeric-sort key field-separator"),
        "uniq": ReadingCommand("cdDiuz", "fsw", "count repeated unique ignore-case", most=1),
        "tr": ReadingCommand("cCdst", "", "delete squeeze-repeats complement", reads_files=False),
        "paste": ReadingCommand("sz", "d"),
        "join": ReadingCommand("i", "12tjaevo"),
        "comm": ReadingCommand("123z", "", "check-order nocheck-order"),
        "cmp": ReadingCommand("bls", "n", "bytes silent quiet print-bytes", most=2),
        "od": ReadingCommand("cbdxov", "AjNtwS"),
        "hexdump": ReadingCommand("bcCdovx", "ns"),
        "strings": ReadingCommand("a", "nted"),
        "grep": ReadingCommand(
            "ivnclLoqswxEFGHhaz",
            "emABC",
            "color colour count ignore-case line-number only-matching invert-match word-regexp files-with-matches "
            "extended-regexp fixed-strings basic-regexp regexp max-count context after-context before-context quiet "
            "no-filename with-filename line-regexp",
            skip=1,
            pattern_option="e",
        ),
        "egrep": ReadingCommand("ivnclLoqswxHha", "emABC", skip=1, pattern_option="e"),
        "fgrep": ReadingCommand("ivnclLoqswxHha", "emABC", skip=1, pattern_option="e"),
        "stat": ReadingCommand("Lft", "c", "format terse printf"),
        "file": ReadingCommand("bihL", "", "brief mime mime-type mime-encoding"),
        "du": ReadingCommand("hsackbmx", "d", "human-readable summarize max-depth all total bytes apparent-size"),
        "df": ReadingCommand("hTaik", "", "human-readable"),
        "basename": ReadingCommand("az", "s", "suffix", reads_files=False),
        "dirname": ReadingCommand("z", "", "", reads_files=False),
        "realpath": ReadingCommand("emPLqsz", "", "relative-to relative-base"),
        "readlink": ReadingCommand("femnqz", "", "canonicalize"),
        **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum"), _SUMS),
        "cksum": ReadingCommand(),
        "echo": ReadingCommand("neE", reads_files=False),
        "printf": ReadingCommand(reads_files=False),
        "pwd": ReadingCommand("LP", most=0),
        "true": ReadingCommand(reads_files=False),
        "false": ReadingCommand(reads_files=False),
        "date": ReadingCommand("uR", "dI", "utc date iso-8601 rfc-3339", reads_files=False, prefix="+"),
        "whoami": ReadingCommand(most=0),
        "id": ReadingCommand("gGnru", reads_files=False),
        "groups": ReadingCommand(reads_files=False),
        "uname": ReadingCommand("asnrvmpio", most=0),
        "arch": ReadingCommand(most=0),
        "nproc": ReadingCommand("", "", "all", most=0),
        "uptime": ReadingCommand("ps", most=0),
        "seq": ReadingCommand("w", "sf", reads_files=False),
        "sleep": ReadingCommand(reads_files=False),
        "which": ReadingCommand("a", reads_files=False),
    }
)

#: Commands that do nothing but run the command that follows, without any option: `nice ls`.
TRANSPARENT: Final = frozenset({"nice", "command", "env", "time", "ionice"})

_OF_NETWORK: Final = """
    curl wget ssh scp sftp rsync nc ncat netcat socat telnet ftp pip pip3 npm pnpm yarn npx uv uvx poetry cargo gem
    bundle go brew apt apt-get dnf yum apk pacman docker podman kubectl gh aws gcloud az ping dig nslookup host whois
    traceroute nmap http https httpie lftp aria2c git-lfs
"""
_OF_CODE: Final = """
    python python2 python3 pypy pypy3 perl ruby node nodejs deno bun php lua luajit Rscript julia ghci scala kotlin
    groovy jshell awk gawk mawk nawk sed ed ex vi vim nvim view emacs nano less more man m4 bc dc gdb sqlite3 psql
    mysql osascript pwsh tclsh wish expect tar cpio zip rsync scp
"""
#: Commands to which a program, or a command to run, can be given in their words or their input.
RUNS_CODE: Final = frozenset(_OF_CODE.split())
#: Commands that reach the network; git does with some of its commands.
NETWORK: Final = frozenset(_OF_NETWORK.split())
GIT_NETWORK: Final = frozenset({"push", "fetch", "pull", "clone", "ls-remote", "remote", "submodule", "lfs"})

#: Variables that change nothing about what a command does, but its language, colours or width.
HARMLESS_VARIABLES: Final = frozenset({"LANG", "LANGUAGE", "TZ", "TERM", "NO_COLOR", "COLUMNS", "LINES", "CI"})


def read_paths(name: str, words: Sequence[str]) -> list[str] | None:
    """The paths that a command reads which only reads; None where it is not known to do no more."""
    if name == "find":
        return _found_paths(words)
    known = READING.get(name)
    return None if known is None else _operands(known, list(words))


def _operands(known: ReadingCommand, words: list[str]) -> list[str] | None:
    operands: list[str] = []
    skip, long = known.skip, frozenset(known.long.split())
    rest = words[::-1]
    while rest:
        word = rest.pop()
        if word == "--":
            operands += rest[::-1]
            break
        if word.startswith("--"):
            option, _, _ = word[2:].partition("=")
            if option not in long:
                return None
            skip = 0 if option == "regexp" else skip
            if option in ("relative-to", "relative-base"):
                operands.append(word.partition("=")[2])
        elif word.startswith("-") and word != "-":
            if not _are_known(known, word[1:], rest):
                return None
            if known.pattern_option and known.pattern_option in word:
                skip = 0
        else:
            operands.append(word)
    if len(operands) > known.most or not all(word.startswith(known.prefix) for word in operands):
        return None
    return [word for word in operands[skip:] if word != "-"] if known.reads_files else []


def _are_known(known: ReadingCommand, letters: str, rest: list[str]) -> bool:
    """Takes the value that belongs to the last of them."""
    for at, letter in enumerate(letters):
        if letter in known.valued:
            if at + 1 == len(letters) and rest:
                rest.pop()
            return True
        if letter not in known.flags:
            return False
    return True


def _found_paths(words: Sequence[str]) -> list[str] | None:
    paths: list[str] = []
    rest = list(words[::-1])
    while rest and not rest[-1].startswith("-") and rest[-1] not in ("(", "!"):
        paths.append(rest.pop())
    while rest:
        values = _FIND_TESTS.get(rest.pop())
        if values is None or len(rest) < values:
            return None
        del rest[len(rest) - values :]
    return paths or ["."]
