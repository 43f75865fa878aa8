"""Words to search by that the model is asked for, in a whole runtime: what is searched, counted, shown and lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import RunTool
from callboard.actors.requests.replies import Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.commands import Outcome
from callboard.protocol.content import SystemMessage, ToolMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import CallPurpose, Error, FinishReason, ModelRequest, Usage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: The question has no word of the first file; of the second it has all.
FILES = {
    "transport.py": "def hail_conveyance(driver: str) -> str:\n    return driver.upper()\n",
    "taxi.py": "def order_taxi() -> None:\n    print('a taxi is ordered')\n",
}
QUESTION = "How is a taxi ordered?"
TURN, WORDS = CallPurpose.TURN, CallPurpose.SEARCH_WORDS


def asks_for_words(request: ModelRequest) -> bool:
    first = request.messages[0]
    return isinstance(first, SystemMessage) and first.text.startswith("You prepare a search")


class Model:
    """Searches as often as it is told to, and answers then; notes what it was asked and shown."""

    def __init__(self, words: ScriptedTurn, *searches: dict[str, Any]) -> None:
        self._words = words
        self._searches = list(searches or ({"queries": ["a taxi is ordered"]},))
        self.asked: list[ModelRequest] = []
        self.found: list[str] = []

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        if asks_for_words(request):
            self.asked.append(request)
            return self._words
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            self.found.append(last.content)
        if self._searches:
            calls = (ScriptedCall("request_code_context", self._searches.pop(0)),)
            return ScriptedTurn("let me look", calls=calls, usage=Usage(100, 10))
        return ScriptedTurn("So it is.", usage=Usage(100, 10))


def said(text: str, usage: Usage | None = None) -> ScriptedTurn:
    return ScriptedTurn(text, usage=usage or Usage(30, 7))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def settings_for(model: Callable[[ModelRequest], ScriptedTurn], workspace: Path, **more: Any) -> Settings:
    known: dict[str, Any] = {"expand_search": True, "embedding_model": "", **more}
    return Settings(model="scripted/m", script=model, workspace=workspace, **known)


def ask(model: Model, workspace: Path, **more: Any) -> Reply[Any]:
    with Runtime(settings_for(model, workspace, **more)) as runtime:
        return runtime.ask_sync(QUESTION)


def purposes(reply: Reply[Any]) -> list[CallPurpose]:
    return [step.purpose for step in reply.steps]


def test_the_words_are_searched_and_counted(workspace: Path) -> None:
    model = Model(said("1. `hail conveyance`\n- driver"))
    reply = ask(model, workspace)
    assert reply.text == "So it is."
    assert purposes(reply) == [TURN, WORDS, TURN]
    assert reply.usage == Usage(230, 27)
    assert reply.notes == ()
    assert "hail_conveyance" in model.found[0]
    (request,) = model.asked
    assert not request.tools
    told = request.messages[1].text  # type: ignore[union-attr]
    assert QUESTION in told
    assert "a taxi is ordered" in told
    assert [call.name for step in reply.steps for call in step.calls] == ["request_code_context"]
    assert len(reply.steps[0].calls) == 1, "they are the turn's"


def test_without_the_setting_nothing_is_asked(workspace: Path) -> None:
    model = Model(said("hail conveyance"))
    reply = ask(model, workspace, expand_search=False)
    assert purposes(reply) == [TURN, TURN]
    assert "hail_conveyance" not in model.found[0]
    assert Settings(model="scripted/m", script=model).expand_search is False


@pytest.mark.parametrize(
    "searches",
    [
        pytest.param([{"queries": ["taxi", "order a ride"]}], id="several queries"),
        pytest.param([{"queries": ["taxi"], "kinds": 3}, {"queries": ["taxi"]}], id="the second search"),
    ],
)
def test_a_model_that_says_it_in_several_ways_is_not_asked_and_none_is_asked_twice(
    workspace: Path, searches: list[dict[str, Any]]
) -> None:
    model = Model(said("hail conveyance"), *searches)
    reply = ask(model, workspace)
    assert len(model.asked) == len(searches) - 1
    assert purposes(reply).count(WORDS) == len(searches) - 1


def test_no_query_is_the_question(workspace: Path) -> None:
    model = Model(said("hail conveyance"), {})
    reply = ask(model, workspace)
    assert purposes(reply) == [TURN, WORDS, TURN]
    assert "hail_conveyance" in model.found[0]
    assert "order_taxi" in model.found[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (ScriptedTurn(error=Error(ErrorKind.BILLING, "no money")), "the model call failed (billing)"),
        (said(""), "the model wrote none"),
        (said("word " * 500), "the model wrote none"),
        (ScriptedTurn("I will not.", finish_reason=FinishReason.REFUSAL), "the model did not write them (refusal)"),
    ],
    ids=["failed", "empty", "an essay", "refused"],
)
def test_without_words_it_is_searched_all_the_same(workspace: Path, words: ScriptedTurn, why: str) -> None:
    model = Model(words)
    reply = ask(model, workspace)
    assert reply.text == "So it is."
    assert "order_taxi" in model.found[0]
    assert [note for note in reply.notes if "without further words" in note] == [
        f"It was searched without further words: {why}."
    ]


def test_a_budget_that_does_not_cover_it_is_not_spent_on_it(workspace: Path) -> None:
    with pytest.raises(RequestEnded) as ended:
        ask(Model(said("")), workspace, token_budget=1_000)
    needed = re.search(r"needs about (\d+) input", str(ended.value))
    assert needed is not None
    model = Model(said("hail conveyance"))
    reply = ask(model, workspace, token_budget=int(needed[1]) + 1_500)  # the words may take 2,000
    assert purposes(reply) == [TURN, TURN]
    assert reply.text == "So it is."
    assert ask(model, workspace, token_budget=int(needed[1]) + 4_000).text == "So it is."


def test_words_that_do_not_come_in_time_are_not_waited_for(workspace: Path) -> None:
    model = Model(ScriptedTurn("hail conveyance", first_delay_seconds=60.0))
    reply = ask(model, workspace, request_timeout_seconds=8.0)
    assert reply.text == "So it is."
    assert "without further words" in " ".join(reply.notes)


async def test_a_request_that_is_cancelled_meanwhile_ends_and_keeps_what_was_said(workspace: Path) -> None:
    model = Model(ScriptedTurn("hail conveyance", first_delay_seconds=60.0))
    async with Runtime(settings_for(model, workspace)) as runtime:
        asking = asyncio.create_task(runtime.ask(QUESTION, request_id="q"))
        async with asyncio.timeout(20):
            while not model.asked:  # noqa: ASYNC110 - the scripted model sets no event of this loop
                await asyncio.sleep(0.01)
        runtime.cancel("q")
        with pytest.raises(RequestEnded) as ended:
            await asking
    assert ended.value.reply.outcome is Outcome.CANCELLED
    assert ended.value.reply.text == "let me look"
    assert model.found == []


async def test_a_reader_is_shown_the_words_with_the_call_and_not_as_text(workspace: Path) -> None:
    model = Model(said("hail conveyance\ndriver"))
    async with Runtime(settings_for(model, workspace)) as runtime:
        items = [item async for item in runtime.stream(QUESTION)]
    (run,) = [item for item in items if isinstance(item, RunTool)]
    assert run.search_words == ("hail conveyance", "driver")
    assert "conveyance" not in "".join(getattr(item, "text", "") for item in items)


def test_the_offline_model_is_not_asked(workspace: Path) -> None:
    with Runtime(Settings(model="offline/code-context", workspace=workspace, expand_search=True)) as runtime:
        reply = runtime.ask_sync(QUESTION)
    assert WORDS not in purposes(reply)
    assert "taxi.py" in reply.text
