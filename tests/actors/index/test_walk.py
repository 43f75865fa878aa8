"""Which files are indexed: as git would have it, compared with git itself."""

import os
import subprocess
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.actors.index import CodeIndex, parsing
from callboard.actors.index.walk import MAX_FILE_BYTES, Walk
from callboard.actors.index.watch import watch
from callboard.protocol.errors import UsageError

FILES = ["a.py", "b.log", "sub/a.py", "sub/b.log", "sub/deep/a.py", "sub/deep/c.txt", "out/x.py", "out/keep/y.py"]
PATTERNS = [
    "*.log",
    "!b.log",
    "sub/",
    "/a.py",
    "a.py",
    "deep",
    "out/*",
    "!out/keep/",
    "**/c.txt",
    "sub/deep/*",
    "!*.py",
    "# x",
    "",
]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def walked(folder: Path) -> set[str]:
    return {os.path.relpath(file.path, folder) for file in Walk(str(folder), "/nowhere")}


@given(*[st.lists(st.sampled_from(PATTERNS), max_size=3) for _ in range(3)])
@settings(max_examples=examples(25), deadline=None)
def test_the_same_files_as_git(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], sub: list[str], info: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("repo")
    write(folder, dict.fromkeys(FILES, "text\n"))
    subprocess.run(["git", "init", "-q", folder], check=True)
    write(
        folder, {".gitignore": "\n".join(top), "sub/.gitignore": "\n".join(sub), ".git/info/exclude": "\n".join(info)}
    )
    listed = subprocess.run(
        ["git", "-C", folder, "-c", "core.excludesFile=", "ls-files", "-co", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    expected = {name for name in listed if (folder / name).stat().st_size}
    assert walked(folder) == expected
    walk = Walk(str(folder), "/nowhere")
    for name in FILES:
        assert (walk.find(str(folder / name)) is not None) == (name in expected)


def test_a_pattern_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    write(
        tmp_path, {".gitignore": "a\u2028b.py\r\nc.py", "a\u2028b.py": "x = 1\n", "b.py": "x = 1\n", "c.py": "x = 1\n"}
    )
    assert walked(tmp_path) == {".gitignore", "b.py"}


def test_an_ignored_folder_is_searched_when_it_is_the_workspace(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "lib/\n", "lib/pkg/a.py": "x = 1\n", ".git/HEAD": ""})
    assert walked(tmp_path / "lib" / "pkg") == {"a.py"}
    assert walked(tmp_path) == {".gitignore"}


def test_links_environments_and_the_store_are_left_out(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(
        work, {"a.py": "x\n", "env/pyvenv.cfg": "", "env/b.py": "x\n", "node_modules/c.js": "x\n", "store/d.py": "x\n"}
    )
    write(tmp_path, {"outside.py": "x\n"})
    os.symlink(tmp_path / "outside.py", work / "link.py")
    os.symlink(work, work / "loop")
    walk = Walk(str(work), str(work / "store"))
    assert [os.path.basename(file.path) for file in walk] == ["a.py"]
    assert walk.skipped["symlink"] == 2
    for name in ("link.py", "loop/a.py", "env/b.py", "node_modules/c.js", "store/d.py", "gone.py", "a.py/below"):
        assert walk.find(str(work / name)) is None


def test_a_changed_gitignore_counts_at_once(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "out/\n", "a.py": "def alpha(): pass\n", "out/b.py": "def beta(): pass\n"})
    with CodeIndex.open(tmp_path, embedder=None) as index:
        assert index.refresh().files == 2
        write(tmp_path, {".gitignore": "a.py\n"})
        summary = index.refresh(paths=[str(tmp_path / ".gitignore")])
        assert (summary.indexed, summary.removed) == (2, 1)
        assert index.search("beta", 1)[0].name == "beta"


def test_what_is_left_out_is_counted_once_where_a_few_paths_lead_to_a_look_at_all(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "out.py\n", "a.py": "x\n", "out.py": "x\n"})
    with CodeIndex.open(tmp_path, embedder=None) as index:
        summary = index.refresh(paths=[str(tmp_path / "out.py"), str(tmp_path / ".gitignore")])
        assert dict(summary.skipped) == {"ignored": 1}


def test_what_is_not_indexed_is_counted_by_reason(tmp_path: Path) -> None:
    write(tmp_path, {
        "good.py": "def good(): pass\n",
        "empty.py": "",
        "bundle.js": "var a=1;" * 2_000,
        "app.min.js": "x\n",
        "long.py": "x = 1\n" * (MAX_FILE_BYTES // 6 + 1),
        "dump.txt": "word word\n" * 50_000,
    })  # fmt: skip
    (tmp_path / "data.py").write_bytes(b"a\0b")
    (tmp_path / "latin.py").write_bytes(b"def caf\xe9(): pass\n")
    with (tmp_path / "huge.py").open("wb") as huge:
        huge.truncate(1_000_000_000)
    os.mkfifo(tmp_path / "pipe.py")
    with CodeIndex.open(tmp_path, embedder=None) as index:
        for _ in range(2):
            summary = index.refresh()
            assert dict(summary.skipped) == {
                "empty": 1, "minified": 1, "not_source": 1, "too_long": 3, "binary": 1, "not_a_file": 1,
            }  # fmt: skip
        assert summary.files == 2


def test_no_permission_and_vanished_files_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.py": "def alpha(): pass\n", "b.py": "def beta(): pass\n"})
    real_open = parsing.open_plain

    def refusing(path: str) -> int:
        if str(path).endswith("a.py"):
            raise PermissionError(path)
        if str(path).endswith("b.py"):
            raise FileNotFoundError(path)
        return real_open(path)

    with CodeIndex.open(tmp_path, embedder=None) as index:
        with monkeypatch.context() as patch:
            patch.setattr(parsing, "open_plain", refusing)
            assert dict(index.refresh().skipped) == {"no_permission": 1, "vanished": 1}
        assert index.refresh().indexed == 2


def test_watch_names_what_changed(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def alpha(): pass\n"})
    stop = threading.Event()
    with CodeIndex.open(tmp_path, embedder=None) as index:
        index.refresh()
        # Written again and again until the watcher has started and tells: its start has no other sign.
        writer = threading.Thread(target=_keep_writing, args=(tmp_path / "a.py", stop))
        writer.start()
        try:
            changed = next(batch for batch in watch(index, stop) if str(tmp_path / "a.py") in batch)
        finally:
            stop.set()
            writer.join()
        assert index.refresh(paths=changed).indexed == 1
        assert index.search("omega", 1)[0].name == "omega"


def test_more_folders_than_can_be_watched_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError("OS file watch limit reached.")

    monkeypatch.setattr("watchfiles.watch", full)
    with CodeIndex.open(tmp_path, embedder=None) as index, pytest.raises(UsageError, match="max_user_watches"):
        next(watch(index, threading.Event()))


def _keep_writing(path: Path, stop: threading.Event) -> None:
    while not stop.wait(0.1):
        path.write_text("def omega(): pass\n")
