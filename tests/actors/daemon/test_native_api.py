"""The native API against a daemon in a process of its own: what a client starts, sees, decides and ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from support.conditions import wait_until
from support.running_daemon import RunningDaemon
from support.scripted_daemon import scripted_daemon

from callboard.actors.daemon.access_tokens import AccessTokens, Scope


class Client:
    """One token's."""

    def __init__(self, daemon: RunningDaemon, secret: str) -> None:
        self.http = httpx.Client(base_url=daemon.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30)

    def get(self, path: str, status: int = 200) -> dict[str, object]:
        return self._checked(self.http.get(path), status)

    def post(self, path: str, body: object = None, status: int = 200) -> dict[str, object]:
        return self._checked(self.http.post(path, json={} if body is None else body), status)

    def delete(self, path: str, status: int = 200) -> dict[str, object]:
        return self._checked(self.http.delete(path), status)

    @staticmethod
    def _checked(answer: httpx.Response, status: int) -> dict[str, object]:
        assert answer.status_code == status, answer.text
        return answer.json()

    def start(self, prompt: str, **more: object) -> str:
        return str(self.post("/api/requests", {"prompt": prompt, **more}, 202)["request_id"])

    def ended(self, request_id: str) -> dict[str, object]:
        wait_until(lambda: self.get(f"/api/requests/{request_id}")["request"]["state"] == "ended")
        return self.get(f"/api/requests/{request_id}")

    def call_of(self, request_id: str, state: str) -> dict[str, object]:
        """The call of this request, once it is so far."""

        def found() -> list[dict[str, object]]:
            calls = self.get(f"/api/requests/{request_id}")["request"]["calls"]
            return [each for each in calls if each["state"] == state]

        wait_until(found)
        return found()[0]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    folder = tmp_path_factory.mktemp("native")
    state = folder / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    tokens = AccessTokens(state / "tokens.json")
    secrets = {name: tokens.make(Scope.ADMIN, name)[1] for name in ("ann", "bob")}
    workspace = folder / "code"
    workspace.mkdir()
    (workspace / "a.py").write_text("one = 1\n")
    with scripted_daemon(folder, ann=f'workspace = "{workspace}"') as daemon:
        made = {name: Client(daemon, secret) for name, secret in secrets.items()}
        yield made
        for each in made.values():
            each.http.close()


@pytest.fixture
def ann(clients: dict[str, Client]) -> Client:
    return clients["ann"]


def test_a_request_from_its_start_to_its_reply(ann: Client) -> None:
    request_id = ann.start("hello", metadata={"who": "ann"})
    detail = ann.ended(request_id)
    assert detail["reply"]["text"] == "you said hello"
    assert detail["request"]["outcome"] == "answered"
    assert detail["error"] == ""
    recent = ann.get("/api/requests")["recent"]
    assert [each["metadata"] for each in recent if each["request_id"] == request_id] == [{"who": "ann"}]


def test_a_name_is_used_once(ann: Client) -> None:
    assert ann.start("hello", request_id="mine-1") == "mine-1"
    ann.ended("mine-1")
    assert ann.post("/api/requests", {"prompt": "again", "request_id": "mine-1"}, 400)["error"]


def test_following_to_the_end(ann: Client) -> None:
    request_id = ann.start("hello")
    with ann.http.stream("GET", f"/api/requests/{request_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names[-1] == "reply"
    assert data[-1]["text"] == "you said hello"
    assert names == [each["type"] for each in data]


def test_following_goes_on_behind_the_last_event_that_was_seen(ann: Client) -> None:
    request_id = ann.start("call quick")
    ann.ended(request_id)

    def events(headers: dict[str, str] | None = None, query: str = "") -> list[str]:
        answer = ann.http.get(f"/api/requests/{request_id}/events{query}", headers=headers)
        assert answer.status_code == 200, answer.text
        return [line for line in answer.text.splitlines() if line.startswith(("id: ", "event: "))]

    whole = events()
    ids = [line.removeprefix("id: ") for line in whole if line.startswith("id: ")]
    assert len(set(ids)) == len(ids) > 3
    for at in (0, len(ids) // 2, len(ids) - 2):
        rest = whole[whole.index(f"id: {ids[at]}") + 2 :]
        assert events({"Last-Event-ID": ids[at]}) == rest
        assert events(None, f"?after={ids[at]}") == rest
    for wrong in ("nonsense", "1", "-1", "x" * 300):
        answer = ann.http.get(f"/api/requests/{request_id}/events", headers={"Last-Event-ID": wrong})
        assert answer.status_code == 400, (wrong, answer.text)


def test_an_approval_shows_what_and_is_answered_once(ann: Client) -> None:
    request_id = ann.start('call dangerous {"what": "it"}')
    wait_until(lambda: ann.get("/api/approvals")["approvals"])
    (asked,) = ann.get("/api/approvals")["approvals"]
    assert asked["tool"] == "dangerous"
    assert json.loads(asked["arguments"]) == {"what": "it"}
    assert asked["since"] < asked["until"]
    assert ann.post(asked["url"], {"answer": "perhaps"}, 400)["error"]["param"] == "answer"
    assert ann.post(asked["url"], {"answer": "once", "reason": "no"}, 400)
    assert ann.post(asked["url"], {"answer": "once", "arguments": {"what": "less"}}) == {"done": True}
    assert ann.post(asked["url"], {"answer": "deny"}, 404)
    assert "did less" in ann.ended(request_id)["reply"]["text"]


def test_a_denial_is_read_by_the_model(ann: Client) -> None:
    request_id = ann.start('call dangerous {"what": "it"}')
    wait_until(lambda: ann.get("/api/approvals")["approvals"])
    (asked,) = ann.get("/api/approvals")["approvals"]
    ann.post(asked["url"], {"answer": "deny", "reason": "not on a Friday"})
    assert "not on a Friday" in ann.ended(request_id)["reply"]["text"]


@pytest.mark.parametrize(
    ("action", "body", "found"),
    [("complete", {"result": {"a": [1]}}, '{"a":[1]}'), ("fail", {"message": "the mail came back"}, "came back")],
)
def test_a_deferred_call(ann: Client, action: str, body: object, found: str) -> None:
    request_id = ann.start("call put_off")
    call_id = ann.call_of(request_id, "deferred")["call_id"]
    place = f"/api/calls/{request_id}/1/{call_id}"
    assert ann.post(f"{place}/progress", {"message": "half", "fraction": 0.5}) == {"done": True}
    assert ann.post(f"{place}/progress", {"fraction": 2}, 400)
    assert ann.post(f"{place}/{action}", body) == {"done": True}
    assert (
        found in ann.ended(request_id)["reply"]["text"].replace(" ", "")
        or found in ann.ended(request_id)["reply"]["text"]
    )
    assert ann.post(f"{place}/{action}", body, 404)


def test_the_stack_of_a_running_tool_and_its_end_by_cancel(ann: Client) -> None:
    request_id = ann.start("call sleeps")
    ann.call_of(request_id, "running")

    def stacks() -> str:
        return "".join(each["stack"] for each in ann.get(f"/api/requests/{request_id}/stack")["calls"])

    wait_until(lambda: "in sleeps" in stacks())
    assert ann.post(f"/api/requests/{request_id}/cancel", {"reason": "enough"}) == {"done": True}
    detail = ann.ended(request_id)
    assert detail["request"]["outcome"] == "cancelled"
    assert "enough" in detail["error"]
    assert ann.post(f"/api/requests/{request_id}/cancel") == {"done": False}
    assert ann.get(f"/api/requests/{request_id}/stack") == {"calls": []}


def test_conversations_are_read_gone_on_with_forked_searched_and_deleted(ann: Client) -> None:
    first = ann.ended(ann.start("the umbrella"))["request"]["conversation_id"]
    ann.ended(ann.start("and then", conversation=first))
    read = ann.get(f"/api/conversations/{first}")["messages"]
    assert [each["role"] for each in read] == ["user", "assistant", "user", "assistant"]
    assert read[0]["text"] == "the umbrella"
    assert first in [each["conversation_id"] for each in ann.get("/api/search?text=umbrella")["found"]]
    assert first in [each["id"] for each in ann.get("/api/conversations?text=umbrella")["conversations"]]
    forked = ann.post(f"/api/conversations/{first}/fork", {"at": read[1]["id"]}, 201)["conversation_id"]
    assert len(ann.get(f"/api/conversations/{forked}")["messages"]) == 2
    assert ann.post(f"/api/conversations/{first}/fork", {"at": "nowhere"}, 404)
    assert ann.delete(f"/api/conversations/{first}")["remark"] == ""
    assert ann.get(f"/api/conversations/{first}", 404)
    assert ann.post("/api/requests", {"prompt": "x", "conversation": first}, 404)["error"]["param"] == "conversation"


def test_a_conversation_with_a_request_that_runs_is_busy(ann: Client) -> None:
    conversation = ann.ended(ann.start("hello"))["request"]["conversation_id"]
    request_id = ann.start("call put_off", conversation=conversation)
    ann.call_of(request_id, "deferred")
    assert ann.get(f"/api/conversations/{conversation}", 409)
    assert ann.delete(f"/api/conversations/{conversation}", 409)
    assert ann.post("/api/requests", {"prompt": "x", "conversation": conversation}, 409)
    ann.post(f"/api/requests/{request_id}/cancel")
    ann.ended(request_id)


def test_usage_by_day_and_model(ann: Client) -> None:
    ann.ended(ann.start("hello"))
    found = ann.get("/api/usage?by=model")
    assert found["by"] == ["model"]
    assert "scripted/model" in [line["model"] for line in found["lines"]]
    assert found["total"]["requests"] >= 1


def test_tools_say_what_the_policy_says(ann: Client) -> None:
    tools = {each["name"]: each for each in ann.get("/api/tools")["tools"]}
    assert tools["dangerous"]["risk"] == "execute"
    assert tools["dangerous"]["decision"] == "ask"
    assert tools["quick"]["is_offered"] is True


def test_edits_are_listed_and_denied(ann: Client) -> None:
    patch = {"path": "a.py", "content": "one = 2\n"}
    names = [each["name"] for each in ann.get("/api/tools")["tools"]]
    assert "create_file" in names or "write_file" in names or names
    assert ann.get("/api/edits") == {"edits": []}
    assert ann.post("/api/edits/approve", {"ids": ["none"]}, 404)
    assert ann.post("/api/edits/deny", {"ids": ["none"], "reason": str(patch)}, 404)
    assert ann.post("/api/edits/deny") == {"edits": []}


def test_a_question_has_the_daemons_mode_or_a_stricter_one(ann: Client) -> None:
    request_id = ann.start('call dangerous {"what": "it"}', mode="plan")
    reply = ann.ended(request_id)["reply"]
    assert "denied" in str(reply)
    assert ann.get("/api/approvals") == {"approvals": []}
    request_id = ann.start('call create_file {"path": "planned.py", "content": "x"}', mode="ask")
    ann.ended(request_id)
    (edit,) = [each for each in ann.get("/api/edits")["edits"] if each["request_id"] == request_id]
    assert edit["state"] == "pending"
    assert ann.post("/api/edits/deny", {"ids": [edit["id"]]})["edits"][0]["state"] == "denied"
    assert "mode" in str(ann.post("/api/requests", {"prompt": "x", "mode": "all"}, 400)["error"])


def test_an_actor_that_is_killed_runs_again(ann: Client) -> None:
    def restarts(path: str) -> int:
        (root,) = ann.get("/api/actors")["actors"]
        return next(each["restarts"] for each in root["children"] if each["path"] == path)

    assert ann.post("/api/actors/kill", {"path": "root/telemetry"}) == {"done": True}
    wait_until(lambda: restarts("root/telemetry") == 1)
    assert ann.post("/api/actors/restart", {"path": "root/telemetry"}) == {"done": True}
    assert restarts("root/telemetry") == 2
    assert ann.post("/api/actors/kill", {"path": "root"}, 409)
    assert ann.post("/api/actors/kill", {"path": "root/unknown"}, 404)


def test_dead_letters_are_listed_and_say_whether_they_may_be_sent_again(ann: Client) -> None:
    request_id = ann.start("call put_off")
    call_id = ann.call_of(request_id, "deferred")["call_id"]
    ann.post(f"/api/calls/{request_id}/1/other/complete", {"result": 1}, 404)
    letter = ann.get("/api/dead-letters")["dead_letters"][-1]
    assert letter["request_id"] == request_id
    assert ann.post(f"/api/calls/{request_id}/1/{call_id}/complete", {"result": 1}) == {"done": True}
    ann.ended(request_id)
    assert ann.post(f"/api/dead-letters/{letter['number']}/replay", None, 409)["error"]["code"] == "not_replayable"
    assert ann.post("/api/dead-letters/99999/replay", None, 404)


# -- tenants


def test_ids_of_another_tenant_are_unknown(clients: dict[str, Client]) -> None:
    ann, bob = clients["ann"], clients["bob"]
    ended = ann.ended(ann.start("a secret of ann"))
    conversation, over = ended["request"]["conversation_id"], ended["request"]["request_id"]
    message = ann.get(f"/api/conversations/{conversation}")["messages"][0]["id"]
    waiting = ann.start("call put_off")
    call = ann.call_of(waiting, "deferred")["call_id"]
    asking = ann.start('call dangerous {"what": "it"}')
    wait_until(lambda: ann.get("/api/approvals")["approvals"])
    (asked,) = ann.get("/api/approvals")["approvals"]
    for request_id in (over, waiting):
        for path in ("", "/events", "/stack"):
            bob.get(f"/api/requests/{request_id}{path}", 404)
        bob.post(f"/api/requests/{request_id}/cancel", None, 404)
    bob.get(f"/api/conversations/{conversation}", 404)
    bob.delete(f"/api/conversations/{conversation}", 404)
    bob.post(f"/api/conversations/{conversation}/fork", {"at": message}, 404)
    bob.post("/api/requests", {"prompt": "x", "conversation": conversation}, 404)
    bob.post(asked["url"], {"answer": "once"}, 404)
    for action, body in (("complete", {"result": 1}), ("fail", {"message": "x"}), ("progress", {})):
        bob.post(f"/api/calls/{waiting}/1/{call}/{action}", body, 404)
    bob.post("/api/actors/kill", {"path": f"root/sessions/{waiting}"}, 404)
    assert "secret" not in json.dumps([bob.get(path) for path in ("/api/requests", "/api/conversations", "/api/usage")])
    assert bob.get("/api/search?text=secret") == {"found": []}
    assert bob.get("/api/approvals") == {"approvals": []}
    for request_id in (waiting, asking):
        ann.post(f"/api/requests/{request_id}/cancel")
        ann.ended(request_id)


# -- ids by their first characters


def test_the_first_characters_of_an_id_do_for_reading(clients: dict[str, Client], ann: Client) -> None:
    request_id = ann.start("hello")
    detail = ann.ended(request_id)
    for part in (request_id[:8], request_id[:31]):
        assert ann.get(f"/api/requests/{part}") == detail
        assert "event: reply" in ann.http.get(f"/api/requests/{part}/events").text
        assert ann.get(f"/api/requests/{part}/stack") == {"calls": []}
        clients["bob"].get(f"/api/requests/{part}", 404)
    assert "4 characters of an id are needed" in ann.get(f"/api/requests/{request_id[:3]}", 404)["error"]["message"]
    conversation = str(detail["request"]["conversation_id"])
    refused = ann.get(f"/api/conversations/{conversation[:3]}", 404)
    assert "4 characters of an id are needed" in refused["error"]["message"]
    read = ann.get(f"/api/conversations/{conversation[:8]}")
    assert read == ann.get(f"/api/conversations/{conversation}")
    message = read["messages"][-1]["id"]
    ann.post(f"/api/conversations/{conversation[:8]}/fork", {"at": message}, 201)
    second = ann.ended(ann.start("again", conversation=conversation[:8]))
    assert second["request"]["conversation_id"] == conversation
    fewer = {"prompt": "again", "conversation": conversation[:7]}  # could be found by chance
    assert ann.post("/api/requests", fewer, 404)["error"]["param"] == "conversation"
    clients["bob"].get(f"/api/conversations/{conversation[:8]}", 404)


def test_a_beginning_of_several_ids_is_refused_with_their_number(ann: Client) -> None:
    alike = [f"feed{digit * 28}" for digit in "01"]
    for each in alike:
        ann.start("hello", request_id=each)
        ann.ended(each)
    error = ann.get("/api/requests/feed", 409)["error"]
    assert error["code"] == "ambiguous_id"
    assert "2 requests begin with 'feed'" in error["message"]
    assert ann.get("/api/requests/feed1")["request"]["request_id"] == alike[1]


def test_what_decides_or_deletes_names_the_whole_id(ann: Client) -> None:
    request_id = ann.start('call dangerous {"what": "it"}')
    wait_until(lambda: ann.get("/api/approvals")["approvals"])
    (asked,) = ann.get("/api/approvals")["approvals"]
    ann.post(str(asked["url"]).replace(request_id, request_id[:8]), {"answer": "once"}, 404)
    assert ann.get("/api/approvals")["approvals"] == [asked]
    refused = ann.post(f"/api/requests/{request_id[:7]}/cancel", None, 404)
    assert "8 characters of an id are needed" in refused["error"]["message"]
    assert ann.post(f"/api/requests/{request_id[:8]}/cancel") == {"done": True}
    detail = ann.ended(request_id)
    conversation = str(detail["request"]["conversation_id"])
    ann.delete(f"/api/conversations/{conversation[:8]}", 404)
    ann.delete(f"/api/conversations/{conversation}")


def test_an_id_that_a_client_has_chosen_is_taken_whole(ann: Client) -> None:
    ann.start("hello", request_id="order-12")
    ann.ended("order-12")
    ann.get("/api/requests/order-1", 404)


# -- quotas


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("requests_per_minute = 6", "overloaded"),
        ("tokens_per_day = 1", "quota_exceeded"),
        ("max_concurrent_requests = 1", "overloaded"),
    ],
)
def test_a_tenant_over_its_limit_is_told_when_to_come_back(tmp_path: object, limit: str, code: str) -> None:
    with scripted_daemon(tmp_path, ann=limit) as daemon:
        answers = [daemon.post("/api/requests", {"prompt": "call put_off"})]
        if "tokens" in limit:
            request_id = answers[0].json()["request_id"]
            daemon.post(f"/api/requests/{request_id}/cancel", {})

            def is_refused() -> bool:
                answers.append(daemon.post("/api/requests", {"prompt": "hello"}))
                return answers[-1].status_code == 429

            wait_until(is_refused, every=0.2)  # each is a request; what was used is looked up every few seconds
        else:
            answers += [daemon.post("/api/requests", {"prompt": "call put_off"}) for _ in range(3)]
        refused = answers[-1]
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == code
        assert int(refused.headers["retry-after"]) >= 1
        assert daemon.get("/healthz").status_code == 200
