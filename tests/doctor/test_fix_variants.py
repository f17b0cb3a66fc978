"""The commands of the most frequent fixes, for each machine on which they differ."""

import pytest

from devkit.doctor.problems import decode_fix_rows, render_fix
from devkit.facts.engine import EngineKind
from tests.doctor.machines import changed, healthy, inside
from tests.hosts import facts_of

UBUNTU = healthy()
MACHINES = {
    "Ubuntu": UBUNTU,
    "snap": changed(UBUNTU, {"engine.is_snap": True}),
    "rootless": facts_of("rootless-docker"),
    "Podman": changed(UBUNTU, {"engine.kind": EngineKind.PODMAN}),
    "Desktop": changed(UBUNTU, {"engine.kind": EngineKind.DOCKER_DESKTOP}),
    "container": inside(),
    "Fedora": facts_of("host-requirements-with-podman"),
    "RHEL": facts_of("mig-a100"),
    "Debian": facts_of("debian-ldconfig-of-ubuntu"),
    "no systemd": facts_of("cgroup-driver-without-systemd"),
    "WSL": facts_of("wsl2-docker-stopped"),
    "Windows": facts_of("windows"),
}
CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker"
GENERATE = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
APT_TOOLKIT = "sudo apt-get install -y nvidia-container-toolkit"
HOLD = "sudo apt-mark hold 'nvidia-driver-*' 'libnvidia-compute-*'"

CASES = [
    # fix, values, machine, side, its last commands
    ("install-toolkit", {}, "Ubuntu", "host", (APT_TOOLKIT, CONFIGURE, "sudo systemctl restart docker")),
    ("install-toolkit", {}, "no systemd", "host", (APT_TOOLKIT, CONFIGURE, "sudo service docker restart")),
    ("install-toolkit", {}, "Podman", "host", (APT_TOOLKIT, GENERATE)),
    ("install-toolkit", {}, "RHEL", "host", ("sudo dnf install -y nvidia-container-toolkit", CONFIGURE)),
    ("install-toolkit", {}, "rootless", "host", ("systemctl --user restart docker",)),
    ("install-toolkit", {}, "snap", "host", ("sudo snap remove docker",)),
    ("install-toolkit", {}, "Desktop", "host", ()),
    ("install-toolkit-hook", {}, "Ubuntu", "host", (APT_TOOLKIT, "sudo systemctl restart docker")),
    ("replace-snap", {}, "snap", "host", ("sudo snap remove docker",)),
    ("reload-engine", {}, "Ubuntu", "host", ("sudo systemctl restart docker",)),
    ("reload-engine", {}, "snap", "host", ("sudo snap restart docker",)),
    ("reload-engine", {}, "rootless", "host", ("systemctl --user restart docker",)),
    ("reload-engine", {}, "Desktop", "host", ("docker desktop restart",)),
    ("reload-engine", {}, "Podman", "host", ()),
    (
        "regenerate-cdi",
        {"path": "/etc/cdi/a b"},
        "Ubuntu",
        "host",
        ("sudo nvidia-ctk cdi generate --output='/etc/cdi/a b'",),
    ),
    ("install-driver", {"wanted": "580"}, "Ubuntu", "host", ("sudo ubuntu-drivers install",)),
    ("install-driver", {"wanted": "580"}, "RHEL", "host", ("sudo dnf install -y nvidia-open",)),
    ("install-driver", {"wanted": "580"}, "WSL", "windows", ("wsl.exe --shutdown",)),
    ("install-driver", {"wanted": "580"}, "Windows", "windows", ()),
    ("enroll-key", {}, "Ubuntu", "host", ("sudo mokutil --import /var/lib/shim-signed/mok/MOK.der", "sudo reboot")),
    ("enroll-key", {}, "Debian", "host", ("sudo mokutil --import /var/lib/dkms/mok.pub", "sudo reboot")),
    ("load-new-module", {"rebooted": "no"}, "Ubuntu", "host", (HOLD, "sudo reboot")),
    (
        "load-new-module",
        {"rebooted": "since the upgrade"},
        "Ubuntu",
        "host",
        ("sudo update-initramfs -u", "sudo reboot"),
    ),
    ("load-new-module", {"rebooted": "since the upgrade"}, "RHEL", "host", ("sudo dracut -f", "sudo reboot")),
    ("load-new-module", {"rebooted": "no"}, "container", "host", ()),
    ("load-new-module", {"rebooted": "no"}, "WSL", "windows", ("wsl.exe --shutdown",)),
    ("finish-driver", {"branch": "580"}, "Fedora", "host", ("sudo akmods --force", "sudo reboot")),
    ("install-engine", {}, "Fedora", "host", ("sudo usermod -aG docker $USER",)),
    ("install-engine", {}, "Windows", "windows", ()),
    ("install-compose", {}, "Debian", "host", ("sudo apt-get install -y docker-compose-plugin",)),
    ("correct-endpoint", {"choice": "ssh", "variable": "X"}, "Ubuntu", "host", ("devkit doctor",)),
    ("correct-endpoint", {"choice": "variable", "variable": "DOCKER_HOST"}, "Ubuntu", "host", ("unset DOCKER_HOST",)),
    ("correct-endpoint", {"choice": "context", "variable": "X"}, "Ubuntu", "host", ("docker context use default",)),
    ("free-space", {"purpose": "engine data"}, "Ubuntu", "host", ("docker image prune --force",)),
    ("free-space", {"purpose": "hub cache"}, "container", "container", ("hf cache ls || hf cache scan",)),
    (
        "free-space",
        {"purpose": "workspace", "path": "/a b"},
        "Ubuntu",
        "host",
        ("du -xh --max-depth=1 '/a b' | sort -h | tail",),
    ),
    ("unset-visible-devices", {}, "container", "container", ("unset CUDA_VISIBLE_DEVICES",)),
    ("xid", {"remedy": "restart the program"}, "Ubuntu", "project", ("CUDA_LAUNCH_BLOCKING=1 python …",)),
    ("xid", {"remedy": "reset the GPU", "index": 2}, "Ubuntu", "host", ("sudo nvidia-smi --gpu-reset -i 2",)),
    ("xid", {"remedy": "reset the GPU", "by": "reboot"}, "Ubuntu", "host", ("sudo reboot",)),
    ("xid", {"remedy": "reset the GPU", "number": "79"}, "Ubuntu", "host", ("sudo poweroff",)),
    ("xid", {"remedy": "reset the GPU", "number": "79"}, "WSL", "windows", ()),
    ("xid", {"remedy": "check the power cables"}, "Ubuntu", "host", ()),
    ("xid", {"remedy": "check the NVLink connection"}, "Ubuntu", "host", ("nvidia-smi nvlink -e",)),
    ("xid", {"remedy": "nothing"}, "Ubuntu", "host", ()),
    ("correct-clock", {}, "WSL", "wsl", ("sudo hwclock -s",)),
    ("correct-clock", {}, "Ubuntu", "host", ("sudo timedatectl set-ntp true",)),
    ("set-engine-clock", {}, "Desktop", "host", ("docker desktop restart",)),
    ("start-docker", {}, "no systemd", "host", ("sudo service docker start", "sudo tail -n 20 /var/log/docker.log")),
    ("more-shm", {}, "Ubuntu", "project", ("docker run --shm-size=8g …",)),
]


@pytest.mark.parametrize("name", dict.fromkeys(case[0] for case in CASES))
def test_a_fix_has_the_commands_of_the_machine(name):
    wrong = []
    for _, values, machine, side, expected in (case for case in CASES if case[0] == name):
        fix = render_fix(decode_fix_rows(name), values, MACHINES[machine])
        left = iter(fix.commands)
        if fix.where != side or not (all(each in left for each in expected) if expected else not fix.commands):
            wrong.append(f"{machine} {values}: {fix.where} {fix.commands}")
    assert wrong == []
