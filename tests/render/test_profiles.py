"""Profiles: the services beside the dev container, and how they are guarded."""

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

from devkit.cli import devkit
from devkit.errors import DevkitError
from devkit.render.container.profiles import find_profile_packages
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from tests.render.plans import GPU_PLAN
from tests.render.test_artifacts import PLAIN, texts

JUPYTER = replace(PLAIN, profiles=("jupyter",))


def jupyter_service() -> dict[str, object]:
    return yaml.safe_load(texts(GPU_PLAN, JUPYTER)["docker-compose.yml"])["services"]["jupyter"]


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(DevkitError, match="there is no profile 'tensorboard'") as refused:
        render_devcontainer(GPU_PLAN, replace(PLAIN, profiles=("tensorboard",)))
    assert refused.value.hint == "Choose among jupyter, ci."


def test_a_service_starts_on_request_and_has_no_rights_that_it_does_not_need():
    service = jupyter_service()
    assert service["profiles"] == ["jupyter"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert not {"privileged", "pid", "network_mode", "cap_add", "devices", "volumes"} & set(service)


def test_a_package_of_a_profile_is_pinned_with_its_reason_and_gives_way_to_the_plans():
    dockerfile = texts(GPU_PLAN, JUPYTER)["Dockerfile"]
    assert "# jupyterlab 4.6.6: the profile jupyter starts it\n" in dockerfile
    assert " jupyterlab==4.6.6" in dockerfile
    planned = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("jupyterlab", "4.5.0")))
    assert find_profile_packages(planned, JUPYTER) == ()
    assert texts(planned, JUPYTER)["Dockerfile"].count("jupyterlab==") == 1


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
    script.write_text(texts(GPU_PLAN, JUPYTER)["jupyter.sh"])

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
    assert "DEVKIT_JUPYTER_IP=0.0.0.0" in jupyter_service()["environment"]


# The jobs of the profile `ci`: each by the linter of its service, and commands that the dev container has.


GPU = ("--gpu", "RTX 4090", "--driver", "570.124.06", "--no-resolve", "--yes")
GITHUB, GITLAB = ".github/workflows/dev-container.yml", ".gitlab/dev-container.yml"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ci")
    done = CliRunner().invoke(devkit, ["init", str(folder), *GPU, "--set", "profiles=ci"])
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
