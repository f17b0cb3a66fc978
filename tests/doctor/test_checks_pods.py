"""Nodes of Kubernetes: what containerd and CRI-O make of the nvidia runtime."""

import subprocess
import textwrap

import pytest

from devkit.probe.engine.pods import read_pod_runtime
from tests.doctor.judging import judge
from tests.doctor.machines import changed, healthy
from tests.doctor.running import find_only
from tests.hosts import written

CONTAINERD = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"
MICROK8S = "/var/snap/microk8s/current/args/containerd.toml"
CRIO = "/etc/crio/crio.conf"
SOCKETS = {
    CONTAINERD: "/run/containerd/containerd.sock",
    K3S: "/run/k3s/containerd/containerd.sock",
    RKE2: "/run/k3s/containerd/containerd.sock",
    MICROK8S: "/var/snap/microk8s/common/run/containerd.sock",
    CRIO: "/run/crio/crio.sock",
}
NVIDIA = """
    version = 2
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
    SystemdCgroup = true
"""
VERSION_1 = NVIDIA.replace("version = 2", "").replace('"io.containerd.grpc.v1.cri"', "cri")
OLD_SECTION = NVIDIA.replace("= 2", "= 3")
NEW_SECTION = NVIDIA.replace("grpc.v1.cri", "cri.v1.runtime")
GONE = NVIDIA.replace("/usr/bin", "/opt/gone")
NO_SYSTEMD = NVIDIA.replace("= true", "= false")
IMPORTS = 'version = 2\nimports = ["conf.d/*.toml"]'
IMPORTED = "'/etc/containerd/conf.d/99-nvidia.toml' = '''" + textwrap.dedent(NVIDIA) + "'''"
BY_SYSTEMD = "cgroupDriver: systemd"


def node(folder, path, text, *, more="", kubelet=BY_SYSTEMD, has_cdi=True):
    """Facts of a node with these settings; `more` are further lines of the recorded machine's files."""
    machine = (
        f"[files]\n'{path}' = '''\n{textwrap.dedent(text)}'''\n{more}\n"
        + (f"'/var/lib/kubelet/config.yaml' = '''\n{kubelet}\n'''\n" if kubelet else "")
        + f"[nodes]\n'{SOCKETS[path]}' = {{ kind = 'socket' }}\n"
        + "'/usr/bin/nvidia-container-runtime' = { kind = 'file', mode = 0o755 }\n"
    )
    facts = changed(healthy(), {"toolkit.pods": read_pod_runtime(written(folder, machine))})
    return facts if has_cdi else changed(facts, {"cdi": ()})


SET_UP = "note: runtime class nvidia"
CASES = [
    ("POD001", CONTAINERD, NVIDIA, {}, "passed", "a node that is set up"),
    *(("POD002", path, NVIDIA, {}, SET_UP, f"set up in {path}") for path in (CONTAINERD, K3S, RKE2, MICROK8S)),
    ("POD002", CONTAINERD, VERSION_1, {}, SET_UP, "set up in the form of version 1"),
    ("POD001", CONTAINERD, 'disabled_plugins = ["cri"]', {"kubelet": ""}, "skipped", "Docker's own containerd"),
    ("POD001", CONTAINERD, "version = [", {}, "error: not valid TOML | systemctl restart containerd", "no TOML"),
    ("POD001", CONTAINERD, 'disabled_plugins = ["cri"]', {}, "error: cannot start pods | sudo sed -i", "pods are off"),
    ("POD001", CONTAINERD, OLD_SECTION, {}, "error: grpc.v1.cri | sudo nvidia-ctk", "the section of version 2"),
    ("POD001", CONTAINERD, NEW_SECTION, {}, "error: cri.v1.runtime | sudo nvidia-ctk", "the section of version 3"),
    ("POD002", CONTAINERD, "version = [", {}, "skipped", "settings that are not read have no runtime"),
    (
        "POD002",
        CONTAINERD,
        IMPORTS,
        {"has_cdi": False},
        "warning: neither a runtime named nvidia",
        "an import of nothing",
    ),
    ("POD002", CONTAINERD, IMPORTS, {"more": IMPORTED, "has_cdi": False}, "note", "what a file imports counts"),
    (
        "POD002",
        CONTAINERD,
        GONE,
        {"has_cdi": False},
        "error: /opt/gone/nvidia-container-runtime",
        "its program is gone",
    ),
    (
        "POD002",
        CRIO,
        '[crio.runtime]\ndefault_runtime = "nvidia"',
        {"has_cdi": False},
        "error: which is not registered",
        "a default of nothing",
    ),
    ("POD002", CONTAINERD, "version = 2", {"has_cdi": False}, "warning: neither a runtime named nvidia", "none"),
    ("POD002", CONTAINERD, "version = 2", {}, "note", "a node that gives GPUs by CDI needs none"),
    ("POD003", CONTAINERD, NVIDIA, {}, "passed", "both systemd"),
    ("POD003", CONTAINERD, NVIDIA, {"kubelet": "cgroupDriver: cgroupfs"}, "warning", "the kubelet is not"),
    ("POD003", CONTAINERD, NO_SYSTEMD, {}, "warning", "the runtime is not"),
    ("POD003", CONTAINERD, NVIDIA, {"kubelet": "kind: KubeletConfiguration"}, "skipped", "not said"),
    ("POD003", CONTAINERD, "version = 2", {}, "skipped", "no such runtime"),
    ("POD003", CRIO, "[crio.runtime]", {}, "skipped", "CRI-O"),
]


@pytest.mark.parametrize("code", ["POD001", "POD002", "POD003"])
def test_the_verdict_on_each_node(tmp_path, code):
    wrong = []
    for number, (own, path, text, options, expected, name) in enumerate(CASES):
        if own == code:
            folder = tmp_path / str(number)
            folder.mkdir()
            wrong += [f"{name}: {each}" for each in judge(code, node(folder, path, text, **options), expected)]
    assert wrong == []


def test_pods_are_switched_on_without_the_other_plugins(tmp_path):
    text = 'disabled_plugins = ["cri", "zfs"]\n'
    command = find_only("POD001", node(tmp_path, CONTAINERD, text)).fix.commands[0]
    here = tmp_path / "here"
    here.write_text(text)
    subprocess.run(["sh", "-c", command.removeprefix("sudo ").replace(CONTAINERD, str(here))], check=True)
    assert here.read_text() == 'disabled_plugins = ["zfs"]\n'


def test_a_file_of_root_is_unknown(tmp_path):
    machine = f"unreadable = ['{K3S}']\n[files]\n'{K3S}' = 'x'\n[nodes]\n'{SOCKETS[K3S]}' = {{ kind = 'socket' }}\n"
    facts = changed(healthy(), {"toolkit.pods": read_pod_runtime(written(tmp_path, machine))})
    assert list(judge("POD002", facts, "skipped")) == []
