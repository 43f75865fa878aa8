"""Any sequence of stage, approve, deny, outside change and restart leaves the files, and the states of proposals, as a
model has them that knows nothing of bytes and spans: files are lists of lines, and each line is unique."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule
from support.edit_desk import Desk

from callboard.actors.edits.planning import CodeEdit, CreateFile, DeleteFile, EditCode, RenameFile
from callboard.protocol.errors import ToolError

NAMES = ("a", "b", "sub/c", "sub/d")
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Modelled:
    """A proposal, as the model has it."""

    path: str
    target: str | None
    base: Lines | None
    line: str = ""
    """The line that is replaced; "" for none."""
    new: Lines = ()
    state: str = "pending"

    @property
    def touched(self) -> set[str]:
        return {self.path, self.target or self.path}

    @property
    def taken(self) -> set[str]:
        is_new = self.target is not None and (self.base is None or self.target != self.path)
        return {self.target or ""} if is_new else set()

    @property
    def result(self) -> Lines:
        if self.base is None:
            return self.new
        return tuple(new for old in self.base for new in (self.new if old == self.line else (old,)))


def conflicts(one: Modelled, other: Modelled) -> bool:
    if one.path == other.path and one.base is not None and other.base is not None:
        if None in (one.target, other.target):
            return True
        if one.taken and other.taken:
            return True
        return one.base == other.base and one.line == other.line != ""
    return bool(one.taken & other.touched or other.taken & one.touched)


class EditsAndModel(RuleBasedStateMachine):
    proposals = Bundle("proposals")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="edits-model-"))
        (self.folder / "work").mkdir()
        self.desk = Desk(self.folder / "work", self.folder / "state")
        self.files: dict[str, Lines] = {}
        self.model: dict[str, Modelled] = {}
        self.count = 0

    def teardown(self) -> None:
        self.desk.close()
        shutil.rmtree(self.folder)

    def fresh(self, many: int = 1) -> Lines:
        self.count += many
        return tuple(f"line {number:03}" for number in range(self.count - many, self.count))

    def staged(self, request: object, modelled: Modelled) -> str:
        known = self.desk.staged(request)
        for other, old in self.model.items():
            if old.state == "pending" and conflicts(old, modelled):
                self.model[other] = replace(old, state="stale")
        self.model[known] = modelled
        return known

    # -- staging

    @precondition(lambda self: self.files)
    @rule(target=proposals, data=st.data(), many=st.integers(0, 3))
    def stage_edit(self, data: st.DataObject, many: int) -> object:
        name = data.draw(st.sampled_from(sorted(self.files)))
        if not self.files[name]:
            return multiple()
        line, new = data.draw(st.sampled_from(self.files[name])), self.fresh(many)
        text = "".join(f"{each}\n" for each in new)
        edit = CodeEdit(text, file=name, old_text=f"{line}\n")
        return self.staged(EditCode((edit,), {}), Modelled(name, name, self.files[name], line, new))

    @rule(target=proposals, name=st.sampled_from(NAMES), many=st.integers(1, 3))
    def stage_create(self, name: str, many: int) -> object:
        new = self.fresh(many)
        request = CreateFile(name, "".join(f"{each}\n" for each in new))
        if name in self.files:
            with pytest.raises(ToolError, match="exists"):
                self.desk.staged(request)
            return multiple()
        return self.staged(request, Modelled(name, name, None, "", new))

    @precondition(lambda self: self.files)
    @rule(target=proposals, data=st.data())
    def stage_delete(self, data: st.DataObject) -> object:
        name = data.draw(st.sampled_from(sorted(self.files)))
        return self.staged(DeleteFile(name), Modelled(name, None, self.files[name]))

    @precondition(lambda self: self.files)
    @rule(target=proposals, data=st.data(), new_name=st.sampled_from(NAMES))
    def stage_rename(self, data: st.DataObject, new_name: str) -> object:
        name = data.draw(st.sampled_from(sorted(self.files)))
        request = RenameFile(name, new_name)
        if new_name in self.files:
            with pytest.raises(ToolError, match="exists"):
                self.desk.staged(request)
            return multiple()
        return self.staged(request, Modelled(name, new_name, self.files[name]))

    # -- deciding

    @rule(known=proposals)
    def approve(self, known: str) -> None:
        self.desk.decide(known)
        self.apply(known)

    @rule()
    def approve_all(self) -> None:
        pending = [known for known, each in self.model.items() if each.state == "pending"]
        self.desk.decide()
        for known in pending:
            self.apply(known)

    @rule(known=consumes(proposals))
    def deny(self, known: str) -> None:
        self.desk.decide(known, approve=False, reason="no")
        if self.model[known].state == "pending":
            self.model[known] = replace(self.model[known], state="denied")

    def apply(self, known: str) -> None:
        todo = self.model[known]
        if todo.state != "pending":
            return
        is_free = not any(name in self.files for name in todo.taken)
        if self.files.get(todo.path) != todo.base or not is_free:
            self.model[known] = replace(todo, state="stale")
            return
        if todo.base is not None:
            del self.files[todo.path]
        if todo.target is not None:
            self.files[todo.target] = todo.result
        self.model[known] = replace(todo, state="applied")
        for other, left in self.model.items():
            if left.state == "pending" and left.touched & todo.touched:
                self.model[other] = self.moved(left, todo)

    @staticmethod
    def moved(left: Modelled, done: Modelled) -> Modelled:
        """A pending proposal after another one for its file."""
        if conflicts(done, left):
            return replace(left, state="stale")
        if left.path != done.path or done.base is None:
            return left
        if left.base != done.base:
            return replace(left, state="stale")
        assert done.target is not None
        target = done.target if left.target == left.path else left.target
        return replace(left, path=done.target, target=target, base=done.result)

    # -- what others do

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(("write", "append", "remove")))
    def outside_change(self, name: str, what: str) -> None:
        place = self.desk.root / name
        if what == "remove":
            place.unlink(missing_ok=True)
            self.files.pop(name, None)
            return
        before = self.files.get(name, ()) if what == "append" else ()
        self.files[name] = (*before, *self.fresh(3))
        place.parent.mkdir(exist_ok=True)
        place.write_text("".join(f"{line}\n" for line in self.files[name]))

    @rule()
    def restart(self) -> None:
        self.desk.restart()

    @invariant()
    def the_files_are_those_of_the_model(self) -> None:
        root = self.desk.root
        found = {str(each.relative_to(root)): each for each in root.rglob("*") if each.is_file()}
        assert {name: tuple(each.read_text().splitlines()) for name, each in found.items()} == self.files

    @invariant()
    def the_states_are_those_of_the_model(self) -> None:
        assert self.desk.states() == {known: each.state for known, each in self.model.items()}


EditsAndModel.TestCase.settings = settings(max_examples=15, stateful_step_count=25)
test_files_and_states_are_those_of_a_model = EditsAndModel.TestCase
