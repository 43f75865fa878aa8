"""The owner, the approver and the model of the editor's play: how calls stage edits, and who is told what of them.

Everything that becomes of an edit is told to its model once: in the result of its call, in its request while that runs,
or before the next question.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.calls.approvals import Decide, Verdict
from callboard.actors.edits.edit_tools import edit_tools
from callboard.actors.edits.editing import BY_SETTING, EditResult, Edits
from callboard.actors.edits.planning import ApplyPatch, CreateFile, DeleteFile, EditCode, EditRequest, RenameFile
from callboard.actors.edits.proposals import Proposal
from callboard.actors.index.code_items import CodeItem
from callboard.actors.kernel import ActorSystem
from callboard.actors.testing.edits_model import Edit, Offer, Shelf
from callboard.actors.testing.simulated_loop import SimulatedLoop
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.tools import Tool, ToolContext
from callboard.protocol.commands import AskApproval, RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.masking import mask
from callboard.protocol.policy import AccessKind, Mode

REQUESTS: Final = ("", "req_1", "req_2")
#: What the approver does; most often nobody answers while the play lasts.
ANSWERS: Final = ("never",) * 8 + (
    "grant",
    "setting",
    "deny",
    "arguments",
    "nobody",
    "late grant",
    "late deny",
    "late nobody",
)
#: A person is not waited for longer than this, and the policy alone not longer than that.
PERSON_SECONDS: Final = 0.2
POLICY_SECONDS: Final = 10.0
#: More of a diff is not shown to a model.
MOST_SHOWN: Final = 20_000
#: What the model reads of each end.
WORDS: Final = {
    "applied": ("was applied.", "was changed by the owner and applied so:"), "denied": ("was not allowed",),
    "stale": ("no longer fits",), "pending": ("waits for its owner",),
}  # fmt: skip


class Approver:
    """Answers as it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer = "never"
        """To the next question."""
        self.asked: list[tuple[AskApproval, Tool | None]] = []
        self.withdrawn: list[str] = []
        self.late: dict[str, Callable[[], None]] = {}
        """Answers that are not given yet, by their calls."""
        self.is_closed = False

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        """As `answer` says, at once, or when the play has it answered."""
        self.asked.append((question, tool))
        tag, answer = question.tag, self.answer
        verdicts = {
            "grant": Verdict(tag, granted=True, by="approver"),
            "setting": Verdict(tag, granted=True, by=BY_SETTING),
            "deny": Verdict(tag, granted=False, by="approver", reason="not so"),
            "arguments": Verdict(tag, granted=True, by="approver", arguments='{"other": 1}'),
            "nobody": Verdict(tag, granted=False, by="", is_unanswered=True),
        }
        if verdict := verdicts.get(answer):
            decide(verdict)
        elif answer.startswith("late "):
            self.late[tag.call_id] = partial(decide, verdicts[answer.removeprefix("late ")])

    def withdraw(self, tag: Tag) -> None:
        """The question is moot."""
        self.withdrawn.append(tag.call_id)

    def close(self) -> None:
        """The runtime has stopped."""
        self.is_closed = True


class Owner:
    """What surrounds the editor: how the play's model hears of it, too."""

    rng: random.Random
    shelf: Shelf
    root: Path
    folder: Path
    simulation: SimulatedScheduler
    loop: SimulatedLoop
    system: ActorSystem
    located: dict[str, list[CodeItem]]
    """What the index is to find, by name."""

    def begin(self) -> None:
        """Make the edits of the workspace; its actor is started by the play."""
        rng = self.rng
        self.located = {}
        self.approver, self.proposing = Approver(), Approver()
        self.patience = rng.choice((0.2, 3.0))
        self.mode = rng.choice((Mode.BUILD,) * 5 + (Mode.PLAN,))
        self.guarded = rng.choice(((), (str(self.root / "sub"),)))
        self.running: set[str] = set()
        """Requests of which the model hears at once."""
        self.calls = 0
        self.open: dict[str, str] = {}
        """Calls whose questions wait for an answer, by their proposals."""
        self.withdrawn: list[str] = []
        """Due, and what the approver has heard."""
        self.told: list[tuple[str, str]] = []
        self.due_told: list[tuple[str, str, str]] = []
        self.heard: list[str] = []
        self.due: list[str] = []
        self.changes = self.due_changes = 0
        world = self

        class Heard(Edits):
            def decided(self, proposal: Proposal) -> None:
                world.heard.append(f"{proposal.id} {proposal.state}")
                super().decided(proposal)

        self.edits = Heard(
            self.system, Workspace.at(self.root), self.folder / "state", self.approver,
            patience_seconds=self.patience, kept=self.guarded, proposing=self.proposing, mode=self.mode,
        )  # fmt: skip
        self.edits.files_changed = self.files_changed
        self.edits.tell_model = self.tell_model
        self.tools: dict[str, Tool] = {each.name: each for each in edit_tools(self.edits, self)}

    # -- what the editor tells

    def files_changed(self) -> None:
        """One was applied."""
        self.changes += 1

    def tell_model(self, request_id: str, text: str) -> bool:
        """The model of a running request reads it."""
        if not request_id:
            self.wrong(f"{text!r} is told to the model of no request")
        if request_id not in self.running:
            return False
        self.told.append((request_id, text))
        return True

    def due_decided(self, known: str) -> None:
        """The owner's side hears of it, and the model where its request runs; the question is open no longer."""
        offer = self.shelf.offers[known]
        self.due.append(f"{known} {offer.state}")
        if offer.state != "pending" and known in self.open:
            self.withdrawn.append(self.open.pop(known))
        if offer.request and offer.request in self.running:
            self.due_told.append((offer.request, known, offer.state))
            offer.is_told = True

    def wrong(self, what: str) -> None:
        """Of the play."""
        raise NotImplementedError

    def compare_told(self) -> None:
        """Each end once, in its words."""
        if self.heard != self.due:
            self.wrong(f"the editor has told {self.heard[-3:]}, due are {self.due[-3:]}")
        if self.changes != self.due_changes:
            self.wrong(f"it has told {self.changes} times that files were changed, due is {self.due_changes}")
        if self.approver.withdrawn != self.withdrawn:
            self.wrong(f"the questions {self.approver.withdrawn[-3:]} are withdrawn, due are {self.withdrawn[-3:]}")
        told = [(request, text.partition("The edit ")[2][:8]) for request, text in self.told]
        if told != [(request, known) for request, known, _ in self.due_told]:
            self.wrong(f"the models have read {told[-3:]}, due are {self.due_told[-3:]}")
        else:
            for (_, text), (_, known, state) in zip(self.told, self.due_told, strict=True):
                self.compare_outcome(known, text, state)
        self.told, self.due_told = [], []

    def compare_outcome(self, known: str, text: str, state: str) -> None:
        """What a model reads of it."""
        offer = self.shelf.offers[known]
        names = ", ".join(str(self.root / edit.name) for edit in offer.edits)
        if not text.startswith(f"The edit {known} ") or not any(word in text for word in WORDS[state]):
            self.wrong(f"of {known}, which is {state}, the model reads {text[:200]!r}")
        if offer.is_changed != ("changed by the owner" in text) and state == "applied":
            self.wrong(f"of {known}, changed by its owner: {offer.is_changed}, the model reads {text[:200]!r}")
        if f"({names})" not in text and state == "pending":
            self.wrong(f"of {known} the model reads of other files than {names}: {text[:200]!r}")

    # -- what finds code, for edits by a name

    async def lookup(self, name: str, kind: str = "", file: str = "") -> Sequence[CodeItem]:
        """As the index does."""
        return [each for each in self.located.get(name, []) if file in ("", each.file)]

    async def close_items(self, name: str, kind: str = "", file: str = "") -> Sequence[CodeItem]:
        """None."""
        return []

    # -- staging by a call

    def call(self, request: EditRequest) -> tuple[str, EditResult | Exception]:
        """Of a tool, of one of the requests: its id, and what it came to."""
        self.calls += 1
        of = self.rng.choice(REQUESTS)
        self.approver.answer, self.proposing.answer = self.rng.choice(ANSWERS), self.rng.choice(ANSWERS)
        name, given = _arguments(request)
        tool = self.tools[name]
        tag = Tag(RequestId(of), MessageId("m"), 1, CallId(f"call_{self.calls}"))
        run = RunTool(
            tag, tool.name, "{}", time.monotonic() + 3_600, "effect", mode=self.rng.choice((None, None, *Mode))
        )
        self.is_building = (run.mode or self.mode) is Mode.BUILD
        self.began = self.simulation.now()
        self.asked_before = len(self.approver.asked), len(self.proposing.asked)
        made: Any = tool.function(**given, context=ToolContext(run))
        result: EditResult | Exception = self.loop.outcome(made)
        return of, result

    def take(self, of: str, result: EditResult, edits: tuple[Edit, ...]) -> None:
        """Compare what a call has staged with what it was to stage, and with what its approver has said."""
        known, shelf = result.proposal, self.shelf
        took = self.simulation.now() - self.began
        stale = shelf.stage(known, Offer(edits, request=of, call=f"call_{self.calls}"))
        if set(result.stale) != stale:
            self.wrong(f"it makes {result.stale} stale, and is to make {sorted(stale)} so")
        for each in result.stale:
            self.due_decided(each)
        if not self.edits.has_staged((of, "another")) or self.edits.has_staged(("another",)):
            self.wrong(f"it is said otherwise whether {of!r} has staged something")
        approver = self.approver if self.is_building else self.proposing
        asked = [len(self.approver.asked), len(self.proposing.asked)]
        due = [
            each + (approver is one)
            for each, one in zip(self.asked_before, (self.approver, self.proposing), strict=True)
        ]
        if asked != due:
            self.wrong(f"{asked} questions were asked of the approver and of the policy, and due are {due}")
            return
        self._compare_question(*approver.asked[-1], known, edits)
        self._compare_time(approver.answer, took, edits)
        self._decided_by(approver.answer, known)
        self._compare_result(result, edits, known)

    def _decided_by(self, answer: str, known: str) -> None:
        """What the approver's answer makes of it within the call."""
        offer = self.shelf.offers[known]
        if self.is_building and (answer == "never" or answer.startswith("late ")):
            self.open[known] = f"call_{self.calls}"
        if answer == "deny" or (answer == "arguments" and self.is_building):
            self.shelf.settle(known, "denied")
            offer.is_told = True
        elif answer in ("grant", "setting") and self.is_building:
            others = self.shelf.apply(known)
            self.due_changes += offer.state == "applied"
            offer.is_told = True
            for each in others:
                self.due_decided(each)

    def _compare_time(self, answer: str, took: float, edits: tuple[Edit, ...]) -> None:
        """A call waits for an answer that comes at once, and for a person hardly at all."""
        places = [str(self.root / name) for edit in edits for name in edit.places]
        is_kept = any(place.startswith(f"{folder}/") for place in places for folder in self.guarded)
        most = POLICY_SECONDS if not self.is_building else PERSON_SECONDS if is_kept else self.patience
        due = most if answer == "never" or answer.startswith("late ") else 0.0
        if abs(took - due) > 0.01:
            self.wrong(f"a call took {took:g} s, where its approver answers {answer!r}, and is to take {due:g} s")

    def _compare_question(self, question: AskApproval, tool: Tool | None, known: str, edits: tuple[Edit, ...]) -> None:
        """The approver sees what is to be done, and where."""
        due = []
        for edit in edits:
            is_removed = edit.kind in ("deleted", "renamed")
            due.append((AccessKind.DELETE if is_removed else AccessKind.WRITE, str(self.root / edit.name)))
            if edit.kind == "renamed":
                due.append((AccessKind.WRITE, str(self.root / str(edit.target))))
        asked = [(each.kind, each.value) for each in question.accesses]
        given = [(each.kind, each.value) for each in tool.accesses_of({})] if tool else []
        if asked != due or given != due:
            self.wrong(f"the approver is told of {asked}, and the edit touches {due}")
        if question.tag.call_id != f"call_{self.calls}" or (tool and question.risk != tool.contract.risk):
            self.wrong(f"the approver is asked {question!r}"[:300])
        self.preview = question.preview

    def _compare_result(self, result: EditResult, edits: tuple[Edit, ...], known: str) -> None:
        offer = self.shelf.offers[known]
        is_applied = offer.state == "applied"
        answer = (self.approver if self.is_building else self.proposing).answer
        shown = (result.staged, result.state, result.applied, result.auto_confirmed)
        due = (True, offer.state, is_applied, is_applied and answer == "setting")
        if shown != due:
            self.wrong(f"the call came to {shown}, and is to come to {due}")
        whole = mask(self.preview)
        if len(whole) <= MOST_SHOWN and result.preview != whole:
            self.wrong(f"the model is shown {result.preview!r} of the diff {whole!r}"[:400])
        files = [(each.path, str(each.kind), each.renamed_to) for each in result.files]
        moved = [str(self.root / str(e.target)) if e.kind == "renamed" else "" for e in edits]
        if files != [(str(self.root / e.name), e.kind, to) for e, to in zip(edits, moved, strict=True)]:
            self.wrong(f"the model is shown the files {files}")
        said = " ".join(result.notes)
        if offer.state == "denied" and "was not allowed" not in said:
            self.wrong(f"the model is not told that the edit is denied: {result.notes}")
        if answer == "deny" and "not so" not in said:
            self.wrong(f"the model is not told why the edit is denied: {result.notes}")
        is_only_proposed = not self.is_building and offer.state == "pending"
        if is_only_proposed != ("only proposed" in said):
            self.wrong(f"the model is told {result.notes}, and the mode changes nothing: {not self.is_building}")

    def answer_late(self) -> None:
        """A person answers, long after the call: what still waits is decided so."""
        if not self.approver.late:
            return
        call = self.rng.choice(list(self.approver.late))
        answer = self.approver.late.pop(call)
        known = next((known for known, each in self.open.items() if each == call), None)
        if known is None:  # withdrawn
            return
        verdict = answer.args[-1]  # type: ignore[attr-defined]
        del self.open[known]
        answer()
        self.simulation.run_until_idle()
        if (
            not verdict.is_unanswered and self.shelf.offers[known].state == "pending"
        ):  # else decided with its call, of which its approver hears not
            others: Sequence[str] = ()
            if verdict.granted:
                others = self.shelf.apply(known)
                self.due_changes += self.shelf.offers[known].state == "applied"
            else:
                self.shelf.settle(known, "denied")
            for each in (known, *others):
                self.due_decided(each)


def _arguments(request: EditRequest) -> tuple[str, dict[str, Any]]:
    """As a model would make the call."""
    match request:
        case EditCode():
            return "apply_code_edit", {"edits": list(request.edits)}
        case ApplyPatch():
            return "apply_patch", {"patch": request.patch}
        case CreateFile():
            given = {"path": request.path, "content": request.content}
            return "create_file", {**given, "on_exists": request.on_exists, "create_parents": request.create_parents}
        case DeleteFile():
            return "delete_file", {"path": request.path}
        case RenameFile():
            given = {"path": request.path, "new_path": request.new_path}
            return "rename_file", {**given, "create_parents": request.create_parents}
