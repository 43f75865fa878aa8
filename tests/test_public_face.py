"""The public face: what each package exports, name by name. A name that comes or goes is a decision, made here too."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FACES = {
    "callboard.actors": """
        Conversation ModelCallFailed Reply RequestEnded Runtime Settings Stream Tool ToolContext tool
    """,
    "callboard.actors.index": """
        CodeIndex EdgeRow FileMetadata Hit Progress RefreshSummary assemble
    """,
    "callboard.actors.kernel": """
        Actor ActorCrashed ActorDeadError ActorInfo ActorSystem AskOnLoopError AskTimeout Asks Backoff ChildSpec
        DeadLetter DeadLetterReason DeadLetters DeadlockError Down ExitReason Held IntensityExceeded
        KernelError LoopScheduler MailboxFull Monitor NameTaken NoSuchActor NotSpawned Overflow Ref Rejected
        Restart Scheduler SimulatedScheduler StartFailed Statistics Strategy Supervisor Timer Watchdog children_of
        handles start_child stop_child
    """,
    "callboard.actors.tools": """
        Tool ToolContext tool workspace_tools
    """,
    "callboard.protocol.testing": """
        INVARIANTS STANDARD_TOOLS Entry ModelDoes PersonDoes PlannedCall PlannedTurn Scenario ToolDoes Trace
        Verb Violation check_provider_adapter check_tool drive replay shrink simulate violations
    """,
    "callboard.providers": """
        Adapter Decoder Provider ResponseBuilder WireRequest adapter_for build_response
    """,
}
#: Packages whose names are loaded when first used, by a table.
LAZY = [name for name in FACES if hasattr(import_module(name), "_MODULES")]


@pytest.mark.parametrize("name", FACES)
def test_a_package_exports_these_names_and_no_others(name: str) -> None:
    package = import_module(name)
    assert sorted(package.__all__) == sorted(FACES[name].split())
    assert [each for each in package.__all__ if getattr(package, each, None) is None] == []


@pytest.mark.parametrize("name", LAZY)
def test_what_a_type_checker_sees_is_what_is_loaded(name: str) -> None:
    package = import_module(name)
    loaded = {each: f"{name}.{module}" for each, module in package._MODULES.items()}
    assert loaded == seen_by_a_type_checker(package)
    assert sorted(loaded) == sorted(package.__all__)


def seen_by_a_type_checker(package: ModuleType) -> dict[str, str]:
    """Name -> module, by the imports under `if TYPE_CHECKING:`."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    (block,) = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'callboard.actors' has no attribute 'Nothing'"):
        _ = import_module("callboard.actors").Nothing
