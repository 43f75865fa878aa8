"""Where a path leads, before it is judged: links followed, `..` taken back, as the kernel does it.

A tool resolves its paths again when it runs. What is changed in between is not seen here: keeping a call to what was
judged is the task of its confinement. A file with several names (hard links) may be a secret file, or one outside, by
another of them: reading it is not certain to be what it looks like.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.below import is_below, is_below_any
from callboard.actors.secret_files import NO_RULES, NameTable, SecretFiles, SecretRules
from callboard.protocol.policy import AccessKind, Location, Touch
from callboard.protocol.tools import Risk

#: As many as Linux follows (path_resolution(7)).
MAX_LINKS: Final = 40
#: Below these, a name means what the process that opens it has open or where it is: another one than this process.
MAGIC_FOLDERS: Final = ("/proc", "/dev/fd")
#: What tools of builds and packages put there as hard links, of a store of theirs.
_LINKED: Final = frozenset({"node_modules", "site-packages", "dist-packages", "target", "bazel-out", "bazel-bin"})

_RISK: Final = {AccessKind.READ: Risk.READ, AccessKind.WRITE: Risk.WRITE, AccessKind.DELETE: Risk.WRITE}
_DESTROYS: Final = {AccessKind.DELETE: "it removes files"}
_GUARDED: Final = "an editor, a shell or CI runs what it says"
#: Folders of which editors, agents, hooks and CI run what is in them, wherever they are in the workspace.
GUARDED_FOLDERS: Final = """
    .vscode .vscode-insiders .vscode-server .vs .theia .idea .run .fleet .zed .nova .sublime .devcontainer .cursor
    .claude .codex .gemini .windsurf .continue .cline .roo .kilocode .aider .opencode .amazonq .kiro .junie .trae .mcp
    .callboard .git .githooks .husky .lefthook .overcommit .pre-commit .circleci .buildkite .woodpecker .drone .tekton
    .teamcity .semaphore .gitlab .gitlab-ci .azuredevops .azure-pipelines .harness .cirrus .direnv .mise .rtx .devenv
    .vim .nvim .emacs.d .ipython .bashrc.d .zsh .zshrc.d .oh-my-zsh
"""
#: The same of folders by their last two names.
GUARDED_PLACES: Final = """
    .github/workflows .github/actions .github/hooks .github/scripts .gitea/workflows .gitea/actions .forgejo/workflows
    .forgejo/actions .config/mise .config/fish .config/nvim .config/autostart .config/systemd .config/git .config/direnv
    fish/conf.d
"""
#: Files that they read so. `*` is any text.
GUARDED_FILES: Final = """
    .mcp.json mcp.json .mcp.yaml .mcp.yml mcp.yaml .claude.json .aider.conf.yml .windsurfrules .roomodes opencode.json
    *.code-workspace .devcontainer.json devcontainer.json .gitpod.yml .gitpod.yaml .gitpod.dockerfile devbox.json
    *.sublime-project .project.vim .exrc .vimrc .gvimrc _vimrc .nvimrc .lvimrc .nvim.lua .nvimrc.lua .dir-locals.el
    .dir-locals-2.el .emacs .spacemacs .projectile .gdbinit .lldbinit .gdbearlyinit
    .envrc .envrc.* .autoenv .autoenv.zsh .env.zsh .tool-versions .mise.toml mise.toml .mise.*.toml mise.*.toml
    .rtx.toml .asdfrc devenv.nix
    .pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml prek.toml lefthook.yml lefthook.yaml
    lefthook.toml lefthook.json lefthook-local.* .lefthook.* .lefthook-local.* .huskyrc .huskyrc.* .lintstagedrc
    .lintstagedrc.* lint-staged.config.* .overcommit.yml .gitconfig .hgrc .gitmodules .gitattributes
    .gitlab-ci.yml .gitlab-ci.yaml .gitlab-ci.*.yml *.gitlab-ci.yml *.gitlab-ci.yaml jenkinsfile jenkinsfile.*
    *.jenkinsfile azure-pipelines.yml azure-pipelines.yaml azure-pipelines-*.yml azure-pipelines.*.yml .travis.yml
    bitbucket-pipelines.yml .drone.yml .drone.yaml .drone.star .drone.jsonnet .woodpecker.yml .woodpecker.yaml
    appveyor.yml .appveyor.yml .cirrus.yml .cirrus.star buildspec.yml buildspec.yaml cloudbuild.yaml cloudbuild.yml
    cloudbuild.json circle.yml wercker.yml codemagic.yaml bitrise.yml .scrutinizer.yml .build.yml .semaphore.yml
    screwdriver.yaml .tekton.yaml netlify.toml action.yml action.yaml codefresh.yml .mergify.yml renovate.json
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .bash_env .profile .zshrc .zshenv .zprofile .zlogin
    .zlogout .zsh_* .kshrc .mkshrc .cshrc .tcshrc .login .logout .inputrc .xinitrc .xprofile .xsession .xsessionrc
    .tmux.conf .tmux.conf.* .screenrc config.fish .fishrc .pdbrc .pdbrc.py .irbrc .pryrc .rprofile .pythonrc
    .pythonrc.py .pythonstartup sitecustomize.py usercustomize.py profile.ps1 *_profile.ps1 *.pth
"""
_GUARDED_FILES: Final = NameTable(GUARDED_FILES)
_GUARDED_FOLDERS: Final = frozenset(GUARDED_FOLDERS.split())
_GUARDED_PLACES: Final = frozenset(GUARDED_PLACES.split())
#: Of these, names that may be links in the workspace to a place with another name.
_GUARDED_NAMES: Final = (
    *(*GUARDED_FOLDERS.split(), *(name for name in GUARDED_FILES.split() if "*" not in name), "Jenkinsfile"),
    *(*GUARDED_PLACES.split(), *(name.partition("/")[0] for name in GUARDED_PLACES.split())),
)
_SECRET: Final = "secret files: no tool shows or changes them (Settings.secret_files)"


class FollowedPath(Struct, frozen=True):
    """Where a path leads."""

    place: str
    """Absolute, without links as far as it exists."""
    unclear: str = ""
    """Why that is not certain."""


def follow(path: str) -> FollowedPath:
    """Where the kernel would end up by this absolute path; what does not exist is taken as it is written."""
    rest, here, links = path.split("/")[::-1], "/", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        following = os.path.join(here, name)
        if is_below_any(here, MAGIC_FOLDERS):
            return FollowedPath(following, "a path through /proc or /dev/fd")
        try:
            is_link = stat.S_ISLNK(os.lstat(following).st_mode)
            target = os.readlink(following) if is_link else ""
        except (FileNotFoundError, NotADirectoryError):
            is_link = False
        except OSError as error:
            return FollowedPath(os.path.normpath(os.path.join(following, *rest[::-1])), error.strerror or "a path")
        if not is_link:
            here = following
            continue
        links += 1
        if links > MAX_LINKS:
            return FollowedPath(following, "too many links")
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]
    return FollowedPath(here)


def _other_names(place: str) -> str:
    """Why a file is perhaps not what its name says; "" where it is."""
    if not _LINKED.isdisjoint(place.split("/")):
        return ""
    try:
        found = os.lstat(place)
    except OSError:
        return ""
    return "it has other names (hard links)" if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 else ""


class Paths:
    """Finds out about the paths of one call. Raises nothing for what a model can write.

    Without a workspace all paths are outside of it. `read_only`: further folders, which count as inside for what only
    reads. `kept`: real paths that are guarded beside those of the lists.
    """

    def __init__(
        self,
        root: Path | None,
        rules: SecretRules = NO_RULES,
        read_only: Iterable[Path | str] = (),
        kept: tuple[str, ...] = (),
    ) -> None:
        self._kept = kept
        self._root = os.path.realpath(root) if root is not None else None
        self._secrets = SecretFiles(self._root or "/", rules)
        self._guarded_links: dict[str, tuple[str, ...]] = {}
        """By folder, where links with guarded names lead."""
        self._read_only = {os.path.realpath(each): SecretFiles(os.path.realpath(each), rules) for each in read_only}

    @property
    def root(self) -> str:
        """What relative paths are relative to."""
        return self._root or os.getcwd()

    def touches(self, kind: AccessKind, value: str, folder: str = "") -> Iterator[Touch]:
        """What a path is, in each way in which it can be meant; `folder`: where relative paths begin, absolute."""
        if "\0" in value:
            yield Touch(kind, Location.OUTSIDE, _RISK[kind], unclear="a path with a NUL byte")
            return
        seen = set[str]()
        for meant in self._meanings(value, folder or self.root):
            for path in dict.fromkeys((meant, os.path.normpath(meant))):  # a tool may take `..` back before links
                found = follow(path)
                if found.place not in seen:
                    seen.add(found.place)
                    if kind is AccessKind.READ and not found.unclear:
                        found = FollowedPath(found.place, _other_names(found.place))
                    yield self._judged(kind, path, found)

    def _meanings(self, value: str, folder: str) -> Iterator[str]:
        yield os.path.join(folder, value)
        if value.startswith("~") and (expanded := os.path.expanduser(value)) != value:
            yield expanded

    def _judged(self, kind: AccessKind, path: str, found: FollowedPath) -> Touch:
        is_inside, secrets = self._root is not None and is_below(found.place, self._root), self._secrets
        for root, of_root in self._read_only.items():
            if is_below(found.place, root):
                is_inside, secrets = kind is AccessKind.READ, of_root
        hides = secrets.hides if kind is AccessKind.READ else secrets.is_protected
        written = os.path.normpath(path)
        return Touch(
            kind,
            Location.INSIDE if is_inside and not found.unclear else Location.OUTSIDE,
            _RISK[kind],
            tuple(self._names(found.place)),
            tuple(each for name in (found.place, written) for each in self._aliases(name)),
            destroys=_DESTROYS.get(kind, ""),
            unclear=found.unclear,
            refused=_SECRET if hides(written) or hides(found.place) else "",
            guarded=_GUARDED if kind is not AccessKind.READ and self._is_guarded(written, found.place) else "",
        )

    def _is_guarded(self, *ways: str) -> bool:
        """Is it a place that is run when it is read: by its name as written or followed, or by a link to it?"""
        root = self._root or "/"
        below = [os.path.relpath(each, root) for each in ways if is_below(each, root)]
        outside = [each for each in ways if not is_below(each, root)]
        is_kept = any(is_below_any(each, self._kept) for each in ways)
        return is_kept or any(map(is_guarded, (*below, *outside))) or any(map(self._is_led_to, below))

    def _is_led_to(self, path: str) -> bool:
        """Does a link with a guarded name lead to this path below the root, or to a folder that it is in?"""
        folder = self._root or "/"
        place = os.path.join(folder, path)
        for part in ("", *path.split("/")[:-1]):
            folder = os.path.join(folder, part) if part else folder
            if folder not in self._guarded_links:
                links = (link for name in _GUARDED_NAMES if os.path.islink(link := os.path.join(folder, name)))
                self._guarded_links[folder] = tuple(follow(link).place for link in links)
            if is_below_any(place, self._guarded_links[folder]):
                return True
        return False

    def _names(self, place: str) -> Iterator[str]:
        if self._root is not None and is_below(place, self._root):
            yield os.path.relpath(place, self._root)
        yield place

    def _aliases(self, place: str) -> Iterator[str]:
        """As it may be called elsewhere: some file systems drop dots and blanks at the end of a name."""
        yield from self._names(place)
        if (short := re.sub(r"(?<=[^/. ])[. ]+(?=/|$)", "", place)) != place:
            yield from self._names(short)


def is_guarded(path: str) -> bool:
    """Is the path one that an editor, an agent, a shell, a hook or CI runs when it reads it, or in such a folder?

    As the least careful file system reads it: without case, dots and blanks at the ends of names, and characters that
    are not seen.
    """
    parts = [_bare(part) for part in path.split("/") if part not in ("", ".")]
    pairs = (f"{one}/{two}" for one, two in pairwise(parts))
    return (
        not _GUARDED_FOLDERS.isdisjoint(parts)
        or not _GUARDED_PLACES.isdisjoint(pairs)
        or any(part in _GUARDED_FILES for part in parts)
    )


def _bare(name: str) -> str:
    shown = name if name.isascii() else unicodedata.normalize("NFKC", name)
    seen = "".join(each for each in shown if unicodedata.category(each) not in ("Cf", "Cc", "Mn"))
    return seen.casefold().partition(":")[0].rstrip(". ") or name
