"""OpenAI Responses: the adapter. What is sent is in responses_requests.py, what comes back in responses_answers.py."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from callboard.protocol import model
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import AnswerHead
from callboard.providers.openai.responses_answers import FollowedResponse, ResponsesDecoder
from callboard.providers.openai.responses_requests import ResponsesEncoding
from callboard.providers.own_options import RESPONSES_OPTIONS

#: Where a model's name says what it can: elsewhere a deployment may have any name.
_NAMES_TELL = ("openai.com", "githubcopilot.com")


class OpenAIResponses(encoding.HttpAdapter):
    """The adapter of the Responses API at one address with one credential."""

    own_options = RESPONSES_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "openai",
    ) -> None:
        # Encrypted reasoning can be read only where it was written.
        self.origin = origin = f"{name}-responses"
        url = encoding.checked_url(base_url, "https://api.openai.com/v1")
        host = urlsplit(url).hostname or ""
        self._names_tell, self._searches_tools = host.endswith(_NAMES_TELL), host.endswith("openai.com")
        super().__init__(name, url, api_key, lambda head: ResponsesDecoder(head, origin), headers=headers)

    def followed(self, status: int, headers: Mapping[str, str] | None) -> FollowedResponse:
        """A decoder for a response that more than one HTTP answer tells."""
        return FollowedResponse(AnswerHead(self.name, status, headers, True, self._api_key), self.origin)

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        told = {"names_tell": self._names_tell, "searches_tools": self._searches_tools}
        written = ResponsesEncoding(request, self.origin, **told)
        return self.sent(f"{self._url}/responses", self.headers(request), written, written.body())
