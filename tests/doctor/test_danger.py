"""Commands that restart, remove or take over: where a finding may print them, and where it names who may."""

import re
from dataclasses import replace

import pytest

from devkit.doctor.danger import Harm, find_harm, withhold
from devkit.doctor.model import Confidence, Finding, Fix, Passed, Severity, Side, Skipped
from devkit.doctor.problems import show_commands
from devkit.doctor.signatures.catalog import PREFIXES
from devkit.facts.machine import Directory, Storage
from devkit.facts.values import NOT_READ, Unknown
from tests.doctor.machines import GIB, PCI, changed, gpu, healthy
from tests.doctor.running import build_full_report, find_only, report_of, run_check
from tests.hosts import MACHINES, facts_of

SLURM = {"system.managed_by": "Slurm job 4711", "system.is_in_job": True}
SHARE = Directory(
    "/shared/hf/hub", "hub cache", True, False, 4000, "nfs4", 500 * GIB, 9, False, is_read_only=True, is_in_home=False
)
HOME_CACHE = Directory(
    "/home/dev/.cache/huggingface/hub", "hub cache", True, False, 0, "ext4", GIB, 9, is_read_only=False, is_in_home=True
)

HARMS = [
    ("sudo reboot", Harm.RESTART),
    ("sudo poweroff", Harm.RESTART),
    ("sudo shutdown -r now", Harm.RESTART),
    ("systemctl reboot --firmware-setup", Harm.RESTART),
    ("sudo apt-get purge cuda 'cuda-drivers*'", Harm.REMOVAL),
    ("sudo apt-get remove -y docker-ce || sudo apt-get remove -y docker.io", Harm.REMOVAL),
    ("sudo snap remove --purge docker", Harm.REMOVAL),
    ("sudo pacman -Rns nvidia", Harm.REMOVAL),
    ("sudo rm -rf /usr/local/cuda*/compat && sudo ldconfig", Harm.REMOVAL),
    ('sudo chown -R "$(id -u):$(id -g)" /shared/hf/hub', Harm.TAKEOVER),
    ("sudo systemctl restart docker", Harm.INTERRUPTION),
    ("sudo nvidia-smi --gpu-reset -i 0", Harm.INTERRUPTION),
    ("sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm", Harm.INTERRUPTION),
    ("journalctl -k -b | grep NVRM", None),
    ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", None),
    ("wsl.exe --shutdown", None),
    ("pip cache purge", None),
    ("systemctl --user restart docker", None),
]


@pytest.mark.parametrize(("command", "harm"), HARMS, ids=[each[0] for each in HARMS])
def test_the_harm_of_a_command_shows_in_its_text(command, harm):
    assert find_harm(command) is harm


def finding(command, *, confidence=Confidence.CERTAIN, where=Side.HOST):
    fix = Fix("Repair it.", ("journalctl -k -b", command), where, root=True)
    return Finding(Severity.ERROR, "broken", fix, confidence=confidence)


UNPROVEN = {"confidence": Confidence.LIKELY}
CONTAINER = {"where": Side.CONTAINER}
IN_IMAGE = {"where": Side.IMAGE}
ALONE, SHARED = healthy(), changed(healthy(), SLURM)
POD = changed(healthy(), {"system.managed_by": "a Kubernetes pod"})
LXC = changed(healthy(), {"system.managed_by": "an LXC container"})
UNREAD = changed(healthy(), {"system.managed_by": NOT_READ})
OWN = changed(healthy(), {"storage": Storage(1000, (HOME_CACHE,))})
OF_OTHERS = changed(healthy(), {"storage": Storage(1000, (replace(HOME_CACHE, owner_uid=4000),))})
GROUPS = changed(healthy(), {"storage": Storage(1000, (SHARE,))})
TAKE = "sudo chown -R 1000:1000 {}"

MAY_BE_PRINTED = [
    # command, what the finding is, where it may be printed, where it may not
    ("sudo reboot", {}, [ALONE], [SHARED, POD, LXC, UNREAD]),
    ("sudo reboot", UNPROVEN, [], [ALONE, SHARED]),
    ("sudo poweroff", {}, [ALONE], [SHARED, POD, LXC, UNREAD]),
    ("systemctl reboot --firmware-setup", {}, [ALONE], [SHARED, POD, LXC]),
    ("sudo apt-get purge 'nvidia-*'", {}, [ALONE], [SHARED, POD, LXC]),
    ("sudo apt-get purge 'nvidia-*'", UNPROVEN, [], [ALONE]),
    ("apt-get purge -y 'cuda-compat-*'", IN_IMAGE, [ALONE, SHARED], []),
    ("sudo nvidia-smi --gpu-reset -i 0", UNPROVEN, [ALONE], [SHARED, POD]),
    ("sudo systemctl restart docker", {}, [ALONE], [SHARED, LXC]),
    (TAKE.format(HOME_CACHE.path), CONTAINER, [OWN], [GROUPS, OF_OTHERS]),
    (TAKE.format(SHARE.path), CONTAINER, [], [OWN, GROUPS, changed(GROUPS, SLURM)]),
    (TAKE.format("."), {"where": Side.PROJECT}, [ALONE, SHARED], []),
]


@pytest.mark.parametrize(("command", "made", "allowed", "forbidden"), MAY_BE_PRINTED)
def test_a_command_that_may_cost_others_is_printed_only_where_it_may(command, made, allowed, forbidden):
    found = finding(command, **made)
    for facts in allowed:
        assert withhold(found, facts) == found
    for facts in forbidden:
        fix = withhold(found, facts).fix
        assert fix.commands == ("journalctl -k -b",)
        assert not fix.root
        assert "administrator" in fix.summary or "prove" in fix.summary


def test_every_command_of_the_catalog_that_restarts_is_known_as_such():
    """A word for a restart that no pattern knows would be printed on a cluster."""
    from devkit.doctor.problems import list_problem_rows
    from devkit.doctor.signatures.catalog import load_check_rows

    commands = {
        command
        for prefix in PREFIXES
        for code in load_check_rows(prefix)
        for row in list_problem_rows(code).values()
        for fix in row.fixes
        for command in show_commands(fix)
    }
    restarting = {each for each in commands if re.search(r"reboot|poweroff|shutdown|purge|chown -R", each)}
    assert len(restarting) > 5
    assert {each for each in restarting if find_harm(each) is None} <= {"wsl.exe --shutdown"}


EIGHT = tuple(replace(PCI, address=f"0000:{number:02x}:00.0", is_excluded=False) for number in range(8))
OTHERS_NODES = tuple(f"/dev/nvidia{number}" for number in range(1, 8))
JOB = changed(
    healthy(),
    SLURM
    | {
        "driver.pci_gpus": EIGHT,
        "driver.device_nodes": (*healthy().driver.device_nodes, *OTHERS_NODES),
        "nvml.gpus": (gpu(name="NVIDIA H100 80GB HBM3", capability="9.0"),),
        "engine": Unknown("there is no docker command"),
        "trials": Unknown("no container engine responds"),
    },
)
LENT = changed(JOB, {"driver.withheld_nodes": OTHERS_NODES})
SWITCHED_OFF = changed(
    healthy(), {"driver.pci_gpus": (EIGHT[0], replace(EIGHT[1], is_excluded=True)), "driver.withheld_nodes": ()}
)


@pytest.mark.parametrize("facts", [LENT, SWITCHED_OFF], ids=["a job with one of eight GPUs", "a GPU switched off"])
def test_a_gpu_that_this_user_may_not_use_is_not_missing(facts):
    assert isinstance(run_check("GPU005", facts), Passed)


def test_a_job_without_a_gpu_is_told_to_ask_for_one():
    without = changed(LENT, {"driver.withheld_nodes": ("/dev/nvidia0", *OTHERS_NODES), "nvml.gpus": ()})
    finding = find_only("GPU005", without)
    assert finding.message.startswith("Slurm job 4711 has access to none of this machine's 8 GPUs")
    assert finding.fix.commands[0].startswith("srun --gres=gpu:1")
    closed = changed(LENT, {"driver.closed_nodes": ("/dev/nvidiactl: mode 0000, user 0, group 0",)})
    assert "did not request a GPU" in find_only("DRV006", closed).message


def test_a_gpu_that_is_missing_in_a_job_is_the_administrators():
    fix = find_only("GPU005", changed(LENT, {"driver.withheld_nodes": OTHERS_NODES[1:]})).fix
    assert "Slurm job 4711" in fix.summary
    assert "poweroff" not in "".join(fix.commands)


def test_a_read_only_share_of_models_is_left_to_its_owner():
    offline = replace(healthy().hub, is_offline=True)
    assert isinstance(run_check("STO001", changed(GROUPS, {"hub": offline})), Skipped)
    for share in (SHARE, replace(SHARE, is_read_only=False)):
        fix = find_only("STO001", changed(healthy(), {"storage": Storage(1000, (share,))})).fix
        assert "chown" not in "".join(fix.commands)
    assert "chown" in "".join(find_only("STO001", OWN).fix.commands)


def list_restarts(report):
    commands = (command for each in report.findings for command in each.finding.fix.commands)
    return [command for command in commands if find_harm(command) is Harm.RESTART]


def test_no_recorded_machine_that_others_share_is_told_to_restart():
    restarted = [name for name in MACHINES if list_restarts(report_of(name))]
    assert len(restarted) > 5
    for name in restarted:
        assert list_restarts(build_full_report(changed(facts_of(name), SLURM))) == [], name
