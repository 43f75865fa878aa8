"""read_file and list_dir: exact spans, clear refusals, and no way out of the workspace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.actors.builtins.files import MAX_ENTRIES, MAX_FILE_BYTES, MAX_READ_BYTES, read_lines
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.errors import ToolError, UsageError
from callboard.protocol.masking import has_mask, mask_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.file_tools import file_tools
from support.key_samples import PRIVATE_KEY


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src" / "main.py").write_text("import os\n\n\ndef main():\n    pass\n")
    (root / "src" / "deep" / "empty.txt").touch()
    (tmp_path / "secret.txt").write_text("secret")
    return root


def fence_in(answer: object) -> CodeFence:
    (fence,) = parse_fences(str(answer))
    assert isinstance(fence, CodeFence)
    return fence


def test_lines_come_in_a_fence_with_their_exact_span(workspace: Path) -> None:
    read_file, _ = file_tools(workspace)
    answer = read_file("src/main.py", 4, 5)
    place = workspace / "src" / "main.py"
    assert answer == f'<code="{place}" #12:32>\ndef main():\n    pass\n</code>'
    assert place.read_bytes()[12:32] == b"def main():\n    pass"
    assert read_file(str(place), 4) == answer


lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=8), st.booleans(), st.data())
def test_any_lines_of_any_text_can_be_read(tmp_path: Path, texts: list[str], ended: bool, data: st.DataObject) -> None:
    whole = "\n".join(texts) + "\n" * ended
    if not whole:
        return
    place = tmp_path / "any.txt"
    place.write_bytes(whole.encode())
    count = len(texts) if ended or texts[-1] else len(texts) - 1
    if not count:
        return
    first = data.draw(st.integers(1, count))
    last = data.draw(st.integers(first, count))
    fence = fence_in(read_lines(place, first, last))
    assert fence.code == "\n".join(texts[first - 1 : last])
    assert whole.encode()[fence.start_byte : fence.end_byte].decode() == fence.code


def test_a_long_file_is_read_in_pieces_that_join(workspace: Path) -> None:
    read_file, _ = file_tools(workspace)
    text = "".join(f"line {number} ä\n" for number in range(1, 20_001))
    place = workspace / "long.txt"
    place.write_text(text)
    read, start_line, pieces = b"", 1, 0
    while True:
        answer = str(read_file("long.txt", start_line))
        fence = fence_in(answer)
        assert len(fence.code.encode()) <= MAX_READ_BYTES
        assert fence.start_byte == len(read)
        read += fence.code.encode() + b"\n"
        pieces += 1
        if "Read on with start_line=" not in answer:
            break
        assert "of 20,000 lines" in answer
        start_line = int(answer.rsplit("=", 1)[1].rstrip("."))
    assert read.decode() == text
    assert pieces > 2


def test_a_line_that_is_too_long_is_cut_between_characters(workspace: Path) -> None:
    read_file, _ = file_tools(workspace)
    (workspace / "wide.txt").write_text("x" + "ä" * MAX_READ_BYTES)
    answer = str(read_file("wide.txt"))
    assert "Line 1 is longer than 100,000 bytes and was cut." in answer
    assert set(fence_in(answer).code[1:]) == {"ä"}


def test_an_empty_file_is_called_empty(workspace: Path) -> None:
    read_file, _ = file_tools(workspace)
    assert str(read_file("src/deep/empty.txt")).endswith("empty.txt is empty.")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret.txt", "outside the workspace"),
        ("/etc/passwd", "outside the workspace"),
        ("src/../../secret.txt", "outside the workspace"),
        ("link", "outside the workspace"),
        ("linked_dir/secret.txt", "outside the workspace"),
        ("loop", "cannot be followed"),
        ("nul\0byte", "cannot be followed"),
        ("nowhere.txt", "list_dir shows"),
        ("src/main.py/below", "Not a directory|there is no"),
        ("src", "list_dir lists it"),
        ("pipe", "not a regular file"),
        ("binary", "a binary file of 4 bytes"),
        ("latin1", "not UTF-8 text: byte 0xe4 in line 2"),
        ("huge", "files of more than 67,108,864 are not read"),
    ],
)
def test_what_cannot_be_read_is_refused_clearly(workspace: Path, path: str, words: str) -> None:
    (workspace / "link").symlink_to(workspace.parent / "secret.txt")
    (workspace / "linked_dir").symlink_to(workspace.parent)
    (workspace / "loop").symlink_to(workspace / "loop")
    os.mkfifo(workspace / "pipe")
    (workspace / "binary").write_bytes(b"a\0b\n")
    (workspace / "latin1").write_bytes(b"first\nM\xe4rz\n")
    with open(workspace / "huge", "wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    read_file, _ = file_tools(workspace)
    with pytest.raises(ToolError, match=words):
        read_file(path)


def test_lines_that_do_not_exist_are_refused(workspace: Path) -> None:
    read_file, _ = file_tools(workspace)
    with pytest.raises(ToolError, match="has 5 lines; there is no line 6"):
        read_file("src/main.py", 6)
    with pytest.raises(ToolError, match="end_line 1 is before start_line 2"):
        read_file("src/main.py", 2, 1)
    assert fence_in(read_file("src/main.py", 5, 99)).code == "    pass"


def test_a_listing_is_sorted_marked_and_without_git(workspace: Path) -> None:
    (workspace / "link").symlink_to("src")
    _, list_dir = file_tools(workspace)
    assert list_dir() == {"path": str(workspace), "entries": ["link@", "src/"]}
    assert list_dir("src", 2)["entries"] == ["deep/", "deep/empty.txt", "main.py"]


def test_a_long_listing_says_that_it_was_cut(workspace: Path) -> None:
    for number in range(MAX_ENTRIES + 5):
        (workspace / "src" / "deep" / f"{number:05}").touch()
    _, list_dir = file_tools(workspace)
    found = list_dir(".", 3)
    assert len(found["entries"]) == MAX_ENTRIES
    assert "more than 1,000 names" in found["left_out"]
    assert "left_out" not in list_dir("src")


def test_names_that_are_no_utf_8_are_shown_with_escapes(workspace: Path) -> None:
    os.close(os.open(os.fsencode(workspace) + b"/src/M\xe4rz", os.O_CREAT | os.O_WRONLY))
    _, list_dir = file_tools(workspace)
    assert list_dir("src")["entries"][0] == "M\\xe4rz"


@pytest.mark.parametrize(("path", "words"), [("src/main.py", "is not a directory"), ("..", "outside")])
def test_what_cannot_be_listed_is_refused(workspace: Path, path: str, words: str) -> None:
    _, list_dir = file_tools(workspace)
    with pytest.raises(ToolError, match=words):
        list_dir(path)


@pytest.mark.parametrize("place", ["nowhere", "secret.txt"])
def test_a_workspace_that_is_no_directory_is_refused(workspace: Path, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        file_tools(workspace.parent / place)


def test_they_can_be_shipped_to_a_child(workspace: Path) -> None:
    for each in file_tools(workspace):
        each.check()


@pytest.mark.parametrize("lines", [(1, None), (2, 2), (2, 3), (3, 3), (3, 5), (4, 4), (4, 5), (5, 6), (6, 6)])
def test_keys_are_masked_and_spans_stay_exact(workspace: Path, lines: tuple[int, int | None]) -> None:
    """Also where only a line in the middle of a private key is asked for."""
    block = PRIVATE_KEY.splitlines()
    text = ["größe = 1", 'password = "hunté2"', f"CERT = '''{block[0]}", *block[1:], "'''", "print('ok')", ""]
    place = workspace / "src" / "conf.py"
    place.write_text("\n".join(text))
    read_file, _ = file_tools(workspace)
    fence = fence_in(read_file("src/conf.py", *lines))
    data = place.read_bytes()
    assert len(fence.code.encode()) == fence.end_byte - fence.start_byte
    assert fence.code.encode() == mask_bytes(data, fence.start_byte, fence.end_byte)
    assert not [line for line in ("hunté2", *block[1:3]) if line[:20] in fence.code]
    assert [line.strip() for line in fence.code.splitlines()][-1:] != [""]


def test_a_long_line_that_is_cut_in_a_key_shows_no_piece_of_it(workspace: Path) -> None:
    key = "sk-proj-" + "abcDEF1234" * 4
    (workspace / "src" / "long.js").write_text("é" * (MAX_READ_BYTES // 2 - 12) + f" {key} " + "x" * 100)
    read_file, _ = file_tools(workspace)
    answer = str(read_file("src/long.js"))
    assert "sk-proj" not in answer
    assert has_mask(answer)
    assert "was cut" in answer
