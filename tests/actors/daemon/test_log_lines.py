"""What the daemon's log says of who calls: the tenant and the token's id, also where a call is refused, and never the
token; who has decided on what; which rules were saved. In both formats, of a daemon in a process of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.running_daemon import RunningDaemon
from support.scripted_daemon import scripted_daemon

from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.log_lines import JsonRecords, TextRecords

Until = Callable[[Callable[[], bool]], None]
LIMITS: Final = 'log_format = "json"\nlimits = {requests_per_minute = 600}'


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> AccessTokens:
    state = tmp_path_factory.mktemp("log") / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    return AccessTokens(state / "tokens.json")


@pytest.fixture(scope="module")
def daemon(tokens: AccessTokens) -> Iterator[RunningDaemon]:
    folder = tokens.path.parents[3]
    (folder / "workspace").mkdir()
    ann = f'workspace = "{folder / "workspace"}"'
    with scripted_daemon(folder, daemon=LIMITS, ann=ann) as running:
        yield running


def logged(daemon: RunningDaemon, **fields: object) -> list[dict[str, Any]]:
    """The records with these fields."""
    lines = [json.loads(line) for line in daemon.stderr().splitlines() if line.startswith("{")]
    return [line for line in lines if fields.items() <= line.items()]


def asked(daemon: RunningDaemon, path: str, secret: str | None) -> int:
    return daemon.get(path, {"Authorization": "" if secret is None else f"Bearer {secret}"}).status_code


def test_each_line_of_a_call_has_the_id_of_its_token(daemon: RunningDaemon, tokens: AccessTokens, until: Until) -> None:
    for _ in range(8):  # of some ids masking would take a part for a secret behind the word "token"
        made, secret = tokens.make(Scope.USE, "bob")
        assert asked(daemon, "/v1/models", secret) == 200
        until(lambda made=made: len(logged(daemon, token_id=made.id, tenant="bob", status=200)) == 1)  # type: ignore[misc]
        assert secret not in daemon.stderr()


def test_a_call_that_is_refused_says_whose_it_was(daemon: RunningDaemon, tokens: AccessTokens, until: Until) -> None:
    made, secret = tokens.make(Scope.USE, "bob")
    assert asked(daemon, "/api/actors", secret) == 403
    until(lambda: bool(logged(daemon, status=403, token_id=made.id, tenant="bob")))
    for _ in range(200):  # a burst of 100 is let through
        if asked(daemon, "/healthz", secret) != 200 or asked(daemon, "/v1/models", secret) == 429:
            break
    until(lambda: bool(logged(daemon, status=429, token_id=made.id, tenant="bob")))
    assert tokens.remove(made.id)
    assert asked(daemon, "/v1/models", secret) == 401
    until(lambda: bool(logged(daemon, status=401, token_id=made.id, tenant="bob")))
    assert asked(daemon, "/v1/models", "never-a-token-0123456789") == 401
    until(lambda: bool(logged(daemon, status=401, token_id="unknown", tenant="unknown")))
    assert asked(daemon, "/v1/models", None) == 401
    until(lambda: bool(logged(daemon, status=401, token_id="none", tenant="unknown")))
    assert secret not in daemon.stderr()
    assert "never-a-token" not in daemon.stderr()


def question(daemon: RunningDaemon, until: Until, what: str) -> tuple[str, str]:
    """A call that waits for approval, and the path of its answer."""
    body = {"prompt": f'call dangerous {{"what": "{what}"}}'}
    begun = daemon.post("/api/requests", body).json()["request_id"]

    def waits() -> list[dict[str, Any]]:
        return [each for each in daemon.get("/api/approvals").json()["approvals"] if each["request_id"] == begun]

    until(lambda: bool(waits()))
    (asked_for,) = waits()
    return begun, f"/api/approvals/{begun}/{asked_for['step']}/{asked_for['call_id']}"


@pytest.mark.parametrize("answer", ["once", "request", "always", "deny", "deny_always"])
def test_who_has_answered_what_and_which_rule_was_saved(
    daemon: RunningDaemon, tokens: AccessTokens, until: Until, answer: str
) -> None:
    made, secret = tokens.make(Scope.APPROVE, "ann")
    begun, path = question(daemon, until, answer)
    headers = {"Authorization": f"Bearer {secret}"}
    why = {"reason": "not today"} if answer.startswith("deny") else {}
    assert daemon.post(path, {"answer": answer, **why}, headers).status_code == 200
    told = {"request_id": begun, "tool": "dangerous", "answer": answer}
    until(lambda: bool(logged(daemon, **told, status=200, token_id=made.id, tenant="ann", step=1)))
    if answer.startswith("deny"):
        until(lambda: bool(logged(daemon, event="approval.denied", request_id=begun, tool="dangerous")))
    rules = {"event": "rule.saved", "request_id": begun, "tool": "dangerous"}
    if answer in ("always", "deny_always"):
        decision = "allow" if answer == "always" else "deny"
        until(lambda: bool(logged(daemon, **rules, decision=decision, logger="callboard.approvals")))
    else:
        until(lambda: bool(logged(daemon, event="work.ended", work="request", request_id=begun)))
        assert logged(daemon, **rules) == []
    assert daemon.post(path, {"answer": answer}, headers).status_code == 404
    until(lambda: bool(logged(daemon, request_id=begun, status=404, answer=answer, token_id=made.id)))
    assert "not today" not in daemon.stderr()


# -- the formats


@given(st.text("0123456789abcdef", min_size=8, max_size=8))
def test_the_id_of_a_token_is_never_masked(token_id: str) -> None:
    record = logging.makeLogRecord({"msg": "GET /x", "token_id": token_id, "tenant": "ann"})
    assert json.loads(JsonRecords().format(record))["token_id"] == token_id
    assert f"token_id={token_id}" in TextRecords().format(record)
