"""Every fix is tried: a machine is broken, what the findings print is run as it stands, and the findings are gone.

`python -m tests.doctor.test_fixes_on_a_machine` prints how many of the checks with commands are tried.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.gpu_machine import GPU, SITE, VARIABLES, gpu_machine, on_machine

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("gcc") is None,
        reason="needs root on Linux, and gcc",
    ),
]

CONFIG = "/etc/nvidia-container-runtime/config.toml"
SPEC = "/etc/cdi/nvidia.json"
DAEMON = "/etc/docker/daemon.json"
SET = "nvidia-ctk config --in-place --set"
NO_HOOK = "rm /usr/bin/nvidia-container-runtime-hook"
IN_CONTAINER = ": >/.dockerenv"
UBUNTU = "printf 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n' >/etc/os-release"
SYSTEMD = "mkdir -p /run/systemd/system"


def write(path, text):
    """The command that writes a file with all folders above it."""
    return f"mkdir -p $(dirname {path}); printf '%s\n' {shlex.quote(text)} >{path}"


def install(name, version, *requires, files=(), site=SITE):
    """The command that leaves what pip leaves of a package."""
    info = f"{site}/{name}-{version}.dist-info"
    lines = "\n".join(
        [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
    )
    made = [f"{info}/METADATA", *(f"{site}/{path}" for path in files)]
    record = "".join(f"{path.removeprefix(f'{site}/')},,\n" for path in (*made, f"{info}/RECORD"))
    return "; ".join([write(f"{info}/RECORD", record), *(write(path, lines) for path in made)])


def engine(**answers):
    """The command that makes the engine answer otherwise, until it is replaced."""
    return write("/opt/engine.json", json.dumps(answers))


def torch(version, cuda):
    """The command that puts another build of torch in the place of the machine's."""
    text = f"__version__ = '{version}'\ncuda = {cuda!r}\nhip = None"
    return "; ".join(
        (
            f"rm -r {SITE}/torch*",
            install("torch", version, files=["torch/version.py"]),
            write(f"{SITE}/torch/version.py", text),
        )
    )


NODE = (
    "mkdir -p /run/containerd /var/lib/kubelet; : >/run/containerd/containerd.sock;"
    " echo 'cgroupDriver: systemd' >/var/lib/kubelet/config.yaml"
)
LEFT_BY_THE_OPERATOR = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
SystemdCgroup = false"""
COMPOSE_WITH_A_CACHE = """services:
  dev:
    image: python:3.12
    user: "1000"
    volumes: ["${HOME}/models/hub:/cache/huggingface"]"""
CONTAINER = {
    "Id": "c0ffee",
    "Name": "/train",
    "Names": ["/train"],
    "State": {"Status": "running", "Running": True},
    "Config": {"Image": "train"},
    "HostConfig": {
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}],
        "SecurityOpt": [],
        "ShmSize": 8 << 30,
    },
}
REAL_PYTHON = f"""#!/bin/sh
case $1 in --version) echo Python 3.12.3 ;; *) PYTHONPATH={SITE} exec {sys.executable} "$@" ;; esac"""
TORCH = """from torch import version
from torch.version import __version__

class cuda:
    get_arch_list = lambda: ["sm_89"]
    is_available = is_initialized = lambda: False
    init = lambda: None

compiled_with_cxx11_abi = lambda: True"""


TRIALS = {
    "a stale specification": {
        "CDI001": f"sed -i s/580.95.05/550.54.14/ {SPEC}; : >/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"
    },
    "a specification that the engine is too old for": {
        "CDI002": f"sed -i s/0.5.0/0.7.0/ {SPEC}; {engine(version={'Version': '25.0.5', 'ApiVersion': '1.44'})}"
    },
    "a device that is not there": {"CDI004": f"sed -i s,/dev/nvidia-uvm,/dev/nvidia-caps/nvidia-cap9, {SPEC}"},
    "a unit that is masked": {
        "CDI006": f"{SYSTEMD}; cd /etc/systemd/system; ln -s /dev/null nvidia-cdi-refresh.path; cd ~/project; "
        + write(
            "/lib/systemd/system/nvidia-cdi-refresh.path",
            "[Path]\nPathChanged=/lib/modules\n[Install]\nWantedBy=multi-user.target",
        )
        + f"; cp /lib/systemd/system/nvidia-cdi-refresh.path /lib/systemd/system/nvidia-cdi-refresh.service; {NO_HOOK}"
        + "; echo '{}' >/etc/docker/daemon.json"
    },
    "specifications elsewhere": {"CDI008": f'echo \'{{"cdi-spec-dirs": ["/opt/cdi"]}}\' >{DAEMON}; {NO_HOOK}'},
    "CDI is off": {"CDI010": f'echo \'{{"features": {{"cdi": false}}}}\' >{DAEMON}; {NO_HOOK}'},
    "no toolkit": {
        "CTK001": f"rm -r {SPEC} /etc/apt/sources.list.d/nvidia* /usr/share/keyrings/nvidia* /usr/bin/nvidia-c*"
        f" /usr/local/sbin/nvidia-ctk; echo '{{}}' >{DAEMON}"
    },
    "no way to a GPU": {"CTK002": f"{NO_HOOK} {SPEC}; echo '{{}}' >{DAEMON}"},
    "an engine that was not restarted": {
        "CTK003": f"echo '{{}}' >{DAEMON}; service docker restart; KEEP-ENGINE; nvidia-ctk runtime configure --runtime=docker"
    },
    "wrong lines in config.toml": {
        "CTK005": f"{SET} nvidia-container-cli.no-cgroups=true",
        "CTK007": f"{SET} nvidia-container-cli.root=/run/nvidia/driver",
        "CTK009": f"{SET} nvidia-container-cli.ldconfig=@/sbin/ldconfig.real",
        "CTK015": f"{SET} nvidia-container-runtime.runtimes=gone",
        "CTK010": f"{SET} nvidia-container-runtime.mode=csv",
    },
    "a quoted boolean": {"CTK008": f"echo '[nvidia-container-cli]\nno-cgroups = \"true\"' >{CONFIG}"},
    "no TOML": {"CTK008": f"echo '[nvidia-container-cli' >{CONFIG}"},
    "a misspelled mode": {"CTK008": f"{SET} nvidia-container-runtime.mode=lagacy"},
    "mode cdi": {"CTK010": f"{SET} nvidia-container-runtime.mode=cdi"},
    "a runtime that is runc": {"CTK014": f'echo \'{{"runtimes": {{"nvidia": {{"path": "runc"}}}}}}\' >{DAEMON}'},
    "a runtime that is gone": {"CTK014": f'echo \'{{"runtimes": {{"nvidia": {{"path": "/opt/gone"}}}}}}\' >{DAEMON}'},
    "no nvidia-container-cli": {
        "CTK015": "rm /usr/bin/nvidia-container-cli",
        "CTK016": "; ".join(
            write(path, "#!/bin/sh") for path in ("/usr/bin/enroot", "/etc/enroot/hooks.d/98-nvidia.sh")
        )
        + "; chmod +x /usr/bin/enroot",
    },
    "no libcuda": {"DRV014": "rm /usr/lib/x86_64-linux-gnu/libcuda.so.*; ldconfig"},
    "an engine that does not run": {"ENG001": "STOP-ENGINE"},
    "Docker Desktop's context": {
        "ENG002": "mkdir -p ~/.docker/desktop; "
        + write(
            f"~/.docker/contexts/meta/{hashlib.sha256(b'desktop-linux').hexdigest()}/meta.json",
            json.dumps({"Endpoints": {"docker": {"Host": f"unix://{VARIABLES['HOME']}/.docker/desktop/docker.sock"}}}),
        )
        + "; "
        + write("~/.docker/config.json", '{"currentContext": "desktop-linux"}')
    },
    "a folder in the place of a file": {"ENG006": f"KEEP-ENGINE; rm {DAEMON}; mkdir {DAEMON}"},
    "a proxy of the shell alone, with systemd": {"ENG013": f"{SYSTEMD}; export https_proxy=http://proxy.example:3128"},
    "a clock of Docker Desktop": {
        "ENG015": engine(info={"OperatingSystem": "Docker Desktop", "SystemTime": "2025-01-01T00:00:00Z"})
    },
    "variables": {
        "HUB002": "export HF_ENDPOINT=hf-mirror.com",
        "HUB003": "export HF_TOKEN=your_token_here",
        "HUB005": "export REQUESTS_CA_BUNDLE=/nowhere.pem",
        "NET002": "export NCCL_SOCKET_IFNAME=ib9",
        "PYT006": "export CUDA_VISIBLE_DEVICES=5",
        "CUD005": "mkdir -p /opt/stubs; : >/opt/stubs/libcuda.so.1; export LD_LIBRARY_PATH=/opt/stubs",
        "PYT016": f"mkdir -p {SITE}/bitsandbytes-0.49.0.dist-info {SITE}/bitsandbytes;"
        f" : >{SITE}/bitsandbytes/libbitsandbytes_cuda130.so; export BNB_CUDA_VERSION=118",
    },
    "variables of a container": {
        "HUB004": f"{IN_CONTAINER}; export http_proxy=http://127.0.0.1:7890 https_proxy=http://127.0.0.1:7890",
        "CON005": f"{install('triton', '3.5.1')}; mkdir -p /usr/local/nvidia/lib64;"
        " mv /usr/lib/x86_64-linux-gnu/libcuda.so* /usr/local/nvidia/lib64; ldconfig;"
        " echo /usr/local/nvidia/lib64 >/etc/ld.so.conf.d/nvcr-1.conf",
    },
    "a torch without CUDA": {
        "PYT001": f"{torch('2.9.1+cpu', None)}; {install('torchvision', '0.24.1+cpu', 'torch==2.9.1')}"
    },
    "a torch that does not know the GPU": {"PYT002": f"{torch('2.9.1+cu126', '12.6')}; export NVML_STUB_CC=12.0"},
    "a torch that is too new for the driver": {
        "CUD004": f"{torch('2.9.1+cu130', '13.0')}; {install('torchvision', '0.24.1+cu130', 'torch==2.9.1')};"
        " export NVML_STUB_DRIVER=550.144.03 NVML_STUB_CUDA=12040; echo 550.144.03 >/sys/module/nvidia/version"
    },
    "packages that do not fit": {
        "": torch("2.9.1+cu130", "13.0"),
        "PYT003": install("bitsandbytes", "0.45.5", files=["bitsandbytes/libbitsandbytes_cuda126.so"]),
        "PYT004": install("flash_attn", "2.8.3+cu12torch2.7cxx11abiTRUE"),
        "PYT007": install("torchvision", "0.23.0+cu130", "torch==2.8.0"),
        "PYT008": install("transformers", "5.0.0"),
        "HUB006": f"{install('huggingface_hub', '0.36.0')}; export HF_HUB_ENABLE_HF_TRANSFER=1",
    },
    "an NVRTC that is older than the GPU": {
        "PYT012": f"{torch('2.9.1+cu128', '12.8')}; {install('nvidia_cuda_nvrtc_cu12', '12.6.77')}; export NVML_STUB_CC=12.0"
    },
    "a host with several faults": {
        "ENG005": "rm /usr/libexec/docker/cli-plugins/docker-compose",
        "DRV011": "u=https://nvidia.github.io/libnvidia-container/stable/deb/amd64;"
        ' for n in a nvidia-docker; do echo "deb [signed-by=/$n.gpg] $u /" >/etc/apt/sources.list.d/$n.list; done',
        "CDI009": f"cp {SPEC} /etc/cdi/nvidia2.json",
        "HUB001": "export HF_HUB_OFFLINE=1",
        "ENG013": "export HTTPS_PROXY=http://proxy.example:3128",
        "DRV005": "rm /dev/nvidia-uvm /dev/nvidia0",
    },
    "specifications that cannot be read": {
        "CDI003": f"head -c 200 {SPEC} >/run/s; cat /run/s >{SPEC}; echo >/etc/cdi/nvidia2.json"
    },
    "an old toolkit under systemd's driver": {
        "CTK006": "echo 1.17.3 >/opt/old-toolkit",
        "ENG016": f'echo \'{{"exec-opts": ["native.cgroupdriver=systemd"]}}\' >{DAEMON}',
    },
    "an old Docker of a snap": {
        "ENG003": f"{UBUNTU}; export USER=root",
        "ENG010": engine(
            info={"DockerRootDir": "/var/snap/docker/common/var-lib-docker"},
            version={"Version": "18.09.9", "ApiVersion": "1.39"},
        ),
    },
    "a toolkit and a runc with known faults": {
        "CTK011": "echo 1.19.1 >/opt/old-toolkit; export NVML_STUB_CC=5.2",
        "CTK012": f"{SYSTEMD}; mkdir -p /dev/char; : >/dev/char/1:3; "
        + engine(
            version={"Components": [{"Name": "Engine"}, {"Name": "runc", "Version": "1.1.5"}]},
            info={"CgroupDriver": "systemd"},
        ),
    },
    "packages of two sources": {
        "DRV013": f"{UBUNTU}; for p in libnvidia-compute-580:580.95.05-0ubuntu0.24.04.1 cuda-drivers:580.95.05-0ubuntu1; do"
        ' printf "\\nPackage: %s\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: %s\\n" ${p%%:*} ${p#*:};'
        " done >>/var/lib/dpkg/status",
        "ENG011": f"{UBUNTU}; export USER=root; sed -i s/28.5.2/23.0.6/ /usr/bin/docker; "
        + engine(version={"Version": "29.1.3", "ApiVersion": "1.52", "MinAPIVersion": "1.44"}),
    },
    "conda's old C++ library, and an older Compose": {
        "PYT010": f"echo 'Tag: cp312-cp312-manylinux_2_31_x86_64' >{SITE}/torch-2.9.1+cu130.dist-info/WHEEL; "
        "mkdir -p $VIRTUAL_ENV/conda-meta; : >$VIRTUAL_ENV/lib/libstdc++.so.6.0.25; "
        "ln -s libstdc++.so.6.0.25 $VIRTUAL_ENV/lib/libstdc++.so.6",
        "PRJ012": "sed -i s/2.40.3/2.27.1/ /usr/libexec/docker/cli-plugins/docker-compose; "
        + write(
            "~/project/compose.yaml", "services:\n  dev:\n    image: python:3.12\n    devices: [nvidia.com/gpu=all]"
        ),
    },
    "a node of Docker's containerd, a second Docker, and disks that are full": {
        "": f"{SYSTEMD}; {NODE}; mkdir -p /var/lib/docker; mount -t tmpfs -o size=3g,nr_inodes=400 tmpfs /var/lib/docker",
        "POD001": write("/etc/containerd/config.toml", 'disabled_plugins = ["cri"]'),
        "ENG009": f"{write('/snap/bin/docker', '#!/bin/sh')}; chmod +x /snap/bin/docker",
        "STO002": ":",
        "STO004": ":",
        "PRJ019": write("~/project/compose.yaml", COMPOSE_WITH_A_CACHE),
    },
    "a node that the GPU Operator left, and SELinux": {
        "": f"{SYSTEMD}; {NODE}; mkdir /run/c; mount --rbind /sys/fs/cgroup /run/c; mount -t tmpfs tmpfs /sys/fs;"
        " mkdir -p /sys/fs/cgroup /sys/fs/selinux/booleans; mount --rbind /run/c /sys/fs/cgroup",
        "POD002": write("/etc/containerd/config.toml", LEFT_BY_THE_OPERATOR),
        "POD003": ":",
        "CON012": "echo 1 >/sys/fs/selinux/enforce; echo 0 0 >/sys/fs/selinux/booleans/container_use_devices; "
        + engine(
            info={"SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]},
            answers={"json?all=1": [CONTAINER | {"State": "running"}], "json": CONTAINER},
        ),
    },
    "a Jetson, and a GPU that is held for a virtual machine": {
        "CUD010": f"{torch('2.9.1+cu126', '12.6')}; echo '# R36 (release), REVISION: 4.7, GCID: 1' >/etc/nv_tegra_release",
        "DRV001": f"mkdir /sys/bus/pci/drivers/vfio-pci; ln -sfn /sys/bus/pci/drivers/vfio-pci /sys/bus/pci/devices/{GPU}/driver;"
        " mount -t tmpfs tmpfs /sys/module; mount -t tmpfs tmpfs /proc/driver",
    },
    "compiled packages that do not load": {
        "": f"export HF_HUB_OFFLINE=1; {write('/usr/bin/python3.12', REAL_PYTHON)}; {write(f'{SITE}/torch/__init__.py', TORCH)}",
        "PYT018": install("bitsandbytes", "0.49.0", files=["bitsandbytes/libbitsandbytes_cuda130.so"])
        + f"; : >{SITE}/bitsandbytes/__init__.py; "
        + write(f"{SITE}/bitsandbytes/cextension.py", "lib = type('ErrorHandlerMockBNBNativeLibrary', (), {})()"),
        "PYT020": install("flash_attn", "2.8.3", files=["flash_attn/__init__.py", "flash_attn_2_cuda.py"])
        + "; "
        + write(f"{SITE}/flash_attn/__init__.py", "")
        + "; "
        + write(f"{SITE}/flash_attn_2_cuda.py", "raise ImportError('undefined symbol: _ZN3c104cuda9SetDeviceEi')"),
    },
    "libraries of another CUDA, and packages of the user's own folder": {
        "PYT005": "mkdir -p /opt/cuda; : >/opt/cuda/libcublas.so.12.1.3; ln -s libcublas.so.12.1.3 /opt/cuda/libcublas.so.12;"
        " export LD_LIBRARY_PATH=/opt/cuda",
        "PYT011": f"{install('nvidia_cudnn_cu13', '9.13.0.50')}; : >/opt/cuda/libcudnn.so.9.1.0;"
        " ln -s libcudnn.so.9.1.0 /opt/cuda/libcudnn.so.9",
        "PYT009": f"echo 'include-system-site-packages = true' >>{VARIABLES['VIRTUAL_ENV']}/pyvenv.cfg; "
        + install("transformers", "4.46.3", site="~/.local/lib/python3.12/site-packages")
        + "; "
        + install("transformers", "4.57.6", site="/usr/lib/python3/dist-packages"),
    },
}
"""What is broken together, by check: the shell commands that break it, under no code those that only prepare."""


WITHHELD = {"DRV013"}
"""Checks whose commands remove packages, which is not printed for a cause that is only likely."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine(tmp_path_factory.mktemp("fixes") / "machine") as state:
        yield state


def try_fixes(state, trial):
    """What fix_trial prints."""
    argument = json.dumps({"damage": list(trial.values()), "codes": list(trial)})
    variables = {**VARIABLES, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        on_machine(
            state,
            *(sys.executable, "-m", "tests.doctor.fix_trial", argument),
            noise="mount -t tmpfs tmpfs $root/run; for f in module bus; do"
            " mount -t tmpfs tmpfs $root/sys/$f; cp -a $state/sys/$f $root/sys; done",
        ),
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", TRIALS)
def test_what_findings_print_repairs_the_machine(machine, name):
    done = try_fixes(machine, TRIALS[name])
    codes = TRIALS[name].keys() - {""}
    assert codes <= set(done["before"]), done["before"]
    assert {code for code, commands in done["ran"].items() if not commands} == codes & WITHHELD, done
    assert done["failed"] == []
    assert codes & set(done["after"]) == codes & WITHHELD, done
    assert set(done["after"]) <= set(done["before"]), done


TRIED_ELSEWHERE = {"CON013": "tests/doctor/test_printed_fixes.py", "STO001": "tests/doctor/test_printed_fixes.py"}
NOT_HELD = {
    "CON001": "it is found in a container, and what it prints is typed on the host and creates another",
    "CUD007": "its command is a setting for the next build: what nvcc left as PTX before is not seen, so the note stays",
    "HUB009": "the clock is the kernel's, and setting it moves that of every process",
}
"""Checks whose commands a test machine cannot hold for a reason of their own."""
HELD_SIDES = ("host", "container")
HARDWARE = re.compile(
    r"reboot|poweroff|modprobe|nvidia-smi|firmware|dkms|nvidia-driver|ubuntu-drivers|wsl\.exe|grub|initramfs|nvidia-x?config"
)
"""What a test machine has none of: a driver that can be loaded, a GPU to reset, a machine to start again."""
SHOWING = re.compile(
    r"(ls|grep|type|getent|journalctl|dmesg|docker (logs|inspect|context ls|system df|run|start)|devkit|curl -sSI|hf|nvidia-ctk config$"
    r"|du|df|ps|cat|nvcc|getenforce|nvidia-container-cli|lsmod|findmnt|devcontainer|echo|ip|#|-|\w+\()"
)
"""Commands that only show something, start the work itself, or are lines for a file and a command line."""


def count() -> dict[str, set[str]]:
    """The checks that print commands on recorded machines: all, those whose commands a test machine can run, and the tried ones."""
    from tests.doctor.running import report_of
    from tests.hosts import MACHINES

    findings = [shown for name in MACHINES for shown in report_of(name).findings]
    tried = {code for trial in TRIALS.values() for code in trial if code} - WITHHELD | set(TRIED_ELSEWHERE)
    printed, held = set(tried), set(tried)
    for code, fix in ((shown.check.code, shown.finding.fix) for shown in findings):
        if fix.commands:
            printed.add(code)
            repairs = [command for command in fix.commands if not SHOWING.match(command.removeprefix("sudo "))]
            is_held = (
                code not in NOT_HELD
                and not code.startswith("GPU")
                and fix.where.value in HELD_SIDES
                and not any(map(HARDWARE.search, fix.commands))
            )
            held |= {code} if is_held and repairs else set()
    return {"tried": tried, "held": held, "printed": printed}


def main() -> None:
    """Print how many of the checks that print commands on recorded machines are tried."""
    codes = count()
    sys.stdout.write(
        f"tried {len(codes['tried'])} of {len(codes['held'])} holdable of {len(codes['printed'])} with commands\n"
        f"not tried of the holdable: {' '.join(sorted(codes['held'] - codes['tried'])) or 'none'}\n"
        + "".join(f"cannot be held: {code}, {why}\n" for code, why in NOT_HELD.items())
    )


if __name__ == "__main__":
    main()
