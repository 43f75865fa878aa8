"""OpenAI Responses: requests. Facts: docs/wire.md 1.2, quirks 72, 73 and 81.

The whole history goes out, and nothing is stored, unless `ModelRequest.storage` says otherwise. Calls go back as
`function_call` items without the server's id, all calls of a turn before their outputs; reasoning with its encrypted or
plain content; items of the server's tools as far as they say all by themselves (responses_items.py).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from callboard.protocol import content, model, server_tools
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId
from callboard.protocol.model import ToolChoiceMode
from callboard.protocol.output import is_any_object
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.json_values import Body
from callboard.providers.openai.responses_items import TOOL_SEARCHES, sent_back
from callboard.providers.schema_dialects import OPENAI, OPENAI_STRICT

#: A call_id longer than 64 is refused, and an output is paired with its call by it alone: it must not repeat.
RESPONSES_IDS: Final = encoding.CallIdRule(re.compile(r"[\x21-\x7e]{1,64}"))
#: Models that answer 400 "Encrypted content is not supported with this model".
_PLAIN_MODEL: Final = re.compile(r"(?:^|/)(?:chatgpt|gpt-[34]|gpt-\d.*chat)")
#: Models that reason and give their reasoning encrypted. Others are asked for it too, once any came from there.
_REASONING_MODEL: Final = re.compile(
    r"(?:^|[/.])(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat)|codex|gpt-oss|computer-use|grok-(?:[4-9]|code|build))"
)
_FORCED: Final = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})
#: What is asked for beside the answer, by the tool that was offered: without it the item does not hold what came.
_TOOL_INCLUDES: Final = {
    "code_interpreter": "code_interpreter_call.outputs",
    "file_search": "file_search_call.results",
}


#: "gpt-5.4 and later models support tool_search" (developers.openai.com, "Tool search"), but "Tool 'tool_search' is not
#: supported with gpt-5.4-nano." (Oaklight/llm-rosetta #394).
SEARCHING_MODEL: Final = re.compile(r"(?:^|/)gpt-(?:5\.(?:[4-9]|\d\d)|[6-9]|\d\d)(?!.*(?:nano|chat))")


class ResponsesEncoding(encoding.Encoding):
    """One request. `names_tell`: the names of models there are OpenAI's own, and say what they can. `searches_tools`:
    the server searches for deferred tools, where the model does."""

    keeps_answers: ClassVar[bool] = True

    def __init__(
        self, request: model.ModelRequest, origin: str, *, names_tell: bool = True, searches_tools: bool = False
    ) -> None:
        if request.sampling.stop:
            raise UsageError("the Responses API takes no stop sequences; use the openai-chat adapter, or drop `stop`")
        is_asked = request.tool_search is not None and searches_tools
        searches = is_asked and SEARCHING_MODEL.search(request.model) is not None
        told = encoding.searched_by_provider(request, origin) if searches else request
        super().__init__(told, origin, takes_allowed=names_tell)
        self._searches = searches and any(tool.deferred for tool in self.request.tools)
        """The server searches for tools."""
        self._origin = origin
        self._images = encoding.OPENAI_IMAGES if names_tell else ()
        """The media types of pictures by their bytes; (): the server decides."""
        self._refuses_reasoning = names_tell and _PLAIN_MODEL.search(request.model) is not None
        self._storage = request.storage or model.ResponseStorage()
        self._input: list[Body] = []
        self._callers: dict[CallId, object] = {}
        """Who called, by call: the output must say it too."""

    def body(self) -> Body:
        """The request's JSON. Raises UsageError for what the API does not have."""
        request, storage = self.request, self._storage
        if request.audio_out is not None:
            raise self.refused_sound()
        system, history = encoding.split_system(self._messages())
        for message in history:
            self._message(message)
        if not self._input:
            raise UsageError("the Responses API needs at least one message besides the instructions")
        body: Body = {"model": request.model, "input": self._input, "store": storage.store or storage.background}
        if storage.previous_response_id:
            body["previous_response_id"] = storage.previous_response_id
        if storage.background:
            body["background"] = True
        self.note_own_cache()
        if system:
            body["instructions"] = system
        body.update(self._tools())
        body.update(self._sampling(self.request.sampling))  # a forced call may have changed it
        if include := self._include(body):
            body["include"] = include
        if request.response_schema is not None and is_any_object(request.response_schema):
            # "Response input messages must contain the word 'json' in some form": `instructions` do not count.
            self._input.insert(0, {"type": "message", "role": "system", "content": encoding.JSON_WORDS})
            body["text"] = {"format": {"type": "json_object"}}
        elif adapted := self.answer_schema(OPENAI_STRICT):
            answer = {"type": "json_schema", "name": "answer", "schema": adapted.schema, "strict": adapted.strict}
            body["text"] = {"format": answer}
        if request.service_tier:
            body["service_tier"] = request.service_tier
        if request.stream:
            body["stream"] = True
        return body

    def _include(self, body: Body) -> list[str]:
        tools = body.get("tools")
        kinds = [str(tool.get("type")) for tool in tools] if isinstance(tools, list) else []
        include = [_TOOL_INCLUDES[kind] for kind in dict.fromkeys(kinds) if kind in _TOOL_INCLUDES]
        if self._wants_reasoning():
            include.append("reasoning.encrypted_content")
        if self.request.sampling.logprobs is not None:
            include.append("message.output_text.logprobs")
        return include

    def _wants_reasoning(self) -> bool:
        """Does this model give its reasoning encrypted? By its name, by what it is asked for, or since it has done so
        (docs/wire.md quirk 72: a deployment may have any name)."""
        effort = self.request.sampling.reasoning_effort
        return not self._refuses_reasoning and (
            _REASONING_MODEL.search(self.request.model) is not None
            or effort not in (None, "none")
            or any(item.get("type") == "reasoning" and item.get("encrypted_content") for item in self._input)
        )

    # History.

    def _messages(self) -> tuple[content.Message, ...]:
        """What is sent of the messages: the server has all up to the model's last turn, if it has that."""
        messages = self.request.messages
        if not self._storage.previous_response_id:
            return encoding.rewrite_call_ids(messages, RESPONSES_IDS)
        turns = [(place, each) for place, each in enumerate(messages) if isinstance(each, content.AssistantMessage)]
        if not turns:
            return messages
        last, turn = turns[-1]
        for call in turn.tool_calls:
            self._note_caller(call)
        system, _ = encoding.split_system(messages)
        return (*([content.SystemMessage(system)] if system else []), *messages[last + 1 :])

    def _say(self, role: str, said: object, **more: object) -> None:
        self._input.append({"type": "message", "role": role, "content": said, **more})

    def _message(self, message: content.Message) -> None:
        if isinstance(message, content.AssistantMessage):
            self._assistant(message)
        elif isinstance(message, content.ToolMessage):
            self._result(message)
        elif isinstance(message, content.SystemMessage):
            self._say("system", message.text)
        else:
            self._say("user", encoding.user_content(message, self._part))

    def _result(self, message: content.ToolMessage) -> None:
        output: object = message.content
        if message.media:
            said = [{"type": "input_text", "text": message.content}] if message.content else []
            output = [*said, *(self._shown(media, message.name) for media in message.media)]
        item: Body = {"type": "function_call_output", "call_id": message.call_id, "output": output}
        if (caller := self._callers.get(message.call_id)) is not None:
            item["caller"] = caller
        self._input.append(item)

    def _shown(self, media: content.Media, tool: str) -> Body:
        """A medium in a result."""
        if isinstance(media, content.Image | content.Document) and self._takes(media):
            return self._part(media)
        return {"type": "input_text", "text": self.in_place_of(media, f"in the result of {tool}")}

    def _part(self, part: content.UserPart) -> Body:
        if isinstance(part, content.Text):
            return {"type": "input_text", "text": part.text}
        if isinstance(part, content.Image) and self._takes(part):
            source = {"file_id": part.file_id} if part.file_id else {"image_url": encoding.data_url(part)}
            return {"type": "input_image", **source, "detail": "auto"}
        if isinstance(part, content.Document):
            return {"type": "input_file", **_file(part)}
        types = f" ({', '.join(self._images)})" if self._images else ""
        raise encoding.refused_part(part, self.asked, f"text, Image{types}, Document")

    def _takes(self, media: content.Image | content.Document) -> bool:
        is_bare_image = isinstance(media, content.Image) and media.data_base64 and media.media_type
        return not (is_bare_image and self._images) or media.media_type in self._images

    def _assistant(self, message: content.AssistantMessage) -> None:
        start = len(self._input)
        turn = [own for part in message.parts if (own := self._own(part)) is not None]
        lost_reasoning = False
        for part in message.parts:
            if isinstance(part, content.Text):
                self._text(part, start)
            elif isinstance(part, content.ToolCall):
                self._input.append(self._call(part))
            elif isinstance(part, content.Thinking):
                lost_reasoning = not self._thinking(part) or lost_reasoning
            else:
                self._item(part, turn, start, lost_reasoning)
        # "Item 'rs_..' of type 'reasoning' was provided without its required following item": a cut turn's.
        while len(self._input) > start and self._input[-1]["type"] == "reasoning":
            self._input.pop()
            self._left_out("reasoning", "nothing follows it in its turn")

    def _own(self, part: content.AssistantPart) -> Mapping[str, object] | None:
        return encoding.own_replay(part.replay, self._origin)

    def _left_out(self, what: str, why: str) -> None:
        self.note(f"{what}: {why}; it cannot go back, and was left out")

    def _text(self, part: content.Text, start: int) -> None:
        if not part.text:
            return
        own = self._own(part) or {}
        text = part.text.removeprefix(str(own.get("lead", "")))
        self._speak(text, start, {"phase": own["phase"]} if "phase" in own else {})

    def _speak(self, text: str, start: int, more: Body) -> None:
        last = self._input[-1] if len(self._input) > start else {}
        if last.get("role") == "assistant" and last.get("phase") == more.get("phase"):
            last["content"] = f"{last['content']}{text}"
        else:
            self._say("assistant", text, **more)

    def _call(self, part: content.ToolCall) -> Body:
        self._note_caller(part)
        call = {"type": "function_call", "call_id": part.call_id, "name": encoding.called_name(part)}
        return {**call, "arguments": encoding.sent_arguments(part), **(self._own(part) or {})}

    def _note_caller(self, part: content.ToolCall) -> None:
        if caller := (self._own(part) or {}).get("caller"):
            self._callers[part.call_id] = caller

    def _thinking(self, part: content.Thinking) -> bool:
        """Send reasoning back; False, where what came from this server cannot go back."""
        own = self._own(part)
        if own is None:
            return True
        encrypted = own.get("encrypted_content")
        if self._refuses_reasoning and encrypted:
            self._left_out("reasoning", "the model takes no encrypted reasoning")
        elif not encrypted and not own.get("content"):
            # Without `store` the server remembers no item, so only one that carries its content can go back.
            self._left_out("reasoning", "it came without its encrypted content")
        else:
            self._input.append({**own, "type": "reasoning", "summary": own.get("summary") or []})
            return True
        return False

    def _item(
        self,
        part: content.ServerTool | content.Image | content.Audio | content.Document,
        turn: list[Mapping[str, object]],
        start: int,
        lost_reasoning: bool,
    ) -> None:
        """An item of the server's own: a tool's, or a picture that it made."""
        own = self._own(part)
        what = part.kind if isinstance(part, content.ServerTool) else encoding.kind_of(part)
        if own is None:
            if isinstance(part, content.Media):
                # The model's pictures of another provider: the API takes none from an assistant.
                self._speak(self.in_place_of(part, encoding.OF_AN_ANSWER), start, {})
            else:
                self.note_left_out(part)
            return
        if lost_reasoning and own.get("type") != "compaction":
            # "Item 'ws_..' of type 'web_search_call' was provided without its required 'reasoning' item".
            self._left_out(what, "its reasoning was left out")
            return
        if own.get("type") in TOOL_SEARCHES and not self._searches:
            self._left_out(what, "no tools are searched for now")
            return
        item, why = sent_back(own, turn)
        if item is None:
            self._left_out(what, why)
            return
        if isinstance(part, content.Image):
            item["result"] = part.data_base64
        self._input.append(item)

    # The rest of the body.

    def _tools(self) -> Body:
        request, choice = self.request, self.request.tool_choice
        offers = [self._server_tool(offer) for offer in request.server_tools]
        if request.images_out and not any(offer["type"] == "image_generation" for offer in offers):
            offers.append({"type": "image_generation"})
        if not request.tools and not offers:
            return {}
        ours = [_tool(tool, may_defer=self._searches) for tool in self.adapted_tools(OPENAI, OPENAI_STRICT)]
        # "Deferred tools require tools.tool_search" (pydantic/pydantic-ai #5938).
        tools: Body = {"tools": [*ours, *offers, *([{"type": "tool_search"}] if self._searches else ())]}
        if request.tools or choice.mode is not ToolChoiceMode.AUTO:
            named = {"type": "function", "name": choice.name}
            tools["tool_choice"] = named if choice.mode is ToolChoiceMode.NAMED else choice.mode.value
            if choice.mode in _FORCED and not self.may_force_call():
                choice = model.ToolChoice(allowed=choice.allowed)
                tools["tool_choice"] = choice.mode.value
            if choice.allowed and choice.mode in (ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED):
                allowed = [{"type": "function", "name": name} for name in choice.allowed]
                tools["tool_choice"] = {"type": "allowed_tools", "mode": choice.mode.value, "tools": allowed}
        if request.tools and request.parallel_tool_calls is not None:
            tools["parallel_tool_calls"] = request.parallel_tool_calls
        return tools

    def _server_tool(self, offer: server_tools.ServerToolOffer) -> Body:
        """A tool of the server's in the API's words. Raises UsageError for one that the API does not have."""
        if (written := _SERVER_TOOLS.get(type(offer))) is None:
            raise self.refused_tool(offer, _SERVER_TOOLS)
        return written(offer, self)

    def _sampling(self, sampling: model.Sampling) -> Body:
        if sampling.seed is not None:
            self.notes.append("seed: the API has none; left out")
        effort = sampling.reasoning_effort
        knobs = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_output_tokens": sampling.max_output_tokens,
            "reasoning": {"effort": effort} if effort is not None else None,
            "top_logprobs": sampling.logprobs,
        }
        return {name: value for name, value in knobs.items() if value is not None}


def _tool(tool: ToolDefinition, *, may_defer: bool) -> Body:
    wire: Body = {"type": "function", "name": tool.name, "description": tool.description}
    wire |= {"parameters": tool.parameters, "strict": tool.strict}
    return {**wire, "defer_loading": True} if tool.deferred and may_defer else wire


def _file(part: content.Document) -> Body:
    """The source of an input_file. Bytes go as a data URL, which OpenAI and Azure take where they refuse plain base64
    (strands-agents/harness-sdk pull 3576); a plain text is a text file."""
    if part.file_id:
        return {"file_id": part.file_id}
    if part.url:
        return {"file_url": part.url}
    if part.text:
        part = content.Document("text/plain", b64encode(part.text.encode("utf-8", "replace")).decode(), name=part.name)
    return {"filename": encoding.file_name(part), "file_data": encoding.data_url(part)}


# Server tools.


def _web_search(offer: server_tools.WebSearch, request: ResponsesEncoding) -> Body:
    places = ("country", "city", "region", "timezone")
    request.check_options(offer, ("allowed_domains", *places))
    place = {name: getattr(offer, name) for name in places if getattr(offer, name)}
    return {
        "type": "web_search",
        **({"filters": {"allowed_domains": list(offer.allowed_domains)}} if offer.allowed_domains else {}),
        **({"user_location": {"type": "approximate", **place}} if place else {}),
    }


def _code_execution(offer: server_tools.CodeExecution, request: ResponsesEncoding) -> Body:
    files = {"file_ids": list(offer.file_ids)} if offer.file_ids else {}
    return {"type": "code_interpreter", "container": {"type": "auto", **files}}


def _file_search(offer: server_tools.FileSearch, request: ResponsesEncoding) -> Body:
    most = {"max_num_results": offer.max_results} if offer.max_results is not None else {}
    return {"type": "file_search", "vector_store_ids": list(offer.store_ids), **most}


def _mcp(offer: server_tools.RemoteMcp, request: ResponsesEncoding) -> Body:
    knobs: Body = {
        "authorization": offer.authorization,
        "headers": dict(offer.headers),
        "allowed_tools": list(offer.allowed_tools),
    }
    given = {name: value for name, value in knobs.items() if value}
    # A call that waits for an approval could not be answered: it is offered only to be used.
    return {
        "type": "mcp",
        "server_label": offer.name,
        "server_url": offer.url,
        "require_approval": "never",
        **given,
    }


def _image_generation(offer: server_tools.ImageGeneration, request: ResponsesEncoding) -> Body:
    knobs = {"size": offer.size, "quality": offer.quality}
    return {"type": "image_generation", **{name: value for name, value in knobs.items() if value}}


_SERVER_TOOLS: Final[Mapping[type, Callable[..., Body]]] = {
    server_tools.WebSearch: _web_search,
    server_tools.CodeExecution: _code_execution,
    server_tools.FileSearch: _file_search,
    server_tools.RemoteMcp: _mcp,
    server_tools.ImageGeneration: _image_generation,
}
