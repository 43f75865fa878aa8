"""Bedrock's own description of its API, as botocore ships it: requests and answers are held against it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from botocore.eventstream import EventStreamBuffer
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.parsers import EventStreamJSONParser, RestJSONParser
from botocore.validate import ParamValidator

#: Of these one member is given too, although the model does not call them unions.
_UNIONS = ("ContentBlock", "SystemContentBlock", "ToolResultContentBlock", "Tool")


@cache
def operation(streamed: bool) -> OperationModel:
    model = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    return model.operation_model("ConverseStream" if streamed else "Converse")


def request_faults(body: Mapping[str, Any], model: str, streamed: bool = True) -> list[str]:
    """What is wrong with a request by the service model: fields, types, and what botocore leaves to the server."""
    shape = operation(streamed).input_shape
    params = {**body, "modelId": model}
    report = ParamValidator().validate(params, shape)
    return [report.generate_report()] if report.has_errors() else list(_faults(params, shape, ""))


def _faults(value: Any, shape: Shape, path: str) -> Iterator[str]:
    """Enums, patterns, lengths and empty unions, which botocore does not look at."""
    if shape.type_name == "structure":
        is_union = getattr(shape, "is_tagged_union", False) or shape.name in _UNIONS
        if is_union and len(value) != 1:
            yield f"{path}: one of {list(shape.members)}, not {list(value)}"
        if not getattr(shape, "is_document_type", False):
            for name, each in value.items():
                yield from _faults(each, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for place, each in enumerate(value):
            yield from _faults(each, shape.member, f"{path}[{place}]")
    elif shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            yield f"{path}: {value!r} is none of {shape.enum}"
        pattern = shape.metadata.get("pattern")
        if pattern and shape.name != "ConversationalModelId" and not re.fullmatch(pattern, value):
            yield f"{path}: {value!r} does not match {pattern}"
        if not shape.metadata.get("min", 0) <= len(value) <= shape.metadata.get("max", 10**9):
            yield f"{path}: {len(value)} characters"


def read_whole(body: bytes) -> dict[str, Any]:
    """A whole answer as botocore reads it."""
    answer = {"body": body, "headers": {}, "status_code": 200}
    found: dict[str, Any] = RestJSONParser().parse(answer, operation(False).output_shape)
    return found


def read_stream(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream as botocore reads them."""
    buffer, parser = EventStreamBuffer(), EventStreamJSONParser()
    buffer.add_data(body)
    shape = operation(True).output_shape.members["stream"]
    return [parser.parse(message.to_response_dict(), shape) for message in buffer]
