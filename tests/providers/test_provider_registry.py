"""The names that everybody builds on, and what they need."""

from __future__ import annotations

import pytest

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.provider_registry import PROVIDERS, adapter_for, provider_for


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"offline", "scripted"}))
def test_every_adapter_decodes_without_address_and_key(name: str) -> None:
    """Recorded answers can be read by anybody; what cannot be asked says so when it is asked."""
    events = adapter_for(name).decoder(status=500, headers={}, streaming=True).finish()
    assert [type(event).__name__ for event in events] == ["Error"]


def test_a_request_to_nowhere_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="base_url"):
        adapter_for("openai-compatible").encode(ModelRequest("m", (UserMessage.of("hi"),)))
    with pytest.raises(UsageError, match="base_url"):
        provider_for("openai-compatible/m")
