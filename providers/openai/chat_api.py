"""OpenAI Chat Completions, and every server that speaks it: requests, then answers.

The decoder is written for what servers really send (docs/wire.md section 2): empty and missing choices, usage anywhere,
finish reasons doubled, missing or beside content, reasoning under four names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import StringIO
from typing import Final

from callboard.protocol import content, model
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_RESPONSE_BYTES
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import (
    AnswerHead,
    BaseDecoder,
    count_at,
    fields_at,
    index_at,
    list_at,
    object_at,
    object_of,
    objects_at,
    text_at,
    text_of,
    usage_of,
)
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import Body, Json, JsonObject, storable_bytes
from callboard.providers.openai.dialects import OPENAI, ChatDialect
from callboard.providers.tool_schema import OPENAI as OPENAI_SCHEMA
from callboard.providers.tool_schema import OPENAI_STRICT, is_strict


class OpenAIChat(encoding.HttpAdapter):
    """The adapter of one Chat Completions server."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: ChatDialect = OPENAI,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.dialect = dialect
        super().__init__(
            dialect.name,
            # Decoding needs no address: an adapter without one can read what was recorded, and encodes nothing.
            dialect.address(base_url) if base_url or dialect.base_url else "",
            api_key,
            lambda head: ChatDecoder(head, dialect),
            headers=headers,
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        url = self._url or self.dialect.address(None)
        encoded = encoding.Encoding(request)
        tools = encoded.adapted_tools(OPENAI_SCHEMA, OPENAI_STRICT)
        body = {**self.body(replace(request, tools=tools)), **request.options}
        return encoding.post(f"{url}/chat/completions", self.headers(request), body, encoded.notes)

    def body(self, request: model.ModelRequest) -> Body:
        """The request's fields, without the caller's `options`; variants change and add."""
        dialect = self.dialect
        messages = encoding.rewrite_call_ids(request.messages, dialect.call_ids)
        body: Body = {"model": request.model, "messages": [self.message(message) for message in messages]}
        if request.stream:
            body["stream"] = True
            if dialect.stream_usage:
                body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            body |= _tool_choice(request.tool_choice)
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        if (schema := request.response_schema) is not None:
            # strict is refused for schemas outside OpenAI's subset; without it the schema is a strong hint.
            answer = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        return body | self.sampling(request.sampling)

    def sampling(self, sampling: model.Sampling) -> Body:
        """The knobs that were set."""
        knobs = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.dialect.max_tokens_field: sampling.max_output_tokens,
            "stop": list(sampling.stop) or None,
            self.dialect.seed_field: sampling.seed,
            "reasoning_effort": sampling.reasoning_effort,
        }
        return {name: value for name, value in knobs.items() if value is not None}

    def message(self, message: content.Message) -> Body:
        """One message of the history."""
        if isinstance(message, content.AssistantMessage):
            return self.assistant(message)
        if isinstance(message, content.ToolMessage):
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
        if isinstance(message, content.SystemMessage):
            return {"role": "system", "content": message.text}
        return {"role": "user", "content": encoding.user_content(message, _user_part)}

    def assistant(self, message: content.AssistantMessage) -> Body:
        """A turn of the model's. Thinking goes back only where this server wants its own back."""
        calls = [self._call(call) for call in message.tool_calls]
        body: Body = {"role": "assistant", "content": message.text or (None if calls else "")}
        if calls:
            body["tool_calls"] = calls
        field = self.dialect.reasoning_replay_field
        for part in message.parts:
            own = encoding.own_replay(part.replay, self.name)
            if isinstance(part, content.Thinking) and field and part.text and own is not None:
                body[field] = f"{body.get(field, '')}{part.text}"
            elif isinstance(part, content.Text):
                body |= own or {}
        return body

    def _call(self, call: content.ToolCall) -> Body:
        function = {"name": encoding.called_name(call), "arguments": encoding.sent_arguments(call)}
        replay = encoding.own_replay(call.replay, self.name) or {}
        return {"id": call.call_id, "type": "function", "function": function, **replay}


def _tool(tool: ToolDefinition) -> Body:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _tool_choice(choice: model.ToolChoice) -> Body:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    return {} if choice.mode is ToolChoiceMode.AUTO else {"tool_choice": choice.mode.value}


def _user_part(part: content.UserPart) -> Body:
    if isinstance(part, content.Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, content.Image):
        return {"type": "image_url", "image_url": {"url": encoding.data_url(part)}}
    raise encoding.refused_part(part, "Chat Completions", "text, Image")


_FINISH_REASONS: Final = {
    # `eos` is Together's. "Decide on presence of calls, not on the reason" (docs/wire.md 1.1): without a call,
    # `tool_calls` and `function_call` are a plain stop.
    **dict.fromkeys(("", "stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"), FinishReason.STOP),
    **dict.fromkeys(("length", "max_tokens", "model_length"), FinishReason.LENGTH),  # the last is Mistral's
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.REFUSAL,
    "error": FinishReason.ERROR,
}
#: After these the last call is cut off. So it is after a reason that we do not know: `insufficient_system_resource`,
#: `network_error`, `abort` and their kin all mean that (docs/wire.md quirk 69).
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.REFUSAL, FinishReason.OTHER})
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
#: The fields of an entry of `reasoning_details` that are streamed piece by piece.
_TEXT_FIELDS: Final = ("text", "summary", "data")
_Out = list[StreamEvent]


class ChatDecoder(BaseDecoder):
    """One answer of a Chat Completions server."""

    def __init__(self, head: AnswerHead, dialect: ChatDialect) -> None:
        super().__init__(head)
        self._dialect = dialect
        self._details = ReasoningDetails(dialect.name)
        self._think_tags = ThinkTags() if dialect.think_tags else None
        # Given back to the server that wants it (ChatDialect.reasoning_replay_field).
        self._thinking_replay = content.Replay(dialect.name, {}) if dialect.reasoning_replay_field else None
        self._finish_reason = ""
        self._unfinished: set[int] = set()
        """The choices that have written to a call since their last finish reason."""
        self._refused = False
        self._chosen = False
        self._wrote = False

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # vLLM before 0.10 put the error's own fields on the top level.
        if event == "error" or document.get("error") or document.get("object") == "error":
            self.fail_payload(document, out)
            return
        if document.get("x_groq") and (groq_error := fields_at(document, "x_groq").get("error")):
            self.fail_payload({"error": groq_error}, out)  # in an answer that looks whole (70)
            return
        self._note(document)
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else list_at(document, "choices"):
            if not isinstance(choice, dict):
                raise TypeError("a choice is not an object")
            self._chosen = True
            index = choice.get("index") or 0
            if index == 0:
                self._choice(0, choice, out)
            elif self._dialect.merge_choices and isinstance(index, int):
                self._choice(index, choice, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        self._note(document)
        choices = objects_at(document, "choices")
        if not choices:
            self.fail_malformed(out, "the answer has no choices.", self._last_data)
            return
        for choice in choices if self._dialect.merge_choices else choices[:1]:
            reason = text_at(choice, "finish_reason")
            # Azure's filter leaves the message out, and says so by the reason (66).
            message = object_at(choice, "message") if reason else object_of(choice.get("message"))
            self._message(index_at(choice, "index"), message, out)
            self._finish_reason = reason or self._finish_reason
        self._end_turn(out)

    def on_end(self, out: _Out, marked: bool) -> None:
        if marked and not self._chosen:
            self.fail_malformed(out, "the stream ended without a choice.")
        elif marked or self._is_whole():
            self._end_turn(out)
        else:
            self.fail_truncated(out)

    def _is_whole(self) -> bool:
        """Without [DONE] (23): a finish reason speaks for the calls of its choice that came before it. Other calls, and
        those of a server that is known to leave the reason out, must tell by themselves that they are whole."""
        if self._finish_reason and not self._unfinished:
            return True
        said = self._wrote or self.calls.count > 0
        return (self._finish_reason != "" or (self._dialect.finish_optional and said)) and self.calls.written()

    def _note(self, document: JsonObject) -> None:
        """What any chunk may have: the answer's id and model, and usage, of which the last is the total (18)."""
        if not self.model and document.get("model"):
            self.model = str(document["model"])
        if not self.calls.seed and document.get("id"):
            self.calls.seed = str(document["id"])
        usage = document.get("usage") or (document.get("x_groq") and fields_at(document, "x_groq").get("usage"))
        if isinstance(usage, dict) and usage:
            self.usage = usage

    def _choice(self, index: int, choice: JsonObject, out: _Out) -> None:
        """One choice of one chunk: first its delta, then its finish reason, since one chunk may have both (22)."""
        if delta := choice.get("delta"):
            self._delta(index, delta if isinstance(delta, dict) else object_of(delta), out)
        elif delta is None and "message" in choice:
            # A server that ignores `stream` and wraps its whole answer in one event. (With a delta beside it, the
            # message is Perplexity's running total and says everything twice: 54.)
            self._message(index, object_of(choice["message"]), out)
        if reason := choice.get("finish_reason"):
            self._finish_reason = str(reason)
            self._unfinished.discard(index)

    def _delta(self, index: int, delta: JsonObject, out: _Out) -> None:
        text = delta.get("content")
        if len(delta) == 1 and isinstance(text, str):
            # Nearly every chunk of an answer: one piece of text and nothing else.
            if text:
                self._text(text, index, out)
            return
        self._said(delta, index, out)
        if delta.get("tool_calls"):
            self._close_reasoning(out)
            for call in objects_at(delta, "tool_calls"):
                self._call_delta(index, call, out)
        if legacy := _legacy_call(delta):
            self._unfinished.add(index)
            name, arguments = text_at(legacy, "name"), legacy.get("arguments")
            self.calls.delta(out, index="function_call", name=name, arguments=arguments)

    def _call_delta(self, choice: int, call: JsonObject, out: _Out) -> None:
        index = call.get("index")
        if isinstance(index, list | dict):
            raise TypeError("the index of a call is not a number")
        name, arguments = _function(call)
        # Copilot's choices count their calls from 0 each; Mistral's continuations may bear the word null.
        key = (choice, index) if choice and index is not None else index
        call_id = "" if call.get("id") in (None, "null") else _id(call)
        self._unfinished.add(choice)
        self.calls.delta(out, index=key, id=call_id, name=name, arguments=arguments, replay=self._extra(call))

    def _message(self, index: int, message: JsonObject, out: _Out) -> None:
        """A whole message."""
        self._said(message, index, out)
        self._close_reasoning(out)
        if (replay := self._extra(message)) is not None:
            out.append(TextDelta("", index, replay))
        calls = objects_at(message, "tool_calls")
        if legacy := _legacy_call(message):
            calls.append({"function": legacy})
        for call in calls:
            self._unfinished.add(index)
            name, arguments = _function(call)
            # Completed by the end of the turn, which knows whether it was cut.
            self.calls.whole(
                out, id=_id(call), name=name, arguments=arguments, replay=self._extra(call), complete=False
            )

    def _extra(self, holder: JsonObject) -> content.Replay | None:
        """Google's thought signatures, which must come back on the part they came on (50)."""
        extra = holder.get("extra_content")
        return content.Replay(self._dialect.name, {"extra_content": extra}) if extra else None

    def _said(self, holder: JsonObject, index: int, out: _Out) -> None:
        """Reasoning, text and refusal of a delta or a message."""
        self._reasoning(index, holder, out)
        if said := holder.get("content"):
            self._content(said, index, out)
        if refusal := holder.get("refusal"):
            self._refused = True
            self._text(text_of(refusal), index, out)

    def _reasoning(self, index: int, delta: JsonObject, out: _Out) -> None:
        """Reasoning under whichever name, once: OpenRouter and Groq send the same text twice (47)."""
        text = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), "")
        if delta.get("reasoning_details"):
            seen = self._details.add(objects_at(delta, "reasoning_details"))
            text = text or seen
        if isinstance(text, str) and text:
            self._wrote = True
            out.append(ThinkingDelta(text, index, self._thinking_replay))

    def _close_reasoning(self, out: _Out) -> None:
        """Reasoning is over for now: what must be given back unmodified goes onto its part."""
        if (replay := self._details.take()) is not None:
            out.append(ThinkingDelta("", 0, replay))

    def _content(self, said: Json, index: int, out: _Out) -> None:
        """Text, or Mistral's list of typed parts (46)."""
        if not isinstance(said, list):
            self._text(text_of(said), index, out)
            return
        for part in map(object_of, said):
            if part.get("type") == "text":
                self._text(text_of(part["text"]), index, out)
            elif part.get("type") == "thinking":
                inner = part.get("thinking") or ""
                if not isinstance(inner, str):
                    inner = "".join(text_at(piece, "text") for piece in objects_at(part, "thinking"))
                if inner:
                    out.append(ThinkingDelta(inner, index, self._thinking_replay))

    def _text(self, text: str, index: int, out: _Out) -> None:
        self._wrote = True
        if self._details.pending:
            self._close_reasoning(out)
        if self._think_tags is None:
            out.append(TextDelta(text, index))
        else:
            self._think_tags.feed(text, index, out)

    def _end_turn(self, out: _Out) -> None:
        if self._think_tags is not None:
            self._think_tags.finish(out)
        self._close_reasoning(out)
        reason = _FINISH_REASONS.get(self._finish_reason.lower(), FinishReason.OTHER)
        if reason is FinishReason.ERROR:
            self.fail(out, make_error(ErrorKind.SERVER, "The provider broke off the turn with finish reason 'error'."))
            return
        cut = reason in _CUT
        self.calls.complete_all(out, cut=cut)
        if self.calls.count and not cut:
            reason = FinishReason.TOOL_CALLS
        elif self._refused and reason is FinishReason.STOP:
            reason = FinishReason.REFUSAL
        self.end(out, model.Done(reason, self._finish_reason, normal_usage(self.usage), self.usage, self.model))


def _function(call: JsonObject) -> tuple[str, Json]:
    """(name, arguments) of a call, or of a custom tool's, whose arguments are its input."""
    function = object_at(call, "function") or object_at(call, "custom")
    return text_at(function, "name"), function.get("arguments", function.get("input"))


def _id(call: JsonObject) -> str:
    value = call.get("id")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else text_of(value)


def _legacy_call(holder: JsonObject) -> JsonObject:
    """The call in the API's old form, {} where there is none; some servers put an empty one beside every text (65)."""
    if not holder.get("function_call"):
        return {}
    legacy = object_at(holder, "function_call")
    return legacy if legacy.get("name") or legacy.get("arguments") else {}


def normal_usage(raw: JsonObject) -> model.Usage | None:
    """Chat Completions usage: prompt tokens include cached ones, completion tokens include reasoning, except xAI's."""
    prompt, completion = fields_at(raw, "prompt_tokens_details"), fields_at(raw, "completion_tokens_details")
    asked, answered = count_at(raw, "prompt_tokens"), count_at(raw, "completion_tokens")
    if asked is None and answered is None:
        return None
    asked, answered, reasoned = asked or 0, answered or 0, count_at(completion, "reasoning_tokens") or 0
    # DeepSeek and Moonshot put it on the top level.
    cached = (
        count_at(prompt, "cached_tokens")
        or count_at(raw, "prompt_cache_hit_tokens")
        or count_at(raw, "cached_tokens")
        or 0
    )
    if cached > asked:
        asked += cached  # counted beside the prompt's, by Grok on Azure (71)
    if reasoned and count_at(raw, "total_tokens") == asked + answered + reasoned:
        # xAI counts the reasoning beside the answer: 12 + 1 + 314 = 327.
        answered += reasoned
    return usage_of(
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=cached,
        cache_write_tokens=count_at(prompt, "cache_write_tokens"),
        reasoning_tokens=reasoned,
    )


class ThinkTags:
    """`<think>...</think>` at the start of a text, told apart from the answer; only where a dialect asks for it.

    A tag may be cut anywhere: what could be the start of one is held back until it is known.
    """

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""
        self._block = 0

    def feed(self, text: str, block: int, out: _Out) -> None:
        self._block = block
        self._held += text
        if self._state == "before":
            start = self._held.lstrip()
            if start.startswith(_OPEN):
                self._state, self._held = "inside", start[len(_OPEN) :]
            elif not _OPEN.startswith(start):
                self._state = "after"
        if self._state == "inside":
            thought, found, self._held = self._held.partition(_CLOSE)
            if found:
                self._state = "closed"
            else:
                kept = len(thought) - _overlap(thought)
                thought, self._held = thought[:kept], thought[kept:]
            if thought:
                out.append(ThinkingDelta(thought, block))
        if self._state == "closed":
            # Templates put empty lines between the tag and the answer.
            self._held = self._held.lstrip("\n")
            self._state = "after" if self._held else "closed"
        if self._state == "after":
            self.finish(out)

    def finish(self, out: _Out) -> None:
        """The text is over: what was held back is what it looked like."""
        held, self._held = self._held, ""
        if held:
            out.append((ThinkingDelta if self._state == "inside" else TextDelta)(held, self._block))


def _overlap(text: str) -> int:
    """How many characters at the end of `text` could begin the closing tag."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)


class ReasoningDetails:
    """OpenRouter's reasoning_details: merges the fragments of one stretch of reasoning as they must be sent back
    (docs/wire.md 1.5). `take` hands out what has come since the last time."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._size = 0
        self.pending: list[tuple[JsonObject, dict[str, StringIO]]] = []
        """Items, and their fields that come in pieces."""

    def add(self, fragments: Iterable[JsonObject]) -> str:
        """Take fragments in; returns their readable text. Raises ValueError past the limit."""
        seen = ""
        for fragment in fragments:
            self._size += storable_bytes(fragment)
            if self._size > MAX_RESPONSE_BYTES:
                raise ValueError(f"the reasoning details are longer than {MAX_RESPONSE_BYTES} bytes")
            if not self.pending or not _continues(self.pending[-1][0], fragment):
                self.pending.append(({}, {}))
            item, texts = self.pending[-1]
            for key, value in fragment.items():
                if key in _TEXT_FIELDS and isinstance(value, str):
                    texts.setdefault(key, StringIO()).write(value)
                    item.setdefault(key, "")
                elif value is not None or key not in item:
                    item[key] = value
            seen += text_at(fragment, "text") or text_at(fragment, "summary")
        return seen

    def take(self) -> content.Replay | None:
        """What has come, to be replayed unmodified; None where nothing has."""
        if not self.pending:
            return None
        items = [{**item, **{key: text.getvalue() for key, text in texts.items()}} for item, texts in self.pending]
        self.pending.clear()
        return content.Replay(self._origin, {"reasoning_details": items})


def _continues(last: JsonObject, fragment: JsonObject) -> bool:
    """A fragment of the same block: same type and index, and the block has not been signed yet."""
    same = last.get("type") == fragment.get("type") and last.get("index") == fragment.get("index")
    return same and fragment.get("index") is not None and fragment.get("type") != "reasoning.encrypted"
