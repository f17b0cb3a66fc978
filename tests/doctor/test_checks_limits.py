import pytest

from devkit.doctor.model import Found, Passed, Severity, Side, Skipped
from devkit.facts.values import Unknown
from tests.doctor.machines import ARCH, FEDORA, GIB, NIXOS, VOID, changed, gpu, healthy, inside, limits, without_gpu
from tests.doctor.running import build_full_report, find_codes, find_only, run_check

TWO = (gpu(0, "NVIDIA RTX A6000", "8.6"), gpu(1, "NVIDIA RTX A6000", "8.6"))
TWO_GEFORCE = (gpu(0), gpu(1))
TRANSLATED = ("DMA-FQ", "DMA-FQ")


def verdict_of(code, facts, **changes):
    return run_check(code, changed(facts, {f"limits.{name}": value for name, value in changes.items()}))


@pytest.mark.parametrize(
    ("locked", "infiniband", "verdict"),
    [
        pytest.param(8 << 20, True, Found, id="little, with InfiniBand"),
        pytest.param(None, True, Passed, id="unlimited"),
        pytest.param(8 << 20, False, Skipped, id="little, without InfiniBand"),
        pytest.param(Unknown("not said"), True, Skipped, id="limit unknown"),
        pytest.param(8 << 20, Unknown("not read"), Skipped, id="InfiniBand unknown"),
    ],
)
def test_locked_memory(locked, infiniband, verdict):
    changes = {"locked_memory_bytes": locked, "has_infiniband": infiniband}
    assert isinstance(verdict_of("MEM001", inside(), **changes), verdict)


def test_locked_memory_is_lifted_on_the_right_side():
    changes = {"limits": limits(has_infiniband=True)}
    assert find_only("MEM001", changed(inside(), changes)).fix.where is Side.PROJECT
    assert find_only("MEM001", changed(healthy(), changes)).fix.where is Side.HOST


@pytest.mark.parametrize(
    ("kills", "verdict"),
    [
        pytest.param(0, Passed, id="nobody"),
        pytest.param(1, Found, id="one"),
        pytest.param(Unknown("no memory.events"), Skipped, id="who knows"),
    ],
)
def test_what_the_kernel_killed(kills, verdict):
    assert isinstance(verdict_of("MEM002", inside(), out_of_memory_kills=kills), verdict)


def test_what_was_killed_on_a_host_is_not_this_projects():
    assert isinstance(verdict_of("MEM002", healthy(), out_of_memory_kills=3), Skipped)


def test_without_a_limit_the_machine_ran_out_of_memory():
    assert "the machine's memory" in find_only("MEM002", changed(inside(), {"limits.out_of_memory_kills": 2})).message


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        pytest.param(8 * GIB - 1, Found, id="one byte short"),
        pytest.param(8 * GIB, Passed, id="exactly enough"),
        pytest.param(None, Passed, id="no limit"),
        pytest.param(Unknown("no cgroup"), Skipped, id="who knows"),
    ],
)
def test_the_containers_memory(limit, verdict):
    assert isinstance(verdict_of("MEM003", inside(), group_memory_bytes=limit), verdict)


def test_a_small_limit_explains_what_was_killed():
    changes = {"limits.group_memory_bytes": 2 * GIB, "limits.out_of_memory_kills": 2}
    assert build_full_report(changed(inside(), changes)).root_causes == ("MEM003",)


@pytest.mark.parametrize(
    ("free", "verdict"),
    [
        pytest.param((4 * GIB,), Passed, id="exactly enough"),
        pytest.param((4 * GIB - 1,), Found, id="one byte short"),
        pytest.param((GIB, 20 * GIB), Passed, id="one of two is free"),
        pytest.param((GIB, Unknown("not said")), Skipped, id="one of two unknown"),
    ],
)
def test_free_gpu_memory(free, verdict):
    gpus = tuple(gpu(number, free_bytes=size) for number, size in enumerate(free))
    assert isinstance(run_check("MEM004", changed(healthy(), {"nvml.gpus": gpus})), verdict)


@pytest.mark.parametrize(
    ("gpus", "domains", "nccl", "severity"),
    [
        pytest.param(TWO, TRANSLATED, (), "warning", id="two that can transfer directly"),
        pytest.param(TWO_GEFORCE, TRANSLATED, (), "note", id="two GeForce"),
        pytest.param(TWO, ("identity", "identity"), (), None, id="passed through"),
        pytest.param(TWO, ("identity", "DMA"), (), None, id="one translated has no partner"),
        pytest.param(TWO, (), (), None, id="no IOMMU"),
        pytest.param(TWO[:1], TRANSLATED, (), None, id="one GPU visible"),
        pytest.param(TWO, TRANSLATED, ("NCCL_P2P_DISABLE=1",), None, id="direct transfers switched off"),
        pytest.param(TWO, Unknown("not read"), (), None, id="who knows"),
    ],
)
def test_gpus_behind_an_iommu(gpus, domains, nccl, severity):
    changes = {"nvml.gpus": gpus, "limits.iommu_domains": domains, "limits.nccl": nccl}
    verdict = run_check("NET001", changed(healthy(), changes))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_gpus_on_an_nvswitch_do_not_use_the_bus():
    changes = {"nvml.gpus": TWO, "limits.iommu_domains": TRANSLATED, "driver.nvswitch_present": True}
    assert isinstance(run_check("NET001", changed(healthy(), changes)), Skipped)


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        pytest.param(healthy().system.distribution, "sudo update-grub", id="Ubuntu"),
        pytest.param(FEDORA, "sudo grubby --update-kernel=ALL --args=iommu=pt", id="Fedora"),
        pytest.param(ARCH, "sudo grub-mkconfig -o /boot/grub/grub.cfg", id="Arch"),
        pytest.param(NIXOS, "sudo nixos-rebuild switch", id="NixOS"),
        pytest.param(VOID, "export NCCL_P2P_DISABLE=1", id="a boot loader that is not known"),
    ],
)
def test_the_kernels_argument_is_given_as_the_distribution_does(distribution, command):
    changes = {"nvml.gpus": TWO, "limits.iommu_domains": TRANSLATED, "system.distribution": distribution}
    assert find_only("NET001", changed(healthy(), changes)).fix.commands[-1] == command


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        pytest.param("eno1", Passed, id="the whole name"),
        pytest.param("en", Passed, id="a prefix"),
        pytest.param("=eno1", Passed, id="exactly"),
        pytest.param("=en", Found, id="a prefix where the whole name is asked for"),
        pytest.param("eth0,eno", Passed, id="one of several"),
        pytest.param("ens1f0", Found, id="another machine's"),
        pytest.param("^docker0", Skipped, id="excludes only"),
        pytest.param("lo", Passed, id="the loopback"),
    ],
)
def test_the_interface_that_nccl_was_told(wanted, verdict):
    assert isinstance(verdict_of("NET002", healthy(), nccl=(f"NCCL_SOCKET_IFNAME={wanted}",)), verdict)


@pytest.mark.parametrize("nccl", [(), Unknown("not read")], ids=["unset", "who knows"])
def test_nccl_left_to_itself(nccl):
    assert isinstance(verdict_of("NET002", healthy(), nccl=nccl), Skipped)


@pytest.mark.parametrize(
    ("nccl", "interfaces", "verdict"),
    [
        pytest.param(("NNODES=2",), ("eth0",), Found, id="a bridge of its own"),
        pytest.param(("WORLD_SIZE=16", "LOCAL_WORLD_SIZE=8"), ("eth0", "ib0"), Found, id="several to choose from"),
        pytest.param(("WORLD_SIZE=8", "LOCAL_WORLD_SIZE=8"), ("eth0",), Skipped, id="one node by its size"),
        pytest.param(("NNODES=1",), ("eth0",), Skipped, id="one node"),
        pytest.param(("NNODES=x",), ("eth0",), Skipped, id="no number"),
        pytest.param((), ("eth0", "docker0"), Skipped, id="nothing speaks of nodes"),
        pytest.param(("NNODES=2", "NCCL_SOCKET_IFNAME=eth0"), ("eth0",), Passed, id="its interface named"),
        pytest.param(("NNODES=2",), ("ib0",), Passed, id="the host's one card"),
    ],
)
def test_a_run_over_several_nodes(nccl, interfaces, verdict):
    assert isinstance(verdict_of("NET003", inside(), nccl=nccl, interfaces=interfaces), verdict)


def test_several_cards_on_a_host_are_fine_for_one_node():
    facts = changed(healthy(), {"limits.interfaces": ("eno1", "docker0", "wlan0")})
    assert find_codes(facts) == []


@pytest.mark.parametrize("code", ["MEM001", "MEM003", "MEM004", "NET001", "NET002", "NET003"])
def test_without_a_gpu_nothing_is_said(code):
    facts = changed(without_gpu(), {"limits": limits(has_infiniband=True, nccl=("NNODES=2", "NCCL_SOCKET_IFNAME=x"))})
    assert isinstance(run_check(code, facts), Skipped)


def test_limits_that_were_not_read_accuse_nobody():
    report = build_full_report(changed(inside(), {"limits": Unknown("no /proc")}))
    assert Severity.ERROR not in {shown.finding.severity for shown in report.findings}
