"""Files that hold secrets: no tool of callboard's reads or lists them for a model, and they are not indexed.

The list is here, in `FILES`, `PLACES` and `FOLDERS`. The owner of the runtime extends it by `Settings.secret_files` and
by files called `.callboardignore` in any folder of the workspace (both in the syntax of .gitignore). Only the setting
can allow what the list forbids: a `.callboardignore` may have come with the code of a stranger, so `!` in it takes back
no more than what another `.callboardignore` has said.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from callboard.actors.below import is_below, is_below_any
from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import pathspec
else:
    pathspec = lazy_module("pathspec")

#: In any folder of the workspace; read like a .gitignore.
IGNORE_FILE: Final = ".callboardignore"
#: Of a file, so much is looked at to see whether it is a private key.
KEY_PROBE_BYTES: Final = 1_024

#: Names of files, wherever they are. `*` is any text; upper and lower case are one.
FILES: Final = """
    .git .env .env.* .env-* .env_* *.env .envrc .envrc.* .flaskenv env.local .dev.vars .dev.vars.* .secret .secrets
    .secrets.* .token .apikey .api_key secret.json secret.toml secret.yaml secret.yml secret.ini secret.txt secrets.json
    secrets.toml secrets.yaml secrets.yml secrets.ini secrets.txt secrets.env secrets.properties password.txt
    passwords.txt passwords.csv passwords.json api_key.txt api-key.txt apikey.txt api_keys.json api_keys.txt
    api_keys.yaml token.json token.pickle token.txt local.settings.json .vault_pass* .vault-pass* vault_pass
    vault_pass.txt vault-password vault-password.txt

    id_rsa* id_dsa* id_ecdsa* id_ed25519* id_xmss* *_rsa *_ed25519 ssh_host_*_key identity *.pem *.key *.p8 *.p12 *.pfx
    *.pkcs12 *.jks *.jceks *.bks *.keystore *.kdb *.kdbx *.ppk *.agekey *.keytab *.priv *.ovpn *.keychain *.keychain-db
    *.keyring *.kwl *.pk8 *.snk secring.* private_key private_key.txt privatekey.txt wallet.dat utc--* *.gpg *.pgp
    wg0.conf

    .netrc _netrc .netrc.* .npmrc .yarnrc .yarnrc.yml .pypirc pip.conf pip.ini .condarc .gemrc .dockercfg
    .dockerconfigjson .git-credentials .git-credentials-* .gitconfig .hgrc .gitcookies settings-security.xml .curlrc
    _curlrc .wgetrc .lftprc .ftpconfig sftp-config.json .remote-sync.json filezilla.xml sitemanager.xml
    recentservers.xml .msmtprc .fetchmailrc .offlineimaprc .mbsyncrc .smbcredentials .passwd-s3fs

    .credentials .credentials.* .claude.json oauth_creds.json credentials credentials.json credentials.toml
    credentials.yaml credentials.yml credentials.csv credentials.xml credentials.ini credentials.txt credentials.db
    credentials.properties credential.json application_default_credentials.json access_tokens.db service-account*.json
    service_account*.json serviceaccount*.json *-service-account.json *firebase-adminsdk*.json gcp-key*.json
    google-credentials*.json client_secret*.json client-secret*.json accesskeys.csv rootkey.csv *_accesskeys.csv .boto
    .s3cfg rclone.conf .rclone.conf .databrickscfg .vault-token .terraformrc terraform.rc *.tfstate *.tfstate.* *.tfvars
    *.tfvars.json *.tfrc.json kubeconfig kubeconfig.* *.kubeconfig kaggle.json

    .htpasswd .htdigest .pgpass pgpass.conf .my.cnf .mylogin.cnf .mongorc.js .dbshell .cqlshrc .odbc.ini wp-config.php
    gshadow shadow shadow- master.passwd .rhosts krb5cc_* .xauthority .iceauthority .*_history .zhistory .histfile
    fish_history .lesshst .viminfo .rediscli_auth cookies cookies.txt cookies.sqlite "login data" "web data" key3.db
    key4.db logins.json signons.sqlite

    copilot-token copilot-token.*
"""
#: Files and folders by their last two names: the last alone says too little.
PLACES: Final = """
    .docker/config.json containers/auth.json .composer/auth.json .codex/auth.json .m2/settings.xml .nuget/nuget.config
    .gradle/gradle.properties .config/gh .config/hub .config/glab-cli .config/gcloud .config/doctl .config/hcloud
    .config/op .config/sops .config/rclone .config/callboard .terraform.d/credentials.tfrc.json .pulumi/credentials.json
    .fly/config.yml .snowsql/config .kaggle/kaggle.json .huggingface/token huggingface/token huggingface/stored_tokens
    .aliyun/config.json .cargo/credentials .gem/credentials .hg/hgrc .svn/auth .vscode/sftp.json .idea/datasources.xml
    .idea/datasources.local.xml .idea/webservers.xml .jupyter/jupyter_server_config.json age/keys.txt sops/keys.txt
    .streamlit/secrets.toml .subversion/auth .bundle/config pypoetry/auth.toml opencode/auth.json .vercel/auth.json
    .config/github-copilot .config/heroku .config/configstore .config/ngrok .ngrok2/ngrok.yml .netlify/config.json
    .wrangler/config .railway/config.json .supabase/access-token solana/id.json
"""
#: Folders of which nothing is shown.
FOLDERS: Final = """
    .git .ssh .gnupg .aws .azure .kube .oci .snowflake .password-store keyrings .secrets .envs .cloudflared .vnc
    .callboard .mozilla .thunderbird .legacy_credentials legacy_credentials
"""
#: Endings of what is written for others to fill in, and of public keys: shown, with what looks like a key masked.
HARMLESS: Final = (
    *(".example", ".examples", ".sample", ".template", ".tmpl", ".tpl", ".dist", ".defaults", ".schema"),
    *("example.env", "sample.env", "template.env", ".pub"),
)
#: How editors and people name copies; a copy holds what the file held.
_COPY: Final = re.compile(
    r"(?:[~#. ]|\.(?:bak|backup|old|orig|save|saved|sw[op]|tmp|copy|[0-9])|[ _-]\(?copy\)?|[ ]?\([0-9]\))+$"
)
_COPY_ENDINGS: Final = (
    *("~", "#", ".", " ", ")", "copy", ".bak", ".backup", ".old", ".orig", ".save", ".saved", ".swo", ".swp", ".tmp"),
    *(f".{digit}" for digit in range(10)),
)


class NameTable:
    """Names with `*`, sorted by where it is: a name is judged by look-ups, since a walk asks for each of its files."""

    def __init__(self, table: str) -> None:
        names = [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|(\S+)', table)]
        self._whole = frozenset(name for name in names if "*" not in name)
        once = [name.partition("*") for name in names if name.count("*") == 1]
        self._endings = tuple(last for first, _, last in once if not first)
        self._beginnings = tuple(first for first, _, last in once if not last)
        self._both = tuple((first, last) for first, _, last in once if first and last)
        self._others = tuple(name for name in names if name.count("*") > 1)

    def __contains__(self, name: str) -> bool:
        return (
            name in self._whole
            or name.endswith(self._endings)
            or name.startswith(self._beginnings)
            or any(name.startswith(first) and name.endswith(last) for first, last in self._both)
            or any(fnmatchcase(name, each) for each in self._others)
        )


_FILES: Final = NameTable(FILES)
_FOLDERS: Final = frozenset(FOLDERS.split())
_PLACES: Final = frozenset(PLACES.split())
_KEY_FILE: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:#[^\n]*\n\s*)*"
    rb"(?:-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY"
    rb"|PuTTY-User-Key-File-|AGE-SECRET-KEY-)"
)


def is_key_file(beginning: bytes) -> bool:
    """Does a file that begins so hold a private key and nothing else? Its name does not matter."""
    return _KEY_FILE.match(beginning[:KEY_PROBE_BYTES]) is not None


def is_listed(path: str, is_folder: bool = False) -> bool:
    """Is the path on the list, or in a folder that is?"""
    folder, _, name = _plain(path).rpartition("/")
    outer = folder.rpartition("/")[2]
    if _is_in_listed_folder(folder) or any(f"{outer}/{each}" in _PLACES for each in _originals(name)):
        return True
    return name in _FOLDERS if is_folder else any(map(_is_secret_name, _originals(name)))


@lru_cache(maxsize=4_096)
def _is_in_listed_folder(folder: str) -> bool:
    """Is it one, or below one? The same few folders are asked about for all of their files."""
    names = folder.split("/")
    return not _FOLDERS.isdisjoint(names) or any(f"{outer}/{name}" in _PLACES for outer, name in pairwise(names))


def _is_secret_name(name: str) -> bool:
    return name in _FILES and not name.endswith(HARMLESS)


def _originals(name: str) -> Iterator[str]:
    """The name, and what it would be a copy of."""
    yield name
    if name.endswith(_COPY_ENDINGS) or name.startswith("#"):
        original = _COPY.sub("", name).lstrip("#")
        yield original
        yield original.removeprefix(".")  # vim's .id_rsa.swp


def _plain(path: str) -> str:
    return (path if path.isascii() else unicodedata.normalize("NFKC", path)).casefold()


def _verdict(spec: pathspec.GitIgnoreSpec, place: str, folder: str, is_folder: bool) -> bool | None:
    return spec.check_file(os.path.relpath(place, folder) + ("/" if is_folder else "")).include


def _read_spec(path: str, opener: Callable[[str, int], int] | None) -> pathspec.GitIgnoreSpec | None:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=opener) as file:
            lines = file.read().split("\n")  # as git: a name may hold U+2028
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if opener is not None:
            raise
        return None
    return pathspec.GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    """git skips a line that is no pattern; so does this."""
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _spec(patterns: Iterable[str]) -> pathspec.GitIgnoreSpec:
    for each in patterns:
        if not isinstance(each, str) or not _is_pattern(each):
            raise UsageError(
                f"{each!r} is no pattern of files; write it as in a .gitignore: *.secret, conf/keys/, !a.pem"
            )
    return pathspec.GitIgnoreSpec.from_lines(patterns)


@dataclass(frozen=True, slots=True)
class SecretRules:
    """What the owner of a runtime says about secret files, besides the list.

    Raises UsageError for a pattern that is none.
    """

    patterns: tuple[str, ...] = ()
    """In the syntax of .gitignore, for paths below the workspace; the last that matches decides. One with "!" allows
    what the list, or a pattern before it, forbids."""
    folders: tuple[str, ...] = ()
    """Absolute: callboard's own. Nothing in them is shown, unless the workspace itself is in there."""

    def __post_init__(self) -> None:
        if self.patterns:
            _spec(self.patterns)


NO_RULES: Final = SecretRules()


class SecretFiles:
    """Says of the files of one workspace which are secret. Remembers each `.callboardignore` it has read: make one for
    a walk, a call or a question, and another one for the next."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        rules: SecretRules = NO_RULES,
        opener: Callable[[str, int], int] | None = None,
    ) -> None:
        """`opener` opens the ignore files, as of `open`: what it raises for one that is there is raised by all methods;
        without it, such a file says nothing."""
        self._opener = opener
        self._root = os.path.normpath(root)
        self._own = [folder for folder in map(os.path.normpath, rules.folders) if not is_below(self._root, folder)]
        self._given = _spec(rules.patterns) if rules.patterns else None
        self._below_root = self._root.rstrip("/") + "/"
        self._ignoring: dict[str, tuple[tuple[str, pathspec.GitIgnoreSpec], ...]] = {}

    def is_secret(self, path: str | os.PathLike[str], is_folder: bool = False) -> bool:
        """Whether the path (absolute) is that of a secret file or folder, or leads through a secret folder.

        Only the path is looked at, not what it leads to: see `hides_link`.
        """
        place = os.path.normpath(path)
        if is_below_any(place, self._own):
            return True
        said = None
        if self._given is not None and is_below(place, self._root):
            said = _verdict(self._given, place, self._root, is_folder)
        if said is None:
            said = is_listed(place, is_folder)
        return said or self._is_ignored(place, is_folder)

    def hides(self, place: str | os.PathLike[str]) -> bool:
        """`is_secret`, for a place as it is on the disk; what is not there counts as a file and as a folder."""
        if os.path.isdir(place):
            return self.is_secret(place, is_folder=True)
        return self.is_secret(place) or self.is_secret(place, is_folder=True)

    def hides_link(self, path: str | os.PathLike[str]) -> bool:
        """Does it hide the path, or what it resolves to? Yes where that cannot be found out."""
        try:
            place = os.path.realpath(path, strict=True)
        except (FileNotFoundError, NotADirectoryError):  # nothing is there; what would be is judged by its name
            place = os.path.realpath(path)
        except OSError:
            return True
        return self.hides(path) or self.hides(place)

    def is_protected(self, path: str | os.PathLike[str]) -> bool:
        """Must no tool write it for a model? What is secret, and the files that say what is."""
        return os.path.basename(path).lower() == IGNORE_FILE or self.hides_link(path)

    def _is_ignored(self, place: str, is_folder: bool) -> bool:
        """The deepest `.callboardignore` that mentions the path decides, as in git."""
        if not place.startswith(self._below_root):
            return False
        for folder, spec in self._ignoring_in(place.rpartition("/")[0]):
            said = _verdict(spec, place, folder, is_folder)
            if said is not None:
                return said
        return False

    def _ignoring_in(self, folder: str) -> tuple[tuple[str, pathspec.GitIgnoreSpec], ...]:
        """The ignore files that count in a folder, the deepest first, each with its place."""
        unread = []
        while folder not in self._ignoring and folder.startswith(self._below_root):
            unread.append(folder)
            folder = folder.rpartition("/")[0]
        if folder not in self._ignoring:  # the root
            self._ignoring[folder] = ()
            unread.append(folder)
        found = self._ignoring[folder]
        for each in reversed(unread):
            spec = _read_spec(f"{each}/{IGNORE_FILE}", self._opener)
            self._ignoring[each] = found = found if spec is None else ((each or "/", spec), *found)
        return found
