"""The files of examples/operating, checked by the programs that they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

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


def test_the_daemon_reads_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan = read_plan(EXAMPLES / "callboard.toml")
    assert plan.daemon.models == {"gpt-4o": "openai/gpt-6.1-sol"}
    assert [each.own.dollars_per_month for each in plan.tenants] == [200.0]


def test_the_compose_file_is_one_by_the_schema_of_the_compose_specification() -> None:
    """The schema comes with the checker."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*command, str(EXAMPLES / "compose.yaml")], capture_output=True, text=True, timeout=50, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_services_of_the_compose_file_fit_each_other() -> None:
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    assert compose.keys() == {"services", "volumes"}
    services = compose["services"]
    known = {
        "build", "command", "depends_on", "environment", "healthcheck", "image", "ports", "restart",
        "stop_grace_period", "volumes",
    }  # fmt: skip
    for service in services.values():
        assert service.keys() <= known
        assert ("image" in service) is not ("build" in service)
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (EXAMPLES / source).exists(), volume
    assert set(services["callboard"]["depends_on"]) <= services.keys()
    named = services["callboard"]["environment"]
    assert named["CALLBOARD_JOURNAL"].rpartition("@")[2].partition("/")[0] in services
    assert urlsplit(named["OTEL_EXPORTER_OTLP_ENDPOINT"]).hostname in services
    built = services["callboard"]["build"]
    assert (EXAMPLES / built["context"] / built["dockerfile"]).resolve() == EXAMPLES / "Containerfile"


def test_each_pipeline_of_the_collector_has_parts_that_are_defined() -> None:
    collector = yaml.safe_load((EXAMPLES / "collector.yaml").read_text())
    assert collector.keys() == {"receivers", "processors", "exporters", "service"}
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= collector[kind].keys()


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = (EXAMPLES.parents[1] / "docs/operating.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", page, re.M)
    for kind in (DaemonSettings, DaemonLimits, TenantSettings):
        for name, field in kind.model_fields.items():
            assert (name, shown_default(field.get_default(call_default_factory=True))) in rows, name


def shown_default(value: object) -> str:
    """As the page writes it."""
    if value in (None, "", (), {}):
        return "none"
    if isinstance(value, DaemonLimits):
        return "below"
    return f"{value:g}" if isinstance(value, float) else str(value)
