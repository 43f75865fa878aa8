"""`extra_body` and `extra_headers`: what a question may send besides all that has an option of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from callboard.protocol.content import not_finite
from callboard.protocol.errors import UsageError
from callboard.protocol.provider_options import ExtraFields
from callboard.providers.adapter import CREDENTIAL_HEADERS

#: RFC 9110, 5.6.2: the characters of a header's name.
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: RFC 9110, 5.5: what a header's value may be, without spaces around it, and without the obsolete letters beyond ASCII.
HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
#: Headers that say how the request itself is sent.
_OURS: Final = frozenset(
    (
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host",
        "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
#: Fields that callboard writes, in the words of all APIs, and the option that says it.
SAID_BY: Final[Mapping[str, str]] = {
    "model": "model=...",
    **dict.fromkeys(("messages", "input", "contents"), "the prompt, or conversation=..."),
    **dict.fromkeys(
        ("instructions", "system", "system_instruction", "systemInstruction"), "instructions=..., for this question"
    ),
    **dict.fromkeys(("tools", "functions", "toolConfig", "tool_config"), "tools=[...] or server_tools=[...]"),
    **dict.fromkeys(("tool_choice", "function_call"), "tool_choice=..."),
    "parallel_tool_calls": "parallel_tool_calls=...",
    **dict.fromkeys(("stream", "stream_options"), "nothing: every answer is streamed"),
    **dict.fromkeys(("response_format", "response_schema"), "output=..."),
    **dict.fromkeys(("temperature", "top_p", "seed", "logprobs", "reasoning_effort"), "sampling=Sampling(...)"),
    **dict.fromkeys(
        ("max_tokens", "max_output_tokens", "max_completion_tokens"), "sampling=Sampling(max_output_tokens=...)"
    ),
    **dict.fromkeys(("stop", "stop_sequences"), "sampling=Sampling(stop=(...,))"),
    **dict.fromkeys(("store", "previous_response_id", "background"), "storage=ResponseStorage(...)"),
    **dict.fromkeys(("service_tier", "serviceTier"), "service_tier=..."),
    "modalities": "images_out=True or audio_out=AudioOut(...)",
}


def extra_fields(body: object, headers: object, provider: str) -> ExtraFields:
    """Both as they are sent to this provider. Raises UsageError, which never holds a value."""
    return ExtraFields(_checked_body(body), checked_headers("extra_headers", headers), provider)


def _checked_body(body: object) -> Mapping[str, object]:
    if not isinstance(body, Mapping) or not all(isinstance(name, str) for name in body):
        raise UsageError("extra_body must be a mapping of field names to values")
    for name in body:
        if name in SAID_BY:
            raise UsageError(f"extra_body has {name!r}, which callboard writes itself; say it with {SAID_BY[name]}")
    if found := not_finite(body):
        raise UsageError(f"extra_body holds {found}, which JSON has not")
    return dict(body)


def checked_headers(option: str, headers: object) -> Mapping[str, str]:
    """Headers that can be sent and are no others' to set. Raises UsageError, which never holds a value."""
    if not isinstance(headers, Mapping):
        raise UsageError(f"{option} must be a mapping of header names to texts")
    for name, value in headers.items():
        if not isinstance(name, str) or not HEADER_NAME.fullmatch(name):
            raise UsageError(f"{option}: {name!r} is no name of a header; use letters, digits and dashes")
        if name.lower() in CREDENTIAL_HEADERS:
            raise UsageError(
                f"{option} has {name!r}, which carries a credential; give it as api_key, in the settings or by "
                "Settings(connections={...})"
            )
        if name.lower() in _OURS:
            raise UsageError(f"{option} has {name!r}, which callboard sets itself; leave it out")
        if not isinstance(value, str) or not HEADER_VALUE.fullmatch(value):
            raise UsageError(
                f"{option}: the value of {name!r} cannot be sent; it must be one line of ASCII, without spaces "
                "around it"
            )
    if len({name.lower() for name in headers}) < len(headers):
        raise UsageError(f"{option} has a header twice, in small and in capital letters; leave one of the two out")
    return dict(headers)
