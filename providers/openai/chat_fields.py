"""How single things are written in a Chat Completions request: media, server tools, effort, log probabilities, formats.
The table of dialects says which server takes which form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from callboard.protocol.content import Media
from callboard.protocol.errors import UsageError
from callboard.protocol.server_tools import CodeExecution, ServerToolOffer, WebFetch, WebSearch
from callboard.providers.json_values import Body
from callboard.providers.request_encoding import data_url, file_name
from callboard.providers.schema_forms import SCHEMA_LISTS, SCHEMA_MAPS

# Media.


class MediaSource(StrEnum):
    """Where a medium is taken from, as messages call it."""

    BYTES = "data_base64"
    URL = "url"
    FILE_ID = "file_id"


def source_of(media: Media) -> MediaSource | None:
    """The source of a medium; None where it has none."""
    return next(
        (source for source in (MediaSource.URL, MediaSource.FILE_ID, MediaSource.BYTES) if getattr(media, source)), None
    )


class PartForm(Struct, frozen=True):
    """How one kind of medium is written, and from where a server takes it."""

    write: Callable[[Media], Body]
    sources: tuple[MediaSource, ...]
    media_types: tuple[str, ...] = ()
    """Of bytes; (): the server decides."""

    def takes(self, media: Media) -> bool:
        """May this medium be written so?"""
        source = source_of(media)
        if source is not MediaSource.BYTES or not self.media_types:
            return source in self.sources
        return source in self.sources and media.media_type in self.media_types

    def __str__(self) -> str:
        """What it takes, in words: "by data_base64 (audio/wav, audio/mpeg) or url"."""
        types = f" ({', '.join(self.media_types)})" if self.media_types else ""
        return "by " + " or ".join(source + (types if source is MediaSource.BYTES else "") for source in self.sources)


def image_part(media: Media) -> Body:
    """OpenAI's form; a file of Moonshot's is ms://ID."""
    return {"type": "image_url", "image_url": {"url": _file_or_data_url(media)}}


def video_part(media: Media) -> Body:
    """The form of OpenRouter, vLLM, Alibaba, Moonshot, Z.ai and Together."""
    return {"type": "video_url", "video_url": {"url": _file_or_data_url(media)}}


def audio_part(media: Media) -> Body:
    """OpenAI's form: bytes with the name of their format."""
    return {"type": "input_audio", "input_audio": {"data": media.data_base64, "format": _audio_format(media)}}


def alibaba_audio(media: Media) -> Body:
    """A URL in place of the bytes, `data:` or other (pydantic-ai, providers/alibaba.py: Qwen-Omni)."""
    return {"type": "input_audio", "input_audio": {"data": data_url(media), "format": _audio_format(media)}}


def mistral_audio(media: Media) -> Body:
    """Base64 or a URL, as it is."""
    return {"type": "input_audio", "input_audio": media.url or media.data_base64}


def file_part(media: Media) -> Body:
    """OpenAI's form; OpenRouter takes a URL in the place of `file_data`."""
    if media.file_id:
        return {"type": "file", "file": {"file_id": media.file_id}}
    return {"type": "file", "file": {"filename": file_name(media), "file_data": data_url(media)}}


def mistral_document(media: Media) -> Body:
    """A file that it keeps, or a URL, `data:` or other."""
    if media.file_id:
        return {"type": "file", "file_id": media.file_id}
    name = {"document_name": media.name} if media.name else {}
    return {"type": "document_url", "document_url": data_url(media), **name}


def perplexity_file(media: Media) -> Body:
    """Bytes without the `data:` in front of them."""
    name = {"file_name": media.name} if media.name else {}
    return {"type": "file_url", "file_url": {"url": media.url or media.data_base64}, **name}


def zai_file(media: Media) -> Body:
    """By its URL only."""
    return {"type": "file_url", "file_url": {"url": media.url}}


def _file_or_data_url(media: Media) -> str:
    return f"ms://{media.file_id.removeprefix('ms://')}" if media.file_id else data_url(media)


#: The names that formats have in requests, where they are not the second half of the media type.
_AUDIO_FORMATS: Final = {
    "audio/mpeg": "mp3",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mp4": "m4a",
    "audio/x-m4a": "m4a",
    "audio/pcm": "pcm16",
}


def _audio_format(media: Media) -> str:
    return _AUDIO_FORMATS.get(media.media_type, media.media_type.rpartition("/")[2])


# Server tools.


class ServerToolForm(Struct, frozen=True):
    """How one kind of server tool is asked for."""

    write: Callable[[ServerToolOffer, str], Body]
    """Fields of the request, for this offer and this model; those under "tools" join the others."""
    takes: tuple[str, ...] = ()
    """The fields of the offer that the server has; the others are noted."""


def openai_search(offer: ServerToolOffer, model: str) -> Body:
    """`web_search_options`; only the search models take it."""
    place = _place(offer, "country", "city", "region", "timezone")
    where = {"user_location": {"type": "approximate", "approximate": place}} if place else {}
    return {"web_search_options": where}


def openrouter_search(offer: ServerToolOffer, model: str) -> Body:
    """The server tool, which replaces the plugin `web` and `:online` ("Web Search")."""
    if not isinstance(offer, WebSearch):
        return {}
    place = _place(offer, "country", "city", "region", "timezone")
    parameters = {
        "allowed_domains": list(offer.allowed_domains),
        "excluded_domains": list(offer.blocked_domains),
        "user_location": {"type": "approximate", **place} if place else {},
    }
    return _openrouter_tool("openrouter:web_search", parameters)


def openrouter_fetch(offer: ServerToolOffer, model: str) -> Body:
    """Its server tool for single pages ("Web Fetch")."""
    if not isinstance(offer, WebFetch):
        return {}
    parameters = {
        "max_uses": offer.max_uses,
        "allowed_domains": list(offer.allowed_domains),
        "blocked_domains": list(offer.blocked_domains),
    }
    return _openrouter_tool("openrouter:web_fetch", parameters)


def _openrouter_tool(kind: str, parameters: Mapping[str, object]) -> Body:
    given = {name: value for name, value in parameters.items() if value}
    return {"tools": [{"type": kind, **({"parameters": given} if given else {})}]}


def perplexity_search(offer: ServerToolOffer, model: str) -> Body:
    """It searches in any case; this says where, and from where. A domain with a dash in front is left out."""
    if not isinstance(offer, WebSearch):
        return {}
    domains = [*offer.allowed_domains, *(f"-{domain}" for domain in offer.blocked_domains)]
    place = _place(offer, "country", "city", "region")
    return {
        **({"search_domain_filter": domains} if domains else {}),
        **({"web_search_options": {"user_location": place}} if place else {}),
    }


def _is_compound(model: str) -> bool:
    """Groq's compound systems have the tools; the other models are offered single ones."""
    return "compound" in model


def groq_search(offer: ServerToolOffer, model: str) -> Body:
    """Compound systems search; gpt-oss browses."""
    if not isinstance(offer, WebSearch):
        return {}
    settings = {
        "include_domains": list(offer.allowed_domains),
        "exclude_domains": list(offer.blocked_domains),
        "country": offer.country,
    }
    given = {name: value for name, value in settings.items() if value}
    if _is_compound(model):
        return {**_compound_tool("web_search"), **({"search_settings": given} if given else {})}
    if given:
        raise UsageError(f"{model} browses at Groq, where no {' or '.join(given)} can be set; ask groq/compound.")
    return {"tools": [{"type": "browser_search"}]}


def groq_code(offer: ServerToolOffer, model: str) -> Body:
    """The code interpreter of both."""
    if not isinstance(offer, CodeExecution):
        return {}
    return _compound_tool("code_interpreter") if _is_compound(model) else {"tools": [{"type": "code_interpreter"}]}


def groq_fetch(offer: ServerToolOffer, model: str) -> Body:
    """Of compound systems only. Raises UsageError for another model."""
    if not _is_compound(model):
        raise UsageError(
            f"{model} cannot fetch pages; at Groq groq/compound can. Offer it WebSearch, or change the model."
        )
    return _compound_tool("visit_website")


def _compound_tool(name: str) -> Body:
    return {"compound_custom": {"tools": {"enabled_tools": [name]}}}


def alibaba_search(offer: ServerToolOffer, model: str) -> Body:
    """A switch; the model decides whether to search."""
    return {"enable_search": True}


def zai_search(offer: ServerToolOffer, model: str) -> Body:
    """One domain at most. Raises UsageError for more."""
    domains = offer.allowed_domains if isinstance(offer, WebSearch) else ()
    if len(domains) > 1:
        raise UsageError(f"Z.ai's search takes one allowed domain, not {len(domains)}; give one, or none.")
    search: Body = {"enable": True, "search_engine": "search-prime", "search_result": True}
    return {
        "tools": [
            {"type": "web_search", "web_search": search | ({"search_domain_filter": domains[0]} if domains else {})}
        ]
    }


def _place(offer: ServerToolOffer, *names: str) -> Body:
    return {name: value for name in names if (value := getattr(offer, name, ""))}


# Knobs.


class EffortForm(Struct, frozen=True):
    """How hard a model is to think, in a server's words."""

    write: Callable[[str], Body]
    levels: bool = True
    """False: thinking is on or off, and the level is lost."""


def _switched(name: str, effort: str) -> Body:
    return {name: {"type": "disabled" if effort == "none" else "enabled"}}


def _deepseek_effort(effort: str) -> Body:
    return _switched("thinking", effort) | ({} if effort == "none" else {"reasoning_effort": effort})


FLAT_EFFORT: Final = EffortForm(lambda effort: {"reasoning_effort": effort})
OPENROUTER_EFFORT: Final = EffortForm(lambda effort: {"reasoning": {"effort": effort}})
#: Thinking is on by default; efforts that it does not have are mapped by the server ("Thinking Mode").
DEEPSEEK_EFFORT: Final = EffortForm(_deepseek_effort)
#: "none" is refused as an effort (pydantic-ai, providers/moonshotai.py).
MOONSHOT_EFFORT: Final = EffortForm(
    lambda effort: _switched("thinking", effort) if effort == "none" else {"reasoning_effort": effort}
)
ZAI_EFFORT: Final = EffortForm(lambda effort: _switched("thinking", effort), levels=False)
ALIBABA_EFFORT: Final = EffortForm(lambda effort: {"enable_thinking": effort != "none"}, levels=False)
#: "Thinking mode": `thinking` alone switches it; an effort has no effect (NousResearch/hermes-agent#17314).
MIMO_EFFORT: Final = ZAI_EFFORT
#: M3 thinks adaptively, or not (java.agentscope.io, "MiniMax Model").
MINIMAX_EFFORT: Final = EffortForm(
    lambda effort: {"thinking": {"type": "disabled" if effort == "none" else "adaptive"}}, levels=False
)


def _template(effort: str) -> Body:
    """What chat templates read: Qwen's and GLM's `enable_thinking`, DeepSeek's and Kimi's `thinking` (docs.sglang.io,
    "Reasoning Parser"). One that a template does not know changes nothing."""
    return {"enable_thinking": effort != "none", "thinking": effort != "none"}


#: gpt-oss's reads the effort.
TEMPLATE_EFFORT: Final = EffortForm(
    lambda effort: {"chat_template_kwargs": {**_template(effort), "reasoning_effort": effort}}
)
#: The effort is a field of its own; older vLLM refuses "none" in it (docs.vllm.ai, "Reasoning Outputs").
VLLM_EFFORT: Final = EffortForm(
    lambda effort: {
        "chat_template_kwargs": _template(effort),
        **({} if effort == "none" else {"reasoning_effort": effort}),
    }
)


class LogprobsForm(Struct, frozen=True):
    """How log probabilities are asked for."""

    write: Callable[[int], Body]
    """Fields of the request, by the number of other tokens in the place of each."""
    others: bool = True
    """False: only those of the answer's own tokens."""


#: OpenAI's two fields.
LOGPROBS_PAIR: Final = LogprobsForm(lambda count: {"logprobs": True, **({"top_logprobs": count} if count else {})})
#: Together's one number, from 1.
LOGPROBS_COUNT: Final = LogprobsForm(lambda count: {"logprobs": max(count, 1)})
LOGPROBS_FLAG: Final = LogprobsForm(lambda count: {"logprobs": True}, others=False)


def json_schema_format(schema: Mapping[str, object]) -> Body:
    """OpenAI's. `strict` is refused for schemas outside its subset; without it the schema is a strong hint."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": is_strict(schema)}}


def json_object_format(schema: Mapping[str, object]) -> Body:
    """Cohere's: the schema beside the type."""
    return {"type": "json_object", "schema": schema}


def is_strict(schema: object) -> bool:
    """Will OpenAI take this with `strict: true`? There every object closes itself and requires all its properties."""
    if not isinstance(schema, Mapping):
        return True
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if schema.get("type") == "object" or properties:
        closed = schema.get("additionalProperties") is False
        if not closed or sorted(map(str, required)) != sorted(map(str, properties)):
            return False
    return all(is_strict(child) for keyword, value in schema.items() for child in _children(keyword, value))


def _children(keyword: str, value: object) -> Iterable[object]:
    if keyword in SCHEMA_MAPS and isinstance(value, Mapping):
        return value.values()
    if keyword in SCHEMA_LISTS and isinstance(value, list | tuple):
        return value
    return (value,) if keyword == "items" else ()
