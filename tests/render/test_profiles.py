"""Profiles: the services beside the dev container, how they are guarded, and what the dashboard asks for."""

import csv
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from devkit.cli import devkit
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.render.container.grafana import DATASOURCE_UID
from devkit.render.container.profiles import find_profile_packages
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from devkit.solver.plan import Vendor
from tests.render.plans import CPU_PLAN, GPU_PLAN
from tests.render.test_artifacts import PLAIN, texts

BOTH = replace(PLAIN, profiles=("jupyter", "monitoring"))
ROCM_PLAN = replace(GPU_PLAN, vendor=Vendor.ROCM, cuda=None, variant="rocm7.2")
PLANS = {"nvidia": GPU_PLAN, "rocm": ROCM_PLAN, "cpu": CPU_PLAN}
every_vendor = pytest.mark.parametrize("plan", list(PLANS.values()), ids=list(PLANS))


def services(plan, settings=BOTH) -> dict[str, dict[str, object]]:
    found = yaml.safe_load(texts(plan, settings)["docker-compose.yml"])["services"]
    return {name: service for name, service in found.items() if name not in ("dev", "gpu")}


def dashboard(plan) -> dict[str, object]:
    return json.loads(texts(plan, BOTH)["monitoring/grafana/dashboards/training.json"])


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(DevkitError, match="there is no profile 'tensorboard'") as refused:
        render_devcontainer(GPU_PLAN, replace(PLAIN, profiles=("tensorboard",)))
    assert refused.value.hint == "Choose among jupyter, monitoring, ci."


@every_vendor
def test_no_service_starts_without_its_profile(plan):
    for name, service in services(plan).items():
        assert service["profiles"] == ["jupyter" if name == "jupyter" else "monitoring"]


@every_vendor
def test_every_port_is_on_the_loopback_address_alone(plan):
    ports = [port for service in services(plan).values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


@every_vendor
def test_no_service_has_rights_that_it_does_not_need(plan):
    for name, service in services(plan).items():
        if name != "jupyter":
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service.get("cap_drop") == ["ALL"] or (name, plan.vendor) == ("gpu-metrics", "rocm")
        assert not {"privileged", "pid", "network_mode", "cap_add", "devices"} & set(service)
        assert not [volume for volume in service.get("volumes", []) if volume.startswith("/")]


@every_vendor
def test_every_image_is_pinned_and_comes_from_the_table(plan):
    images = {row.image for row in load_tables().profiles.images.values()}
    used = {service["image"] for service in services(plan).values() if "image" in service}
    assert used <= images
    assert all(re.fullmatch(r"[a-z0-9.-]+/[a-z0-9./-]+:[\w.-]*\d[\w.-]*", image) for image in images)
    assert not [image for image in images if image.endswith(":latest")]


def test_the_gpus_metrics_come_from_the_vendors_own_exporter_by_the_same_overlay():
    of_dev = yaml.safe_load(texts(GPU_PLAN, BOTH)["docker-compose.yml"])["services"]["dev"]["extends"]
    assert services(GPU_PLAN)["gpu-metrics"]["extends"] == of_dev
    assert "dcgm-exporter" in services(GPU_PLAN)["gpu-metrics"]["image"]
    assert "rocm/device-metrics-exporter" in services(ROCM_PLAN)["gpu-metrics"]["image"]


def test_a_plan_for_the_cpu_shows_the_machine_alone():
    assert "gpu-metrics" not in services(CPU_PLAN)
    targets = yaml.safe_load(texts(CPU_PLAN, BOTH)["monitoring/prometheus.yml"])["scrape_configs"]
    assert [job["job_name"] for job in targets] == ["machine"]
    assert [panel["title"] for panel in dashboard(CPU_PLAN)["panels"]] == ["CPU in use", "Memory used"]


@every_vendor
def test_prometheus_asks_services_that_exist(plan):
    config = yaml.safe_load(texts(plan, BOTH)["monitoring/prometheus.yml"])
    targets = [
        target for job in config["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert {target.split(":")[0] for target in targets} == {n for n in services(plan) if n.endswith("-metrics")}


@every_vendor
def test_the_dashboards_data_source_is_the_one_that_is_provisioned(plan):
    (source,) = yaml.safe_load(texts(plan, BOTH)["monitoring/grafana/provisioning/datasources/prometheus.yml"])[
        "datasources"
    ]
    assert source["uid"] == DATASOURCE_UID
    assert source["url"] == "http://prometheus:9090"
    used = {target["datasource"]["uid"] for panel in dashboard(plan)["panels"] for target in panel["targets"]}
    assert used == {DATASOURCE_UID}


@every_vendor
def test_grafana_has_viewers_only_and_no_first_administrator(plan):
    settings = dict(line.split("=", 1) for line in services(plan)["grafana"]["environment"])
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert not [name for name in settings if "PASSWORD" in name]


def test_the_exporter_collects_what_the_dashboard_shows_and_nothing_that_asks_for_rights():
    rows = list(csv.reader(texts(GPU_PLAN, BOTH)["monitoring/counters.csv"].splitlines(), skipinitialspace=True))
    shown = {name for panel in dashboard(GPU_PLAN)["panels"] for name in re.findall(r"DCGM_\w+", str(panel["targets"]))}
    assert {row[0] for row in rows} == shown
    assert {len(row) for row in rows} == {3}
    assert not [row for row in rows if row[0].startswith("DCGM_FI_PROF")]
    assert "monitoring/counters.csv" not in texts(ROCM_PLAN, BOTH)


def test_a_package_of_a_profile_is_pinned_with_its_reason_and_gives_way_to_the_plans():
    dockerfile = texts(GPU_PLAN, BOTH)["Dockerfile"]
    assert "# jupyterlab 4.6.6: the profile jupyter starts it\n" in dockerfile
    assert " jupyterlab==4.6.6" in dockerfile
    planned = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("jupyterlab", "4.5.0")))
    assert find_profile_packages(planned, BOTH) == ()
    assert texts(planned, BOTH)["Dockerfile"].count("jupyterlab==") == 1


@pytest.fixture
def jupyter(tmp_path):
    """jupyter.sh in a folder, with a `jupyter` that writes down how it was called and what token it would ask for."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "jupyter").write_text(
        '#!/bin/sh\nprintf "%s\\ntoken=%s.\\n%s" "$*" "$(cat "$JUPYTER_TOKEN_FILE")" "${JUPYTER_TOKEN-unset}"\n'
    )
    (programs / "jupyter").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)  # Debian has python3 alone, the image has both
    script = tmp_path / DEVCONTAINER_FOLDER / "jupyter.sh"
    script.parent.mkdir()
    script.write_text(texts(GPU_PLAN, BOTH)["jupyter.sh"])

    def start(**variables: str) -> tuple[str, str, str]:
        env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
        done = subprocess.run(["sh", str(script)], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        _, called, token, inherited = done.stdout.split("\n")
        return called, token.removeprefix("token=").removesuffix("."), inherited

    return start


def token_file(tmp_path: Path) -> Path:
    return tmp_path / DEVCONTAINER_FOLDER / ".secrets/jupyter-token"


def test_the_first_start_makes_a_token_that_only_its_owner_reads(jupyter, tmp_path):
    _, token, _ = jupyter()
    assert re.fullmatch(r"[\w-]{40,}", token)
    assert stat.S_IMODE(token_file(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file(tmp_path).parent.stat().st_mode) == 0o700
    assert [each.name for each in token_file(tmp_path).parent.iterdir()] == ["jupyter-token"]


def test_the_token_stays_from_start_to_start_and_a_new_one_is_made_when_it_is_gone(jupyter, tmp_path):
    _, first, _ = jupyter()
    assert jupyter()[1] == first
    token_file(tmp_path).unlink()
    assert jupyter()[1] != first


@pytest.mark.parametrize("content", ["", "\n", "  \t\n"], ids=["an empty file", "a line break", "spaces"])
def test_an_empty_token_never_reaches_jupyter(jupyter, tmp_path, content):
    token_file(tmp_path).parent.mkdir()
    token_file(tmp_path).write_text(content)
    assert len(jupyter()[1]) > 40


def test_a_token_of_ones_own_is_taken_without_the_line_break_that_editors_add(jupyter, tmp_path):
    token_file(tmp_path).parent.mkdir()
    token_file(tmp_path).write_text("correct-horse-battery-staple\n")
    assert jupyter()[1] == "correct-horse-battery-staple"


def test_a_token_in_the_environment_does_not_win_and_none_is_on_the_command_line(jupyter):
    called, token, inherited = jupyter(JUPYTER_TOKEN="")
    assert token not in called
    assert inherited == "unset"
    assert jupyter(JUPYTER_TOKEN="another")[2] == "unset"


def test_jupyter_listens_on_the_loopback_address_unless_the_service_says_otherwise(jupyter):
    assert "--ip=127.0.0.1" in jupyter()[0]
    assert "--ip=0.0.0.0" in jupyter(DEVKIT_JUPYTER_IP="0.0.0.0")[0]
    assert "DEVKIT_JUPYTER_IP=0.0.0.0" in services(GPU_PLAN)["jupyter"]["environment"]


@every_vendor
def test_grafanas_own_types_know_every_key_of_the_dashboard(plan):
    made = dashboard(plan)
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(made), cls=JSONEncoder))
    assert contained(made, read) == made


def contained(wanted: object, found: object) -> object:
    """`found`, without the keys that `wanted` does not have at the same place."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {key: contained(value, found[key]) for key, value in wanted.items() if key in found}
    if isinstance(wanted, list) and isinstance(found, list):
        return [contained(*pair) for pair in zip(wanted, found, strict=True)]
    return found


# The jobs of `devkit init --profile ci`: each by the linter of its service, and commands that the dev container has.


GPU = ("--gpu", "RTX 4090", "--driver", "570.124.06", "--no-resolve", "--yes")
GITHUB, GITLAB = ".github/workflows/dev-container.yml", ".gitlab/dev-container.yml"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ci")
    done = CliRunner().invoke(devkit, ["init", str(folder), *GPU, "--profile", "ci"])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize(("path", "schema"), [(GITHUB, "vendor.github-workflows"), (GITLAB, "vendor.gitlab-ci")])
def test_the_job_follows_the_schema_of_its_service(written, path, schema):
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, str(written / path)])
    assert done.exit_code == 0, done.output


def test_zizmor_finds_nothing(written):
    beside = Path(sys.executable).parent / "zizmor"
    zizmor = str(beside) if beside.exists() else shutil.which("zizmor")
    if zizmor is None:
        pytest.skip("zizmor is not installed: it comes with the group `lint`")
    done = subprocess.run([zizmor, "--offline", str(written / GITHUB)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_both_jobs_do_the_same_in_the_service_of_the_compose_file(written):
    github = "\n".join(
        step.get("run", "") for step in yaml.safe_load((written / GITHUB).read_text())["jobs"]["prove"]["steps"]
    )
    gitlab = "\n".join(yaml.safe_load((written / GITLAB).read_text())["dev container"]["script"])
    services = yaml.safe_load((written / ".devcontainer/docker-compose.yml").read_text())["services"]
    assert "dev" in services and "ci" not in services
    for script in (github, gitlab):
        assert "build dev" in script
        assert "run --rm -T dev devkit doctor --project . --format sarif > devkit.sarif" in script
        assert "run --rm -T dev devkit verify --here --quick" in script


def test_the_shell_of_the_build_writes_an_override_that_compose_reads(written, tmp_path):
    """The build step's own lines, without Docker: what it writes is YAML with both sides of the cache."""
    steps = yaml.safe_load((written / GITHUB).read_text())["jobs"]["prove"]["steps"]
    build = next(step["run"] for step in steps if step.get("name") == "Build the image").replace(
        "/tmp/cache.yml", "cache.yml"
    )
    lines = build.split("docker buildx create --use\n")[1].split("DEVKIT_UID")[0]
    subprocess.run(["sh", "-euc", lines], cwd=tmp_path, check=True)
    cache = yaml.safe_load((tmp_path / "cache.yml").read_text())["services"]["dev"]["build"]
    assert cache["cache_from"] == ["type=local,src=/tmp/devkit-cache"]
    assert cache["cache_to"] == ["type=local,dest=/tmp/devkit-cache-new,mode=max"]
