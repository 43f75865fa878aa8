"""The environments of the others in sessions.py, crashes.py and compared.py: one each, made when first needed and kept.

They are kept below ~/.cache/callboard-benchmarks (or XDG_CACHE_HOME); remove that folder to make them again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

#: What each is installed from, the newest releases of November 2026 that go together.
PINS: dict[str, tuple[str, ...]] = {
    "openai": ("openai==3.57.0",),
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "openai-agents": ("openai-agents==0.24.0",),
    "langgraph": ("langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4"),
    "autogen": ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"),
    "agent-framework": ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0"),
    "llm": ("llm==0.36",),
}
#: Those of crashes.py.
DURABLE: dict[str, tuple[str, ...]] = {
    "dbos": ("dbos==3.4.0", "aiosqlite==0.22.1"),
    "pydantic-ai-harness": ("pydantic-ai-harness==0.62.0", "pydantic-ai-slim==2.62.0"),
}
#: The loop that the contenders of our own have, and what the adapters of compared.py write their notes with.
COMMON = ("uvloop==0.23.0", "msgspec==0.22.0", "orjson==3.13.0")
#: For pip, which downloads up to 100 MB.
INSTALL_SECONDS = 600.0


def python_of(name: str) -> str:
    """The interpreter of this peer's environment, which is made where there is none yet."""
    pins = (*(PINS | DURABLE)[name], *COMMON)
    key = hashlib.sha256("\n".join((sys.version, *pins)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard-benchmarks"
    place = cache / f"{name}-{key}"
    if not (place / "ready").exists():
        print(f"making an environment for {name}: {' '.join(pins)}", file=sys.stderr, flush=True)
        venv.create(place, clear=True, with_pip=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *pins]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
        (place / "ready").touch()
    return str(place / "bin" / "python")


def version_of(name: str) -> str:
    """Of the package that the peer is known by."""
    return (PINS | DURABLE)[name][0].rpartition("==")[2]
