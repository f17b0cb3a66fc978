"""Checks of limits: memory of the machine, of containers and of GPUs; NCCL's settings and the paths between GPUs."""

import pytest

from devkit.doctor.model import Severity
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import ARCH, FEDORA, GIB, NIXOS, VOID, changed, gpu, healthy, inside, limits, without_gpu
from tests.doctor.running import build_full_report

TWO = (gpu(0, "NVIDIA RTX A6000", "8.6"), gpu(1, "NVIDIA RTX A6000", "8.6"))
TWO_GEFORCE = (gpu(0), gpu(1))
WHO_KNOWS = Unknown("not read")


def limited(facts, **changes):
    return changed(facts, {f"limits.{name}": value for name, value in changes.items()})


def locked(limit, infiniband, facts=None):
    return limited(facts or inside(), locked_memory_bytes=limit, has_infiniband=infiniband)


def killed(count, facts=None):
    return limited(facts or inside(), out_of_memory_kills=count)


def free(*sizes):
    gpus = tuple(gpu(number, free_bytes=size) for number, size in enumerate(sizes))
    return changed(healthy(), {"nvml.gpus": gpus})


def behind_iommu(gpus=TWO, domains=("DMA-FQ", "DMA-FQ"), nccl=(), **changes):
    changes = {path.replace("__", "."): value for path, value in changes.items()}
    return changed(healthy(), {"nvml.gpus": gpus, "limits.iommu_domains": domains, "limits.nccl": nccl} | changes)


def told(*interface):
    return limited(healthy(), nccl=tuple(f"NCCL_SOCKET_IFNAME={name}" for name in interface))


def nodes(*nccl, interfaces=("eth0",)):
    return limited(inside(), nccl=nccl, interfaces=interfaces)


ALONE = changed(without_gpu(), {"limits": limits(has_infiniband=True, nccl=("NNODES=2", "NCCL_SOCKET_IFNAME=x"))})

CASES = [
    ("MEM001", locked(8 << 20, True), "warning: where: project", "little, with InfiniBand"),
    ("MEM001", locked(8 << 20, True, healthy()), "warning: where: host", "little on a host"),
    ("MEM001", locked(None, True), "passed", "unlimited"),
    ("MEM001", locked(8 << 20, False), "skipped", "little, without InfiniBand"),
    ("MEM001", locked(WHO_KNOWS, True), "skipped", "limit unknown"),
    ("MEM001", locked(8 << 20, WHO_KNOWS), "skipped", "InfiniBand unknown"),
    ("MEM002", killed(0), "passed", "nothing was killed"),
    ("MEM002", killed(1), "warning: the machine ran out of memory", "one was killed, and no limit is set"),
    ("MEM002", killed(WHO_KNOWS), "skipped", "kills that were not counted"),
    ("MEM002", killed(3, healthy()), "skipped", "what was killed on a host is not this project's"),
    ("MEM003", limited(inside(), group_memory_bytes=8 * GIB - 1), "warning", "one byte short"),
    ("MEM003", limited(inside(), group_memory_bytes=8 * GIB), "passed", "exactly enough"),
    ("MEM003", limited(inside(), group_memory_bytes=None), "passed", "no limit"),
    ("MEM003", limited(inside(), group_memory_bytes=WHO_KNOWS), "skipped", "a limit that was not read"),
    ("MEM004", free(4 * GIB), "passed", "exactly enough"),
    ("MEM004", free(4 * GIB - 1), "warning", "one byte short"),
    ("MEM004", free(GIB, WHO_KNOWS), "skipped", "one of two unknown"),
    ("NET001", behind_iommu(), "warning: sudo update-grub", "two that can transfer directly, on Ubuntu"),
    ("NET001", behind_iommu(TWO_GEFORCE), "note", "two GeForce"),
    ("NET001", behind_iommu(domains=("identity", "identity")), "passed", "passed through"),
    ("NET001", behind_iommu(domains=("identity", "DMA")), "passed", "one translated has no partner"),
    ("NET001", behind_iommu(domains=()), "passed", "no IOMMU"),
    ("NET001", behind_iommu(TWO[:1]), "skipped", "one GPU visible"),
    ("NET001", behind_iommu(nccl=("NCCL_P2P_DISABLE=1",)), "passed", "direct transfers switched off"),
    ("NET001", behind_iommu(domains=WHO_KNOWS), "skipped", "who knows"),
    ("NET001", behind_iommu(driver__nvswitch_present=True), "skipped", "an NVSwitch does not use the bus"),
    ("NET001", behind_iommu(system__distribution=FEDORA), "warning: sudo grubby --update-kernel=ALL", "on Fedora"),
    ("NET001", behind_iommu(system__distribution=ARCH), "warning: sudo grub-mkconfig -o /boot", "on Arch"),
    ("NET001", behind_iommu(system__distribution=NIXOS), "warning: sudo nixos-rebuild switch", "on NixOS"),
    ("NET001", behind_iommu(system__distribution=VOID), "warning: export NCCL_P2P_DISABLE=1", "an unknown boot loader"),
    ("NET002", told("eno1"), "passed", "the whole name"),
    ("NET002", told("en"), "passed", "a prefix"),
    ("NET002", told("=eno1"), "passed", "exactly"),
    ("NET002", told("=en"), "error", "a prefix where the whole name is asked for"),
    ("NET002", told("eth0,eno"), "passed", "one of several"),
    ("NET002", told("ens1f0"), "error: ens1f0", "another machine's"),
    ("NET002", told("^docker0"), "skipped", "excludes only"),
    ("NET002", told("lo"), "passed", "the loopback"),
    ("NET002", told(), "skipped", "NCCL left to itself"),
    ("NET002", limited(healthy(), nccl=WHO_KNOWS), "skipped", "settings that were not read"),
    ("NET003", nodes("NNODES=2"), "warning", "a bridge of its own"),
    ("NET003", nodes("WORLD_SIZE=16", "LOCAL_WORLD_SIZE=8", interfaces=("eth0", "ib0")), "warning", "several cards"),
    ("NET003", nodes("WORLD_SIZE=8", "LOCAL_WORLD_SIZE=8"), "skipped", "one node by its size"),
    ("NET003", nodes("NNODES=1"), "skipped", "one node"),
    ("NET003", nodes("NNODES=x"), "skipped", "no number"),
    ("NET003", nodes(interfaces=("eth0", "docker0")), "skipped", "nothing speaks of nodes"),
    ("NET003", nodes("NNODES=2", "NCCL_SOCKET_IFNAME=eth0"), "passed", "its interface named"),
    ("NET003", nodes("NNODES=2", interfaces=("ib0",)), "passed", "the host's one card"),
    *((code, ALONE, "skipped", "no GPU") for code in ("MEM001", "MEM003", "MEM004", "NET001", "NET002", "NET003")),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_limit(code):
    assert list_wrong(code, CASES) == []


def test_a_small_limit_explains_what_was_killed():
    changes = {"limits.group_memory_bytes": 2 * GIB, "limits.out_of_memory_kills": 2}
    assert build_full_report(changed(inside(), changes)).root_causes == ("MEM003",)


def test_limits_that_were_not_read_accuse_nobody():
    report = build_full_report(changed(inside(), {"limits": Unknown("no /proc")}))
    assert Severity.ERROR not in {shown.finding.severity for shown in report.findings}
