"""What is known of models without asking anyone: context window and prices. Every line can be overridden.

Both come from the package `genai-prices` (Pydantic; its data ships in the wheel, nothing is fetched). What it does not
know is None, not a guess: a cost of 0 says that the model is free. `context_window.py` asks servers for windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

from callboard.protocol.errors import UsageError
from callboard.protocol.limits import MAX_CALL_COST, MAX_CALL_TOKENS
from callboard.protocol.model import PromptCache, Usage

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

#: Our provider names to those of genai-prices, where they differ.
_PRICED_AS: Final[Mapping[str, str]] = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "gemini": "google",
    "copilot": "github-copilot",
    "xai": "x-ai",
    "moonshot": "moonshotai",
    "azure-responses": "azure",
    "vertex": "google",
    "bedrock": "aws",
    "deepseek-anthropic": "deepseek",
    "moonshot-anthropic": "moonshotai",
    "zai-anthropic": "zai",
    "minimax-anthropic": "minimax",
    "openrouter-anthropic": "openrouter",
}
#: Where the package has no window: by the start of the model's name. What such a model can take at most; a server of
#: one's own may give it less, so that these are not asked here.
_WINDOWS: Final = (("gemini-", 1_048_576), ("gemma-3", 131_072), ("llama-3", 131_072), ("llama-4", 131_072))
#: Models of one's own: a token costs nothing there.
LOCAL: Final = frozenset(
    {"offline", "scripted", "ollama", "vllm", "llamacpp", "lmstudio", "llamacpp-anthropic", "lmstudio-anthropic"}
)
#: Nothing is looked up for these. A server that was given by its address alone may be one's own, or lead to another
#: (a gateway on this machine, a forwarded port): what it costs is not known.
_NOT_LISTED: Final = LOCAL | {"openai-compatible"}
#: Longer than any name of a model: what a server sends as a name is looked up, and remembered.
_MAX_NAME_CHARS: Final = 200
#: Prices are measured with so many tokens where no other number is given: below the first tier of every price list.
_FEW_TOKENS: Final = 1_000
#: What costs something else than text: where the list has no price of its own for it, the cost of a call with it is not
#: known. Tokens that were read from a cache or written to it fall back to the plain rate.
_OWN_PRICES: Final[Mapping[str, str]] = {
    "web_searches": "web_searches_kcount",
    "input_audio_tokens": "input_audio_mtok",
    "output_audio_tokens": "output_audio_mtok",
    "output_image_tokens": "output_image_mtok",
}
#: Google names a price for sound only where it differs from that of text.
_ONE_INPUT_PRICE: Final = frozenset({"gemini", "vertex"})


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars a token. UsageError for a price that is none."""

    input: float
    output: float
    cached: float | None = None
    """Input read from the cache; None: as other input."""
    cache_write: float | None = None
    """Input written to the cache; None: as other input."""
    cache_write_1h: float | None = None
    """Input written to the cache for an hour; None: as `cache_write`."""
    web_search: float = 0.0
    """US dollars for one search by the provider's own tool."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write", "cache_write_1h", "web_search"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise UsageError(f"the price {name!r} must be a number of US dollars from 0 on, got {price}")

    def cost(self, usage: Usage) -> float:
        """US dollars. Usage counts cached tokens within input, reasoning within output."""
        fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        minutes = usage.cache_write_tokens - usage.cache_write_1h_tokens
        return (
            max(fresh, 0) * self.input
            + usage.cached_tokens * (self.input if self.cached is None else self.cached)
            + max(minutes, 0) * self.written(PromptCache.FIVE_MINUTES)
            + usage.cache_write_1h_tokens * self.written(PromptCache.ONE_HOUR)
            + usage.output_tokens * self.output
            + usage.web_searches * self.web_search
        )

    def written(self, cache: PromptCache) -> float:
        """US dollars for a token of input that the provider keeps for so long."""
        prices = {PromptCache.ONE_HOUR: (self.cache_write_1h, self.cache_write), PromptCache.OFF: ()}
        given = (price for price in prices.get(cache, (self.cache_write,)) if price is not None)
        return next(given, self.input)


#: Of a model that costs nothing: `Catalog({"openai-compatible/*": ModelInfo(prices=FREE)})` for a server of one's own.
FREE: Final = Prices(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model; None is not known. UsageError for a window that is none."""

    context_tokens: int | None = None
    """Input and output together."""
    prices: Prices | None = None
    """List prices. Tiers (long contexts) are in `Catalog.cost` and `Catalog.dearest` only."""

    def __post_init__(self) -> None:
        window = self.context_tokens
        if window is not None and (type(window) is not int or not 1 <= window <= MAX_CALL_TOKENS):
            raise UsageError(f"context_tokens must be a number of tokens from 1 to {MAX_CALL_TOKENS}, got {window!r}")


@dataclass(frozen=True, slots=True)
class Catalog:
    """`overrides` are by "provider/model", or "provider/*" for all of a provider's. UsageError for another key."""

    overrides: Mapping[str, ModelInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := [name for name in self.overrides if not all(name.partition("/"))]:
            raise UsageError(f'a catalog names models "provider/model" or "provider/*", got {wrong[0]!r}')

    def info(self, provider: str, model: str) -> ModelInfo:
        """What is known of a model; an override that leaves something out leaves it to the price list."""
        given = self._given(provider, model)
        prices = given.prices or (FREE if _is_free(provider, model) else _list_prices(provider, model, _FEW_TOKENS))
        return ModelInfo(given.context_tokens or _window(provider, model), prices)

    def dearest(
        self, provider: str, model: str, context_tokens: int, cache: PromptCache = PromptCache.OFF
    ) -> Prices | None:
        """The prices that a call of up to so many tokens can come to: of the highest tier that it can reach, and with
        all of its input written to the cache, where that costs more."""
        known = self.info(provider, model).prices
        if known is None:
            return None
        full = known
        if not (self._given(provider, model).prices or _is_free(provider, model)):
            full = _list_prices(provider, model, max(context_tokens, _FEW_TOKENS)) or known
        inputs = (price for each in (known, full) for price in (each.input, each.written(cache)))
        return Prices(max(inputs), max(known.output, full.output))

    def cost(
        self,
        provider: str,
        model: str,
        usage: Usage | None,
        raw_usage: Mapping[str, object] | None = None,
        answered_by: str = "",
    ) -> float | None:
        """US dollars for one call, None where its price or its tokens are not known (a prompt is never empty).

        What the provider says it charged (OpenRouter's `usage.cost`) comes before any table, unless it makes no sense:
        NaN, a negative amount, or more than MAX_CALL_COST. Then an override, then the list price of `answered_by` (the
        model that answered, in the provider's words), then that of the model asked.
        """
        charged = _charged(raw_usage or {})
        if charged is not None:
            return charged
        given = self._given(provider, model, answered_by).prices
        if given == FREE or (given is None and _is_free(provider, model)):
            return 0.0
        if usage is None or not usage.input_tokens:
            return None
        if given is not None:
            return given.cost(usage)
        listed = (_list_cost(provider, name, usage) for name in dict.fromkeys((answered_by, model)))
        return next((float(dollars) for dollars in listed if dollars is not None), None)

    def cost_of(
        self, name: str, usage: Usage | None, raw_usage: Mapping[str, object], answered_by: str
    ) -> float | None:
        """`cost`, of a model named "provider/model"."""
        provider, _, model = name.partition("/")
        return self.cost(provider, model, usage, raw_usage, answered_by)

    def _given(self, provider: str, *models: str) -> ModelInfo:
        keys = [f"{provider}/{name}" for name in (*models, "*")]
        return next((self.overrides[key] for key in keys if key in self.overrides), ModelInfo())


def _is_free(provider: str, model: str) -> bool:
    """Models of one's own, and what OpenRouter gives away (its names for that end so)."""
    return provider in LOCAL or (provider in ("openrouter", "openrouter-anthropic") and model.endswith(":free"))


def _charged(raw_usage: Mapping[str, object]) -> float | None:
    """What the provider says it charged. OpenRouter, with a key of the user's own for the provider behind it, charges
    its fee only (`is_byok`), and names what the provider charges besides."""
    charged = _dollars(raw_usage.get("cost"))
    if charged is None or raw_usage.get("is_byok") is not True:
        return charged
    details = raw_usage.get("cost_details")
    behind = _dollars(details.get("upstream_inference_cost")) if isinstance(details, Mapping) else None
    return None if behind is None else charged + behind


def _dollars(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_CALL_COST else None


# -- the price list


@cache
def _package() -> ModuleType:
    import genai_prices  # noqa: PLC0415 - with its data 0.15 s and 9 MB, which a free model does not need

    return genai_prices


def _window(provider: str, model: str) -> int | None:
    if provider in _NOT_LISTED:
        return None
    bare = model.rpartition("/")[2]
    return _listed_window(provider, model) or next((size for start, size in _WINDOWS if bare.startswith(start)), None)


@lru_cache(maxsize=1024)
def _listed_window(provider: str, model: str) -> int | None:
    priced = _priced(provider, model, Usage())
    return None if priced is None else priced.model.context_window


def _list_cost(provider: str, model: str, usage: Usage) -> Decimal | None:
    """US dollars by the price list. A model that is in it without both prices is not known to be free."""
    priced = _priced(provider, model, usage)
    if priced is None or priced.model_price.input_mtok is None or priced.model_price.output_mtok is None:
        return None
    for count, price in _OWN_PRICES.items():
        is_plain = count == "input_audio_tokens" and provider in _ONE_INPUT_PRICE
        if getattr(usage, count) and not is_plain and getattr(priced.model_price, price, None) is None:
            return None
    return priced.total_price


def _priced(provider: str, model: str, usage: Usage) -> PriceCalculation | None:
    if provider in _NOT_LISTED or not 0 < len(model) <= _MAX_NAME_CHARS:
        return None
    if provider == "vertex":
        model = model.rpartition("/")[2]  # without its publisher
    package = _package()
    try:
        counted = package.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
            input_audio_tokens=usage.input_audio_tokens or None,
            # How much of the sound was cached is not told: as little as there can have been, which costs the most.
            cache_audio_read_tokens=(
                max(usage.cached_tokens + usage.input_audio_tokens - usage.input_tokens, 0)
                if usage.input_audio_tokens
                else None
            ),
            output_audio_tokens=usage.output_audio_tokens or None,
            output_image_tokens=usage.output_image_tokens or None,
            web_searches=usage.web_searches or None,
        )
        priced: PriceCalculation = package.calc_price(counted, model, provider_id=_PRICED_AS.get(provider, provider))
        return priced
    except (LookupError, ValueError):
        # Not in the list; no price for this kind of token; counts that cannot be true, or contradict each other (more
        # cached than input).
        return None


@lru_cache(maxsize=1024)
def _list_prices(provider: str, model: str, tokens: int) -> Prices | None:
    """Prices a token in a call of so many input tokens, from what such calls cost."""

    def dollars(**counts: int) -> Decimal | None:
        return _list_cost(provider, model, Usage(input_tokens=tokens, **counts))

    given, both = dollars(), dollars(output_tokens=_FEW_TOKENS)
    if given is None or both is None:
        return None
    searched = dollars(web_searches=1)

    def a_token(**counts: int) -> float | None:
        each = dollars(**counts)
        return None if each is None else float(each / tokens)

    return Prices(
        float(given / tokens),
        float((both - given) / _FEW_TOKENS),
        a_token(cached_tokens=tokens),
        a_token(cache_write_tokens=tokens),
        a_token(cache_write_tokens=tokens, cache_write_1h_tokens=tokens),
        0.0 if searched is None else float(searched - given),
    )
