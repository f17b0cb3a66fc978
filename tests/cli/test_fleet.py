"""`devkit fleet doctor` over real sshd, one for each machine of a fleet."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked_commands import SHIM, fork_server, run_devkit
from tests.nvml_stub import build_stub, stub_environment
from tests.workload.finetune.zygote import free_port

SSHD = next((path for path in ("/usr/sbin/sshd", "/usr/bin/sshd") if Path(path).exists()), "")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not SSHD or os.geteuid() != 0, reason="needs sshd (openssh-server) and root"
)
FAULTS = {
    "gpu03": "nvmlInit_v2=9",
    "gpu11": "nvmlDeviceGetName@3=15",
    "gpu17": "nvmlInit_v2=9",
}
HANGS = "gpu08"
NAMES = [f"gpu{number:02d}" for number in range(1, 21)]
SSHD_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/{name}.pid
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv {variables}
"""
SSH_CONFIG = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
"""


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """The ssh command that reaches the machines, and the command of devkit on them. One is stopped and says nothing."""
    folder = tmp_path_factory.mktemp("fleet")
    stub = build_stub(folder / "nvml")
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = [
        f"IdentityFile {folder}/user_key\nUser root\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR"
    ]
    servers = []
    with fork_server(folder, "devkit") as address:
        shim = folder / "devkit"
        shim.write_text(SHIM.format(python=sys.executable, address=address, name="devkit"))
        shim.chmod(0o755)
        for name in NAMES:
            port = free_port()
            variables = stub_environment(stub, gpus=8, fail=FAULTS.get(name, ""))
            settings = {"port": port, "folder": folder, "name": name}
            quoted = " ".join(f'"{key}={value}"' for key, value in variables.items())
            own = folder / f"{name}.conf"
            own.write_text(SSHD_CONFIG.format(**settings, variables=quoted))
            servers.append(subprocess.Popen([SSHD, "-D", "-f", own], stderr=subprocess.DEVNULL))
            config.append(SSH_CONFIG.format(**settings))
        (folder / "config").write_text("\n".join(config))
        deadline_s = time.monotonic() + 90
        while not all((folder / f"{name}.pid").exists() for name in NAMES):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        servers[NAMES.index(HANGS)].send_signal(signal.SIGSTOP)
        yield f"ssh -F {folder}/config", str(shim)
        for server in servers:
            server.kill()
            server.wait()


def fleet(ssh, *words, **given):
    connect, command = ssh
    return run_devkit("fleet", "doctor", "--ssh", connect, "--command", command, "--parallel", "4", *words, **given)


@pytest.mark.full
def test_three_faults_and_a_hang_among_twenty(ssh, tmp_path):
    began = time.monotonic()
    done = fleet(ssh, "--timeout", "60", "--hosts-file", "-", "--save", tmp_path, text="\n".join(NAMES))
    assert time.monotonic() - began < 150
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stdout.split())
    assert words.startswith("20 hosts: ") and ", 1 no answer, " in words
    assert "DRV001 on gpu03 and gpu17: " in words
    assert "GPU002 on gpu11: " in words
    assert f"no answer from {HANGS}: " in words
    assert not (tmp_path / f"{HANGS}.json").exists()
    (tmp_path / "gpu99.json").write_text("{}")
    again = run_devkit("fleet", "doctor", "--reports", tmp_path)
    assert again.returncode == 1
    # The machine that hangs has left no report.
    assert again.stdout.startswith(done.stdout.partition("\n\nno answer")[0])
    assert "no answer from gpu99: the file holds no report of devkit doctor" in " ".join(again.stdout.split())
    (tmp_path / "gpu99.json").unlink()
    compared = run_devkit("compare", tmp_path, "--json")
    outliers = {name for each in json.loads(compared.stdout)["groups"][0]["odd"] for name in each["nodes"]}
    assert outliers == set(FAULTS)


@pytest.mark.full
def test_machines_without_devkit_or_with_something_else_are_named(ssh):
    connect, _ = ssh
    for command, says in (("nosuchcommand", "devkit is not installed there"), ("echo '{}' #", "without a report")):
        done = run_devkit("fleet", "doctor", "gpu01", "--ssh", connect, "--command", command)
        assert done.returncode == 1
        assert says in " ".join(done.stdout.split()), done.stdout


@pytest.mark.full
def test_a_host_that_looks_like_an_option_is_none(ssh, tmp_path):
    done = fleet(ssh, "--json", "--", f"-oProxyCommand=touch {tmp_path}/made")
    assert json.loads(done.stdout)["hosts"][0]["verdict"] == "no-answer"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("problems: DRV001 no driver", 1),
        ("healthy: fine", 0),
        ("warnings: STO001 slow", 0),
        ("incomplete: lost", 2),
        ("", 2),
    ],
)
def test_node_problem_detector_gets_the_line_and_its_own_exit_codes(tmp_path, line, code):
    done = run_devkit("fleet", "files", tmp_path, "--command", f"echo '{line}'; :")
    assert done.returncode == 0, done.stderr
    rule = json.loads((tmp_path / "devkit-npd.json").read_text())["rules"][0]
    script = tmp_path / Path(rule["path"]).name
    ended = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (code, line)


def test_files_are_not_replaced_unasked(tmp_path):
    (tmp_path / "devkit-npd.sh").write_text("mine")
    assert run_devkit("fleet", "files", tmp_path).returncode == 2
    assert [each.name for each in tmp_path.iterdir()] == ["devkit-npd.sh"]
    assert run_devkit("fleet", "files", tmp_path, "--force").returncode == 0
