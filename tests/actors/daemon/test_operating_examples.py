"""The files of examples/operating, checked by the programs that they are for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples/operating"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ai.example.org"]
    subprocess.run([*made, "-keyout", "tls.key", "-out", "tls.crt"], cwd=tmp_path, check=True, capture_output=True)
    text = (EXAMPLES / "nginx.conf").read_text().replace("/etc/callboard", str(tmp_path))
    path = tmp_path / "nginx.conf"
    path.write_text(f"pid {tmp_path}/nginx.pid;\n{text}")
    checked = subprocess.run(["nginx", "-t", "-c", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_its_unit() -> None:
    command = ["systemd-analyze", "verify", str(EXAMPLES / "callboard.service")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
