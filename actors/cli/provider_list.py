"""`callboard models`: which models can be asked now, every provider with its key, and all of one provider or model."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from callboard import Settings, UsageError
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.columns import columns_of, print_wrapped, table
from callboard.actors.cli.model_choice import PROVIDER
from callboard.actors.cli.terminal import print_json, print_line, printable
from callboard.actors.config_file import similar
from callboard.actors.settings import OFFLINE_MODEL
from callboard.protocol.errors import ProviderError
from callboard.protocol.masking import for_log
from callboard.providers.adapter import Timeouts
from callboard.providers.catalog import ModelInfo
from callboard.providers.example_models import CHEAPEST, EXAMPLES, example
from callboard.providers.provider_table import ROWS, ProviderRow

_PROVIDERS: Final = ("PROVIDER", "KEY", "EXTRA", "WHAT IT IS")
_MODELS: Final = ("MODEL", "WHY IT CAN BE ASKED")
#: Servers on one's own machine, which need no key: they are asked what they have.
_LOCAL_SERVERS: Final = ("ollama", "vllm", "llamacpp", "lmstudio")
#: A server on this machine answers at once, or is none.
_LOCAL_TIMEOUTS: Final = Timeouts(connect_seconds=1.0, idle_seconds=2.0, total_seconds=2.0)
#: Whose keys are named to one who has none.
_SUGGESTED: Final = ("openai", "anthropic", "gemini")
_MILLION: Final = 1_000_000


class UsableModel(Struct, frozen=True):
    """A model that can be asked with what is set up now."""

    model: str
    why: str


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Tables for people, or JSON, which also says where an address is documented."""
    settings, columns = settings_of(options), columns_of(sys.stdout)
    if options.name is not None:
        _print_named(options.name, settings, as_json=options.json)
    elif options.providers:
        if options.json:
            print_json([_as_json(row) for row in ROWS.values()])
        else:
            print_line(table([_PROVIDERS, *map(_cells, ROWS.values())], columns))
    else:
        found = await usable_models(settings)
        if options.json:
            print_json([asdict(each) for each in found])
            return
        rows = [(printable(each.model), printable(each.why)) for each in found]
        print_line(table([_MODELS, *rows], columns) + "\n")
        print_wrapped(_how_to_get_more(settings), "")


# -- what can be asked now


async def usable_models(settings: Settings) -> list[UsableModel]:
    """The chosen one first, then one of each provider whose key is set, what servers on this machine have, and the one
    that needs nothing."""
    asking = [_served(settings, provider) for provider in _LOCAL_SERVERS]
    if settings.base_url is not None and not settings.model:  # of that one `ask` would take a model
        asking.insert(0, _served(settings.model_copy(update={"model": f"{PROVIDER}/"}), PROVIDER))
    served = await asyncio.gather(*asking)
    every = [*_chosen(settings), *_with_keys(settings), *(each for found in served for each in found)]
    every.append(UsableModel(OFFLINE_MODEL, "it needs nothing: the code index answers, no model"))
    return list({each.model: each for each in reversed(every)}.values())[::-1]


def _chosen(settings: Settings) -> Iterator[UsableModel]:
    if settings.model and not _lacks(settings):
        yield UsableModel(settings.model, f"it is the chosen one; {_key(settings, settings.provider)}")


def _lacks(settings: Settings) -> str:
    """Why the chosen model cannot be asked; "" where it can."""
    row = ROWS.get(settings.provider)
    if row is None:
        return f"there is no provider {settings.provider!r:.60}"
    needs_key = row.key_variable and not row.sign_in and not settings.key_source(row.name)
    return f"{row.key_variable} is not set" if needs_key else ""


def _with_keys(settings: Settings) -> Iterator[UsableModel]:
    seen = {""}
    for row in ROWS.values():
        source = settings.key_source(row.name)
        if source not in seen:
            seen.add(source)
            model = EXAMPLES.get(row.name) or CHEAPEST.get(row.name) or "NAME"
            yield UsableModel(f"{row.name}/{model}", f"{source} is set")


async def _served(settings: Settings, provider: str) -> list[UsableModel]:
    """What a server has that runs where one of this kind usually does."""
    from callboard.providers.openai.served_models import served_models  # noqa: PLC0415 - it loads what connects

    try:
        address = settings.address_for(provider)[0] or ROWS[provider].address
        names = await served_models(address, settings.key_for(provider), _LOCAL_TIMEOUTS)
    except (ProviderError, UsageError):  # none runs there: most people have none
        return []
    return [UsableModel(f"{provider}/{name}", for_log(f"it is served at {address}")) for name in names]


def _how_to_get_more(settings: Settings) -> str:
    missing = [name for name in _SUGGESTED if not settings.key_source(name)]
    keys = ", ".join(f"{ROWS[name].key_variable} for {example(name)}" for name in missing)
    chosen = f"{settings.model} is chosen, but {lack}. " if settings.model and (lack := _lacks(settings)) else ""
    more = f"For others, set the key of a provider ({keys}) or start a server such as ollama. " if missing else ""
    return f"{chosen}{more}`callboard models --providers` lists all providers, `callboard models NAME` tells of one."


# -- one provider or model


def _print_named(name: str, settings: Settings, *, as_json: bool) -> None:
    """Raises UsageError for a provider that there is not."""
    provider, _, model = name.partition("/")
    row = ROWS.get(provider)
    if row is None:
        raise UsageError(
            f"there is no provider {provider!r:.60}{similar(provider, ROWS)}; `callboard models --providers` lists them"
        )
    info = settings.catalog.info(provider, model) if model else None
    if as_json:
        print_json(_as_json(row) | ({} if info is None else {"model": name, **_known_of(info)}))
        return
    told = dict(_about_provider(row, settings))
    if info is not None:
        window = "not known" if info.context_tokens is None else f"{info.context_tokens:,} tokens"
        told |= {"context window": window, "price": _price(info)}
    lines = [f"  {title}: {text}" for title, text in told.items() if text]
    print_wrapped("\n".join(map(printable, [name, *lines])), "    ")


def _about_provider(row: ProviderRow, settings: Settings) -> Iterator[tuple[str, str]]:
    yield "what it is", row.what
    yield "wire API", row.api
    yield "key", _key(settings, row.name)
    yield "instead of a key", row.sign_in
    yield "extra", row.extra
    yield "address", _address(row, settings)
    yield "documented at", row.source
    for option, names in row.variables.items():
        yield f"{option} is read from", ", ".join(names)
    if named := EXAMPLES.get(row.name) or CHEAPEST.get(row.name):
        yield "such as", f"{row.name}/{named}"


def _price(info: ModelInfo) -> str:
    if info.prices is None:
        return "not known"
    given, made = info.prices.input * _MILLION, info.prices.output * _MILLION
    if not given and not made:
        return "nothing"
    return f"{given:,.2f} US dollars for a million tokens of input, {made:,.2f} of output"


def _known_of(info: ModelInfo) -> dict[str, object]:
    prices = info.prices
    return {
        "context_tokens": info.context_tokens,
        "input_price": None if prices is None else prices.input,
        "output_price": None if prices is None else prices.output,
    }


def _key(settings: Settings, provider: str) -> str:
    row = ROWS[provider]
    if source := settings.key_source(provider):
        return f"{source} is set"
    return f"{row.key_variable} is not set" if row.key_variable else "it needs no key" if not row.sign_in else "none"


# -- all providers


def _cells(row: ProviderRow) -> tuple[str, ...]:
    key = row.key_variable or ("a login" if row.sign_in else "none")
    return row.name, key, row.extra or "-", row.what


def _address(row: ProviderRow, settings: Settings) -> str:
    """Where the settings say that it is, and what says so; else its usual place."""
    try:
        address, source = settings.address_for(row.name)
    except UsageError as error:
        return str(error)
    usual = row.address or ("" if row.is_local else "your own (--base-url)")
    return for_log(f"{address} (by {source})") if address else usual


def _as_json(row: ProviderRow) -> dict[str, object]:
    return {
        "name": row.name,
        "api": row.api,
        "what": row.what,
        "address": row.address,
        "source": row.source,
        "key_variable": row.key_variable,
        "sign_in": row.sign_in,
        "extra": row.extra,
        "variables": {option: list(names) for option, names in row.variables.items()},
    }
