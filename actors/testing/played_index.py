"""The code index and the actors that answer from it, on a small workspace, beside a list of what is in which file.

    python -m callboard.actors.testing plays index --seeds 200

Files are written, moved, removed, ignored, made secret and unreadable at random, and read all together or a few at a
time. Each word is found where it was when it was read, and nowhere else, also by a store that was copied in the middle
of all and by an index made anew; what is shown is what the files hold now. Of four plays one is about the code of a
small program (index_programs.py), and one about what questions wait for (index_waits.py). `play(seed)` says what is not
so, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any, Final

from msgspec.structs import replace

from callboard.actors.index.code_index import CodeIndex, Hit
from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.rag import AskIndex, CodeSearch, RefreshIndex, code_actors
from callboard.actors.index.refresh import RefreshSummary
from callboard.actors.index.searching import MAX_QUERIES, Filters
from callboard.actors.index.watch import batches, watch
from callboard.actors.kernel import ActorSystem, Backoff, Supervisor
from callboard.actors.secret_files import SecretRules
from callboard.actors.testing import index_programs, index_waits
from callboard.actors.testing.index_files import BLOCKS, CODE, NAMES, SECRET, Files, new_folder, words_in
from callboard.actors.testing.index_model import GIT, OWN, Counted, Known, language_of
from callboard.actors.testing.simulated_loop import SimulatedLoop
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.code_fences import AssembledContext, CodeFence, parse_fences
from callboard.protocol.errors import RuntimeFailure, UsageError


class World(Files):
    """A workspace, its index, and what is in each file."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"index {seed}"), new_folder())
        self.known = Known()
        self.is_exact = True
        """Is `known` all that the index has? Not after a look-up has found some files changed."""
        self.latest: tuple[float, RefreshSummary] | None = None
        """The last refresh of all, which may be answer enough."""
        self.problems: list[str] = []
        self.deed = ""
        self.rules = SecretRules(self.tree.given)
        self.open_index = partial(CodeIndex.open, self.root, self.folder / "store", embedder=None, secrets=self.rules)
        self.simulation = SimulatedScheduler(seed)
        self.system = ActorSystem(self.simulation)
        self.loop = SimulatedLoop(self.simulation)
        specs = code_actors([self.root], self.folder / "store", None, self.rules, lambda _: None)
        specs = tuple(replace(each, runs_on="loop", backoff=Backoff(0, 0), intensity=1_000_000) for each in specs)
        self.system.spawn(lambda: Supervisor(specs), "root")
        self.pass_time(0.3)
        self.search = CodeSearch(self.system)
        for name in self.rng.sample(NAMES, 5):
            self.write(name)

    def pass_time(self, seconds: float) -> None:
        """Virtual."""
        self.simulation.run_until_idle(until_seconds=self.simulation.now() + seconds)

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            self.problems.append(f"after {self.deed}: {what}".replace(f"{self.root}/", ""))

    def ask(self, name: str, message: Any) -> Any:
        """What an actor answers; where it fails, with what."""
        reply = self.system.ref(f"root/{name}").ask(message, block=False)
        while not reply.done and self.simulation.step():
            continue
        return reply._error or reply.result()

    def answer(self, question: Callable[[CodeIndex], Any]) -> Any:
        """By the actor that answers questions."""
        found = self.ask("rag", AskIndex(question))
        if isinstance(found, BaseException):
            self.wrong(f"the questions came to {found!r}")
        return found

    # -- files

    @property
    def is_up_to_date(self) -> bool:
        """Whether all is read; else contexts and look-ups read on their own what they find changed."""
        return self.is_exact and self.known.texts == self.tree.visible() and not self.tree.locked

    # -- deeds that change files

    def change_unseen(self) -> None:
        """A file is written twice within one tick of the clock, or so that only its size tells."""
        name, is_late = self.rng.choice(NAMES), self.rng.random() < 0.6
        self.write(name, is_late=is_late)
        self.refresh()
        stamp, status = self.stamps[name], (self.root / name).stat()
        words = [self.word() for _ in words_in(self.tree.texts[name])]
        self.save(name, self.text(name, words if is_late else [*words, self.word()]))
        os.utime(self.root / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.stamps[name] = (stamp[0], (self.root / name).stat().st_size)
        self.rng.choice((self.refresh, lambda: self._look_at([name])))()

    def touch(self) -> None:
        """Only its times change, which is seen once."""
        if name := self.a_text():
            self.stamp(name)
            self.refresh()
            if not name.endswith((GIT, OWN)):
                self.tree.locked[name] = "no_permission"

    def remove(self) -> None:
        """A file is gone, or a folder with all that is in it."""
        name = self.a_text()
        if name is None:
            return
        folder = name.partition("/")[0] if self.rng.random() < 0.3 and "/" in name else ""
        if folder:
            shutil.rmtree(self.root / folder)
            for each in [*self.tree.texts, *self.tree.odd]:
                if each.startswith(f"{folder}/"):
                    self.gone(each)
        else:
            (self.root / name).unlink()
            self.gone(name)
            self.tidy()
            if self.rng.random() < 0.3:  # a watcher tells of it
                self._look_at([name])

    def hide(self) -> None:
        """Other files are secret. Nothing of them is shown from now on, whatever the index holds."""
        self._rule(OWN, self.rng.choice(SECRET))
        self.look_now()

    # -- deeds that read them

    def refresh(self) -> None:
        """All that has changed is read, and everything compared. One that has just ended may be answer enough."""
        most = self.rng.choice((0.0, 0.0, 2.0))
        self._refreshed(self.ask("indexer", RefreshIndex(max_age_seconds=most)), most)
        self.compare()

    def _refreshed(self, summary: Any, most: float = 0.0) -> None:
        """Compare what a refresh of all says that it did."""
        now = self.simulation.now()
        if self.latest is not None and now - self.latest[0] < most:
            if summary != self.latest[1]:
                self.wrong(f"a refresh that ended just now, {self.latest[1]}, is told as {summary!r}")
            return
        due = self.known.refresh(self.tree, self.stamps)
        self._compare_summary(summary, due)
        self.is_exact = True
        if isinstance(summary, RefreshSummary):
            self.latest = now, summary

    def _compare_summary(self, summary: Any, due: Counted) -> None:
        if not isinstance(summary, RefreshSummary):
            self.wrong(f"the refresh came to {summary!r}")
            return
        counts = Counted(summary.indexed, summary.unchanged, summary.removed, dict(summary.skipped), summary.files)
        if not self.is_exact:  # some of it has been read before
            due = replace(due, indexed=counts.indexed, unchanged=counts.unchanged, removed=counts.removed)
        if counts != due:
            self.wrong(f"the refresh tells {counts}, and is to tell {due}")
        if summary.note:
            self.wrong(f"the refresh tells of {summary.note!r}")
        if summary.is_complete != self.known.is_whole:
            self.wrong(f"the index is said to be whole: {summary.is_complete}, and it is: {self.known.is_whole}")
        texts = self.known.texts.items()
        held = sum(1 + (language_of(name) in (*CODE, "markdown")) * len(words_in(text)) for name, text in texts)
        if summary.symbols != held:
            self.wrong(f"the index is said to have {summary.symbols} symbols, and there are {held}")

    def refresh_some(self) -> None:
        """Only these files are looked at; all, where one of them is a folder, or says which files there are."""
        rng = self.rng
        there = sorted({*self.tree.texts, *self.known.texts, *self.tree.odd})
        names = rng.sample(there, min(len(there), rng.choice((1, 2, 4))))
        if rng.random() < 0.3:
            names.append(rng.choice(("pkg", "pkg/deep", GIT, f"pkg/{OWN}", "no/such.py")))
        self._look_at(names)

    def _look_at(self, names: Sequence[str]) -> None:
        if not self.is_exact:
            return
        if self.rng.random() < 0.5:
            paths = [str(self.root / name) for name in names]
            summary = self.ask("indexer", RefreshIndex(paths=(*paths, "/somewhere/else.py")))
        else:
            summary = self.loop.outcome(self.search.changed([self.root / name for name in names]))
        is_whole = any(
            name.endswith((GIT, OWN))
            or (self.root / name).is_dir()
            or (name not in self.known.texts and not os.path.lexists(self.root / name))
            for name in names
        )
        due = (
            self.known.refresh(self.tree, self.stamps)
            if is_whole
            else self.known.refresh_some(self.tree, self.stamps, names)
        )
        self._compare_summary(summary, due)
        self.compare()

    def reopen(self) -> None:
        """The actors stop, and others begin with the store that they have left."""
        for name in ("rag", "indexer"):
            self.system.ref(f"root/{name}").stop()
        self.pass_time(1.0)
        self.latest = None

    def copied(self) -> None:
        """A store that was copied while it was open, as a kill leaves it, is brought up to date as this one is."""
        if self.tree.locked or not (self.folder / "store").exists():
            return
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "store", copy)
        with CodeIndex.open(self.root, copy, embedder=None, secrets=self.rules) as index:
            index.refresh()
            self._compare_with(index, self.tree.visible(), "a copied store")
        shutil.rmtree(copy)

    def busy(self) -> None:
        """Another process writes the index: nothing is lost, and who asks is told."""

        def look(index: CodeIndex) -> None:
            other = CodeIndex.open(self.root, self.folder / "store", embedder=None)
            with other, other._layout.write_lock(0.0):
                summary = index.refresh(wait_seconds=0.0)
            if not summary.note or (summary.indexed, summary.files) != (0, len(self.known.texts)):
                self.wrong(f"while another process writes the index, a refresh tells {summary}")
            if summary.is_complete != self.known.is_whole:
                self.wrong("while another process writes the index, a refresh tells otherwise whether it is whole")

        if self.is_exact:
            self.answer(look)
            self.compare()

    def away(self) -> None:
        """The workspace is away for a while, as a disk may be: nothing is deleted from the index, and nothing made."""
        self.root.rename(self.folder / "away")
        summary = self.ask("indexer", RefreshIndex())
        if not isinstance(summary, UsageError):
            self.wrong(f"a refresh of a workspace that is gone came to {summary!r}")
        if self.root.exists():
            self.wrong("a folder was made in the place of a workspace that is gone")
            shutil.rmtree(self.root)
        (self.folder / "away").rename(self.root)
        self.refresh()

    def fail(self) -> None:
        """A question raises: it is told so who has asked it, and the next one is answered."""
        for error, kind in ((UsageError("so"), UsageError), (ZeroDivisionError("so"), RuntimeFailure)):

            def ask(index: CodeIndex, error: Exception = error) -> None:
                raise error

            found = self.ask("rag", AskIndex(ask))
            if type(found) is not kind or "so" not in str(found):
                self.wrong(f"a question that raises {error!r} came to {found!r}")
        self.compare()

    def watched(self) -> None:
        """What the operating system tells of changed paths: each once, in order, until the workspace is another one."""
        one, other = str(self.root / "a.py"), str(self.root / "b.py")
        told: list[object] = []

        def changes(*roots: str, **_: object) -> Iterator[set[tuple[int, str]]]:
            told.append(roots)
            yield set()
            yield {(1, other), (2, other), (1, one)}
            self.root.rename(self.folder / "away")
            yield {(3, one)}
            told.append("more")
            yield {(1, other)}

        index = CodeIndex.open(self.root, self.folder / "store", embedder=None)
        for heard, due in ((batches, [[], [one, other], [one]]), (watch, [[one, other], [one]])):
            told.clear()
            real = sys.modules.get("watchfiles")
            sys.modules["watchfiles"] = SimpleNamespace(watch=changes, DefaultFilter=dict)  # type: ignore[assignment]
            try:
                found = list(heard(index, Event()))
            finally:
                sys.modules.pop("watchfiles")
                if real is not None:
                    sys.modules["watchfiles"] = real
                (self.folder / "away").rename(self.root)
            if found != due or told != [(str(self.root),)]:
                self.wrong(f"of changed paths {found} is told, and {due} is to be; and the watch goes on: {told}")
        index.close()

    def ask_wrongly(self) -> None:
        """What no index can answer is said; a question that is asked twice, or empty, is one."""

        def look(index: CodeIndex) -> None:
            wrong: tuple[Callable[[], object], ...] = (
                lambda: index.search(["a"] * (MAX_QUERIES + 1)), lambda: index.lookup(" "),
                lambda: index.search("total", 5, Filters(languages=("klingon",))),
                lambda: index.search("total", 5, Filters(kinds=("spell",))), lambda: index.lookup("a", "spell"),
            )  # fmt: skip
            for number, each in enumerate(wrong):
                try:
                    found = each()
                except UsageError:
                    continue
                self.wrong(f"question {number}, which no index can answer, came to {found!r}")
            many = [
                _shown(index.search(query)) for query in ("total", ["total", "", " total "], ["total"] * MAX_QUERIES)
            ]
            if many != many[:1] * 3 or index.search(["", " "]):
                self.wrong("a question that is asked several times, or is empty, is answered otherwise than once")

        self._freshen()
        self.answer(look)
        found = self.loop.outcome(self.search.search("  ", 2_000))
        if not isinstance(found, UsageError):
            self.wrong(f"an empty question came to {found!r}")
        found = self.loop.outcome(self.search.search(["total", " total", ""], 2_000))
        if isinstance(found, Exception) or found.queries != ("total",):
            self.wrong(f"a question that is asked twice came to {found!r}")
        self.is_exact = False

    # -- what is compared

    def look_now(self) -> None:
        """Whatever the index was made of, look-ups and contexts show the files as they are now, and no secret ones."""
        self._freshen()
        visible = self.tree.visible()
        texts = self.known.texts
        held = [(name, word) for name in sorted(texts) for word in words_in(texts[name])]
        for name, word in self.rng.sample(held, min(len(held), 2)):
            is_same = self.known.texts.get(name) == visible.get(name) and name not in self.tree.locked
            kinds = language_of(name) in CODE and self.is_exact
            items = self.answer(partial(_items, word))
            if isinstance(items, BaseException):
                return
            for item in (each for group in items for each in group):
                short = os.path.relpath(item.file, self.root)
                if self.tree.is_secret(short):
                    self.wrong(f"the item {item.name} of {short} is shown, which is secret by now")
                elif item.name not in self.tree.texts.get(short, ""):
                    self.wrong(f"the item {item.name} is shown, which {short} does not hold any more")
            if is_same and kinds and not items[0]:
                self.wrong(f"{word} of {name} is not looked up")
            self.is_exact = self.is_exact and self.is_up_to_date
            if is_same:
                self.ask_for(name, word)
            else:
                context = self.loop.outcome(self.search.search(word, 2_000))
                self._compare_context(context)
        if not self.is_up_to_date:
            self.is_exact = False

    def _freshen(self) -> None:
        """As a question does that comes from outside, which is answered from a look of the last two seconds."""
        found = self.loop.outcome(self.search.refresh(timeout_seconds=5.0, max_age_seconds=2.0))
        self._refreshed(found, 2.0)

    def ask_for(self, name: str, word: str) -> None:
        """Who asks for a word is shown its block, exactly as the file holds it now."""
        context = self.loop.outcome(self.search.search(word, 2_000))
        shown = self._compare_context(context)
        block = BLOCKS[language_of(name)].format(word=word).strip("\n")
        if not any(block in each.code and each.path == str(self.root / name) for each in shown):
            self.wrong(f"who asks for {word} is not shown {block!r} of {name}: {context!r}"[:700])

    def _compare_context(self, context: Any) -> list[CodeFence]:
        """What is shown is what is there."""
        if not isinstance(context, AssembledContext):
            self.wrong(f"a question came to {context!r}")
            return []
        shown = [each for item in context.context for each in parse_fences(item.snippet)]
        for each, item in zip(shown, context.context, strict=True):
            if not isinstance(each, CodeFence):
                self.wrong(f"a place is shown as {each!r}")
                return []
            name = os.path.relpath(each.path, self.root)
            content = self.tree.texts.get(name, "").encode()
            first = content.count(b"\n", 0, each.start_byte) + 1
            lines = f"{first}-{first + each.code.rstrip().count(chr(10))}"
            if self.tree.is_secret(name):
                self.wrong(f"{name} is shown, which is secret by now")
            elif content[each.start_byte : each.end_byte].decode() != each.code:
                self.wrong(f"{each.code!r} is shown of {name}, which does not hold it there")
            elif (item.file, item.lines) != (each.path, lines):
                self.wrong(f"{item.file}:{item.lines} is said of what is shown of {name}:{lines}")
        if context.note:
            self.wrong(f"an answer from a whole index tells of {context.note!r}")
        return [each for each in shown if isinstance(each, CodeFence)]

    def compare(self) -> None:
        """By the actor that answers questions."""
        if not self.is_exact:
            return
        files = self.known.texts
        self.answer(lambda index: self._compare_with(index, files, "the index"))
        places = [(name, word) for name, text in files.items() for word in words_in(text)]
        if places and self.is_up_to_date:
            now = self.simulation.now()
            is_read = self.latest is None or now - self.latest[0] >= 2.0  # by the question itself
            self.ask_for(*self.rng.choice(places))
            if is_read:
                self.known.refresh(self.tree, self.stamps)
                self.latest = now, self.ask("indexer", RefreshIndex(max_age_seconds=1.0))

    def _compare_with(self, index: CodeIndex, files: dict[str, str], who: str) -> None:
        rng = self.rng
        own = [(os.path.relpath(row.path, self.root), row.language, row.lines) for row in index.files()]
        due = [(name, language_of(name), text[:-1].count("\n") + 1) for name, text in sorted(files.items())]
        if own != due:
            self.wrong(f"{who} has the files {own}, and there are {due}")
            return
        held = Counter(word for text in files.values() for word in words_in(text))
        # A word may have gone from one file to another one, of which only this one was read again.
        places = [(name, word) for name, text in sorted(files.items()) for word in words_in(text) if held[word] == 1]
        for name, word in rng.sample(places, min(len(places), 4)):
            self._compare_word(index, name, word, files[name], who)
        if len(places) > 1:
            (one, first), (other, second) = rng.sample(places, 2)
            best = {os.path.relpath(hit.path, self.root) for hit in index.search((first, second), 2)}
            if best != {one, other}:
                self.wrong(f"{who} finds {first} and {second}, asked for together, in {sorted(best)}")
        gone = [word for word in self.dropped if word not in held]
        for word in rng.sample(gone, min(len(gone), 3)):
            if hits := index.search(word, 5):
                self.wrong(f"{who} finds {word}, which is nowhere, at {hits[0].path}:{hits[0].start_line}")
        self._compare_many(index, files, who)
        if who == "the index" and self.known.is_whole != index.state().is_complete:
            self.wrong(f"the index says that it is whole: {index.state().is_complete}")
        done = len(files) + len(self.known.judged)
        if who == "the index" and index.state().done_files != done:
            self.wrong(f"{index.state().done_files} files are said to have been looked at, and {done} were")
        if who == "the index" and self.known.is_whole:
            unread = sorted(f"{self.root / name}: no_permission" for name in self.known.unread)
            if index.unread_files(20) != unread:
                self.wrong(f"{index.unread_files(20)} are said to be unread, and {unread} are")

    def _compare_word(self, index: CodeIndex, name: str, word: str, text: str, who: str) -> None:
        line = next(at for at, each in enumerate(text.split("\n"), 1) if word in each)
        hits = index.search(word, 5)
        if not hits:
            self.wrong(f"{who} does not find {word} of {name}")
            return
        first, language = hits[0], language_of(name)
        if first.path != str(self.root / name) or not first.start_line <= line <= first.end_line:
            self.wrong(f"{who} finds {word} at {first.path}:{first.start_line}, and it is in {name}:{line}")
        content = text.encode()
        if word.encode() not in content[first.start_byte : first.end_byte] or (
            first.start_line != content.count(b"\n", 0, first.start_byte) + 1
        ):
            self.wrong(f"{who} gives bytes and lines of {word} that are not those of {name}")
        if language in CODE and (first.name, first.kind) != (word, "function"):
            self.wrong(f"{who} finds {word} as the {first.kind} {first.name}")
        if len(hits) > 1:
            self.wrong(f"{who} finds {word}, which is at one place, {len(hits)} times")
        if language in CODE and self.is_up_to_date:
            items = index.lookup(word)
            spans = [(item.file, item.start_line, item.kind) for item in items]
            if spans != [(str(self.root / name), line, "function")]:
                self.wrong(f"{who} looks {word} of {name}:{line} up as {spans}")

    def _compare_many(self, index: CodeIndex, files: dict[str, str], who: str) -> None:
        """Of a word that is everywhere: no more than asked for, in the same order again, filtered as asked."""
        rng = self.rng
        most = rng.choice((1, 3, 10))
        hits = index.search("total", most)
        files = {name: text for name, text in files.items() if words_in(text)}
        blocks = sum(len(words_in(text)) for text in files.values())
        if len(hits) > most or (blocks and not hits) or hits != index.search("total", most):
            self.wrong(f"{who} gives {len(hits)} hits of {most}, or another order when it is asked again")
        if [hit.score for hit in hits] != sorted((hit.score for hit in hits), reverse=True):
            self.wrong(f"{who} gives hits of the scores {[hit.score for hit in hits]}")
        here = str(self.root)
        wanted = rng.choice(
            ("pkg", "pkg/", "./pkg", "pkg/deep", "pk", "a.py", "*.py", "pkg/*.py", "p*/b.py", f"{here}/pkg",
             f"{here}/*.md", "PKG", "b.py", "[ad].*")
        )  # fmt: skip
        below = wanted.removeprefix("./").removeprefix(f"{here}/").rstrip("/")
        fitting = {name for name in files if fnmatchcase(name, below) or f"{name}/".startswith(f"{below}/")}
        language = rng.choice(("python", "rust", "markdown"))
        of_it = {name for name in files if language_of(name) == language}
        functions = {name for name in files if language_of(name) in CODE}
        for filters, due in (
            (Filters(paths=(wanted,)), fitting),
            (Filters(paths=("notes.md", wanted)), fitting | ({"notes.md"} & set(files))),
            (Filters(languages=(language, "go")), of_it | {name for name in files if name.endswith(".go")}),
            (Filters(languages=(language,), paths=(wanted,)), of_it & fitting),
            (Filters(kinds=("function",)), functions),
        ):
            found = {os.path.relpath(hit.path, self.root) for hit in index.search("total", 200, filters)}
            if found != due:
                self.wrong(f"{who} finds with {filters} the files {sorted(found)}, and not {sorted(due)}")
        passing = index.passing_files(Filters(languages=(language,), paths=(wanted,)))
        if who == "the index" and passing != len(of_it & fitting):
            self.wrong(f"{passing} files are said to be {language} and in {wanted!r}: {sorted(of_it & fitting)} are")

    def compare_with_a_fresh_one(self) -> None:
        """The same files give the same answers, whatever was before."""
        fresh = self.folder / "fresh"
        texts = self.tree.visible().values()
        queries = ["total", "value", *(word for text in texts for word in words_in(text)[:1])]
        below = [each for each in (self.root / "pkg", self.root) if each.is_dir()]  # of which nothing is there twice
        with CodeIndex.open([self.root, *below], fresh, embedder=None, secrets=self.rules) as index:
            index.refresh()
            due = [_shown(index.search(query, 100)) for query in queries]
        found = self.answer(lambda index: [_shown(index.search(query, 100)) for query in queries])
        for query, one, other in zip(queries, found, due, strict=True):
            if one != other:
                self.wrong(f"{query} is found at {one[:3]}, and by a fresh index at {other[:3]}")
                return

    def deeds(self) -> list[Callable[[], None]]:
        """Those of this play: a few kinds, so that they come upon one another."""
        every: tuple[Callable[[], None], ...] = (
            self.remove, self.move, self.ignore, self.junk, self.reopen, self.copied, self.change_unseen, self.touch,
            self.move_folder, self.hide, self.link, self.lock, self.busy, self.away, self.fail, self.ask_wrongly,
            self.watched, self.look_now,
        )  # fmt: skip
        chosen = self.rng.sample(every, 5)
        return [*(self.change,) * 2, *(self.refresh,) * 2, *(self.refresh_some,) * 2, *chosen, *chosen]

    def act(self, deed: Callable[[], None]) -> None:
        """Do it; files that were changed are mostly looked at soon."""
        self.deed = deed.__name__
        deed()
        self.tidy()
        self.pass_time(self.rng.choice((0.0, 0.0, 1.5, 3.0)))
        if self.rng.random() < 0.3 and not self.problems:
            self.refresh()

    def play(self) -> None:
        """A first look, at some or at all, and then deeds."""
        self.deed = "the first look"
        if self.rng.random() < 0.4:
            self._look_at([name for name in sorted(self.tree.texts) if self.rng.random() < 0.8] or ["."])
        else:
            self.refresh()
        deeds = self.deeds()
        for _ in range(self.rng.choice((4, 8, 12))):
            if self.problems:
                return
            self.act(self.rng.choice(deeds))
        if not self.problems:
            self.deed = "all"
            self.tree.locked.clear()
            self._refreshed(self.ask("indexer", RefreshIndex()))
            self.compare()
            self.compare_with_a_fresh_one()

    def end(self) -> None:
        """Leave nothing."""
        self.loop.end(self.system)
        shutil.rmtree(self.folder)


def _items(word: str, index: CodeIndex) -> tuple[Sequence[CodeItem], Sequence[CodeItem]]:
    return index.lookup(word), index.close_items(word)


def _shown(hits: Sequence[Hit]) -> list[tuple[object, ...]]:
    return sorted((hit.path, hit.start_line, hit.end_line, hit.canonical_path, hit.digest) for hit in hits)


def _play_files(seed: int) -> list[str]:
    world = World(seed)
    try:
        with world.locks():
            world.play()
    finally:
        world.end()
    return world.problems


#: By turns.
_PLAYS: Final = (_play_files, index_programs.play, _play_files, index_waits.play)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    return _PLAYS[seed % len(_PLAYS)](seed)
