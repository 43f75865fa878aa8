"""The editor and its store on real files, beside a model (edits_model.py) in which files are bytes by name.

    python -m callboard.actors.testing plays edits --seeds 500

Edits of every kind are staged, approved and denied in any order, while files are changed by others, system calls fail,
and the editor crashes in the middle of one. After each deed every byte, permission and state is that of the model.
`play(seed)` says what is not, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from callboard.actors import opened_folders
from callboard.actors.edits.changes import tracking_hash
from callboard.actors.edits.editing import EditResult
from callboard.actors.edits.editor import ListProposals, ListUntold, MarkTold
from callboard.actors.edits.planning import (
    ApplyPatch,
    CodeEdit,
    CreateFile,
    DeleteFile,
    EditCode,
    EditRequest,
    OnExists,
    RenameFile,
)
from callboard.actors.edits.proposals import DecideEdits, Proposal, ProposalState
from callboard.actors.index.code_items import CodeItem
from callboard.actors.kernel import ActorSystem, Backoff, Supervisor
from callboard.actors.testing.edit_requests import NAMES, Lines, Requests, pieces
from callboard.actors.testing.edits_model import Edit, Offer, Shelf, done_by, told_by
from callboard.actors.testing.edits_owner import REQUESTS, Owner
from callboard.actors.testing.simulated_loop import SimulatedLoop
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.errors import ToolError

#: Files are made by the thousand: in memory where there is such a place.
_MEMORY: Final = "/dev/shm"
ON_EXISTS: Final[tuple[OnExists, ...]] = ("fail", "overwrite", "keep")
CALLS: Final = ("open", "rename", "unlink", "mkdir", "rmdir", "fsync", "fchmod", "stat", "fstat")
#: What the editor's process does with files while it applies one proposal is most often less than this.
MOST_CALLS: Final = 60


class Death(BaseException):
    """The editor ends here, in the middle of what it does."""


class Failing:
    """The module `os`, of which one call fails."""

    def __init__(self, real: Any, at: int, error: BaseException) -> None:
        self._real, self._left, self._error = real, at, error
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._counted(found) if name in CALLS else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if not self._left:
                self.has_failed = True
                raise self._error
            return call(*given, **named)

        return counted


@contextmanager
def failing(at: int, error: BaseException) -> Iterator[Failing]:
    """So many calls from now on, one fails."""
    real = opened_folders.__dict__["os"]
    fails = Failing(real, at, error)
    opened_folders.__dict__["os"] = fails
    try:
        yield fails
    finally:
        opened_folders.__dict__["os"] = real


class World(Owner, Requests):
    """A workspace with its editor, and the model."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"edits {seed}")
        self.lines = Lines(rng)
        self.folder = Path(tempfile.mkdtemp(prefix="played-edits-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self.root = self.folder / "work"
        (self.root / "sub").mkdir(parents=True)
        self.outside = self.folder / "outside"
        self.outside.write_bytes(b"nobody writes here\n")
        (self.root / "out").symlink_to(self.outside)
        (self.root / ".env").write_bytes(b"KEY=secret\n")
        (self.root / "linked").write_bytes(b"nobody moves this\n")
        (self.root / "in").symlink_to(self.root / "linked")
        self.kept = {"out": b"", "in": b"", "linked": b"nobody moves this\n", ".env": b"KEY=secret\n"}
        self.shelf = Shelf(new_mode=stat.S_IMODE(self.outside.stat().st_mode))
        for name in rng.sample(NAMES, rng.randint(1, 4)):
            self.write(name, self.lines.content(), rng.choice((0o644, 0o600, 0o755)))
        self.problems: list[str] = []
        self.folders = {os.path.relpath(above, self.root) for above, _, _ in os.walk(self.root)}
        self.deed = ""
        self.simulation = SimulatedScheduler(0)
        self.loop = SimulatedLoop(self.simulation)
        self.start()

    def start(self) -> None:
        """A runtime."""
        self.system = ActorSystem(self.simulation)
        self.begin()
        spec = replace(self.edits.actor(), runs_on="loop", backoff=Backoff(0, 0), intensity=1_000_000)
        self.system.spawn(lambda: Supervisor([spec]), "root")
        self.simulation.run_until_idle()
        self.editor = self.system.ref("root/editor")

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            for number, known in enumerate(self.shelf.offers, 1):  # their ids are other ones each time
                what = what.replace(known, f"proposal {number}")
            self.problems.append(f"{self.deed}: {what}".replace(f"{self.root}/", ""))

    def ask(self, message: Any) -> Any:
        """What it answers; a Death where it has crashed."""
        reply = self.editor.ask(message, block=False)
        self.simulation.run_until_idle()
        if reply._error is not None:
            return reply._error
        return reply.result()

    # -- files

    def write(self, name: str, content: bytes, mode: int | None = None) -> None:
        """Somebody else does it."""
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        if mode is not None:
            place.chmod(mode)
        self.shelf.files[name] = content
        self.shelf.modes[name] = stat.S_IMODE(place.stat().st_mode)

    def look(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """All that is there."""
        files: dict[str, bytes] = {}
        modes: dict[str, int] = {}
        for above, _, names in os.walk(self.root):
            for name in names:
                place = os.path.join(above, name)
                short = os.path.relpath(place, self.root)
                if short in self.kept:
                    continue
                with open(place, "rb") as file:
                    files[short] = file.read()
                modes[short] = stat.S_IMODE(os.stat(place).st_mode)
        return files, modes

    def compare_files(self) -> None:
        """Every byte and permission."""
        files, modes = self.look()
        shelf = self.shelf
        for name in sorted({*files, *shelf.files}):
            if files.get(name) != shelf.files.get(name):
                self.wrong(f"{name} holds {files.get(name)!r}, and is to hold {shelf.files.get(name)!r}")
            elif modes[name] != shelf.modes[name]:
                self.wrong(f"{name} has the permissions {modes[name]:o}, and is to have {shelf.modes[name]:o}")
        folders = {os.path.relpath(above, self.root) for above, _, _ in os.walk(self.root)}
        needed = {os.path.normpath(os.path.join(name, *[".."] * up)) for name in files for up in range(1, 4)}
        if left := sorted(folders - self.folders - needed):
            self.wrong(f"the folder {left[0]} was made, and nothing is in it")
        self.folders = folders
        if (
            self.outside.read_bytes() != b"nobody writes here\n"
            or (self.root / ".env").read_bytes() != self.kept[".env"]
        ):
            self.wrong("a file was written that no edit may touch")
        if not os.path.islink(self.root / "out"):
            self.wrong("a link was replaced")

    def compare(self) -> None:
        """All that can be seen."""
        self.compare_files()
        found = self.ask(ListProposals())
        if isinstance(found, BaseException):
            self.wrong(f"the proposals cannot be listed: {found!r}")
            return
        states = {each.id: str(each.state) for each in found}
        due = {known: offer.state for known, offer in self.shelf.offers.items()}
        if list(states.items()) != list(due.items()):
            odd = [known for known in {**states, **due} if states.get(known) != due.get(known)] or ["their order"]
            self.wrong(f"{odd[0]} is {states.get(odd[0])}, and is to be {due.get(odd[0])}")
        for each in found:
            self.compare_proposal(each, self.shelf.offers.get(each.id))
        state = self.rng.choice(tuple(ProposalState))
        if [each.id for each in self.edits.list((state,))] != [each.id for each in found if each.state is state]:
            self.wrong(f"others are listed than those that are {state}")
        self.compare_told()

    def compare_proposal(self, found: Proposal, offer: Offer | None) -> None:
        """What it says of itself is what it does."""
        if offer is not None and (found.request_id, found.call_id) != (offer.request, offer.call):
            self.wrong(f"{found.id} is of the call {found.call_id}, and was staged by {offer.call}")
        if offer is None or offer.state != "pending":
            return
        told = told_by(found.diff)
        if (found.request_id, found.is_changed_by_owner) != (offer.request, offer.is_changed):
            self.wrong(f"{found.id} is of {found.request_id!r}, changed by its owner: {found.is_changed_by_owner}")
        if len(found.files) != len(offer.edits) or len(told) != len(offer.edits):
            self.wrong(f"{found.id} shows {len(found.files)} files and {len(told)} in its diff, not {len(offer.edits)}")
            return
        for file, edit in zip(found.files, offer.edits, strict=True):
            base = edit.base or b""
            path, to = (
                os.path.relpath(file.path, self.root),
                file.renamed_to and os.path.relpath(file.renamed_to, self.root),
            )
            due = (edit.name, edit.kind, edit.target if edit.kind == "renamed" else "")
            if (path, str(file.kind), to) != due:
                self.wrong(f"{found.id} shows {(path, file.kind, to)}, and does {due}")
            if file.hash != ("" if edit.base is None else tracking_hash(base)):
                self.wrong(f"{found.id} shows another hash of {path} than that of what it is staged for")
            hunks = told.get(("" if edit.base is None else edit.name, edit.target or ""))
            if hunks is None:
                self.wrong(f"the diff of {found.id} does not show {edit.name}")
                continue
            if (done := done_by(hunks, base)) != (edit.result or b""):
                self.wrong(f"the diff of {found.id} makes {done!r} of {edit.name}, and the edit {edit.result!r}")
            body = [line for line in hunks if not line.startswith(("+++ ", "--- "))]
            lines = sum(line[0] == "+" for line in body), sum(line[0] == "-" for line in body)
            if (file.added_lines, file.removed_lines) != lines:
                self.wrong(f"{found.id} counts {file.added_lines, file.removed_lines} lines, its diff has {lines}")
            if (modes := [line for line in hunks if line.startswith(("new mode", "old mode"))]) and (
                edit.is_executable is None or f"new mode {'100755' if edit.is_executable else '100644'}\n" not in modes
            ):
                self.wrong(f"the diff of {found.id} changes a mode that the edit does not")

    # -- staging

    def stage(self, request: EditRequest, edits: tuple[Edit, ...] | None, note: str = "") -> None:
        """Stage it, which makes these edits; None: it is refused; (): there is nothing to do."""
        of, found = self.call(request)
        if edits is None:
            if not isinstance(found, ToolError):
                self.wrong(f"it was to be refused ({note}), and came to {found!r}"[:400])
                if isinstance(found, EditResult) and found.proposal:
                    self.problems.append("")
        elif not isinstance(found, EditResult):
            self.wrong(f"it was refused: {found!r}"[:600])
        elif not edits:
            if found.proposal or found.staged or not found.notes:
                self.wrong("there is nothing to do, and a proposal was staged")
        elif not found.proposal:
            self.wrong(f"nothing was staged: {found.notes}")
        else:
            self.take(of, found, edits)

    def act(self) -> None:
        """One random deed."""
        deeds: tuple[Callable[[], object], ...] = (
            *(self.edit,) * 3, *(self.patch,) * 4, self.create, self.delete, self.rename, *(self.approve,) * 4,
            self.approve_all, self.deny, self.interrupt, self.interrupt, self.outsider, self.refused, self.tell,
            self.tell, self.restart, self.swap, self.made_secret, self.owners_text, self.answer_late, self.begin_or_end,
            self.begin_or_end, self.new_runtime,
        )  # fmt: skip
        deed = self.rng.choice(deeds)
        self.deed = deed.__name__
        deed()
        self.compare()

    def create(self) -> None:
        """`create_file`."""
        rng, name = self.rng, self.rng.choice((*NAMES, "new/deep/er", "new/z"))
        content, on_exists = self.lines.content().decode(), rng.choice(ON_EXISTS)
        parents = rng.random() < 0.7
        old = self.shelf.files.get(name)
        request = CreateFile(name, content, on_exists, parents)
        if old is None:
            has_folder = (self.root / name).parent.is_dir()
            edit = Edit(name, name, None, ((0, 0, content.encode()),))
            self.stage(request, (edit,) if has_folder or parents else None, "no folder")
        elif on_exists == "fail":
            self.stage(request, None, "it exists")
        elif on_exists == "keep":
            self.stage(request, ())
        else:
            new = self.whole(old, content)
            self.stage(request, () if new == old else (Edit(name, name, old, ((0, len(old), new),)),))

    def delete(self) -> None:
        """`delete_file`."""
        name = self.rng.choice(NAMES)
        old = self.shelf.files.get(name)
        self.stage(DeleteFile(name), () if old is None else (Edit(name, None, old),))

    def rename(self) -> None:
        """`rename_file`."""
        name, new = self.rng.choice(NAMES), self.rng.choice((*NAMES, "other/place"))
        old = self.shelf.files.get(name)
        is_refused = old is None or new in self.shelf.files
        self.stage(RenameFile(name, new), None if is_refused else (Edit(name, new, old),), "taken or missing")

    # -- what is refused

    def refused(self) -> None:
        """Each for one reason; nothing is staged."""
        name = self.a_file()
        content = self.shelf.files[name] if name else b""
        ways: list[tuple[EditRequest, str]] = [
            (CreateFile("../beside", "x"), "outside"),
            (CreateFile("/etc/passwd", "x", "overwrite"), "outside"),
            (CreateFile("out", "x", "overwrite"), "a link that leads out"),
            (DeleteFile("out"), "a link that leads out"),
            (DeleteFile("in"), "a link"),
            (RenameFile("in", "elsewhere"), "a link"),
            (CreateFile(".callboardignore", "x"), "says what is secret"),
            (CreateFile(".env", "x", "overwrite"), "protected"),
            (DeleteFile(".env"), "protected"),
            (CreateFile("sub", "x", "overwrite"), "a folder"),
            (RenameFile("nowhere", "else"), "missing"),
            (ApplyPatch("no patch"), "no patch"),
            (EditCode((CodeEdit("x", file="nowhere", old_text="y"),), {}), "missing"),
        ]
        if name is not None:
            item = CodeItem(name, "twice", "twice", "class", 0, len(content), 1, 1, tracking_hash(content))
            self.located |= {"twice": [item, item], "old": [replace(item, hash="00")]}
            ways += [
                (EditCode((CodeEdit("x", canonical_path=each),), {}), f"the item {each}")
                for each in ("twice", "old", "nothing")
            ]
            near = CodeEdit("x", file=name, old_text="no such line is here")
            body = next((each.strip().decode("utf-8-sig") for each in pieces(content) if each.strip()), "")
            ways += [
                (RenameFile(name, ".env"), "protected"),
                (RenameFile(name, "out"), "a link"),
                (EditCode((near,), {}), "text that is not there"),
                (EditCode((CodeEdit("x", file=name, old_text=body, start_byte=0, end_byte=0),), {}), "another span"),
                (EditCode((CodeEdit("x", file=name),), {}), "no place"),
                (EditCode((CodeEdit("x", file=name, start_byte=0, end_byte=1),), {}), "no hash"),
                (EditCode((CodeEdit("x", file=name, start_byte=0, end_byte=1, hash="00"),), {}), "another hash"),
                (
                    EditCode(
                        (CodeEdit("x", file=name, start_byte=1, end_byte=10**6, hash=tracking_hash(content)),), {}
                    ),
                    "span",
                ),
                (ApplyPatch(f"--- a/{name}\n+++ b/{name}\n@@ -1,1 +1,1 @@\n-not a line of it\n+x\n"), "no fit"),
            ]
            if content.count(b"\n") > 1:
                ways += [(EditCode((CodeEdit("x", file=name, old_text="\n"),), {}), "text that is there twice")] * 3
            if body and content.count(body.encode()) == 1:
                twice = CodeEdit("x", file=name, old_text=body)
                ways += [
                    (EditCode((twice, twice), {}), "two edits of one text"),
                    (EditCode((twice, near), {}), "one of two is wrong"),
                ]
        request, note = self.rng.choice(ways)
        self.stage(request, None, note)

    # -- deciding

    def a_proposal(self) -> str | None:
        """Most often one that waits."""
        pending, offers = list(self.shelf.pending()), list(self.shelf.offers)
        known = pending if pending and self.rng.random() < 0.8 else offers
        return self.rng.choice(known) if known else None

    def approve(self) -> None:
        """One."""
        known = self.a_proposal()
        if known is not None:
            self._decide((known,) * self.rng.choice((1, 1, 2)), is_approved=True)

    def approve_all(self) -> None:
        """All that wait."""
        if self.shelf.pending():
            self._decide(None, is_approved=True)

    def deny(self) -> None:
        """One; or one that does not exist, which changes nothing."""
        known = self.a_proposal()
        if known is not None and self.rng.random() < 0.2:
            found = self.ask(DecideEdits((known, "no such one"), True, "owner"))
            if not isinstance(found, Exception):
                self.wrong(f"a proposal that does not exist was approved: {found!r}"[:300])
        elif known is not None:
            self._decide((known,), is_approved=False)

    def _decide(self, ids: tuple[str, ...] | None, *, is_approved: bool) -> None:
        is_told = self.rng.random() < 0.3
        wanted = list(self.shelf.pending()) if ids is None else list(dict.fromkeys(ids))
        before = {known: self.shelf.offers[known].state for known in self.shelf.offers}
        found = self.ask(DecideEdits(ids, is_approved, "owner", "" if is_approved else "no", is_told=is_told))
        if isinstance(found, BaseException):
            self.wrong(f"the decision came to {found!r}"[:300])
            return
        others: list[str] = []
        for known in wanted:
            offer = self.shelf.offers[known]
            if offer.state == "pending" and is_approved:
                others += self.shelf.apply(known)
            elif offer.state == "pending":
                self.shelf.settle(known, "denied")
            if is_told:
                offer.is_told = True
            elif offer.state != before[known]:
                self.due_decided(known)
        for known in others:
            if known not in wanted:
                self.due_decided(known)
        self.due_changes += any(
            before[known] != "applied" and self.shelf.offers[known].state == "applied" for known in wanted
        )
        told = [(each.id, str(each.state)) for each in found]
        due = [(known, self.shelf.offers[known].state) for known in wanted]
        if told != due:
            self.wrong(f"the decision came to {told}, and is to come to {due}")
        for each in found:
            if each.state is ProposalState.DENIED and before[each.id] == "pending" and each.reason != "no":
                self.wrong(f"the reason is told as {each.reason!r}")

    def owners_text(self) -> None:
        """Approved with another text for one of its files."""
        known = self.a_proposal()
        if known is None or self.shelf.offers[known].state != "pending":
            return
        offer = self.shelf.offers[known]
        left = [edit for edit in offer.edits if edit.target is not None]
        text = "".join(f"{self.lines.line()}\n" for _ in range(2))
        if not left:
            found = self.ask(DecideEdits((known,), True, "owner", contents={"a.py": text}))
            if not isinstance(found, Exception):
                self.wrong("a text was taken for a file that the proposal does not leave")
            return
        chosen = self.rng.choice(left)
        base = chosen.base or b""
        new = self.whole(base, text) if base else text.encode()
        offer.edits = tuple(
            Edit(each.name, each.target, each.base, ((0, len(base), new),), each.is_executable)
            if each is chosen
            else each
            for each in offer.edits
        )
        offer.is_changed = True
        found = self.ask(DecideEdits((known,), True, "owner", contents={chosen.target: text}))  # type: ignore[dict-item]
        for each in (known, *self.shelf.apply(known)):
            self.due_decided(each)
        self.due_changes += offer.state == "applied"
        if isinstance(found, BaseException):
            self.wrong(f"the decision came to {found!r}"[:300])
        elif not found[0].is_changed_by_owner or str(found[0].state) != offer.state:
            self.wrong(f"it is {found[0].state}, changed by its owner: {found[0].is_changed_by_owner}")

    # -- what goes wrong

    def interrupt(self) -> None:
        """A system call fails, or the editor crashes, while it applies: all or nothing."""
        known = self.a_proposal()
        if known is None or self.shelf.offers[known].state != "pending":
            return
        rng, offer, shelf, others = self.rng, self.shelf.offers[known], self.shelf, list[str]()
        is_fit = shelf.fits(offer)
        error: BaseException = rng.choice((Death("here"), OSError(28, "No space left on device")))
        before = next(each for each in self.ask(ListProposals()) if each.id == known)
        with failing(rng.randint(1, MOST_CALLS), error) as fails:
            found = self.ask(DecideEdits((known,), True, "owner"))
        if not fails.has_failed:
            self._as_decided(known, found)
            return
        states = {each.id: each for each in self.ask(ListProposals())}
        files, modes = self.look()
        state = str(states[known].state)
        if state == "applied":
            others = shelf.apply(known)
            if not isinstance(found, BaseException):
                self.due_changes += 1
        elif state in ("pending", "stale"):
            if state == "stale" and is_fit and not isinstance(error, OSError):
                self.wrong("an edit that was interrupted is stale, though nobody has changed its files")
            if not states[known].reason and not isinstance(error, Death):
                self.wrong("an edit could not be applied, and does not say why")
            if state == "stale":
                shelf.settle(known, "stale")
            else:
                offer.is_told = offer.request == "" if states[known].reason else offer.is_told
        else:
            self.wrong(f"an edit that was interrupted is {state}")
        if not isinstance(found, BaseException) and states[known] != before:
            for each in (known, *others):
                self.due_decided(each)
        if (files, modes) != (shelf.files, shelf.modes):
            self.wrong(f"an edit that was interrupted ({error!r}) has left a part of it: {sorted(files)}")

    def _as_decided(self, known: str, found: Any) -> None:
        for each in (known, *self.shelf.apply(known)):
            self.due_decided(each)
        offer = self.shelf.offers[known]
        self.due_changes += offer.state == "applied"
        if isinstance(found, BaseException):
            self.wrong(f"the decision came to {found!r}"[:300])

    def outsider(self) -> None:
        """Another program writes, appends to or removes a file."""
        name, what = self.rng.choice(NAMES), self.rng.choice(("write", "append", "remove", "chmod"))
        old = self.shelf.files.get(name)
        if what == "remove" and old is not None:
            (self.root / name).unlink()
            del self.shelf.files[name], self.shelf.modes[name]
        elif what == "chmod" and old is not None:
            self.write(name, old, 0o640)
        elif what == "append" and old is not None:
            self.write(name, old + self.lines.content())
        elif what == "write":
            self.write(name, self.lines.content())

    def swap(self) -> None:
        """A link that leads out is put in the place of a file that a proposal is of, with what the file held."""
        known = self.a_proposal()
        if known is None or self.shelf.offers[known].state != "pending":
            return
        edit = self.shelf.offers[known].edits[0]
        if edit.base is None or self.shelf.files.get(edit.name) != edit.base:
            return
        place = self.root / edit.name
        beside = self.folder / "swapped"
        beside.write_bytes(edit.base)
        place.unlink()
        place.symlink_to(beside)
        found = self.ask(DecideEdits((known,), True, "owner"))
        if beside.read_bytes() != edit.base or not place.is_symlink():
            self.wrong("a file outside was written through a link")
        place.unlink()
        place.write_bytes(edit.base)
        place.chmod(self.shelf.modes[edit.name])
        self.shelf.settle(known, "stale")
        self.due_decided(known)
        if isinstance(found, BaseException) or str(found[0].state) != "stale":
            self.wrong(f"a proposal for a file that has become a link came to {found!r}"[:300])

    def made_secret(self) -> None:
        """A file that a proposal is of is secret by now: the proposal is not applied."""
        known = self.a_proposal()
        if known is None or self.shelf.offers[known].state != "pending":
            return
        rules = self.root / ".callboardignore"
        rules.write_text("".join(f"/{edit.name}\n" for edit in self.shelf.offers[known].edits))
        found = self.ask(DecideEdits((known,), True, "owner"))
        rules.unlink()
        self.shelf.settle(known, "stale")
        self.due_decided(known)
        if isinstance(found, BaseException) or str(found[0].state) != "stale":
            self.wrong(f"a proposal for a file that has become secret came to {found!r}"[:300])

    def restart(self) -> None:
        """The editor stops, and another one begins."""
        self.editor.stop()
        self.simulation.run_until_idle()

    def tell(self) -> None:
        """What the model of a request is yet to read, it reads once."""
        wanted = tuple(self.rng.sample(REQUESTS[1:], self.rng.randint(1, 2)))
        offers = self.shelf.offers
        due = [known for known, offer in offers.items() if not offer.is_told and offer.request in wanted]
        if self.rng.random() < 0.5:  # before a question of a conversation
            read = self.edits.untold(wanted)
            if list(read) != due or self.edits.untold(wanted):
                self.wrong(f"the model reads of {list(read)}, and is to read of {due}")
            for known, text in read.items():
                self.compare_outcome(known, text, offers[known].state)
        else:
            found = self.ask(ListUntold(wanted))
            if [each.id for each in found] != due:
                self.wrong(f"{[each.id for each in found]} are not told yet, and {due} are to be")
                return
            told = self.ask(MarkTold((*due, *due)))
            if list(told) != due or self.ask(ListUntold(wanted)) != ():
                self.wrong(f"{told} were told for the first time, and {due} are to be")
        for known in due:
            offers[known].is_told = True

    def begin_or_end(self) -> None:
        """A request runs, so that its model is told at once; or it has ended."""
        self.running ^= {self.rng.choice(REQUESTS[1:])}

    def new_runtime(self) -> None:
        """The process ends, and another one begins with what is on the disk: it remembers what is not told yet."""
        self.edits.close()
        if not (self.approver.is_closed and self.proposing.is_closed):
            self.wrong("an approver is left open")
        self.system.shutdown(5)
        self.simulation.run_until_idle()
        self.start()
        due = {offer.request for offer in self.shelf.offers.values() if not offer.is_told or offer.state == "pending"}
        for request in REQUESTS[1:]:
            if self.edits.has_staged((request,)) != (request in due):
                self.wrong(f"of {request} something may be left to be told: {request in due}, and it is said otherwise")

    def end(self) -> None:
        """Leave nothing."""
        self.loop.end(self.system)
        shutil.rmtree(self.folder)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    world = World(seed)
    try:
        for _ in range(world.rng.choice((6, 12, 20))):
            world.act()
            if world.problems:
                break
    finally:
        world.end()
    return world.problems
