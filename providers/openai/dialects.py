"""Where servers that speak Chat Completions differ: one value each, so that one encoder and one decoder serve all.

A column says what a server takes; the defaults suit a server of which nothing is known. Behind each row is where its
values come from: pages of the makers' documentation by their names, or threads of public repositories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from callboard.protocol.content import Audio, Document, Image, Media, Video
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ToolChoiceMode
from callboard.protocol.server_tools import CodeExecution, ServerToolOffer, WebFetch, WebSearch
from callboard.providers.json_values import Body
from callboard.providers.openai import chat_fields as fields
from callboard.providers.openai.chat_fields import MediaSource, PartForm, ServerToolForm
from callboard.providers.request_encoding import MISTRAL_IDS, OPENAI_IDS, OPENAI_IMAGES, CallIdRule, checked_url
from callboard.providers.schema_dialects import CEREBRAS_STRICT, OPENAI_STRICT, SchemaDialect


class StrictTools(StrEnum):
    """How a server takes `strict` on tools."""

    EACH = "each"
    """On each tool by itself."""
    SAME = "same"
    """All tools of a request or none."""
    NEVER = "never"
    """The field is refused or has no meaning."""


#: Models of this family, wherever they run, refuse a user's message directly after tool results: their own API by code
#: 3230, their chat templates on vLLM and NIM by a 400 (NousResearch/hermes-agent#20154, aliou/pi-neuralwatt#12).
MISTRAL_FAMILY: Final = re.compile(r"(mistral|ministral|magistral|mixtral|devstral|codestral|pixtral)", re.IGNORECASE)
_EVERY_MODEL: Final = re.compile("")
_NO_MODEL: Final = re.compile(r"(?!)")

_BYTES, _URL, _FILE_ID = MediaSource.BYTES, MediaSource.URL, MediaSource.FILE_ID
_IMAGES: Final = PartForm(fields.image_part, (_BYTES, _URL))
_IMAGE_BYTES: Final = PartForm(fields.image_part, (_BYTES,))
_VIDEOS: Final = PartForm(fields.video_part, (_BYTES, _URL))
_SOUNDS: Final = PartForm(fields.audio_part, (_BYTES,))
_WAV_OR_MP3: Final = ("audio/wav", "audio/x-wav", "audio/wave", "audio/mpeg", "audio/mp3")


class ChatDialect(Struct, frozen=True):
    """One server's Chat Completions."""

    name: str = "openai-compatible"
    """Also the first column of the error table."""
    base_url: str = ""
    """Where the API lives, without `path`; "" must be given by the user."""
    key_variable: str = ""
    """The environment variable in which its users keep the key; "" where it needs none."""
    path: str = "/chat/completions"
    """Behind the address; {model} in it is the model's name."""
    key_header: str = ""
    """The header that takes the bare key, such as Azure's "api-key"; "": a bearer token."""

    # Fields of a request.
    max_tokens_field: str = "max_tokens"
    seed_field: str = "seed"
    """ "" where there is none."""
    stream_usage: bool = True
    """Send `stream_options.include_usage`; without it most servers send no usage in a stream."""
    effort: fields.EffortForm | None = fields.FLAT_EFFORT
    """None: as the model's maker has it, where its name says who that is."""
    logprobs: fields.LogprobsForm | None = fields.LOGPROBS_PAIR
    """None: the server has none."""
    answer_format: Callable[[Mapping[str, object]], Body] | None = fields.json_schema_format
    """None: it knows only that an answer is JSON; the schema goes into the instructions."""
    strict_answers: bool = False
    """It keeps a schema for certain where every object closes itself and requires all its properties, and takes any
    other for a hint, or not at all. Servers that make a grammar of it keep more of it as it is."""
    strict_answer_models: re.Pattern[str] = _EVERY_MODEL
    """Those of its models; the others take `strict: false`."""
    json_mode: bool = True
    """It has JSON mode, which needs no schema: `response_format` {"type": "json_object"}."""
    service_tiers: bool = True
    modalities: tuple[str, ...] = ()
    """What it can answer with beside text: "image", "audio"."""
    streamed_audio: str = ""
    """The only format of sound in a streamed answer; "": whichever was asked for."""
    cached_models: re.Pattern[str] = _NO_MODEL
    """Models whose prompts are cached only up to `cache_control` marks."""

    # Messages.
    call_ids: CallIdRule = OPENAI_IDS
    notes_as_user: bool = True
    """A system message is taken at the start only; later ones go as the user's text, marked. Chat templates of Qwen and
    others refuse them (vllm-project/vllm#41114, ggml-org/llama.cpp#20733), and more than one at the start too. Messages
    of one role must not follow each other (perplexityai/api-discussion#265, charmbracelet/crush#279), and the first one
    is the user's."""
    bridged_models: re.Pattern[str] = MISTRAL_FAMILY
    """Models that need a turn of their own between tool results and the user's next message."""
    empty_text: bool = False
    """May a message be empty? xAI and Moonshot refuse that ("content must not be empty")."""
    text_parts: bool = True
    """False: texts alone are one text, never a list of parts."""
    parts: Mapping[type[Media], PartForm] = field(
        default_factory=lambda: MappingProxyType(
            {
                Image: _IMAGES,
                Document: PartForm(fields.file_part, (_BYTES, _URL, _FILE_ID)),
                Audio: _SOUNDS,
                Video: _VIDEOS,
            }
        )
    )
    """The media that a user's message may have."""
    result_media: tuple[type[Media], ...] = ()
    """Those that the result of a tool may have too."""
    reasoning_replay_field: str = ""
    """The field of an assistant message in which the server wants reasoning back, whichever the model; "": it follows
    from the model's name (model_rules.py)."""
    blank_reasoning: bool = False
    """Each turn with calls needs that field, "" where there is no reasoning, whichever the model."""
    thinking_parts: bool = False
    """It wants its reasoning back as parts of the content (Mistral)."""

    # Tools.
    strict: StrictTools = StrictTools.EACH
    strict_schemas: SchemaDialect = OPENAI_STRICT
    """The subset of JSON Schema that a strict tool or answer must keep to."""
    tool_choices: frozenset[ToolChoiceMode] = frozenset(ToolChoiceMode)
    required_word: str = "required"
    allowed_tools: bool = False
    """It takes `tool_choice` {"type": "allowed_tools"}; elsewhere only the tools that may be called are offered."""
    parallel_flag: bool = True
    """It takes `parallel_tool_calls`."""
    server_tools: Mapping[type[ServerToolOffer], ServerToolForm] = field(default_factory=dict)

    # Answers.
    merge_choices: bool = False
    """The parts of one answer come as several choices (Copilot with Claude); else all but choice 0 are ignored."""
    finish_optional: bool = False
    """The server is known to end a whole turn without finish_reason and [DONE] (docs/wire.md quirk 23)."""
    think_tags: bool = False
    """`<think>...</think>` at the start of the text is reasoning. Off: the text stays as the model wrote it."""

    def address(self, base_url: str | None) -> str:
        """Where to ask: the user's address, or the server's usual one. Raises UsageError where there is neither."""
        if not (base_url or self.base_url):
            raise UsageError(
                f"{self.name} has no address of its own; give its base_url (--base-url), such as http://localhost:8000/v1."
            )
        return checked_url(base_url, self.base_url)


SEES: Final[Mapping[type[Media], PartForm]] = MappingProxyType({Image: _IMAGES})
"""Pictures beside text, and nothing else."""
_SEES_AND_WATCHES: Final[Mapping[type[Media], PartForm]] = MappingProxyType({Image: _IMAGES, Video: _VIDEOS})
_BUT_NAMED: Final = frozenset(ToolChoiceMode) - {ToolChoiceMode.NAMED}

OPENAI: Final = ChatDialect(
    # API reference, "Create chat completion". The reasoning models refuse max_tokens (docs/wire.md 1.1), the others
    # take both. Sound of a streamed answer: guide "Audio and speech". Files have no URL here: the SDK's FileFile.
    "openai-chat",
    "https://api.openai.com/v1",
    "OPENAI_API_KEY",
    max_tokens_field="max_completion_tokens",
    notes_as_user=False,
    bridged_models=_NO_MODEL,
    empty_text=True,
    strict_answers=True,
    allowed_tools=True,  # the SDK's ChatCompletionAllowedToolChoiceParam
    modalities=("audio",),
    streamed_audio="pcm16",
    parts=MappingProxyType(
        {
            Image: PartForm(fields.image_part, (_BYTES, _URL), OPENAI_IMAGES),
            Document: PartForm(fields.file_part, (_BYTES, _FILE_ID)),
            Audio: PartForm(fields.audio_part, (_BYTES,), _WAV_OR_MP3),
        }
    ),
    server_tools={
        WebSearch: ServerToolForm(fields.openai_search, ("country", "city", "region", "timezone")),
    },
)
#: Chat templates of the open reasoning models read it there, within a turn at least.
_REASONING: Final = "reasoning_content"

_ROWS: Final = (
    OPENAI,
    ChatDialect(modalities=("image", "audio"), effort=None),
    ChatDialect(
        # "OpenAI compatibility": images in base64 only, no log probabilities; `reasoning` of a message is read.
        "ollama",
        "http://localhost:11434/v1",
        parts=MappingProxyType({Image: _IMAGE_BYTES}),
        logprobs=None,
        service_tiers=False,
        reasoning_replay_field="reasoning",
    ),
    ChatDialect(
        # "Multimodal Inputs": image_url, video_url, input_audio. `reasoning_content` is now `reasoning`
        # (vllm-project/vllm#27752).
        "vllm",
        "http://localhost:8000/v1",
        effort=fields.VLLM_EFFORT,
        parts=MappingProxyType({Image: _IMAGES, Video: _VIDEOS, Audio: _SOUNDS}),
        service_tiers=False,
        reasoning_replay_field="reasoning",
    ),
    ChatDialect(
        # tools/server/README.md: tool_choice is a text there; effort goes to the chat template.
        "llamacpp",
        "http://localhost:8080/v1",
        parts=MappingProxyType({Image: _IMAGES, Audio: PartForm(fields.audio_part, (_BYTES,), _WAV_OR_MP3)}),
        tool_choices=_BUT_NAMED,
        effort=fields.TEMPLATE_EFFORT,
        service_tiers=False,
        reasoning_replay_field=_REASONING,
    ),
    # "'response_format.type' must be 'json_schema' or 'text'" (lmstudio-ai/lmstudio-bug-tracker#189).
    ChatDialect("lmstudio", "http://localhost:1234/v1", parts=SEES, json_mode=False, service_tiers=False),
    ChatDialect(
        # "API Reference": logprobs "not yet supported". "Built-In Tools", "Browser Search", "Web Search". "Structured
        # Outputs": all fields required, additionalProperties false; `strict: true` at these two models only. A message
        # has `reasoning` (SDK, Chat Completions); other fields are refused ("property 'reasoning_content' is
        # unsupported").
        "groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        strict_answers=True,
        strict_answer_models=re.compile(r"^openai/gpt-oss-(?:20b|120b)$"),
        parts=SEES,
        logprobs=None,
        reasoning_replay_field="reasoning",
        server_tools={
            WebSearch: ServerToolForm(fields.groq_search, ("allowed_domains", "blocked_domains", "country")),
            CodeExecution: ServerToolForm(fields.groq_code),
            WebFetch: ServerToolForm(fields.groq_fetch),
        },
    ),
    ChatDialect(
        # API specification "Chat": tool_choice "any", random_seed, document_url, input_audio as one text. Sends usage
        # unasked and refuses fields it does not know (422 extra_forbidden). Reasoning goes back as thinking parts
        # (vercel/ai, @ai-sdk/mistral 3.0.52).
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        stream_usage=False,
        seed_field="random_seed",
        call_ids=MISTRAL_IDS,
        bridged_models=_EVERY_MODEL,
        required_word="any",
        logprobs=None,
        service_tiers=False,
        thinking_parts=True,
        parts=MappingProxyType(
            {
                Image: _IMAGES,
                Document: PartForm(fields.mistral_document, (_BYTES, _URL, _FILE_ID)),
                Audio: PartForm(fields.mistral_audio, (_BYTES, _URL)),
            }
        ),
    ),
    ChatDialect(
        # "REST API Reference". Its search on this API is gone (410 since 2026, vercel/ai#15713): only Responses has it.
        "xai",
        "https://api.x.ai/v1",
        "XAI_API_KEY",
        parts=SEES,
        service_tiers=False,
    ),
    ChatDialect(
        # "Your First API Call", "Thinking Mode", "JSON Output" (json_object only). It wants its reasoning back while it
        # calls tools, and ignores it afterwards. A list where one text would do is refused ("invalid type: sequence,
        # expected a string", QwenLM/qwen-code#2320); its newest models see.
        "deepseek",
        "https://api.deepseek.com",
        "DEEPSEEK_API_KEY",
        parts=SEES,
        text_parts=False,
        effort=fields.DEEPSEEK_EFFORT,
        answer_format=None,
        service_tiers=False,
        reasoning_replay_field=_REASONING,
    ),
    ChatDialect(
        # "Chat" and "Use the Kimi Vision Model": base64 or ms://FILE, no other URL; max_tokens is deprecated.
        # "Migrating from OpenAI": no tool_choice "required". Its $web_search is a call that the client must echo, so it
        # is not offered.
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        max_tokens_field="max_completion_tokens",
        parts=MappingProxyType(
            {
                Image: PartForm(fields.image_part, (_BYTES, _FILE_ID)),
                Video: PartForm(fields.video_part, (_BYTES, _FILE_ID)),
            }
        ),
        effort=fields.MOONSHOT_EFFORT,
        answer_format=None,
        strict=StrictTools.NEVER,
        tool_choices=frozenset(ToolChoiceMode) - {ToolChoiceMode.REQUIRED},
        service_tiers=False,
        reasoning_replay_field=_REASONING,
    ),
    ChatDialect(
        # "OpenAI compatibility", "Chat Completions": logprobs is a number there. "Vision": image_url and video_url.
        "together",
        "https://api.together.ai/v1",
        "TOGETHER_API_KEY",
        parts=_SEES_AND_WATCHES,
        logprobs=fields.LOGPROBS_COUNT,
        service_tiers=False,
    ),
    ChatDialect(
        # "Create Chat Completion", "Reasoning" (reasoning_content goes back; reasoning_history), "Vision models".
        "fireworks",
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        parts=SEES,
        reasoning_replay_field=_REASONING,
    ),
    ChatDialect(
        # "Chat Completions". "Tools with mixed values for 'strict' are not allowed" (mpfaffenberger/code_puppy#368).
        # "Reasoning": gpt-oss reads `reasoning`. "Image Inputs": base64 only. "Structured Outputs": every object says
        # additionalProperties: false.
        "cerebras",
        "https://api.cerebras.ai/v1",
        "CEREBRAS_API_KEY",
        strict_answers=True,
        parts=MappingProxyType({Image: PartForm(fields.image_part, (_BYTES,), ("image/png", "image/jpeg"))}),
        strict=StrictTools.SAME,
        strict_schemas=CEREBRAS_STRICT,
        reasoning_replay_field="reasoning",
    ),
    ChatDialect(
        # "Chat Completions": the SDK's CompletionCreateParams; response_format is json_schema or regex. It always
        # searches; the tool sets where. "File Attachments": file_url with bare base64.
        "perplexity",
        "https://api.perplexity.ai",
        "PERPLEXITY_API_KEY",
        parts=MappingProxyType({Image: _IMAGES, Document: PartForm(fields.perplexity_file, (_BYTES, _URL))}),
        seed_field="",
        json_mode=False,
        tool_choices=_BUT_NAMED,
        service_tiers=False,
        server_tools={
            WebSearch: ServerToolForm(
                fields.perplexity_search, ("allowed_domains", "blocked_domains", "country", "city", "region")
            ),
        },
    ),
    ChatDialect(
        # "OpenAI compatible - Chat", "Deep thinking" (enable_thinking), "Web search" (enable_search), "Visual
        # understanding", "Omni-modal". "Structured output": a schema for the newest models only.
        "alibaba",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        parts=MappingProxyType({Image: _IMAGES, Video: _VIDEOS, Audio: PartForm(fields.alibaba_audio, (_BYTES, _URL))}),
        effort=fields.ALIBABA_EFFORT,
        answer_format=None,
        modalities=("audio",),
        service_tiers=False,
        server_tools={WebSearch: ServerToolForm(fields.alibaba_search)},
    ),
    ChatDialect(
        # "Chat Completion": tool_choice is "auto" only, response_format text or json_object, files and videos by URL.
        # "Thinking Mode": reasoning_content goes back with tool results. "Web Search in Chat".
        "zai",
        "https://api.z.ai/api/paas/v4",
        "ZAI_API_KEY",
        parts=MappingProxyType(
            {
                Image: _IMAGES,
                Video: PartForm(fields.video_part, (_URL,)),
                Document: PartForm(fields.zai_file, (_URL,)),
            }
        ),
        seed_field="",
        effort=fields.ZAI_EFFORT,
        logprobs=None,
        answer_format=None,
        tool_choices=frozenset({ToolChoiceMode.AUTO}),
        parallel_flag=False,
        service_tiers=False,
        reasoning_replay_field=_REASONING,
        server_tools={WebSearch: ServerToolForm(fields.zai_search, ("allowed_domains",))},
    ),
    ChatDialect(
        # Inference Providers, "Chat Completion".
        "huggingface",
        "https://router.huggingface.co/v1",
        "HF_TOKEN",
        parts=SEES,
        service_tiers=False,
    ),
    ChatDialect(
        # NIM for LLMs and VLMs, "API Reference", hosted at build.nvidia.com. Thinking by the template's own switches
        # (anomalyco/opencode#24264).
        "nvidia",
        "https://integrate.api.nvidia.com/v1",
        "NVIDIA_API_KEY",
        effort=fields.VLLM_EFFORT,
        parts=_SEES_AND_WATCHES,
        service_tiers=False,
    ),
    ChatDialect(
        # "Using Cohere models via the OpenAI SDK": no parallel_tool_calls; json_object with a schema. `strict` is
        # an unknown field of a tool (OpenRouterTeam/openrouter-examples#71); tool_choice is REQUIRED or NONE.
        "cohere",
        "https://api.cohere.ai/compatibility/v1",
        "COHERE_API_KEY",
        parts=SEES,
        logprobs=fields.LOGPROBS_FLAG,
        answer_format=fields.json_object_format,
        strict=StrictTools.NEVER,
        tool_choices=_BUT_NAMED,
        parallel_flag=False,
        service_tiers=False,
    ),
)

SERVERS: Final = {row.name: row for row in _ROWS}
