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
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

import pathspec

from callboard.protocol.errors import UsageError

#: In any folder of the workspace; read like a .gitignore.
IGNORE_FILE: Final = ".callboardignore"
#: Of a file, so much is looked at to see whether it is a private key.
KEY_PROBE_BYTES: Final = 1_024

#: Names of files, wherever they are. `*` is any text; upper and lower case are one.
FILES: Final = """
    .git .env .env.* .env-* .env_* *.env .envrc .dev.vars .secret .secrets .token .apikey .api_key secret.json
    secret.toml secret.yaml secret.yml secret.ini secret.txt secrets.json secrets.toml secrets.yaml secrets.yml
    secrets.ini secrets.txt secrets.env secrets.properties password.txt passwords.txt passwords.csv passwords.json
    api_key.txt api-key.txt apikey.txt api_keys.json api_keys.txt api_keys.yaml token.json token.pickle token.txt
    local.settings.json .vault_pass* .vault-pass* vault_pass vault_pass.txt vault-password vault-password.txt

    id_rsa* id_dsa* id_ecdsa* id_ed25519* id_xmss* *_rsa *_ed25519 ssh_host_*_key identity *.pem *.key *.p8 *.p12
    *.pfx *.pkcs12 *.jks *.jceks *.bks *.keystore *.kdb *.kdbx *.ppk *.agekey *.keytab *.priv *.ovpn *.keychain
    *.keychain-db *.keyring secring.* private_key private_key.txt privatekey.txt wallet.dat utc--* *.gpg *.pgp
    wg[0-9].conf

    .netrc _netrc .netrc.* .npmrc .yarnrc .yarnrc.yml .pypirc pip.conf pip.ini .condarc .gemrc .dockercfg
    .dockerconfigjson .git-credentials .gitconfig .hgrc .gitcookies settings-security.xml .curlrc _curlrc .wgetrc
    .lftprc .ftpconfig sftp-config.json .remote-sync.json filezilla.xml sitemanager.xml recentservers.xml .msmtprc
    .fetchmailrc .offlineimaprc .mbsyncrc .smbcredentials .passwd-s3fs

    credentials credentials.json credentials.toml credentials.yaml credentials.yml credentials.csv credentials.xml
    credentials.ini credentials.txt credentials.db credentials.properties credential.json
    application_default_credentials.json access_tokens.db service-account*.json service_account*.json
    serviceaccount*.json *-service-account.json *firebase-adminsdk*.json gcp-key*.json google-credentials*.json
    client_secret*.json client-secret*.json accesskeys.csv rootkey.csv *_accesskeys.csv .boto .s3cfg rclone.conf
    .rclone.conf .databrickscfg .vault-token .terraformrc terraform.rc *.tfstate *.tfstate.* *.tfvars *.tfvars.json
    *.tfrc.json kubeconfig kubeconfig.* *.kubeconfig kaggle.json

    .htpasswd .htdigest .pgpass pgpass.conf .my.cnf .mylogin.cnf .mongorc.js .dbshell .cqlshrc .odbc.ini wp-config.php
    gshadow shadow shadow- master.passwd .*_history fish_history .lesshst .viminfo .rediscli_auth cookies cookies.txt
    cookies.sqlite "login data" "web data" key3.db key4.db logins.json signons.sqlite

    copilot-token copilot-token.*
"""
#: Files and folders by their last two or three names: the last alone says too little.
PLACES: Final = """
    .docker/config.json containers/auth.json .composer/auth.json .codex/auth.json .m2/settings.xml .nuget/nuget.config
    .gradle/gradle.properties .config/gh .config/hub .config/glab-cli .config/gcloud .config/doctl .config/hcloud
    .config/op .config/sops .config/rclone .config/callboard .terraform.d/credentials.tfrc.json .pulumi/credentials.json
    .fly/config.yml .snowsql/config .kaggle/kaggle.json .huggingface/token huggingface/token huggingface/stored_tokens
    .aliyun/config.json .cargo/credentials .gem/credentials .hg/hgrc .svn/auth .vscode/sftp.json .idea/datasources.xml
    .idea/datasources.local.xml .idea/webservers.xml .jupyter/jupyter_server_config.json age/keys.txt sops/keys.txt
    .streamlit/secrets.toml .subversion/auth
"""
#: Folders of which nothing is shown.
FOLDERS: Final = """
    .git .ssh .gnupg .aws .azure .kube .oci .snowflake .password-store keyrings .callboard .mozilla .thunderbird
    .legacy_credentials legacy_credentials
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


def _globs(table: str) -> re.Pattern[str]:
    names = [plain or quoted for quoted, plain in re.findall(r'"([^"]+)"|(\S+)', table)]
    return re.compile("|".join(translate(name) for name in names))


_FILES: Final = _globs(FILES)
_FOLDERS: Final = frozenset(FOLDERS.split())
_PLACES: Final = frozenset(PLACES.split())
_DEEPEST_PLACE: Final = max(place.count("/") for place in _PLACES) + 1
_KEY_FILE: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:#[^\n]*\n\s*)*"
    rb"(?:-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY"
    rb"|PuTTY-User-Key-File-|AGE-SECRET-KEY-)"
)


def is_key_file(beginning: bytes) -> bool:
    """Does a file that begins so hold a private key and nothing else, whatever its name?"""
    return _KEY_FILE.match(beginning[:KEY_PROBE_BYTES]) is not None


def is_listed(path: str, is_folder: bool = False) -> bool:
    """Is the path on the list, or in a folder that is?"""
    names = _plain(path).split("/")
    folders = names if is_folder else names[:-1]
    if not _FOLDERS.isdisjoint(folders):
        return True
    for start in range(len(names)):
        for length in range(2, _DEEPEST_PLACE + 1):
            if "/".join(names[start : start + length]) in _PLACES:
                return True
    return not is_folder and any(map(_is_secret_name, _originals(names[-1])))


def _is_secret_name(name: str) -> bool:
    return not name.endswith(HARMLESS) and _FILES.fullmatch(name) is not None


def _originals(name: str) -> Iterable[str]:
    """The name, and what it would be a copy of."""
    yield name
    original = _COPY.sub("", name).lstrip("#")
    if original != name:
        yield original
        yield original.removeprefix(".")  # vim's .id_rsa.swp


def _plain(path: str) -> str:
    return (path if path.isascii() else unicodedata.normalize("NFKC", path)).casefold()


def _is_below(path: str, folder: str) -> bool:
    """Or the same."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _verdict(spec: pathspec.GitIgnoreSpec, relative: str) -> bool | None:
    return spec.check_file(relative).include


def _read_spec(path: str) -> pathspec.GitIgnoreSpec | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
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
        _spec(self.patterns)


NO_RULES: Final = SecretRules()


class SecretFiles:
    """Says of the files of one workspace which are secret. Remembers each `.callboardignore` it has read: make one for
    a walk, a call or a question, and another one for the next."""

    def __init__(self, root: str | os.PathLike[str], rules: SecretRules = NO_RULES) -> None:
        self._root = os.path.normpath(root)
        self._own = [folder for folder in map(os.path.normpath, rules.folders) if not _is_below(self._root, folder)]
        self._given = _spec(rules.patterns) if rules.patterns else None
        self._ignoring: dict[str, pathspec.GitIgnoreSpec | None] = {}

    def is_secret(self, path: str | os.PathLike[str], is_folder: bool = False) -> bool:
        """Whether the path (absolute) is that of a secret file or folder, or leads through a secret folder.

        Only the path is looked at, not what it leads to: see `hides_link`.
        """
        place = os.path.normpath(path)
        if any(_is_below(place, folder) for folder in self._own):
            return True
        below = os.path.relpath(place, self._root) + ("/" if is_folder else "")
        said = _verdict(self._given, below) if self._given is not None and not below.startswith("..") else None
        if said is None:
            said = is_listed(place, is_folder)
        return said or self._is_ignored(place, is_folder)

    def hides(self, place: str | os.PathLike[str]) -> bool:
        """`is_secret`, for a place as it is on the disk; what is not there counts as a file and as a folder."""
        if os.path.isdir(place):
            return self.is_secret(place, is_folder=True)
        return self.is_secret(place) or self.is_secret(place, is_folder=True)

    def hides_link(self, path: str | os.PathLike[str]) -> bool:
        """Does it hide the path, or what it resolves to?"""
        return self.hides(path) or self.hides(os.path.realpath(path))

    def is_protected(self, path: str | os.PathLike[str]) -> bool:
        """Must no tool write it for a model? What is secret, and the files that say what is."""
        return os.path.basename(path).lower() == IGNORE_FILE or self.hides_link(path)

    def _is_ignored(self, place: str, is_folder: bool) -> bool:
        """The deepest `.callboardignore` that mentions the path decides, as in git."""
        folder = place
        while folder != self._root and _is_below(folder, self._root):
            folder = os.path.dirname(folder)
            if folder not in self._ignoring:
                self._ignoring[folder] = _read_spec(os.path.join(folder, IGNORE_FILE))
            if (spec := self._ignoring[folder]) is not None:
                said = _verdict(spec, os.path.relpath(place, folder) + ("/" if is_folder else ""))
                if said is not None:
                    return said
        return False
