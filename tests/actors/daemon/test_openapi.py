"""The OpenAPI document: made from the table, valid, kept in docs, and true of a real daemon (schemathesis)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from openapi_spec_validator import validate
from support.imports import ROOT
from support.scripted_daemon import scripted_daemon

from callboard.actors.daemon.app import ENDPOINTS
from callboard.actors.daemon.openapi import as_text, openapi_document

DOCUMENT = openapi_document(ENDPOINTS)
KEPT = ROOT / "docs/openapi.json"
#: What schemathesis sends to one operation.
EXAMPLES = 4
#: It takes 8 s.
RUN_SECONDS = 120
NATIVE = [
    each for each in ENDPOINTS if each.path.startswith("/api/") and "board" not in each.path and not each.is_stream
]


def test_the_document_is_valid() -> None:
    validate(json.loads(as_text(DOCUMENT)))


def test_the_document_in_docs_is_this_one() -> None:
    """`CALLBOARD_WRITE_OPENAPI=1 pytest -k in_docs tests/actors/daemon/test_openapi.py` writes it."""
    if os.environ.get("CALLBOARD_WRITE_OPENAPI"):
        KEPT.write_text(as_text(DOCUMENT))
    assert KEPT.read_text() == as_text(DOCUMENT), test_the_document_in_docs_is_this_one.__doc__


def test_each_endpoint_is_in_it_with_its_scope() -> None:
    paths = DOCUMENT["paths"]
    assert isinstance(paths, dict)
    found = [operation for each in paths.values() for operation in each.values()]
    assert len(found) == len(ENDPOINTS)
    assert len({each["operationId"] for each in found}) == len(found)
    assert sorted(each.get("x-callboard-scope", "") for each in found) == sorted(
        each.scope.name.lower() if each.scope is not None else "" for each in ENDPOINTS
    )


def test_each_body_of_the_native_api_is_described() -> None:
    for each in NATIVE:
        assert each.summary, each.path
        assert each.answer is not None, each.path
        assert (each.body is not None) == (each.method == "POST"), each.path


#: A value may fit its schema and name nothing that there is, or contradict another: 400, 404 or 409 then.
CONFIGURATION = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409]
"""


def test_a_daemon_does_what_the_document_says(tmp_path: Path) -> None:
    """Not its phase `coverage`, which takes 50 s: run it by hand, as it is said in docs/native_api.md."""
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    with scripted_daemon(tmp_path, daemon="limits = {requests_per_minute = 1000000}") as daemon:
        found = subprocess.run(
            [
                "schemathesis", "--config-file", "schemathesis.toml", "run", str(KEPT), "--url", daemon.url,
                "--header", f"Authorization: Bearer {daemon.token}", "--include-path-regex", "^/(api/|openapi)",
                "--exclude-path-regex", "/events$", "--phases", "fuzzing", "--max-examples", str(EXAMPLES),
                "--seed", "1", "--no-color", "--generation-database", "none", "--request-timeout", "20",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            timeout=RUN_SECONDS,
        )  # fmt: skip
        assert daemon.get("/healthz").status_code == 200
    assert found.returncode == 0, found.stdout[-4_000:]
    assert "Fuzzing" in found.stdout
