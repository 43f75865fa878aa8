"""OpenAI Chat Completions, and every server that speaks it: the adapter, and how its answers are read.

The decoder is written for what servers really send (docs/wire.md section 2): empty and missing choices, usage anywhere,
finish reasons doubled, missing or beside content, reasoning under six names. Requests are in chat_requests.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from io import StringIO
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from callboard.protocol import content, model
from callboard.protocol.content import Citation
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import (
    FinishReason,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import AnswerHead, BaseDecoder
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import (
    Body,
    Json,
    JsonObject,
    as_text,
    fields_at,
    index_at,
    list_at,
    object_at,
    object_of,
    objects_at,
    said_at,
    text_at,
    text_of,
)
from callboard.providers.model_rules import FAMILY, family_of
from callboard.providers.openai.chat_extras import (
    CitedSources,
    ExecutedTools,
    Speech,
    citation,
    dicts,
    normal_usage,
    picture,
    token_logprobs,
)
from callboard.providers.openai.chat_reasoning import HeldReasoning, ThinkTags
from callboard.providers.openai.chat_requests import ChatEncoding
from callboard.providers.openai.dialects import OPENAI, ChatDialect
from callboard.providers.own_options import CHAT_OPTIONS


class OpenAIChat(encoding.HttpAdapter):
    """The adapter of one Chat Completions server."""

    own_options = CHAT_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: ChatDialect = OPENAI,
        headers: Mapping[str, str] | None = None,
        reasoning: str = "",
    ) -> None:
        """`reasoning`: the field in which a model whose name does not say so wants its reasoning back."""
        if reasoning:
            dialect = replace(dialect, reasoning_replay_field=reasoning, blank_reasoning=True)
        self.dialect = dialect
        super().__init__(
            dialect.name,
            # Decoding needs no address: an adapter without one can read what was recorded, and encodes nothing.
            dialect.address(base_url) if base_url or dialect.base_url else "",
            api_key,
            lambda head: ChatDecoder(head, dialect),
            headers=headers,
            credential={dialect.key_header: api_key} if dialect.key_header and api_key else None,
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        url = self._url or self.dialect.address(None)
        encoded = ChatEncoding(request, self.dialect)
        body = {**encoded.body(), **self.own_fields(request)}
        path = self.dialect.path.replace("{model}", quote(request.model, safe=""))
        return self.sent(f"{url}{path}", self.headers(request), encoded, body)

    def own_fields(self, request: model.ModelRequest) -> Body:
        """Fields that only one server has, for variants of this adapter."""
        return {}


_STOPS: Final = "stop eos eos_token end_turn stop_sequence complete"
_CALLS: Final = "tool_calls tool-calls tool_call tool_use function_call"
_FILTERS: Final = "content_filter content_filtered safety sensitive recitation blocklist prohibited_content spii"
_FINISH_REASONS: Final = {
    # `eos` is Together's, `eos_token` Hugging Face's. "Decide on presence of calls, not on the reason" (docs/wire.md
    # 1.1): without a call, `tool_calls` and `function_call` are a plain stop.
    **dict.fromkeys(("", *_STOPS.split(), *_CALLS.split()), FinishReason.STOP),
    # Mistral's is model_length, Z.ai's model_context_window_exceeded.
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), FinishReason.LENGTH),
    # Gemini's behind compatible servers; `sensitive` is Z.ai's.
    **dict.fromkeys(_FILTERS.split(), FinishReason.CONTENT_FILTER),
    "refusal": FinishReason.REFUSAL,
    "error": FinishReason.ERROR,
}
#: After these no call of the turn is whole: it was broken off, and what was to come may have changed what came. So it
#: is after a reason that we do not know: `insufficient_system_resource`, `network_error`, `abort` and their kin all
#: mean that (docs/wire.md quirk 69). The length limit only cuts the call that was being written.
_BROKEN_OFF: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL, FinishReason.OTHER})
#: `reasoning_text` is Copilot's.
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_REASONING_BLOCKS: Final = ("reasoning_details", "thinking_blocks")
_OPAQUE_FIELDS: Final = ("reasoning_opaque", "reasoning_signature")
_REASONING: Final = frozenset({*_REASONING_FIELDS, *_REASONING_BLOCKS, *_OPAQUE_FIELDS})
#: Fields of a whole document that few servers send: errors, and the sources of Perplexity, xAI and Z.ai.
_SOURCE_FIELDS: Final = ("citations", "search_results", "web_search")
_RARE: Final = frozenset({"error", "x_groq", "base_resp", *_SOURCE_FIELDS})
#: Those of a delta or a message.
_EXTRAS: Final = frozenset({"images", "audio", "annotations", "executed_tools"})
#: The parts that a content may be instead of a text, and the field of each with what it says.
_PARTS: Final = {
    **dict.fromkeys(("text", "output_text"), "text"),
    "thinking": "thinking",
    "reference": "reference_ids",
    "image_url": "image_url",
}
#: Those with what was said, and those with calls.
_SAID: Final = frozenset({"content", "refusal", "images", "audio"})
_CALL_FIELDS: Final = frozenset({"tool_calls", "function_call"})
_OTHER_CHOICES: Final = "the answer has several choices; all but the first were left out"
_Out = list[StreamEvent]


class ChatDecoder(BaseDecoder):
    """One answer of a Chat Completions server."""

    def __init__(self, head: AnswerHead, dialect: ChatDialect) -> None:
        super().__init__(head)
        self._dialect = dialect
        self._held = HeldReasoning(dialect.name)
        self._think_tags = ThinkTags() if dialect.think_tags else None
        self._thinking_replay = content.Replay(dialect.name, {})
        """Whose the reasoning is, so that it goes back to no other model."""
        self._sources = CitedSources()
        self._tools = ExecutedTools(dialect.name)
        self._speech: Speech | None = None
        self._pictures = 0
        self._files: list[JsonObject] = []
        """Annotations that must go back: OpenRouter's, of the files that it read."""
        self._named = False
        """Are the answer's id and model known?"""
        self._finish_reason = ""
        self._unfinished: set[int] = set()
        """The choices that have written to a call since their last finish reason."""
        self._places: dict[tuple[int, int], tuple[Hashable, str]] = {}
        """The calls that came several at a time without an index: pieces that come so too are theirs, by place."""
        self._refused = False
        self._chosen = False
        self._shown = False
        """Has a picture or sound come?"""
        self._thought = False
        self._written = StringIO()
        """The text as it came."""
        self._write = self._written.write

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # vLLM before 0.10 put the error's own fields on the top level.
        if event == "error" or document.get("object") == "error":
            self.fail_payload(document, out)
            return
        if not _RARE.isdisjoint(document) and self._note_rare(document, out):
            return
        if not self._named or document.get("usage"):
            self._note(document)
        choices = document.get("choices")
        if not choices:
            self.fail_if_error(document, out)
        for choice in choices if isinstance(choices, list) else list_at(document, "choices"):
            if not isinstance(choice, dict):
                raise TypeError("a choice is not an object")
            self._chosen = True
            index = choice.get("index") or 0
            if index == 0:
                self._choice(0, choice, out)
            elif self._dialect.merge_choices and isinstance(index, int):
                self._choice(index, choice, out)
            elif not self.notes:
                self.notes.append(_OTHER_CHOICES)
        if self._finish_reason:
            self._note_tier(document)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        if self._note_rare(document, out):
            return
        self._note(document)
        choices = objects_at(document, "choices")
        if not choices:
            self.fail_malformed(out, "the answer has no choices.", self._last_data)
            return
        if len(choices) > 1 and not self._dialect.merge_choices:
            self.notes.append(_OTHER_CHOICES)
        for choice in choices if self._dialect.merge_choices else choices[:1]:
            reason = str(choice.get("finish_reason") or "")
            # Azure's filter leaves the message out, and says so by the reason (66).
            message = object_at(choice, "message") if reason else object_of(choice.get("message"))
            self._message(index_at(choice, "index"), message, out)
            self.note_logprobs(token_logprobs(fields_at(choice, "logprobs")))
            if self._ends(reason, choice, out):
                return
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
        said = bool(self._told_fields())
        return (self._finish_reason != "" or (self._dialect.finish_optional and said)) and self.calls.written()

    def _note_rare(self, document: JsonObject, out: _Out) -> bool:
        """What few servers send. True where that ended the answer."""
        groq = fields_at(document, "x_groq")
        if document.get("error"):
            self.fail_payload(document, out)
        elif groq.get("error"):
            self.fail_payload({"error": groq["error"]}, out)  # in an answer that looks whole (70)
        elif "base_resp" in document:
            self.fail_if_error(document, out)  # MiniMax's, beside choices that are null (95)
        if isinstance(usage := groq.get("usage"), dict) and usage:
            self.usage = usage
        for field in _SOURCE_FIELDS:
            self._sources.note(field, document.get(field))
        return self.ended

    def _note(self, document: JsonObject) -> None:
        """What any chunk may have: the answer's id and model, and usage, of which the last is the total (18)."""
        if not self.model and document.get("model"):
            self.model = str(document["model"])
            if (family := family_of(self.model)) is not None and family.name != self._dialect.name:
                self._thinking_replay = self._held.mark = content.Replay(self._dialect.name, {FAMILY: family.name})
        if not self.response_id and document.get("id"):
            self.response_id = self.calls.seed = str(document["id"])
        self._named = bool(self.model and self.response_id)
        if (usage := document.get("usage")) and isinstance(usage, dict) and (not self.usage or _counts(usage)):
            self.usage = usage
        self._note_tier(document)

    def _note_tier(self, document: JsonObject) -> None:
        if isinstance(tier := document.get("service_tier"), str):
            self.service_tier = tier

    def _choice(self, index: int, choice: JsonObject, out: _Out) -> None:
        """One choice of one chunk: first its delta, then its finish reason, since one chunk may have both (22)."""
        if delta := choice.get("delta"):
            self._delta(index, delta if isinstance(delta, dict) else object_of(delta), out)
        elif delta is None and "message" in choice:
            # With a delta beside it, the message is Perplexity's running total and says everything twice (54).
            self._message(index, self._untold(index, object_of(choice["message"])), out)
        if (logprobs := choice.get("logprobs")) and isinstance(logprobs, dict):
            self.note_logprobs(token_logprobs(logprobs))
        if reason := choice.get("finish_reason"):
            self._unfinished.discard(index)
            self._ends(str(reason), choice, out)

    def _untold(self, index: int, message: JsonObject) -> JsonObject:
        """What a message in a stream says more than what came before it. It may be the whole answer (of a server that
        ignores `stream`), all of it so far, or a last word that repeats the deltas: nothing is said twice (63)."""
        if index:
            return message
        told, text, written = self._told_fields(), message.get("content"), self._written.getvalue()
        rest = {key: value for key, value in message.items() if key not in told}
        if isinstance(text, str) and text.startswith(written):
            rest["content"] = text[len(written) :]
        return rest

    def _told_fields(self) -> frozenset[str]:
        """The fields of a message that the stream has told by now."""
        return frozenset().union(
            _REASONING if self._thought else (),
            _SAID if self._shown or self._written.tell() else (),
            _CALL_FIELDS if self.calls.count else (),
        )

    def _ends(self, reason: str, choice: JsonObject, out: _Out) -> bool:
        """Why a choice ended. True where it was an error that says more than its reason (OpenRouter)."""
        self._finish_reason = reason or self._finish_reason
        # Moonshot's, which comes again at the end where it was asked for.
        self.usage = self.usage or fields_at(choice, "usage")
        if reason == "error" and choice.get("error"):
            self.fail_payload({"error": choice["error"]}, out)
        return self.ended

    def _delta(self, index: int, delta: JsonObject, out: _Out) -> None:
        text = delta.get("content")
        if len(delta) == 1 and isinstance(text, str):
            # Nearly every chunk of an answer: one piece of text and nothing else. A call more would cost 2 % of it.
            if text and (self._held.pending or self._think_tags is not None):
                self._text(text, index, out)
            elif text:
                self._write(text)
                out.append(TextDelta(text, index))
            return
        self._said(delta, index, out)
        if delta.get("tool_calls"):
            self._close_reasoning(out)
            calls = objects_at(delta, "tool_calls")
            for place, call in enumerate(calls):
                self._call_delta(index, call, out, place if len(calls) > 1 else None)
        if legacy := _legacy_call(delta):
            self._unfinished.add(index)
            name, arguments = text_at(legacy, "name"), legacy.get("arguments")
            self.calls.delta(out, index="function_call", name=name, arguments=arguments)

    def _call_delta(self, choice: int, call: JsonObject, out: _Out, place: int | None) -> None:
        """A piece of a call, and its place where it came with others."""
        index = call.get("index")
        if isinstance(index, list | dict):
            raise TypeError("the index of a call is not a number")
        name, arguments = _function(call)
        # Copilot's choices count their calls from 0 each; Mistral's continuations may bear the word null.
        key: Hashable = (choice, index) if choice and index is not None else index
        call_id = "" if call.get("id") in (None, "null") else _id(call)
        if index is None and place is not None:
            if call_id or name:
                key = None if call_id else ("place", self.calls.count)
                self._places[choice, place] = key, call_id
            else:
                key, call_id = self._places.get((choice, place), (None, ""))
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
        """Reasoning, text, refusal and the rest of a delta or a message."""
        if not _REASONING.isdisjoint(holder):
            self._reasoning(index, holder, out)
        if (said := holder.get("content")) or (said is not None and said != "" and said != []):
            self._content(said, index, out)
        if refusal := holder.get("refusal"):
            self._refused = True
            self._text(as_text(refusal), index, out)
        if not _EXTRAS.isdisjoint(holder):
            self._extras(index, holder, out)

    def _reasoning(self, index: int, delta: JsonObject, out: _Out) -> None:
        """Reasoning under whichever name, once: OpenRouter, Groq and LiteLLM send the same text twice (47)."""
        text = ""
        for said in map(delta.get, _REASONING_FIELDS):
            if said or said == 0:  # a digit may come as a number (90)
                text = said if isinstance(said, str) else "" if isinstance(said, list | dict) else as_text(said)
                break
        for name in _REASONING_BLOCKS:
            if delta.get(name):
                seen = self._held.add(name, objects_at(delta, name))
                text = text or seen
        for name in _OPAQUE_FIELDS:
            if opaque := delta.get(name):
                self._held.keep(name, text_of(opaque))
        if text:
            self._thought = True
            out.append(ThinkingDelta(text, index, self._thinking_replay))

    def _close_reasoning(self, out: _Out) -> None:
        """Reasoning is over for now: what must be given back unmodified goes onto its part."""
        if (replay := self._held.take()) is not None:
            out.append(ThinkingDelta("", 0, replay))

    def _content(self, said: Json, index: int, out: _Out) -> None:
        """Text, or a list of typed parts (Mistral: 46), or one of them."""
        if isinstance(said, str):
            self._text(said, index, out)
            return
        if _is_value(said):
            self._text(as_text(said), index, out)
            return
        for part in said if isinstance(said, list) else [said]:
            if isinstance(part, dict):
                self._part(part, index, out)
            elif text := as_text(part):
                self._text(text, index, out)

    def _part(self, part: JsonObject, index: int, out: _Out) -> None:
        kind = text_at(part, "type")
        if kind in ("", "text", "output_text"):
            if said := said_at(part, "text"):
                self._text(said, index, out)
        elif kind == "thinking":
            inner = part.get("thinking")
            if isinstance(inner, list):
                inner = "".join(said_at(piece, "text") for piece in objects_at(part, "thinking"))
            if inner := as_text(inner):
                out.append(ThinkingDelta(inner, index, self._thinking_replay))
        elif kind == "reference":
            self.cite(out, [Citation(raw=part)], index)
        elif kind == "image_url":
            self._picture(part, out)
        else:
            out.append(ServerToolEvent(kind, content.Replay(self._dialect.name, part)))

    def _extras(self, index: int, holder: JsonObject, out: _Out) -> None:
        """Pictures, sound, sources of the text, and tools that the server ran."""
        for picture_of in dicts(holder.get("images")):
            self._picture(picture_of, out)
        if sound := fields_at(holder, "audio"):
            self._shown = True
            self._speech = self._speech or Speech(self._dialect.name, self.show)
            self._speech.feed(sound, index, out)
        annotations = dicts(holder.get("annotations"))
        if files := [annotation for annotation in annotations if annotation.get("type") == "file"]:
            self.hold()
            self._files += files
        self.cite(out, (citation(each) for each in annotations if each.get("type") != "file"), index)
        if tools := dicts(holder.get("executed_tools")):
            self.hold()
            self._tools.note(tools, self._sources)

    def _picture(self, raw: JsonObject, out: _Out) -> None:
        if (image := picture(raw)) is not None:
            self._shown = True
            self._pictures += 1  # a block of its own: two pictures are two parts
            self.show(out, image, self._pictures)

    def _text(self, text: str, index: int, out: _Out) -> None:
        self._write(text)
        if self._held.pending:
            self._close_reasoning(out)
        if self._think_tags is None:
            out.append(TextDelta(text, index))
        else:
            self._think_tags.feed(text, index, out)

    def _finish_parts(self, out: _Out) -> None:
        """What is kept until the end of the turn."""
        if self._think_tags is not None:
            self._think_tags.finish(out)
        self._close_reasoning(out)
        if self._speech is not None:
            self._speech.finish(0, out, self._written.getvalue())
        out.extend(self._tools.events())
        self.cite(out, self._sources.citations())
        if self._files:
            out.append(TextDelta("", 0, content.Replay(self._dialect.name, {"annotations": self._files})))

    def _end_turn(self, out: _Out) -> None:
        self._finish_parts(out)
        reason = _FINISH_REASONS.get(self._finish_reason.lower(), FinishReason.OTHER)
        if reason is FinishReason.ERROR:
            self.fail(out, make_error(ErrorKind.SERVER, "The provider broke off the turn with finish reason 'error'."))
            return
        if reason not in _BROKEN_OFF:
            self.calls.complete_all(out, cut=reason is FinishReason.LENGTH)
        if self.calls.count and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        elif self._refused and reason is FinishReason.STOP:
            reason = FinishReason.REFUSAL
        self.end(out, model.Done(reason, self._finish_reason, normal_usage(self.usage), self.usage, self.model))


def _counts(usage: JsonObject) -> bool:
    """Does it count anything? Zeros behind a count are placeholders."""
    return any(value for value in usage.values() if isinstance(value, int | float))


def _is_value(said: Json) -> bool:
    """Is it the JSON that was asked for (Cloudflare's Workers AI, "JSON Mode") or a digit as a number, and no part or
    list of parts?"""
    if isinstance(said, dict):
        return _PARTS.get(str(said.get("type"))) not in said
    if not isinstance(said, list):
        return True
    objects = [each for each in said if isinstance(each, dict)]
    if not objects:
        return not all(isinstance(each, str) for each in said)
    return any(not isinstance(each.get("type", each.get("text")), str) for each in objects)


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
    return legacy if legacy.get("name") or as_text(legacy.get("arguments")) else {}
