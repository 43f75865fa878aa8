"""Unified diffs of git, of diff and of models are read and fitted; what does not fit is said and stages nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edit_desk import Desk

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.edits.changes import FileChange, Splice
from callboard.actors.edits.diffs import git_diff
from callboard.actors.edits.fitting import Fitter
from callboard.actors.edits.patches import parse_patch
from callboard.actors.edits.planning import ApplyPatch, Planner
from callboard.actors.edits.texts import EditedText
from callboard.protocol.errors import ToolError

FIVE = "one\ntwo\nthree\nfour\nfive\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text(FIVE)
    return Desk(tmp_path / "work", tmp_path / "state")


def patched(desk: Desk, patch: str) -> str:
    desk.decide(desk.staged(ApplyPatch(patch)))
    return (desk.root / "a.txt").read_text()


def refusal(desk: Desk, patch: str) -> ToolError:
    with pytest.raises(ToolError) as caught:
        desk.stage(ApplyPatch(patch))
    assert desk.states() == {}
    assert caught.value.field == "patch"
    return caught.value


def hunk(header: str, *lines: str, path: str = "a.txt") -> str:
    return "\n".join((f"--- a/{path}", f"+++ b/{path}", header, *lines, ""))


EXACT = hunk("@@ -2,3 +2,3 @@", " two", "-three", "+3", " four")


def test_an_exact_hunk_has_nothing_said_of_it(desk: Desk) -> None:
    assert desk.stage(ApplyPatch(EXACT)).notes == ()
    desk.decide()
    assert (desk.root / "a.txt").read_text() == "one\ntwo\n3\nfour\nfive\n"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (hunk("@@ -20,3 +20,3 @@", " two", "-three", "+3", " four"), "18 lines above line 20, where its header says"),
        (hunk("@@ -1,3 +1,3 @@", " two", "-three", "+3", " four"), "1 lines below line 1, where its header says"),
        (hunk("@@ -2,3 +2,3 @@", " two  ", "-three\t", "+3", " four"), "white space at the ends of lines differs"),
        (hunk("@@ -2,3 +2,3 @@", "   two", "-  three", "+3", " four"), "white space differs"),
        (hunk("@@ -2,3 +2,3 @@", " TWO", "-three", "+3", " four"), "2 lines of its context were left out of account"),
        (hunk("@@ -2,9 +2,7 @@", " two", "-three", "+3", " four"), ""),
        (hunk("@@ @@", " two", "-three", "+3", " four"), ""),
        (f"Here it is:\n```diff\n{EXACT}```\nDone.", ""),
        (EXACT.replace("a/a.txt", "a.txt").replace("b/a.txt", "a.txt"), ""),
        (EXACT.replace("\n", "\r\n"), ""),
    ],
    ids=["above", "below", "line-ends", "white", "fuzz", "counts", "no-numbers", "fenced", "no-prefix", "crlf"],
)
def test_what_is_not_exact_is_fitted_and_said(desk: Desk, patch: str, said: str) -> None:
    notes = desk.stage(ApplyPatch(patch)).notes
    assert notes == ((f"a.txt: hunk 1 fits, but {said}",) if said else ())
    desk.decide()
    assert (desk.root / "a.txt").read_text() == "one\ntwo\n3\nfour\nfive\n"


def test_context_keeps_the_white_space_of_the_file(desk: Desk) -> None:
    (desk.root / "a.txt").write_text("one\n    two\nthree\n")
    assert patched(desk, hunk("@@ -1,3 +1,3 @@", " one", " two", "-three", "+3")) == "one\n    two\n3\n"


@pytest.mark.parametrize("header", ["@@ -7,1 +7,1 @@", "@@ @@", "@@ -1 +1 @@ nothing of the kind", "@@ -5 +5 @@ x z"])
def test_of_equal_places_none_is_taken_by_chance(desk: Desk, header: str) -> None:
    (desk.root / "a.txt").write_text("x\n" * 3 + "y\n" + "z\n" * 3 + "y\n")
    error = refusal(desk, hunk(header, "-y", "+Y"))
    assert "2 places" in str(error)
    assert error.expected == "a line number in its header: one of 4, 8"


TWINS = {
    "a.py": (
        "class A:\n    def run(self):\n        go()\n        return 1\n\n"
        "    def stop(\n        self,\n    ):\n        go()\n        return 1\n"
    ),
    "a.c": "int one(void)\n{\n  int x;\n#ifdef A\n  go();\n#endif\n}\n\nint two(void)\n{\n  go();\n}\n",
    "a.md": "# Top\n\n## Install\n\ngo\n\n## Remove\n\ngo\n",
    "a.ini": "[one]\ngo = 1\n\n[two]\ngo = 1\n",
    "a.js": "function one() {\n\tgo();\n}\nfunction two() {\n\tgo();\n}\n",
    "Makefile": "one:\n\tgo\n\ntwo:\n\tgo\n",
}


@pytest.mark.parametrize(
    ("path", "header", "lines", "line"),
    [
        ("a.py", "@@ -99,2 +99,2 @@ def stop(", ("-        go()", "+        WENT", "         return 1"), 9),
        ("a.py", "@@ -99,2 +99,2 @@     def run(self):", ("-        go()", "+        WENT", "         return 1"), 3),
        ("a.py", "@@ -9,2 +9,2 @@ class A:", ("-        go()", "+        WENT", "         return 1"), 9),
        ("a.py", "@@ -8,2 +8,2 @@ def run(self)", ("- go()", "+ WENT", "  return 1"), 3),
        ("a.c", "@@ -1 +1 @@ int two(void)", ("-  go();", "+  WENT"), 11),
        ("a.c", "@@ int one(void)", ("-  go();", "+  WENT"), 5),
        ("a.md", "@@ -1 +1 @@ ## Remove", ("-go", "+WENT"), 9),
        ("a.md", "@@ -6 +6 @@ ## Install", ("-go", "+WENT"), 5),
        ("a.ini", "@@ -1 +1 @@ [two]", ("-go = 1", "+WENT"), 5),
        ("a.js", "@@ -9 +9 @@ function two() {", ("-    go();", "+    WENT"), 5),
        ("Makefile", "@@ ... @@ two:", ("-\tgo", "+\tWENT"), 5),
        ("Makefile", "@@ -4 +4 @@ one", ("-\tgo", "+\tWENT"), 2),
    ],
)
def test_the_heading_decides_between_equal_places(
    desk: Desk, path: str, header: str, lines: tuple[str, ...], line: int
) -> None:
    (desk.root / path).write_text(TWINS[path])
    desk.decide(desk.staged(ApplyPatch(hunk(header, *lines, path=path))))
    (changed,) = [at for at, text in enumerate((desk.root / path).read_text().split("\n"), 1) if "WENT" in text]
    assert changed == line


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("@@ -1,2 +1,2 @@ class A:", ("-        go()", "+        WENT", "         return 1")),  # both are in it
        ("@@ -3,2 +3,2 @@ def stop(", ("-        go()", "+        WENT", "         return 1")),  # they contradict
        ("@@ -6,2 +6,2 @@ def other():", ("-        go()", "+        WENT", "         return 1")),
        ("@@ -6,2 +6,2 @@", ("-go()", "+WENT", " return 1")),
    ],
)
def test_where_the_heading_does_not_decide_the_places_are_named(
    desk: Desk, header: str, lines: tuple[str, ...]
) -> None:
    (desk.root / "a.py").write_text(TWINS["a.py"])
    error = refusal(desk, hunk(header, *lines, path="a.py"))
    assert error.expected == "a line number in its header: one of 3, 9"


def test_a_hunk_as_far_away_as_the_one_before_it_is_no_riddle(desk: Desk) -> None:
    (desk.root / "a.txt").write_text("new\nnew\none\nx\nx\nx\ny\nx\nx\nx\ny\n")
    two = "\n".join((hunk("@@ -1 +1 @@", "-one", "+1"), "@@ -9 +9 @@", "-y", "+Y", "")).replace("\n\n", "\n")
    assert patched(desk, two).endswith("y\nx\nx\nx\nY\n")


def test_a_hunk_that_does_not_fit_is_told_with_the_nearest_lines(desk: Desk) -> None:
    error = refusal(desk, hunk("@@ -2,3 +2,3 @@", " two and a half", "-three and more", "+3", " four"))
    assert str(error) == "hunk 1 of a.txt does not fit: its lines are not in the file; nothing was staged"
    assert "4: four" in error.expected
    assert error.received == "two and a half\nthree and more\nfour"
    assert error.retry_hint == "Read the file again and send a patch against what it is now."


def test_a_missing_line_end_is_kept_made_and_taken_away(desk: Desk) -> None:
    no_end = "\\ No newline at end of file"
    (desk.root / "a.txt").write_text("one\ntwo")
    assert patched(desk, hunk("@@ -1,2 +1,2 @@", "-one", "+1", " two", no_end)) == "1\ntwo"
    assert patched(desk, hunk("@@ -1,2 +1,2 @@", " 1", "-two", no_end, "+2")) == "1\n2\n"
    (desk.root / "a.txt").write_text("one\n")
    assert patched(desk, hunk("@@ -1 +1 @@", "-one", "+1", no_end)) == "1"
    assert patched(desk, hunk("@@ -1 +1,2 @@", " 1", "+two")) == "1\ntwo"


def test_files_are_made_deleted_and_renamed(desk: Desk) -> None:
    (desk.root / "b.txt").write_text("b\n")
    (desk.root / "c.txt").write_text("c\nd\n")
    patch = "\n".join((
        *("diff --git a/new.sh b/new.sh", "new file mode 100755", "--- /dev/null", "+++ b/new.sh"),
        *("@@ -0,0 +1 @@", "+n"),
        *("diff --git a/b.txt b/b.txt", "deleted file mode 100644", "--- a/b.txt", "+++ /dev/null", "@@ -1 +0,0 @@"),
        *("-b", "diff --git a/c.txt b/sub/c.txt", "rename from c.txt", "rename to sub/c.txt", "--- a/c.txt"),
        *("+++ b/sub/c.txt", "@@ -1,2 +1,2 @@", " c", "-d", "+D", ""),
    ))  # fmt: skip
    proposal = desk.stage(ApplyPatch(patch)).proposal
    assert proposal is not None
    assert [each.kind.value for each in proposal.files] == ["created", "deleted", "renamed"]
    desk.decide()
    found = {str(each.relative_to(desk.root)): each.read_text() for each in desk.root.rglob("*") if each.is_file()}
    assert found == {"a.txt": FIVE, "new.sh": "n\n", "sub/c.txt": "c\nD\n"}
    assert (desk.root / "new.sh").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ("", "changes nothing"),
        ("nothing of the kind", "changes nothing"),
        ("*** Begin Patch\n*** End Patch", "not a unified diff"),
        (hunk("@@ -1 +1 @@", " one"), "changes nothing"),
        (hunk("@@ -1 +1 @@", "-one", "+1", path="../outside.txt"), "outside the workspace"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-root\n+r\n", "outside the workspace"),
        (hunk("@@ -1 +1 @@", "-one", "+1", path="a\0.txt"), "NUL"),
        (hunk("@@ -1 +1 @@", "-one", "+1", path=".env"), "not shown"),
        (hunk("@@ -1 +1 @@", "-one", "+1", path="missing.txt"), "there is no 'missing.txt'"),
        ("diff --git a/x.png b/x.png\nBinary files a/x.png and b/x.png differ\n", "binary file"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "binary file"),
        ("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n", "exists"),
        ("diff --git a/a.txt b/b/\nrename from a.txt\nrename to folder\n", "exists"),
        (EXACT + EXACT, "is changed twice"),
        ("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "not all that the file holds"),
        ("--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/NEW\n@@ -0,0 +1 @@\n+x\n", "only in case"),
        ("@@ -1 +1 @@\n-one\n+1\n", "hunk of no file"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+a.txt\n", "symbolic link"),
    ],
    ids=[
        *("empty", "prose", "another-form", "no-change", "outside", "absolute", "nul", "secret", "missing", "binary"),
        *("git-binary", "exists", "onto-folder", "twice", "half-deleted", "case", "no-file", "link"),
    ],
)  # fmt: skip
def test_a_bad_patch_is_told_and_stages_nothing(desk: Desk, patch: str, told: str) -> None:
    (desk.root / "folder").mkdir()
    assert told in str(refusal(desk, patch))


def test_a_huge_patch_is_refused_before_it_is_read(desk: Desk) -> None:
    assert "1,000,000 bytes" in str(refusal(desk, hunk("@@ -1 +1 @@", "-one", "+" + "x" * 1_000_000)))


LINES = st.lists(
    st.sampled_from(["a", "b", "", "  c", "é\t", "-", "+x", "@@ -1 +1 @@", "--- a/x", "\\ x"]), max_size=12
)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    end = draw(ENDS)
    text = end.join(draw(LINES))
    return (text + (end if draw(st.booleans()) and text else "")).encode()


@settings(max_examples=150)
@given(before=contents(), after=contents())
def test_a_diff_of_ours_read_again_makes_the_same_file(before: bytes, after: bytes) -> None:
    diff = git_diff([FileChange("/w/x", "/w/x", before, (Splice(0, len(before), after),))], "/w")
    if before == after:
        return
    (patch,) = parse_patch(diff)
    fitter = Fitter(EditedText(before), "x")
    splices = tuple(fitter.fit(*patch.hunks))
    result = FileChange("/w/x", "/w/x", before, splices).result
    assert result is not None
    # A line end that the file has elsewhere is what is written, so only the lines are compared where they are mixed.
    assert result.replace(b"\r\n", b"\n") == after.replace(b"\r\n", b"\n")
    assert not any("white space" in note or "context" in note for note in fitter.notes)


@settings(max_examples=25)
@given(before=contents(), after=contents())
def test_git_applies_a_diff_of_ours(tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes) -> None:
    if before == after or not before or not after:
        return
    folder = tmp_path_factory.mktemp("git")
    (folder / "sub").mkdir()
    (folder / "sub" / "x y").write_bytes(before)
    place = str(folder / "sub" / "x y")
    diff = git_diff([FileChange(place, place, before, (Splice(0, len(before), after),))], str(folder))
    command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-"]
    done = subprocess.run(command, cwd=folder, input=diff.encode(), capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "sub" / "x y").read_bytes() == after


@settings(max_examples=200)
@given(text=st.text(alphabet=' +-@\\abdif/\n\r\t"0,1', max_size=200) | LINES.map("\n".join))
def test_any_text_is_a_patch_or_a_told_failure(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.getbasetemp()
    failures = []
    try:
        Planner(Workspace.at(root)).plan(ApplyPatch(text))
    except ToolError as error:
        failures.append((error.field, bool(error.expected)))
    assert set(failures) <= {("patch", True)}
