"""schemathesis against a daemon that runs: it must find nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.running_daemon import RunningDaemon

RUN_SECONDS = 120


def check_with_schemathesis(
    daemon: RunningDaemon,
    folder: Path,
    document: Path,
    configuration: str,
    examples: int,
    *arguments: str,
    base: str = "",
) -> None:
    """`examples` requests of each operation of the document, at the path `base` of the daemon, which lives on.

    The phase `fuzzing`, always with the same seed. `arguments`: further options, such as which paths are left out.
    """
    (folder / "schemathesis.toml").write_text(configuration)
    found = subprocess.run(
        [
            "schemathesis", "--config-file", "schemathesis.toml", "run", str(document), "--url", daemon.url + base,
            "--header", f"Authorization: Bearer {daemon.token}", *arguments, "--phases", "fuzzing",
            "--max-examples", str(examples), "--seed", "1", "--no-color", "--generation-database", "none",
            "--request-timeout", "20",
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        timeout=RUN_SECONDS,
    )  # fmt: skip
    assert daemon.get("/healthz").status_code == 200
    assert found.returncode == 0, found.stdout[-4_000:]
    assert "Fuzzing" in found.stdout
