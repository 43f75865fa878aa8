"""Grammars by their wheels: what is compared before one is loaded, and what serves where it may not be."""

import configparser
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import semble_grammars
import tree_sitter

from callboard.actors.index import CodeIndex, grammars, languages
from callboard.actors.index.grammars import MANIFESTS, PROJECT_WHEELS, NoGrammarError, grammar_for
from callboard.actors.index.parsing import JOB_FILES, parse_parallel
from callboard.actors.index.records import FileStat, ParsedFile
from callboard.actors.index.references import NameUse, references
from callboard.actors.index.symbols import grammar_of
from callboard.actors.policy import shell_grammar

ROOT = Path(__file__).parents[3]
WHEEL = Path(semble_grammars.__file__).parent
TEXT = "def measure_glacier():\n    return thickness\n"


def forget() -> None:
    for cached in (grammar_for, grammar_of, shell_grammar._parser):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home and a folder for temporary files of the test, and nothing loaded or said before."""
    folder = tmp_path / "home"
    for path in (folder, tmp_path / "tmp"):
        path.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(grammars, "_SAID", {})
    forget()
    yield folder
    forget()


def unpacked(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def parses(language: tree_sitter.Language) -> bool:
    return not tree_sitter.Parser(language).parse(TEXT.encode()).root_node.has_error


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def copied_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """semble-grammars in another folder, where a test may change it. The folder of its manifest."""
    shutil.copytree(WHEEL, folder / "semble_grammars")
    without_module = {name for name in sys.modules if name.partition(".")[0] == "semble_grammars"}
    for name in without_module:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    return next((folder / "semble_grammars").glob("grammars/*/manifest.json")).parent


def index_of(folder: Path) -> CodeIndex:
    folder.mkdir()
    (folder / "a.py").write_text(TEXT)
    index = CodeIndex.open(folder)
    index.refresh()
    return index


def test_the_bundle_has_every_language_and_its_libraries_are_unpacked_once(home: Path) -> None:
    manifest = json.loads(next(WHEEL.glob("grammars/*/manifest.json")).read_text())
    assert {each.name for each in languages.LANGUAGES if each.query} <= manifest["languages"].keys()
    assert parses(grammar_for("python"))
    (library,) = unpacked(home)
    before = library.stat()
    forget()
    assert parses(grammar_for("python"))
    assert (library.stat().st_ino, library.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert grammars.warnings() == []


def test_a_damaged_library_is_not_loaded_but_unpacked_again(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    grammar_for("python")
    (library,) = unpacked(home)
    whole = library.read_bytes()
    for content in (whole[:200_000] + bytes([whole[200_000] ^ 1]) + whole[200_001:], whole[:100], b""):
        damaged = library.with_name("damaged")
        # Another file in its place: this process has the first one loaded, and must not lose it.
        damaged.write_bytes(content)
        damaged.replace(library)
        forget()
        assert parses(grammar_for("python"))
        assert library.read_bytes() == whole
    assert caplog.messages == [f"{library} was damaged or replaced, and is unpacked again"]


def test_a_home_that_cannot_be_written_has_them_among_the_temporary_files(home: Path, tmp_path: Path) -> None:
    (home / ".cache").write_text("a file, where a folder should be")
    assert parses(grammar_for("python"))
    (library,) = unpacked(tmp_path / "tmp")
    assert library.parents[1].stat().st_mode & 0o777 == 0o700


def test_a_folder_of_temporary_files_that_others_may_write_is_not_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".cache").write_text("a file, where a folder should be")
    grammar_for("python")
    shared = unpacked(tmp_path / "tmp")[0].parents[1]
    shared.chmod(0o777)
    forget()
    assert parses(grammar_for("python"))  # by its own wheel
    (said,) = grammars.warnings()
    assert f"{shared} is not a folder that this user alone may write" in said


def test_a_release_that_is_not_known_is_not_loaded(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied_wheel(tmp_path / "site", monkeypatch)
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + "\n")
    for language in PROJECT_WHEELS:
        assert grammar_for(language) is not None
    assert unpacked(tmp_path) == []
    (said,) = caplog.messages
    assert "does not know (it knows 0.1.2), and is not used; install semble-grammars==0.1.2" in said
    with pytest.raises(NoGrammarError, match="a wheel of its own for swift is not installed"):
        grammar_for("swift")


def test_what_processes_that_parse_have_to_say_is_in_the_log_of_their_caller_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copied_wheel(tmp_path / "site", monkeypatch)
    (folder / "manifest.json").write_text("{}")
    (tmp_path / "a.py").write_text(TEXT)
    size = len(TEXT)
    jobs = [(FileStat(str(tmp_path / "a.py"), str(tmp_path), size, 0), b"") for _ in range(JOB_FILES + 1)]
    found = list(parse_parallel(jobs, 2))
    assert len(found) == len(jobs)
    assert all(isinstance(outcome, ParsedFile) and len(outcome.symbols) == 2 for _, outcome in found)
    (said,) = caplog.messages
    assert "of a release of semble-grammars that this callboard does not know" in said
    assert capfd.readouterr().err == ""


def test_a_damaged_archive_is_not_loaded(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied_wheel(tmp_path / "site", monkeypatch)
    archive = bytearray((folder / "bundle.tar.gz").read_bytes())
    archive[60_000:60_100] = bytes(100)
    (folder / "bundle.tar.gz").write_bytes(archive)
    assert parses(grammar_for("python"))
    assert unpacked(tmp_path) == []
    (said,) = grammars.warnings()
    assert said.startswith("a grammar cannot be used: ")


def test_without_any_grammar_files_are_found_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch, "semble_grammars", "tree_sitter_python")
    with caplog.at_level(logging.WARNING), index_of(tmp_path / "workspace") as index:
        (hit,) = index.search("measure glacier", k=3)
        assert (Path(hit.path).name, hit.start_line) == ("a.py", 1)
        (tmp_path / "workspace" / "b.py").write_text(TEXT)
        index.refresh()
        assert len(index.search("measure glacier", k=3)) == 2
    (said,) = caplog.messages
    assert said.startswith(
        "python files are indexed as text, without symbols (semble-grammars is not installed; tree_sitter_python is "
        "not installed): their grammar needs the extra 'grammars'; in the clone of callboard, type: pip install"
    )


def test_files_that_had_no_grammar_are_read_again_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a.py", TEXT), ("b.rs", "fn drill() {}\n")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))
    with monkeypatch.context() as patch:
        without(patch, "semble_grammars", "tree_sitter_python")
        with CodeIndex.open(tmp_path, embedder=None) as before:
            assert before.refresh().indexed == 2
            assert (before.symbols(name="measure_glacier"), len(before.symbols(name="drill"))) == ([], 1)
            assert before.refresh().unchanged == 2  # there is still none
    forget()
    with CodeIndex.open(tmp_path, embedder=None) as after:
        summary = after.refresh()
        assert (summary.indexed, summary.unchanged) == (1, 1)
        assert len(after.symbols(name="measure_glacier")) == 1
        assert [hit.name for hit in after.search("measure glacier", k=3)] == ["measure_glacier"]
        assert after.refresh().unchanged == 2


def test_without_a_grammar_a_name_is_found_as_a_whole_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "semble_grammars", "tree_sitter_python")
    path = tmp_path / "a.py"
    path.write_text("def measure():\n    return measured\n# measure\n")
    found = [each for each in references([str(path)], "measure", frozenset(), lambda: False) if each is not None]
    assert [(each.line, each.usages) for each in found] == [(1, (NameUse.TEXT,)), (3, (NameUse.TEXT,))]


def test_a_grammar_that_does_not_fit_the_queries_is_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another version, with other names of nodes: here, of another language."""
    without(monkeypatch, "semble_grammars")
    monkeypatch.setitem(grammars.PROJECT_WHEELS, "rust", ("tree_sitter_python", "language"))
    assert grammar_of(languages.by_name("rust")) is None
    (said,) = caplog.messages
    assert "the queries do not fit the installed grammar" in said


def test_lines_of_shell_are_read_by_either_wheel_and_by_none_without_a_word_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert shell_grammar.read_line("ls -l").unclear == ""
    without(monkeypatch, "semble_grammars")
    forget()
    assert shell_grammar.read_line("ls -l").unclear == ""
    without(monkeypatch, "tree_sitter_bash")
    forget()
    assert "which is not installed" in shell_grammar.read_line("ls -l").unclear
    assert caplog.messages == []


def test_setup_cfg_allows_the_known_releases_only_and_names_each_wheel() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    assert {release.partition(" ")[0] for release in MANIFESTS.values()} == {"0.1.2"}
    assert "\nsemble-grammars >=0.1.2, <0.1.3\n" in extras["index"]
    named = {line.partition(" ")[0] for line in extras["grammars"].split("\n") if line.startswith("tree-sitter-")}
    assert named == {module.replace("_", "-") for module, _ in PROJECT_WHEELS.values()}
