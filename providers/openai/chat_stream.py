"""OpenAI Chat Completions, and every server that speaks it: the answer side.

Written for what servers really send (docs/wire.md section 2), which is more than the API's description says: empty and
missing choices, usage anywhere, finish reasons doubled, missing or beside content, reasoning under four names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from callboard.protocol.content import Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Done, FinishReason, StreamEvent, TextDelta, ThinkingDelta, Usage
from callboard.providers.base_decoder import BaseDecoder
from callboard.providers.http_errors import make_error
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.tool_tracker import ToolCallTracker

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class ThinkTags:
    """A tag may be cut anywhere: what could be the start of one is held back until it is known."""

    __slots__ = ("_block", "_held", "_state")

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""
        self._block = 0

    def feed(self, text: str, block: int, out: list[StreamEvent]) -> None:
        self._block = block
        if self._state == "after":
            out.append(TextDelta(text, block))
            return
        self._held += text
        if self._state == "before":
            self._look_for_open(out)
        if self._state == "inside":
            self._look_for_close(out)
        if self._state == "closed":
            self._skip_newlines(out)

    def finish(self, out: list[StreamEvent]) -> None:
        """The text is over: what was held back is what it looked like."""
        held, self._held = self._held, ""
        if held:
            out.append(ThinkingDelta(held, self._block) if self._state == "inside" else TextDelta(held, self._block))

    def _look_for_open(self, out: list[StreamEvent]) -> None:
        start = self._held.lstrip()
        if start.startswith(_OPEN):
            self._state, self._held = "inside", start[len(_OPEN) :]
        elif not _OPEN.startswith(start):
            self._state = "after"
            self.finish(out)

    def _look_for_close(self, out: list[StreamEvent]) -> None:
        thought, found, rest = self._held.partition(_CLOSE)
        if not found:
            keep = _overlap(thought)
            thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
        if thought:
            out.append(ThinkingDelta(thought, self._block))
        if found:
            self._state, self._held = "closed", rest

    def _skip_newlines(self, out: list[StreamEvent]) -> None:
        """Templates put empty lines between the tag and the answer."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = "after"
            self.finish(out)


def _overlap(text: str) -> int:
    """How many characters at the end of `text` could begin the closing tag."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)


_TEXT_FIELDS: Final = ("text", "summary", "data")


class ReasoningDetails:
    """Merges the fragments of one stretch of reasoning. `take` hands out what has come since the last time."""

    __slots__ = ("_items", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._items: list[dict[str, Any]] = []

    @property
    def pending(self) -> bool:
        return bool(self._items)

    def add(self, fragments: Iterable[Mapping[str, Any]]) -> str:
        """Take fragments in; returns their readable text."""
        seen = ""
        for fragment in fragments:
            last = self._items[-1] if self._items else None
            if last is not None and _continues(last, fragment):
                _merge(last, fragment)
            else:
                self._items.append(dict(fragment))
            seen += fragment.get("text") or fragment.get("summary") or ""
        return seen

    def take(self) -> Replay | None:
        """What has come, to be replayed unmodified; None where nothing has."""
        items, self._items = self._items, []
        return Replay(self._origin, {"reasoning_details": items}) if items else None


def _continues(last: Mapping[str, Any], fragment: Mapping[str, Any]) -> bool:
    """A fragment of the same block: same type and index, and the block has not been signed yet."""
    same = last.get("type") == fragment.get("type") and last.get("index") == fragment.get("index")
    return same and fragment.get("index") is not None and fragment.get("type") != "reasoning.encrypted"


def _merge(last: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    for key, value in fragment.items():
        if key in _TEXT_FIELDS:
            last[key] = (last.get(key) or "") + (value or "")
        elif value is not None:
            last[key] = value


FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,  # Together
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    # "Decide on presence of calls, not on the reason" (docs/wire.md 1.1): these without a call are a plain stop.
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.REFUSAL,
    "error": FinishReason.ERROR,
}
#: After these the last call is cut off. So it is after a reason that we do not know: `insufficient_system_resource`,
#: `network_error`, `abort` and their kin all mean that (docs/wire.md quirk 69).
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.OTHER})
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")


class ChatDecoder(BaseDecoder):
    """One answer of a Chat Completions server."""

    def __init__(
        self,
        dialect: ChatDialect,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        streaming: bool = True,
        secret: str | None = None,
    ) -> None:
        super().__init__(dialect.family, status, headers, streaming, secret)
        self._dialect = dialect
        self._tools = ToolCallTracker()
        self._details = ReasoningDetails(dialect.name)
        self._think_tags = ThinkTags() if dialect.think_tags else None
        # Given back to the server that wants it (ChatDialect.reasoning_replay_field).
        self._thinking_replay = Replay(dialect.name, {}) if dialect.reasoning_replay_field else None
        self._finish_reason = ""
        self._refused = False
        self._chosen = False
        self._wrote = False
        self._model = ""
        self._usage: Mapping[str, Any] = {}

    def on_json(self, event: str, document: dict[str, Any], out: list[StreamEvent]) -> None:
        # vLLM before 0.10 put the error's own fields on the top level.
        if event == "error" or document.get("error") or document.get("object") == "error":
            self.fail_payload(out, document)
            return
        if groq_error := (document.get("x_groq") or {}).get("error"):
            self.fail_payload(out, {"error": groq_error})  # in an answer that looks whole (70)
            return
        self._note(document)
        for choice in document.get("choices") or ():
            self._chosen = True
            index = choice.get("index") or 0
            if index == 0 or self._dialect.merge_choices:
                self._choice(index, choice, out)

    def on_body(self, document: Any, out: list[StreamEvent]) -> None:
        self._note(document)
        choices = document.get("choices")
        if not choices:
            self.fail_malformed(out, "the answer has no choices.", self._last_data)
            return
        for choice in choices if self._dialect.merge_choices else choices[:1]:
            reason = choice.get("finish_reason")
            # Azure's filter leaves the message out, and says so by the reason (66).
            message = choice.get("message") or {} if reason else choice["message"]
            self._message(choice.get("index") or 0, message, out)
            self._finish_reason = reason or self._finish_reason
        self._end_turn(out)

    def on_end(self, out: list[StreamEvent], marked: bool) -> None:
        if marked and not self._chosen:
            self.fail_malformed(out, "the stream ended without a choice.")
        elif marked or self._finish_reason or self._looks_whole():
            self._end_turn(out)
        else:
            self.fail_truncated(out)

    def _looks_whole(self) -> bool:
        """A turn without its end, from a server that is known to leave it out, and nothing of it is half (23)."""
        said = self._wrote or self._tools.count > 0
        return self._dialect.finish_optional and said and self._tools.all_whole()

    def _note(self, document: Mapping[str, Any]) -> None:
        """What may stand on any chunk: the answer's id and model, and usage, of which the last is the total (18)."""
        if not self._model and document.get("model"):
            self._model = str(document["model"])
        if not self._tools.seed and document.get("id"):
            self._tools.seed = str(document["id"])
        usage = document.get("usage") or (document.get("x_groq") or {}).get("usage")
        if usage:
            self._usage = usage

    def _choice(self, index: int, choice: Mapping[str, Any], out: list[StreamEvent]) -> None:
        """One choice of one chunk: first its delta, then its finish reason, since both may stand in one (22)."""
        delta = choice.get("delta")
        if delta:
            self._delta(index, delta, out)
        elif delta is None and "message" in choice:
            # A server that ignores `stream` and wraps its whole answer in one event. (With a delta beside it, the
            # message is Perplexity's running total and says everything twice: 54.)
            self._message(index, choice["message"], out)
        reason = choice.get("finish_reason")
        if reason:
            self._finish_reason = str(reason)

    def _delta(self, index: int, delta: Mapping[str, Any], out: list[StreamEvent]) -> None:
        content = delta.get("content")
        if content.__class__ is str and len(delta) == 1:
            # Nearly every chunk of an answer: one piece of text and nothing else.
            if content:
                self._text(content, index, out)
            return
        self._reasoning(index, delta, out)
        if content:
            self._content(content, index, out)
        if delta.get("refusal"):
            self._refused = True
            self._text(delta["refusal"], index, out)
        calls = delta.get("tool_calls")
        if calls:
            self._close_reasoning(out)
            for call in calls:
                self._call_delta(index, call, out)
        if legacy := _legacy_call(delta):
            self._tools.delta(out, index="function_call", name=legacy.get("name"), arguments=legacy.get("arguments"))

    def _call_delta(self, choice: int, call: Mapping[str, Any], out: list[StreamEvent]) -> None:
        function = call.get("function") or call.get("custom") or {}
        index = call.get("index")
        self._tools.delta(
            out,
            # Copilot's choices count their calls from 0 each.
            index=(choice, index) if choice and index is not None else index,
            # Mistral's continuations may bear the word.
            id=call.get("id") if call.get("id") != "null" else None,
            name=function.get("name"),
            arguments=function.get("arguments", function.get("input")),
            replay=self._extra(call),
        )

    def _message(self, index: int, message: Mapping[str, Any], out: list[StreamEvent]) -> None:
        """A whole message."""
        self._reasoning(index, message, out)
        if message.get("content"):
            self._content(message["content"], index, out)
        if message.get("refusal"):
            self._refused = True
            self._text(message["refusal"], index, out)
        self._close_reasoning(out)
        if (replay := self._extra(message)) is not None:
            out.append(TextDelta("", index, replay))
        calls = list(message.get("tool_calls") or ())
        if legacy := _legacy_call(message):
            calls.append({"function": legacy})
        for call in calls:
            function = call.get("function") or call.get("custom") or {}
            arguments = function.get("arguments", function.get("input"))
            name, replay = function.get("name"), self._extra(call)
            # Completed by the end of the turn, which knows whether it was cut.
            self._tools.whole(out, id=call.get("id"), name=name, arguments=arguments, replay=replay, complete=False)

    def _extra(self, holder: Mapping[str, Any]) -> Replay | None:
        """Google's thought signatures, which must come back on the part they came on (50)."""
        extra = holder.get("extra_content")
        return Replay(self._dialect.name, {"extra_content": extra}) if extra else None

    def _reasoning(self, index: int, delta: Mapping[str, Any], out: list[StreamEvent]) -> None:
        """Reasoning under whichever name, once: OpenRouter and Groq send the same text twice (47)."""
        text = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), "")
        details = delta.get("reasoning_details")
        if details:
            seen = self._details.add(details)
            text = text or seen
        if text.__class__ is str and text:
            self._wrote = True
            out.append(ThinkingDelta(text, index, self._thinking_replay))

    def _close_reasoning(self, out: list[StreamEvent]) -> None:
        """Reasoning is over for now: what must be given back unmodified goes onto its part."""
        replay = self._details.take()
        if replay is not None:
            out.append(ThinkingDelta("", 0, replay))

    def _content(self, content: Any, index: int, out: list[StreamEvent]) -> None:
        """Text, or Mistral's list of typed parts (46)."""
        if content.__class__ is str:
            self._text(content, index, out)
            return
        for part in content:
            if part.get("type") == "text":
                self._text(part["text"], index, out)
            elif part.get("type") == "thinking":
                inner = part.get("thinking") or ()
                text = inner if isinstance(inner, str) else "".join(piece.get("text", "") for piece in inner)
                if text:
                    out.append(ThinkingDelta(text, index, self._thinking_replay))

    def _text(self, text: str, index: int, out: list[StreamEvent]) -> None:
        if text.__class__ is not str:
            raise TypeError(f"text is a {type(text).__name__}")
        self._wrote = True
        if self._details.pending:
            self._close_reasoning(out)
        if self._think_tags is None:
            out.append(TextDelta(text, index))
        else:
            self._think_tags.feed(text, index, out)

    def _end_turn(self, out: list[StreamEvent]) -> None:
        if self._think_tags is not None:
            self._think_tags.finish(out)
        self._close_reasoning(out)
        reason = FINISH_REASONS.get(self._finish_reason.lower(), FinishReason.OTHER)
        if not self._finish_reason:
            reason = FinishReason.STOP
        if reason is FinishReason.ERROR:
            self.fail(out, make_error(ErrorKind.SERVER, "The provider broke off the turn with finish reason 'error'."))
            return
        cut = reason in _CUT
        self._tools.complete_all(out, cut=cut)
        if self._tools.count and not cut:
            reason = FinishReason.TOOL_CALLS
        elif self._refused and reason is FinishReason.STOP:
            reason = FinishReason.REFUSAL
        self.end(out, Done(reason, self._finish_reason, normal_usage(self._usage), self._usage, self._model))


def _legacy_call(holder: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The call in the API's old form; some servers put an empty one beside every text (65)."""
    legacy = holder.get("function_call")
    return legacy if legacy and (legacy.get("name") or legacy.get("arguments")) else None


def normal_usage(raw: Mapping[str, Any]) -> Usage:
    """Chat Completions usage: prompt tokens include cached ones, completion tokens include reasoning, except xAI's."""
    prompt = raw.get("prompt_tokens_details") or {}
    completion = raw.get("completion_tokens_details") or {}
    asked, answered = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    reasoned = _count(completion.get("reasoning_tokens"))
    # DeepSeek and Moonshot put it on the top level.
    cached = _count(prompt.get("cached_tokens") or raw.get("prompt_cache_hit_tokens") or raw.get("cached_tokens"))
    if cached > asked:
        asked += cached  # counted beside the prompt's, by Grok on Azure (71)
    if reasoned and _count(raw.get("total_tokens")) == asked + answered + reasoned:
        # xAI counts the reasoning beside the answer: 12 + 1 + 314 = 327.
        answered += reasoned
    return Usage(
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=cached,
        cache_write_tokens=_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=reasoned,
    )


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0
