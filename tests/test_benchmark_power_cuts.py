"""benchmarks/power_cuts.py: a dozen cuts of it (CALLBOARD_DEEP: 120), and its disks are those that there may be."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "power_cuts.py"

from power_cuts import Disk, File, Op, ops_of  # noqa: E402 - benchmarks/ is on the path from here on

TIMES = 10 if os.environ.get("CALLBOARD_DEEP") else 1
FOLDER = "/f"


@pytest.mark.timeout(120 * TIMES)
@pytest.mark.deep
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_after_a_dozen_power_cuts_no_promise_is_broken() -> None:
    command = [sys.executable, str(SCRIPT), "--cuts", str(12 * TIMES), "--requests", "6"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110 * TIMES, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(rf"^{12 * TIMES} cuts, {72 * TIMES} requests", ran.stdout, re.M), ran.stdout


def escaped(text: str) -> str:
    return "".join(f"\\x{each:02x}" for each in text.encode())


def test_what_strace_says_is_read_in_the_order_in_which_it_counts() -> None:
    file, name = f"3<{escaped('/f/j')}>", f'"{escaped("/f/j")}"'
    lines = [
        f"7 openat(AT_FDCWD<{escaped('/')}>, {name}, O_RDWR|O_CREAT|O_CLOEXEC, 0600) = {file}",
        f'7 pwrite64({file}, "{escaped("ab, 3)")}", 6, 32 <unfinished ...>',
        f"8 fsync({file} <unfinished ...>",
        "7 <... pwrite64 resumed>) = 6",
        f'9 write(1<{escaped("/dev/null")}>, "{escaped("told")}", 4) = 4',
        "8 <... fsync resumed>) = 0",
        f"7 ftruncate({file}, 10) = 0",
        f"7 fdatasync(4<{escaped('/f')}>) = 0",
        f"7 unlink({name}) = -1 ENOENT (No such file or directory)",
        f'7 pwrite64(5<{escaped("/elsewhere")}>, "{escaped("x")}", 1, 0) = 1',
        f"7 unlink({name}) = 0",
    ]
    assert list(ops_of(iter(lines), FOLDER)) == [
        Op("make", "/f/j"),
        Op("write", "/f/j", 32, b"ab, 3)"),
        Op("sync begins", "/f/j"),
        Op("told", data=b"told"),
        Op("sync", "/f/j"),
        Op("size", "/f/j", 10),
        Op("sync", "/f"),
        Op("remove", "/f/j"),
    ]


def test_what_was_synced_is_there_and_of_the_rest_any_sectors(tmp_path: Path) -> None:
    disk = Disk(FOLDER)
    old, new = b"o" * 2_048, b"n" * 2_048
    for op in (Op("make", "/f/j"), Op("write", "/f/j", 0, old), Op("sync", "/f/j"), Op("sync", "/f")):
        disk.do(op)
    disk.do(Op("sync begins", "/f/j"))
    disk.do(Op("write", "/f/j", 0, new))  # this sync is not for it, though it ends later
    disk.do(Op("make", "/f/k"))
    chance, seen, names = random.Random(1), set[bytes](), set[tuple[str, ...]]()
    for _ in range(300):
        disk.cut(chance, tmp_path)
        seen.add((tmp_path / "j").read_bytes())
        names.add(tuple(sorted(each.name for each in tmp_path.iterdir())))
        (tmp_path / "k").unlink(missing_ok=True)
    assert {old, new, new[:512] + old[512:], old[:512] + new[512:1_024] + old[1_024:]} <= seen
    assert {len(each) for each in seen} == {2_048}
    assert names == {("j",), ("j", "k")}


def test_a_file_may_have_grown_without_its_content() -> None:
    file = File(b"s", [Op("write", "/f/j", 1, b"x" * 1_000)])
    seen = {file.after_a_cut(random.Random(seed)) for seed in range(200)}
    assert {b"s", b"s" + b"x" * 1_000, b"s" + bytes(1_000)} <= seen
