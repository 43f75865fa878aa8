"""The code index and the actors that answer from it, on a small workspace, beside a list of what is in which file.

    python -m callboard.actors.testing plays index --seeds 200

Files are written, moved, removed and ignored at random; after a refresh each word is found where it is now, and nowhere
else, also by a store that was copied in the middle of all and by an index made anew. `play(seed)` says what is not so,
one sentence each; the same for the same seed.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from callboard.actors.index.code_index import CodeIndex, Hit
from callboard.actors.index.rag import AskIndex, Indexer, Rag, RefreshIndex, SearchCode
from callboard.actors.index.searching import Filters
from callboard.actors.kernel import ActorSystem
from callboard.actors.testing.simulation import SimulatedScheduler

#: Files are made by the hundred: in memory where there is such a place.
_MEMORY: Final = "/dev/shm"
#: Path, and what it is written in.
FILES: Final = {
    "a.py": "python", "pkg/b.py": "python", "pkg/deep/c.py": "python", "d.rs": "rust", "pkg/e.go": "go",
    "f.js": "javascript", "notes.md": "markdown", "pkg/plain.txt": "text",
}  # fmt: skip
#: One definition, or one paragraph; `{word}` is its own.
BLOCKS: Final = {
    "python": "def {word}(value):\n    total = value + 1\n    return total\n\n\n",
    "rust": "fn {word}(value: i32) -> i32 {{\n    let total = value + 1;\n    total\n}}\n\n",
    "go": "func {word}(value int) int {{\n\ttotal := value + 1\n\treturn total\n}}\n\n",
    "javascript": "function {word}(value) {{\n  const total = value + 1;\n  return total;\n}}\n\n",
    "markdown": "# About {word}\n\nThe total is told of {word} here.\n\n",
    "text": "A line about {word} and its total.\n\n",
}
HEADS: Final = {"go": "package p\n\n"}
IGNORED: Final = ("", "*.go\n", "pkg/deep/\n", "/a.py\nnotes.md\n", "*.py\n!b.py\n")
#: A token that no other word is like: letters by which the words are counted.
LETTERS: Final = "bcdfghjklm"


class World:
    """A workspace, its index, and what is in each file."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"index {seed}")
        self.folder = Path(tempfile.mkdtemp(prefix="played-index-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self.root = self.folder / "work"
        self.root.mkdir()
        self.words: dict[str, list[str]] = {}
        """What each file holds, in order."""
        self.rules = ""
        self.known: dict[str, list[str]] = {}
        """The same, as it was when it was indexed."""
        self.known_rules = ""
        self.dropped: list[str] = []
        self.number = 0
        self.clock = 1_700_000_000
        self.problems: list[str] = []
        self.deed = ""
        self.open_index = partial(CodeIndex.open, self.root, self.folder / "store", embedder=None)
        self.simulation = SimulatedScheduler(0)
        self.system = ActorSystem(self.simulation)
        self._begin()
        for name in self.rng.sample(sorted(FILES), 4):
            self.write(name)

    def _begin(self) -> None:
        self.rag = self.system.spawn(lambda: Rag(self.open_index, [self.root]), "rag")
        self.indexer = self.system.spawn(lambda: Indexer(self.open_index), "indexer")

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            self.problems.append(f"after {self.deed}: {what}".replace(f"{self.root}/", ""))

    def ask(self, ref: Any, message: Any) -> Any:
        """What an actor answers."""
        reply = ref.ask(message, block=False)
        self.simulation.run_until_idle(until_seconds=self.simulation.now() + 1.0)
        return reply._error or reply.result()

    # -- files

    def word(self) -> str:
        """One that is nowhere yet."""
        self.number += 1
        return "quux" + "".join(LETTERS[int(digit)] for digit in f"{self.number:04}")

    def write(self, name: str) -> None:
        """New content, some of it kept."""
        old = self.words.get(name, [])
        kept = [word for word in old if self.rng.random() < 0.5]
        self.dropped += [word for word in old if word not in kept]
        self.words[name] = [*kept, *(self.word() for _ in range(self.rng.randint(1, 4)))]
        self.rng.shuffle(self.words[name])
        self._save(name)

    def text(self, name: str, words: Sequence[str]) -> str:
        """What the file holds."""
        kind = FILES[name]
        return HEADS.get(kind, "") + "".join(BLOCKS[kind].format(word=word) for word in words)

    def _save(self, name: str) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(self.text(name, self.words[name]))
        self._tick(place)

    def _tick(self, place: Path) -> None:
        """Times that go on by themselves, so that no play depends on how quick it is."""
        self.clock += 1
        os.utime(place, (self.clock, self.clock))

    def visible(self, words: dict[str, list[str]], rules: str) -> dict[str, list[str]]:
        """The files that no rule leaves out."""
        return {name: held for name, held in words.items() if not self.is_ignored(name, rules)}

    @staticmethod
    def is_ignored(name: str, rules: str) -> bool:
        """By the rules of IGNORED, each read by itself."""
        return {
            "": False,
            "*.go\n": name.endswith(".go"),
            "pkg/deep/\n": name.startswith("pkg/deep/"),
            "/a.py\nnotes.md\n": name in ("a.py", "notes.md"),
            "*.py\n!b.py\n": name.endswith(".py") and name != "pkg/b.py",
        }[rules]

    @property
    def is_up_to_date(self) -> bool:
        """Whether all is read; else contexts and look-ups read on their own what they find changed."""
        return self.known == self.words and self.known_rules == self.rules

    # -- deeds

    def act(self) -> None:
        """One random deed."""
        deeds: tuple[Callable[[], None], ...] = (
            *(self.change,) * 5, *(self.refresh,) * 4, self.refresh_some, self.remove, self.move, self.ignore,
            self.junk, self.reopen, self.copied,
        )  # fmt: skip
        deed = self.rng.choice(deeds)
        self.deed = deed.__name__
        deed()

    def change(self) -> None:
        """A file is written."""
        self.write(self.rng.choice(sorted(FILES)))

    def remove(self) -> None:
        """A file is gone."""
        if self.words:
            name = self.rng.choice(sorted(self.words))
            self.dropped += self.words.pop(name)
            (self.root / name).unlink()

    def move(self) -> None:
        """A file gets the name of another one of its language, or changes places with it."""
        names = [name for name in sorted(self.words) if FILES[name] == "python"]
        free = [name for name in sorted(FILES) if FILES[name] == "python" and name not in self.words]
        if names and free:
            old, new = self.rng.choice(names), self.rng.choice(free)
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.root / old, self.root / new)
            self.words[new] = self.words.pop(old)
        elif len(names) > 1:
            one, other = self.rng.sample(names, 2)
            self.words[one], self.words[other] = self.words[other], self.words[one]
            self._save(one)
            self._save(other)

    def ignore(self) -> None:
        """Other rules on what is left out."""
        self.rules = self.rng.choice(IGNORED)
        place = self.root / ".gitignore"
        place.write_text(self.rules)
        self._tick(place)

    def junk(self) -> None:
        """Files that are never read: binary, empty, a lock file, a secret, a link that leads out."""
        word = self.word()
        self.dropped.append(word)
        outside = self.folder / "outside.py"
        outside.write_text(f"def {word}(): pass\n")
        name, content = self.rng.choice(
            (
                ("blob.py", f"\0{word}".encode()),
                ("void.py", b""),
                ("poetry.lock", word.encode()),
                (".env", word.encode()),
            )
        )
        (self.root / name).write_bytes(content)
        if not os.path.lexists(self.root / "link.py"):
            (self.root / "link.py").symlink_to(outside)

    def refresh(self) -> None:
        """All that has changed is read, and everything compared."""
        summary = self.ask(self.indexer, RefreshIndex())
        self.known, self.known_rules = {name: list(held) for name, held in self.words.items()}, self.rules
        files = self.visible(self.known, self.known_rules)
        if isinstance(summary, BaseException):
            self.wrong(f"the refresh came to {summary!r}")
        elif summary.note:
            self.wrong(f"the refresh tells of {summary.note!r}")
        elif summary.files != len(files) + bool(self.rules):  # the rules are a file too
            self.wrong(f"the index is said to have {summary.files} files, and there are {sorted(files)}")
        self.compare()

    def refresh_some(self) -> None:
        """Only some files need be read: what they hold is found, whatever of others is."""
        if self.rules != self.known_rules or not self.known:
            return
        names = self.rng.sample(sorted(FILES), 3)
        self.ask(self.indexer, RefreshIndex(paths=tuple(str(self.root / name) for name in names)))
        self.known = {}  # of the others it may have read more
        files = {name: held for name, held in self.visible(self.words, self.rules).items() if name in names}

        def look(index: CodeIndex) -> None:
            own = {os.path.relpath(row.path, self.root) for row in index.files()} & set(names)
            if own != set(files):
                self.wrong(f"of {names} the index has the files {sorted(own)}, and there are {sorted(files)}")
                return
            for name, held in sorted(files.items()):
                if not index.search(held[0], 5):
                    self.wrong(f"the index does not find {held[0]} of {name}")

        if isinstance(found := self.ask(self.rag, AskIndex(look)), BaseException):
            self.wrong(f"the questions came to {found!r}")

    def reopen(self) -> None:
        """The actors stop, and others begin with the store that they have left."""
        for ref in (self.rag, self.indexer):
            ref.stop()
        self.simulation.run_until_idle(until_seconds=self.simulation.now() + 1.0)
        self._begin()

    def copied(self) -> None:
        """A store that was copied while it was open, as a kill leaves it, is brought up to date as this one is."""
        if not (self.folder / "store").exists():
            return
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "store", copy)
        with CodeIndex.open(self.root, copy, embedder=None) as index:
            index.refresh()
            self._compare_with(index, self.visible(self.words, self.rules), "a copied store")
        shutil.rmtree(copy)

    # -- what is compared

    def compare(self) -> None:
        """By the actor that answers questions."""
        files = self.visible(self.known, self.known_rules)
        found = self.ask(self.rag, AskIndex(lambda index: self._compare_with(index, files, "the index")))
        if isinstance(found, BaseException):
            self.wrong(f"the questions came to {found!r}")
        places = [(name, word) for name, held in files.items() for word in held]
        if places and self.is_up_to_date:
            name, word = self.rng.choice(places)
            answer = self.ask(self.rag, SearchCode((word,), 2_000))
            context = getattr(answer, "context", None)
            shown = str(answer) if context is None else "\n".join(item.snippet for item in context.context)
            block = BLOCKS[FILES[name]].format(word=word).strip("\n")
            if block not in shown:
                self.wrong(f"who asks for {word} is not shown {block!r} of {name}: {shown[:300]!r}")

    def _compare_with(self, index: CodeIndex, files: dict[str, list[str]], who: str) -> None:
        rng = self.rng
        own = {os.path.relpath(row.path, self.root) for row in index.files()} - {".gitignore"}
        if own != set(files):
            self.wrong(f"{who} has the files {sorted(own)}, and there are {sorted(files)}")
            return
        places = [(name, word) for name, held in sorted(files.items()) for word in held]
        for name, word in rng.sample(places, min(len(places), 5)):
            self._compare_word(index, name, word, files[name], who)
        held = {word for words in files.values() for word in words}
        gone = [word for word in self.dropped if word not in held]
        for word in rng.sample(gone, min(len(gone), 3)):
            if hits := index.search(word, 5):
                self.wrong(f"{who} finds {word}, which is nowhere, at {hits[0].path}:{hits[0].start_line}")
        self._compare_many(index, files, who)

    def _compare_word(self, index: CodeIndex, name: str, word: str, words: list[str], who: str) -> None:
        text = self.text(name, words)
        line = next(at for at, each in enumerate(text.split("\n"), 1) if word in each)
        hits = index.search(word, 5)
        if not hits:
            self.wrong(f"{who} does not find {word} of {name}")
            return
        first = hits[0]
        if first.path != str(self.root / name) or not first.start_line <= line <= first.end_line:
            self.wrong(f"{who} finds {word} at {first.path}:{first.start_line}, and it is in {name}:{line}")
        content = text.encode()
        if word.encode() not in content[first.start_byte : first.end_byte] or (
            first.start_line != content.count(b"\n", 0, first.start_byte) + 1
        ):
            self.wrong(f"{who} gives bytes and lines of {word} that are not those of {name}")
        if len(hits) > 1 and any(hit.path == first.path and hit.start_byte == first.start_byte for hit in hits[1:]):
            self.wrong(f"{who} gives one place twice for {word}")
        if FILES[name] in ("python", "rust", "go", "javascript") and self.is_up_to_date:
            items = index.lookup(word)
            spans = [(item.file, item.start_line, item.kind) for item in items]
            if spans != [(str(self.root / name), line, "function")]:
                self.wrong(f"{who} looks {word} of {name}:{line} up as {spans}")

    def _compare_many(self, index: CodeIndex, files: dict[str, list[str]], who: str) -> None:
        """Of a word that is everywhere: no more than asked for, in the same order again, filtered as asked."""
        rng = self.rng
        most = rng.choice((1, 3, 10))
        hits = index.search("total", most)
        blocks = sum(map(len, files.values()))
        if len(hits) > most or (blocks and not hits) or _shown(hits) != _shown(index.search("total", most)):
            self.wrong(f"{who} gives {len(hits)} hits of {most}, or another order when it is asked again")
        wanted = rng.choice(("pkg", "a.py", "*.py"))
        fitting = {name for name in files if fnmatchcase(name, wanted) or name.startswith(f"{wanted}/")}
        found = {os.path.relpath(hit.path, self.root) for hit in index.search("total", 50, Filters(paths=(wanted,)))}
        if found != fitting:
            self.wrong(f"{who} finds in {wanted!r} the files {sorted(found)}")
        language = rng.choice(("python", "rust", "markdown"))
        of_it = index.search("total", 50, Filters(languages=(language,)))
        found = {os.path.relpath(hit.path, self.root) for hit in of_it}
        if found != {name for name in files if FILES[name] == language}:
            self.wrong(f"{who} finds for {language} the files {sorted(found)}")

    def compare_with_a_fresh_one(self) -> None:
        """The same files give the same answers, whatever was before."""
        fresh = self.folder / "fresh"
        queries = ["total", "value", *(word for held in self.words.values() for word in held[:1])]
        with CodeIndex.open(self.root, fresh, embedder=None) as index:
            index.refresh()
            due = [_shown(index.search(query, 100)) for query in queries]
        found = self.ask(self.rag, AskIndex(lambda index: [_shown(index.search(query, 100)) for query in queries]))
        for query, one, other in zip(queries, found, due, strict=True):
            if one != other:
                self.wrong(f"{query} is found at {one[:3]}, and by a fresh index at {other[:3]}")
                return

    def end(self) -> None:
        """Leave nothing."""
        self.system.shutdown(5)
        self.simulation.run_until_idle()
        self.simulation.close()
        shutil.rmtree(self.folder)


def _shown(hits: Sequence[Hit]) -> list[tuple[object, ...]]:
    return sorted((hit.path, hit.start_line, hit.end_line, hit.canonical_path, hit.digest) for hit in hits)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    world = World(seed)
    try:
        world.deed = "the first refresh"
        world.refresh()
        for _ in range(world.rng.choice((3, 6, 12))):
            if world.problems:
                return world.problems
            world.act()
        if not world.problems:
            world.deed = "all"
            world.refresh()
            world.compare_with_a_fresh_one()
    finally:
        world.end()
    return world.problems
