"""Values that look like keys, for tests; none of them opens anything."""

from __future__ import annotations

PRIVATE_KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"
    "QyNTUxOQAAACBQUXNqPGd4cGpzcHNqcHNqcHNqcHNqcHNqcHNqcHNqcHNqcHNqcHNqcHNq\n"
    "-----END OPENSSH PRIVATE KEY-----"
)
