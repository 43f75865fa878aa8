"""Which models a server names, and what is said of one that names none."""

from __future__ import annotations

import asyncio

import pytest
from support.model_server import model_server

from callboard.protocol.errors import ErrorKind, ProviderError
from callboard.providers.adapter import Timeouts
from callboard.providers.openai.served_models import served_models


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"object": "list", "data": [{"id": "a"}, {"id": "org/b"}, {"id": "a"}]}, ("a", "org/b")),
        ({"models": [{"name": "qwen3:4b", "model": "qwen3:4b"}]}, ("qwen3:4b",)),
        ([{"id": "org/m", "type": "chat"}], ("org/m",)),
        ({"models": [{"name": "other"}], "data": [{"id": "llama.cpp"}]}, ("llama.cpp",)),
    ],
)
def test_names_in_the_servers_order(answer: object, names: tuple[str, ...]) -> None:
    with model_server(answer) as url:
        assert asyncio.run(served_models(url)) == names
        assert asyncio.run(served_models(f"{url}/", "sk-key")) == names


@pytest.mark.parametrize(
    ("answer", "status", "kind", "says"),
    [
        ({"error": {"message": "no such path"}}, 404, ErrorKind.NOT_FOUND, "answered HTTP 404: no such path; check"),
        (
            {"error": {"message": "bad sk-secret"}},
            401,
            ErrorKind.AUTHENTICATION,
            r"answered HTTP 401: bad \*\*\*; check the key in CALLBOARD_API_KEY$",
        ),
        ("<html>no</html>", 200, ErrorKind.MALFORMED, "answered HTTP 200 without JSON: <html>no</html>; check that"),
        ("", 200, ErrorKind.MALFORMED, "answered HTTP 200 without JSON: nothing; check"),
        ("moved", 302, ErrorKind.MALFORMED, "answered HTTP 302 without JSON: moved; check"),
        ("7", 200, ErrorKind.MALFORMED, "without JSON: 7; check"),
        ([], 200, ErrorKind.NOT_FOUND, "names no models; check"),
        ({"data": []}, 200, ErrorKind.NOT_FOUND, "names no models; check that"),
        ({"data": [{"id": 7}, 3, {"id": ""}]}, 200, ErrorKind.NOT_FOUND, "names no models"),
        (None, 200, ErrorKind.TIMEOUT, r"had not finished its answer after 0\.2 s|sent nothing for 0\.2 s"),
    ],
    ids=["404", "401", "HTML", "empty", "302", "a number", "an empty list", "none", "nonsense", "silence"],
)
def test_a_server_that_names_none(answer: object, status: int, kind: ErrorKind, says: str) -> None:
    timeouts = Timeouts(5, 0.2, 0.2) if answer is None else Timeouts()
    with model_server(answer, status) as url:
        with pytest.raises(ProviderError, match=says) as caught:
            asyncio.run(served_models(url, "sk-secret", timeouts))
        assert url.removeprefix("http://").removesuffix("/v1") in str(caught.value)
    assert caught.value.kind is kind
    assert "sk-secret" not in str(caught.value)
