"""Every fix is tried: a machine is broken, what the finding prints is run as it stands, and the finding is gone.

`python -m tests.doctor.test_fixes_on_a_machine` prints how many of the checks with commands are tried.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.gpu_machine import SITE, VARIABLES, gpu_machine, on_machine

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("gcc") is None, reason="needs root on Linux, and gcc"
)

CONFIG = "/etc/nvidia-container-runtime/config.toml"
SPEC = "/etc/cdi/nvidia.json"
DAEMON = "/etc/docker/daemon.json"
BNB = f"{SITE}/bitsandbytes-0.49.0.dist-info {SITE}/bitsandbytes"

BROKEN = [
    ("CDI001", f"sed -i s/580.95.05/550.54.14/ {SPEC}; : >/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14", "stale"),
    ("CDI003", f"head -c 200 {SPEC} >/run/s; cat /run/s >{SPEC}", "a specification that is cut off"),
    ("CDI003", f"echo >{SPEC}", "an empty specification"),
    ("CDI004", f"sed -i s,/dev/nvidia-uvm,/dev/nvidia-caps/nvidia-cap9, {SPEC}", "a device that is not there"),
    (
        "CDI008",
        f'echo \'{{"cdi-spec-dirs": ["/opt/cdi"]}}\' >{DAEMON}; rm /usr/bin/nvidia-container-runtime-hook',
        "elsewhere",
    ),
    ("CDI009", f"cp {SPEC} /etc/cdi/nvidia2.json", "two files of one device"),
    (
        "CDI010",
        f'echo \'{{"features": {{"cdi": false}}}}\' >{DAEMON}; rm /usr/bin/nvidia-container-runtime-hook',
        "off",
    ),
    ("CTK002", f"rm /usr/bin/nvidia-container-runtime-hook {SPEC}; echo '{{}}' >{DAEMON}", "no way to a GPU"),
    (
        "CTK003",
        f"echo '{{}}' >{DAEMON}; service docker restart; KEEP-ENGINE; nvidia-ctk runtime configure --runtime=docker",
        "an engine that was not restarted",
    ),
    ("CTK005", "nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=true", "no-cgroups under root"),
    ("CTK007", "nvidia-ctk config --in-place --set nvidia-container-cli.root=/run/nvidia/driver", "a driver root"),
    ("CTK008", f"echo '[nvidia-container-cli]\nno-cgroups = \"true\"' >{CONFIG}", "a quoted boolean"),
    ("CTK008", f"echo '[nvidia-container-cli' >{CONFIG}", "no TOML"),
    ("CTK008", "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=lagacy", "a misspelled mode"),
    (
        "CTK009",
        "nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig.real",
        "Ubuntu's ldconfig",
    ),
    ("CTK010", "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=cdi", "mode cdi"),
    ("CTK010", "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=csv", "mode csv"),
    ("CTK014", f'echo \'{{"runtimes": {{"nvidia": {{"path": "runc"}}}}}}\' >{DAEMON}', "a runtime that is runc"),
    ("CTK014", f'echo \'{{"runtimes": {{"nvidia": {{"path": "/opt/gone"}}}}}}\' >{DAEMON}', "a program that is gone"),
    ("CTK015", "nvidia-ctk config --in-place --set nvidia-container-runtime.runtimes=gone", "a low-level runtime"),
    ("CTK015", "rm /usr/bin/nvidia-container-cli", "no nvidia-container-cli"),
    ("DRV005", "rm /dev/nvidia-uvm", "no node for CUDA"),
    ("DRV005", "rm /dev/nvidia0", "no node of the GPU"),
    ("DRV014", "rm /usr/lib/x86_64-linux-gnu/libcuda.so.*; ldconfig", "no libcuda"),
    (
        "DRV011",
        "mkdir -p /etc/apt/sources.list.d; u=https://nvidia.github.io/libnvidia-container/stable/deb/amd64;"
        ' for n in a nvidia-docker; do echo "deb [signed-by=/$n.gpg] $u /" >/etc/apt/sources.list.d/$n.list; done',
        "two keys",
    ),
    ("ENG001", "STOP-ENGINE", "an engine that does not run"),
    ("ENG005", "rm /usr/libexec/docker/cli-plugins/docker-compose", "no Compose"),
    ("ENG006", f"KEEP-ENGINE; rm {DAEMON}; mkdir {DAEMON}", "a folder"),
    ("ENG016", f'echo \'{{"exec-opts": ["native.cgroupdriver=systemd"]}}\' >{DAEMON}', "systemd's driver"),
    ("HUB001", "export HF_HUB_OFFLINE=1", "an offline hub"),
    ("HUB002", "export HF_ENDPOINT=hf-mirror.com", "an endpoint without scheme"),
    ("HUB003", "export HF_TOKEN=your_token_here", "a token that was not filled in"),
    ("HUB005", "export REQUESTS_CA_BUNDLE=/nowhere.pem", "certificates that are gone"),
    ("NET002", "export NCCL_SOCKET_IFNAME=ib9", "an interface that is gone"),
    ("PYT006", "export CUDA_VISIBLE_DEVICES=5", "a GPU number that is not there"),
    (
        "PYT016",
        f"mkdir -p {BNB}; : >{SITE}/bitsandbytes/libbitsandbytes_cuda130.so; export BNB_CUDA_VERSION=118",
        "CUDA 11.8",
    ),
    ("CUD005", "mkdir -p /opt/stubs; : >/opt/stubs/libcuda.so.1; export LD_LIBRARY_PATH=/opt/stubs", "a stub"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine(tmp_path_factory.mktemp("fixes") / "machine") as state:
        yield state


def try_fix(state, code, damage):
    """What fix_trial prints."""
    words = (sys.executable, "-m", "tests.doctor.fix_trial", code, damage)
    variables = {**VARIABLES, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        on_machine(state, *words, noise="mount -t tmpfs tmpfs $root/run"),
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.turns(4)
@pytest.mark.parametrize(("code", "damage"), [pytest.param(*row[:2], id=f"{row[0]} {row[2]}") for row in BROKEN])
def test_what_a_finding_prints_repairs_the_machine(machine, code, damage):
    done = try_fix(machine, code, damage)
    assert code in done["before"]
    assert done["ran"] != []
    assert code not in done["after"], done
    assert set(done["after"]) <= set(done["before"]), done


TRIED_ELSEWHERE = {
    "CON013": "tests/doctor/test_printed_fixes.py",
    "STO001": "tests/doctor/test_printed_fixes.py",
}


def main() -> None:
    """Print how many of the checks that print commands on recorded machines are tried."""
    from tests.doctor.running import build_full_report
    from tests.hosts import MACHINES, facts_of

    findings = [shown for name in MACHINES for shown in build_full_report(facts_of(name)).findings]
    printed = {shown.check.code: shown.finding.fix for shown in findings if shown.finding.fix.commands}
    tried = {row[0] for row in BROKEN} | set(TRIED_ELSEWHERE)
    held = {code for code, fix in printed.items() if fix.where.value in HELD_SIDES and not needs_hardware(code, fix)}
    all_codes = printed.keys() | tried
    counts = f"{len(tried)} tried; {len(held | tried)} a test machine can hold; {len(all_codes)} print commands"
    sys.stdout.write(f"{counts}\nnot tried of those: {' '.join(sorted(held - tried))}\n")


HELD_SIDES = ("host", "container")
HARDWARE = (
    "reboot",
    "poweroff",
    "modprobe nvidia",
    "modprobe -r",
    "nvidia-smi",
    "firmware",
    "dkms",
    "journalctl",
    "nvidia-driver-",
)
"""What a test machine has none of: a driver that can be loaded, a GPU to reset, a machine to start again."""


def needs_hardware(code, fix):
    return code.startswith(("GPU", "WSL")) or any(word in command for command in fix.commands for word in HARDWARE)


if __name__ == "__main__":
    main()
