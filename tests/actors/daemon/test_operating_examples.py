"""The files of examples/operating, checked by the programs that they are for."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from support.running_daemon import running_daemon

from callboard.actors.cli.arguments import parser
from callboard.actors.daemon.daemon_settings import DaemonLimits, DaemonSettings, TenantSettings, read_plan

EXAMPLES = Path(__file__).parents[3] / "examples/operating"
DOCKERFILE = EXAMPLES.parents[1] / "Dockerfile"


def instructions(name: str) -> list[str]:
    """What is behind this word in the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M)
    return [line.partition(" ")[2].strip() for line in re.split(r"(?<!\\)\n", text) if line.startswith(f"{name} ")]


def extras() -> set[str]:
    config = configparser.ConfigParser()
    config.read(DOCKERFILE.with_name("setup.cfg"))
    return set(config["options.extras_require"])


def test_the_image_is_of_a_user_without_rights_and_holds_no_secret() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("FROM")[-1] == "scratch"
    last = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    assert "RUN" not in last
    assert set(re.findall(r"(\w+)=", " ".join(instructions("ENV")))) == {
        "CALLBOARD_WORKSPACE", "HOME", "PATH", "PYTHONDONTWRITEBYTECODE", "XDG_STATE_HOME",
    }  # fmt: skip
    assert not re.search("TOKEN|KEY|SECRET|PASSWORD", " ".join(instructions("ENV") + instructions("ARG")))
    assert json.loads(instructions("VOLUME")[0]) == ["/var/lib/callboard", "/workspace", "/tmp"]
    assert {each.partition("=")[2] for each in instructions("ARG")} == {'""', "daemon"}
    assert "daemon" in extras()


def test_the_image_is_made_of_what_the_package_needs_alone() -> None:
    lines = DOCKERFILE.with_name(".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert kept >= {
        "actors",
        "protocol",
        "providers",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    }
    assert all(DOCKERFILE.with_name(name).exists() for name in kept)


def test_what_the_image_starts_is_a_daemon_and_its_health_is_the_daemons(tmp_path: Path) -> None:
    (entry,), (health,) = instructions("ENTRYPOINT"), instructions("HEALTHCHECK")
    command = json.loads(entry)
    assert (command[0], parser().parse_args(command[1:]).command) == ("callboard", "serve")
    asks = json.loads(health.partition("CMD ")[2])
    port = command[command.index("--port") + 1]
    assert instructions("EXPOSE") == [port]
    with running_daemon(tmp_path, "--host", "0.0.0.0") as daemon:
        asks = [each.replace(f"127.0.0.1:{port}", f"127.0.0.1:{urlsplit(daemon.url).port}") for each in asks]
        assert subprocess.run([sys.executable, *asks[1:]], timeout=50).returncode == 0
    gone = subprocess.run([sys.executable, *asks[1:]], capture_output=True, text=True, timeout=50)
    assert gone.returncode == 1
    assert "Connection refused" in gone.stderr


HAS_SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
UNIT = EXAMPLES / "callboard.service"


def unit_of(folder: Path) -> Path:
    """The unit, with the virtual environment that runs this in place of the one of its example."""
    (folder / "bin").mkdir()
    (folder / "bin/callboard").write_text(f'#!/bin/sh\nexec {sys.executable} -m callboard.actors.cli "$@"\n')
    (folder / "bin/callboard").chmod(0o755)
    path = folder / "callboard.service"
    path.write_text(UNIT.read_text().replace("/opt/callboard", str(folder)))
    return path


def lines_of(path: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", path.read_text(), re.M)


@HAS_SYSTEMD
def test_systemd_takes_its_unit(tmp_path: Path) -> None:
    command = ["systemd-analyze", "verify", str(unit_of(tmp_path))]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""


@HAS_SYSTEMD
def test_what_the_unit_leaves_a_daemon_is_below_four() -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(UNIT)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", checked.stdout)
    assert found, checked.stdout
    assert float(found[1]) < 4


def test_the_unit_leaves_the_confinement_of_tools_what_it_is_made_of() -> None:
    """Where these were wanting, tools would run with less around them, and the daemon would say so alone."""
    assert lines_of(UNIT, "RestrictNamespaces") == ["user pid mnt ipc"]
    calls = set(lines_of(UNIT, "SystemCallFilter")[0].split())
    assert calls >= {"@mount", "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
    for covers_proc in ("ProtectKernelTunables", "ProtectKernelLogs", "ProcSubset"):
        assert lines_of(UNIT, covers_proc) == []


def test_the_units_command_starts_with_its_environment_alone(tmp_path: Path) -> None:
    """As systemd starts it: from a virtual environment that is on no PATH, with the keys of the EnvironmentFile."""
    unit = unit_of(tmp_path)
    (tmp_path / "environment").write_text(
        "CALLBOARD_TOKEN=a-token-of-the-file-0123456789\nOPENAI_API_KEY=sk-none-0123456789\n"
    )
    assert lines_of(UNIT, "EnvironmentFile") == ["-/etc/callboard/environment"]
    given = dict(each.split("=", 1) for each in (tmp_path / "environment").read_text().splitlines())
    own = dict(each.split("=", 1) for each in lines_of(unit, "Environment")[0].split())
    assert own["PATH"].split(":")[0] == f"{tmp_path}/bin"
    own |= {
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    (command,) = lines_of(unit, "ExecStart")
    command = command.replace("/etc/callboard/callboard.toml", str(EXAMPLES / "callboard.toml"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(50)
        environment = {**own, **given, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(
            [*command.split(), "--port", "0"], env=environment, cwd="/", stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert manager.recv(4_096) == b"READY=1"
                assert process.stderr is not None
                ready = next(line for line in process.stderr if "ready: " in line)
                url = ready.partition("ready: ")[2].strip()
                told = {"Authorization": f"Bearer {given['CALLBOARD_TOKEN']}"}
                assert httpx.get(f"{url}/v1/models", headers=told, timeout=30).status_code == 200
            finally:
                process.terminate()
            assert process.wait(30) == 0
    assert lines_of(UNIT, "Restart") == ["on-failure"]
    assert lines_of(UNIT, "RestartPreventExitStatus") == ["2"]


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
        "build", "command", "depends_on", "environment", "healthcheck", "image", "ports", "read_only", "restart",
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
    assert (EXAMPLES / built["context"]).resolve() == DOCKERFILE.parent
    assert set(built["args"]["EXTRAS"].split(",")) <= extras()
    assert built["args"].keys() <= set(re.findall(r"^ARG (\w+)=", DOCKERFILE.read_text(), re.M))
    started = parser().parse_args([*json.loads(instructions("ENTRYPOINT")[0])[1:], *services["callboard"]["command"]])
    assert f"./callboard.toml:{started.config}:ro" in services["callboard"]["volumes"]


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
