"""Requests of Bedrock's Converse API (botocore's service model `bedrock-runtime`, 2023-09-30). converse_api.py has the
adapter, and reads the answers."""

from __future__ import annotations

import itertools
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from callboard.protocol import content, model
from callboard.protocol.content import json_text
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import PromptCache, ToolChoiceMode
from callboard.protocol.server_tools import CodeExecution, ServerToolOffer, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.anthropic.messages_requests import (
    ADAPTIVE_EFFORTS,
    ADAPTIVE_MODEL,
    DEFAULT_MAX_TOKENS,
    THINKING_BUDGETS,
)
from callboard.providers.json_values import Body
from callboard.providers.schema_dialects import (
    ANTHROPIC,
    ANTHROPIC_ANSWER,
    ANTHROPIC_STRICT,
    BEDROCK,
    BEDROCK_STRICT,
    NOVA,
    SchemaDialect,
)

ORIGIN: Final = "bedrock"
#: Converse refuses a message with a document and without a text (API reference, `Message`).
BESIDE_DOCUMENT: Final = "(The document is attached.)"
#: `format` by media type, for each kind of part.
FORMATS: Final[Mapping[type[content.Media], Mapping[str, str]]] = {
    content.Image: {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"},
    content.Document: {
        "application/pdf": "pdf",
        "text/csv": "csv",
        "application/msword": "doc",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
        "application/vnd.ms-excel": "xls",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
        "text/html": "html",
        "text/plain": "txt",
        "text/markdown": "md",
    },
    content.Video: {
        "video/x-matroska": "mkv",
        "video/quicktime": "mov",
        "video/mp4": "mp4",
        "video/webm": "webm",
        "video/x-flv": "flv",
        "video/mpeg": "mpeg",
        "video/x-ms-wmv": "wmv",
        "video/3gpp": "three_gp",
    },
    content.Audio: {
        "audio/mpeg": "mp3",
        "audio/mp3": "mp3",
        "audio/opus": "opus",
        "audio/wav": "wav",
        "audio/x-wav": "wav",
        "audio/aac": "aac",
        "audio/flac": "flac",
        "audio/mp4": "m4a",
        "audio/x-m4a": "m4a",
        "audio/ogg": "ogg",
        "audio/webm": "webm",
    },
}
#: What a result may hold besides text (`ToolResultContentBlock`).
_IN_RESULTS: Final = (content.Image, content.Document, content.Video)
#: What a document's name may hold; it may not have two spaces in a row (`DocumentBlock.name`).
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9\-()\[\]]+")
_MAX_NAME_CHARS: Final = 180
#: The Claude models without prompt caching: 403 "You invoked an unsupported model or your request did not allow prompt
#: caching" (litellm #39210).
_UNCACHED_CLAUDE: Final = re.compile(r"claude-(?:v2|instant|3-(?:haiku|sonnet|opus)|3-5-sonnet-20240620)")
#: Nova caches system and messages; a cache point among its tools is a 400 (LibreChat #13838, probed with Nova Lite).
_CACHING_NOVA: Final = re.compile(r"nova-(?:micro|lite|pro|premier|2-)")
#: Nova's own tools (Nova User Guide, "Using built-in tools").
_SYSTEM_TOOLS: Final[Mapping[type, str]] = {WebSearch: "nova_grounding", CodeExecution: "nova_code_interpreter"}
_SYSTEM_TOOL_MODELS: Final = ("nova-2", "nova-premier")
#: Other models take one of three (Nova 2 User Guide, "Extended thinking"; OpenAI's gpt-oss).
_THREE_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
#: By what is in a model's name: the schemas of its tools, and those of strict ones.
_TOOL_DIALECTS: Final[Mapping[str, tuple[SchemaDialect, SchemaDialect]]] = {
    "claude": (ANTHROPIC, ANTHROPIC_STRICT),
    "amazon.nova": (NOVA, NOVA),
    "": (BEDROCK, BEDROCK_STRICT),
}
_NOVA_ROOT: Final = ("type", "properties", "required")
#: Bedrock takes four cache points; tools and system have one each.
_MESSAGE_CACHE_POINTS: Final = 2


class ConverseEncoding(encoding.TurnEncoding):
    """One request being written."""

    cites_documents: ClassVar[bool] = True

    def __init__(self, request: model.ModelRequest) -> None:
        super().__init__(request, ORIGIN)
        self._is_claude = "claude" in request.model
        self._names: set[str] = set()
        """The names of documents, which are unique in a request."""
        self._whole_tools: Collection[str] = ()
        """The ids of the provider's own calls in a turn that have their results there."""

    def body(self) -> Body:
        """The body; the model is in the address."""
        request = self.request
        system, history = encoding.split_system(encoding.rewrite_call_ids(request.messages, encoding.ANTHROPIC_IDS))
        for message in history:
            self._message(message)
        if not self.turns:
            raise UsageError("Bedrock needs at least one message besides the instructions")
        tools = self._tools()
        body: Body = {"messages": [{"role": role, "content": blocks} for role, blocks in self.turns]}
        if system.strip():
            body["system"] = [{"text": system}]
        if tools:
            body["toolConfig"] = tools
        more: Body = {}
        config = self._sampling(request.sampling)
        output = self._thinking(self.request.sampling, config, more)  # a forced call may have changed it
        if adapted := self.answer_schema(ANTHROPIC_ANSWER):
            schema = {"schema": json_text(adapted.schema), "name": "answer"}
            output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
        if request.service_tier:
            body["serviceTier"] = {"type": request.service_tier}
        parts = {"inferenceConfig": config, "outputConfig": output, "additionalModelRequestFields": more}
        body.update((name, part) for name, part in parts.items() if part)
        self._mark_cache(body)
        self._note_the_rest()
        return body

    # History.

    def _message(self, message: content.Message) -> None:
        if isinstance(message, content.AssistantMessage):
            self._whole_tools = _whole_server_tools(message)
            blocks = [block for part in message.parts if (block := self._part(part)) is not None]
            if all(map(_is_text_or_call, blocks)):
                # Another provider's turn may hold text behind a call; results must come directly behind the calls.
                blocks.sort(key=lambda block: "toolUse" in block)
            self.say("assistant", blocks)
        elif isinstance(message, content.ToolMessage):
            self.say("user", [self._result(message)])
        else:
            self.say_asked(message)

    def say(self, role: str, parts: list[Body]) -> None:
        """See TurnEncoding. A document needs a text beside it."""
        if any("document" in part for part in parts) and not any("text" in part for part in parts):
            parts = [self.text(BESIDE_DOCUMENT), *parts]
        super().say(role, parts)

    def _part(self, part: content.AssistantPart) -> Body | None:
        own = encoding.own_replay(part.replay, ORIGIN)
        if isinstance(part, content.ToolCall):
            name, arguments = encoding.called_name(part), encoding.arguments_object(part)
            return {"toolUse": {"toolUseId": part.call_id, "name": name, "input": arguments}}
        if isinstance(part, content.Text):
            return self._text(part, own)
        if isinstance(part, content.Thinking):
            return self._reasoning(part, own)
        if isinstance(part, content.ServerTool):
            return self._server_block(part, own)
        return self.text(self.in_place_of(part, encoding.OF_AN_ANSWER)) if own is None else self.media(part)

    def _server_block(self, part: content.ServerTool, own: Mapping[str, object] | None) -> Body | None:
        """A block of a tool that the provider ran, as it came; one half of a pair that was cut would be refused."""
        if own is None:
            self.note_left_out(part)
        elif part.call_id in self._whole_tools:
            return dict(own)
        else:
            self.note(f"{part.kind}: its call and its result are not both there; left out")
        return None

    def _text(self, part: content.Text, own: Mapping[str, object] | None) -> Body | None:
        if own and "citations" in own:
            return {"citationsContent": {"content": [{"text": part.text}], "citations": own["citations"]}}
        return self.text(part.text) if part.text.strip() else None

    def _reasoning(self, part: content.Thinking, own: Mapping[str, object] | None) -> Body | None:
        """Thinking of this API's own. Claude refuses it without its signature, DeepSeek any (strands-agents)."""
        if own is None:
            return None
        if "redactedContent" in own:
            return {"reasoningContent": {"redactedContent": own["redactedContent"]}}
        if "signature" in own:
            return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": own["signature"]}}}
        if self._is_claude or "deepseek" in self.request.model or not part.text:
            self.note("reasoning: this model takes none back without a signature; left out")
            return None
        return {"reasoningContent": {"reasoningText": {"text": part.text}}}

    def _result(self, message: content.ToolMessage) -> Body:
        blocks: list[Body] = [{"text": message.content}] if message.content.strip() else []
        for media in message.media:
            if isinstance(media, _IN_RESULTS) and _is_taken(media):
                blocks.append(self.media(media))
            else:
                blocks.append(self.text(self.in_place_of(media, f"in the result of {message.name}")))
        result: Body = {"toolUseId": message.call_id, "content": blocks or [self.text(encoding.NO_OUTPUT)]}
        return {"toolResult": {**result, "status": "error"} if message.is_error else result}

    def text(self, text: str) -> Body:
        return {"text": text}

    def media(self, media: content.Media) -> Body:
        """A picture, document, film or sound: by its bytes, or an address in S3."""
        if (media_format := _format_of(media)) is None:
            raise encoding.refused_part(media, self.request.model, _taken())
        block: Body = {"format": media_format, "source": self._source(media)}
        if isinstance(media, content.Document):
            block["name"] = self._unique_name(media.name)
            if media.citations:
                block["citations"] = {"enabled": True}
        return {type(media).__name__.lower(): block}

    def _source(self, media: content.Media) -> Body:
        if isinstance(media, content.Document) and media.text:
            return {"bytes": b64encode(media.text.encode("utf-8", "replace")).decode()}
        if media.url.startswith("s3://"):
            return {"s3Location": {"uri": media.url}}
        if media.url or media.file_id:
            raise UsageError(
                f"{self.request.model} takes no {encoding.kind_of(media)} by "
                f"{'its url' if media.url else 'a file_id'} here; give its data_base64, or an s3:// address as its url."
            )
        return {"bytes": encoding.media_bytes(media)[1]}

    def _unique_name(self, name: str) -> str:
        name = _NOT_IN_NAMES.sub(" ", name).strip()[:_MAX_NAME_CHARS] or "document"
        tries = (f"{name} ({count})" if count > 1 else name for count in itertools.count(1))
        unique = next(each for each in tries if each not in self._names)
        self._names.add(unique)
        return unique

    # The rest of the body.

    def _tools(self) -> Body:
        request = self.request
        dialects = next(row for maker, row in _TOOL_DIALECTS.items() if maker in request.model)
        offered = self.adapted_tools(*dialects, ANTHROPIC_ANSWER)
        tools: list[Body] = [_tool(_of_nova(tool) if NOVA in dialects else tool) for tool in offered]
        tools += [{"systemTool": {"name": self._system_tool(offer)}} for offer in request.server_tools]
        mode = request.tool_choice.mode
        if mode is ToolChoiceMode.NONE and tools:
            self.note("tool_choice none: the API has no such choice; " + self._without_tools(tools))
        if not tools and (tools := self._used_tools()):
            # "The toolConfig field must be defined when using toolUse and toolResult content blocks."
            self.note("no tools: the API wants those declared that the conversation has used; it was given their names")
        if not tools:
            return {}
        choices: Mapping[ToolChoiceMode, Body] = {
            ToolChoiceMode.REQUIRED: {"any": {}},
            ToolChoiceMode.NAMED: {"tool": {"name": request.tool_choice.name}},
        }
        choice = choices.get(mode)
        if choice is not None and self._is_claude and not self.may_force_call():
            choice = None
        return {"tools": tools} | ({"toolChoice": choice} if choice else {})

    def _without_tools(self, tools: list[Body]) -> str:
        if self._used_tools():
            return "the model may call one"
        tools.clear()
        return "the tools were left out"

    def _used_tools(self) -> list[Body]:
        """All tools that the conversation has used, declared by their names alone."""
        blocks = (block for _, blocks in self.turns for block in blocks)
        uses = [use for block in blocks if isinstance(use := block.get("toolUse"), Mapping)]
        own = dict.fromkeys(ToolName(str(use["name"])) for use in uses if "type" not in use)
        servers = dict.fromkeys(use["name"] for use in uses if "type" in use)
        tools = [_tool(ToolDefinition(name, "", {"type": "object"})) for name in own]
        return tools + [{"systemTool": {"name": name}} for name in servers]

    def _system_tool(self, offer: ServerToolOffer) -> str:
        has = _SYSTEM_TOOLS if any(each in self.request.model for each in _SYSTEM_TOOL_MODELS) else {}
        name = has.get(type(offer))
        if name is None:
            hint = "" if has else "Amazon Nova 2 and Nova Premier have some."
            raise self.refused_tool(offer, has, hint)
        self.check_options(offer, ())
        return name

    def _sampling(self, sampling: model.Sampling) -> Body:
        sent: Body = {
            name: value
            for name, value in (("temperature", sampling.temperature), ("topP", sampling.top_p))
            if value is not None
        }
        if sampling.max_output_tokens is not None:
            sent["maxTokens"] = sampling.max_output_tokens
        return {**sent, "stopSequences": list(sampling.stop)} if sampling.stop else sent

    def _thinking(self, sampling: model.Sampling, config: Body, more: Body) -> Body:
        """Adds what makes the model think as hard as asked; returns what belongs in `outputConfig`."""
        effort, name = sampling.reasoning_effort, self.request.model
        if effort is None:
            return {}
        if self._is_claude:
            return self._claude_thinking(effort, config, more)
        if effort != "none" and effort not in _THREE_EFFORTS:
            raise UsageError(
                f"reasoning_effort {effort!r} is unknown here; use one of none, {', '.join(_THREE_EFFORTS)}"
            )
        if "nova-2" in name:
            more["reasoningConfig"] = {"type": "disabled"}
            if effort != "none":
                more["reasoningConfig"] = {"type": "enabled", "maxReasoningEffort": _THREE_EFFORTS[effort]}
        elif "gpt-oss" in name and effort != "none":
            more["reasoning_effort"] = _THREE_EFFORTS[effort]
        else:
            self.note(f"reasoning_effort {effort}: no way to tell this model so is known; left out")
        return {}

    def _claude_thinking(self, effort: str, config: Body, more: Body) -> Body:
        is_adaptive = ADAPTIVE_MODEL.search(self.request.model) is not None
        if effort == "none":
            more.update({"thinking": {"type": "disabled"}} if is_adaptive else {})
            return {}
        efforts: Mapping[str, object] = ADAPTIVE_EFFORTS if is_adaptive else THINKING_BUDGETS
        if effort not in efforts:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of none, {', '.join(efforts)}")
        if config.get("temperature") not in (None, 1, 1.0):
            raise UsageError("Claude takes no temperature with thinking: drop reasoning_effort or temperature")
        if is_adaptive:
            more["thinking"] = {"type": "adaptive"}
            return {"effort": ADAPTIVE_EFFORTS[effort]}
        if self._is_in_unthought_tool_loop():
            self.note("reasoning_effort: left out, since the open tool turn does not start with own thinking")
            return {}
        budget, limit = THINKING_BUDGETS[effort], self.request.sampling.max_output_tokens
        if limit is not None and limit <= budget:
            budget = max(limit // 2, THINKING_BUDGETS["minimal"])
        if limit is not None and limit <= budget:
            raise UsageError(f"max_output_tokens must be above {budget} to think, not {limit}")
        config["maxTokens"] = limit or DEFAULT_MAX_TOKENS + budget
        more["thinking"] = {"type": "enabled", "budget_tokens": budget}
        return {}

    def _is_in_unthought_tool_loop(self) -> bool:
        """Are results of a turn being sent that another model (or this one without thinking) began? Claude refuses to
        think on: "Expected `thinking` or `redacted_thinking`, but found `tool_use`"."""
        if len(self.turns) < 2 or "toolResult" not in self.turns[-1][1][0]:
            return False
        return "reasoningContent" not in self.turns[-2][1][0]

    # Prompt caching.

    def _mark_cache(self, body: Body) -> None:
        """Cache points behind tools (Claude), behind the instructions, and behind the last two of the user's turns."""
        cache, name = self.request.prompt_cache, self.request.model
        claude = self._is_claude and not _UNCACHED_CLAUDE.search(name)
        if not (claude or _CACHING_NOVA.search(name)):
            self.note_own_cache()
            return
        if cache is PromptCache.OFF:
            return
        point: Body = {"cachePoint": {"type": "default"}}
        if cache is PromptCache.ONE_HOUR:
            if claude:
                point = {"cachePoint": {"type": "default", "ttl": "1h"}}
            else:
                self.note("prompt_cache 1h: this model keeps its cache for five minutes")
        config, system = body.get("toolConfig"), body.get("system")
        if claude and isinstance(config, dict):
            config["tools"] = [*config["tools"], point]
        if isinstance(system, list):
            system.append(point)
        marked = 0
        for role, blocks in reversed(self.turns):
            if role == "user" and marked < _MESSAGE_CACHE_POINTS and (claude or "toolResult" not in blocks[-1]):
                marked += _mark_turn(blocks, point)

    def _note_the_rest(self) -> None:
        """What a request may ask for, and this API has not. Raises UsageError for sound, without which an answer is
        another one."""
        request, sampling = self.request, self.request.sampling
        if request.audio_out is not None:
            raise self.refused_sound()
        asked = {
            "seed": sampling.seed is not None,
            "logprobs": sampling.logprobs is not None,
            "parallel_tool_calls": request.parallel_tool_calls is not None,
            "images_out": request.images_out,
        }
        self.notes += [f"{name}: the API has none; left out" for name, is_asked in asked.items() if is_asked]


def _format_of(media: content.Media) -> str | None:
    """The API's word for a medium's type; None where it has none."""
    text = isinstance(media, content.Document) and media.text
    return FORMATS.get(type(media), {}).get(media.media_type or ("text/plain" if text else ""))


def _is_taken(media: content.Media) -> bool:
    """Does the API take it, by this source too?"""
    return _format_of(media) is not None and not media.file_id and (not media.url or media.url.startswith("s3://"))


def _whole_server_tools(message: content.AssistantMessage) -> set[str]:
    """The ids of those calls of the provider's own tools whose results are in the turn too."""
    blocks = [part for part in message.parts if isinstance(part, content.ServerTool)]
    results = {part.call_id for part in blocks if part.kind == "toolResult"}
    return {part.call_id for part in blocks if part.kind == "toolUse"} & results


def _is_text_or_call(block: Body) -> bool:
    """And no call of a tool that the provider runs itself."""
    use = block.get("toolUse")
    return "text" in block or (isinstance(use, dict) and "type" not in use)


def _of_nova(tool: ToolDefinition) -> ToolDefinition:
    """At the root of its parameters nothing but these three is taken; what else is said there goes before them."""
    parameters = {keyword: value for keyword, value in tool.parameters.items() if keyword in _NOVA_ROOT}
    return replace(tool, description=encoding.with_root_words(tool), parameters=parameters)


def _tool(tool: ToolDefinition) -> Body:
    spec: Body = {"name": tool.name, "inputSchema": {"json": tool.parameters}}
    if tool.description:  # an empty one is refused
        spec["description"] = tool.description
    return {"toolSpec": {**spec, "strict": True} if tool.strict else spec}


def _mark_turn(blocks: list[Body], point: Body) -> bool:
    """Puts a cache point into a turn: one directly behind a document or a film is refused (pydantic-ai)."""
    place = len(blocks)
    while place and blocks[place - 1].keys() & {"document", "video"}:
        place -= 1
    if place:
        blocks.insert(place, point)
    return place > 0


def _taken() -> str:
    """What can be sent, for an error."""
    return ", ".join(["text", *_kinds(FORMATS)])


def _kinds(formats: Mapping[type[content.Media], Iterable[str]]) -> Iterator[str]:
    for kind, media_types in formats.items():
        yield f"{kind.__name__} ({', '.join(media_types)})"
