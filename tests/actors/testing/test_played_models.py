"""The plays of the LLM manager and of its streams: the real ones keep to the accounts, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callboard.actors.models import llm_manager
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.models.refusals import Refusals
from callboard.actors.models.token_ratios import TokenRatios
from callboard.actors.testing import played_streams
from callboard.actors.testing.__main__ import main
from callboard.actors.testing.played_models import Stage, play
from callboard.protocol.errors import FALLBACK_KINDS, ErrorKind
from callboard.providers.retry import Tries

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 300
#: Seeds within which each planted fault is found.
MOST_SEEDS = 600


def test_the_manager_keeps_what_it_promises() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_a_play_is_the_same_each_time() -> None:
    assert Stage(3).play() == Stage(3).play() == []
    one, other = Stage(5), Stage(5)
    one.play(), other.play()
    assert [str(each) for each in one.seen] == [str(each) for each in other.seen] != []


def test_the_command_plays_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plays", "models", "--seeds", "3"]) == 0
    assert "models: 3 plays, all as promised" in capsys.readouterr().out


def _without(name: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(LlmManager, name, lambda *_, **__: None)


def _looks_once(patch: Patch) -> None:
    patch.setattr(LlmManager, "_look_not_after", _once(LlmManager._look_not_after))


def _once(real: Any) -> Any:
    def look(self: Any, at: float) -> None:
        if not hasattr(self, "has_looked"):
            self.has_looked = True
            real(self, at)

    return look


def _another_model_is_the_first(patch: Patch) -> None:
    patch.setattr(llm_manager, "_from", lambda _model, routes: routes)


def _billing_ends_it(patch: Patch) -> None:
    patch.setattr(llm_manager, "FALLBACK_KINDS", FALLBACK_KINDS - {ErrorKind.BILLING})


def _never_gives_up(patch: Patch) -> None:
    patch.setattr(Tries, "failed", lambda self, error: 0.5)


def _believes_for_ever(patch: Patch) -> None:
    patch.setattr(Refusals, "forget_no_tools", lambda *_: None)


def _learns_all(patch: Patch) -> None:
    patch.setattr(TokenRatios, "learn", lambda self, name, used, _: self._ratios.update({name: used / 1_000}))


def _options_for_all(patch: Patch) -> None:
    patch.setattr(llm_manager, "_for_route", lambda _route, options: iter(options))


def _backlog_is_begun_at_once(patch: Patch) -> None:
    real = LlmManager.__init__

    def begun(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        self._has_read_backlog = True

    patch.setattr(LlmManager, "__init__", begun)


def _waits_for_no_room(patch: Patch) -> None:
    patch.setattr(llm_manager, "FULL_PAUSE_SECONDS", 0.05)


def _leaves_streams_open(patch: Patch) -> None:
    async def nothing(*_: Any) -> None: ...

    patch.setattr(llm_manager, "_close", nothing)


def _own_cancel_is_ours(patch: Patch) -> None:
    patch.setattr(llm_manager, "is_cancelled", lambda: True)


def _gives_no_turns(patch: Patch) -> None:
    patch.setattr(llm_manager, "TURN_EVENTS", 1_000_000)


def _one_context(patch: Patch) -> None:
    def start(loop: Any) -> Any:
        def begin(provider: Any, request: Any, emit: Any, end: Any, asker: Any) -> Any:
            task = loop.create_task(llm_manager.read_stream(provider, request, emit, end), context=asker)
            return llm_manager._Reading(loop, task)

        return begin

    patch.setattr(played_streams, "start_on", start)


def _waits_for_who_will_not_close(patch: Patch) -> None:
    patch.setattr(llm_manager._Reading, "cancel", lambda self: self.task.cancel())


PLANTED: dict[str, Callable[[Patch], None]] = {
    "the overdue are looked for once": _looks_once,
    "a call that is over is kept": _without("_drop"),
    "what is open is not released": _without("_release_all"),
    "void pieces are not called so": _without("_told_restart"),
    "nothing is noted": _without("_note"),
    "another model than the one that was named is asked": _another_model_is_the_first,
    "no other model for want of money": _billing_ends_it,
    "tries without end": _never_gives_up,
    "a model is believed to take no tools": _believes_for_ever,
    "each count is learned": _learns_all,
    "options of others are sent": _options_for_all,
    "a call that was given up is begun by the next manager": _backlog_is_begun_at_once,
    "who has no room waits longer": _waits_for_no_room,
    "streams are left open": _leaves_streams_open,
    "a provider's own cancel ends it without a word": _own_cancel_is_ours,
    "a long stream gives no turns": _gives_no_turns,
    "a provider runs in its asker's own context": _one_context,
    "a provider that does not close is waited for": _waits_for_who_will_not_close,
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str, monkeypatch: Patch) -> None:
    PLANTED[name](monkeypatch)

    def goes_wrong(seed: int) -> bool:
        try:
            return bool(play(seed))
        except Exception:  # noqa: BLE001 - whatever it raises is found
            return True

    assert any(goes_wrong(seed) for seed in range(MOST_SEEDS))
