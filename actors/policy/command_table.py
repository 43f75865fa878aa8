"""What known commands do: a table. A command that it does not name may do anything.

A reading command is named with the options with which it only reads; with any other option it counts as unknown. Which
words each opens is measured (tests/actors/policy/test_tables_by_strace.py). Programs whose words are a language, and
git, are in reading_programs.py. Not in either, on purpose: `env` and `ps` (they show secrets), `less`, `vim`, `man`,
`tar` (they run commands), `tee` (writes).
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
    **dict.fromkeys(("-printf", "-regex", "-iregex", "-regextype", "-newermt", "-user", "-group", "-inum"), 1),
    **dict.fromkeys(("-ls", "-quit", "-depth", "-noleaf", "-nouser", "-nogroup"), 0),
    **dict.fromkeys(("-size", "-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin", "-perm", "-links"), 1),
}
#: Those that are followed by a file, at which it looks.
_FIND_FILES: Final = frozenset({"-newer", "-anewer", "-cnewer", "-samefile"})


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
    attached: str = ""
    """Letters after which a value may follow, in the same word only."""
    apart: bool = False
    """Does it take each option in a word of its own? Then two letters in one are another option."""
    never: str = ""
    """What no operand begins with: the program takes such a word as a file of further options."""
    below: str = ""
    """The folder that it reads where no path is named."""


_DIGITS: Final = "0123456789"
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
        "od": ReadingCommand("cbdxov", "AjNtS", attached="w"),
        "hexdump": ReadingCommand("bcCdovx", "ns"),
        "strings": ReadingCommand("ad", "nte", never="@"),
        "grep": ReadingCommand(
            "ivnclLoqswxEFGHhazPbT0123456789",
            "emABC",
            "perl-regexp byte-offset null no-messages initial-tab files-without-match color "
            "colour count ignore-case line-number only-matching invert-match word-regexp files-with-matches "
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
        "date": ReadingCommand("uR", "d", "utc date iso-8601 rfc-3339", reads_files=False, prefix="+", attached="I"),
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
        "xxd": ReadingCommand("pubiEC", "lsgc", most=1, apart=True),
        "fold": ReadingCommand("bs", "w", "bytes spaces width"),
        "expand": ReadingCommand("i", "t", "initial tabs"),
        "unexpand": ReadingCommand("a", "t", "all first-only tabs"),
        "column": ReadingCommand("tx", "soc"),
        "base64": ReadingCommand("di", "w", "decode wrap ignore-garbage"),
        "tree": ReadingCommand(
            "adfipsughDFCrtnvcS", "LIP", "dirsfirst filesfirst noreport prune filelimit matchdirs ignore-case du"
        ),
        "hostname": ReadingCommand("fsdi", most=0),
        "free": ReadingCommand("hbkmgtw", "", "human mega giga", most=0),
        "type": ReadingCommand("atpP", reads_files=False),
        ":": ReadingCommand(reads_files=False),
        **dict.fromkeys(("exit", "break", "continue"), ReadingCommand(most=1, reads_files=False)),
    }
)
#: What reads all that is below folders, whatever is in them: only held to reading by the kernel, and with secret files
#: covered. With what is in READING alone, `grep` reads no more than it is told.
READING_BELOW: Final[Mapping[str, ReadingCommand]] = MappingProxyType(
    {
        "grep": ReadingCommand(
            READING["grep"].flags + "rRI",
            "emABC",
            f"{READING['grep'].long} recursive include exclude exclude-dir binary-files",
            skip=1,
            pattern_option="e",
            below=".",
        ),
        "rg": ReadingCommand(
            "nNliIcvwxoFsSHhuUPpa.0",
            "eABCgtTmMd",
            "files hidden no-ignore no-ignore-vcs type type-not glob iglob ignore-case smart-case case-sensitive count "
            "count-matches line-number no-line-number files-with-matches files-without-match only-matching word-regexp "
            "fixed-strings multiline pcre2 regexp max-count max-depth max-columns after-context before-context context "
            "heading no-heading no-messages color sort sortr stats json column vimgrep trim with-filename no-filename "
            "text invert-match",
            skip=1,
            pattern_option="e",
            below=".",
        ),
        "diff": ReadingCommand(
            "uqrwbBiNacypestdEZTn0123456789",
            "UCWxIF",
            "unified context brief recursive side-by-side ignore-all-space ignore-space-change ignore-blank-lines "
            "ignore-case new-file text suppress-common-lines minimal color exclude label width report-identical-files "
            "strip-trailing-cr show-c-function",
            most=2,
        ),
    }
)
#: How programs are asked for their version, in one word that makes them do nothing else.
_LONG, _SHORT = frozenset({"--version"}), frozenset({"--version", "-V"})
_LONG_NAMES: Final = "gcc g++ clang cc make cmake bash grep sed tar curl gdb docker kubectl"
_SHORT_NAMES: Final = "python python2 python3 pip pip3 cargo rustc uv ruff mypy pytest rg perl jq tree"
VERSIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        **dict.fromkeys(_LONG_NAMES.split(), _LONG),
        **dict.fromkeys(_SHORT_NAMES.split(), _SHORT),
        **dict.fromkeys(("node", "npm"), frozenset({"--version", "-v"})),
        "git": _LONG,
        "rustup": _SHORT,
        "go": frozenset({"version"}),
        "java": frozenset({"-version", "--version"}),
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
    return None if known is None else operands(known, list(words))


def operands(known: ReadingCommand, words: list[str]) -> list[str] | None:
    """The paths among these words; None where one of them is not known."""
    found: list[str] = []
    skip, long = known.skip, frozenset(known.long.split())
    rest = words[::-1]
    while rest:
        word = rest.pop()
        if word == "--":
            found += rest[::-1]
            break
        if word.startswith("--"):
            option, _, _ = word[2:].partition("=")
            if option not in long:
                return None
            skip = 0 if option in ("regexp", "files") else skip
            if option in ("relative-to", "relative-base"):
                found.append(word.partition("=")[2])
        elif word.startswith("-") and word != "-":
            if not _are_known(known, word[1:], rest):
                return None
            if known.pattern_option and known.pattern_option in word:
                skip = 0
        else:
            found.append(word)
    if len(found) > known.most or not all(word.startswith(known.prefix) for word in found):
        return None
    if known.never and any(word.startswith(known.never) for word in found):
        return None
    if not known.reads_files:
        return []
    return [word for word in found[skip:] if word != "-"] or ([known.below] if known.below else [])


def _are_known(known: ReadingCommand, letters: str, rest: list[str]) -> bool:
    """Takes the value that belongs to the last of them."""
    if known.apart and len(letters) > 1:
        return False
    if letters[0].isdigit() and not letters.isdigit() and _DIGITS in known.flags:
        return False  # in `head -5c FILE` the c is a unit
    for at, letter in enumerate(letters):
        if letter in known.valued:
            if at + 1 == len(letters) and rest:
                rest.pop()
            return True
        if letter in known.attached:
            return True
        if letter not in known.flags:
            return False
    return True


def _found_paths(words: Sequence[str]) -> list[str] | None:
    paths: list[str] = []
    looked_at: list[str] = []
    rest = list(words[::-1])
    while rest and not rest[-1].startswith("-") and rest[-1] not in ("(", "!"):
        paths.append(rest.pop())
    while rest:
        word = rest.pop()
        if word in _FIND_FILES and rest:
            looked_at.append(rest.pop())
            continue
        values = _FIND_TESTS.get(word)
        if values is None or len(rest) < values:
            return None
        del rest[len(rest) - values :]
    return [*(paths or ["."]), *looked_at]
