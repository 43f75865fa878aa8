"""Sixty kinds of secret file, asked for by every tool; and who may add to the list, or allow what is on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.file_tools import file_tools, shown_in
from support.key_samples import PRIVATE_KEY

from callboard.actors import Runtime, Settings
from callboard.actors.index import CodeIndex, assemble
from callboard.actors.secret_files import SecretFiles, SecretRules, is_key_file
from callboard.protocol.errors import ToolError, UsageError
from callboard.protocol.masking import has_mask

KINDS = (
    ".env",
    ".env.local",
    ".env.production",
    "deploy/prod.env",
    ".ENV",
    ".envrc",
    ".dev.vars",
    ".env.bak",
    ".env~",
    ".env.swp",
    ".env (copy)",
    "keys/id_rsa",
    "keys/id_ed25519",
    "keys/id_ecdsa.old",
    "keys/deploy_rsa",
    ".ssh/config",
    ".ssh/known/hosts.py",
    "server.pem",
    "server.key",
    "SERVER.KEY",
    "app.p12",
    "app.pfx",
    "release.jks",
    "debug.keystore",
    "vault.kdbx",
    "putty.ppk",
    "AuthKey.p8",
    "http.keytab",
    ".netrc",
    "_netrc",
    ".npmrc",
    "web/.npmrc",
    ".yarnrc.yml",
    ".pypirc",
    "pip.conf",
    ".gemrc",
    ".docker/config.json",
    ".dockercfg",
    ".aws/credentials",
    ".aws/config",
    ".azure/accessTokens.json",
    ".config/gcloud/application_default_credentials.json",
    "application_default_credentials.json",
    "service-account-prod.json",
    "client_secret_123.apps.googleusercontent.com.json",
    "credentials.json",
    ".kube/config",
    "kubeconfig.yaml",
    ".git/config",
    ".git/logs/HEAD",
    ".git-credentials",
    ".gitconfig",
    ".gnupg/secring.gpg",
    ".password-store/mail.gpg",
    ".htpasswd",
    ".pgpass",
    ".my.cnf",
    "config/secrets.yml",
    "secrets.toml",
    "config/master.key",
    "terraform.tfstate",
    "terraform.tfstate.backup",
    "prod.tfvars",
    ".vault-token",
    ".terraformrc",
    "home/.local/share/keyrings/login.keyring",
    ".bash_history",
    ".python_history",
    "wp-config.php",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".config/gh/hosts.yml",
    ".config/rclone/rclone.conf",
    ".databrickscfg",
    ".s3cfg",
    ".boto",
    "profile/Login Data",
    "profile/logins.json",
    ".m2/settings.xml",
    ".callboard/journal/today.log",
    "copilot-token",
    ".flaskenv",
    ".envrc.private",
    ".envs/.production/.django",
    ".secrets.toml",
    ".secrets/token.txt",
    ".claude/.credentials.json",
    "oauth_creds.json",
    ".config/github-copilot/apps.json",
    ".config/pypoetry/auth.toml",
    ".bundle/config",
    ".docker/config.json.bak",
    ".kube/config.old",
    ".zhistory",
    "krb5cc_1000",
    "signing.pk8",
    ".wrangler/config/default.toml",
    ".supabase/access-token",
    "tests/fixtures/harmless_name.txt",  # holds a private key
    "conf/own/settings.ini",  # forbidden by a .callboardignore
    "conf/own/deep/other.py",
    "customers.csv",  # forbidden by the setting
)
HARMLESS = (
    "src/main.py",
    ".env.example",
    "web/.env.sample",
    "secrets.yml.example",
    "keys/id_rsa.pub",
    "credentials/store.py",
    "secrets.py",
    "password.py",
    "tokens.json",
    "conf/own/shown.txt",
    "keyring.py",
    "environment.py",
    "env.py",
)
RULES = ("customers.csv",)


def canary(kind: str) -> str:
    """A word that is in this file alone."""
    everything = (*KINDS, *HARMLESS)
    return "canary" + "".join(chr(ord("a") + int(digit)) for digit in f"{everything.index(kind):03}")


def content(kind: str) -> str:
    text = f'def {canary(kind)}():\n    return "{canary(kind)} is what this file is about"\n'
    return f"{PRIVATE_KEY}\n# {text}" if kind == "tests/fixtures/harmless_name.txt" else text


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("workspace").resolve()
    for kind in (*KINDS, *HARMLESS):
        place = root / kind
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content(kind))
    (root / ".gitignore").write_text(".env\n.env.local\n")  # ignored or not, they are secret
    (root / "conf" / ".callboardignore").write_text("# our own\nown/*\n!own/shown.txt\n")
    (root / "links").mkdir()
    for number, kind in enumerate(KINDS):
        (root / "links" / f"notes{number}.txt").symlink_to(root / kind)
    (root / "linked").symlink_to(root / ".ssh")
    return root


@pytest.fixture(scope="module")
def tools(workspace: Path) -> tuple[Callable[..., object], Callable[..., object]]:
    read_file, list_dir = file_tools(workspace, SecretRules(RULES))
    return read_file, list_dir


@pytest.fixture(scope="module")
def ask(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """`request_code_context`, as a runtime runs it."""
    store = tmp_path_factory.mktemp("store")
    with CodeIndex.open(workspace, store, embedder=None, secrets=SecretRules(RULES)) as index:
        index.refresh()
        yield lambda hint: str(assemble(index, hint, 4_000).as_json()["context"])


def spellings(workspace: Path, kind: str) -> Iterator[str]:
    folder, _, name = kind.rpartition("/")
    yield kind
    yield f"./{kind}"
    yield str(workspace / kind)
    yield f"src/../{kind}"
    yield f"{folder}//{name}" if folder else f".//{name}"
    yield f"{workspace}/./src/.././{kind}"
    yield f"links/notes{KINDS.index(kind)}.txt"
    yield f"../{workspace.name}/{kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_file_is_read_listed_and_found_by_no_tool(
    workspace: Path,
    tools: tuple[Callable[..., object], Callable[..., object]],
    ask: Callable[[str], str],
    kind: str,
) -> None:
    read_file, list_dir = tools
    for path in spellings(workspace, kind):
        with pytest.raises(ToolError, match="is not shown, whether it exists or not") as refused:
            read_file(path)
        assert canary(kind) not in str(refused.value)
    parent = os.path.dirname(kind)
    try:
        names = shown_in(list_dir(parent or "."))
    except ToolError as refusal:
        assert "is not shown" in str(refusal)  # noqa: PT017 - the folder itself is secret
    else:
        # A file that is secret for what is in it has a harmless name; that is all a listing shows.
        assert os.path.basename(kind) not in names or kind == "tests/fixtures/harmless_name.txt"
    assert canary(kind) not in ask(canary(kind))


def test_a_listing_of_everything_has_no_secret_file(
    workspace: Path, tools: tuple[Callable[..., object], Callable[..., object]]
) -> None:
    _, list_dir = tools
    names = set(shown_in(list_dir(".", 5)))
    assert not names & (set(KINDS) - {"tests/fixtures/harmless_name.txt"})
    assert set(HARMLESS) <= names
    # Nor a link to one by its name.
    by_name = [kind for kind in KINDS if kind != "tests/fixtures/harmless_name.txt"]
    assert not names & {f"links/notes{KINDS.index(kind)}.txt" for kind in by_name}
    assert "linked" not in names


def test_the_files_of_the_index_say_nothing_of_a_secret_file(workspace: Path, tmp_path: Path) -> None:
    with CodeIndex.open(workspace, tmp_path / "store", embedder=None, secrets=SecretRules(RULES)) as index:
        summary = index.refresh()
        stored = {symbol.path for symbol in index.symbols(limit=10_000)}
    assert stored == {str(workspace / name) for name in (*HARMLESS, "conf/.callboardignore")} & stored
    assert summary.skipped["secret"] > 50
    everything = b"".join(file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file())
    assert not [kind for kind in KINDS if canary(kind).encode() in everything]


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_only_sounds_secret_is_shown(
    tools: tuple[Callable[..., object], Callable[..., object]], ask: Callable[[str], str], kind: str
) -> None:
    read_file, _ = tools
    assert canary(kind) in str(read_file(kind))
    if not kind.endswith((".json", ".pub")):
        assert canary(kind) in ask(canary(kind))


@pytest.mark.parametrize("name", [".env", ".ssh/id_rsa", "credentials.json", "conf/own/new.py"])
def test_a_secret_file_that_does_not_exist_is_refused_in_the_same_words(
    tmp_path: Path, name: str, workspace: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / ".callboardignore").write_text("own/\n")
    read_file, list_dir = file_tools(tmp_path)
    for tool in (read_file, list_dir):
        with pytest.raises(ToolError, match="is not shown, whether it exists or not"):
            tool(name)


def test_a_file_outside_is_still_said_to_be_outside(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("x")
    read_file, _ = file_tools(workspace)
    with pytest.raises(ToolError, match="outside the workspace"):
        read_file(str(tmp_path / ".env"))


# -- what becomes secret, and what the owner says


def found(index: CodeIndex, word: str) -> bool:
    return f"def {word}(" in str(assemble(index, word, 2_000).as_json()["context"])


def code(name: str) -> str:
    return f'def {name}():\n    """Says what {name} is."""\n    return "{name}"\n'


def test_what_becomes_secret_leaves_the_index_and_is_not_shown_even_before(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for name in ("zebra", "giraffe", "walrus"):
        (root / f"{name}.py").write_text(code(name))
    with CodeIndex.open(root, tmp_path / "store", embedder=None) as index:
        index.refresh()
        assert all(found(index, name) for name in ("zebra", "giraffe", "walrus"))
        (root / ".callboardignore").write_text("giraffe.py\n")
        assert not found(index, "giraffe")  # though it is still in the index
        (root / "zebra.py").rename(root / "credentials.toml")
        summary = index.refresh()
        assert summary.removed == 2
        assert summary.skipped["secret"] == 2
        assert [found(index, name) for name in ("zebra", "giraffe", "walrus")] == [False, False, True]
        (root / ".callboardignore").unlink()
        index.refresh(paths=[str(root / ".callboardignore")])
        assert found(index, "giraffe")


def test_every_root_of_an_index_has_its_own_callboardignore(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for root, name in zip(roots, ("zebra", "giraffe"), strict=True):
        root.mkdir()
        (root / "a.py").write_text(code(name))
        (root / ".env").write_text(code(f"{name}secret"))
    (roots[1] / ".callboardignore").write_text("/a.py\n")
    with CodeIndex.open(roots, tmp_path / "store", embedder=None) as index:
        index.refresh()
        assert [found(index, name) for name in ("zebra", "giraffe", "zebrasecret", "giraffesecret")] == [
            *(True, False),
            *(False, False),
        ]


def test_only_the_owner_can_allow_what_is_on_the_list(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / ".env").write_text("PORT=80\nPASSWORD=hunter2x\n")
    (tmp_path / ".callboardignore").write_text("!server.pem\n!.env\n!*\n")
    read_file, list_dir = file_tools(tmp_path)
    with pytest.raises(ToolError, match="is not shown"):
        read_file("server.pem")
    read_file, list_dir = file_tools(tmp_path, SecretRules(("!*.pem", "!.env")))
    assert "BEGIN CERTIFICATE" in str(read_file("server.pem"))
    assert shown_in(list_dir()) == [".callboardignore", ".env", "server.pem"]
    shown = str(read_file(".env"))
    assert "PORT=80" in shown
    assert "hunter2x" not in shown
    assert has_mask(shown)
    # What is allowed by its name is still no private key.
    (tmp_path / "server.pem").write_text(PRIVATE_KEY)
    with pytest.raises(ToolError, match="is not shown"):
        read_file("server.pem")


def test_the_last_pattern_of_the_owner_decides(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path, SecretRules(("docs/", "!docs/", "*.sql", "!schema.sql")))
    secret = {name: files.is_secret(tmp_path / name) for name in ("docs/a.md", "dump.sql", "db/schema.sql", "a.py")}
    assert secret == {"docs/a.md": False, "dump.sql": True, "db/schema.sql": False, "a.py": False}


def test_callboards_own_folders_are_secret_wherever_they_are(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path, config_dir=tmp_path / "conf", index_dir=tmp_path / "ours")
    for name in ("conf", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("x")
    read_file, list_dir = file_tools(tmp_path, settings.secret_rules)
    assert shown_in(list_dir()) == []
    with pytest.raises(ToolError, match="is not shown"):
        read_file("ours/a.txt")
    # A config folder that is the workspace itself does not hide the workspace, but for what is listed by name.
    files = SecretFiles(tmp_path, SecretRules((), (str(tmp_path),)))
    assert [files.is_secret(tmp_path / name) for name in ("a.py", "copilot-token")] == [False, True]


def test_a_runtime_takes_the_rules_of_its_settings(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / "plan.md").write_text("# zebra\n")
    settings = Settings(model="offline/x", workspace=root, index_dir=tmp_path / "store", secret_files=("plan.md",))
    with Runtime(settings) as runtime:
        read_file = next(each for each in runtime._wiring.tools if each.name == "read_file")
        with pytest.raises(ToolError, match="is not shown"):
            read_file("plan.md")
        assert "zebra" not in runtime.ask_sync("what does the zebra do?").text.partition("?")[2]


def test_a_pattern_that_is_none_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match=r"'secret_files': .* is no pattern of files; write it as in a .gitignore"):
        Settings(secret_files=("*.sql", "!"))


def test_a_callboardignore_that_cannot_be_read_or_holds_a_wrong_line_forbids_what_it_can(tmp_path: Path) -> None:
    (tmp_path / ".callboardignore").write_bytes(b"!\n\xff\xfe*.\xe9\nsecret_plan.md\n")
    files = SecretFiles(tmp_path)
    assert files.is_secret(tmp_path / "secret_plan.md")
    (tmp_path / ".callboardignore").unlink()
    (tmp_path / ".callboardignore").mkdir()
    assert not SecretFiles(tmp_path).is_secret(tmp_path / "secret_plan.md")


def test_deep_paths_and_the_root_of_the_file_system(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 1_500)
    assert SecretFiles(tmp_path).is_secret(f"{tmp_path}/{deep}/.env")
    assert not SecretFiles("/").is_secret(f"/{deep}/a.py")


def test_what_no_tool_may_write(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    (tmp_path / "link.txt").symlink_to(tmp_path / ".env")
    protected = {name: files.is_protected(tmp_path / name) for name in (".callboardignore", ".env", "link.txt", "a.py")}
    assert protected == {".callboardignore": True, ".env": True, "link.txt": True, "a.py": False}
    assert files.is_protected(tmp_path / "sub" / ".CallboardIgnore")


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n  ", b"# created: 2024\n# public key: age1x\n"])
def test_a_private_key_is_told_by_its_beginning(before: bytes) -> None:
    assert is_key_file(before + PRIVATE_KEY.encode())
    assert is_key_file(before + b"AGE-SECRET-KEY-1QQQ")
    assert not is_key_file(before + b"KEY = '''" + PRIVATE_KEY.encode())
    assert not is_key_file(before + b"-----BEGIN CERTIFICATE-----\n")
