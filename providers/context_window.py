"""Asks servers how many tokens a model takes there: pure questions and answers, which transport.py carries.

What a server of one's own gives a model depends on how it was started, so no table knows it. Where each server tells:

- vLLM: `max_model_len` in /v1/models (vllm/entrypoints/openai/models/protocol.py, ModelCard); SGLang likewise
- Groq `context_window`, Mistral `max_context_length`, Together, Fireworks and Moonshot `context_length`, OpenRouter
  `context_length` and `top_provider.context_length` (the provider that it prefers): in /models
- llama.cpp: `default_generation_settings.n_ctx` in /props, of one slot (tools/server/README.md). Its /v1/models has the
  length of training, which says nothing about the server
- LM Studio: `loaded_context_length` in /api/v0/models (lmstudio.ai/docs/developer/rest), once the model is loaded
- Ollama: `context_length` in /api/ps once the model is loaded; before, only a `num_ctx` of its Modelfile, in /api/show,
  is sure (docs/context-length.mdx: by default 4k, 32k or 256k, depending on the memory of the graphics card)
- Copilot: `capabilities.limits` in /models (docs/wire.md 1.6)
- Anthropic: `max_input_tokens` in /v1/models/{model}; Gemini: `inputTokenLimit` in /v1beta/models/{model}

None of them charges for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from callboard.protocol.errors import CallboardError, said
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.providers.adapter import Inquirable, Provider
from callboard.providers.json_values import Json, dumps, loads

logger = logging.getLogger("callboard")

#: A list of models takes a server well under a second, OpenRouter's (the longest) about one; a request waits for it.
WINDOW_SECONDS: Final = 3.0
#: Less takes no model; the smallest that anyone serves for a test have 512.
MIN_WINDOW_TOKENS: Final = 128

Find = Callable[[Json, str], Iterator[Json]]
"""From a server's answer and the model's name to the values in it that may be the window, the surest first."""


class Source(Struct, frozen=True):
    """One place where a kind of server tells."""

    path: str
    """{api}: the API's address; {root}: that without its version; {model}: the model's name."""
    find: Find
    asks_by_name: bool = False
    """POST with the model's name."""


def _at(value: Json, *names: str) -> Json:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _entries(document: Json, of: str, model: str, *keys: str) -> Iterator[Json]:
    """Of the list `of` in the document (or the document itself, at Together): what is about this model."""
    listed = _at(document, of) if isinstance(document, dict) else document
    for entry in listed if isinstance(listed, list) else ():
        if any(_at(entry, key) in (model, f"{model}:latest") for key in keys):
            yield entry


def _in_list(document: Json, model: str) -> Iterator[Json]:
    # A variant that OpenRouter does not list (":nitro" for speed) is the model before the colon.
    for name in dict.fromkeys((model, model.partition(":")[0])):
        for entry in _entries(document, "data", name, "id"):
            yield _at(entry, "top_provider", "context_length")
            yield from (_at(entry, field) for field in _LISTED)


#: What the window is called in a list of models.
_LISTED: Final = ("max_model_len", "context_window", "max_context_length", "context_length")


def _in_props(document: Json, model: str) -> Iterator[Json]:
    yield _at(document, "default_generation_settings", "n_ctx")


def _in_lmstudio(document: Json, model: str) -> Iterator[Json]:
    return (_at(entry, "loaded_context_length") for entry in _entries(document, "data", model, "id"))


def _loaded_by_ollama(document: Json, model: str) -> Iterator[Json]:
    return (_at(entry, "context_length") for entry in _entries(document, "models", model, "name", "model"))


def _in_modelfile(document: Json, model: str) -> Iterator[Json]:
    parameters = _at(document, "parameters")
    found = re.search(r"^num_ctx\s+(\d{1,12})\s*$", parameters, re.MULTILINE) if isinstance(parameters, str) else None
    yield int(found[1]) if found else None


def _of_copilot(document: Json, model: str) -> Iterator[Json]:
    for entry in _entries(document, "data", model, "id"):
        limits = _at(entry, "capabilities", "limits")
        yield from (_at(limits, name) for name in ("max_prompt_tokens", "max_context_window_tokens"))


def _of_anthropic(document: Json, model: str) -> Iterator[Json]:
    yield _at(document, "max_input_tokens")


def _of_gemini(document: Json, model: str) -> Iterator[Json]:
    yield _at(document, "inputTokenLimit")


_LIST: Final = Source("{api}/models", _in_list)
_PROPS: Final = Source("{root}/props?model={model}", _in_props)
_LMSTUDIO: Final = Source("{root}/api/v0/models", _in_lmstudio)
_OLLAMA: Final = (
    Source("{root}/api/ps", _loaded_by_ollama),
    Source("{root}/api/show", _in_modelfile, asks_by_name=True),
)
#: Where to ask, by the name of the provider, in turn until one tells. Others: their list of models.
SOURCES: Final[Mapping[str, tuple[Source, ...]]] = {
    "llamacpp": (_PROPS,),
    "llamacpp-anthropic": (_PROPS,),
    "lmstudio": (_LMSTUDIO,),
    "lmstudio-anthropic": (_LMSTUDIO,),
    "openrouter-anthropic": (Source("{api}/v1/models", _in_list),),
    "ollama": _OLLAMA,
    "copilot": (Source("{api}/models", _of_copilot),),
    "anthropic": (Source("{api}/v1/models/{model}", _of_anthropic),),
    "gemini": (Source("{api}/v1beta/models/{model}", _of_gemini),),
    # The lists of the clouds say nothing of it; the price list knows most of their models.
    **dict.fromkeys(("azure", "azure-responses", "vertex", "bedrock"), ()),
    # Known by its address alone, it may be any of them.
    "openai-compatible": (_LIST, _PROPS, _LMSTUDIO, *_OLLAMA),
}


async def ask_window(provider: Provider, name: str, model: str) -> int | None:
    """How many tokens the server takes for this model; None where it does not tell in time. Never raises.

    `name` is the provider's in `provider/model`. A window that cannot be true is ignored, with a line in the log.
    """
    if not isinstance(provider, Inquirable):
        return None
    try:
        async with asyncio.timeout(WINDOW_SECONDS):
            for source in SOURCES.get(name, (_LIST,)):
                if (size := await _ask(provider, source, model)) is not None:
                    return size
    except TimeoutError:
        logger.debug("the server of %s/%s did not say within %g s what its window is", name, model, WINDOW_SECONDS)
    return None


async def _ask(provider: Inquirable, source: Source, model: str) -> int | None:
    try:
        path = source.path.replace("{model}", quote(model.removeprefix("models/"), safe="/"))
        answer = await provider.inquire(path, dumps({"model": model}) if source.asks_by_name else None)
        found = source.find(loads(answer.body), model) if answer.status == 200 else iter(())
        return next((size for size in map(_checked, found) if size is not None), None)
    except (CallboardError, ValueError) as error:
        logger.debug("the window of %s could not be asked for at %s: %s", model, source.path, said(error))
        return None


def _checked(value: Json) -> int | None:
    if value is None:
        return None
    if type(value) is int and MIN_WINDOW_TOKENS <= value <= MAX_CALL_TOKENS:
        return value
    logger.warning("a server says that a model takes %.40r tokens; that cannot be true and is ignored", value)
    return None
