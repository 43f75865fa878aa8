"""What `callboard ask` says about how an answer came to be: on stderr, beside the answer."""

from __future__ import annotations

from typing import Any

from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Fault, FaultKind, RawAnswer, Turn
from callboard.protocol.model import FinishReason

MODEL = "openai-compatible/fake"


def ask(callboard: Any, *answers: Turn | RawAnswer) -> Any:
    with shared_double(answers) as server:
        return callboard.run("ask", "x", "--model", MODEL, "--base-url", server.base_url())


def test_an_answer_cut_by_its_length_is_not_plainly_an_answer(callboard: Any) -> None:
    ran = ask(callboard, Turn("half an", finish=FinishReason.LENGTH))
    assert ran.out == "half an\n"
    assert "The answer was cut off at the limit of output tokens; raise it, or ask for a shorter answer." in ran.err


def test_a_retry_and_a_model_without_tools_are_told(callboard: Any) -> None:
    no_tools = RawAnswer({"error": {"message": "no", "code": "tools_not_supported"}}, 400)
    ran = ask(callboard, Turn(fault=Fault(FaultKind.STATUS, status=503)), no_tools, Turn("fine"))
    assert ran.out == "fine\n"
    assert f"{MODEL} failed (overloaded, status 503) after 1 of 4 requests; it is asked again in" in ran.err
    assert f"{MODEL} takes no tools; it is asked again without them." in ran.err
