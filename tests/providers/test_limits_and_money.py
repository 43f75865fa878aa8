"""Rate limits, the catalog and the registry."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.model import Usage
from callboard.providers.catalog import FREE, LOCAL, Catalog, ModelInfo, Prices
from callboard.providers.copilot.copilot_login import CopilotTokens, FileStore
from callboard.providers.local.offline import Offline
from callboard.providers.local.scripted import Scripted
from callboard.providers.provider_registry import KEY_VARIABLES, PROVIDERS, adapter_for, provider_for
from callboard.providers.provider_table import ROWS
from callboard.providers.rate_limit import RateLimiter, RateLimits
from callboard.providers.transport import HttpProvider

ROOT = Path(__file__).parents[2]


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


def test_who_has_waited_as_long_as_it_was_told_is_let_through() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, requests_per_minute=7)
    for _ in range(500):
        clock.now += (waited := limiter.acquire())
        assert not waited or limiter.acquire() == 0, "a sum of floats lacks a little"


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
    limiter = RateLimiter(clock, requests_per_minute=100, tokens_per_minute=1000, chance=lambda: 0.0)
    limiter.on_headers(200, {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "1"})
    assert limiter.acquire() == 0
    assert limiter.acquire() == pytest.approx(1.0)
    limiter.on_headers(200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30s"})
    assert limiter.acquire(1) == pytest.approx(90)


def test_a_429_closes_the_limiter_even_without_limits_of_its_own() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, chance=lambda: 0.0)
    assert limiter.acquire(1e9) == 0
    limiter.on_headers(429, {"retry-after": "12"})
    assert limiter.acquire() == pytest.approx(12)
    limiter.on_headers(429, {})
    limiter.on_headers(200, {"x-ratelimit-remaining-requests": "many"})
    clock.now += 12
    assert limiter.acquire() == 0


@pytest.mark.parametrize(("asked", "last"), [("1", 2.0), ("4", 6.0), ("60", 66.0)])
def test_those_who_wait_at_a_closed_limiter_do_not_come_back_together(asked: str, last: float) -> None:
    clock, chances = Clock(), iter(number / 1_000 for number in range(1_000))
    limiter = RateLimiter(clock, chance=lambda: next(chances))
    limiter.on_headers(429, {"retry-after": asked})
    begins = [clock.now + limiter.acquire() for _ in range(1_000)]
    first, most = clock.now + float(asked), clock.now + last
    assert first <= min(begins)
    assert max(begins) < most
    tenths = Counter(int((at - first) / (most - first) * 10) for at in begins)
    assert max(tenths.values()) <= 102, "a tenth of the time has about a tenth of them"


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
    assert Catalog().info("nobody", "nothing") == ModelInfo(None, None)


@pytest.mark.parametrize("provider", sorted(LOCAL))
def test_models_of_one_s_own_cost_nothing_and_no_table_knows_their_window(provider: str) -> None:
    """A server gives a model what it was started with: the name says how much that could be, not how much it is."""
    assert Catalog().info(provider, "llama-3.1-8b") == ModelInfo(None, FREE)
    assert Catalog().cost(provider, "llama-3.1-8b", Usage(1000, 100)) == 0.0


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai-compatible", "gpt-4o"),  # by its address alone: one's own server, or a gateway to any other
        ("huggingface", "meta-llama/Llama-3.3-70B-Instruct"),
        ("cerebras", "qwen-3-coder-480b"),  # in the price list, without a price
        ("gemini", "gemma-3"),
        ("openrouter", "some/model:nitro"),
    ],
)
def test_what_has_no_known_price_is_unknown_not_free(provider: str, model: str) -> None:
    assert Catalog().info(provider, model).prices is None
    assert Catalog().cost(provider, model, Usage(1000, 100)) is None
    assert Catalog().dearest(provider, model, 1_000_000) is None


@pytest.mark.parametrize("usage", [Usage(), Usage(0, 500)], ids=["no usage", "no input tokens"])
def test_a_priced_call_whose_tokens_were_not_counted_has_no_known_cost(usage: Usage) -> None:
    """Not 0: a cost budget would never be reached at a server that reports no usage."""
    assert Catalog().cost("openai", "gpt-4o", usage) is None
    assert Catalog().cost("openai", "gpt-4o", usage, {"cost": 0.25}) == 0.25, "what the provider says counts"
    priced = Catalog({"mine/*": ModelInfo(prices=Prices(1e-6, 0.0)), "own/*": ModelInfo(prices=FREE)})
    assert priced.cost("mine", "m", usage) is None
    assert priced.cost("own", "m", usage) == 0.0
    assert priced.cost("ollama", "m", usage) == 0.0


def test_what_openrouter_gives_away_is_free_also_where_the_answer_names_the_paid_model() -> None:
    answered = "anthropic/claude-sonnet-4.5"
    assert Catalog().cost("openrouter", "some/model:free", Usage(1000, 100), answered_by=answered) == 0.0
    assert Catalog().info("openrouter", "some/model:free").prices == FREE


def test_a_cost_is_that_of_the_model_that_answered() -> None:
    asked = Catalog().cost("openai", "gpt-4o", Usage(1000, 100))
    answered = Catalog().cost("openai", "gpt-4o-mini", Usage(1000, 100))
    assert asked != answered
    assert Catalog().cost("openai", "gpt-4o", Usage(1000, 100), answered_by="gpt-4o-mini") == answered
    assert Catalog().cost("openai", "my-alias", Usage(1000, 100), answered_by="gpt-4o") == asked
    for unknown in ("", "no-such-model", "x" * 100_000):
        assert Catalog().cost("openai", "gpt-4o", Usage(1000, 100), answered_by=unknown) == asked
    mine = Catalog(
        {"openai/gpt-4o": ModelInfo(prices=Prices(1.0, 1.0)), "openai/*": ModelInfo(prices=Prices(2.0, 2.0))}
    )
    assert mine.cost("openai", "gpt-4o", Usage(1, 1), answered_by="gpt-4o-mini") == 2.0, "what the owner says counts"
    assert mine.cost("openai", "alias", Usage(1, 1), answered_by="gpt-4o") == 2.0
    assert mine.cost("openai", "other", Usage(1, 1), answered_by="gpt-4o-mini") == 4.0


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), "many"])
def test_a_usage_that_cannot_be_true_has_no_cost_and_is_no_error(count: Any) -> None:
    """It ended the call: the answer was lost for a number that nobody needs."""
    assert Catalog().cost("openai", "gpt-4o", Usage(count, 5)) is None
    assert Catalog().cost("openai", "gpt-4o", Usage(5, count)) is None


def test_openrouter_with_a_key_of_the_user_s_own_charges_a_fee_beside_the_provider() -> None:
    byok: dict[str, object] = {"cost": 0.01, "is_byok": True}
    behind: dict[str, object] = byok | {"cost_details": {"upstream_inference_cost": 0.2}}
    assert Catalog().cost("openrouter", "x/y", Usage(1, 1), behind) == pytest.approx(0.21)
    assert Catalog().cost("openrouter", "x/y", Usage(1, 1), byok) is None, "the fee alone is not what it cost"
    for wrong in (None, {}, {"upstream_inference_cost": float("nan")}, "much"):
        assert Catalog().cost("openrouter", "x/y", Usage(1, 1), byok | {"cost_details": wrong}) is None


@given(st.integers(1, 2_000_000), st.integers(0, 60_000), st.integers(1_000, 2_000_000))
def test_no_call_that_fits_costs_more_than_the_dearest_prices_say(given_: int, taken: int, window: int) -> None:
    """Long contexts are dearer: by the prices of the first tier, a budget would be passed (I6)."""
    tokens = min(given_, window)
    dearest = Catalog().dearest("gemini", "gemini-2.5-pro", window)
    cost = Catalog().cost("gemini", "gemini-2.5-pro", Usage(tokens, taken))
    assert dearest is not None
    assert cost is not None
    assert cost <= dearest.cost(Usage(tokens, taken)) + 1e-12
    if window <= 200_000:
        assert dearest.input == 1.25e-6, "a tier that cannot be reached does not count"


def test_every_line_can_be_overridden() -> None:
    mine = Catalog({"mine/*": ModelInfo(8_000, Prices(1.0, 2.0)), "mine/big": ModelInfo(64_000)})
    assert mine.info("mine", "small").context_tokens == 8_000
    assert mine.cost("mine", "small", Usage(10, 1, 5, 5)) == 12.0
    assert (mine.info("mine", "big").context_tokens, mine.cost("mine", "big", Usage(1, 1))) == (64_000, None)
    assert mine.dearest("mine", "small", 10**6) == Prices(1.0, 2.0)
    window_alone = Catalog({"openai/gpt-4o": ModelInfo(64_000)})
    assert window_alone.info("openai", "gpt-4o") == ModelInfo(64_000, Catalog().info("openai", "gpt-4o").prices)
    price_alone = Catalog({"openai/gpt-4o": ModelInfo(prices=FREE)})
    assert price_alone.info("openai", "gpt-4o") == ModelInfo(128_000, FREE)
    assert price_alone.cost("openai", "gpt-4o", Usage(1000, 100)) == 0.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Prices(-1.0, 0.0), "price 'input'"),
        (lambda: Prices(0.0, float("nan")), "price 'output'"),
        (lambda: Prices(0.0, 0.0, cached=float("inf")), "price 'cached'"),
        (lambda: ModelInfo(0), "context_tokens"),
        (lambda: ModelInfo(True), "context_tokens"),
        (lambda: ModelInfo(10**12), "context_tokens"),
        (lambda: Catalog({"gpt-4o": ModelInfo()}), "provider/model.*'gpt-4o'"),
        (lambda: Catalog({"openai/": ModelInfo()}), "provider/model.*'openai/'"),
    ],
)
def test_a_bad_line_of_a_catalog_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


@pytest.mark.fresh_interpreter
def test_prices_ship_with_the_core_and_only_a_priced_model_loads_them(tmp_path: Path) -> None:
    """They take 0.15 s and 9 MB, which no program that asks its own models should pay."""
    program = """
import sys
import callboard
from callboard import Runtime, Settings
with Runtime(Settings(model="offline/code-context")) as runtime:
    runtime.ask_sync("weather?")
Runtime(Settings(model="ollama/llama3.3", cost_budget=1.0))
assert "genai_prices" not in sys.modules
Runtime(Settings(model="openai/gpt-5", api_key="k", cost_budget=1.0))
assert "genai_prices" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    [core, *_] = re.split(r"^\[options\.", (ROOT / "setup.cfg").read_text(), flags=re.MULTILINE)
    assert "genai-prices" in core


# The registry


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if not row.is_local))
def test_every_adapter_can_be_made_and_called_by_its_name(name: str) -> None:
    adapter = adapter_for(name, base_url="http://localhost:1/v1", api_key="key")
    # Replay data carries the adapter family, so the two names of Responses make the same adapter.
    assert adapter.name in (name, "openai-responses", "openai")


def test_every_provider_has_a_way_to_be_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def http(_: object) -> object:
        raise AssertionError("nothing is asked before a model is")

    for name in PROVIDERS:
        row = ROWS[name]
        base_url = "http://localhost:1" if not row.is_local and not row.address else None
        key = "key" if KEY_VARIABLES.get(name) else None
        tokens = CopilotTokens(FileStore(tmp_path_factory.mktemp("t") / "t"), http)  # type: ignore[arg-type]
        options: dict[str, Any] = {"copilot": {"tokens": tokens}, "bedrock": {"region": "eu-west-1"}}.get(name, {})
        # Vertex has the models of publishers, which are part of their names.
        asked, meant = ("google/model", "model") if name == "vertex" else ("some/model", "some/model")
        provider, model = provider_for(f"{name}/{asked}", base_url=base_url, api_key=key, **options)
        assert model == meant
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
        ("gpt-4o", "did you mean 'openai/gpt-4o'"),
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


def test_a_model_of_google_clouds_costs_the_same_with_its_publisher_before_it() -> None:
    usage = Usage(1_000, 1_000, input_audio_tokens=100)
    listed = Catalog().cost("gemini", "gemini-2.5-pro", usage)
    assert listed is not None
    for name in ("gemini-2.5-pro", "google/gemini-2.5-pro", "publishers/google/models/gemini-2.5-pro"):
        assert Catalog().cost("vertex", name, usage) == listed
        assert Catalog().info("vertex", name).prices is not None
