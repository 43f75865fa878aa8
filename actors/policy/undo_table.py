"""What of a command cannot be undone, by kind, as far as its words tell. No table allows that, only a rule of the owner's.

The kinds: files are removed or replaced (by name of the program, by an option that says so, or by one that names a file
which is there); a subcommand that says so (`destroy`, `push`, `db:drop`), of any program; what is sent, or applied to
machines elsewhere; processes and machines. Of git it is told the other way round: what is not known to be kept by git
itself (its commits and its log of references) counts. What a script or a build does inside is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

from callboard.actors.policy.command_names import TAKES_DATA, operands_of, readings

_CANNOT_BE_UNDONE: Final = "it cannot be undone"

_FILES: Final = """
    rm rmdir unlink shred srm dd truncate mv cp install tee wipe zap format chattr setfacl chown chgrp ex ed sponge
    patch gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma zstd unzstd lz4 compress uncompress zip unzip 7z 7za 7zr unrar
    cpio ar ranlib strip objcopy split csplit mogrify convert magick exiftool uniq xxd black isort autopep8 yapf rustfmt
    rename mmv detox trash-empty
"""
_MACHINE: Final = """
    mkfs wipefs kill killall pkill skill shutdown reboot halt poweroff init telinit fdisk sfdisk cfdisk parted gdisk
    sgdisk mkswap swapoff swapon userdel groupdel deluser delgroup usermod passwd chpasswd blkdiscard lvremove vgremove
    pvremove lvreduce crontab at atrm batch systemctl service launchctl mount umount iptables ip6tables nft ufw
    firewall-cmd mke2fs hdparm nvme losetup debugfs tune2fs resize2fs btrfs zfs zpool cryptsetup mdadm dmsetup modprobe
    rmmod insmod sysctl loginctl keyctl history visudo dpkg pacman
"""
_OF_DATA: Final = """
    dropdb dropuser createdb createuser psql pg_restore pg_ctl mysql mariadb mysqladmin mysqlimport sqlite3 mongo mongosh
    mongorestore redis-cli valkey-cli cqlsh clickhouse-client clickhouse influx duckdb sqlcmd sqlplus cypher-shell
    neo4j-admin kafka-topics kafka-configs rabbitmqctl rabbitmqadmin zkcli flyway liquibase
"""
_SENDING: Final = """
    ssh mosh scp sftp rsync ftp tftp lftp ncftp nc ncat netcat socat telnet mail mailx sendmail mutt neomutt swaks msmtp
    lp lpr lprm twilio telegram-send slackcat tweet toot twine rclone s3cmd s4cmd mc azcopy magic-wormhole wormhole croc
    semantic-release skopeo crane oras wall write
"""
_APPLYING: Final = """
    ansible ansible-playbook ansible-pull salt chef-client puppet packer cap fab helmfile kexec
"""
#: Programs that remove or replace files; that change processes, users and disks; that are given statements to run.
DESTROYS: Final = frozenset(f"{_FILES} {_MACHINE} {_OF_DATA}".split())
#: Programs that send something elsewhere.
_SENDS: Final = frozenset(_SENDING.split())
#: Programs that apply what a file says to machines.
_APPLIES: Final = frozenset(_APPLYING.split())
#: Programs whose words name files that they make.
WRITES: Final = frozenset("cp mv ln install tee dd curl wget sed patch tar unzip rsync scp".split())
#: Of these, ordinary words too: they count as programs only where a command begins.
_ORDINARY: Final = frozenset(
    """
    init service format install split convert write mail at batch history mount zap wipe rename patch ex ed ar salt fab
    cap black influx clickhouse mc toot tweet wall skill passwd compress puppet packer strip magick kill test
    """.split()
)
_SAYING: Final = """
    apply abandon abort autoremove cancel clean clear close clobber commit decommission delete del deploy deprecate
    deregister destroy detach disable dist-upgrade distclean downgrade drain drop dropall edit empty erase evict expire
    failover flush flushall flushdb forget fresh kill merge migrate obliterate overwrite patch pop prune publish purge
    push release-publish reject remove reset restore-backup revert revoke rm rmi rb rollback rotate scale send shutdown
    squash stop strip submit suspend sync-delete taint terminate transfer truncate undeploy uninstall unlink unmount
    unpublish unregister unsubscribe update-ref upload wipe yank zap rename mv
"""
#: What subcommands say that cannot be undone.
VERBS: Final = frozenset(_SAYING.split())
#: Behind these, words name packages, targets and things to look at.
_ONLY_NAMES: Final = frozenset(
    """
    add install get list ls show status describe info view search help logs log build test check lint bench doc docs
    explain diff outdated why tree inspect images ps version plan validate fmt output graph lock sync i ci
    pytest py.test jest vitest mocha rspec phpunit python python3 node ruby perl php
    """.split()
)
#: And what else some programs call it.
_OWN_VERBS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        name: frozenset(verbs.split())
        for name, verbs in {
            **dict.fromkeys(("terraform", "tofu"), "import untaint state force-unlock workspace"),
            "terragrunt": "run-all import state",
            "pulumi": "up update import refresh state",
            "helm": "upgrade install",
            "argocd": "sync set",
            "skaffold": "run dev",
            **dict.fromkeys(("kubectl", "oc"), "replace create run exec cp rollout set label annotate expose cordon taint"),
            **dict.fromkeys(("docker", "podman", "docker-compose", "nerdctl"), "down leave"),
            **dict.fromkeys(("apt", "apt-get", "dnf", "yum", "zypper", "apk", "brew"), "erase upgrade"),
            "conda": "update",
            "gh": "create upload set run api sync review comment reopen lock ready",
            "glab": "create update api",
            "aws": "create put update modify start run invoke cp sync mb",
            **dict.fromkeys(("gsutil", "gcloud", "bq"), "cp rsync mk load create update set ssh run"),
            "az": "create update set start invoke",
            **dict.fromkeys(("fly", "flyctl", "heroku", "vercel", "netlify", "railway", "firebase", "supabase"),
                "up create launch set restart run secrets"),
            "render": "create",
            "npm": "dist-tag owner access token team un r",
            "cargo": "owner r",
            "gem": "owner cleanup",
            "goreleaser": "release",
            "mvn": "install release",
            **dict.fromkeys(("vault", "consul", "etcdctl", "nomad"), "write put run job disable seal"),
            "alembic": "upgrade stamp",
            **dict.fromkeys(("rails", "rake"), "runner"),
            "dvc": "gc",
            "git-annex": "dropunused move",
            **dict.fromkeys(("hg", "svn", "p4", "jj", "bzr", "fossil"), "update up ci strip op import"),
            **dict.fromkeys(("restic", "borg"), "key unlock compact"),
            "stripe": "create update confirm capture",
            "ip": "add set",
            "make": "install deploy release",
            **dict.fromkeys(("screen", "tmux"), "kill-server kill-session -X quit"),
            "gpg": "--delete-keys",
        }.items()
    }
)  # fmt: skip
#: A command with more of them counts as not understood anyhow.
_MAX_READINGS: Final = 1_000
#: Long options that say it, beside those that begin with such a verb.
_OVERWRITING: Final = frozenset({"fix", "write", "in", "inplace", "overwrite", "replace", "unsafe", "prod"})
_OUTPUT: Final = re.compile(r"(?:-o|-O|-out|--?out(?:put)?(?:-?file)?|--to)(?:=(?P<value>.*))?", re.DOTALL)
#: Letters of options by which a program replaces files; behind the first of the second, the rest is a value.
_LETTERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "sed": ("iw", "efl"),
        "perl": ("i", "eEIMmFlx0"),
        "ruby": ("i", "eIrFC0"),
        "sort": ("o", "kStT"),
        "shuf": ("o", "en"),
        "ln": ("fFi", "tS"),
        "column": ("o", "cst"),
        "iconv": ("o", "ft"),
        "gofmt": ("w", "rd"),
        "goimports": ("w", "d"),
        "clang-format": ("i", ""),
        "shfmt": ("w", "i"),
        "prettier": ("w", ""),
        "ffmpeg": ("y", "i"),
        "chmod": ("R", ""),
        "tar": ("xcrAu", "fCTIXKNVbgH"),
        "bsdtar": ("xcru", "fCTIX"),
        "gpg": ("o", "ru"),
        "ssh-keygen": ("Rf", "CNtb"),
        "apt-key": ("d", ""),
    }
)
_FIND: Final = frozenset({"-delete", "-fprint", "-fls", "-fprintf", "-fprint0"})
_IN_SCRIPT: Final = re.compile(r"""(?:^|[;{}/\s\d$])[wW]\s+\S|>\s*["']|\binplace\b""")
_CURL_LONG: Final = """
    --data --data-raw --data-binary --data-ascii --data-urlencode --json --form --form-string --upload-file --output
    --output-dir --remote-name --remote-name-all --remote-header-name --config --quote --mail-rcpt --append --libcurl
    --dump-header --cookie-jar --trace --trace-ascii --stderr --etag-save --hsts --alt-svc --url-query --telnet-option
"""
_CURL_WRITES: Final = frozenset("dFToOJKQDac")
_CURL_VALUES: Final = frozenset("AbCeEHhmPrtuUwxyYz")
_ONLY_ASKS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

#: Subcommands of git that take nothing away: what was is in a commit, a stash or the log of references.
_GIT_KEEPS: Final = frozenset(
    """
    add annotate apply-check archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap checkout
    cherry cherry-pick clone commit commit-graph commit-tree config count-objects describe diff diff-files diff-index
    diff-tree fetch fmt-merge-msg for-each-ref format-patch fsck grep help init interpret-trailers log ls-files
    ls-remote ls-tree merge merge-base merge-tree mv name-rev pull range-diff reflog remote request-pull reset rev-list
    rev-parse revert shortlog show show-branch show-ref stage stash status stripspace switch tag var verify-commit
    verify-pack verify-tag version whatchanged worktree write-tree
    """.split()
)
#: Of these, words with which they do, short options also among others.
_GIT_LOSES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "branch": frozenset("-D -d -M -m -C -f --delete --force --move".split()),
        "tag": frozenset("-d -f --delete --force".split()),
        "checkout": frozenset("-- . -f -B -p -m --force --merge --ours --theirs --patch --overwrite-ignore --pathspec-from-file".split()),
        "switch": frozenset("-C -f -m --force-create --discard-changes --force --merge".split()),
        "reset": frozenset("--hard --merge --keep -p --patch".split()),
        "stash": frozenset("drop clear pop".split()),
        "reflog": frozenset("expire delete drop".split()),
        "remote": frozenset("remove rm rename set-url prune set-head".split()),
        "worktree": frozenset("remove prune move -f -B --force".split()),
        "config": frozenset("--unset --unset-all --replace-all --remove-section --rename-section -e --edit unset "
            "remove-section rename-section edit --global --system".split()),
        "mv": frozenset("-f --force".split()),
        "fetch": frozenset("-p -P -f --prune --prune-tags --force --update-head-ok".split()),
        "pull": frozenset("-f -p --force --prune --autostash".split()),
        "commit": frozenset(),
        "archive": frozenset("-o --output".split()),
        "format-patch": frozenset("-o --output-directory --output".split()),
        "bisect": frozenset({"run"}),
        "diff": frozenset({"--output"}),
        "log": frozenset({"--output"}),
        "show": frozenset({"--output"}),
        "init": frozenset(),
    }
)  # fmt: skip


def why_not_undone(words: Sequence[str], exists: Callable[[str], bool], *, is_first: bool) -> str:
    """Why what the command does could not be undone; "" if its words do not say so.

    `exists`: is there such a file? `is_first`: it is what the line runs, not words of it that may be a command.
    """
    name, rest = words[0], list(words[1:])
    base = name.partition(".")[0] if name.startswith("mkfs.") else name
    if base in DESTROYS | _SENDS | _APPLIES and (is_first or base not in _ORDINARY):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    if name == "git":
        return f"git: {_CANNOT_BE_UNDONE}" if _git_loses(rest, exists) else ""
    loses = _OWN.get(name)
    if loses is not None and loses(rest):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    if _has_letter(name, rest) or (is_first and name not in TAKES_DATA and _says_so(name, rest, exists)):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    if not is_first and name in _OWN_VERBS and _says_by_verb(name, rest):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    return ""


def _has_letter(name: str, words: Sequence[str]) -> bool:
    letters, valued = _LETTERS.get(name, ("", ""))
    return any(_clustered(word, letters, valued) for word in words)


def _clustered(word: str, letters: str | frozenset[str], valued: str | frozenset[str]) -> str:
    """The first of the letters that stands in a word of short options; with what follows it."""
    if not word.startswith("-") or word.startswith("--"):
        return ""
    for at, letter in enumerate(word[1:], 1):
        if letter in letters:
            return word[at:]
        if letter in valued:
            break
    return ""


def _says_so(name: str, words: Sequence[str], exists: Callable[[str], bool]) -> bool:
    return _says_by_verb(name, words) or any(map(_option_says, words)) or _replaces_output(words, exists)


def _says_by_verb(name: str, words: Sequence[str]) -> bool:
    """Does one of its first operands say it, in some way to read the words?"""
    own = _OWN_VERBS.get(name, frozenset())
    if not own.isdisjoint(word for word in words if word.startswith("-")):
        return True
    if name in _ONLY_NAMES:
        return False
    for operands in islice(operands_of((name, *words)), _MAX_READINGS):
        for word in operands[:4]:
            pieces = _pieces(word)
            if not pieces.isdisjoint(own | VERBS):
                return True
            if word in _ONLY_NAMES or (word in TAKES_DATA and word not in DESTROYS):
                break
    return False


def _pieces(word: str) -> set[str]:
    """`delete-stack`, `db:drop`, `hex.publish`: the verb is first, or behind the last mark."""
    word = word.lower()
    if not re.fullmatch(r"[a-z]\w*(?:[-:.][a-z0-9_]+)*", word):
        return set()
    return {word, re.split(r"[-:]", word)[0], re.split(r"[:.]", word)[-1]}


def _option_says(word: str) -> bool:
    """`--delete`, `--purge=all`, `--fix`; not `--rm`, by which containers are taken away that the command has made."""
    if not word.startswith("--") or word == "--rm":
        return False
    first = re.split(r"[-=]", word[2:])[0].lower()
    return (
        first in _OVERWRITING and not word.startswith(("--in-memory", "--in-band")) or first in VERBS - _NOT_AS_OPTION
    )


_NOT_AS_OPTION: Final = frozenset(
    {"commit", "merge", "scale", "patch", "edit", "clean", "squash", "strip", "close", "send", "clear"}
)


def _replaces_output(words: Sequence[str], exists: Callable[[str], bool]) -> bool:
    """Does an option for its output name a file that is there?"""
    for at, word in enumerate(words):
        found = _OUTPUT.fullmatch(word)
        if found is not None:
            value = found["value"] or (words[at + 1] if at + 1 < len(words) else "")
        else:
            value = word[2:] if word.startswith(("-o", "-O")) else ""
        if value and exists(value):
            return True
    return False


def _git_loses(words: Sequence[str], exists: Callable[[str], bool]) -> bool:
    for operands in readings(("git", *words)):
        if len(operands) < 2 or operands[1].startswith("-"):
            continue
        command, rest = operands[1], operands[2:]
        if command not in _GIT_KEEPS:
            return command not in ("--version", "--help")
        loses = _GIT_LOSES.get(command, frozenset())
        letters = frozenset(each[1] for each in loses if re.fullmatch(r"-[A-Za-z]", each))
        if any(word.partition("=")[0] in loses or _clustered(word, letters, "") for word in rest):
            return True
        if any(_shortens(word, loses) for word in rest):
            return True
        if command in ("checkout", "clone") and any(exists(word) for word in rest):
            return True
        if command in ("fetch", "pull") and any(
            word.startswith("+") or ":" in word.rpartition("/")[2] for word in rest
        ):
            return True
    return False


def _shortens(word: str, options: frozenset[str]) -> bool:
    """git takes long options shortened."""
    name = word.partition("=")[0]
    return len(name) > 4 and name.startswith("--") and any(each.startswith(name) for each in options)


def _curl_sends(words: Sequence[str]) -> bool:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        name, _, value = word.partition("=")
        if word.startswith("--"):
            if len(name) > 4 and "--request".startswith(name) and (value or following).upper() not in _ONLY_ASKS:
                return True
            if len(name) > 3 and any(each.startswith(name) for each in _CURL_LONG.split()):
                return True
        elif found := _clustered(word, _CURL_WRITES | {"X"}, _CURL_VALUES):
            method = found[1:] or following
            target = found[1:] or following
            if not (
                found[0] == "X" and method.upper() in _ONLY_ASKS or found[0] == "o" and target in ("-", "/dev/null")
            ):
                return True
    return False


def _wget_sends(words: Sequence[str]) -> bool:
    long = ("--post", "--method", "--body", "--delete", "--output", "--timestamping", "--continue", "--mirror")
    for at, word in enumerate(words):
        if word.startswith(long):
            return True
        found = _clustered(word, "OoaNcmPi", "UTtQDXI")
        if found and (found[1:] or (words[at + 1] if at + 1 < len(words) else "")) != "-":
            return True
    return False


def _http_sends(words: Sequence[str]) -> bool:
    """HTTPie and what is like it: a method, or an item that makes it a POST."""
    for word in words:
        if re.fullmatch(r"[A-Za-z]+", word) and word.upper() not in _ONLY_ASKS:
            return True
        if re.search(r"^[\w.\[\]-]+(?::=|=(?!=)|@)", word) or word.startswith(
            ("-f", "-o", "-d", "--form", "--out", "--down")
        ):
            return True
    return False


_OWN: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = MappingProxyType(
    {
        "find": lambda words: not _FIND.isdisjoint(words),
        "sed": lambda words: any(map(_IN_SCRIPT.search, words)) or any(word.startswith("--in") for word in words),
        "awk": lambda words: any(map(_IN_SCRIPT.search, words)) or "inplace" in words,
        "gawk": lambda words: any(map(_IN_SCRIPT.search, words)) or "inplace" in words,
        "curl": _curl_sends,
        "wget": _wget_sends,
        **dict.fromkeys(("http", "https", "xh", "xhs", "httpie"), _http_sends),
        "chmod": lambda words: "--recursive" in words or any(re.fullmatch(r"0*[0-3]?0?0{2,3}", word) for word in words),
        "ln": lambda words: "--force" in words,
        "sort": lambda words: any(word.startswith("--o") for word in words),
        "shuf": lambda words: any(word.startswith("--o") for word in words),
        "vercel": lambda words: not words or words[0].startswith("-"),
        "wg": lambda words: True,
        "gpg": lambda words: any(word.startswith(("--delete", "--out", "--gen-rev")) for word in words),
        "ruff": lambda words: words[:1] == ["format"] and "--check" not in words and "--diff" not in words,
        "tar": lambda words: bool(words) and (not words[0].startswith("-") and words[0][:1] in "xcruA" or any(
            word.startswith(("--extract", "--get", "--create", "--append", "--update", "--remove", "--delete", "--concat"))
            for word in words)),
    }
)  # fmt: skip
