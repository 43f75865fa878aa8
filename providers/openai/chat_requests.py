"""A request in the words of Chat Completions, as one server takes them (`dialects.ChatDialect`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol import content, model
from callboard.protocol.content import json_text
from callboard.protocol.model import PromptCache, ToolChoiceMode
from callboard.protocol.output import is_any_object
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.json_values import Body
from callboard.providers.model_rules import FAMILY, Family, family_of, is_own
from callboard.providers.openai import chat_fields as fields
from callboard.providers.openai.dialects import SERVERS, ChatDialect, StrictTools
from callboard.providers.schema_dialects import OPENAI as OPENAI_SCHEMA

#: The model's turn between tool results and the user's next message, where a server demands one (quirk 74).
BRIDGE: Final = "I have the results."
#: A turn of the model's in which it said nothing, where a server refuses an empty one.
BLANK_TURN: Final = "(no text)"
_Content = str | list[Body]
#: How thinking is switched and measured by the makers that have no row above.
_OTHER_EFFORTS: Final = {"xiaomi": fields.MIMO_EFFORT, "minimax": fields.MINIMAX_EFFORT}


class ChatEncoding(encoding.Encoding):
    """One request being written."""

    def __init__(self, request: model.ModelRequest, dialect: ChatDialect) -> None:
        super().__init__(request, dialect.name, takes_allowed=dialect.allowed_tools)
        self.dialect = dialect
        self.family = family = family_of(request.model)
        """Whose reasoning the model takes back as its own; None: not known."""
        self.reasoning_field = dialect.reasoning_replay_field or ("reasoning_content" if family else "")
        self.wants_reasoning = bool(self.reasoning_field) or dialect.thinking_parts
        self.wants_blank = dialect.blank_reasoning or (family is not None and family.wants_blank)

    def body(self) -> Body:
        """The request's fields, without the caller's `options`. Raises UsageError for what the server cannot do."""
        request, dialect = self.request, self.dialect
        body: Body = {"model": request.model}
        if request.stream:
            body["stream"] = True
            if dialect.stream_usage:
                body["stream_options"] = {"include_usage": True}
        body |= self._tool_fields()
        answer_format, instructions = self._answer_format()
        body |= answer_format
        body["messages"] = self._messages(instructions)
        body |= self._knobs() | self._modalities()
        self._server_tools(body)
        self.note_choice_among_server_tools()
        return body

    # Messages.

    def _messages(self, instructions: str) -> list[Body]:
        messages = encoding.rewrite_call_ids(self.request.messages, self.dialect.call_ids)
        written: list[Body] = []
        if self.dialect.notes_as_user:
            leading, messages_after = encoding.split_system(messages)
            if system := "\n\n".join(text for text in (leading, instructions) if text):
                written.append({"role": "system", "content": system})
        else:
            messages_after = messages
            if instructions:
                written.append({"role": "system", "content": instructions})
        for message in self._in_turns(messages_after):
            is_behind_results = self.wants_blank and bool(written) and written[-1]["role"] == "tool"
            if (said := self._message(message, is_behind_results)) is not None:
                self._add(written, said)
        if self.dialect.notes_as_user and not any(each["role"] != "system" for each in written):
            written.append({"role": "user", "content": encoding.BLANK_USER})
        self._mark_for_cache(written)
        return written

    def _in_turns(self, messages: Sequence[content.Message]) -> list[content.Message]:
        """The messages, where roles must take turns with those of the model's that follow each other (a turn that was
        paused, and the rest of it) as one."""
        joined: list[content.Message] = []
        for message in messages:
            last = joined[-1] if joined and self.dialect.notes_as_user else None
            if isinstance(message, content.AssistantMessage) and isinstance(last, content.AssistantMessage):
                between = (content.Text("\n\n"),) if last.text and message.text else ()
                joined[-1] = content.AssistantMessage((*last.parts, *between, *message.parts))
            else:
                joined.append(message)
        return joined

    def _message(self, message: content.Message, is_behind_results: bool) -> Body | None:
        if isinstance(message, content.AssistantMessage):
            return self._assistant(message, follows_results=is_behind_results)
        if isinstance(message, content.ToolMessage):
            return {"role": "tool", "tool_call_id": message.call_id, "content": self._result(message)}
        if isinstance(message, content.UserMessage):
            return {"role": "user", "content": self._user_content(message)}
        if not self.dialect.notes_as_user:
            return {"role": "system", "content": message.text}
        return {"role": "user", "content": f"<system>\n{message.text}\n</system>"} if message.text.strip() else None

    def _add(self, written: list[Body], message: Body) -> None:
        """Add a message in the order that the server takes."""
        role, last = message["role"], written[-1]["role"] if written else "system"
        if self.dialect.notes_as_user:
            if role == last == "user":
                written[-1] = {"role": "user", "content": self._joined(written[-1]["content"], message["content"])}
                return
            if role == "assistant" and last == "system":
                written.append({"role": "user", "content": encoding.TRIMMED_START})
        if role == "user" and last == "tool" and self.dialect.bridged_models.search(self.request.model):
            written.append({"role": "assistant", "content": BRIDGE})
        written.append(message)

    def _user_content(self, message: content.UserMessage) -> _Content:
        kept = (
            part
            for part in message.parts
            if self.dialect.empty_text or isinstance(part, content.Media) or part.text.strip()
        )
        return self._content([self._user_part(part) for part in kept])

    def _content(self, parts: list[Body]) -> _Content:
        """One text as it is; several parts as a list, or as one text where a server takes no list. Two texts stay two
        parts: glued together, words would run into each other (docs/wire.md quirk 81)."""
        if not parts:
            return self._filled("")
        texts = [str(part["text"]) for part in parts if part["type"] == "text"]
        if len(texts) == len(parts) and (len(parts) == 1 or not self.dialect.text_parts):
            return self._filled("\n\n".join(texts))
        return parts

    def _filled(self, text: str, blank: str = encoding.BLANK_USER) -> str:
        return text if text or self.dialect.empty_text else blank

    def _joined(self, first: object, second: object) -> _Content:
        return self._content([*_as_parts(first), *_as_parts(second)])

    def _user_part(self, part: content.UserPart) -> Body:
        if isinstance(part, content.Text):
            return {"type": "text", "text": part.text}
        if (written := self._media(part)) is not None:
            return written
        takes = ", ".join(("text", *(f"{kind.__name__} {form}" for kind, form in self.dialect.parts.items())))
        raise encoding.refused_part(part, self.asked, takes)

    @property
    def asked(self) -> str:
        return f"{self.dialect.name}/{self.request.model}"

    def _media(self, media: content.Media) -> Body | None:
        """A medium as the server takes it; None where it does not."""
        form = self.dialect.parts.get(type(media))
        if form is not None and media.data_base64:
            encoding.media_bytes(media)  # what is wrong with it is said now
        if form is not None and form.takes(media):
            return form.write(media)
        if isinstance(media, content.Document) and encoding.plain_text(media):
            return {"type": "text", "text": encoding.document_text(media)}
        return None

    def _result(self, message: content.ToolMessage) -> _Content:
        """The result of a call: its text, the media that the server takes in results, and a line for each other one."""
        texts, shown = [message.content], list[Body]()
        for media in message.media:
            part = self._media(media) if type(media) in self.dialect.result_media else None
            if part is not None:
                shown.append(part)
            elif isinstance(media, content.Document) and encoding.plain_text(media):
                texts.append(encoding.document_text(media))
            else:
                texts.append(self.in_place_of(media, f"in the result of {message.name}"))
        text = self._filled("\n".join(text for text in texts if text), encoding.NO_OUTPUT)
        return [{"type": "text", "text": text}, *shown] if shown else text

    def takes_back(self, replay: content.Replay | None) -> bool:
        """Is reasoning with this mark the model's own?"""
        dialect = self.dialect
        if replay is None and self.family is None and not dialect.blank_reasoning:
            return False
        return is_own(replay, dialect.name, self.family)

    def _assistant(self, message: content.AssistantMessage, *, follows_results: bool) -> Body:
        """A turn of the model's. What its server sent goes back to it; thinking, only where it wants its own back."""
        turn = _Turn(self)
        for part in message.parts:
            turn.add(part)
        return turn.body(follows_results=follows_results)

    def _mark_for_cache(self, written: list[Body]) -> None:
        """Let the provider behind keep the prompt: marks on the instructions and on the last message."""
        cache = self.request.prompt_cache
        if not self.dialect.cached_models.match(self.request.model):
            self.note_own_cache()
            return
        if cache is PromptCache.OFF:
            return
        mark: Body = {"type": "ephemeral", **({"ttl": "1h"} if cache is PromptCache.ONE_HOUR else {})}
        for message in (written[0], written[-1]) if len(written) > 1 else written:
            if message["role"] == "assistant":
                continue
            parts = _as_parts(message["content"])
            texts = [place for place, part in enumerate(parts) if part["type"] == "text"]
            if texts:
                parts[texts[-1]] = parts[texts[-1]] | {"cache_control": mark}
                message["content"] = parts

    # Tools.

    def _tool_fields(self) -> Body:
        request = self.request
        if not request.tools:
            return {}
        tools, choice = self._tool_choice(self._tools())
        if not tools:
            return {}
        body: Body = {"tools": [_tool(tool) for tool in tools], **choice}
        if request.parallel_tool_calls is not None:
            if self.dialect.parallel_flag:
                body["parallel_tool_calls"] = request.parallel_tool_calls
            else:
                self._note_missing("parallel_tool_calls")
        return body

    def _tools(self) -> Sequence[ToolDefinition]:
        """The tools in schemas that the server takes, `strict` as it takes that."""
        noted, schemas = len(self.notes), self.dialect.strict_schemas
        lax = schemas.relaxed or OPENAI_SCHEMA
        tools = self.adapted_tools(lax, schemas)
        strict, rule = {tool.strict for tool in tools}, self.dialect.strict
        if strict == {False} or rule is StrictTools.EACH or (rule is StrictTools.SAME and strict == {True}):
            return tools
        why = "is not known" if rule is StrictTools.NEVER else "must be the same for all tools"
        # What was noted of the strict schemas does not hold for the others.
        self.notes[noted:] = [
            f"strict: it {why} at {self.dialect.name}, so no tool is; arguments are checked when they come"
        ]
        self.request = replace(self.request, tools=tuple(replace(tool, strict=False) for tool in self.request.tools))
        return self.adapted_tools(lax, schemas)

    def _tool_choice(self, tools: Sequence[ToolDefinition]) -> tuple[Sequence[ToolDefinition], Body]:
        """The tools to be offered and the fields that say which must be called. What a server cannot be told by its
        fields it is told by the offer: no tools, or the one tool."""
        choice, taken = self.request.tool_choice, self.dialect.tool_choices
        mode = choice.mode
        if mode is ToolChoiceMode.REQUIRED and mode not in taken and len(tools) == 1:
            mode, choice = ToolChoiceMode.NAMED, model.ToolChoice(ToolChoiceMode.NAMED, tools[0].name)
        if mode is ToolChoiceMode.NAMED and mode not in taken:
            tools, mode = [tool for tool in tools if tool.name == choice.name], ToolChoiceMode.REQUIRED
        if mode is ToolChoiceMode.NONE and mode not in taken:
            return (), {}
        if mode is ToolChoiceMode.AUTO:
            return tools, _allowed(choice)
        if mode not in taken:
            self._note_missing(
                f"tool_choice {self.request.tool_choice.mode.value}", "the model may answer without a call"
            )
            return tools, {}
        if mode is not ToolChoiceMode.NONE and not self.may_force_call():
            return tools, _allowed(choice)
        if mode is ToolChoiceMode.NAMED:
            return tools, {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
        if mode is ToolChoiceMode.REQUIRED and choice.allowed:
            return tools, _allowed(choice)
        return tools, {"tool_choice": self.dialect.required_word if mode is ToolChoiceMode.REQUIRED else mode.value}

    def _server_tools(self, body: Body) -> None:
        dialect = self.dialect
        for offer in self.request.server_tools:
            form = dialect.server_tools.get(type(offer))
            if form is None:
                raise self.refused_tool(offer, dialect.server_tools)
            self.check_options(offer, form.takes)
            _merge(body, form.write(offer, self.request.model))

    # Knobs.

    def _answer_format(self) -> tuple[Body, str]:
        """The field that asks for a schema, and the words that do where a server only knows that an answer is JSON."""
        schema = self.request.response_schema
        if schema is None:
            return {}, ""
        if is_any_object(schema) and self.dialect.json_mode:
            return {"response_format": {"type": "json_object"}}, encoding.JSON_WORDS
        schemas = self.dialect.strict_schemas
        if not self.dialect.strict_answer_models.search(self.request.model):
            schemas = schemas.relaxed or OPENAI_SCHEMA
        if self.dialect.strict_answers and (adapted := self.answer_schema(schemas)):
            answer = {"name": "answer", "schema": adapted.schema, "strict": adapted.strict}
            return {"response_format": {"type": "json_schema", "json_schema": answer}}, ""
        if self.dialect.answer_format is not None:
            return {"response_format": self.dialect.answer_format(schema)}, ""
        self._note_missing("response_schema", "it is asked for JSON, and the schema is in the instructions")
        words = f"Answer with one JSON object, and nothing else, that follows this JSON Schema:\n{json_text(schema)}"
        return {"response_format": {"type": "json_object"}}, words

    def _knobs(self) -> Body:
        """The knobs that were set."""
        sampling, dialect = self.request.sampling, self.dialect
        knobs: Body = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            dialect.max_tokens_field: sampling.max_output_tokens,
            "stop": list(sampling.stop) or None,
        }
        if sampling.seed is not None:
            knobs |= {dialect.seed_field: sampling.seed} if dialect.seed_field else self._note_missing("seed")
        if (effort := sampling.reasoning_effort) is not None:
            form = _effort_form(dialect, self.family)
            knobs |= form.write(effort)
            if not form.levels and effort != "none":
                self._note_missing(f"reasoning effort {effort!r}", "thinking is on, without a level")
        if sampling.logprobs is not None:
            knobs |= self._logprobs(sampling.logprobs)
        if tier := self.request.service_tier:
            knobs |= {"service_tier": tier} if dialect.service_tiers else self._note_missing("service_tier")
        return {name: value for name, value in knobs.items() if value is not None}

    def _logprobs(self, count: int) -> Body:
        form = self.dialect.logprobs
        if form is None:
            return self._note_missing("logprobs")
        if count and not form.others:
            self._note_missing(f"{count} alternatives in logprobs", "those of the answer's own tokens are asked for")
        return form.write(count)

    def _modalities(self) -> Body:
        """What the model may answer with beside text."""
        request, dialect = self.request, self.dialect
        if request.images_out and "image" not in dialect.modalities:
            self._note_missing("images_out")
        if request.audio_out is not None and "audio" not in dialect.modalities:
            raise self.refused_sound()
        body: Body = {}
        if request.images_out and "image" in dialect.modalities:
            body["modalities"] = ["image", "text"]
        if (audio := request.audio_out) is not None:
            sound = audio.format
            if request.stream and dialect.streamed_audio and sound != dialect.streamed_audio:
                sound = dialect.streamed_audio
                self._note_missing(f"streamed sound as {audio.format}", f"it comes as {sound}")
            modalities = ["text", "audio", *(["image"] if "modalities" in body else [])]
            body |= {"modalities": modalities, "audio": {"voice": audio.voice, "format": sound}}
        return body

    def _note_missing(self, what: str, instead: str = "left out") -> Body:
        """Note what the server has not. The fields that say it: none."""
        self.notes.append(f"{what}: {self.dialect.name} has none on this API; {instead}")
        return {}


class _Turn:
    """One turn of the model's, as it goes back."""

    def __init__(self, request: ChatEncoding) -> None:
        self._request, self._dialect = request, request.dialect
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Body] = []
        self._own: Body = {}
        """The server's own fields of this message."""

    def add(self, part: content.AssistantPart) -> None:
        """Take a part in."""
        own = encoding.own_replay(part.replay, self._dialect.name)
        if isinstance(part, content.Text):
            # What was spoken is said by the sound's id.
            if own is None or "audio" not in own:
                self._texts.append(part.text)
            self._keep(own)
        elif isinstance(part, content.Thinking):
            if part.text and self._request.wants_reasoning and self._request.takes_back(part.replay):
                self._thoughts.append(part.text)
            elif part.text and (own is not None or part.replay is None):  # that of another API goes without saying
                name = self._dialect.name
                self._request.note(f"thinking {encoding.OF_AN_ANSWER}: {name} takes none back; left out")
            self._keep(own)
        elif isinstance(part, content.ToolCall):
            function = {"name": encoding.called_name(part), "arguments": encoding.sent_arguments(part)}
            self._calls.append({"id": part.call_id, "type": "function", "function": function, **(own or {})})
        elif isinstance(part, content.ServerTool):
            self._request.note_left_out(part)
        elif own is None:
            shown = self._request.in_place_of(part, encoding.OF_AN_ANSWER)
            self._texts.append(f"\n{shown}" if self._texts else shown)
        else:
            self._keep(own)

    def _keep(self, own: Mapping[str, object] | None) -> None:
        for name, value in (own or {}).items():
            if name == FAMILY:
                continue
            if isinstance(value, list | tuple):
                kept = self._own.setdefault(name, [])
                assert isinstance(kept, list)
                kept += [item for item in value if not _is_unsigned(item)]
            else:
                self._own[name] = value

    def body(self, *, follows_results: bool) -> Body:
        """The message. `follows_results`: it is about the results of calls."""
        dialect, text = self._dialect, "".join(self._texts)
        body: Body = {"role": "assistant"}
        if text:
            body["content"] = text
        elif "audio" not in self._own:
            body["content"] = None if self._calls else "" if dialect.empty_text else BLANK_TURN
        if self._thoughts and dialect.thinking_parts:
            thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": each}]} for each in self._thoughts]
            body["content"] = [*thinking, *([{"type": "text", "text": text}] if text else [])]
        elif self._thoughts or (self._request.wants_blank and (self._calls or follows_results)):
            body[self._request.reasoning_field] = "".join(self._thoughts)
        if self._calls:
            body["tool_calls"] = self._calls
        return body | {name: value for name, value in self._own.items() if value not in ([], None)}


def _is_unsigned(item: object) -> bool:
    """Reasoning of Claude's that was cut off before its signature: sent back, it is refused ("Invalid signature in
    thinking block", OpenRouterTeam/ai-sdk-provider#423)."""
    return (
        isinstance(item, Mapping)
        and item.get("type") == "reasoning.text"
        and item.get("format") == "anthropic-claude-v1"
        and not item.get("signature")
    )


def _allowed(choice: model.ToolChoice) -> Body:
    """The field that says which tools may be called; none where all may."""
    if not choice.allowed:
        return {}
    mode = "required" if choice.mode is ToolChoiceMode.REQUIRED else "auto"
    tools = [{"type": "function", "function": {"name": name}} for name in choice.allowed]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}}


def _as_parts(said: object) -> list[Body]:
    return list(said) if isinstance(said, list) else [{"type": "text", "text": said}]


def _tool(tool: ToolDefinition) -> Body:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _merge(body: Body, more: Mapping[str, object]) -> None:
    """Add fields to a body: lists are joined, objects merged."""
    for name, value in more.items():
        kept = body.get(name)
        if isinstance(kept, list) and isinstance(value, list):
            body[name] = [*kept, *value]
        elif isinstance(kept, dict) and isinstance(value, Mapping):
            _merge(kept, value)
        else:
            body[name] = value


def _effort_form(dialect: ChatDialect, family: Family | None) -> fields.EffortForm:
    """How this server, or else the maker of this model, is told how hard to think."""
    if dialect.effort is not None or family is None:
        return dialect.effort or fields.FLAT_EFFORT
    maker = SERVERS.get(family.name)
    return (maker.effort if maker is not None else _OTHER_EFFORTS.get(family.name)) or fields.FLAT_EFFORT
