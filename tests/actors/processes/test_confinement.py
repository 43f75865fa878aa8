"""The table of confinement, and what this machine has for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from callboard import Runtime, Settings, UsageError, tool
from callboard.actors.processes import keeper
from callboard.actors.processes.confinement import (
    RIGHTS,
    Confine,
    KernelSupport,
    check_hosts,
    confinement_of,
    kernel_support,
    what_is_missing,
)
from callboard.actors.processes.keeper import about_confinement, check_confinement, containment, masks_secrets
from callboard.protocol.tools import Isolation, Risk, ToolContract

KERNEL = KernelSupport(7, seccomp=True)


@pytest.mark.parametrize(
    ("risk", "told"),
    [
        (Risk.READ, "reads /ws; no network"),
        (Risk.NETWORK, "reads /ws; any host"),
        (Risk.WRITE, "reads and writes /ws; no network"),
        (Risk.EXECUTE, "reads and writes /ws; runs programs; any host"),
        (Risk.UNDECLARED, "not confined: its author declared no risk"),
    ],
)
def test_what_each_risk_allows(risk: Risk, told: str) -> None:
    assert str(confinement_of(ToolContract(risk), KERNEL, workspace="/ws")) == told
    assert set(RIGHTS) == set(Risk) - {Risk.UNDECLARED}


def test_why_a_tool_is_not_confined() -> None:
    contract = ToolContract(Risk.READ)
    assert "isolation=thread" in str(confinement_of(replace(contract, isolation=Isolation.THREAD), KERNEL))
    assert str(confinement_of(contract, KERNEL, Confine.OFF)) == "not confined: confine is off"
    assert "has not Landlock" in str(confinement_of(contract, KernelSupport(0, seccomp=True)))
    assert "a seccomp filter" in str(confinement_of(contract, KernelSupport(7, seccomp=False)))


def test_paths_are_below_the_workspace_unless_they_are_absolute(tmp_path: Path) -> None:
    contract = ToolContract(Risk.READ, paths=("data", "/srv/shared", "data"))
    assert confinement_of(contract, KERNEL, workspace=tmp_path).paths == (
        str(tmp_path.resolve() / "data"),
        "/srv/shared",
    )
    assert confinement_of(ToolContract(Risk.READ), KERNEL).paths == ()
    assert "no files of yours" in str(confinement_of(ToolContract(Risk.READ), KERNEL))


def test_hosts_that_are_not_enforced_are_named_so_and_refused_where_confinement_is_required() -> None:
    contract = ToolContract(Risk.NETWORK, hosts=("api.example.com",))
    held_to = confinement_of(contract, KERNEL)
    assert "hosts=api.example.com is not enforced" in str(held_to)
    check_hosts("look", held_to, Confine.AUTO)
    with pytest.raises(UsageError, match="declares hosts"):
        check_hosts("look", held_to, Confine.REQUIRED)


def test_what_required_misses() -> None:
    assert what_is_missing(KERNEL, mounts=True, why_no_mounts="") == ""
    assert "Landlock" in what_is_missing(KernelSupport(0, seccomp=True), mounts=True, why_no_mounts="")
    assert "version 3 of Landlock (it has 2)" in what_is_missing(KernelSupport(2, seccomp=True), True, "")
    assert "(refused)" in what_is_missing(KERNEL, mounts=False, why_no_mounts="refused")


def test_a_runtime_that_requires_confinement_is_not_made_where_the_kernel_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "kernel_support", lambda: KernelSupport(0, seccomp=True))
    with pytest.raises(UsageError, match=r"confine='required', but this machine has not Landlock"):
        Runtime(Settings(confine="required"))
    check_confinement(Confine.AUTO)
    assert not masks_secrets()
    assert "not confined" in about_confinement(Confine.AUTO)


def test_a_bad_value_of_confine_is_refused() -> None:
    with pytest.raises(UsageError, match="confine"):
        Settings(confine="sometimes")


@pytest.mark.skipif(bool(kernel_support().lacks), reason="this kernel cannot")
async def test_a_listing_says_what_confines_each_tool(tmp_path: Path) -> None:
    @tool(risk="write", name="put")
    def put(text: str) -> str:
        return text

    @tool(name="bare")
    def bare(text: str) -> str:
        return text

    where = str(tmp_path.resolve())  # noqa: ASYNC240 - one look at a folder, before anything runs
    async with Runtime(Settings(workspace=tmp_path, confine="auto"), tools=[put, bare]) as runtime:
        held_to = {offer.definition.name: offer.confinement for offer in runtime.tools()}
    assert held_to["put"] == f"reads and writes {where}; no network"
    assert held_to["bare"] == "not confined: its author declared no risk"
    assert held_to["read_file"].startswith("reads ")


def test_what_doctor_says_is_what_this_machine_has() -> None:
    said = about_confinement(Confine.AUTO)
    assert str(kernel_support()) in said
    assert ("secret files are covered" in said) == (containment().mounts and not kernel_support().lacks)
    assert "hosts=[...] of a tool is NOT enforced" in said or kernel_support().lacks
    off = about_confinement(Confine.OFF)
    assert "confine is off" in off
    assert "commands are asked about" in off


def test_a_trial_that_does_not_end_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TRY_SECONDS", 0.001)
    found = containment.__wrapped__()  # not what was found before
    assert not found.mounts
    assert "timed out" in found.why_not or "namespaces" in found.why_not
