"""The files of examples/operating, checked by the programs that they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from callboard.actors.daemon.daemon_settings import DaemonLimits, DaemonSettings, TenantSettings, read_plan

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


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    plan = read_plan(EXAMPLES / "callboard.toml", given={"state_dir": tmp_path})
    assert [each.name for each in plan.tenants] == ["default", "ann"]
    assert plan.tenants[1].own.tokens_per_day == 2_000_000


@pytest.mark.parametrize(
    ("kind", "section"),
    [(DaemonSettings, "daemon"), (DaemonLimits, "daemon.limits"), (TenantSettings, "tenants.NAME")],
)
def test_the_page_has_each_setting_with_its_default(kind: type[BaseModel], section: str) -> None:
    page = (EXAMPLES.parents[1] / "docs/operating.md").read_text()
    rows = {
        name: default for name, default in re.findall(rf"^\| `{re.escape(section)}\.(\w+)` \| (.*?) \|", page, re.M)
    }
    fields = {name: field for name, field in kind.model_fields.items() if name != "limits"}
    assert sorted(rows) == sorted(fields)
    for name, field in fields.items():
        value = field.get_default(call_default_factory=True)
        is_plain = isinstance(value, int | float) or (isinstance(value, str) and value)
        assert rows[name] == (f"`{value}`" if is_plain else "none"), name
