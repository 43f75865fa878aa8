"""The OpenAPI document (3.1), made from the table of endpoints and the models of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from callboard import __version__
from callboard.actors.daemon.api_errors import Api
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.endpoint import Endpoint

Json = dict[str, object]
Names = Mapping[tuple[type[BaseModel], str], Json]
"""A reference to the schema of each model, by how it is used."""

_REF: Final = "#/components/schemas/"
_VARIABLE: Final = re.compile(r"{(\w+)(?::(\w+))?}")
#: Of a path's variable, by the convertor that reads it.
_OF_PATH: Final[Mapping[str, Json]] = {
    "": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "path": {"type": "string", "minLength": 1},
    "int": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
#: What each status of an error means; the body is the same for all of an API.
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is wrong: the message says what",
    401: "No token, or one that is not known",
    403: "The token has too narrow a scope, or the page is of another origin",
    404: "There is no such thing, or it belongs to another tenant",
    408: "The body did not come in time",
    409: "Not now: the message says why",
    413: "The body is too large",
    414: "The path is too long",
    421: "The server does not answer to that Host",
    429: "Too many requests, or a quota is used up; Retry-After says when to try again",
    431: "The headers are too large",
    500: "A fault in callboard",
    502: "The model's provider has failed",
    503: "Not ready, draining, or an actor did not answer in time",
    504: "The model's provider has not answered in time",
}
_TEXT: Final[Json] = {"type": "string"}
_OPENAI_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR: Final[Json] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": _TEXT, "message": _TEXT}},
    },
}
_ERROR_OF: Final[Mapping[Api, str]] = {
    Api.OPENAI: "OpenAIError",
    Api.NATIVE: "OpenAIError",
    Api.ANTHROPIC: "AnthropicError",
}
_EVENTS: Final = (
    "Server-sent events (text/event-stream). Each has `id:`, `event:` (its kind, such as text_delta, run_tool, reply) "
    "and `data:`, one JSON object whose `type` is the kind; the last is `reply`, or `error` with an error like "
    "any other. Lines that begin with a colon are sent to keep the connection. Come back with the header Last-Event-ID."
)


def openapi_document(endpoints: Iterable[Endpoint]) -> Json:
    """Of these endpoints."""
    rows = tuple(endpoints)
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
    for each in rows:
        for kind, mode in ((each.body, "validation"), (each.query, "validation"), (each.answer, "serialization")):
            if kind is not None:
                wanted[kind, "validation" if mode == "validation" else "serialization"] = None
    found, defined = models_json_schema(list(wanted), ref_template=_REF + "{model}")
    names: Names = {(kind, mode): dict(schema) for (kind, mode), schema in found.items() if issubclass(kind, BaseModel)}
    schemas = defined.get("$defs", {})
    paths: dict[str, Json] = {}
    for each in sorted(rows, key=lambda each: (each.path, each.method)):
        path = _VARIABLE.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, names, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "callboard",
            "version": __version__,
            "description": "Supervised tool calls over HTTP. The scopes of tokens are use, approve and admin; each "
            "includes those before it.",
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8330"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "OpenAIError": _OPENAI_ERROR, "AnthropicError": _ANTHROPIC_ERROR},
            "responses": _error_answers(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token of `callboard tokens make`"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same token"},
            },
        },
    }


def _operation(each: Endpoint, names: Names, schemas: Json) -> Json:
    found: Json = {
        "operationId": _operation_id(each),
        "summary": each.summary or each.path,
        "tags": [each.api.value],
        "parameters": [*_path_parameters(each.path), *_query_parameters(each, names, schemas)],
        "responses": {str(each.status): _answer(each, names), **_errors(each)},
    }
    if each.scope is None:
        found["security"] = []
    else:
        scope = each.scope.name.lower()
        found["security"] = [{"bearer": [scope]}, {"apiKey": [scope]}]
        found["x-callboard-scope"] = scope
    if each.body is not None:
        required = any(field.is_required() for field in each.body.model_fields.values())
        schema = names[each.body, "validation"]
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    return found


def _operation_id(each: Endpoint) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _VARIABLE.sub(r"\1", each.path))
    return "_".join((each.method.lower(), *(words or ("root",))))


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _OF_PATH[convertor]}
        for name, convertor in _VARIABLE.findall(path)
    ]


def _query_parameters(each: Endpoint, names: Names, schemas: Json) -> list[Json]:
    found: list[Json] = []
    if each.query is not None:
        name = str(names[each.query, "validation"]["$ref"]).removeprefix(_REF)
        model = schemas[name]
        properties = model.get("properties", {}) if isinstance(model, dict) else {}
        for field, schema in properties.items():
            required = each.query.model_fields[field].is_required()
            found.append({"name": field, "in": "query", "required": required, "schema": schema})
    if each.is_stream and each.method == "GET":
        found.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": _TEXT})
    return found


def _answer(each: Endpoint, names: Names) -> Json:
    if each.answer is not None:
        content: Json = {"application/json": {"schema": names[each.answer, "serialization"]}}
        if each.is_stream:
            content["text/event-stream"] = {"schema": _TEXT}
        return {"description": each.summary or "Done", "content": content}
    if each.is_stream:
        return {"description": _EVENTS, "content": {"text/event-stream": {"schema": _TEXT}}}
    return {"description": each.summary or "Done"}


def _errors(each: Endpoint) -> Json:
    return {str(status): {"$ref": f"#/components/responses/{_ERROR_OF[each.api]}{status}"} for status in _ERRORS}


def _error_answers() -> Json:
    return {
        f"{name}{status}": {"description": what, "content": {"application/json": {"schema": {"$ref": _REF + name}}}}
        for name in sorted(set(_ERROR_OF.values()))
        for status, what in _ERRORS.items()
    }


def as_text(document: Json) -> str:
    """As it is in docs/openapi.json."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


async def read_openapi(daemon: Daemon, request: Request) -> Response:
    """This document, of all that this daemon answers."""
    return Response(as_text(openapi_document(request.app.state.endpoints)), media_type="application/json")


ENDPOINTS: Final = (
    Endpoint("GET", "/openapi.json", handle_open=read_openapi, scope=None, summary="The OpenAPI document"),
)
