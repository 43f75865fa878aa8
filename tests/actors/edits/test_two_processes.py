"""Two processes that stage and approve edits of one file of one workspace at the same time: none is lost or torn."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

#: Each edits lines of its own. Prints how each proposal ended.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {support!r})
from edit_desk import Desk
name, root, state = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
desk = Desk(root, state)
sys.stdin.readline()
for number in range(15):
    (ended,) = desk.decide(desk.replace("list.txt", f"{{name}} {{number}} open", f"{{name}} {{number}} done"))
    print(ended.state, flush=True)
desk.close()
"""
SUPPORT = Path(__file__).parents[2] / "support"
NAMES = ("a", "b")


def test_what_is_applied_is_in_the_file_and_nothing_else_has_changed(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    lines = [f"{name} {number} open" for number in range(15) for name in NAMES]
    (root / "list.txt").write_text("\n".join(lines) + "\n")
    program = PROGRAM.format(support=str(SUPPORT))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, name, str(root), str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in NAMES
    ]
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    ended = [each.communicate(timeout=50)[0].split() for each in running]
    assert [each.returncode for each in running] == [0, 0]
    counted = Counter(state for each in ended for state in each)
    assert set(counted) <= {"applied", "stale"}
    expected = [
        line.replace("open", "done") if ended[NAMES.index(line[0])][int(line.split()[1])] == "applied" else line
        for line in lines
    ]
    assert (root / "list.txt").read_text().splitlines() == expected
    assert counted["applied"] >= 15, "most find the file as it was, or are moved along with what the other has applied"
