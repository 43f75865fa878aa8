"""`callboard chat --url`, against a real daemon in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.conditions import wait_until
from support.running_daemon import TOKEN, RunningDaemon
from support.scripted_daemon import scripted_daemon
from support.tcp_proxy import TcpProxy

from callboard import Approval, AskApproval, RuntimeFailure, RunTool, TextDelta, ToolCallCompleted, UsageError
from callboard.actors.cli.chat_partner import AnswerEnded
from callboard.actors.cli.daemon_client import DaemonPartner
from callboard.protocol.model import Restarted


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with scripted_daemon(tmp_path_factory.mktemp("chat")) as found:
        yield found


class Person:
    """Approves what it is asked about, and keeps what it was shown."""

    def __init__(self) -> None:
        self.questions: list[AskApproval] = []
        self.remarks: list[str] = []
        self.items: list[object] = []

    async def approve(self, question: AskApproval) -> Approval:
        self.questions.append(question)
        return Approval.ONCE

    def ask(self, url: str, *prompts: str, on_item: Callable[[object], object] = lambda _: None) -> str:
        """The text of all answers."""

        async def asked() -> None:
            async with DaemonPartner(url, TOKEN, self.approve, self.remarks.append) as partner:
                await partner.check()
                for prompt in prompts:
                    async with aclosing(partner.ask(prompt)) as items:
                        async for item in items:
                            self.items.append(item)
                            await asyncio.to_thread(on_item, item)

        asyncio.run(asyncio.wait_for(asked(), 60))
        return "".join(item.text for item in self.items if isinstance(item, TextDelta))


def test_text_tool_and_tokens(daemon: RunningDaemon) -> None:
    person = Person()
    assert "quick" in person.ask(daemon.url, "call quick")
    kinds = Counter(type(item) for item in person.items)
    assert kinds[RunTool] == kinds[ToolCallCompleted] == kinds[AnswerEnded] == 1
    ended = person.items[-1]
    assert isinstance(ended, AnswerEnded)
    assert (ended.input_tokens, ended.output_tokens, ended.error) == (20, 10, "")


def test_the_second_question_belongs_to_the_conversation_of_the_first(daemon: RunningDaemon) -> None:
    Person().ask(daemon.url, "one", "two")
    newest = daemon.get("/api/conversations").json()["conversations"][0]
    messages = str(daemon.get(f"/api/conversations/{newest['id']}").json())
    assert "you said one" in messages
    assert "you said two" in messages


def test_an_approval_is_asked_here_and_answered_there(daemon: RunningDaemon) -> None:
    person = Person()
    assert "did it" in person.ask(daemon.url, 'call dangerous {"what": "it"}')
    (question,) = person.questions
    assert (question.name, question.risk) == ("dangerous", "execute")
    assert '"it"' in question.arguments
    assert daemon.get("/api/approvals").json()["approvals"] == []


def test_leaving_an_answer_cancels_its_request(daemon: RunningDaemon) -> None:
    class Leaves(Exception):
        pass

    def leave(item: object) -> None:
        if isinstance(item, RunTool):
            raise Leaves(item.tag.request_id)

    with pytest.raises(Leaves) as left:
        Person().ask(daemon.url, "call sleeps", on_item=leave)
    path = f"/api/requests/{left.value.args[0]}"
    wait_until(lambda: daemon.get(path).json()["request"]["state"] == "ended")
    assert daemon.get(path).json()["request"]["outcome"] == "cancelled"


def test_a_lost_connection_is_gone_on_with(daemon: RunningDaemon) -> None:
    person = Person()
    with TcpProxy(urlsplit(daemon.url).port or 0) as proxy:

        def lose(item: object) -> None:
            if isinstance(item, RunTool):
                proxy.mend()  # which closes what there is
                tag = item.tag
                path = f"/api/calls/{tag.request_id}/{tag.step}/{tag.call_id}/complete"
                wait_until(lambda: daemon.post(path, {"result": "from outside"}).is_success)

        text = person.ask(f"http://127.0.0.1:{proxy.port}", "call put_off", on_item=lose)
    assert "from outside" in text
    kinds = Counter(type(item) for item in person.items)
    assert (kinds[RunTool], kinds[AnswerEnded], kinds[Restarted]) == (1, 1, 0)
    (remark,) = person.remarks
    assert "the connection to the daemon is lost" in remark


def test_a_wrong_token_and_a_place_without_a_daemon_say_what_to_do(daemon: RunningDaemon) -> None:
    async def checked(url: str, token: str) -> None:
        async with DaemonPartner(url, token, Person().approve, print) as partner:
            await partner.check()

    with pytest.raises(RuntimeFailure, match=r"401.*check CALLBOARD_TOKEN"):
        asyncio.run(checked(daemon.url, "another-token"))
    with pytest.raises(RuntimeFailure, match="is `callboard serve` running there"):
        asyncio.run(checked("http://127.0.0.1:1", TOKEN))
    with pytest.raises(UsageError, match="--url"):
        asyncio.run(checked("ftp://somewhere", TOKEN))


def test_a_conversation_that_is_not_there_is_named(daemon: RunningDaemon) -> None:
    async def opened(conversation_id: str) -> None:
        async with DaemonPartner(daemon.url, TOKEN, Person().approve, [].append) as partner:
            await partner.go_on_with(conversation_id)

    for given, why in (("01234567", ""), ("012", ": 4 characters of an id are needed")):
        with pytest.raises(RuntimeFailure, match=f"no conversation '{given}'{why}; [^;]* shows them$"):
            asyncio.run(opened(given))


def test_the_command_itself_with_a_token_file(daemon: RunningDaemon, callboard: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    where = ("--url", daemon.url, "--token-file", str(tmp_path / "token"))
    Person().ask(daemon.url, "one")
    begun = daemon.get("/api/conversations").json()["conversations"][0]["id"][:8]
    process = callboard.start("chat", *where, "--conversation", begun, stdin=subprocess.PIPE)
    lines = f"hello\n/tools\n/tools quick\n/new\n/open {begun}\n"
    out, err = process.communicate(lines.encode(), timeout=50)
    assert process.returncode == 0, err
    assert out.decode().startswith("you said hello\n")
    assert "\ndangerous" in out.decode()
    assert "  asked  " in out.decode(), "in the words of `callboard tools`"
    assert "\nquick\n  risk: read\n" in out.decode()
    assert out.decode().endswith(f"a new conversation\nconversation: {begun}: one\n> hello\nyou said hello\n")
    assert TOKEN not in (out + err).decode()
