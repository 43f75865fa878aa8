"""What is known of models: context window and prices. Every line can be overridden.

Both come from the package `genai-prices` (Pydantic; extra `prices`; its data ships in the wheel, nothing is fetched).
Without the package, and for models it does not know, the window is a safe assumption and the cost is None, not a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, Final

from callboard.protocol.limits import MAX_CALL_COST
from callboard.protocol.model import Usage

#: For a model of which nothing is known: what current small local models take. Too little only trims early.
SAFE_CONTEXT_TOKENS: Final = 32_768

#: Our provider names to those of genai-prices, where they differ.
_PRICED_AS: Final[Mapping[str, str]] = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "gemini": "google",
    "copilot": "github-copilot",
    "xai": "x-ai",
    "moonshot": "moonshotai",
}
#: Where the package has no window: by the start of the model's name.
_WINDOWS: Final = (("gemini-", 1_048_576), ("gemma-3", 131_072), ("llama-3", 131_072), ("llama-4", 131_072))
#: On one's own machine a token costs nothing.
_FREE: Final = frozenset({"offline", "scripted", "ollama", "vllm", "llamacpp", "lmstudio"})
#: Nothing is looked up for these; the package and its data take 0.15 s and 9 MB to load.
_UNPRICED: Final = _FREE | {"openai-compatible"}


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars a token."""

    input: float
    output: float
    cached: float | None = None
    """Input read from the cache; None: as other input."""
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """US dollars. Usage counts cached tokens within input, reasoning within output."""
        fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        return (
            max(fresh, 0) * self.input
            + usage.cached_tokens * (self.input if self.cached is None else self.cached)
            + usage.cache_write_tokens * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model."""

    context_tokens: int = SAFE_CONTEXT_TOKENS
    """Input and output together."""
    prices: Prices | None = None
    """List prices; None where they are not known. Tiers (long contexts) are in `Catalog.cost` only."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """`overrides` are by "provider/model", or "provider/*" for all of a provider's."""

    overrides: Mapping[str, ModelInfo] = field(default_factory=dict)

    def info(self, provider: str, model: str) -> ModelInfo:
        """What is known of a model, and assumptions for the rest."""
        if given := self._given(provider, model):
            return given
        found = _priced_model(provider, model)
        window = (found and found[1].context_window) or _window(model)
        return ModelInfo(window, Prices(0.0, 0.0) if provider in _FREE else _list_prices(provider, model))

    def cost(
        self, provider: str, model: str, usage: Usage, raw_usage: Mapping[str, object] | None = None
    ) -> float | None:
        """US dollars for one call, None where the price is not known.

        What the provider says it charged (OpenRouter's `usage.cost`) comes before any table, unless it makes no sense:
        NaN, a negative amount, or more than MAX_CALL_COST.
        """
        charged = (raw_usage or {}).get("cost")
        if isinstance(charged, int | float) and not isinstance(charged, bool) and 0 <= charged <= MAX_CALL_COST:
            return float(charged)
        if provider in _FREE:
            return 0.0
        given = self._given(provider, model)
        if given and given.prices:
            return given.prices.cost(usage)
        return _priced_cost(provider, model, usage)

    def known_cost(self, name: str, usage: Usage, raw_usage: Mapping[str, object]) -> float:
        """US dollars for one call of `provider/model`; 0 where the price is not known."""
        provider, _, model = name.partition("/")
        return self.cost(provider, model, usage, raw_usage) or 0.0

    def _given(self, provider: str, model: str) -> ModelInfo | None:
        return self.overrides.get(f"{provider}/{model}") or self.overrides.get(f"{provider}/*")


def _window(model: str) -> int:
    bare = model.rpartition("/")[2]
    return next((tokens for start, tokens in _WINDOWS if bare.startswith(start)), SAFE_CONTEXT_TOKENS)


@cache
def _package() -> ModuleType | None:
    try:
        import genai_prices.data_snapshot  # noqa: PLC0415 - an optional extra, 0.15 s to import
    except ImportError:
        return None
    return genai_prices


@cache
def _priced_model(provider: str, model: str) -> Any:
    """(provider, model) as the package knows them, or None."""
    package = None if provider in _UNPRICED else _package()
    if package is None:
        return None
    try:
        snapshot = package.data_snapshot.get_snapshot()
        return snapshot.find_provider_model(model, None, _PRICED_AS.get(provider, provider), None)
    except LookupError:
        return None


def _priced_cost(provider: str, model: str, usage: Usage) -> float | None:
    package, found = _package(), _priced_model(provider, model)
    if package is None or found is None:
        return None
    counted = package.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
    )
    try:
        priced = package.calc_price(counted, model, provider_id=_PRICED_AS.get(provider, provider))
    except (LookupError, ValueError):
        # No price for this kind of token, or counts that contradict each other (more cached than input).
        return None
    return float(priced.total_price)


@cache
def _list_prices(provider: str, model: str) -> Prices | None:
    """Prices a token in the lowest tier, from what a thousand tokens cost."""

    def each(**counts: int) -> float | None:
        total = _priced_cost(provider, model, Usage(**counts))
        return None if total is None else total / 1_000

    given, taken = each(input_tokens=1_000), each(output_tokens=1_000)
    if given is None or taken is None:
        return None
    read, written = (each(input_tokens=1_000, **{kind: 1_000}) for kind in ("cached_tokens", "cache_write_tokens"))
    return Prices(given, taken, read, written)
