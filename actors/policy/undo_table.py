"""What of a command cannot be undone, by kind, as far as its words tell: no table allows that, only a rule.

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

from callboard.actors.policy.command_names import TAKES_DATA, operands_of, readings, words_of

_CANNOT_BE_UNDONE: Final = "it cannot be undone"

_FILES: Final = """
    rm rmdir unlink shred srm dd truncate mv cp install tee wipe zap format chattr setfacl chown chgrp ex ed sponge
    patch gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma zstd unzstd lz4 compress uncompress zip unzip 7z 7za 7zr unrar
    cpio ar ranlib strip objcopy split csplit mogrify convert magick exiftool uniq xxd
    rename mmv detox trash trash-put trash-empty gio fallocate
"""
#: Programs and subcommands that write files anew, unless they are told to look only.
_REWRITING: Final = words_of("black isort autopep8 yapf rustfmt gofumpt fmt format fix")
_LOOKING: Final = words_of("--check --check-only --diff --dry-run --list -l -d --test")
_MACHINE: Final = """
    mkfs wipefs kill killall pkill skill shutdown reboot halt poweroff init telinit fdisk sfdisk cfdisk parted gdisk
    sgdisk mkswap swapoff swapon userdel groupdel deluser delgroup usermod passwd chpasswd blkdiscard lvremove vgremove
    pvremove lvreduce crontab at atrm batch systemctl service launchctl mount umount iptables ip6tables nft ufw
    firewall-cmd mke2fs hdparm nvme losetup debugfs tune2fs resize2fs btrfs zfs zpool cryptsetup mdadm dmsetup modprobe
    useradd groupadd adduser addgroup hostnamectl timedatectl hwclock date nmcli fuser snapper
    rmmod insmod sysctl loginctl keyctl history visudo dpkg pacman
"""
_OF_DATA: Final = """
    dropdb dropuser createdb createuser psql pg_restore pg_ctl mysql mariadb mysqladmin mysqlimport sqlite3 mongo
    mongosh pg_dump mongorestore redis-cli valkey-cli cqlsh clickhouse-client clickhouse influx duckdb sqlcmd sqlplus
    cypher-shell neo4j-admin kafka-topics kafka-configs rabbitmqctl rabbitmqadmin zkcli flyway liquibase
"""
_SENDING: Final = """
    ssh mosh scp sftp rsync ftp tftp lftp ncftp nc ncat netcat socat telnet mail mailx sendmail mutt neomutt swaks msmtp
    lp lpr lprm twilio telegram-send slackcat tweet toot twine rclone s3cmd s4cmd mc azcopy magic-wormhole wormhole croc
    semantic-release release-it standard-version np changeset adb fastboot esptool esptool.py skopeo crane
    oras wall write
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
WRITES: Final = words_of("cp mv ln install tee dd curl wget sed patch tar unzip rsync scp")
#: Of these, ordinary words too: they count as programs only where a command begins.
_ORDINARY: Final = words_of("""
    init service format install split convert write mail at batch history trash mount zap wipe rename patch ex ed ar
    salt fab cap influx clickhouse mc date np changeset toot tweet wall skill passwd compress puppet packer strip magick
    kill
""")
_SAYING: Final = """
    apply abandon abort autoremove cancel clean clear close clobber commit decommission delete del deploy deprecate
    deregister destroy detach disable dist-upgrade distclean downgrade drain drop dropall edit empty erase evict expire
    failover flush flushall flushdb forget fresh kill merge migrate obliterate overwrite patch pop prune publish purge
    push release-publish reject remove reset restore-backup revert revoke rm rmi rb rollback rotate scale send shutdown
    squash stop strip submit suspend sync-delete taint terminate transfer truncate undeploy uninstall unlink unmount
    unpublish unregister unsubscribe update-ref upload wipe yank zap rename mv release logout undo unset
    down trash flash
"""
#: What subcommands say that cannot be undone.
VERBS: Final = frozenset(_SAYING.split())
#: Behind these, words name packages, targets and things to look at.
_ONLY_NAMES: Final = words_of("""
    add install get list ls show status describe info view search help logs log build test check lint bench doc docs
    explain diff outdated why tree inspect images ps version plan validate output graph lock sync i ci
    find fd xargs pytest py.test jest vitest mocha rspec phpunit python python3 node ruby perl php
    """)
#: And what else some programs call it.
_OWN_VERBS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        name: words_of(verbs)
        for name, verbs in {
            **dict.fromkeys(("docker", "podman", "docker-compose", "nerdctl"), "down leave tag"),
            **dict.fromkeys(("apt", "apt-get", "dnf", "yum", "zypper", "apk", "brew"), "erase upgrade cleanup"),
            "conda": "update",
            **dict.fromkeys(("kubectl", "oc"), "exec run create replace cp"),
            "npm": "dist-tag owner access token team un r version",
            "cargo": "owner r",
            "gem": "owner cleanup",
            "mvn": "install",
            "make": "install",
            "cmake": "--install",
            "alembic": "upgrade stamp",
            "dvc": "gc",
            **dict.fromkeys(("hg", "svn", "p4", "jj", "bzr", "fossil"), "update up ci op import"),
            **dict.fromkeys(("restic", "borg"), "key unlock compact"),
            **dict.fromkeys(("goose", "migrate", "dbmate", "knex"), "up down"),
            "ip": "add set",
            **dict.fromkeys(("screen", "tmux"), "kill-server kill-session -X quit"),
            "rubocop": "-A -a --autocorrect --autocorrect-all --auto-correct",
            "rpm": "-e -i -U -F",
            "nix-env": "-e -i -u",
            "flask": "upgrade",
            "dbt": "run",
        }.items()
    }
)  # fmt: skip
#: Programs that change what is elsewhere. Of these it is told the other way round: what does not say that it looks.
_ELSEWHERE: Final = words_of("""
    aws gcloud gsutil bq az doctl linode-cli hcloud scw heroku fly flyctl vercel netlify firebase supabase railway
    render wrangler gh glab hub kubectl oc helm helmfile argocd flux istioctl linkerd velero eksctl kops kind k3d
    minikube
    terraform tofu terragrunt pulumi cdk cdktf sam serverless sls sst amplify copilot eb ecs-cli nomad vault consul
    etcdctl stripe linear jira op bw pass gopass doppler skaffold tilt devspace okteto virsh fastboot adb fastlane
    snapcraft pm2 supervisorctl kafka-topics kafka-configs kafka-console-producer airflow dagster prefect databricks
    snowsql ovhcloud ibmcloud oci aliyun yc tccli lxc incus multipass vagrant cf ibmcloud rosa
""")
_LOOKS: Final = words_of("""
    get list ls show describe status view logs log plan validate output graph version help diff template lint preview
    whoami info check explain top history events search inspect doctor init providers docs config-view cluster-info
    api-resources api-versions env tree watch tail head stat cat test console clone checkout ps projects devices
    can-i completion synth lookup dry-run current-context get-contexts
""")
#: A command with more of them counts as not understood anyhow.
_MAX_READINGS: Final = 1_000
#: What long options say; some verbs are harmless there (`cargo build --release`).
_OF_OPTIONS: Final = (VERBS | words_of("fix write overwrite replace prod")) - words_of(
    "commit merge scale patch release edit clean squash strip close send clear"
)
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
#: And long ones, by which they begin.
_LONG: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sed": ("--in",),
        "chmod": ("--recursive",),
        "ln": ("--force",),
        "sort": ("--o",),
        "shuf": ("--o",),
        "gpg": ("--delete", "--out", "--gen-rev"),
        "tar": ("--extract", "--get", "--create", "--append", "--update", "--remove", "--delete", "--concat"),
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
_GIT_KEEPS: Final = words_of("""
    add annotate apply-check archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap checkout
    cherry cherry-pick clone commit commit-graph commit-tree config count-objects describe diff diff-files diff-index
    diff-tree fetch fmt-merge-msg for-each-ref format-patch fsck grep help init interpret-trailers log ls-files
    ls-remote ls-tree merge merge-base merge-tree mv name-rev pull range-diff reflog remote request-pull reset rev-list
    rev-parse revert shortlog show show-branch show-ref stage stash status stripspace switch tag var verify-commit
    verify-pack verify-tag version whatchanged worktree write-tree
    """)
#: Of these, words with which they do, short options also among others.
_GIT_LOSES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "branch": words_of("-D -d -M -m -C -f --delete --force --move"),
        "tag": words_of("-d -f --delete --force"),
        "checkout": words_of("-- . -f -B -p -m --force --merge --ours --theirs --patch --overwrite-ignore "
            "--pathspec-from-file"),
        "switch": words_of("-C -f -m --force-create --discard-changes --force --merge"),
        "reset": words_of("--hard --merge --keep -p --patch"),
        "stash": words_of("drop clear pop"),
        "reflog": words_of("expire delete drop"),
        "remote": words_of("remove rm rename set-url prune set-head"),
        "worktree": words_of("remove prune move -f -B --force"),
        "config": words_of("--unset --unset-all --replace-all --remove-section --rename-section -e --edit unset "
            "remove-section rename-section edit --global --system"),
        "mv": words_of("-f --force"),
        "fetch": words_of("-p -P -f --prune --prune-tags --force --update-head-ok"),
        "pull": words_of("-f -p --force --prune --autostash"),
        **dict.fromkeys(("merge", "cherry-pick", "revert", "am"), words_of("--abort --quit --skip")),
        "bundle": frozenset({"create"}),
        "archive": words_of("-o --output"),
        "format-patch": words_of("-o --output-directory --output"),
        "bisect": frozenset({"run"}),
        "diff": frozenset({"--output"}),
        "log": frozenset({"--output"}),
        "show": frozenset({"--output"}),
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
    if _has_option(name, rest) or (is_first and name not in TAKES_DATA and _says_so(name, rest, exists)):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    if not is_first and (name in _OWN_VERBS or name in _ELSEWHERE) and _says_by_verb(name, rest):
        return f"{name}: {_CANNOT_BE_UNDONE}"
    return ""


def _has_option(name: str, words: Sequence[str]) -> bool:
    (letters, valued), long = _LETTERS.get(name, ("", "")), _LONG.get(name, ())
    return any(_clustered(word, letters, valued) or word.startswith(long) for word in words)


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
    own, is_elsewhere = _OWN_VERBS.get(name, frozenset()), name in _ELSEWHERE
    if not own.isdisjoint(word for word in words if word.startswith("-")):
        return True
    if name in _ONLY_NAMES:
        return False
    verbs = own | VERBS | (frozenset() if _LOOKING & set(words) else _REWRITING)
    if name in verbs & _REWRITING:
        return True
    for operands in islice(operands_of((name, *words)), _MAX_READINGS):
        if _is_said(operands[:4], verbs):
            return True
        if is_elsewhere and operands and not any(_LOOKS & _pieces(word) for word in operands[:4]):
            return True
    return False


def _is_said(operands: Sequence[str], verbs: frozenset[str]) -> bool:
    for word in operands:
        if _pieces(word) & verbs:
            return True
        if word in _ONLY_NAMES or (word in TAKES_DATA and word not in DESTROYS):
            break
    return False


def _pieces(word: str) -> set[str]:
    """`delete-stack`, `publishToMaven`, `db:drop`, `hex.publish`: the verb is first, or behind the last mark."""
    if not re.fullmatch(r"[A-Za-z]\w*(?:[-:.][A-Za-z0-9_]+)*", word):
        return set()
    first = re.match(r"[A-Z]?[a-z]*|[A-Z]+", re.split(r"[-_:]", word)[0])
    last = re.split(r"[:.]", word)[-1]
    return {each.lower() for each in (word, first[0] if first else "", last, re.split(r"[-_]", last)[0]) if each}


def _option_says(word: str) -> bool:
    """`--delete`, `--purge=all`, `--fix`; not `--rm`, by which containers are taken away that the command has made."""
    if not word.startswith("--") or word == "--rm":
        return False
    first = re.split(r"[-=]", word[2:])[0].lower()
    return first in _OF_OPTIONS or word.startswith(("--in-place", "--inplace"))


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
    following = (*words[1:], "")
    return any(_curl_option_sends(word, after) for word, after in zip(words, following, strict=False))


def _curl_option_sends(word: str, following: str) -> bool:
    """curl takes long options shortened, and values behind a short one in the same word."""
    name, _, value = word.partition("=")
    if word.startswith("--"):
        is_method = len(name) > 4 and "--request".startswith(name)
        if is_method and (value or following).upper() not in _ONLY_ASKS:
            return True
        return len(name) > 3 and any(each.startswith(name) for each in _CURL_LONG.split())
    found = _clustered(word, _CURL_WRITES | {"X"}, _CURL_VALUES)
    given = found[1:] or following
    if found.startswith("X"):
        return given.upper() not in _ONLY_ASKS
    return bool(found) and not (found.startswith("o") and given in ("-", "/dev/null"))


def _wget_sends(words: Sequence[str]) -> bool:
    long = ("--post", "--method", "--body", "--delete", "--output", "--timestamping", "--continue", "--mirror")
    for at, word in enumerate(words):
        if word.startswith(long) or (len(word) > 4 and any(each.startswith(word.partition("=")[0]) for each in long)):
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


def _in_script(words: Sequence[str]) -> bool:
    return "inplace" in words or any(map(_IN_SCRIPT.search, words))


def _takes_rights(words: Sequence[str]) -> bool:
    return any(re.fullmatch(r"0*[0-3]?0?0{2,3}", word) for word in words)


def _opens_archive(words: Sequence[str]) -> bool:
    return any(re.match(r"[A-Za-z]*[xcruA]", word) for word in words[:1])


#: Programs of which it is not told by a letter, a verb or an option alone.
_OWN: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = MappingProxyType(
    {
        "find": lambda words: not _FIND.isdisjoint(words),
        **dict.fromkeys(("sed", "awk", "gawk"), _in_script),
        "curl": _curl_sends,
        "wget": _wget_sends,
        **dict.fromkeys(("http", "https", "xh", "xhs", "httpie"), _http_sends),
        "chmod": _takes_rights,
        "tar": _opens_archive,
        "vercel": lambda words: all(word.startswith("-") for word in words),
    }
)
