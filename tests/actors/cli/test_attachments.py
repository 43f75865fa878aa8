"""`callboard ask --image FILE --file FILE --instructions TEXT`: what the server gets, and what is refused before."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.cli.attachments import MAX_FILE_BYTES
from callboard.actors.testing.wire_double import Api, Turn

DONE, USAGE = 0, 2
PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
PDF = b"%PDF-1.4 \xff"


def test_pictures_and_files_go_with_the_question(callboard: Any) -> None:
    for name, data in {"a.png": PICTURE, "b.pdf": PDF, "notes": "Grüße".encode()}.items():
        (callboard.workspace / name).write_bytes(data)
    with shared_double([Turn("Seen.")]) as server:
        callboard.environment["OPENAI_API_KEY"] = "k"
        ran = callboard.run(
            "ask", "what are these?", "--image", "a.png", "--file", "b.pdf", "--file", "notes", "--instructions",
            "Be kind.", "--model", "openai/gpt-5", "--base-url", server.base_url(Api.RESPONSES),
        )  # fmt: skip
        body = server.traffic().bodies[0]
    assert (ran.status, ran.out) == (DONE, "Seen.\n"), ran.err
    parts = next(item["content"] for item in body["input"] if item["role"] == "user")
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_file", "input_file"]
    assert parts[0]["text"] == "what are these?"
    assert parts[1]["image_url"] == f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    assert (parts[2]["filename"], parts[2]["file_data"].endswith(base64.b64encode(PDF).decode())) == ("b.pdf", True)
    assert base64.b64decode(parts[3]["file_data"].rpartition(",")[2]).decode() == "Grüße"
    assert body["instructions"].startswith("Be kind.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--image", "gone.png"], "--image: gone.png cannot be read: No such file or directory"),
        (["--file", "."], "--file: . is not a file; name one"),
        (["--file", "empty"], "--file: empty is empty"),
        (["--image", "weather.py"], "--image: weather.py is no picture by its name (text/x-python); give it as --file"),
        (["--file", "large"], f"--file: large is larger than {MAX_FILE_BYTES:,} bytes; give less of it"),
        (["--file", "pipe"], "--file: pipe is not a file"),
        (["--file", "sound.wav", "--model", "anthropic/claude-opus-4-6"], "claude-opus-4-6 takes no Audio"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(arguments: list[str], says: str, callboard: Any) -> None:
    callboard.environment["ANTHROPIC_API_KEY"] = "k"
    (callboard.workspace / "empty").touch()
    (callboard.workspace / "sound.wav").write_bytes(b"RIFF")
    os.mkfifo(callboard.workspace / "pipe")
    with open(callboard.workspace / "large", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    ran = callboard.run("ask", "what is this?", *arguments)
    assert ran.status == USAGE, ran.err
    assert says in ran.sentence
