"""Names for things, and the one tag that ties all messages of a request together."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

#: Of a call id, in log records and spans. Those of the providers' own APIs are shorter; gateways pack more into them.
MAX_SHOWN_CALL_ID_CHARS: Final = 128

RequestId = NewType("RequestId", str)
"""One user request, answered by one RequestSession."""

MessageId = NewType("MessageId", str)
"""One message of a conversation; a request's `parent_id` is the message it answers."""

CallId = NewType("CallId", str)
"""The provider's tool call id. Unique only within a step: Kimi and vLLM repeat `list_dir:0` from step to step."""

ToolName = NewType("ToolName", str)
"""The name of a tool, as models call it."""


class Tag(NamedTuple):
    """Correlation, carried by every message between actors, every span and every log line.

    A tag with a `call_id` names one tool call; without one, a step; with step 0, the request as a whole.
    """

    request_id: RequestId
    parent_id: MessageId
    step: int = 0
    call_id: CallId = CallId("")

    def at_step(self, step: int) -> Tag:
        """The tag of model call number `step` (the first is 1) of the same request."""
        return Tag(self.request_id, self.parent_id, step)

    def at_call(self, call_id: CallId) -> Tag:
        """The tag of a call of this step."""
        return Tag(self.request_id, self.parent_id, self.step, call_id)

    @property
    def shown_call_id(self) -> str:
        """For log records and spans: a server chooses it, so it is cut, and what is not printable is escaped."""
        shown = self.call_id[:MAX_SHOWN_CALL_ID_CHARS]
        return shown if shown.isprintable() else ascii(shown)[1:-1]

    def shown(self) -> dict[str, str | int]:
        """The ids as attributes of a log record."""
        return {**self._asdict(), "call_id": self.shown_call_id}

    @property
    def request(self) -> Tag:
        """The tag of the request as a whole."""
        return Tag(self.request_id, self.parent_id)
