"""A reload of several tenants counts for all of them or for none; tenants that share files are warned of."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from pathlib import Path

import pytest

from callboard import RuntimeFailure, UsageError
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_settings import read_plan
from callboard.actors.daemon.reloads import reload_daemon

TOOL = """from callboard import tool

@tool(risk="read")
def {name}() -> str:
    "Look."
    return "seen"
"""


def write_config(folder: Path, instructions: str, *, more: str = "") -> Path:
    path = folder / "callboard.toml"
    path.write_text(
        f'[default]\nstate_dir = "{folder / "state"}"\ninstructions = "{instructions}"\n'
        f'[tenants.ann]\ntools = ["ann_tools.py"]\n{more}\n[tenants.bob]\n'
    )
    path.chmod(0o600)
    (folder / "ann_tools.py").write_text(TOOL.format(name=f"look_{instructions}"))
    return path


async def test_a_tenant_that_cannot_be_reloaded_leaves_the_others_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(lambda: read_plan(write_config(tmp_path, "before")))
    ann, bob = daemon.tenants
    reload = bob.runtime.reload

    async def fails(*_: object) -> None:
        raise RuntimeFailure("no more threads")

    def names() -> list[str]:
        return [each.definition.name for each in ann.runtime.tools() if each.definition.name.startswith("look")]

    daemon.read_plan = lambda: read_plan(write_config(tmp_path, "after"))
    monkeypatch.setattr(bob.runtime, "reload", fails)
    async with ann.runtime, bob.runtime:
        assert names() == ["look_before"]
        with pytest.raises(RuntimeFailure, match="no more threads"):
            await reload_daemon(daemon)
        assert (ann.runtime.settings.instructions, names()) == ("before", ["look_before"])
        assert ann.plan.settings.instructions == daemon.plan.tenants[0].settings.instructions == "before"
        monkeypatch.setattr(bob.runtime, "reload", reload)
        daemon.tokens.path.write_text("no tokens")
        daemon.tokens.path.chmod(0o600)
        with pytest.raises(UsageError, match="holds no tokens of callboard"):
            await reload_daemon(daemon)
        assert (ann.runtime.settings.instructions, bob.runtime.settings.instructions) == ("before", "before")
        daemon.tokens.path.unlink()
        await reload_daemon(daemon)
        assert (ann.runtime.settings.instructions, names()) == ("after", ["look_after"])


@pytest.mark.parametrize(("workspace", "shares"), [("inside", True), ("../beside", False)])
async def test_tenants_with_files_in_common_are_warned_of(
    workspace: str, shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    for each in (here, here / "inside", tmp_path / "beside"):
        each.mkdir()
    monkeypatch.chdir(here)
    path = write_config(here, "before", more=f'workspace = "{here / workspace}"')
    daemon = Daemon(lambda: read_plan(path))
    with caplog.at_level(logging.WARNING, "callboard.daemon"):
        await daemon.tenants.start()
        await daemon.tenants.stop()
    assert ("a workspace in common" in caplog.text) is shares


async def test_what_the_files_of_earlier_reloads_have_made_is_let_go(tmp_path: Path) -> None:
    before = set(sys.modules)
    daemon = Daemon(lambda: read_plan(write_config(tmp_path, "first")))
    ann, bob = daemon.tenants

    def modules() -> list[str]:
        return [name for name in sys.modules if name.startswith("callboard_ann_") and name not in before]

    async with ann.runtime, bob.runtime:
        gone = [weakref.ref(each) for each in ann.tools]
        for said in ("second", "third"):
            daemon.read_plan = lambda: read_plan(write_config(tmp_path, said))  # noqa: B023
            await reload_daemon(daemon)
        kept = modules()
        daemon.tokens.path.write_text("no tokens")
        daemon.tokens.path.chmod(0o600)
        with pytest.raises(UsageError, match="holds no tokens of callboard"):
            await reload_daemon(daemon)
        assert modules() == kept == [each.function.__module__ for each in ann.tools]
        assert [each.definition.name for each in ann.runtime.offered() if "look_" in each.definition.name] == [
            "look_third"
        ]
        gc.collect()
        assert not any(each() for each in gone)
