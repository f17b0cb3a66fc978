import json

import pytest

from devkit.facts.store import format_facts, parse_facts
from tests.hosts import MACHINES, facts_of
from tests.hosts.golden import expected_document


@pytest.mark.parametrize("name", MACHINES)
def test_the_probes_read_what_the_machine_is_known_to_be(name):
    facts = facts_of(name)
    assert json.loads(format_facts(facts)) == expected_document(name)
    assert parse_facts(format_facts(facts)) == facts


def telling(name, path, value, meaning):
    return pytest.param(name, path, value, id=f"{name}: {meaning}")


NOT_ON_GEFORCE = {"unknown": "nvmlDeviceGetMigMode: Not Supported"}
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
NOT_HERE = {"unknown": "only a Docker daemon installed on this system looks for the hook here"}


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        telling("ubuntu-4090-ok", "driver.libnvidia_ml", "580.95.05", "the library is as new as the module"),
        telling("ubuntu-4090-ok", "nvml.gpus.0.mig_enabled", NOT_ON_GEFORCE, "a desktop GPU has no MIG"),
        telling("ubuntu-4090-ok", "engine.hook_on_path", True, "the daemon finds the hook"),
        telling("cdi-only-h100x8", "nvml.gpus.7.name", "NVIDIA H100 80GB HBM3", "eight GPUs"),
        telling("cdi-only-h100x8", "driver.nvswitch_present", True, "behind an NVSwitch"),
        telling("cdi-only-h100x8", "driver.fabric_manager", "active", "with its manager"),
        telling("cdi-only-h100x8", "engine.hook_on_path", False, "no hook"),
        telling("cdi-only-h100x8", "cdi.0.driver", "570.172.08", "the specification names its driver"),
        telling("wsl2-desktop", "system.platform", "wsl2", "known by its kernel"),
        telling("wsl2-desktop", "wsl.libnvidia_ml_path", WSL_LIBRARY, "Windows brings the library"),
        telling(
            "wsl2-linux-driver-inside",
            "wsl.linux_driver_packages",
            ["libnvidia-compute-580:amd64", "nvidia-utils-580"],
            "neither removed packages nor the toolkit count",
        ),
        telling(
            "wsl2-linux-driver-inside",
            "wsl.libnvidia_ml_path",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            "the Linux library hides the one of Windows",
        ),
        telling("mig-a100", "nvml.gpus.0.mig_enabled", True, "MIG is on"),
        telling("mig-a100", "engine.has_selinux", True, "SELinux is on"),
        telling("rootless-docker", "engine.endpoint.chosen_by", "context rootless", "chosen by a context"),
        telling("rootless-docker", "engine.is_rootless", True, "rootless"),
        telling("podman-behind-docker-socket", "engine.kind", "podman", "Podman answers"),
        telling("podman-behind-docker-socket", "compose", None, "without Compose"),
        telling("no-gpu-laptop", "driver.pci_gpus", [], "no GPU is a fact"),
        telling("no-gpu-laptop", "driver.on_disk", None, "no module is a fact"),
        telling("driver-lib-mismatch", "driver.loaded", "580.95.05", "an older module is loaded"),
        telling("driver-lib-mismatch", "driver.libnvidia_ml", "580.105.08", "under newer libraries"),
        telling("driver-lib-mismatch", "nvml.code", 18, "as NVML says"),
        telling("nouveau-holds-gpu", "driver.pci_gpus.0.kernel_driver", "nouveau", "another driver owns the GPU"),
        telling("snap-docker", "engine.is_snap", True, "from snap"),
        telling("snap-docker", "engine.hook_on_path", NOT_HERE, "which looks elsewhere"),
        telling("desktop-linux-context", "engine.kind", "docker-desktop", "the context leads to Desktop"),
        telling("in-container-no-gpu-injected", "driver.nvidiactl", "absent", "no device on this side"),
        telling("in-container-no-gpu-injected", "driver.loaded", "580.95.05", "but a driver behind it"),
        telling("in-container-no-gpu-injected", "container.shm_bytes", 64 << 20, "Docker's default shared memory"),
        telling("in-container-ok", "container.libcuda_in_cache", True, "Triton can link"),
        telling("in-container-ok", "container.python_headers", True, "and compile"),
        telling("in-container-ok", "engine.end", "not-installed", "there is no engine inside"),
        telling("macos-desktop", "system.machine", "aarch64", "named as Linux names it"),
        telling("macos-desktop", "nvml.end", "library-not-found", "has no NVML"),
        telling("windows", "system.platform", "windows", "known by its environment"),
        telling("windows", "engine.end", "not-running", "Docker is installed but not started"),
    ],
)
def test_the_telling_fact_is_there(name, path, value):
    found = json.loads(format_facts(facts_of(name)))
    for step in path.split("."):
        found = found[int(step) if step.isdigit() else step]
    assert found == value


def test_no_probe_crashes_anywhere():
    texts = [json.dumps(expected_document(name)) for name in MACHINES]
    assert len(texts) >= 16
    assert not [text for text in texts if "probe crashed" in text]
