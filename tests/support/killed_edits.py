"""A program that applies an edit of five files and is killed meanwhile, again and again; it says what it found then.

    python killed_edits.py FOLDER steps FIRST EVERY       at every EVERY-th step, from FIRST
    python killed_edits.py FOLDER moments SEED TIMES      at so many random moments

A step is a line of the code that applies edits. One line of JSON for each kill; the last one says how many steps there
are.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.edits import applying, proposal_store
from callboard.actors.edits.editor import Editor, ListProposals, Stage
from callboard.actors.edits.planning import ApplyPatch
from callboard.actors.edits.proposals import DecideEdits, Proposal
from callboard.protocol.errors import CallboardError

TRACED = {applying.__file__, proposal_store.__file__}
OLD = {"a.py": "one\ntwo\n", "b.sh": "echo b\n", "gone.txt": "gone\n", "moved.txt": "moved\nline\n"}
NEW = {"a.py": "one\n2\n", "b.sh": "echo B\n", "deep/er/new.txt": "new\n", "there.txt": "moved\nLINE\n"}
PATCH = """\
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 one
-two
+2
--- a/b.sh
+++ b/b.sh
@@ -1 +1 @@
-echo b
+echo B
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/moved.txt b/there.txt
rename from moved.txt
rename to there.txt
--- a/moved.txt
+++ b/there.txt
@@ -1,2 +1,2 @@
 moved
-line
+LINE
--- /dev/null
+++ b/deep/er/new.txt
@@ -0,0 +1 @@
+new
"""


class Listener:
    def decided(self, proposal: Proposal) -> None: ...
    def files_changed(self) -> None: ...
    def remembers(self, request_ids: object) -> None: ...


def editor_of(folder: Path) -> Editor:
    editor = Editor(Workspace.at(folder / "work"), folder / "state", Listener())
    editor.on_start()
    return editor


def known(answer: object) -> object:
    if isinstance(answer, CallboardError):
        raise answer
    return answer


def staged(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    for name, text in OLD.items():
        (folder / "work" / name).write_text(text)
    (folder / "work" / "b.sh").chmod(0o755)
    editor = editor_of(folder)
    answer = known(editor._stage(Stage(ApplyPatch(PATCH), "apply_patch")))
    editor.on_stop()
    return answer.proposal.id  # type: ignore[attr-defined]


def apply(folder: Path, proposal_id: str) -> None:
    editor = editor_of(folder)
    known(editor._decide(DecideEdits((proposal_id,), True, "owner")))
    editor.on_stop()


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def contents(folder: Path) -> dict[str, str]:
    root = folder / "work"
    return {str(each.relative_to(root)): each.read_text() for each in sorted(root.rglob("*")) if each.is_file()}


def found(folder: Path, proposal_id: str) -> dict[str, object]:
    """What is there after the kill, and after the next start."""
    at_kill = contents(folder)
    torn = [name for name, text in at_kill.items() if text not in (OLD.get(name), NEW.get(name))]
    editor = editor_of(folder)
    (proposal,) = known(editor._list(ListProposals()))  # type: ignore[misc]
    repaired = contents(folder)
    if proposal.state == "pending":
        known(editor._decide(DecideEdits((proposal_id,), True, "owner")))
    editor.on_stop()
    return {
        "state": proposal.state,
        "torn": [name for name in torn if not Path(name).name.startswith(".callboard-")],
        "files": "old" if repaired == OLD else "new" if repaired == NEW else repaired,
        "in_the_end": contents(folder) == NEW and os.access(folder / "work" / "b.sh", os.X_OK),
        "folders": sorted(each.name for each in (folder / "work").iterdir() if each.is_dir()),
    }


def killed_at(folder: Path, step: int) -> tuple[dict[str, object], bool]:
    """Killed at this step; False where it has ended before."""
    proposal_id, steps = staged(folder), 0

    def count(frame: FrameType, event: str, argument: object) -> object:
        nonlocal steps
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    def work() -> None:
        sys.settrace(count)
        apply(folder, proposal_id)

    _, status = os.waitpid(in_child(work), 0)
    return found(folder, proposal_id), os.WIFSIGNALED(status)


def killed_after(folder: Path, seconds: float) -> dict[str, object]:
    proposal_id = staged(folder)
    child = in_child(lambda: apply(folder, proposal_id))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found(folder, proposal_id)


def say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(folder: Path, mode: str, first: int, second: int) -> None:
    if mode == "steps":
        step, was_killed = first, True
        while was_killed:
            what, was_killed = killed_at(folder, step)
            if was_killed:
                say({"step": step, **what})
            step += second
        say({"ended_before": step - second})
        return
    chance = random.Random(first)
    began = time.monotonic()
    proposal_id = staged(folder)
    os.waitpid(in_child(lambda: apply(folder, proposal_id)), 0)
    whole = time.monotonic() - began
    for _ in range(second):
        say(killed_after(folder, chance.uniform(0, whole)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
