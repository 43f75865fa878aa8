"""The OpenAPI document: made from the table, valid, kept in docs, and true of a real daemon (schemathesis)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.imports import ROOT
from support.schemathesis_runs import check_with_schemathesis
from support.scripted_daemon import scripted_daemon
from support.sdk_types import Lazy

from callboard.actors.daemon.app import ENDPOINTS
from callboard.actors.daemon.openapi import as_text, openapi_document

openapi_spec_validator = Lazy("openapi_spec_validator")
DOCUMENT = openapi_document(ENDPOINTS)
KEPT = ROOT / "docs/openapi.json"
#: What schemathesis sends to one operation: it takes 8 s.
EXAMPLES = 4
NATIVE = [
    each for each in ENDPOINTS if each.path.startswith("/api/") and "board" not in each.path and not each.is_stream
]


def test_the_document_is_valid() -> None:
    openapi_spec_validator.validate(json.loads(as_text(DOCUMENT)))


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


@pytest.mark.deep
def test_a_daemon_does_what_the_document_says(tmp_path: Path) -> None:
    """Not its phase `coverage`, which takes 50 s: run it by hand, as it is said in docs/native_api.md."""
    left_out = ("--include-path-regex", "^/(api/|openapi)", "--exclude-path-regex", "/events$")
    with scripted_daemon(tmp_path, daemon="limits = {requests_per_minute = 1000000}") as daemon:
        check_with_schemathesis(daemon, tmp_path, KEPT, CONFIGURATION, EXAMPLES, *left_out)
