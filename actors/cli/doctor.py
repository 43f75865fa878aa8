"""`callboard doctor`: for each configured provider what is set, what a call of a few tokens answers, and what to do;
and how tools are confined on this machine, by what the kernel has and by one that is tried.

It never shows a key, and tries nothing again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard import Runtime, RuntimeFailure, Settings, UsageError, tool
from callboard.actors.cli.advice import advice
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.columns import counted, print_wrapped
from callboard.actors.cli.model_choice import with_model
from callboard.actors.cli.terminal import printable
from callboard.actors.models.routing import Router
from callboard.actors.processes.confinement import Confine
from callboard.actors.processes.keeper import about_confinement, containment
from callboard.actors.settings import OFFLINE_MODEL
from callboard.protocol.content import UserMessage
from callboard.protocol.masking import for_log
from callboard.protocol.model import ModelRequest, ModelResponse, Sampling
from callboard.providers.adapter import Provider
from callboard.providers.example_models import CHEAPEST
from callboard.providers.model_end import end_of_service
from callboard.providers.provider_registry import KEY_VARIABLES, split_model
from callboard.providers.provider_table import ROWS
from callboard.providers.rate_limit import RateLimits
from callboard.providers.response_builder import ResponseBuilder

#: The least that OpenAI's Responses API takes.
ANSWER_TOKENS: Final = 16
#: A call of a few tokens takes a second or two; a local server may have to load its model first.
PATIENCE_SECONDS: Final = 60.0
#: A model that ends within so many days is warned about; OpenAI announces it half a year ahead.
WARNED_DAYS: Final = 90
#: Of the answer, enough to see that it is one.
SHOWN_CHARS: Final = 40
_RAN: Final = "a tool that declares risk='read' was tried, and ran"


class Finding(Struct, frozen=True):
    """What was found about one model."""

    model: str
    key: str
    answered: bool
    what: str
    todo: str = ""
    note: str = ""
    address: str = ""
    """What says where it is, and where; "": its usual place."""

    def __str__(self) -> str:
        lines = [f"{'ok  ' if self.answered else 'FAIL'} {self.model}", f"    key:    {self.key}"]
        lines += [f"    at:     {self.address}" if self.address else ""]
        lines += [f"    answer: {self.what}", f"    to do:  {self.todo}" if self.todo else ""]
        lines += [f"    note:   {self.note}" if self.note else ""]
        return "\n".join(for_log(printable(line)) for line in lines if line)


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Raises RuntimeFailure (exit status 1) if the configured model does not answer."""
    settings = await with_model(settings_of(options))
    split_model(settings.model)
    models = [settings.model] if options.model else list(_configured(settings))
    findings, wrong = await asyncio.gather(
        asyncio.gather(*(_examine(settings, model) for model in models)), _why_no_tool_runs(settings.confine)
    )
    tried = f"FAIL a tool that declares risk='read' was tried: {wrong}" if wrong else f"ok   {_RAN}"
    print_wrapped("\n".join(map(str, findings)), " " * len("    answer: "))
    print_wrapped("\n".join(map(str, (containment(), about_confinement(settings.confine), printable(tried)))))
    if not findings[0].answered:
        raise RuntimeFailure(f"{settings.model} does not answer; {findings[0].todo}")
    if wrong:
        raise RuntimeFailure("tools in processes do not run here: see what was said of the one that was tried")


@tool(risk="read", timeout=PATIENCE_SECONDS)
def answer() -> str:
    """For the doctor: loading it in its process imports callboard, as tools do."""
    return _RAN


async def _why_no_tool_runs(confine: Confine) -> str:
    """What a tool of ours says that does not run as it is confined here; "" where it does."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(confine=confine, state_dir=Path(folder))
        try:
            async with Runtime(settings, tools=[answer]) as runtime:
                result = await runtime.call_tool(answer.name, {})
        except UsageError as error:  # it is required, and this machine cannot
            return str(error)
        return "" if result.failure is None else result.failure.message


def _configured(settings: Settings) -> Iterator[str]:
    """The model, its fallbacks, then one model of every other provider whose key variable is set."""
    chosen = dict.fromkeys((settings.model, *settings.fallback_models))
    yield from chosen
    seen = {KEY_VARIABLES.get(split_model(model)[0]) for model in chosen}
    for provider, variable in KEY_VARIABLES.items():
        if variable not in seen and settings.key_for(provider):
            seen.add(variable)
            yield f"{provider}/{CHEAPEST.get(provider, '')}"


async def _examine(settings: Settings, model: str) -> Finding:
    return replace(await _tried(settings, model), address=_address(settings, model.partition("/")[0]))


def _address(settings: Settings, provider: str) -> str:
    try:
        address, source = settings.address_for(provider)
    except UsageError:  # it is the answer
        return ""
    return f"{address} (by {source})" if address else ""


async def _tried(settings: Settings, model: str) -> Finding:
    provider, _, name = model.partition("/")
    key = _key(settings, provider)
    if not name:
        todo = f"ask a model of it: callboard doctor --model {provider}/MODEL"
        return Finding(provider, key, False, "not asked, no model of it is chosen", todo)
    try:
        route = Router(settings, RateLimits(time.monotonic, settings.rate_limits)).route(model)
        started = time.monotonic()
        response, end = await _ask(route.provider, route.model, ROWS[provider].api.startswith("OpenAI"))
    except UsageError as error:
        return Finding(model, key, False, "not asked", str(error))
    except TimeoutError:
        return Finding(model, key, False, f"nothing within {PATIENCE_SECONDS:g} s", "check the address, or try again")
    seconds = time.monotonic() - started
    if (failed := response.error) is not None:
        status = f"HTTP {failed.status}, " if failed.status else ""
        return Finding(model, key, False, f"{status}{failed.kind}: {failed.message}", advice(failed.kind, model))
    text = " ".join(response.text.split())[:SHOWN_CHARS]
    made = response.usage.output_tokens if response.usage else 0
    tokens = f", {counted(made, 'token')}" if made else ""
    note = _about_its_end(end, datetime.now(UTC).date()) if end else ""
    if model == OFFLINE_MODEL:
        note = "this asks no model; to try one: callboard doctor --model PROVIDER/MODEL"
    return Finding(model, key, True, f"{text!r} in {seconds:.1f} s{tokens}", note=note)


def _about_its_end(end: date, today: date) -> str:
    """A warning, where the server says that the model will soon be gone."""
    days = (end - today).days
    if days > WARNED_DAYS:
        return ""
    when = f"in {counted(days, 'day')}" if days > 0 else "by now"
    return f"the server says that this model goes out of service on {end} ({when}); choose another with --model"


def _key(settings: Settings, provider: str) -> str:
    if source := settings.key_source(provider):
        return f"{source} is set"
    row = ROWS[provider]
    if row.sign_in:
        return f"none; instead of one, {row.sign_in}"
    return f"{row.key_variable} is not set" if row.key_variable else "none needed"


async def _ask(provider: Provider, name: str, lists_models: bool) -> tuple[ModelResponse, date | None]:
    """Its answer, and the day on which the server says that the model ends, if it is one that does."""
    request = ModelRequest(name, (UserMessage.of("Say ok."),), sampling=Sampling(max_output_tokens=ANSWER_TOKENS))
    builder = ResponseBuilder()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for events in provider.stream(request):
                builder.feed(events)
        response = builder.response()
        return response, None if response.error or not lists_models else await end_of_service(provider, name)
    finally:
        await provider.aclose()
