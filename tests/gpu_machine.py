"""A Linux machine with a GPU that works, for programs in a mount namespace of their own: root on Linux, gcc.

This machine's root folder shows through, with the driver's files, NVIDIA's stand-in libraries and programs, device nodes
that drive nothing and a container engine's socket on top. What is written there is gone with the program.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import cuda_stub, nvml_stub
from tests.probe.engines import INFO, VERSION, engine

DRIVER = "580.95.05"
GPU = "0000:01:00.0"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
HOME = "/home/dev"
PROJECT = f"{HOME}/project"
SITE = f"{PROJECT}/.venv/lib/python3.12/site-packages"

# Mounts that hide a folder of the kernel's hold files of ours alone, so that nothing of this machine's own shows there.
SCRIPT = """#!/bin/sh
set -eu
state=$1
noise=$2
shift 2
root=$state/root
mount -t tmpfs -o size=200g tmpfs "$state/written"
mkdir "$state/written/upper" "$state/written/work" "$state/written/nodes" "$state/written/nodes-work"
# Layers may not hold each other, so the files leave the file system of the root folder.
cp -a "$state/files" "$state/written/files"
mount -t overlay overlay \\
    -o "lowerdir=$state/written/files:/,upperdir=$state/written/upper,workdir=$state/written/work" "$root"
for folder in dev proc sys; do
    mount --rbind "/$folder" "$root/$folder"
done
mount -t overlay overlay \\
    -o "lowerdir=$state/dev:/dev,upperdir=$state/written/nodes,workdir=$state/written/nodes-work" "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --bind /dev/pts "$root/dev/pts"
mount --bind "$state/run" "$root/run"
for path in proc/driver sys/module sys/bus; do
    mount --bind "$state/$path" "$root/$path"
done
eval "$noise"
exec /usr/sbin/chroot "$root" /usr/bin/env -C "$HOME/project" "$@"
"""

FILES = {
    f"{LIBRARIES}/libnvidia-ml.so.1": f"-> libnvidia-ml.so.{DRIVER}",
    f"{LIBRARIES}/libcuda.so.1": f"-> libcuda.so.{DRIVER}",
    f"/usr/lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin": "firmware",
    "/var/lib/dkms/nvidia/kernel": "",
    "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n',
    "/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}\n',
    "/etc/nvidia-container-runtime/config.toml": '[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig"\n',
    "/etc/cdi/nvidia.json": json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for name in ("0", "all")
            ],
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
                "mounts": [{"hostPath": f"{LIBRARIES}/libcuda.so.{DRIVER}", "containerPath": "/libcuda"}],
            },
        }
    ),
    f"{PROJECT}/.venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n",
    f"{SITE}/torch/version.py": "__version__ = '2.9.1+cu130'\ncuda = '13.0'\nhip = None\n",
    f"{SITE}/torch-2.9.1+cu130.dist-info/WHEEL": "Tag: cp312-cp312-manylinux_2_28_x86_64\n",
}
KERNEL_FILES = {
    "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n",
    "proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nEnableGpuFirmware: 18\n",
    "sys/module/nvidia/version": f"{DRIVER}\n",
    f"sys/bus/pci/devices/{GPU}/vendor": "0x10de\n",
    f"sys/bus/pci/devices/{GPU}/device": "0x2684\n",
    f"sys/bus/pci/devices/{GPU}/class": "0x030000\n",
    f"sys/bus/pci/devices/{GPU}/resource": "0xfa000000 0xfaffffff 0x40200\n0x7000000000 0x77ffffffff 0x14220c\n",
    f"sys/bus/pci/devices/{GPU}/driver": "-> /sys/bus/pci/drivers/nvidia",
    "sys/bus/pci/drivers/nvidia/bind": "",
}
PROGRAMS = {
    "modinfo": f"echo {DRIVER}",
    "dkms": f"echo nvidia/{DRIVER}, $(uname -r), x86_64: installed",
    "nvidia-ctk": "echo 'NVIDIA Container Toolkit CLI version 1.20.0'; echo 'commit: d34b304'",
    "nvidia-container-runtime": 'exec runc "$@"',
    "nvidia-container-runtime-hook": "exit 0",
    "nvidia-container-cli": "exit 0",
    "nvidia-smi": "exit 0",
    "runc": "exit 0",
    "../libexec/docker/cli-plugins/docker-compose": "echo 2.40.3",
    "dockerd": "echo 'configuration OK'",
    # Longer than a script that hands over to another program: devkit does not ask such a one for its version.
    "docker": f": '{' ' * 20_000}'\n"
    'case $1 in --version) echo "Docker version 28.5.2, build ecc6942";;'
    ' compose) shift; exec /usr/libexec/docker/cli-plugins/docker-compose "$@";; esac',
    "journalctl": f"echo '2026-11-20T07:58:12+00:00 kernel: NVRM: loading NVIDIA UNIX Open Kernel Module {DRIVER}'",
    "python3.12": "echo Python 3.12.3",
}
NODES = {"nvidia0": 0o666, "nvidiactl": 0o666, "nvidia-uvm": 0o666, "nvidia-modeset": 0o666}
ANSWERS = {
    "version": {**VERSION, "Components": [{"Name": "Engine"}, {"Name": "runc", "Details": {}}]},
    "info": INFO | {"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "CgroupDriver": "cgroupfs", "CgroupVersion": "2"},
    "json?all=1": [],
    "json": [],
}
VARIABLES = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "NVML_STUB_NAME": "NVIDIA GeForce RTX 4090",
    "NVML_STUB_CC": "8.9",
    "NVML_STUB_MEMORY_MIB": "24564",
    "NVML_STUB_DRIVER": DRIVER,
    "PYTHONPATH": str(Path(__file__).parents[1]),
    "VIRTUAL_ENV": f"{PROJECT}/.venv",
}


DEVKIT = (sys.executable, "-m", "devkit")


def on_machine(state: Path, *words: str, noise: str = "") -> list[str]:
    """A command line that runs `words` on the machine, after the shell commands `noise`, for which `$root` is its root.

    The process keeps its id, so that signals reach it.
    """
    script = str(state / "as-machine")
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", script, str(state), noise, *words]


@contextmanager
def gpu_machine(state: Path, container: Iterable[str] = ()) -> Iterator[Path]:
    """Build the machine in the folder `state`, and serve its engine for the block. Its containers print these lines."""
    for name in ("files", "written", "root", "dev", "run/docker-data"):
        (state / name).mkdir(parents=True)
    (state / "as-machine").write_text(SCRIPT)
    for path, text in FILES.items():
        _write(state / "files" / path[1:], text)
    for path, text in KERNEL_FILES.items():
        _write(state / path, text)
    said = "".join(f"echo 'devkit {line}'; " for line in container)
    run = f"\nfor word; do case $word in run) {said}exit 0;; esac; done" if said else ""
    for name, text in {**PROGRAMS, "docker": PROGRAMS["docker"] + run}.items():
        _write(state / "files/usr/bin" / name, f"#!/bin/sh\n{text}\n", mode=0o755)
    _write(state / "files" / PROJECT[1:] / ".venv/bin/python", "-> /usr/bin/python3.12")
    # To an overlay file system a node 0:0 says: the name below does not exist.
    (state / "files/usr/local/bin").mkdir(parents=True)
    for hidden in (".dockerenv", "usr/local/bin/docker"):
        os.mknod(state / "files" / hidden, stat.S_IFCHR)
    for name, mode in NODES.items():
        os.mknod(state / "dev" / name, mode | stat.S_IFCHR, os.makedev(1, 3))
        (state / "dev" / name).chmod(mode)
    folder = state / "files" / LIBRARIES[1:]
    nvml_stub.build_stub(state / "built").rename(folder / f"libnvidia-ml.so.{DRIVER}")
    cuda_stub.build_stub(state / "built").rename(folder / f"libcuda.so.{DRIVER}")
    # The loader's cache, with these two: written on the machine itself, which forgets it otherwise.
    cache = state / "files/etc/ld.so.cache"
    made = on_machine(state, "sh", "-c", "/sbin/ldconfig && cat /etc/ld.so.cache")
    cache.write_bytes(subprocess.run(made, env=VARIABLES, capture_output=True, check=True).stdout)
    with engine(state / "run/docker.sock", answers=ANSWERS):
        yield state
    shutil.rmtree(state)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text.startswith("-> "):
        path.symlink_to(text[3:])
        return
    path.write_text(text)
    path.chmod(mode)
