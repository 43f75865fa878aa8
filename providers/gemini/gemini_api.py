"""Gemini generateContent and streamGenerateContent, also on Vertex AI. Facts: docs/wire.md 1.4, quirks 40-45, 67, 69.

The adapter, and its answers: as SSE, as one long JSON array, or whole. What is sent is in gemini_requests.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

from callboard.protocol import content, model
from callboard.protocol.content import json_text
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta, TokenLogprob
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import AnswerHead, BaseDecoder
from callboard.providers.gemini.gemini_requests import (
    FOREIGN_SIGNATURE,
    GEMINI_API,
    ORIGIN,
    VERTEX_AI,
    GeminiEncoding,
)
from callboard.providers.gemini.grounding import AnswerSources, AnswerText
from callboard.providers.gemini.json_array import BLANK, JsonArraySplitter
from callboard.providers.gemini.partial_arguments import PartialArguments
from callboard.providers.http_errors import is_error, make_error
from callboard.providers.json_values import (
    SHAPE_ERRORS,
    Json,
    JsonObject,
    count_at,
    fields_at,
    list_at,
    log_probability,
    object_at,
    object_of,
    objects_at,
    said_at,
    text_at,
    usage_of,
)
from callboard.providers.own_options import GEMINI_OPTIONS

__all__ = ["FOREIGN_SIGNATURE", "Gemini", "GeminiDecoder"]


class Gemini(encoding.HttpAdapter):
    """The adapter of the Gemini API. With `project` and `location` it is the same API on Vertex AI, where the key is an
    OAuth access token."""

    own_options = GEMINI_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        project: str | None = None,
        location: str = "us-central1",
    ) -> None:
        self._platform = GEMINI_API if project is None else VERTEX_AI
        if project is None:
            default, self._path = "https://generativelanguage.googleapis.com", "v1beta"
            credential = {"x-goog-api-key": api_key} if api_key else {}
        else:
            prefix = "" if location == "global" else f"{location}-"
            default = f"https://{prefix}aiplatform.googleapis.com"
            self._path = f"v1beta1/projects/{quote(project)}/locations/{quote(location)}/publishers/google"
            credential = encoding.bearer(api_key)
        url = encoding.checked_url(base_url, default).removesuffix(f"/{self._path}")
        numbers = GEMINI_NUMBERS if project is None else VERTEX_NUMBERS
        super().__init__(
            "gemini", url, api_key, lambda head: GeminiDecoder(head, numbers), credential=credential, headers=headers
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = GeminiEncoding(request, self._platform)
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        name = quote(request.model.removeprefix("models/"), safe="/")
        url = f"{self._url}/{self._path}/models/{name}:{method}"
        return self.sent(url, self.headers(request), written, written.body())


_FILTERS: Final = (
    "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR ESCALATION "
    "IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION"
)
#: google-genai types.py, FinishReason. All others, those that come later too, say nothing of the turn's calls:
#: OTHER, LANGUAGE, NO_IMAGE, IMAGE_OTHER, TOO_MANY_TOOL_CALLS, FINISH_REASON_UNSPECIFIED.
_FINISH_REASONS: Final = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "CONTINUATION": FinishReason.LENGTH,
    "UNEXPECTED_TOOL_CALL": FinishReason.TOOL_CALLS,
    **dict.fromkeys(_FILTERS.split(), FinishReason.CONTENT_FILTER),
}
#: What enums are called by their numbers, where a client has asked for these ($alt=json;enum-encoding=int, as Google's
#: generated clients do). The two APIs count otherwise (google-ai-generativelanguage 0.12, generative_service.py and
#: content.py; google-cloud-aiplatform 2.7, aiplatform_v1beta1/types).
_GEMINI_REASONS: Final = (
    "STOP MAX_TOKENS SAFETY RECITATION OTHER LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MALFORMED_FUNCTION_CALL "
    "IMAGE_SAFETY UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS IMAGE_PROHIBITED_CONTENT IMAGE_OTHER NO_IMAGE "
    "IMAGE_RECITATION"
)
_VERTEX_REASONS: Final = (
    "STOP MAX_TOKENS SAFETY RECITATION OTHER BLOCKLIST PROHIBITED_CONTENT SPII MALFORMED_FUNCTION_CALL MODEL_ARMOR"
)
_Numbers = Mapping[str, Mapping[int, str]]
_SHARED_NUMBERS: Final = {
    "modality": dict(enumerate(["TEXT", "IMAGE", "VIDEO", "AUDIO", "DOCUMENT"], 1)),
    "outcome": dict(enumerate(["OUTCOME_OK", "OUTCOME_FAILED", "OUTCOME_DEADLINE_EXCEEDED"], 1)),
}
GEMINI_NUMBERS: Final[_Numbers] = {
    **_SHARED_NUMBERS,
    "finishReason": dict(enumerate(_GEMINI_REASONS.split(), 1)),
    "blockReason": dict(enumerate(["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY"], 1)),
}
VERTEX_NUMBERS: Final[_Numbers] = {
    **_SHARED_NUMBERS,
    "finishReason": dict(enumerate(_VERTEX_REASONS.split(), 1)),
    "blockReason": dict(enumerate(["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "MODEL_ARMOR"], 1)),
}
#: Reasons that mean that there is no answer.
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": ErrorKind.MALFORMED_TOOL_CALL,
    "MALFORMED_RESPONSE": ErrorKind.MALFORMED,
    "MISSING_THOUGHT_SIGNATURE": ErrorKind.INVALID_REQUEST,
    "PUP_LIMITED_DISABLED": ErrorKind.PERMISSION,
}
_SOURCES: Final = frozenset({"groundingMetadata", "citationMetadata", "urlContextMetadata"})
_SIGNATURE_ONLY: Final = frozenset({"thoughtSignature", "thought"})
_DATA: Final = frozenset({"inlineData", "fileData"})
_MEDIA: Final[Mapping[str, type[content.Image | content.Audio]]] = {"image": content.Image, "audio": content.Audio}
#: google-genai types.py, ToolType.
_TOOLS: Final = {
    "GOOGLE_SEARCH_WEB": "web_search",
    "GOOGLE_SEARCH_IMAGE": "image_search",
    "URL_CONTEXT": "web_fetch",
    "GOOGLE_MAPS": "maps_search",
    "FILE_SEARCH": "file_search",
}
#: Of what a server tool was asked, or found, so much is shown.
_MAX_SHOWN_CHARS: Final = 2_000
#: What an answer is not lost over, as notes call it.
_ITS_SOURCES: Final = "the sources of the answer"
_ITS_LOGPROBS: Final = "log probabilities"
_OTHER_CANDIDATES: Final = "the answer has several candidates; all but the first were left out"
_Out = list[StreamEvent]


class GeminiDecoder(BaseDecoder):
    """Events of generateContent. The end of the body is the end; a finishReason before it makes the turn whole."""

    def __init__(self, head: AnswerHead, numbers: _Numbers = GEMINI_NUMBERS) -> None:
        super().__init__(head)
        self._numbers = numbers
        self._array: JsonArraySplitter | None = None
        self._may_be_array = head.streaming and head.status < 400
        self._partial: tuple[int, PartialArguments] | None = None
        """A call whose arguments are being streamed: its index, and they."""
        self._is_partial_over = False
        """Its last piece said that no other follows; one without a name is its own all the same (85)."""
        self._part_number = -1
        """The place of the part that is being written, which is its block. Pieces that follow each other are one."""
        self._writing: type[TextDelta | ThinkingDelta] | str | None = None
        """What further pieces may go on with: text, thinking, sound of this media type."""
        self._text = AnswerText()
        self._sources: AnswerSources | None = None
        self._unreadable: set[str] = set()
        self._finish_reason = ""
        self._finish_message = ""
        self._block_reason = ""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        if event == "error" or ("candidates" not in document and is_error(document)):
            self.fail_payload(document, out)
            return
        if not self.response_id:
            self.response_id = self.calls.seed = text_at(document, "responseId")
        usage = document.get("usageMetadata")
        if isinstance(usage, dict):
            self._note_usage(usage)
        if document.get("modelVersion") != self.model:
            self.model = text_at(document, "modelVersion") or self.model
        # No candidate will come where the filter took the prompt (quirk 45).
        if "promptFeedback" in document:
            self._block_reason = self._word(object_at(document, "promptFeedback"), "blockReason") or self._block_reason
        for candidate in objects_at(document, "candidates"):
            if not candidate.get("index"):
                self._candidate(candidate, out)
            elif _OTHER_CANDIDATES not in self.notes:
                self.notes.append(_OTHER_CANDIDATES)

    def _note_usage(self, given: JsonObject) -> None:
        """Cumulative: the last counts, as a whole. Some have no count (Vertex: `trafficType` alone, or zeros): what
        else they say is added (quirk 67)."""
        if given.get("promptTokenCount") or any(count_at(given, key) for key in given if key.endswith("TokenCount")):
            self.usage = given
        else:
            self.hold()
            self.usage = {**{key: value for key, value in given.items() if value is not None}, **self.usage}

    def on_body(self, document: Json, out: _Out) -> None:
        for chunk in document if isinstance(document, list) else [document]:
            self.on_json("", object_of(chunk), out)
            if self.ended:
                return
        self.on_end(out, False)

    def on_end(self, out: _Out, marked: bool) -> None:
        reason = self._finish_reason
        finish = _FINISH_REASONS.get(reason, FinishReason.OTHER)
        if not reason and self._block_reason:
            self._done(FinishReason.CONTENT_FILTER, self._block_reason, out)
        elif not reason:
            self.fail_truncated(out)
        elif reason in _FAILURES or (reason == "UNEXPECTED_TOOL_CALL" and not self.calls.count):
            kind = _FAILURES.get(reason, ErrorKind.MALFORMED_TOOL_CALL)
            detail = f": {self._finish_message}" if self._finish_message else ""
            self.fail(out, make_error(kind, f"The model's turn ended with {reason}{detail}", code=reason))
        else:
            if self._is_partial_over or finish in (FinishReason.STOP, FinishReason.TOOL_CALLS):
                # The piece that closes a streamed call may be missing before the finish reason (quirk 43); any other
                # reason (length, filter) broke the call off.
                self._close_partial(out)
            if finish not in (FinishReason.OTHER, FinishReason.CONTENT_FILTER):
                # A filter broke the turn off; a reason that we do not know may mean that too (quirk 69).
                self.calls.complete_all(out, cut=self._partial is not None)
            if finish is FinishReason.STOP and self.calls.count:
                finish = FinishReason.TOOL_CALLS
            self._done(finish, reason, out)

    def _done(self, finish: FinishReason, reason: str, out: _Out) -> None:
        raw: JsonObject = {key: value for key, value in self.usage.items() if value is not None}
        searches = 0
        if (sources := self._sources) is not None:
            self._optional(_ITS_SOURCES, lambda: out.extend(sources.events(self._text.read())))
            searches = sources.searches(self.model)
        if _ITS_LOGPROBS in self._unreadable:
            self.logprobs.clear()
        tiers = (raw.get("serviceTier"), self.headers.get("x-gemini-service-tier"), raw.get("trafficType"))
        self.service_tier = next((tier for tier in tiers if isinstance(tier, str) and tier), "")
        self.end(out, model.Done(finish, reason, _usage(raw, searches), raw, self.model))

    # A stream without alt=sse is one JSON array.

    def _take_body(self, data: bytes, out: _Out) -> None:
        if self._may_be_array and data.lstrip(BLANK).startswith(b"["):
            self._array = JsonArraySplitter()
        self._may_be_array = False
        if self._array is None:
            super()._take_body(data, out)
            return
        for element in self._array.feed(data):
            self._take_event("", element, out)
            if self.ended:
                return

    def _read_body(self, body: bytes, out: _Out) -> None:
        if self._array is None:
            super()._read_body(body, out)
        elif self._array.closed:
            self.on_end(out, False)
        else:
            self.fail_truncated(out)

    # How.

    def _candidate(self, candidate: JsonObject, out: _Out) -> None:
        told = candidate.get("content")
        for part in objects_at(object_of(told), "parts") if told else ():
            text = part.get("text")
            if self._writing is TextDelta and text and len(part) == 1 and isinstance(text, str):
                # Nearly every part is no more than this.
                self._text.write(text)
                out.append(TextDelta(text, self._part_number))
            else:
                self._part(part, out)
        if not told or len(candidate) > (2 if "index" in candidate else 1):
            self._note_more(candidate)

    def _note_more(self, candidate: JsonObject) -> None:
        """What comes beside the content."""
        if candidate.get("finishReason"):
            self._finish_reason = self._word(candidate, "finishReason")
            self._finish_message = text_at(candidate, "finishMessage")
        if not _SOURCES.isdisjoint(candidate):
            self._optional(_ITS_SOURCES, lambda: self._note_sources(candidate))
        if "logprobsResult" in candidate:
            result = fields_at(candidate, "logprobsResult")
            self._optional(_ITS_LOGPROBS, lambda: self.note_logprobs(_logprobs(result)))
        if candidate.get("continuationToken"):
            self.notes.append("continuationToken: the answer could be continued, which is not done here")

    def _word(self, holder: JsonObject, key: str) -> str:
        """The value of an enum, which may be told by its number; "" for none. An unknown one is no error."""
        value = holder.get(key)
        if isinstance(value, int):
            return self._numbers.get(key, {}).get(value, str(value)) if value else ""
        return text_at(holder, key)

    def _optional(self, what: str, read: Callable[[], None]) -> None:
        """Read what an answer is not lost over; a note says if it makes no sense."""
        try:
            if what not in self._unreadable:
                read()
        except SHAPE_ERRORS as error:
            self._unreadable.add(what)
            self.notes.append(f"{what}: cannot be read ({error}); left out")

    def _note_sources(self, candidate: JsonObject) -> None:
        self.hold()
        self._noted_sources().note(candidate)

    def _noted_sources(self) -> AnswerSources:
        if self._sources is None:
            self._sources = AnswerSources()
        return self._sources

    def _part(self, part: JsonObject, out: _Out) -> None:
        if None in part.values():
            # A field of a part that has another one in its place: servers that write out every field of their types.
            part = {key: value for key, value in part.items() if value is not None}
        signature = text_at(part, "thoughtSignature") if "thoughtSignature" in part else ""
        if "functionCall" in part:
            self._call(object_of(part["functionCall"]), signature, out)
        elif "text" in part or part.keys() <= _SIGNATURE_ONLY:
            self._prose(ThinkingDelta if part.get("thought") else TextDelta, said_at(part, "text"), signature, out)
        elif _DATA.isdisjoint(part):
            self._server_tool(part, out)
        else:
            self._media(part, out)

    def _new_part(self, kind: type[TextDelta | ThinkingDelta] | str | None) -> None:
        """A new part. It may go on if more of its kind follows, unless that is None."""
        self._part_number += 1
        self._writing = kind
        if kind is TextDelta:
            self._text.begin(self._part_number)

    def _prose(self, kind: type[TextDelta | ThinkingDelta], text: str, signature: str, out: _Out) -> None:
        if not (text or signature):
            return
        if signature or self._writing is not kind:
            self._new_part(kind)
        if kind is TextDelta:
            self._text.write(text)
        if signature:
            # A signed part is one of its own: it goes back exactly as it came (quirk 44).
            replay = content.Replay(ORIGIN, {"thoughtSignature": signature})
            out.append(kind(text, self._part_number, replay))
            self._writing = None
        else:
            out.append(kind(text, self._part_number))

    def _media(self, part: JsonObject, out: _Out) -> None:
        """A picture or sound. Sound may come in pieces; all else is whole."""
        blob = object_at(part, "inlineData") or object_at(part, "fileData")
        media_type = text_at(blob, "mimeType")
        if part.get("thought"):
            # A draft from the thinking, not of the answer: it is shown and goes back as what it is.
            self._new_part(None)
            out.append(model.ServerToolEvent("inlineData", content.Replay(ORIGIN, part), "draft", text=media_type))
            return
        kept = {key: value for key, value in part.items() if key not in _DATA}
        kind: type[content.Image | content.Audio | content.Document] = _MEDIA.get(
            media_type.partition("/")[0], content.Document
        )
        if kept or self._writing != media_type:
            self._new_part(media_type if kind is content.Audio and not kept else None)
        media = kind(
            media_type,
            text_at(blob, "data"),
            text_at(blob, "fileUri"),
            name=text_at(blob, "displayName"),
            replay=content.Replay(ORIGIN, kept),
        )
        self.show(out, media, self._part_number)

    def _server_tool(self, part: JsonObject, out: _Out) -> None:
        """A block of a tool that the provider runs, or a part that we do not know: it goes back as it came."""
        self._new_part(None)
        kind = next(key for key in part if key not in _SIGNATURE_ONLY)
        told = fields_at(part, kind)
        name, shown = "", ""
        if kind in ("toolCall", "toolResponse"):
            tool_type = self._word(told, "toolType")
            name = _TOOLS.get(tool_type, tool_type.lower())
            given = told.get("args") if kind == "toolCall" else told.get("response")
            shown = json_text(given) if given else ""
            if kind == "toolCall" and name == "web_search":
                for query in _queries(fields_at(told, "args")):
                    self._noted_sources().note_query(query)
        elif kind in ("executableCode", "codeExecutionResult"):
            name, outcome = "code_execution", self._word(told, "outcome")
            shown = text_at(told, "code") or text_at(told, "output")
            if outcome not in ("", "OUTCOME_OK"):
                shown = f"{outcome}: {shown}"
        replay = content.Replay(ORIGIN, part)
        call_id = told.get("id")
        found = call_id if isinstance(call_id, str) else ""
        out.append(model.ServerToolEvent(kind, replay, name, found, shown[:_MAX_SHOWN_CHARS]))

    def _call(self, call: JsonObject, signature: str, out: _Out) -> None:
        name, call_id = text_at(call, "name"), text_at(call, "id")
        # What must go back on the very part: the API's own id, if it gave one, and the signature.
        kept = {key: value for key, value in (("id", call_id), ("thoughtSignature", signature)) if value}
        replay = content.Replay(ORIGIN, kept) if kept else None
        if call.get("partialArgs") or call.get("willContinue") or (self._partial is not None and not name):
            self._partial_call(call, name, call_id, replay, out)
            return
        self._close_partial(out)
        self._new_part(None)
        # Complete only at the turn's end: its reason may mean that the turn is half (quirk 69).
        arguments = call.get("args")
        self.calls.whole(out, id=call_id, name=name, arguments=arguments, replay=replay, complete=False)

    def _partial_call(
        self, call: JsonObject, name: str, call_id: str, replay: content.Replay | None, out: _Out
    ) -> None:
        if self._partial is None or name:
            self._close_partial(out)
            self._new_part(None)
            self._partial = self.calls.count, PartialArguments()
            self.calls.begin(out, index=self.calls.count, id=call_id, name=name, replay=replay)
        for piece in objects_at(call, "partialArgs"):
            self._partial[1].add(piece)
        self._is_partial_over = not call.get("willContinue")

    def _close_partial(self, out: _Out) -> None:
        if self._partial is not None:
            (index, arguments), self._partial, self._is_partial_over = self._partial, None, False
            self.calls.delta(out, index=index, arguments=arguments.value())


def _queries(arguments: JsonObject) -> list[str]:
    return [query for query in (arguments.get("query"), *list_at(arguments, "queries")) if isinstance(query, str)]


def _logprobs(result: JsonObject) -> list[TokenLogprob]:
    """Of each token of this piece of the answer, with the likeliest in its place where those were asked for."""
    tops = [objects_at(each, "candidates") for each in objects_at(result, "topCandidates")]
    return [
        TokenLogprob(*_token(chosen), tuple(map(_token, tops[place])) if place < len(tops) else ())
        for place, chosen in enumerate(objects_at(result, "chosenCandidates"))
    ]


def _token(told: JsonObject) -> tuple[str, float]:
    # A field that is 0 is left out (ProtoJSON).
    value = log_probability(told.get("logProbability") or 0.0)
    if value is None:
        raise TypeError("expected the logarithm of a probability")
    return text_at(told, "token"), value


def _usage(raw: JsonObject, searches: int) -> model.Usage | None:
    """promptTokenCount leaves out the results of the provider's own tools, candidatesTokenCount the thoughts: both are
    added. None where the counts contradict the provider's total."""
    thoughts = count_at(raw, "thoughtsTokenCount") or 0
    asked, answered = _asked_and_answered(raw, thoughts)
    counts: dict[str, int | None] = {
        "input_tokens": asked,
        "output_tokens": answered,
        "cached_tokens": count_at(raw, "cachedContentTokenCount"),
        "reasoning_tokens": thoughts,
        "web_searches": searches,
    }
    told = usage_of(
        **counts,
        input_audio_tokens=_of_kind(raw, "promptTokensDetails", "AUDIO"),
        output_audio_tokens=_of_kind(raw, "candidatesTokensDetails", "AUDIO"),
        output_image_tokens=_of_kind(raw, "candidatesTokensDetails", "IMAGE"),
    )
    return told or usage_of(**counts)


def _asked_and_answered(raw: JsonObject, thoughts: int) -> tuple[int | None, int | None]:
    """Tokens of input and output, which together are the provider's total, where it gives one.

    Some count the thoughts among the candidates' tokens, or the tools' results among the prompt's: the total tells
    (llm-gemini #75). What the total has beyond all counts is output that is not shown (new-api #1358). (None, None)
    for counts that are more than the total in any reading.
    """
    prompt, written = count_at(raw, "promptTokenCount"), count_at(raw, "candidatesTokenCount")
    found = count_at(raw, "toolUsePromptTokenCount") or 0
    if prompt is None and written is None and not found and not thoughts:
        return None, None
    asked, answered, total = (prompt or 0) + found, (written or 0) + thoughts, count_at(raw, "totalTokenCount")
    if not total or asked + answered == total:
        return asked, answered
    readings = ((asked, written or 0), (prompt or 0, answered), (prompt or 0, written or 0))
    for reading in readings:
        if sum(reading) == total and reading[0] >= found and reading[1] >= thoughts:
            return reading
    if total < asked + answered:
        return None, None
    return (total - answered, answered) if prompt is None else (asked, total - asked)


_MODALITY: Final = {name: number for number, name in _SHARED_NUMBERS["modality"].items()}


def _of_kind(raw: JsonObject, key: str, kind: str) -> int:
    """The tokens of one kind (AUDIO, IMAGE) in a list of counts by kind."""
    details = raw.get(key)
    given = [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    return sum(count_at(each, "tokenCount") or 0 for each in given if each.get("modality") in (kind, _MODALITY[kind]))
