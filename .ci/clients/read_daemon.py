"""Reads the answers of `callboard serve`, before a scripted model, with the client libraries that people bring along:
the Vercel AI SDK and the SDKs of OpenAI and Anthropic for Node (read_answers.mjs), LangChain (read_langchain.py).

Exit status 0: every check passed; 77: there is no npm, or no registry, which is said. Versions are pinned in
package-lock.json and requirements.txt. Some 60 s, most of them for installing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "compatcanary"))

from scan_daemon import INSTALL_SECONDS, NOT_RUN, ROOT, TOKEN, not_installed, served  # noqa: E402

READ_SECONDS: Final = 120


def main() -> int:
    """The exit status."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if missing := not_installed(HERE, folder) or langchain_not_installed(folder / "langchain"):
            print(f"clients: not run, {missing}")
            return NOT_RUN
        shutil.copy(HERE / "read_answers.mjs", folder)  # beside the packages that it imports
        config = folder / "callboard.toml"
        config.touch(mode=0o600)
        config.write_text('[daemon]\nmodels = {"gpt-4o" = "scripted/model"}\n')
        with served(folder, "--tools", str(ROOT / "tests/support/daemon_tools.py")) as url:
            path = {**os.environ, "PYTHONPATH": str(folder / "langchain")}
            readers = [["node", str(folder / "read_answers.mjs")], [sys.executable, str(HERE / "read_langchain.py")]]
            return max(
                [subprocess.run([*each, url, TOKEN], env=path, timeout=READ_SECONDS).returncode for each in readers]
            )


def langchain_not_installed(folder: Path) -> str:
    """Install it into `folder`. Why that could not be, or ""."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    install += ["--target", str(folder), "--requirement", str(HERE / "requirements.txt")]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not install LangChain within {INSTALL_SECONDS} s"
    return f"pip could not install LangChain: {done.stderr.strip()[-300:]}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
