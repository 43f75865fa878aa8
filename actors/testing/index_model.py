"""Which files of a workspace are in an index, and why others are not: by names, by content, by what cannot be read.

Beside the real walk: each file is looked at by itself, from the root down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

#: By the end of a name, what it is written in.
LANGUAGES: Final = {
    ".py": "python", ".rs": "rust", ".go": "go", ".js": "javascript", ".md": "markdown", ".txt": "text",
    "ignore": "text", "Dockerfile": "script",
}  # fmt: skip
#: Folders of which nothing is looked at.
HIDDEN_FOLDERS: Final = (".git", "node_modules", "__pycache__")
#: Not read, and counted by no reason: in a folder that is left out.
HIDDEN: Final = "hidden"
#: Reasons for which a file must be read.
BY_CONTENT: Final = ("read: binary", "read: minified", "read: too_long", "read: secret")
GIT, OWN = ".gitignore", ".callboardignore"
#: Times from here on are not over when a file is read, so they prove nothing.
LATE: Final = 1_750_000_000
#: Seen before any rule is.
BY_WHAT_IT_IS: Final = ("symlink", "name_not_utf8")


def language_of(name: str) -> str:
    """By the end of the name."""
    return next(language for end, language in LANGUAGES.items() if name.endswith(end))


class Counted(Struct, frozen=True):
    """What a refresh is to say that it did."""

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    files: int = 0


class Tree(Struct):
    """What is in the workspace now. Names are relative."""

    texts: dict[str, str] = field(default_factory=dict)
    """Files that are read where no rule leaves them out, those with rules too."""
    odd: dict[str, str] = field(default_factory=dict)
    """Other files, and why they are left out."""
    locked: dict[str, str] = field(default_factory=dict)
    """Files that cannot be opened, and why."""
    given: tuple[str, ...] = ()
    """Patterns of secret files, from who opens the index."""

    def why_not(self, name: str) -> str:
        """Why the file is not read; "" if it is, were it not locked."""
        for place, is_folder in steps(name):
            here = place.rpartition("/")[2]
            if is_folder and (here in HIDDEN_FOLDERS or f"{place}/pyvenv.cfg" in self.odd):
                return HIDDEN
            if not is_folder and self.odd.get(name) in BY_WHAT_IT_IS:
                return self.odd[name]
            if self._is_secret(place, is_folder):
                return f"secret {place}"
            if self._said(GIT, place, is_folder):
                return HIDDEN if is_folder else "ignored"
        return self.odd.get(name, "")

    def _is_secret(self, place: str, is_folder: bool) -> bool:
        if place.endswith(".env") or said(self.given, "", place, is_folder):
            return True
        return self._said(OWN, place, is_folder)

    def is_secret(self, name: str) -> bool:
        """By its name."""
        return self.why_not(name).startswith("secret ")

    def _said(self, rules: str, place: str, is_folder: bool) -> bool:
        """The deepest file of rules that mentions it decides."""
        folder = place
        while folder:
            folder = folder.rpartition("/")[0]
            text = self.texts.get(f"{folder}/{rules}".lstrip("/"), "")
            if (found := said(text.splitlines(), folder, place, is_folder)) is not None:
                return found
        return False

    def visible(self) -> dict[str, str]:
        """The files that belong to the index, with what they hold."""
        return {name: text for name, text in self.texts.items() if not self.why_not(name)}

    def left_out(self) -> Counter[str]:
        """How many files, and secret folders, are left out for each reason."""
        reasons = {name: self.why_not(name) for name in (*self.texts, *self.odd)}
        secret = {reason for reason in reasons.values() if reason.startswith("secret ")}
        counted = Counter(plainly(reason) for reason in reasons.values() if reason not in (HIDDEN, "", *secret))
        counted["secret"] += len(secret)
        return +counted


class Known(Struct):
    """What an index holds."""

    texts: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """When each file was written, as far as its times tell, and its size."""
    unread: set[str] = field(default_factory=set)
    """What could not be opened."""
    judged: set[str] = field(default_factory=set)
    """What was looked at and left out, by its content or since it could not be opened."""
    is_whole: bool = False

    def refresh(self, tree: Tree, stamps: Mapping[str, tuple[int, int]]) -> Counted:
        """All is looked at."""
        visible = tree.visible()
        removed = [name for name in self.texts if name not in visible and tree.why_not(name) not in BY_CONTENT]
        counted = self._look(tree, visible, stamps)
        gone = [name for name in self.texts if name not in visible]
        for name in gone:
            self._forget(name)
        self.unread &= set(visible)
        self.judged = self.unread | {name for name in tree.odd if tree.why_not(name) in BY_CONTENT}
        self.is_whole = True
        skipped = Counter(counted.skipped) + tree.left_out()
        return replace(counted, removed=len(removed), skipped=dict(skipped), files=len(self.texts))

    def refresh_some(self, tree: Tree, stamps: Mapping[str, tuple[int, int]], names: Iterable[str]) -> Counted:
        """Only these are looked at: files, and none of them holds rules."""
        names = list(dict.fromkeys(names))
        visible = tree.visible()
        chosen = {name: visible[name] for name in names if name in visible}
        counted = self._look(tree, chosen, stamps)
        read = [reason for reason in map(tree.why_not, names) if reason in BY_CONTENT]
        self.judged |= {name for name in names if tree.why_not(name) in BY_CONTENT}
        gone = [name for name in names if name in self.texts and name not in visible]
        removed = sum(tree.why_not(name) not in BY_CONTENT for name in gone)
        for name in gone:
            self._forget(name)
        skipped = Counter(counted.skipped) + Counter(map(plainly, read))
        return replace(counted, removed=removed, skipped=dict(skipped), files=len(self.texts))

    def _look(self, tree: Tree, files: Mapping[str, str], stamps: Mapping[str, tuple[int, int]]) -> Counted:
        indexed = unchanged = 0
        skipped = Counter[str]()
        for name, text in files.items():
            if self.stamps.get(name) == stamps[name] and stamps[name][0] < LATE:
                unchanged += 1
            elif name in tree.locked:
                skipped[tree.locked[name]] += 1
                self._forget(name)
                if tree.locked[name] == "no_permission":
                    self.unread.add(name)
                    self.judged.add(name)
            else:
                is_same = self.texts.get(name) == text
                unchanged, indexed = unchanged + is_same, indexed + (not is_same)
                self.texts[name], self.stamps[name] = text, stamps[name]
                self.unread.discard(name)
                self.judged.discard(name)
        return Counted(indexed, unchanged, skipped=skipped)

    def _forget(self, name: str) -> None:
        self.texts.pop(name, None)
        self.stamps.pop(name, None)


def plainly(reason: str) -> str:
    """As a summary says it."""
    return reason.removeprefix("read: ")


def steps(name: str) -> Iterator[tuple[str, bool]]:
    """Each folder on the way, and at last the file; with whether it is a folder."""
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth]), depth < len(parts)


def said(lines: Iterable[str], folder: str, place: str, is_folder: bool) -> bool | None:
    """What rules in `folder` say of a place below it: the last that is about it; None: nothing."""
    below = place.removeprefix(f"{folder}/" if folder else "")
    for line in reversed(list(lines)):
        pattern = line.removeprefix("!")
        if pattern.endswith("/") and not is_folder:
            continue
        pattern = pattern.removesuffix("/")
        if "/" in pattern:
            parts, given = below.split("/"), pattern.strip("/").split("/")
            fits = len(parts) == len(given) and all(map(fnmatchcase, parts, given))
        else:
            fits = fnmatchcase(below.rpartition("/")[2], pattern)
        if fits:
            return not line.startswith("!")
    return None
