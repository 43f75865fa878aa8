"""A credential that a server refuses in the middle of a conversation: renewed within the request, which answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.caught import Reply, caught
from support.event_frames import METADATA, delta, stop, stream

from callboard import ModelCallFailed, Runtime, Settings

ANSWER = Reply(
    stream([("messageStart", {"role": "assistant"}), delta(0, text="ok"), stop("end_turn"), METADATA]),
    headers={"content-type": "application/vnd.amazon.eventstream"},
)
EXPIRED = Reply(
    b'{"message":"The security token included in the request is expired"}',
    403,
    {"content-type": "application/json", "x-amzn-errortype": "ExpiredTokenException"},
)
KEYS = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\n"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of AWS's credentials, and nothing else of the machine's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "CALLBOARD_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "credentials").write_text(KEYS.format("AKIDOLD"))
    return tmp_path / "credentials"


def talk(url: str, credentials: Path) -> list[str]:
    """The answers to two questions; between them the file gets new keys."""

    async def run() -> list[str]:
        async with Runtime(Settings(model="bedrock/us.amazon.nova-2-lite-v1:0", base_url=url)) as runtime:
            first = await runtime.ask("Hi")
            await asyncio.to_thread(credentials.write_text, KEYS.format("AKIDNEW"))
            return [first.text, (await runtime.ask("And now?")).text]

    return asyncio.run(run())


def test_a_refused_credential_is_renewed_within_the_request(credentials: Path) -> None:
    with caught([ANSWER, EXPIRED, ANSWER]) as server:
        assert talk(server.url, credentials) == ["ok", "ok"]
        users = [request.headers["authorization"].split("=")[1].split("/")[0] for request in server.requests]
    assert users == ["AKIDOLD", "AKIDOLD", "AKIDNEW"]


def test_one_that_stays_refused_ends_the_request_after_one_renewal(credentials: Path) -> None:
    with caught([ANSWER, EXPIRED]) as server:
        with pytest.raises(ModelCallFailed, match="security token included in the request is expired"):
            talk(server.url, credentials)
        assert len(server.requests) == 3
