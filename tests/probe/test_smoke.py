"""The probe container, with a program of the name docker that answers as the engine's does."""

import os
import shlex
import sys
import time

import pytest

from devkit.facts.model import EngineKind, LocalImage, Smoke
from devkit.facts.values import Unknown
from devkit.probe.engine.smoke import run_smoke
from devkit.probe.host import LocalHost
from tests.doctor.machines import changed, container, healthy, no_library, windows_guest, without_gpu

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for docker is a shell script")

SEEN = """devkit node /dev/nvidia0
devkit node /dev/nvidiactl
devkit nvidiactl open
devkit libcuda /usr/lib64/libcuda.so.1
devkit nvidia-smi GPU 0: NVIDIA H100 (UUID: GPU-0)
devkit end"""
NO_SHELL = 'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Write the stand-in, whose `run` does what the test says; the calls it got."""

    def write(run, *, images="1111\n2222", rest="", name="docker"):
        script = f"""#!/bin/sh
echo "$*" >> {tmp_path}/calls
case " $* " in
*" run "*) {run} ;;
*" image ls "*) printf {shlex.quote(images)} ;;
*) {rest or ":"} ;;
esac
"""
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    write.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return write


def smoke(facts, deadline_s=30.0):
    return run_smoke(LocalHost(), facts, deadline_s=deadline_s)


def runs(docker):
    return [call for call in docker.calls() if " run " in f" {call} "]


def test_what_is_seen_inside_is_read(docker):
    docker(f"cat <<'END'\n{SEEN}\nEND\n")
    found = smoke(healthy())
    assert isinstance(found, Smoke)
    assert (found.code, found.nvidiactl, found.libcuda) == (0, "open", "/usr/lib64/libcuda.so.1")
    assert found.device_nodes == ("/dev/nvidia0", "/dev/nvidiactl")
    assert found.nvidia_smi == "GPU 0: NVIDIA H100 (UUID: GPU-0)"
    assert (found.timed_out, found.left_behind) == (False, "")


def test_a_container_that_was_cut_off_says_nothing_of_the_rest(docker):
    docker("echo 'devkit node /dev/nvidia0'")
    found = smoke(healthy())
    assert isinstance(found.device_nodes, Unknown)
    assert isinstance(found.nvidiactl, Unknown)


def test_the_projects_own_image_comes_first_and_nothing_is_pulled(docker):
    docker("true")
    smoke(healthy())
    (call,) = runs(docker)
    assert " 5b0ad6d2c3f4 -c " in call
    assert "--pull=never" in call
    assert "--network=none" in call
    assert call.startswith("--host unix:///var/run/docker.sock run --rm")


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        pytest.param({"engine.containers": ()}, "--gpus all", id="Docker with its hook"),
        pytest.param({"engine.containers": (), "engine.hook_on_path": False}, "--device nvidia.com/gpu=all", id="CDI"),
        pytest.param(
            {"engine.containers": (), "engine.hook_on_path": False, "engine.cdi_devices": ()},
            "--runtime=nvidia",
            id="the runtime",
        ),
        pytest.param({}, "--device nvidia.com/gpu=all", id="as the project's container does, by CDI"),
        pytest.param(
            {"engine.containers": (container(gpu_request="driver"),)}, "--gpus all", id="as it does, by request"
        ),
    ],
)
def test_the_gpu_request_has_the_form_of_this_engine(docker, changes, option):
    docker("true")
    smoke(changed(healthy(), changes))
    assert option in runs(docker)[0]


def test_podman_runs_by_its_own_command(docker):
    docker("true", name="podman")
    smoke(changed(healthy(), {"engine.kind": EngineKind.PODMAN}))
    assert runs(docker)[0].startswith("run --rm")
    assert "--device nvidia.com/gpu=all" in runs(docker)[0]


def test_an_image_without_a_shell_is_followed_by_the_next(docker):
    docker(f"case \"$*\" in *5b0ad6d2c3f4*) echo '{NO_SHELL}' >&2; exit 127;; esac; echo 'devkit end'")
    found = smoke(healthy())
    assert (found.image, found.code) == ("1111", 0)


def test_when_no_image_has_a_shell_that_is_said(docker):
    docker(f"echo '{NO_SHELL}' >&2; exit 127")
    assert "shell" in smoke(healthy()).reason
    assert len(runs(docker)) == 3


def test_an_engines_refusal_is_kept_in_its_words(docker):
    docker("echo 'could not select device driver' >&2; exit 125")
    found = smoke(healthy())
    assert (found.code, found.err) == (125, "could not select device driver\n")
    assert any(" rm --force --volumes devkit-smoke-" in call for call in docker.calls())


@pytest.mark.clock
def test_a_container_that_hangs_is_removed_and_the_deadline_kept(docker):
    docker("sleep 60")
    started = time.monotonic()
    found = smoke(healthy(), deadline_s=10)
    assert time.monotonic() - started < 10
    assert found.timed_out is True
    assert found.left_behind == ""


@pytest.mark.full
@pytest.mark.clock
def test_a_container_that_stays_is_named(docker):
    docker("exit 125", rest='case "$*" in *ps*) echo 3f3f;; esac')
    found = smoke(healthy(), deadline_s=12)
    assert found.left_behind.startswith("devkit-smoke-")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(without_gpu(), "shows no NVIDIA GPU", id="no GPU"),
        pytest.param(changed(healthy(), {"engine": Unknown("?")}), "no container engine", id="no engine"),
        pytest.param(changed(healthy(), {"engine.endpoint.url": "tcp://far:2376"}), "another machine", id="far away"),
    ],
)
def test_where_nothing_is_started_and_why(docker, facts, reason):
    docker("true")
    assert reason in smoke(facts).reason


def test_no_image_means_no_container(docker):
    docker("true", images="")
    facts = changed(healthy(), {"engine.containers": (), "engine.images": ()})
    assert "no image yet" in smoke(facts).reason


def test_another_dev_containers_image_comes_before_any(docker):
    docker("true")
    other = LocalImage("vsc-other", "amd64", None, "99999", True)
    smoke(changed(healthy(), {"engine.containers": (), "engine.images": (other,)}))
    assert " 99999 -c " in runs(docker)[0]


def test_a_broken_nvml_does_not_prevent_the_container(docker):
    docker("true")
    assert isinstance(smoke(changed(healthy(), {"nvml": no_library()})), Smoke)


def test_in_wsl_the_gpu_is_known_by_its_node(docker):
    docker("true")
    assert isinstance(smoke(changed(windows_guest(), {"nvml": no_library()})), Smoke)
