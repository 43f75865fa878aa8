"""What a command is called by rules that ask or deny: `git -C . push` is `git push`, and so is `env git push`.

Rules that allow see only what is written. Those that ask or deny see all that the words may mean: the program's own
options are left out (where it is not known whether one takes a value: with and without one), and each word of a program
that does not take its words as data may begin a command, or be a line of its own. What cannot be found so is unclear:
a shell that reads its line, an alias, a program with words of its input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise, permutations, starmap
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from callboard.actors.policy.shell_grammar import MAX_DEPTH, program_name, read_line

#: Beyond these a command is unclear: words that may begin another one, words that may be lines, and the words of all
#: ways to read it (some 10 ms).
MAX_WORDS: Final = 256
MAX_LINES: Final = 64
MAX_TAKEN: Final = 20_000
#: So many words of a command are told from its options: of programs, few have more levels of subcommands.
_LEVELS: Final = 3


def words_of(text: str) -> frozenset[str]:
    """A set of words, as the tables write it."""
    return frozenset(text.split())


class Program(Struct, frozen=True):
    """A program with subcommands, and its options in front of them."""

    valued: str = ""
    """Options that take the next word as their value."""
    flags: str = ""
    """Options that take none. Of others it is not known: both are looked at."""
    subcommands: str = ""
    """All that it has, where its user can add aliases or it takes abbreviations: others are unclear."""
    abbreviates: bool = False
    same: Mapping[str, str] = {}
    """Other names of subcommands, and options that say the same."""


_GIT_COMMANDS: Final = """
    add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap
    check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit commit-graph commit-tree
    config count-objects credential describe diagnose diff diff-files diff-index diff-tree difftool fast-export
    fast-import fetch fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo format-patch fsck gc
    get-tar-commit-id grep gui hash-object help hook http-push index-pack init init-db interpret-trailers log lfs
    ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base merge-file merge-index merge-tree
    mergetool mktag mktree multi-pack-index mv name-rev notes pack-objects pack-redundant pack-refs patch-id prune
    prune-packed pull push quiltimport range-diff read-tree rebase reflog remote repack replace request-pull rerere
    reset restore rev-list rev-parse revert rm send-email send-pack shortlog show show-branch show-index show-ref
    sparse-checkout stage stash status stripspace submodule subtree svn switch symbolic-ref tag unpack-file
    unpack-objects update-index update-ref update-server-info var verify-commit verify-pack verify-tag version
    whatchanged worktree write-tree
"""
_GH_COMMANDS: Final = """
    agent-task alias api attestation auth browse cache codespace cs completion config extension ext gist gpg-key help
    issue label org pr preview project release repo rs ruleset run search secret ssh-key status variable workflow
"""
_CARGO_COMMANDS: Final = """
    add audit b bench binstall build c check clean clippy config d deny doc expand fetch fix fmt generate-lockfile help
    hack info init insta install llvm-cov locate-project login logout machete metadata miri new nextest owner package
    pkgid publish r read-manifest remove rm report run rustc rustdoc search t tarpaulin test tree udeps uninstall update
    upgrade vendor verify-project version watch yank
"""
_NPM_COMMANDS: Final = """
    access adduser audit bugs cache ci completion config dedupe deprecate diff dist-tag docs doctor edit exec explain
    explore find-dupes fund get help help-search hook i init install install-ci-test install-test link ll login logout
    ls list org outdated owner pack ping pkg prefix profile prune publish query rebuild repo restart root run run-script
    sbom search set shrinkwrap star stars start stop t team test token trust un undeprecate uninstall unpublish unstar
    up update version view whoami x
"""
_DOCKER: Final = Program(
    "--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey --connection --url --identity "
    "--root --runroot --storage-driver --storage-opt --cgroup-manager --module --namespace -n --address "
    "-e --env -v --volume -p --publish --name -w --workdir -u --user --network --entrypoint --mount --env-file --label "
    "-t --tag --file --build-arg --target --platform --cpus -m --memory --hostname --cap-add --cap-drop",
    "-D --debug --tls --tlsverify --version --remote -r --help --rm -it -ti -i -d --detach --privileged --init",
    same=MappingProxyType({"image push": "push", "image rm": "rmi", "image remove": "rmi", "container rm": "rm",
        "container run": "run", "container exec": "exec", "container kill": "kill", "container stop": "stop",
        "image pull": "pull", "image build": "build", "buildx build": "build", "manifest push": "push",
        "compose push": "push", "--push": "push"}),
)  # fmt: skip
_KUBECTL: Final = Program(
    "-n --namespace --context --cluster --user --kubeconfig -s --server --as --as-group --as-uid --token --username "
    "--password --certificate-authority --client-certificate --client-key --cache-dir --request-timeout "
    "--tls-server-name --profile --profile-output -v --v --vmodule --log-file --log-dir",
    "--insecure-skip-tls-verify --match-server-version --warnings-as-errors --disable-compression --help -h",
)
_TERRAFORM: Final = Program(
    "", "-help -version -v --help --version", same=MappingProxyType({"-destroy": "destroy", "--destroy": "destroy"})
)
PROGRAMS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "git": Program(
            "-C -c --git-dir --work-tree --namespace --config-env --super-prefix --attr-source --list-cmds",
            "-p --paginate -P --no-pager --bare --no-replace-objects --no-lazy-fetch --no-optional-locks --no-advice "
            "--literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs --exec-path --html-path "
            "--man-path --info-path -v --version -h --help",
            _GIT_COMMANDS,
            same=MappingProxyType({"send-pack": "push", "http-push": "push", "subtree push": "push", "lfs push": "push",
                "stage": "add", "annotate": "blame", "init-db": "init"}),
        ),
        "gh": Program("-R --repo --hostname", "--help --version", _GH_COMMANDS),
        "cargo": Program("--config -Z -C --color --explain", "-v -vv -q --quiet --verbose --locked --offline --frozen",
            _CARGO_COMMANDS),
        "npm": Program(
            "--registry --prefix -C -w --workspace --loglevel --userconfig --globalconfig --cache --access --tag --otp "
            "--script-shell --before --omit --include --scope",
            "-s --silent -q --quiet -d -dd -ddd --verbose -g --global -f --force -y --yes -ws --workspaces --json -p "
            "--parseable -l --long --dry-run --offline",
            _NPM_COMMANDS,
            abbreviates=True,
        ),
        "gem": Program("--config-file --backtrace", "-V -q --quiet --silent --verbose --debug",
            "build cert check cleanup contents dependency environment exec fetch generate_index help info install list "
            "lock mirror open outdated owner pristine push query rdoc rebuild search signin signout sources "
            "specification stale uninstall unpack update which yank", abbreviates=True),
        "hg": Program("-R --repository --cwd --config --color --encoding --pager", "-y -q -v --debug --noninteractive",
            "add addremove annotate archive backout bisect bookmarks branch branches bundle cat clone commit config "
            "copy diff export files forget graft grep heads help identify import incoming init locate log manifest "
            "merge outgoing parents paths phase pull push recover remove rename resolve revert rollback root serve "
            "shelve status strip summary tag tags tip unbundle unshelve update verify version", abbreviates=True),
        **dict.fromkeys(("docker", "podman", "nerdctl"), _DOCKER),
        **dict.fromkeys(("kubectl", "oc"), _KUBECTL),
        **dict.fromkeys(("terraform", "tofu"), _TERRAFORM),
        "helm": Program("-n --namespace --kube-context --kubeconfig --kube-apiserver --kube-as-user --kube-token "
            "--registry-config --repository-cache --repository-config --burst-limit --qps", "--debug --help"),
        "aws": Program("--profile --region --output --query --endpoint-url --color --ca-bundle --cli-read-timeout "
            "--cli-connect-timeout --cli-binary-format", "--debug --no-paginate --no-sign-request --no-verify-ssl "
            "--no-cli-pager --no-cli-auto-prompt --cli-auto-prompt"),
        "gcloud": Program("--project --account --configuration --format --filter --verbosity --region --zone "
            "--impersonate-service-account --billing-project --flags-file", "-q --quiet --help --log-http"),
        "gsutil": Program("-o -h -u -i", "-m -q -d -D -DD"),
        "yarn": Program("--cwd --registry", "-s --silent --verbose --offline"),
        "pnpm": Program("-C --dir --filter -F --registry --loglevel --config-dir", "-r --recursive -w -s --silent"),
        "systemctl": Program("-H --host -M --machine -t --type --state -p --property -n --lines -o --output --root",
            "--user --system -q --quiet --now -f --force -a --all -l --full --no-pager --no-block --no-legend"),
    }
)  # fmt: skip

_DATA: Final = """
    echo printf grep egrep fgrep zgrep ls dir cat head tail wc nl tac rev cut tr paste join comm cmp diff stat file du
    df basename dirname realpath readlink true false pwd cd pushd popd mkdir touch test [ which type whatis apropos
    md5sum sha1sum sha256sum sha512sum b2sum cksum rm rmdir cp mv ln chmod chown chgrp unlink shred truncate tee jq
    export unset local declare readonly typeset read return exit set shopt ulimit umask wait jobs date sleep seq id
    sort uniq rg ag ack man pgrep sed awk gawk mawk nawk
"""
#: Commands that do not run their words.
TAKES_DATA: Final = frozenset(_DATA.split())
#: But by these options. Where a word begins so, they are no data.
_RUNNING_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "rg": ("--pre", "--hostname-bin"),
        "ag": ("--pager",),
        "ack": ("--pager",),
        "sort": ("--co",),
        "man": ("-P", "--pager", "-H", "--html", "-C", "--config"),
        "shred": ("--random-source",),
    }
)
#: Shells, and what reads a script as they do: without the name of one, they run what they read.
SHELLS: Final = words_of("bash sh zsh dash ksh fish ash rbash mksh csh tcsh yash elvish xonsh nu pwsh powershell")
_SOURCES: Final = frozenset({"source", "."})
_SHELL_VALUES: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_LINES: Final = """
    eval su runuser ssh watch script parallel sem env flock trap at batch entr hyperfine sg nix-shell tmux screen
    watchexec nodemon concurrently expect npx capsh newgrp unbuffer xargs sudo doas busybox
"""
#: Programs of which one word may be a whole line of shell.
TAKES_LINES: Final = SHELLS | frozenset(_LINES.split())
_TURNING: Final = words_of("alias hash enable complete compgen bind mapfile readarray coproc fc")
_READS_ITS_INPUT: Final = (
    words_of("parallel sem at batch newgrp make gmake just tclsh wish ed run-parts tfenv") | SHELLS
)
_INTERPRETERS: Final = words_of("python pypy perl ruby node nodejs deno bun php lua luajit Rscript julia osascript")
_INLINE: Final = re.compile(r"-[A-Za-z]*[ceErp]|--e(?:val|xec).*|--print|-|eval|-[ce].+", re.DOTALL)
_VERSION: Final = re.compile(r"-?[\d.]+$")
#: Programs whose last words come from their input.
_ADDS_WORDS: Final = frozenset({"xargs", "entr"})
#: Subcommands of git that run what their words name; and the options with which others do, whole or shortened.
_GIT_RUNS: Final = words_of("bisect submodule filter-branch for-each-repo difftool mergetool hook send-email")
_GIT_UNCLEAR: Final = _GIT_RUNS - {"bisect", "submodule", "send-email"}
_OF_TRANSPORT: Final = ("--exec", "--upload-pack", "--receive-pack")
_GIT_RUNNING_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "rebase": ("-x", "--exec"),
        "grep": ("-O", "--open-files-in-pager"),
        "clone": ("-u", "-c", "--config", "--upload-pack", "--template"),
        "init": ("--template",),
        "instaweb": ("-b", "--browser"),
        "help": ("-w", "--web"),
        **dict.fromkeys(("fetch", "pull", "fetch-pack", "ls-remote", "push", "send-pack", "archive"), _OF_TRANSPORT),
    }
)
#: Keys of git's configuration that name no program.
_HARMLESS_KEYS: Final = re.compile(
    r"(?:color|advice|user|log|column|fetch|pull|push|status|i18n)\.[\w-]+|init\.defaultbranch|commit\.gpgsign"
    r"|core\.(?:quotepath|abbrev|autocrlf|safecrlf|filemode|ignorecase|precomposeunicode)"
    r"|diff\.(?:renames|renamelimit|algorithm|context|noprefix|mnemonicprefix|colormoved)",
    re.IGNORECASE,
)
_SHORT_FLAGS: Final = words_of("rm rmdir cp mv ln chmod chown chgrp shred")
_LONG_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {"--recursive": "r", "--force": "f", "--verbose": "v", "--interactive": "i", "--dir": "d"}
)
#: What may be more than one word for whom takes it as a line.
_LINE_LIKE: Final = re.compile(r"[\s;&|<>`$()'\"\\]")
_VARIANT: Final = re.compile(r"\.(?:exe|cmd|bat|com|ps1)$", re.IGNORECASE)


class Meant(Struct, frozen=True):
    """What the words of a command may mean."""

    commands: tuple[tuple[str, ...], ...]
    """The commands that it may run, itself first."""
    names: tuple[str, ...]
    """Of all of them, as the patterns of rules see them, with options and without."""
    unclear: str = ""
    """Why there may be more."""

    @property
    def scripts(self) -> tuple[str, ...]:
        """Files of which shells run what is in them."""
        found = [_script(each[1:]) for each in self.commands if each[0] in SHELLS]
        found += [list(each[1:]) for each in self.commands[:1] if each[0] in _SOURCES]
        return tuple(each[0] for each in found if each and not each[0].startswith("-"))


#: What else a program is called, by the links that lead to it.
OtherNames = Callable[[str], Iterable[str]]


def meant(words: Sequence[str], other_names: OtherNames = lambda name: ()) -> Meant:
    """All that a command of these words may run; the program is the first, by its path or its name."""
    left = MAX_TAKEN
    found: dict[tuple[str, ...], None] = {}
    names: dict[str, None] = {}
    taken: set[tuple[str, ...]] = set()
    for command in _commands(list(words), other_names):
        if command in found:
            continue
        found[command] = None
        for reading in readings(command):
            if reading in taken:
                continue
            taken.add(reading)
            names[shlex.join(reading)] = None
            left -= len(reading)
            if left < 0:
                return Meant(tuple(found), tuple(names), "it can be read in too many ways")
    commands = tuple(found)
    why = (_unclear(command) if at == 0 else _unclear_behind(command) for at, command in enumerate(commands))
    too_long = f"a command of more than {MAX_WORDS} words" if len(words) > MAX_WORDS and not takes_data(words) else ""
    return Meant(commands, tuple(names), too_long or next(filter(None, why), ""))


def known_name(word: str) -> str:
    """The name of a program as tables have it: without its folder and what Windows adds."""
    return _VARIANT.sub("", program_name(word))


def takes_data(words: Sequence[str]) -> bool:
    """Is it known that no word of the command is run?"""
    name = known_name(words[0])
    if name == "git":
        return not _git_runs(words)
    if name == "command" and len(words) > 1 and words[1] in ("-v", "-V"):
        return True
    running = _RUNNING_OPTIONS.get(name, ())
    return name in TAKES_DATA and not any(word.startswith(each) for word in words[1:] for each in running)


def _commands(words: list[str], other_names: OtherNames, depth: int = 0) -> Iterator[tuple[str, ...]]:
    for name in (known_name(words[0]), *other_names(words[0])):
        yield (name, *words[1:])
    if takes_data(words):
        return
    for at in range(1, min(len(words), MAX_WORDS)):
        yield from ((name, *words[at + 1 :]) for name in _names(words[at], other_names))
    if depth >= MAX_DEPTH:
        return
    for line in islice(dict.fromkeys(_lines(words)), MAX_LINES):
        for command in read_line(line).commands:
            texts = [word.source if word.text is None else word.text for word in command.words]
            if texts:
                yield from _commands(texts, other_names, depth + 1)


def _names(word: str, other_names: OtherNames) -> Iterator[str]:
    """What a word may call a program: `git`, `/usr/bin/git`, `git@latest`, `alpine/git:2`, `nixpkgs#git`, `test:git`,
    `--entrypoint=git`."""
    if word.startswith("-"):
        word = word.partition("=")[2]
    if "=" in word or "://" in word:
        return
    found = map(known_name, (word, *re.split(r"[:#@]", word)))
    yield from dict.fromkeys(filter(None, (*found, *(other_names(word) if "/" in word else ()))))


def _lines(words: Sequence[str]) -> Iterator[str]:
    """What may be a line of shell: a word, what is behind its `=`, and the words together (`eval`, `ssh`)."""
    for word in words[1:MAX_WORDS]:
        if _LINE_LIKE.search(word):
            yield from filter(None, (word, word.partition("=")[2], word.lstrip("|!+:")))
            if re.match(r"-[A-Za-z]", word):  # env -iS'git push'
                yield from (word[at:] for at in range(2, min(len(word), 6)))
    if known_name(words[0]) in TAKES_LINES and any(map(_LINE_LIKE.search, words[1:])):
        yield " ".join(words[1:MAX_WORDS])


def readings(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words of one command as a rule may have meant them."""
    first, rest = words[0], list(words[1:])
    yield tuple(words)
    base, dash, subcommand = first.partition("-")
    if dash and base in PROGRAMS:  # git-push
        yield from readings((base, subcommand, *rest))
    if (snap := first.rpartition(".")[2]) in PROGRAMS and snap != first:  # microk8s.kubectl
        yield from readings((snap, *rest))
    program = PROGRAMS.get(first, Program())
    for operands in chain(_operands(program, rest, 1), _operands(program, rest, _LEVELS)):
        yield (first, *operands)
        yield from ((first, *each) for each in _other_names(program, operands))
    if first in _SHORT_FLAGS:
        yield from ((first, *each) for each in _flag_orders(rest))


def operands_of(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words of a command behind its program, without options, in each way to read them."""
    yield from dict.fromkeys(_operands(PROGRAMS.get(words[0], Program()), list(words[1:]), _LEVELS))


def _operands(program: Program, words: list[str], levels: int) -> Iterator[tuple[str, ...]]:
    """The words without the options in front of the first operands, as many as `levels`; in each way to read them."""
    valued, flags = program.valued.split(), program.flags.split()
    open_: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    count = 0
    while open_ and count < MAX_TAKEN:
        at, taken = open_.pop()
        if at >= len(words) or len(taken) == levels:
            count += 1
            yield (*taken, *words[at:])
            continue
        word = words[at]
        if word == "--":
            count += 1
            yield (*taken, *words[at + 1 :])
        elif not word.startswith("-") or word == "-":
            open_.append((at + 1, (*taken, word)))
        else:
            open_ += [(each, taken) for each in _behind_option(words, at, valued, flags)]


def _behind_option(words: Sequence[str], at: int, valued: Sequence[str], flags: Sequence[str]) -> Iterator[int]:
    """Where the words go on behind an option."""
    word, following = words[at], words[at + 1] if at + 1 < len(words) else "-"
    if word in valued:
        yield min(at + 2, len(words))
        return
    yield at + 1
    if not ("=" in word or word in flags or following.startswith("-")):  # an option that follows is left out anyhow
        yield at + 2


def _other_names(program: Program, operands: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name, other in program.same.items():
        parts = tuple(name.split())
        if name.startswith("-") and any(word.partition("=")[0] == name for word in operands):
            yield (other, *operands[1:])
        elif tuple(operands[: len(parts)]) == parts:
            yield (*other.split(), *operands[len(parts) :])
    if program.abbreviates and operands:
        for name in program.subcommands.split():
            if name.startswith(operands[0]) and name != operands[0]:
                yield (name, *operands[1:])


def _flag_orders(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`-r -f`, `-fr` and `--force --recursive` as `-rf`, in front of the rest."""
    letters: dict[str, None] = {}
    others: list[str] = []
    for word in words:
        if word in _LONG_FLAGS:
            letters[_LONG_FLAGS[word]] = None
        elif re.fullmatch(r"-[A-Za-z]+", word):
            letters.update(dict.fromkeys(word[1:]))
        elif word != "--":
            others.append(word)
    letters |= dict.fromkeys(each for letter in letters for each in (letter.lower(),))
    for first in permutations(letters, min(len(letters), 3)):
        yield (f"-{''.join(first)}{''.join(each for each in letters if each not in first)}", *others)


def _unclear(words: Sequence[str]) -> str:
    """Why it is not known what a command runs."""
    name, rest = words[0], list(words[1:])
    if name in _SOURCES and _reads_its_script([each for each in rest if each != "--"]):
        return f"{name} runs what it reads"
    if name in _TURNING and rest:
        return f"{name} changes what words mean"
    if name in ("find", "fd", "fdfind") and any(starmap(_names_program, pairwise(rest))):
        return f"{name} finds the name of a program"
    return _unclear_behind(words)


def _names_program(word: str, following: str) -> bool:
    return word.startswith(("-exec", "-ok", "-x", "-X", "--exec")) and "{" in following


def _unclear_behind(words: Sequence[str]) -> str:
    """The same, of a command that may stand behind others."""
    name, rest = words[0], list(words[1:])
    if _VERSION.sub("", name) in _INTERPRETERS and any(map(_INLINE.fullmatch, rest)):
        return f"{name} runs code in its words"
    if name in SHELLS:
        return f"{name} runs what it reads" if _reads_its_script(_script(rest)) else ""
    if name in _READS_ITS_INPUT and (name not in ("make", "gmake", "just") or _makes_of_words(rest)):
        return f"{name} runs what it reads"
    if name in _ADDS_WORDS:
        return _unclear_input(name, rest)
    if name == "git" and (keys := _git_keys(rest)):
        return f"git -c {keys[0]} may name what it runs"
    if name == "git" and any(_git_may_run(each, rest) for each in _git_commands(rest)):
        return "git runs what its words or its configuration name"
    program = PROGRAMS.get(name)
    if program is None or not program.subcommands:
        return ""
    return _unknown_subcommand(name, program, rest)


def _unknown_subcommand(name: str, program: Program, rest: list[str]) -> str:
    known = program.subcommands.split()
    for operands in _operands(program, rest, 1):
        if not operands or operands[0] in known:
            continue
        if not (program.abbreviates and any(each.startswith(operands[0]) for each in known)):
            return f"{name} {operands[0]} may be an alias"
    return ""


def _script(words: Sequence[str]) -> list[str]:
    """Of a shell: the script that it runs and its words; a line behind `-c` is one that is looked into."""
    rest = list(words)
    while rest and rest[0][:1] in "-+" and rest[0] not in ("-", "--"):
        option = rest.pop(0)
        if option in ("--version", "--help"):
            return ["--version"]
        if re.fullmatch(r"-[A-Za-z]*c|--command|-[Cc]ommand|/c", option):
            return ["-c"] if rest else []
        if option in _SHELL_VALUES and rest:
            rest.pop(0)
        if re.fullmatch(r"-[A-Za-z]*s[A-Za-z]*", option):
            return []
    return rest[1:] if rest[:1] == ["--"] else rest


def _reads_its_script(script: Sequence[str]) -> bool:
    return not script or script[0] == "-" or script[0].startswith(("/dev/", "/proc/"))


def _makes_of_words(words: Sequence[str]) -> bool:
    """Of make and just: rules, a shell or a line in its words."""
    if any(
        word.startswith(("--eval", "-E", "SHELL=", ".SHELLFLAGS=", "MAKEFLAGS=", "-c", "--command", "--shell"))
        for word in words
    ):
        return True
    given = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-f", "--file", "--makefile", "-I")]
    given += [word.partition("=")[2] for word in words if word.startswith(("--file=", "--makefile="))]
    return any(_reads_its_script([each]) for each in given) or "-f-" in words


def _unclear_input(name: str, rest: Sequence[str]) -> str:
    """`xargs git` may be anything that git does; `xargs grep x` only looks at more files."""
    for at, word in enumerate(rest):
        inner = (known_name(word), *rest[at + 1 :])
        if inner[0] in TAKES_DATA - _SHORT_FLAGS:
            return ""
        if inner[0] in PROGRAMS and not word.startswith("-"):
            operands = next(_operands(PROGRAMS[inner[0]], list(inner[1:]), 1), ())
            return "" if operands and operands[0] != "{}" else f"{name} adds words of its input"
    return f"{name} adds words of its input"


def _git_keys(words: Iterable[str]) -> list[str]:
    """Of git's `-c` and `--config-env`, the keys that may name a program."""
    given: list[str] = []
    before = ""
    for word in words:
        if before in ("-c", "--config-env"):
            given.append(word)
        elif word.startswith("--config-env="):
            given.append(word.partition("=")[2])
        elif word.startswith("-c") and before == "" and len(word) > 2:
            given.append(word[2:])
        elif not word.startswith("-") and before not in ("-C", "--git-dir", "--work-tree", "--namespace"):
            break
        before = word
    return [key for each in given if not _HARMLESS_KEYS.fullmatch(key := each.partition("=")[0])]


def _git_runs(words: Sequence[str]) -> bool:
    """May a word of it be run?"""
    rest = list(words[1:])
    commands = _git_commands(rest)
    return bool(_git_keys(rest)) or any(each in _GIT_RUNS or _runs_by_option(each, rest) for each in commands)


def _git_may_run(command: str, words: Sequence[str]) -> bool:
    if command == "config":
        keys = [each for each in words if re.fullmatch(r"[A-Za-z][\w-]*\..*", each, re.DOTALL)]
        sets = len([each for each in words if not each.startswith("-") and each not in ("config", "get")]) > 1
        return any(each in ("-e", "--edit", "edit") for each in words) or (
            sets and not all(map(_HARMLESS_KEYS.fullmatch, keys))
        )
    is_transport = any(word.startswith("ext::") for word in words)
    return command in _GIT_UNCLEAR or is_transport or _runs_by_option(command, words)


def _git_commands(rest: list[str]) -> set[str]:
    """Its subcommand: more than one where it is not known whether an option takes a value."""
    return {each[0] for each in _operands(PROGRAMS["git"], rest, 1) if each}


def _runs_by_option(command: str, words: Iterable[str]) -> bool:
    known = _GIT_RUNNING_OPTIONS.get(command, ())
    return any(_may_be(word, option) for word in words for option in known if word.startswith("-"))


def _may_be(word: str, option: str) -> bool:
    """Is the word this option, shortened, among others behind one dash, or with its value?"""
    if not option.startswith("--"):
        return re.fullmatch(rf"-[A-Za-z]*{option[1]}.*", word, re.DOTALL) is not None
    name = word.partition("=")[0]
    return len(name) > 3 and option.startswith(name)
