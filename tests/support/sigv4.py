"""What AWS does with a signed request (Signature Version 4, "Create a signed AWS API request"), to check one."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import quote

from support.caught import Request

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>\w+)/(?P<scope>\d{8}/[\w-]+/[\w-]+/aws4_request), "
    r"SignedHeaders=(?P<signed>[\w;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)


def signature_faults(request: Request, secret_key: str, *, scope: str) -> list[str]:
    """What is wrong with the signature of a request as it arrived; `scope` is "region/service"."""
    found = _AUTHORIZATION.fullmatch(request.headers["authorization"])
    if found is None:
        return [f"not a signature: {request.headers['authorization']}"]
    if found["scope"].split("/")[1:3] != scope.split("/"):
        return [f"signed for {found['scope']}"]
    signed = found["signed"].split(";")
    if missing := {"host", "x-amz-date"} - set(signed):
        return [f"not signed: {missing}"]
    path, _, query = request.path.partition("?")
    canonical = "\n".join(
        [
            request.method,
            quote(path, safe="/-_.~"),  # once more than it was sent: every service but S3
            query,
            *(f"{name}:{' '.join(request.headers[name].split())}" for name in signed),
            "",
            found["signed"],
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", request.headers["x-amz-date"], found["scope"], digest])
    key = f"AWS4{secret_key}".encode()
    for part in found["scope"].split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    expected = hmac.new(key, text.encode(), "sha256").hexdigest()
    return [] if expected == found["signature"] else [f"the signature does not match:\n{canonical}"]
