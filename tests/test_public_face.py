"""The public face: what each package exports, name by name. A name that comes or goes is a decision, made here too."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from support.imports import imports

FRONT = """
    AnthropicOptions Approval AskApproval AskOptions Audio BedrockOptions CallAnswer CallReport CallResult
    CallResults CallboardError Catalog ClientTool CodeFence Compaction Connection Conversation Decision Deferred
    Document ErrorKind Followed FollowerTooSlow GeminiOptions Image
    MalformedFence McpServer Metrics Mode ModelCallFailed ModelInfo OpenAIOptions OpenRequest OpenRouterOptions
    OpenState Origin Outcome OutcomeUnknown Output PartialOutput PendingCall Policy Prices Proposal ProposalState Reply
    RequestEnded RequestLogFilter Risk Rule RunTool Runtime RuntimeFailure Sampling Settings StepReport Stream
    SyncStream TextDelta Tool ToolCallCompleted ToolCallDeferred ToolCallFailed ToolContext ToolError ToolProgressed
    Trust UsageError UserQuestion Video __version__ ask_sync freeze_support json_schema stream_sync tool
"""
FACES = {
    "callboard": FRONT,
    "callboard.actors": FRONT,
    "callboard.actors.builtins": """
        Workspace builtin_tools
    """,
    "callboard.actors.index": """
        CodeIndex EdgeRow Hit IndexWriteError Progress RefreshSummary assemble
    """,
    "callboard.actors.kernel": """
        Actor ActorCrashed ActorDeadError ActorInfo ActorSystem AskOnLoopError AskTimeout Asks Backoff Budget ChildSpec
        DeadLetter DeadLetterReason DeadLetters DeadlockError DependencyLost Down ExitReason Held History
        IntensityExceeded KernelError LoopScheduler MailboxFull Monitor NameTaken NoSuchActor NotSpawned OutOfThreads
        Ref Rejected Restart Scheduler StartFailed Statistics Strategy Supervisor SupervisorMessage Timer
        Watchdog ask_pykka children_of handles logger_of restart_child start_child start_thread stop_child
    """,
    "callboard.actors.tools": """
        Tool ToolContext tool
    """,
    "callboard.protocol.testing": """
        INVARIANTS STANDARD_TOOLS Crashed Driver Entry ModelDoes PersonDoes PlannedCall PlannedTurn Scenario ToolDoes
        ToolsDied Trace Verb Violation World assert_replays check_provider_adapter check_tool drive replay
        replay_recorded shrink simulate violations
    """,
    "callboard.providers": """
        Adapter Decoder Provider ResponseBuilder WireRequest adapter_for build_response
    """,
}


@pytest.mark.parametrize("name", FACES)
def test_a_package_exports_these_names_and_no_others(name: str) -> None:
    package = import_module(name)
    assert sorted(package.__all__) == sorted(FACES[name].split())
    assert [each for each in package.__all__ if getattr(package, each, None) is None] == []


@pytest.mark.parametrize("name", [name for name in FACES if name != "callboard.actors"])
def test_what_a_type_checker_sees_is_what_is_loaded(name: str) -> None:
    package = import_module(name)
    seen = seen_by_a_type_checker(package)
    assert {each for each in seen if getattr(package, each) is not getattr(import_module(seen[each]), each)} == set()
    assert set(package.__all__) - {"__version__"} - set(seen) == set()


def seen_by_a_type_checker(package: ModuleType) -> dict[str, str]:
    """Name -> module, by the imports at the top of the file or under `if TYPE_CHECKING:`."""
    found = imports(Path(str(package.__file__)).resolve())
    return {each.name: each.module for each in found if not each.function and each.module.startswith("callboard.")}


def test_the_names_of_callboard_actors_are_those_of_the_front_door() -> None:
    front, actors = import_module("callboard"), import_module("callboard.actors")
    assert [name for name in front.__all__ if getattr(front, name) is not getattr(actors, name)] == []


@pytest.mark.parametrize("name", FACES)
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"module '{name}' has no attribute 'Nothing'"):
        _ = import_module(name).Nothing


def test_a_hit_has_these_fields_in_this_order() -> None:
    names = list(import_module("callboard.actors.index").Hit.__struct_fields__)
    assert names[:8] == ["path", "start_byte", "end_byte", "start_line", "end_line", "score", "name", "canonical_path"]
