"""What is loaded when it is first used: the tables agree with what type checkers see, and a fault is told as it is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.imports import SOURCES, imports, module_of, name, parsed

from callboard.protocol.lazy_loading import lazy_module, lazy_names, lazy_pattern


def calls_of(function: str, path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def names_of(path: Path) -> dict[str, str]:
    """Name -> module, by the table that a package gives `lazy_names`."""
    found: dict[str, str] = {}
    for call in calls_of("lazy_names", path):
        homes = ast.literal_eval(call.args[1])
        found |= {each: module for module, names in homes.items() for each in names}
    return found


def modules_of(path: Path) -> dict[str, str]:
    """Name -> module, by `name = lazy_module("module")`."""
    text = path.read_text()
    return {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value.args[0])
        for node in ast.walk(ast.parse(text if "lazy_module" in text else ""))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "lazy_module"
    }


def for_types(path: Path) -> dict[str, str]:
    return {each.name: each.module for each in imports(path) if each.for_types}


PACKAGES = [path for path in SOURCES if path.name == "__init__.py" and "lazy_names(" in path.read_text()]
#: Says that its names are those of `callboard`, all of them.
ALIAS = "actors/__init__.py"


def test_all_packages_with_such_names_are_looked_at() -> None:
    assert {name(path) for path in PACKAGES} == {
        "actors/__init__.py",
        "actors/front/__init__.py",
        "actors/index/__init__.py",
        "protocol/testing/__init__.py",
        "providers/__init__.py",
    }


@pytest.mark.parametrize("path", [path for path in PACKAGES if name(path) != ALIAS], ids=name)
def test_a_type_checker_sees_the_names_of_the_table(path: Path) -> None:
    assert names_of(path) == for_types(path)
    assert names_of(path) != {}


def test_a_type_checker_sees_the_modules_that_are_loaded_later() -> None:
    wrong = {}
    for path in SOURCES:
        loaded_later = modules_of(path)
        seen = for_types(path) if loaded_later else {}
        for lazy, module in loaded_later.items():
            if seen.get(lazy) not in (module, module.rpartition(".")[0]):  # `from email import utils` says "email"
                wrong[f"{name(path)}: {lazy}"] = seen.get(lazy)
    assert wrong == {}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of one whole module, one that fails as it is loaded, and one that needs what is not installed."""
    folder = tmp_path / "lazy_sample"
    folder.mkdir()
    (folder / "whole.py").write_text("loads = []\nThing = object()\n")
    (folder / "broken.py").write_text("import re\n\n\nclass Broken(re.Missing):\n    pass\n")
    (folder / "wanting.py").write_text("import callboard_wants_this\n")
    homes = {"lazy_sample.whole": ["Thing"], "lazy_sample.broken": ["Broken"], "lazy_sample.wanting": ["Wanting"]}
    (folder / "__init__.py").write_text(
        "from callboard.protocol.lazy_loading import lazy_names\n"
        f"__getattr__ = lazy_names(__name__, {homes!r}, extra='watch')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for loaded in [each for each in sys.modules if each.startswith("lazy_sample")]:
        monkeypatch.delitem(sys.modules, loaded)
    import lazy_sample  # type: ignore[import-not-found]  # noqa: PLC0415 - it is made here

    found: ModuleType = lazy_sample
    return found


def test_a_name_is_looked_up_once_and_is_the_modules_own(package: ModuleType) -> None:
    assert "lazy_sample.whole" not in sys.modules
    thing = package.Thing
    assert thing is sys.modules["lazy_sample.whole"].Thing
    assert vars(package)["Thing"] is thing
    assert "lazy_sample.broken" not in sys.modules


def test_an_attribute_error_from_inside_an_import_is_an_import_error_that_says_so(package: ModuleType) -> None:
    said = "lazy_sample.broken cannot be imported: AttributeError: module 're' has no attribute 'Missing'"
    with pytest.raises(ImportError) as caught:
        _ = package.Broken
    assert str(caught.value) == said
    assert isinstance(caught.value.__cause__, AttributeError)
    assert caught.value.name == "lazy_sample.broken"
    with pytest.raises(ImportError, match=re.escape(said)):
        from lazy_sample import Broken  # noqa: F401, PLC0415 - as a user writes it
    with pytest.raises(ImportError, match=re.escape(said)):
        _ = lazy_module("lazy_sample.broken").Broken


def test_a_missing_extra_is_named(package: ModuleType) -> None:
    with pytest.raises(
        ImportError, match=r"^Wanting \(No module named 'callboard_wants_this'\) needs the extra 'watch'"
    ):
        _ = package.Wanting


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"^module 'lazy_sample' has no attribute 'Nothing'$"):
        _ = package.Nothing
    assert not hasattr(package, "__path_of_nothing__")


def test_a_missing_module_without_an_extra_is_itself() -> None:
    load = lazy_names("callboard", {"callboard_wants_this": ["Thing"]})
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'callboard_wants_this'$"):
        load("Thing")


@pytest.mark.fresh_interpreter
def test_a_broken_dependency_is_named_where_a_name_of_callboard_is_asked_for() -> None:
    """It said that callboard has no Runtime."""
    code = "import pykka\ndel pykka.Timeout\nfrom callboard import Runtime\n"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = "ImportError: callboard.actors.runtime cannot be imported: AttributeError: module 'pykka' has no attribute "
    assert ran.stderr.splitlines()[-1] == f"{last}'Timeout'"
    assert "kernel/errors.py" in ran.stderr
    assert "cannot import name" not in ran.stderr


def test_a_module_is_loaded_by_its_first_name(package: ModuleType) -> None:
    module = lazy_module("lazy_sample.whole")
    assert "lazy_sample.whole" not in sys.modules
    assert module.Thing is sys.modules["lazy_sample.whole"].Thing
    with pytest.raises(AttributeError, match="Nothing"):
        _ = module.Nothing


def test_a_pattern_does_what_the_compiled_one_does() -> None:
    lazy = lazy_pattern(rb"(a+)b", re.IGNORECASE)
    assert lazy.pattern == rb"(a+)b"
    assert [each.span() for each in lazy.finditer(b"AAb ab")] == [(0, 3), (4, 6)]
    with pytest.raises(re.error):
        lazy_pattern("(").match("")


def test_all_patterns_of_the_product_compile() -> None:
    """A fault in one is found here, and not by the first text that it is for. Asking for `pattern` compiles it."""
    for path in SOURCES:
        if "lazy_pattern(" not in path.read_text() or path.name == "lazy_loading.py":
            continue
        module = sys.modules.get(module_of(path)) or __import__(module_of(path), fromlist=["_"])
        patterns = [each for each in patterns_in(vars(module)) if type(each).__name__ == "_Lazy"]
        assert patterns, name(path)
        assert [each.pattern for each in patterns if not each.pattern] == []


def patterns_in(value: object, depth: int = 3) -> Iterator[re.Pattern[bytes]]:
    """Those of a module, in its tables too."""
    if hasattr(type(value), "__slots__") and type(value).__name__ == "_Lazy" and hasattr(value, "finditer"):
        yield value  # type: ignore[misc]
    elif isinstance(value, dict | tuple) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(each, depth - 1)
