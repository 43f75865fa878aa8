"""Apply a proposal: all of its files become the new ones, or all stay the old ones, also if the process is killed.

1. Under the lock of the workspace's store, every file is compared with what it was when it was staged.
2. PREPARING is recorded; each new content is written to a temporary file beside its place, with the old mode and owner,
   and synced to the disk. A process that dies up to here has changed no file: the temporary ones are removed.
3. FORWARD is recorded: from now on the proposal counts as applied. The temporary files are renamed, removed files are
   unlinked, the folders are synced, and the proposal is settled. What a dead process has left, the next one completes.
4. Where a file cannot be replaced after all, or someone else has changed one since, BACK is recorded, and those that
   are new already get their old content again.

A file is never written in place, so a reader sees the old or the new content. Between the comparison and the rename,
some microseconds, another program's write can be lost: no system call replaces a file only if it holds what it held.
Each folder is opened once, and all is done in what was opened: a link that is put in its place meanwhile leads nowhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from callboard.actors.edits.changes import FileChange, Operation, Splice, operations, rebased
from callboard.actors.edits.diffs import told_difference
from callboard.actors.edits.proposal_store import ApplyRecord, Phase, ProposalStore
from callboard.actors.edits.proposals import Proposal, ProposalState
from callboard.actors.edits.texts import EditedText
from callboard.actors.opened_folders import OpenedFolders, attributes, is_link
from callboard.actors.secret_files import SecretFiles, SecretRules
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.edits")

#: Larger files are data; a proposal holds what a file was and what it becomes.
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
_EXECUTABLE: Final = 0o111


class Odd(Enum):
    """What is there is no file that anything here could have written."""

    FILE = "it is no regular file that can be read, or is too large"


class Stale(Exception):
    """The files are not those that the proposal is of; the text says what was changed."""


class CannotApply(Exception):
    """The files are as they were, and could not be replaced; the text says why. It may be tried again."""


class Applier:
    """Applies the proposals of one workspace. `root` is resolved."""

    def __init__(self, store: ProposalStore, root: Path, rules: SecretRules) -> None:
        self._store = store
        self._root = root
        self._rules = rules
        self._folders = OpenedFolders(root)

    def apply(self, proposal_id: str, by: str, contents: Mapping[str, str] | None = None) -> Proposal:
        """The proposal as it is then: applied; stale, and why; or still pending, and why it could not be applied.

        `contents`: new whole texts for some of its files, by path, in place of what was proposed. One that is settled
        is left as it is. Raises NoSuchProposal, UsageError for `contents` of other files, and RuntimeFailure where the
        store cannot be used.
        """
        with self._store.lock(), self._folders:
            self._recover()
            if self._store.get(proposal_id).state is ProposalState.PENDING:
                if contents:
                    changed = with_contents(self._store.changes(proposal_id), contents, self._root)
                    self._store.rewrite(proposal_id, changed, str(self._root), by_owner=True)
                try:
                    self._apply(proposal_id, self._store.changes(proposal_id), ApplyRecord(by=by))
                except Stale as why:
                    self._store.settle(proposal_id, ProposalState.STALE, by=by, reason=str(why))
                except CannotApply as why:
                    self._store.remark(proposal_id, by, f"approved, but it could not be applied: {why}")
            return self._store.get(proposal_id)

    def deny(self, proposal_id: str, by: str, reason: str) -> Proposal:
        """One that is settled is left as it is. Raises NoSuchProposal."""
        with self._store.lock(), self._folders:
            self._recover()
            if self._store.get(proposal_id).state is ProposalState.PENDING:
                self._store.settle(proposal_id, ProposalState.DENIED, by=by, reason=reason)
            return self._store.get(proposal_id)

    def recover(self) -> None:
        """Complete or take back what processes have left that died while they applied."""
        if self._store.unfinished():
            with self._store.lock(), self._folders:
                self._recover()

    def _recover(self) -> None:
        for proposal_id, phase, record in self._store.unfinished():
            changes = self._store.changes(proposal_id)
            if phase is Phase.PREPARING:
                if left := self._give_up(proposal_id, operations(changes), record):
                    logger.warning("edit %s: looked for again: %s", proposal_id, left)
                else:
                    self._store.enter(proposal_id, Phase.NONE, ApplyRecord())
                continue
            try:
                if phase is Phase.FORWARD:
                    self._complete(proposal_id, changes, record)
                else:
                    self._take_back(proposal_id, changes, record)
            except Stale as why:
                self._store.settle(proposal_id, ProposalState.STALE, by=record.by, reason=str(why))
            except CannotApply as why:
                self._store.remark(proposal_id, record.by, f"approved, but it could not be applied: {why}")

    # -- the steps

    def _apply(self, proposal_id: str, changes: Sequence[FileChange], record: ApplyRecord) -> None:
        todo = operations(changes)
        try:
            self._compare(todo)
            folders = self._missing_folders(todo)
            statuses = {each.path: self._folders.status(each.path) for each in todo}
        except OSError as error:
            raise CannotApply(_said(error)) from error
        known = {path: attributes(found) for path, found in statuses.items() if found is not None}
        record = replace(record, folders=folders, attributes=known)
        if not self._store.enter(proposal_id, Phase.PREPARING, record):
            return  # a later proposal has just made it stale
        try:
            for folder in folders:
                self._folders.make_folder(folder)
            for place, each in enumerate(todo):
                if each.new is not None:
                    self._write(_temporary(proposal_id, place, each.path), each.new, each, record)
            self._sync(each.path for each in todo)
            self._compare(todo)  # once more: writing may have taken seconds
        except (OSError, Stale) as error:
            self._give_up(proposal_id, todo, record)
            self._store.enter(proposal_id, Phase.NONE, ApplyRecord())
            if isinstance(error, Stale):
                raise
            raise CannotApply(_said(error)) from error
        self._store.enter(proposal_id, Phase.FORWARD, record)
        self._complete(proposal_id, changes, record)

    def _complete(self, proposal_id: str, changes: Sequence[FileChange], record: ApplyRecord) -> None:
        todo = operations(changes)
        if changed := [each.path for each in todo if self._content(each.path) not in (each.old, each.new)]:
            told = f"{', '.join(changed)} was changed by another program while the proposal was being applied"
            self._turn_back(proposal_id, changes, record, f"{told}; all other files are as they were before")
        try:
            for place, each in enumerate(todo):
                self._put(_temporary(proposal_id, place, each.path), each)
            self._sync(each.path for each in todo)
        except OSError as error:
            self._turn_back(proposal_id, changes, record, _said(error))
        with self._store.transaction():
            self._store.settle(proposal_id, ProposalState.APPLIED, by=record.by, reason="")
            self._move_others(changes)

    def _move_others(self, applied: Sequence[FileChange]) -> None:
        """The other proposals for these files are of the new contents from now on, where they still fit."""
        for other in self._store.pending():
            before = changes = self._store.changes(other)
            if not any(_touches(old, new) for old in before for new in applied):
                continue
            for each in applied:
                moved = [rebased(change, each) for change in changes]
                if None in moved:
                    told = "another proposal that was applied has changed the same lines, or the file was changed"
                    self._store.settle(other, ProposalState.STALE, by="", reason=told)
                    break
                changes = tuple(change for change in moved if change is not None)
            else:
                if changes != before:
                    self._store.rewrite(other, changes, str(self._root))

    def _turn_back(self, proposal_id: str, changes: Sequence[FileChange], record: ApplyRecord, why: str) -> None:
        record = replace(record, why_back=why)
        self._store.enter(proposal_id, Phase.BACK, record)
        self._take_back(proposal_id, changes, record)

    def _take_back(self, proposal_id: str, changes: Sequence[FileChange], record: ApplyRecord) -> None:
        """Every file that is the new one becomes the old one again; raises Stale, or CannotApply where it may be tried
        again."""
        todo = operations(changes)
        failed = []
        for place, each in enumerate(todo):
            try:
                is_other = each.new != each.old or each.is_executable is not None  # its permissions may be new
                if is_other and self._content(each.path) == each.new:
                    temporary = _temporary(proposal_id, place, each.path)
                    if each.old is not None:
                        self._write(temporary, each.old, replace(each, source=each.path, is_executable=None), record)
                    self._put(temporary, replace(each, new=each.old))
            except OSError as error:
                failed.append(f"{each.path} is the new one still: {_said(error)}")
        failed += self._give_up(proposal_id, todo, record)
        if failed:
            raise Stale(f"{record.why_back}; {'; '.join(failed)}")
        if all(self._content(each.path) == each.old for each in todo):
            raise CannotApply(record.why_back)
        raise Stale(record.why_back)

    def _give_up(self, proposal_id: str, todo: Sequence[Operation], record: ApplyRecord) -> list[str]:
        """Leave nothing behind of what was prepared. Of what may have been left: why."""
        left = []
        for place, each in enumerate(todo):
            temporary = _temporary(proposal_id, place, each.path)
            try:
                self._folders.remove(temporary)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                left.append(f"{temporary} may be there still: {_said(error)}")
        for folder in reversed(record.folders):
            with contextlib.suppress(OSError):  # someone else may use it by now
                self._folders.remove_folder(folder)
        return left

    # -- files

    def _compare(self, todo: Sequence[Operation]) -> None:
        """Raises Stale where a file is not what it was, CannotApply where it could not be replaced, and OSError."""
        # What is secret is read from the folders that are written in, not from what is in their place meanwhile.
        secrets = SecretFiles(self._root, self._rules, self._folders.open_followed)
        for each in todo:
            try:
                found = self._folders.status(each.path)
                is_secret = secrets.is_protected(each.path)
            except OSError as error:
                if not is_link(error):
                    raise
                raise Stale(f"{each.path} leads elsewhere by now: a link was put into its path") from error
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise Stale(f"{each.path} leads elsewhere by now: a link was put into its path")
            if is_secret:
                raise Stale(f"{each.path} is a protected file by now")
            if found is not None and stat.S_ISDIR(found.st_mode):
                raise CannotApply(f"{each.path} is a folder")
            now = self._content(each.path)
            if now != each.old:
                told = now.value if isinstance(now, Odd) else told_difference(each.old, now)
                raise Stale(f"{each.path} is not what it was when this was staged: {told}")
            # A rename would replace a file that is read-only, too.
            if now is not None and not self._folders.may(each.path, os.W_OK):
                raise CannotApply(f"{each.path} is read-only")

    def _content(self, path: str) -> bytes | Odd | None:
        """None where there is no file."""
        try:
            content = self._folders.read(path, MAX_FILE_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return Odd.FILE
        return Odd.FILE if content is None else content

    def _write(self, temporary: str, content: bytes, each: Operation, record: ApplyRecord) -> None:
        """A new file, synced to the disk, as the old one was readable and owned."""
        with contextlib.suppress(FileNotFoundError):
            self._folders.remove(temporary)
        known = (record.attributes or {}).get(each.source)
        if known is not None and each.is_executable is not None:
            mode, owner, group = known
            mode = (mode | (mode & 0o444) >> 2) if each.is_executable else (mode & ~_EXECUTABLE)
            known = mode, owner, group
        self._folders.make(temporary, content, known, 0o777 if each.is_executable else 0o666)

    def _put(self, temporary: str, each: Operation) -> None:
        """Make the new file what is at its place. Done twice, it is the same."""
        if each.new is None:
            with contextlib.suppress(FileNotFoundError):
                self._folders.remove(each.path)
            return
        try:
            self._folders.rename(temporary, each.path)
        except FileNotFoundError:
            if self._content(each.path) != each.new:
                raise

    def _missing_folders(self, todo: Iterable[Operation]) -> tuple[str, ...]:
        """Those that new files need, the outer ones first."""
        missing: set[str] = set()
        for each in todo:
            folder = os.path.dirname(each.path)
            while each.new is not None and folder not in missing and not self._folders.is_folder(folder):
                missing.add(folder)
                folder = os.path.dirname(folder)
        return tuple(sorted(missing))

    def _sync(self, paths: Iterable[str]) -> None:
        """A rename is on the disk when its folder is; one that is gone needs none."""
        for folder in sorted({os.path.dirname(path) for path in paths}):
            with contextlib.suppress(FileNotFoundError):
                self._folders.sync(folder)


def with_contents(changes: Sequence[FileChange], contents: Mapping[str, str], root: Path) -> tuple[FileChange, ...]:
    """The changes, with these texts as the new contents of the files named. Raises UsageError for other files."""
    texts = {os.path.join(root, path): text for path, text in contents.items()}
    known = {change.target: change for change in changes if change.target is not None}
    for place, text in texts.items():
        if place not in known:
            names = ", ".join(os.path.relpath(each, root) for each in known) or "none"
            raise UsageError(f"the proposal leaves no file {place}; it has: {names}")
        change = known[place]
        before = change.base or b""
        content = EditedText(before).whole(text) if before else text.encode()
        known[place] = replace(change, splices=(Splice(0, len(before), content),))
    return tuple(known[change.target] if change.target is not None else change for change in changes)


def _temporary(proposal_id: str, place: int, path: str) -> str:
    """In the folder of the file, since a rename to another file system is a copy. Hidden, and known to the record."""
    return os.path.join(os.path.dirname(path), f".callboard-{proposal_id}-{place}.tmp")


def _touches(old: FileChange, applied: FileChange) -> bool:
    return bool(old.touched & applied.touched)


def _said(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
