"""read_file, read_files and get_file_metadata: exact spans, clear refusals, and no way out of the workspace."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.file_tools import built_in
from support.key_samples import PRIVATE_KEY

from callboard.actors.builtins.file_content import MAX_FILE_BYTES
from callboard.actors.builtins.reading import (
    MAX_READ_BYTES,
    FileMetadata,
    FileText,
    FileTexts,
    MissingFile,
    Range,
    UnreadFile,
    read_text,
)
from callboard.actors.index.records import digest
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.errors import ToolError, UsageError
from callboard.protocol.masking import has_mask, mask_bytes


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src" / "main.py").write_text("import os\n\n\ndef main():\n    pass\n")
    (root / "src" / "deep" / "empty.txt").touch()
    (tmp_path / "secret.txt").write_text("secret")
    return root


def read(workspace: Path, path: str, *lines: int | None, **more: int) -> FileText:
    found = built_in(workspace)["read_file"](path, *lines, **more)
    assert isinstance(found, FileText)
    return found


def fence_in(answer: FileText) -> CodeFence:
    (fence,) = parse_fences(answer.snippet)
    assert isinstance(fence, CodeFence)
    return fence


def test_lines_come_in_a_fence_with_their_exact_span(workspace: Path) -> None:
    answer = read(workspace, "src/main.py", 4, 5)
    place = workspace / "src" / "main.py"
    assert answer.snippet == f'<code="{place}" #12:32>\ndef main():\n    pass\n</code>'
    assert place.read_bytes()[12:32] == b"def main():\n    pass"
    assert (answer.file, answer.lines, answer.total_lines, answer.bytes) == (str(place), "4-5", 5, 33)
    assert answer.hash == digest(place.read_bytes()).hex()
    assert read(workspace, str(place), 4) == answer


def test_what_is_empty_is_not_sent(workspace: Path) -> None:
    """Each field of each item costs tokens."""
    tool = built_in(workspace)["read_file"]
    sent = tool.invoker.result_of(tool("src/main.py", 4, 5))
    assert isinstance(sent, str)
    fields = {"version", "file", "exists", "snippet", "lines", "total_lines", "bytes", "hash", "encoding"}
    assert orjson.loads(sent).keys() == fields
    assert orjson.loads(str(tool.invoker.result_of(tool("nowhere")))) == {
        **{"version": 1, "file": str(workspace / "nowhere"), "exists": False}
    }


lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0\ufeff"), max_size=20)


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
    answer = read_text(place, Range(first, last))
    assert isinstance(answer, FileText)
    fence = fence_in(answer)
    assert fence.code == "\n".join(texts[first - 1 : last])
    assert whole.encode()[fence.start_byte : fence.end_byte].decode() == fence.code
    assert answer.lines == f"{first}-{last}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=8), st.data())
def test_any_bytes_of_any_text_can_be_read(tmp_path: Path, texts: list[str], data: st.DataObject) -> None:
    """The span grows to whole characters."""
    whole = "\n".join(texts).encode()
    place = tmp_path / "any.txt"
    place.write_bytes(whole)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole) + 5))
    answer = read_text(place, Range(start_byte=first, end_byte=last))
    assert isinstance(answer, FileText)
    if not answer.snippet:
        assert first >= min(last, len(whole))
        return
    fence = fence_in(answer)
    assert whole[fence.start_byte : fence.end_byte] == fence.code.encode()
    assert fence.start_byte <= first <= min(last, len(whole)) <= fence.end_byte
    assert first - fence.start_byte <= 3
    assert fence.end_byte - min(last, len(whole)) <= 3


def test_a_long_file_is_read_in_pieces_that_join(workspace: Path) -> None:
    text = "".join(f"line {number} ä\n" for number in range(1, 20_001))
    place = workspace / "long.txt"
    place.write_text(text)
    joined, pieces, start_line = b"", 0, 1
    while True:
        answer = read(workspace, "long.txt", start_line)
        fence = fence_in(answer)
        assert len(fence.code.encode()) <= MAX_READ_BYTES
        assert fence.start_byte == len(joined)
        joined += fence.code.encode() + b"\n"
        pieces += 1
        assert answer.total_lines == 20_000
        if answer.next_start_line is None:
            break
        assert "cut after 100,000 bytes" in answer.note
        start_line = answer.next_start_line
    assert joined.decode() == text
    assert pieces > 2


def test_a_line_that_is_too_long_is_read_on_by_bytes(workspace: Path) -> None:
    text = "x" + "ä" * MAX_READ_BYTES + "\nend\n"
    (workspace / "wide.txt").write_text(text)
    answer = read(workspace, "wide.txt")
    joined = fence_in(answer).code
    while answer.next_start_byte is not None:
        answer = read(workspace, "wide.txt", start_byte=answer.next_start_byte)
        joined += fence_in(answer).code
    assert joined == text


def test_an_empty_file_is_called_empty(workspace: Path) -> None:
    answer = read(workspace, "src/deep/empty.txt")
    assert (answer.snippet, answer.note, answer.total_lines) == ("", "the file is empty", 0)


REFUSED = [
    ("../secret.txt", "outside the workspace"),
    ("/etc/passwd", "outside the workspace"),
    ("src/../../secret.txt", "outside the workspace"),
    ("link", "outside the workspace"),
    ("linked_dir/secret.txt", "outside the workspace"),
    ("dangling", "outside the workspace"),
    ("loop", "cannot be followed"),
    ("nul\0byte", "cannot be followed"),
    ("x" * 5_000, "cannot be followed: File name too long"),
    ("src/main.py/below", "Not a directory"),
    ("src", "list_dir lists it"),
    ("pipe", "not a regular file but a pipe"),
    ("binary", "a binary file of 4 bytes"),
    ("huge", "files of more than 67,108,864 are not read"),
]


@pytest.mark.parametrize(("path", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_clearly(workspace: Path, path: str, words: str) -> None:
    (workspace / "link").symlink_to(workspace.parent / "secret.txt")
    (workspace / "linked_dir").symlink_to(workspace.parent)
    (workspace / "dangling").symlink_to(workspace.parent / "nowhere")
    (workspace / "loop").symlink_to(workspace / "loop")
    os.mkfifo(workspace / "pipe")
    (workspace / "binary").write_bytes(b"a\0b\n")
    with open(workspace / "huge", "wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    tools = built_in(workspace)
    with pytest.raises(ToolError, match=words) as refusal:
        tools["read_file"](path)
    assert (refusal.value.field, bool(refusal.value.expected)) == ("path", True)
    found = tools["read_files"]([path, "src/main.py"])
    assert isinstance(found, FileTexts)
    refused, other = found.files
    assert isinstance(refused, UnreadFile)
    assert (refused.path, refused.reason) == (path, str(refusal.value))
    assert isinstance(other, FileText)


def test_a_folder_that_may_not_be_entered_is_refused(workspace: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may enter every folder")
    (workspace / "src").chmod(0)
    try:
        with pytest.raises(ToolError, match="Permission denied"):
            read(workspace, "src/main.py")
    finally:
        (workspace / "src").chmod(0o755)


def test_a_missing_file_is_an_answer(workspace: Path) -> None:
    tools = built_in(workspace)
    for name in ("read_file", "get_file_metadata"):
        assert tools[name]("src/../nowhere.txt") == MissingFile(file=str(workspace / "nowhere.txt"))
    assert tools["read_files"](["nowhere/at/all"]).files == (MissingFile(file=str(workspace / "nowhere/at/all")),)


@pytest.mark.parametrize(
    ("wanted", "field", "words"),
    [
        ({"start_line": 6}, "start_line", "at most 5; got 6"),
        ({"start_line": 2, "end_line": 1}, "end_line", "2 or more; got 1, which is before start_line 2"),
        ({"start_byte": 34}, "start_byte", "at most 33"),
        ({"start_byte": 3, "end_byte": 2}, "end_byte", "3 or more"),
        ({"start_byte": 3, "start_line": 2}, "start_byte", "a range of lines or one of bytes, not both"),
        ({"end_byte": 3, "end_line": 2}, "start_byte", "a range of lines or one of bytes, not both"),
    ],
)
def test_ranges_that_do_not_exist_are_refused(workspace: Path, wanted: dict[str, int], field: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as refusal:
        read(workspace, "src/main.py", **wanted)
    assert refusal.value.field == field


def test_an_end_behind_the_file_is_its_end(workspace: Path) -> None:
    assert fence_in(read(workspace, "src/main.py", 5, 99)).code == "    pass"
    assert fence_in(read(workspace, "src/main.py", start_byte=28, end_byte=10**9)).code == "pass\n"


def test_several_files_share_one_answer(workspace: Path) -> None:
    (workspace / "long.txt").write_text("0123456789\n" * 9_000)
    found = built_in(workspace)["read_files"](["long.txt", "long.txt", "src/main.py"])
    assert isinstance(found, FileTexts)
    first, second, third = found.files
    assert isinstance(first, FileText)
    assert isinstance(second, FileText)
    assert (first.next_start_line, second.total_lines) == (None, 9_000)
    assert second.next_start_line is not None
    assert isinstance(third, FileText | UnreadFile)
    assert sum(len(each.snippet) for each in found.files if isinstance(each, FileText)) < MAX_READ_BYTES + 1_000


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "utf-16-be", "shift_jis"])
def test_text_in_other_encodings_is_read_with_spans_of_its_own_bytes(workspace: Path, encoding: str) -> None:
    text = "# erste Zeile\nname = 'Größe'\nende\n" * 3
    if encoding == "shift_jis":
        text = "# 最初の行です\nname = '大きさを調べる'\nende\n" * 3
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    data = mark + text.encode(encoding)
    (workspace / "text.txt").write_bytes(data)
    answer = read(workspace, "text.txt", 2, 2)
    fence = fence_in(answer)
    assert fence.code == text.splitlines()[1]
    assert data[fence.start_byte : fence.end_byte].decode(answer.encoding) == fence.code
    known = built_in(workspace)["get_file_metadata"]("text.txt")
    assert isinstance(known, FileMetadata)
    assert (known.encoding, known.lines, known.line_ends) == (answer.encoding, 9, "lf")


def test_broken_utf_8_is_shown_and_said(workspace: Path) -> None:
    (workspace / "text.txt").write_bytes("Größe, Maß, Übermut".encode() + b" \xff\nnext\n")
    answer = read(workspace, "text.txt")
    assert "\ufffd" in answer.snippet
    assert "not UTF-8 are shown as U+FFFD" in answer.note
    (workspace / "whole.txt").write_text("\ufffd is in the file\n")
    assert read(workspace, "whole.txt").note == ""


@pytest.mark.parametrize(
    ("data", "language", "line_ends", "count"),
    [
        (b"a\nb\n", "python", "lf", 2),
        (b"a\r\nb", "python", "crlf", 2),
        (b"a\r\nb\n", "python", "mixed", 2),
        (b"a", "python", "none", 1),
        (b"", "python", "none", 0),
    ],
)
def test_metadata_says_what_a_text_is(workspace: Path, data: bytes, language: str, line_ends: str, count: int) -> None:
    place = workspace / "a.py"
    place.write_bytes(data)
    os.utime(place, (1_700_000_000, 1_700_000_000))
    known = built_in(workspace)["get_file_metadata"]("a.py")
    assert known == FileMetadata(
        file=str(place),
        kind="file",
        bytes=len(data),
        mtime="2023-11-14T22:13:20+00:00",
        hash=digest(data).hex(),
        language=language,
        encoding="utf-8",
        lines=count,
        line_ends=line_ends,  # type: ignore[arg-type]
    )


def test_metadata_of_what_is_no_text(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "binary").write_bytes(b"a\0b\n")
    with open(workspace / "huge", "wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    known = {name: built_in(workspace)["get_file_metadata"](name) for name in ("pipe", "src", "binary", "huge")}
    assert {name: (each.kind, each.hash is not None, each.encoding) for name, each in known.items()} == {
        "pipe": ("pipe", False, None),
        "src": ("folder", False, None),
        "binary": ("file", True, "binary"),
        "huge": ("file", False, None),
    }


@pytest.mark.parametrize("place", ["nowhere", "secret.txt"])
def test_a_workspace_that_is_no_directory_is_refused(workspace: Path, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        built_in(workspace.parent / place)


def test_they_can_be_shipped_to_a_child(workspace: Path) -> None:
    for each in built_in(workspace).values():
        each.check()


@pytest.mark.parametrize("lines", [(1, None), (2, 2), (2, 3), (3, 3), (3, 5), (4, 4), (4, 5), (5, 6), (6, 6)])
def test_keys_are_masked_and_spans_stay_exact(workspace: Path, lines: tuple[int, int | None]) -> None:
    """Also where only a line in the middle of a private key is asked for."""
    block = PRIVATE_KEY.splitlines()
    text = ["größe = 1", 'password = "hunté2"', f"CERT = '''{block[0]}", *block[1:], "'''", "print('ok')", ""]
    place = workspace / "src" / "conf.py"
    place.write_text("\n".join(text))
    fence = fence_in(read(workspace, "src/conf.py", *lines))
    data = place.read_bytes()
    assert len(fence.code.encode()) == fence.end_byte - fence.start_byte
    assert fence.code.encode() == mask_bytes(data, fence.start_byte, fence.end_byte)
    assert not [line for line in ("hunté2", *block[1:3]) if line[:20] in fence.code]
    assert [line.strip() for line in fence.code.splitlines()][-1:] != [""]


def test_a_long_line_that_is_cut_in_a_key_shows_no_piece_of_it(workspace: Path) -> None:
    key = "sk-proj-" + "abcDEF1234" * 4
    (workspace / "src" / "long.js").write_text("é" * (MAX_READ_BYTES // 2 - 12) + f" {key} " + "x" * 100)
    answer = read(workspace, "src/long.js")
    assert "sk-proj" not in answer.snippet
    assert has_mask(answer.snippet)
    assert answer.next_start_byte is not None
    rest = read(workspace, "src/long.js", start_byte=answer.next_start_byte)
    assert "abcDEF1234" not in rest.snippet
