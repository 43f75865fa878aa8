"""Anthropic Messages: how a request is written. Facts: docs/wire.md 1.3, quirks 31-39, 57, 73 and 82."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from msgspec.structs import replace

from callboard.protocol import content, model, server_tools
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.anthropic.cache_marks import mark_prompt
from callboard.providers.anthropic.messages_dialects import MessagesDialect
from callboard.providers.anthropic.server_blocks import CONTAINER, FOUND_TOOLS, found_tools, is_call, own_citations
from callboard.providers.json_values import Body
from callboard.providers.model_rules import Thinks, family_of, is_own, thinking_of
from callboard.providers.schema_dialects import ANTHROPIC, ANTHROPIC_ANSWER, ANTHROPIC_STRICT

#: `max_tokens` is required. 8,192 is the smallest output limit among the models that are still served.
DEFAULT_MAX_TOKENS: Final = 8_192
#: Tokens of thinking for an effort, where a model wants a budget; the API's least is 1,024.
THINKING_BUDGETS: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
#: Where the model decides itself how much to think, it takes these instead.
ADAPTIVE_EFFORTS: Final = {"minimal": "low"} | {effort: effort for effort in ("low", "medium", "high", "xhigh", "max")}
#: Claude 4.6 and later: `thinking: adaptive`. A date ("claude-opus-4-20250514") has no minor version.
ADAPTIVE_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[6-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: Claude 4.7 and later: thinking comes back empty beside its signature, unless its display is asked for (jin-bo/agentao
#: PR 296; the SDK's ThinkingConfigAdaptiveParam).
NEWER_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[7-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: "Claude Haiku 4.5, Sonnet 4.5, Opus 4.5 and all newer models" search for tools (platform.claude.com, "Tool search
#: tool"; so does pydantic-ai's profiles/anthropic.py).
SEARCHING_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[5-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: By natural language; the other one, "regex", takes patterns. No beta header is needed by now (the same page).
_TOOL_SEARCH: Final = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
#: How the names of both begin.
_TOOL_SEARCHES: Final = "tool_search_tool_"
#: The modes that force a call, and the API's words for them.
_FORCED: Final = {ToolChoiceMode.REQUIRED: "any", ToolChoiceMode.NAMED: "tool"}
SERVICE_TIERS: Final = ("auto", "standard_only")

#: What the API reads (the SDK's Base64ImageSourceParam, Base64PDFSourceParam and PlainTextSourceParam).
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF: Final = "application/pdf"
_TEXT: Final = "text/plain"
_MEDIA_TYPES: Final = {content.Image: _IMAGES, content.Document: (_PDF, _TEXT)}

#: What must be asked for in the header `anthropic-beta` (the SDK's AnthropicBetaParam).
FILES_BETA: Final = "files-api-2025-04-14"
MCP_BETA: Final = "mcp-client-2025-11-20"


class MessagesEncoding(encoding.TurnEncoding):
    """One request, in the words of one dialect. `betas` are known once the body is written."""

    cites_documents: ClassVar[bool] = True

    def __init__(self, request: model.ModelRequest, dialect: MessagesDialect) -> None:
        is_asked = request.tool_search is not None and dialect.searches_tools
        searches = is_asked and SEARCHING_MODEL.search(request.model) is not None
        super().__init__(encoding.searched_by_provider(request, dialect.origin) if searches else request, dialect.name)
        self._deferred = {tool.name for tool in self.request.tools if tool.deferred and searches}
        """The tools that the model is to search for."""
        self._dialect = dialect
        self._family = family_of(request.model) if dialect.takes_unsigned(request.model) else None
        """Whose unsigned thinking goes back as the model's own."""
        self._adaptive = ADAPTIVE_MODEL.search(request.model) is not None
        self.betas: set[str] = set()
        self._open_turn: content.Message | None = None
        """The last turn of the model's, where it goes on: it was paused, or the results of its calls are being sent."""
        self._server_calls: set[str] = set()
        self._server_results: set[str] = set()
        self._container = ""

    def body(self) -> Body:
        """The whole body. Raises UsageError for what the API cannot be asked."""
        request = self.request
        system, history = encoding.split_system(encoding.rewrite_call_ids(request.messages, encoding.ANTHROPIC_IDS))
        self._survey(history)
        for message in history:
            self._message(message)
        if not self.turns:
            raise UsageError("Anthropic needs at least one message besides the instructions")
        body: Body = {"model": request.model, "max_tokens": request.sampling.max_output_tokens}
        if system.strip():
            body["system"] = system
        body.update(self._tools())
        body["messages"] = [{"role": role, "content": blocks} for role, blocks in self.turns]
        body.update(self._sampling(request.sampling))
        body.update(self._thinking(self.request.sampling))  # a forced call may have changed it
        body.update(self._answer_format(body))
        body.update(self._service())
        body["max_tokens"] = body["max_tokens"] or DEFAULT_MAX_TOKENS
        if request.stream:
            body["stream"] = True
        mark_prompt(body, self.turns, request.prompt_cache, self.extra_body)
        return body

    # History.

    def _survey(self, history: Sequence[content.Message]) -> None:
        """See which server tools have ended, and whether the last turn goes on."""
        for message in history:
            if isinstance(message, content.AssistantMessage):
                self._open_turn = message
                for block in self._server_blocks(message):
                    if is_call(block):
                        self._server_calls.add(str(block.get("id")))
                    else:
                        self._server_results.add(str(block.get("tool_use_id")))
            elif isinstance(message, content.UserMessage):
                self._open_turn = None

    def _server_blocks(self, message: content.AssistantMessage) -> Iterator[Mapping[str, object]]:
        for part in message.parts:
            own = encoding.own_replay(part.replay, self._dialect.origin)
            if own is not None and isinstance(part, content.ServerTool):
                yield own

    def _message(self, message: content.Message) -> None:
        if isinstance(message, content.AssistantMessage):
            self._assistant(message)
        elif isinstance(message, content.ToolMessage):
            result: Body = {"type": "tool_result", "tool_use_id": message.call_id, "content": self._result(message)}
            self.say("user", [{**result, "is_error": True} if message.is_error else result])
        else:
            self.say_asked(message)

    def _result(self, message: content.ToolMessage) -> str | list[Body]:
        if not message.media:
            return message.content
        said = [self.text(message.content)] if message.content.strip() else []
        where = f"in the result of {message.name}"
        return said + [self._medium(media) or self.text(self.in_place_of(media, where)) for media in message.media]

    def _assistant(self, message: content.AssistantMessage) -> None:
        is_open = message is self._open_turn
        blocks = [block for part in message.parts if (block := self._part(part, is_open)) is not None]
        kinds = {block["type"] for block in blocks}
        if "tool_use" in kinds and "thinking" not in kinds and self._family is not None and self._family.wants_blank:
            blocks.insert(0, {"type": "thinking", "thinking": "", "signature": ""})
        elif kinds <= {"text", "tool_use"}:
            # Another provider's turn may hold text behind a call; here results must come directly behind the calls.
            blocks.sort(key=lambda block: block["type"] == "tool_use")
        self.say("assistant", blocks)

    def _part(self, part: content.AssistantPart, is_open: bool) -> Body | None:
        own = encoding.own_replay(part.replay, self._dialect.origin)
        if isinstance(part, content.ToolCall):
            name, arguments = encoding.called_name(part), encoding.arguments_object(part)
            caller = {"caller": own["caller"]} if own and "caller" in own else {}
            return {"type": "tool_use", "id": part.call_id, "name": name, "input": arguments, **caller}
        if isinstance(part, content.Text):
            return self._said(part) if part.text.strip() else None
        if isinstance(part, content.Thinking):
            return self._thought(part, own)
        if isinstance(part, content.ServerTool):
            return self._server_block(part, own, is_open)
        return self.text(self.in_place_of(part, encoding.OF_AN_ANSWER))

    def _said(self, part: content.Text) -> Body:
        citations = own_citations(part.citations)
        return {**self.text(part.text), "citations": citations} if citations else self.text(part.text)

    def _thought(self, part: content.Thinking, own: Mapping[str, object] | None) -> Body | None:
        if own and "data" in own:
            return {"type": "redacted_thinking", "data": own["data"]}
        if own and own.get("signature"):
            return {"type": "thinking", "thinking": part.text, "signature": own["signature"]}
        if not part.text.strip() or not is_own(part.replay, self._dialect.origin, self._family):
            return None
        if self._dialect.takes_unsigned(self.request.model):
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        if own is not None:
            self.note("thinking without a signature: the API takes none back; left out")
        return None

    def _server_block(self, part: content.ServerTool, own: Mapping[str, object] | None, is_open: bool) -> Body | None:
        """A block of a server tool, as it came. A call that was cut off, or whose other half is missing, would make the
        API refuse the whole history."""
        if own is None:
            self.note_left_out(part)
            return None
        kind = own.get("type")
        if kind == CONTAINER:
            self._container = str(own.get("id")) if is_open else ""
            return None
        if is_call(own):
            is_whole = str(own.get("id")) in self._server_results or (is_open and "input" in own)
        else:
            is_whole = "tool_use_id" not in own or str(own["tool_use_id"]) in self._server_calls
        if is_whole:
            return self._as_searched(own)
        self.note(f"{kind}: its call and its result are not both there; left out")
        return None

    def _as_searched(self, own: Mapping[str, object]) -> Body | None:
        """A block as it came; of a search for tools, only with those that are searched for now: "Tool reference 'x' has
        no corresponding tool definition" (platform.claude.com, "Tool search tool")."""
        is_result = own.get("type") == FOUND_TOOLS
        if not is_result and not str(own.get("name")).startswith(_TOOL_SEARCHES):
            return dict(own)
        if not self._deferred:
            self.note(f"{own.get('type')} of a search for tools: none are searched for now; left out")
            return None
        result = own.get("content")
        if not is_result or not isinstance(result, Mapping) or "tool_references" not in result:
            return dict(own)
        known = [{"type": "tool_reference", "tool_name": name} for name in found_tools(own) if name in self._deferred]
        return {**own, "content": {**result, "tool_references": known}}

    def text(self, text: str) -> Body:
        return {"type": "text", "text": text}

    # Pictures and documents.

    def media(self, media: content.Media) -> Body:
        block = self._medium(media)
        if block is None:
            kinds = [f"{kind.__name__} ({', '.join(_MEDIA_TYPES[kind])})" for kind in self._dialect.media]
            raise encoding.refused_part(media, self.request.model, ", ".join(["text", *kinds]))
        return block

    def _medium(self, media: content.Media) -> Body | None:
        """The block of a picture or document; None for what this server does not take."""
        if content.Document not in self._dialect.media and isinstance(media, content.Document):
            return self.text(encoding.document_text(media)) if encoding.plain_text(media) else None
        if not isinstance(media, self._dialect.media) or (media.file_id and not self._dialect.files):
            return None
        if isinstance(media, content.Document):
            return self._document(media)
        source = self._kept_source(media)
        if source is None:
            media_type, data = encoding.media_bytes(media)
            if media_type not in _IMAGES:
                return None
            source = {"type": "base64", "media_type": media_type, "data": data}
        return {"type": "image", "source": source}

    def _document(self, document: content.Document) -> Body | None:
        source = self._kept_source(document)
        if source is None:
            source = _document_source(document)
        elif document.url and document.media_type not in ("", _PDF):
            return None
        if source is None:
            return None
        block: Body = {"type": "document", "source": source}
        if document.name:
            block["title"] = document.name
        return {**block, "citations": {"enabled": True}} if document.citations else block

    def _kept_source(self, media: content.Media) -> Body | None:
        """The source of what the server keeps or fetches; None where the bytes are given."""
        if media.file_id:
            self.betas.add(FILES_BETA)
            return {"type": "file", "file_id": media.file_id}
        return {"type": "url", "url": media.url} if media.url else None

    # Tools.

    def _tools(self) -> Body:
        request = self.request
        own = self._own_tools()
        offered = [_tool(tool) for tool in own if tool.name not in self._deferred]
        servers: list[Body] = []
        for offer in request.server_tools:
            offered.append(self._server_offer(offer, servers))
        if self._deferred:
            # The search comes last, where the mark of the cache goes: "Tool 'x' cannot have both defer_loading=true and
            # cache_control set" (Wei-Shaw/sub2api #4990).
            offered += [{**_tool(tool), "defer_loading": True} for tool in own if tool.name in self._deferred]
            offered.append({**_TOOL_SEARCH})
        if not offered:
            return {}
        names = [tool["name"] for tool in offered if "name" in tool]
        if twice := {str(name) for name in names if names.count(name) > 1}:
            raise UsageError(
                f"A tool and a server tool are both named {min(twice)!r}; rename or leave out one of them."
            )
        mode = request.tool_choice.mode
        if mode in _FORCED and not self.may_force_call():
            mode = ToolChoiceMode.AUTO
        choice: Body = {"type": _FORCED.get(mode, mode.value)}
        if mode is ToolChoiceMode.NAMED:
            choice["name"] = request.tool_choice.name
        if request.parallel_tool_calls is not None and mode is not ToolChoiceMode.NONE:
            choice["disable_parallel_tool_use"] = not request.parallel_tool_calls
        return {"tools": offered, "tool_choice": choice, **({"mcp_servers": servers} if servers else {})}

    def _own_tools(self) -> Sequence[ToolDefinition]:
        if self._dialect.schemas:
            return self.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT, ANTHROPIC_ANSWER)
        if any(tool.strict for tool in self.request.tools):
            self.notes.append(f"strict: {self._dialect.name} has no such field; left out")
            tools = tuple(replace(tool, strict=False) for tool in self.request.tools)
            self.request = replace(self.request, tools=tools)
        return self.adapted_tools(ANTHROPIC, ANTHROPIC)

    def _server_offer(self, offer: server_tools.ServerToolOffer, servers: list[Body]) -> Body:
        if not isinstance(offer, self._dialect.server_tools):
            raise self.refused_tool(offer, self._dialect.server_tools)
        if isinstance(offer, server_tools.RemoteMcp):
            self.betas.add(MCP_BETA)
            self.check_options(offer, ("name", "url", "authorization", "allowed_tools"))
            servers.append(_mcp_server(offer))
            return _mcp_toolset(offer)
        if isinstance(offer, server_tools.CodeExecution):
            self._upload(offer)
            return {"type": "code_execution_20250825", "name": "code_execution"}
        return _WEB_TOOLS[type(offer)](offer)

    def _upload(self, offer: server_tools.CodeExecution) -> None:
        """Files go to the programs with the first message, which stays the same from step to step."""
        if not offer.file_ids:
            return
        self.betas.add(FILES_BETA)
        uploads: list[Body] = [{"type": "container_upload", "file_id": file_id} for file_id in offer.file_ids]
        self.turns[0][1].extend(uploads)

    # The rest of the body.

    def _sampling(self, sampling: model.Sampling) -> Body:
        if sampling.seed is not None:
            self.notes.append("seed: the API has none; left out")
        if sampling.logprobs is not None:
            self.notes.append("logprobs: the API has none; left out")
        knobs = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        sent: Body = {name: value for name, value in knobs.items() if value is not None}
        return {**sent, "stop_sequences": list(sampling.stop)} if sampling.stop else sent

    def _service(self) -> Body:
        request = self.request
        if request.audio_out is not None:
            raise self.refused_sound()
        if request.images_out:
            self.note("images_out: the API has none; left out")
        fields: Body = {"container": self._container} if self._container else {}
        if request.service_tier in SERVICE_TIERS:
            fields["service_tier"] = request.service_tier
        elif request.service_tier:
            tiers = " or ".join(SERVICE_TIERS)
            self.notes.append(f"service_tier {request.service_tier!r}: the API takes {tiers}; left out")
        return fields

    def _answer_format(self, body: Body) -> Body:
        if self.request.response_schema is None:
            return {}
        if not self._dialect.schemas:
            self.note(f"response_schema: {self._dialect.name} has no such field; left out")
            return {}
        if any(block.get("citations") for _, blocks in self.turns for block in blocks if block["type"] == "document"):
            # "this combination is incompatible at the Anthropic API level" (prism-php/prism PR 967)
            raise UsageError("Anthropic cites no documents in an answer by a schema: drop response_schema or citations")
        adapted = self.answer_schema(ANTHROPIC_ANSWER)
        config = body.get("output_config")
        answer = {"format": {"type": "json_schema", "schema": adapted.schema if adapted else {}}}
        return {"output_config": {**config, **answer} if isinstance(config, dict) else answer}

    def _thinking(self, sampling: model.Sampling) -> Body:
        effort = sampling.reasoning_effort
        if effort is None or effort == "none":
            # Models of other vendors, and Claude 5, think unless they are told not to.
            rule = thinking_of(self.request.model)
            is_default = rule is not None and rule.when is Thinks.UNLESS
            said = effort and (is_default or self._adaptive or self._dialect.takes_unsigned(self.request.model))
            return {"thinking": {"type": "disabled"}} if said else {}
        efforts: Mapping[str, object] = ADAPTIVE_EFFORTS if self._adaptive else THINKING_BUDGETS
        if effort not in efforts:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of none, {', '.join(efforts)}")
        if sampling.temperature not in (None, 1, 1.0):
            raise UsageError("Anthropic takes no temperature with thinking: drop reasoning_effort or temperature")
        if self._adaptive:
            shown = {"display": "summarized"} if NEWER_MODEL.search(self.request.model) else {}
            return {"thinking": {"type": "adaptive", **shown}, "output_config": {"effort": ADAPTIVE_EFFORTS[effort]}}
        if self._in_unthought_tool_loop():
            self.notes.append("reasoning_effort: left out, since the open tool turn does not start with own thinking")
            return {}
        return self._budget(THINKING_BUDGETS[effort], sampling.max_output_tokens)

    def _budget(self, budget: int, max_tokens: int | None) -> Body:
        if max_tokens is None:
            max_tokens = DEFAULT_MAX_TOKENS + budget
        elif max_tokens <= budget:
            budget = max(max_tokens // 2, THINKING_BUDGETS["minimal"])
        if max_tokens <= budget:
            raise UsageError(f"max_output_tokens must be above {budget} to think, not {max_tokens}")
        return {"max_tokens": max_tokens, "thinking": {"type": "enabled", "budget_tokens": budget}}

    def _in_unthought_tool_loop(self) -> bool:
        """Are results of a turn being sent that another model (or this one without thinking) began? The API refuses to
        think on: "Expected `thinking` or `redacted_thinking`, but found `tool_use`"."""
        if len(self.turns) < 2 or self.turns[-1][1][0]["type"] != "tool_result":
            return False
        return self.turns[-2][1][0]["type"] not in ("thinking", "redacted_thinking")


def _tool(tool: ToolDefinition) -> Body:
    wire: Body = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return {**wire, "strict": True} if tool.strict else wire


def _document_source(document: content.Document) -> Body | None:
    if text := encoding.plain_text(document):
        return {"type": "text", "media_type": _TEXT, "data": text}
    media_type, data = encoding.media_bytes(document)
    return {"type": "base64", "media_type": _PDF, "data": data} if media_type == _PDF else None


def _web_search(offer: server_tools.WebSearch) -> Body:
    place = {"country": offer.country, "city": offer.city, "region": offer.region, "timezone": offer.timezone}
    known = {name: value for name, value in place.items() if value}
    located: Body = {"user_location": {"type": "approximate", **known}} if known else {}
    return {"type": "web_search_20250305", "name": "web_search", **_limits(offer), **located}


def _web_fetch(offer: server_tools.WebFetch) -> Body:
    return {"type": "web_fetch_20250910", "name": "web_fetch", **_limits(offer)}


def _limits(offer: server_tools.WebSearch | server_tools.WebFetch) -> Body:
    if offer.allowed_domains and offer.blocked_domains:
        raise UsageError(f"{type(offer).__name__} takes allowed_domains or blocked_domains, not both.")
    fields: Body = {
        "max_uses": offer.max_uses,
        "allowed_domains": list(offer.allowed_domains),
        "blocked_domains": list(offer.blocked_domains),
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _mcp_server(offer: server_tools.RemoteMcp) -> Body:
    server: Body = {"type": "url", "name": offer.name, "url": offer.url}
    return {**server, "authorization_token": offer.authorization} if offer.authorization else server


def _mcp_toolset(offer: server_tools.RemoteMcp) -> Body:
    toolset: Body = {"type": "mcp_toolset", "mcp_server_name": offer.name}
    if not offer.allowed_tools:
        return toolset
    allowed = {name: {"enabled": True} for name in offer.allowed_tools}
    return {**toolset, "default_config": {"enabled": False}, "configs": allowed}


#: Any model takes these versions; later ones run programs of their own around the search.
_WEB_TOOLS: Final[Mapping[type, Callable[..., Body]]] = {
    server_tools.WebSearch: _web_search,
    server_tools.WebFetch: _web_fetch,
}
