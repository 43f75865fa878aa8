"""Rate limits, the catalog and the registry."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.model import Usage
from callboard.providers import catalog, provider_registry
from callboard.providers.catalog import SAFE_CONTEXT_TOKENS, Catalog, ModelInfo, Prices
from callboard.providers.copilot.copilot_login import CopilotTokens, FileStore
from callboard.providers.local.offline import Offline
from callboard.providers.local.scripted import Scripted
from callboard.providers.provider_registry import KEY_VARIABLES, PROVIDERS, adapter_for, provider_for
from callboard.providers.rate_limit import RateLimiter, RateLimits
from callboard.providers.transport import HttpProvider

# Rate limits


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_requests_a_minute() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, requests_per_minute=2)
    assert [limiter.acquire(), limiter.acquire()] == [0, 0]
    assert limiter.acquire() == pytest.approx(30)
    clock.now += 30
    assert limiter.acquire() == 0
    assert limiter.acquire() > 0


def test_tokens_a_minute_and_what_was_guessed_wrong() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, tokens_per_minute=600)
    assert limiter.acquire(600) == 0
    assert limiter.acquire(60) == pytest.approx(6)
    limiter.settle(600, 300)
    assert limiter.acquire(60) == 0
    limiter.settle(60, 660)
    assert limiter.acquire(1) > 30
    clock.now += 3600
    assert limiter.acquire(1_000_000) == 0, "more than a minute's worth goes when the bucket is full"


def test_headers_of_the_answers_correct_the_buckets() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, requests_per_minute=100, tokens_per_minute=1000)
    limiter.on_headers(200, {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "1"})
    assert limiter.acquire() == 0
    assert limiter.acquire() == pytest.approx(1.0)
    limiter.on_headers(200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30s"})
    assert limiter.acquire(1) == pytest.approx(90)


def test_a_429_closes_the_limiter_even_without_limits_of_its_own() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    assert limiter.acquire(1e9) == 0
    limiter.on_headers(429, {"retry-after": "12"})
    assert limiter.acquire() == pytest.approx(12)
    limiter.on_headers(429, {})
    limiter.on_headers(200, {"x-ratelimit-remaining-requests": "many"})
    clock.now += 12
    assert limiter.acquire() == 0


def test_a_limiter_for_each_credential() -> None:
    limits = RateLimits(Clock(), {"openai": (1, None)})
    assert limits.limiter("openai", "a") is limits.limiter("openai", "a")
    assert limits.limiter("openai", "a") is not limits.limiter("openai", "b")
    assert limits.limiter("openai", "a").acquire() == 0
    assert limits.limiter("openai", "a").acquire() > 0
    assert limits.limiter("groq", None).acquire() == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500)), max_size=60))
def test_no_minute_ever_sees_more_than_its_limit(steps: list[tuple[float, int]]) -> None:
    clock, taken = Clock(), list[tuple[float, int]]()
    limiter = RateLimiter(clock, requests_per_minute=5, tokens_per_minute=500)
    for pause, tokens in steps:
        clock.now += pause
        if limiter.acquire(tokens) == 0:
            taken.append((clock.now, tokens))
    for start, _ in taken:
        window = [tokens for at, tokens in taken if start <= at < start + 60]
        # A full bucket at the start of a minute, and what flows in during it.
        assert len(window) <= 10
        assert sum(window) <= 1000 + 1e-6


# The catalog


def test_costs_count_cached_and_reasoning_tokens() -> None:
    assert Catalog().cost("openai", "gpt-4o", Usage(1000, 100, cached_tokens=500)) == pytest.approx(0.002875)
    assert Catalog().cost("anthropic", "claude-sonnet-4-5", Usage(1000, 100, 0, 1000)) == pytest.approx(0.00525)
    assert Catalog().cost("nobody", "nothing", Usage(1000, 100)) is None
    assert Catalog().cost("ollama", "llama3", Usage(1000, 100)) == 0
    assert Catalog().cost("openai", "gpt-4o", Usage(100, 10, cached_tokens=500)) is None
    charged = Catalog().cost("openrouter", "x/y", Usage(1, 1), {"cost": 0.25})
    assert charged == 0.25


def test_what_is_known_of_models() -> None:
    known = Catalog().info("openai", "gpt-4o")
    assert known.context_tokens == 128_000
    assert known.prices is not None
    assert known.prices.cost(Usage(1000, 100, cached_tokens=500)) == pytest.approx(0.002875)
    assert Catalog().info("gemini", "gemini-2.5-pro").context_tokens == 1_048_576
    unknown = Catalog().info("nobody", "nothing")
    assert (unknown.context_tokens, unknown.prices) == (SAFE_CONTEXT_TOKENS, None)


def test_every_line_can_be_overridden() -> None:
    mine = Catalog({"mine/*": ModelInfo(8_000, Prices(1.0, 2.0)), "mine/big": ModelInfo(64_000)})
    assert mine.info("mine", "small").context_tokens == 8_000
    assert mine.cost("mine", "small", Usage(10, 1, 5, 5)) == 12.0
    assert (mine.info("mine", "big").context_tokens, mine.cost("mine", "big", Usage(1, 1))) == (64_000, None)
    assert mine.known_cost("mine/small", Usage(1, 1), {}) == 3.0
    assert mine.known_cost("mine/big", Usage(1, 1), {}) == 0.0


def test_without_the_price_package_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = (catalog._package, catalog._priced_model, catalog._list_prices)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    try:
        assert Catalog().cost("openai", "gpt-4o", Usage(1000, 100)) is None
        assert Catalog().info("openai", "gpt-4o") == ModelInfo()
    finally:
        for cache in caches:
            cache.cache_clear()


# The registry


@pytest.mark.parametrize("name", sorted(provider_registry.ADAPTERS))
def test_every_adapter_can_be_made_and_called_by_its_name(name: str) -> None:
    adapter = adapter_for(name, base_url="http://localhost:1/v1", api_key="key")
    # Replay data carries the adapter family, so the two names of Responses make the same adapter.
    assert adapter.name in (name, "openai-responses", "openai")


def test_every_provider_has_a_way_to_be_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def http(_: object) -> object:
        raise AssertionError("nothing is asked before a model is")

    for name in PROVIDERS:
        base_url = "http://localhost:1" if name == "openai-compatible" else None
        key = "key" if KEY_VARIABLES.get(name) else None
        tokens = CopilotTokens(FileStore(tmp_path_factory.mktemp("t") / "t"), http)  # type: ignore[arg-type]
        options: dict[str, Any] = {"tokens": tokens} if name == "copilot" else {}
        provider, model = provider_for(f"{name}/some/model", base_url=base_url, api_key=key, **options)
        assert model == "some/model"
        assert provider.name


def test_local_providers_take_no_key() -> None:
    assert isinstance(provider_for("offline/code", cwd="/x")[0], Offline)
    assert isinstance(provider_for("scripted/x", script=["a"])[0], Scripted)
    assert isinstance(provider_for("ollama/llama3")[0], HttpProvider)
    assert isinstance(provider_for("openai/x", base_url="http://localhost:1")[0], HttpProvider)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nope/x", "no provider 'nope'.*anthropic.*openai-compatible/MODEL"),
        ("gpt-4o", "provider/model"),
        ("openai/", "names no model"),
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("anthropic/x", "ANTHROPIC_API_KEY"),
        ("groq/x", "GROQ_API_KEY"),
        ("copilot/x", "callboard login copilot"),
        ("openai-compatible/x", "base_url"),
    ],
)
def test_a_model_that_cannot_be_asked_says_what_to_do(model: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        provider_for(model)


def test_an_unknown_adapter_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="openai-chat"):
        adapter_for("nope")
    assert "nope" not in KEY_VARIABLES
    assert KEY_VARIABLES["mistral"] == "MISTRAL_API_KEY"
