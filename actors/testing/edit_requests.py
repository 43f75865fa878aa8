"""Random edits and patches for the editor's play: each with what it makes of the file, known as it is put together."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterator
from typing import Final

from callboard.actors.edits.changes import tracking_hash
from callboard.actors.edits.planning import ApplyPatch, CodeEdit, EditCode, EditRequest
from callboard.actors.index.code_items import CodeItem
from callboard.actors.testing.edits_model import Edit, Shelf, Span, meet

NAMES: Final = ("a.py", "b.txt", "sub/c.py", "sub/deep/d.md", "e")
WORDS: Final = ("alpha", "beta", "gamma", "été", "日本", "x = 1", "return", "", f"key = 'ghp_{'a1B2' * 9}'")


class Lines:
    """Text files as lines that are like no other line."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.number = rng, 0

    def line(self, indent: str = "") -> str:
        """A new one."""
        self.number += 1
        return f"{indent}{self.rng.choice(WORDS)} {self.number}".rstrip()

    def content(self) -> bytes:
        """A new file."""
        rng = self.rng
        lines = [self.line(rng.choice(("", "", "    ", "        "))) for _ in range(rng.choice((0, 1, 3, 8, 20)))]
        end = rng.choice(("\n", "\n", "\r\n"))
        text = end.join(lines) + (end if lines and rng.random() < 0.8 else "")
        return (b"\xef\xbb\xbf" if rng.random() < 0.1 and text else b"") + text.encode()


def pieces(content: bytes) -> list[bytes]:
    """Its lines, with their ends."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


class Requests:
    """For files of the model; `stage` hands each one over with what it is to come to."""

    rng: random.Random
    lines: Lines
    shelf: Shelf
    located: dict[str, list[CodeItem]]
    """What the index finds, by name."""

    def stage(self, request: EditRequest, edits: tuple[Edit, ...] | None, note: str = "") -> None:
        """Of the play: None where it is to be refused."""
        raise NotImplementedError

    def a_file(self) -> str | None:
        """One that is there, and is text with lines."""
        names = [name for name, content in self.shelf.files.items() if pieces(content)]
        return self.rng.choice(names) if names else None

    @staticmethod
    def whole(old: bytes, text: str) -> bytes:
        """A text in place of all of a file's, with its line ends and byte order mark."""
        first = pieces(old)[:1]
        ends = "\r\n" if first and first[0].endswith(b"\r\n") else "\n"
        mark = b"\xef\xbb\xbf" if old.startswith(b"\xef\xbb\xbf") else b""
        return mark + re.sub("\r?\n", lambda _: ends, text).encode()

    def edit(self) -> None:
        """`apply_code_edit`, with one or more places."""
        rng, name = self.rng, self.a_file()
        if name is None:
            return
        content = self.shelf.files[name]
        lines = pieces(content)
        mark = 3 if content.startswith(b"\xef\xbb\xbf") else 0
        edits: list[CodeEdit] = []
        spans: list[Span] = []
        for at in sorted(rng.sample(range(len(lines)), min(len(lines), rng.choice((1, 1, 2, 3))))):
            made = self._code_edit(name, content, lines, at, mark)
            if made is not None:
                edits.append(made[0])
                spans.append(made[1])
        if not edits:
            return
        order = list(range(len(edits)))
        rng.shuffle(order)
        edit = Edit(name, name, content, tuple(spans))
        request = EditCode(tuple(edits[at] for at in order), {})
        is_one_text = any(meet(one, other) for at, one in enumerate(spans) for other in spans[:at])
        self.stage(request, None if is_one_text else (edit,), "two edits of one place")

    def _code_edit(
        self, name: str, content: bytes, lines: list[bytes], at: int, mark: int
    ) -> tuple[CodeEdit, Span] | None:
        rng = self.rng
        start = sum(map(len, lines[:at])) + (mark if at == 0 else 0)
        end = sum(map(len, lines[: at + 1]))
        body = content[start:end].rstrip(b"\r\n")
        text_end = start + len(body)
        ends = self._ends(lines, at)
        fresh = self.lines.line("  ")
        if not body.strip() or content.count(body) != 1:
            return None
        old = body.decode()
        how = rng.choice(("text", "line", "span", "span_text", "before", "after", "remove", "many", "item", "lines"))
        new = fresh.encode()
        if how == "text":
            return CodeEdit(fresh, file=name, old_text=old), (start, text_end, new)
        if how == "many":
            more = f"{fresh}\n{self.lines.line()}"
            return CodeEdit(more, file=name, old_text=old), (start, text_end, more.encode().replace(b"\n", ends))
        if how == "span":
            edit = CodeEdit(fresh, file=name, start_byte=start, end_byte=text_end, hash=tracking_hash(content))
            return edit, (start, text_end, new)
        if how == "span_text":
            return CodeEdit(fresh, file=name, old_text=old, start_byte=start, end_byte=text_end), (start, text_end, new)
        if how == "item":
            return self._by_item(name, content, (start, text_end), fresh, has_end=end > text_end)
        if how == "lines" and at + 1 < len(lines) and (next_one := lines[at + 1].rstrip(b"\r\n")).strip():
            both = f"{old}\n{next_one.decode()}"  # whichever line ends they have
            return CodeEdit(fresh, file=f"./{name}", old_text=both), (start, end + len(next_one), new)
        if how in ("line", "remove") and end > text_end:
            given = f"{fresh}\n" if how == "line" else ""
            put = new + ends if how == "line" else b""
            return CodeEdit(given, file=name, old_text=f"{old}\n"), (start, end, put)
        if how == "before":
            return CodeEdit(fresh, file=name, old_text=old, place="before"), (start, start, new + ends)
        if how == "after":
            put = new + self._ends(lines, at + 1) if end > text_end else ends + new
            return CodeEdit(fresh, file=name, old_text=old, place="after"), (end, end, put)
        return None

    def _by_item(
        self, name: str, content: bytes, span: tuple[int, int], fresh: str, *, has_end: bool
    ) -> tuple[CodeEdit, Span]:
        """By the name of an item, or by a text that is there once within it."""
        start, end = span
        known = f"item_{self.lines.number}"
        self.located[known] = [CodeItem(name, known, known, "function", start, end, 1, 1, tracking_hash(content))]
        body = content[start:end]
        word = body.split()[0]
        if self.rng.random() < 0.5 and body.count(word) == 1:
            at = start + body.index(word)
            edit = CodeEdit(fresh.strip(), canonical_path=known, old_text=word.decode())
            return edit, (at, at + len(word), fresh.strip().encode())
        given = f"{fresh}\n" if has_end else fresh
        return CodeEdit(given, canonical_path=known), (start, end, fresh.encode())

    @staticmethod
    def _ends(lines: list[bytes], at: int) -> bytes:
        """Those of this line, or of the one before it where it has none."""
        having = [line for line in lines[: at + 1] if line.endswith(b"\n")]
        here = lines[at : at + 1]
        line = here[0] if here and here[0].endswith(b"\n") else having[-1] if having else b""
        return b"\r\n" if line.endswith(b"\r\n") else b"\n"

    def patch(self) -> None:
        """`apply_patch`, of one or two files, exact and not."""
        rng = self.rng
        names = rng.sample(list(self.shelf.files), min(len(self.shelf.files), rng.choice((1, 1, 2))))
        texts: list[str] = []
        edits: list[Edit] = []
        for name in names:
            kind = rng.choice(("edit",) * 5 + ("delete", "rename", "mode"))
            made = self._patched(name, kind)
            if made is not None:
                texts.append(made[0])
                edits.append(made[1])
        if rng.random() < 0.3 and (new := f"made/{self.lines.line().replace(' ', '')}") not in self.shelf.files:
            body = [self.lines.line() for _ in range(3)]
            added = "".join(f"+{line}\n" for line in body)
            texts.append(f"--- /dev/null\n+++ b/{new}\n@@ -0,0 +1,3 @@\n{added}")
            edits.append(Edit(new, new, None, ((0, 0, "".join(f"{line}\n" for line in body).encode()),)))
        if len(edits) > 1:  # where one of them has git's header, all have it
            texts = [
                text if text.startswith("diff") else _headed(text, edit)
                for text, edit in zip(texts, edits, strict=True)
            ]
        if edits and len({edit.target for edit in edits}) == len(edits):
            self.stage(ApplyPatch("".join(texts)), tuple(edits))

    def _patched(self, name: str, kind: str) -> tuple[str, Edit] | None:
        content = self.shelf.files[name]
        lines = pieces(content)
        if kind == "mode":
            return f"diff --git a/{name} b/{name}\nold mode 100644\nnew mode 100755\n", Edit(
                name, name, content, (), is_executable=True
            )
        if kind == "delete" and (lines or not content):
            old = content.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
            hunk = "".join(_diff(old, "", 3)) if old else ""
            head = f"diff --git a/{name} b/{name}\ndeleted file mode 100644\n"
            return f"{head}--- a/{name}\n+++ /dev/null\n{hunk}" if hunk else head, Edit(name, None, content)
        if kind == "rename":
            target = f"moved/{name.replace('/', '-')}"
            if target in self.shelf.files:
                return None
            return (
                f"diff --git a/{name} b/{target}\nsimilarity index 100%\nrename from {name}\nrename to {target}\n",
                Edit(name, target, content),
            )
        return self._hunks(name, content, lines)

    def _hunks(self, name: str, content: bytes, lines: list[bytes]) -> tuple[str, Edit] | None:
        """Some lines replaced, added and removed; the patch is then made less exact."""
        rng = self.rng
        mark = 3 if content.startswith(b"\xef\xbb\xbf") else 0
        old = (
            [line.rstrip(b"\r\n").decode() for line in [content[mark:][: len(lines[0]) - mark], *lines[1:]]]
            if lines
            else []
        )
        if not old or not lines[-1].endswith(b"\n") or any(not line.strip() for line in old):
            return None
        new: list[str] = []
        spans: list[Span] = []
        at, place = 0, mark
        while at < len(old):
            removed, added = 0, list[str]()
            if rng.random() < 0.25:
                removed = rng.randint(0, min(2, len(old) - at))
                indent = old[at][: len(old[at]) - len(old[at].lstrip())]
                added = [self.lines.line(indent) for _ in range(rng.randint(0 if removed else 1, 2))]
            if removed or added:
                size = sum(map(len, lines[at : at + removed])) - (mark if at == 0 and removed else 0)
                ends = self._ends(lines, at)
                spans.append((place, place + size, b"".join(line.encode() + ends for line in added)))
                new += added
                place, at = place + size, at + removed
            if at < len(old):  # a line that stays, so that each run of changes is one
                new.append(old[at])
                place += len(lines[at]) - (mark if at == 0 else 0)
                at += 1
        if not spans or any(put != b"" and not put.strip() for _, _, put in spans):
            return None
        hunks = list(_diff("".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new), 3))
        told = f"--- a/{name}\n+++ b/{name}\n" + "".join(self._less_exact(hunks))
        return told, Edit(name, name, content, tuple(spans))

    def _less_exact(self, hunks: list[str]) -> list[str]:
        """As models write them: other line numbers, white space at the ends of lines."""
        how = self.rng.choice(("exact", "exact", "numbers", "none", "ends", "context"))
        found: list[str] = []
        for line in hunks:
            if line.startswith("@@"):
                if how == "numbers":
                    line = re.sub(r"-(\d+)", lambda number: f"-{int(number[1]) + 7}", line, count=1)
                elif how == "none":
                    line = "@@ @@\n"
            elif how == "ends" and line.startswith(" "):
                line = f"{line[:-1]}  \n"
            found.append(line)
        if how == "context":
            for at, line in enumerate(found):
                is_first = at and found[at - 1].startswith("@@") and line.startswith(" ")
                if is_first and all(each.startswith(" ") for each in found[at : at + 3]) and len(found) > at + 3:
                    found[at] = f" {self.lines.line()}\n"
        return found


def _headed(text: str, edit: Edit) -> str:
    new = "new file mode 100644\n" if edit.base is None else ""
    return f"diff --git a/{edit.name} b/{edit.target}\n{new}{text}"


def _diff(old: str, new: str, context: int) -> Iterator[str]:
    """The hunks from one text to the other, whose lines end with \\n."""
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), n=context)
    for line in list(lines)[2:]:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
