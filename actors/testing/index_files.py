"""The files of the index's play, and what is done to them; the model (index_model.py) follows.

Each text is made of blocks with a word of their own, so that each word is at one place.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from callboard.actors.index import parsing
from callboard.actors.testing.index_model import GIT, LATE, OWN, Tree, language_of

#: Files are made by the hundred: in memory where there is such a place.
_MEMORY: Final = "/dev/shm"
NAMES: Final = (
    "a.py", "pkg/b.py", "pkg/deep/c.py", "d.rs", "pkg/e.go", "f.js", "notes.md", "pkg/plain.txt", "pkg2/b.py",
    "pkg/deeper/g.py", "pkg.py", "Dockerfile",
)  # fmt: skip
#: One definition, or one paragraph; `{word}` is its own.
BLOCKS: Final = {
    "python": "def {word}(value):\n    total = value + 1\n    return total\n\n\n",
    "rust": "fn {word}(value: i32) -> i32 {{\n    let total = value + 1;\n    total\n}}\n\n",
    "go": "func {word}(value int) int {{\n\ttotal := value + 1\n\treturn total\n}}\n\n",
    "javascript": "function {word}(value) {{\n  const total = value + 1;\n  return total;\n}}\n\n",
    "markdown": "# About {word}\n\nThe total is told of {word} here.\n\n",
    "text": "A line about {word} and its total.\n\n",
    "script": "RUN make {word} --total\n\n",
}
HEADS: Final = {"go": "package p\n\n"}
CODE: Final = ("python", "rust", "go", "javascript")
IGNORED: Final = (
    "", "*.go\n", "pkg/deep/\n", "/a.py\nnotes.md\n", "*.py\n!b.py\n", "deep*\n", "/pkg/*\n!/pkg/deep/\n", "b.py\n",
    "!b.py\n", "*\n!*.md\n",
)  # fmt: skip
SECRET: Final = ("", "c.py\n", "/deep/\n", "pkg/deep/\n", "*.md\n", "*.py\n!a.py\n", "!c.py\n", "d.rs\n")
GIVEN: Final = ((), (), ("e.go",), ("*.rs", "!d.rs", "deeper/"))
#: What is never read: its content, and why.
ODD: Final[tuple[tuple[str, bytes, str], ...]] = (
    ("blob.py", b"\0{word}", "read: binary"), ("void.py", b"", "empty"), ("poetry.lock", b"{word}", "not_source"),
    ("pkg/picture.png", b"{word}", "not_source"), (".env", b"{word}", "secret"), ("pkg/.env", b"{word}", "secret"),
    ("pkg/one_line.js", b"{word} " * 900, "read: minified"), ("notes2.txt", b"{word}\n" * 50_000, "read: too_long"),
    ("id.txt", b"-----BEGIN RSA PRIVATE KEY-----\n{word}\n-----END RSA PRIVATE KEY-----\n", "read: secret"),
    ("node_modules/m.py", b"def {word}(): pass\n", "hidden"), ("venv/v.py", b"def {word}(): pass\n", "hidden"),
    ("pkg/huge.py", b"", "too_long"),
)  # fmt: skip
#: A token that no other word is like: letters by which the words are counted.
LETTERS: Final = "bcdfghjklm"
_WORD: Final = re.compile(r"quux[b-m]{4}")


def words_in(text: str) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(_WORD.findall(text)))


def new_folder() -> Path:
    """For one play, which removes it."""
    return Path(tempfile.mkdtemp(prefix="played-index-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))


class Files:
    """A workspace, with the model of it."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder, self.root = rng, folder, folder / "work"
        self.root.mkdir()
        self.tree = Tree(given=rng.choice(GIVEN))
        self.stamps: dict[str, tuple[int, int]] = {}
        """When each file was written, and its size."""
        self.dropped: list[str] = []
        """Words that are in no file any more, or never were in one that is read."""
        self.number = 0
        self.clock = 1_700_000_000

    def word(self) -> str:
        """One that is nowhere yet."""
        self.number += 1
        return "quux" + "".join(LETTERS[int(digit)] for digit in f"{self.number:04}")

    def write(self, name: str, *, is_late: bool = False) -> None:
        """New content, some of it kept."""
        old = words_in(self.tree.texts.get(name, ""))
        kept = [word for word in old if self.rng.random() < 0.5]
        words = [*kept, *(self.word() for _ in range(self.rng.randint(1, 4)))]
        self.rng.shuffle(words)
        self.save(name, self.text(name, words), is_late=is_late)

    def text(self, name: str, words: Iterable[str]) -> str:
        """What a file with these words holds."""
        kind = language_of(name)
        return HEADS.get(kind, "") + "".join(BLOCKS[kind].format(word=word) for word in words)

    def save(self, name: str, text: str, *, is_late: bool = False) -> None:
        """This is what the file holds."""
        self.dropped += words_in(self.tree.texts.get(name, ""))
        self.tree.odd.pop(name, None)
        self.tree.texts[name] = text
        self._put(name, text.encode())
        self.stamp(name, is_late=is_late)

    def _put(self, name: str, content: bytes) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        place.write_bytes(content)

    def stamp(self, name: str, *, is_late: bool = False) -> None:
        """Times that go on by themselves, so that no play depends on how quick it is."""
        self.clock += 1
        at = int(time.time()) + 100_000 if is_late else self.clock
        place = self.root / name
        os.utime(place, (at, at))
        self.stamps[name] = (max(at, LATE) if is_late else at, place.stat().st_size)

    def gone(self, name: str) -> None:
        """The file is no longer there."""
        self.dropped += words_in(self.tree.texts.pop(name, ""))
        self.tree.odd.pop(name, None)
        self.tree.locked.pop(name, None)

    def tidy(self) -> None:
        """No folder is empty: it would count, where it is secret."""
        for above, _, _ in os.walk(self.root, topdown=False):
            if above != str(self.root) and not os.listdir(above):
                os.rmdir(above)

    def a_text(self) -> str | None:
        """One that is there, rules or none."""
        names = sorted(self.tree.texts)
        return self.rng.choice(names) if names else None

    def change(self) -> None:
        """A file is written; now and then one of which the times will tell nothing."""
        self.write(self.rng.choice(NAMES), is_late=self.rng.random() < 0.2)

    def move(self) -> None:
        """A file gets the name of another one of its language, or changes places with it."""
        names = [name for name in sorted(self.tree.texts) if name in NAMES and name.endswith(".py")]
        free = [name for name in NAMES if name.endswith(".py") and name not in names]
        if names and free and self.rng.random() < 0.5:
            old, new = self.rng.choice(names), self.rng.choice(free)
            self._put(new, b"")
            os.replace(self.root / old, self.root / new)
            self.tree.odd.pop(new, None)
            self.tree.texts[new], self.stamps[new] = self.tree.texts.pop(old), self.stamps[old]
            for name in (old, new):
                self.tree.locked.pop(name, None)
        elif len(names) > 1:
            one, other = self.rng.sample(names, 2)
            texts = self.tree.texts[one], self.tree.texts[other]
            self.save(one, texts[1])
            self.save(other, texts[0])

    def move_folder(self) -> None:
        """A folder has another name."""
        old, new = self.rng.sample(("pkg", "pkg2", "pkg/deep", "pkg/deeper"), 2)
        if (self.root / old).is_dir() and not (self.root / new).exists() and not new.startswith(f"{old}/"):
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.root / old, self.root / new)
            held: tuple[dict[str, Any], ...] = (self.tree.texts, self.tree.odd, self.tree.locked, self.stamps)
            for each in held:
                for name in [name for name in each if name.startswith(f"{old}/")]:
                    each[new + name.removeprefix(old)] = each.pop(name)

    def ignore(self) -> None:
        """Other rules on what is left out, in the workspace or in a folder of it."""
        self._rule(GIT, self.rng.choice(IGNORED))

    def _rule(self, rules: str, text: str) -> None:
        name = self.rng.choice((rules, rules, f"pkg/{rules}"))
        if text:
            self.save(name, text)
        else:
            self._put(name, b"")
            self.gone(name)
            self.tree.odd[name] = "empty"

    def junk(self) -> None:
        """Something that is never read; perhaps in the place of a file that was."""
        word = self.word()
        self.dropped.append(word)
        name, content, why = self.rng.choice(ODD)
        if why not in ("secret", "hidden", "not_source") and self.rng.random() < 0.5 and (old := self.a_text()):
            if old.endswith((GIT, OWN)) or (why == "read: too_long" and not old.endswith((".txt", ".md"))):
                return
            name = old
        self.gone(name)
        self.tree.odd[name] = why
        if name == "venv/v.py":
            self.tree.odd["venv/pyvenv.cfg"] = why
            self._put("venv/pyvenv.cfg", b"home = /usr")
        self._put(name, content.replace(b"{word}", word.encode()))
        if why == "too_long":
            os.truncate(self.root / name, 1_500_001)
        self.stamp(name)

    def link(self) -> None:
        """A link that leads out, or one in the place of a file to another one."""
        outside = self.folder / "outside.py"
        outside.write_text(f"def {self.word()}(): pass\n")
        self.dropped.append(words_in(outside.read_text())[0])
        name = self.rng.choice(NAMES)
        target = self.rng.choice((outside, self.root / self.rng.choice(NAMES)))
        if target != self.root / name:
            self._put(name, b"")
            (self.root / name).unlink()
            (self.root / name).symlink_to(target)
            self.gone(name)
            self.tree.odd[name] = "symlink"

    def lock(self) -> None:
        """A file cannot be opened, or those that could not be can be again."""
        if self.tree.locked and self.rng.random() < 0.6:
            self.tree.locked.clear()
        elif (name := self.a_text()) and not name.endswith((GIT, OWN)):
            self.tree.locked[name] = self.rng.choice(("no_permission", "no_permission", "vanished"))

    @contextmanager
    def locks(self) -> Iterator[None]:
        """The files that are locked cannot be opened."""
        real = parsing.__dict__["open_plain"]

        def opened(path: str) -> int:
            why = self.tree.locked.get(os.path.relpath(path, self.root))
            if why is not None:
                raise PermissionError(13, why, path) if why == "no_permission" else FileNotFoundError(2, why, path)
            descriptor: int = real(path)
            return descriptor

        parsing.__dict__["open_plain"] = opened
        try:
            yield
        finally:
            parsing.__dict__["open_plain"] = real
