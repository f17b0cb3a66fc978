"""Checks of the paths between GPUs and between nodes, as NCCL will find them."""

from collections.abc import Iterator

from devkit.doctor.checks.cuda import CONSUMER_BRANDS
from devkit.doctor.model import NotApplicable, Severity, check
from devkit.doctor.preconditions import is_in_container, require, require_nvml, require_visible_gpu, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.facts.machine import Limits
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import join_words


def _find_setting(limits: Limits, name: str) -> str | None:
    """What an NCCL_* variable or its like says; None when it is not set."""
    settings = dict(entry.partition("=")[::2] for entry in require(limits.nccl))
    return settings.get(name)


@check("NET001")
def gpus_reach_each_other(facts: Facts) -> Iterator[Problem]:
    answer = require_nvml(facts)
    require_visible_gpu(facts)
    skip_if(len(answer.gpus) < 2, "a single GPU has no peer")
    if not isinstance(facts.driver, Unknown) and facts.driver.nvswitch_present is True:
        raise NotApplicable("an NVSwitch connects the GPUs")
    limits = require(facts.limits)
    translated = [kind for kind in require(limits.iommu_domains) if kind.startswith("DMA")]
    if len(translated) < 2 or _find_setting(limits, "NCCL_P2P_DISABLE") == "1":
        return
    # The driver offers direct transfers on few GeForce GPUs: for them it is only good to know.
    is_direct = not any(brand in gpu.name.lower() for gpu in facts.gpus for brand in CONSUMER_BRANDS)
    yield problem(
        "translated",
        severity=None if is_direct else Severity.NOTE,
        argument="iommu=pt",
        evidence=[f"iommu_group/type: {kind}" for kind in translated[:4]],
    )


@check("NET002", require_visible_gpu)
def nccl_interface_exists(facts: Facts) -> Iterator[Problem]:
    limits = require(facts.limits)
    wanted = _find_setting(limits, "NCCL_SOCKET_IFNAME")
    if not wanted or wanted.startswith("^"):
        raise NotApplicable("NCCL_SOCKET_IFNAME does not name an interface")
    interfaces = ("lo", *require(limits.interfaces))
    names = [name.strip() for name in wanted.removeprefix("=").split(",") if name.strip()]
    is_exact = wanted.startswith("=")
    if not any(one == name or (not is_exact and one.startswith(name)) for one in interfaces for name in names):
        evidence = (f"NCCL_SOCKET_IFNAME={wanted}", f"/sys/class/net: {join_words(interfaces)}")
        yield problem("no-such-interface", wanted=wanted, interface=interfaces[-1], evidence=evidence)


@check("NET003", require_visible_gpu)
def nodes_reach_each_other(facts: Facts) -> Iterator[Problem]:
    limits = require(facts.limits)
    # What the launchers' variables say of several nodes.
    counts = {name: _find_setting(limits, name) or "" for name in ("NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")}
    signs = [f"{name}={value}" for name, value in counts.items() if value.isdigit() and int(value) > 1]
    world, local = _find_setting(limits, "WORLD_SIZE") or "", _find_setting(limits, "LOCAL_WORLD_SIZE") or ""
    if world.isdigit() and local.isdigit() and int(world) > int(local):
        signs.append(f"WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local}")
    skip_if(not signs, "this does not look like a run on several nodes")
    if _find_setting(limits, "NCCL_SOCKET_IFNAME"):
        return
    interfaces = require(limits.interfaces)
    is_bridged = is_in_container(facts) and interfaces == ("eth0",)
    if len(interfaces) > 1 or is_bridged:
        default = limits.default_interface if isinstance(limits.default_interface, str) else ""
        yield problem(
            "own-network" if is_bridged else "no-interface-named",
            interfaces=join_words(interfaces),
            interface=default or interfaces[0],
            evidence=(*signs, f"/sys/class/net: {join_words(interfaces)}", "NCCL_SOCKET_IFNAME is not set"),
        )


@check("NET004", require_visible_gpu)
def nccl_may_use_infiniband(facts: Facts) -> Iterator[Problem]:
    limits = require(facts.limits)
    skip_if(not require(limits.has_infiniband), "this machine has no InfiniBand")
    if _find_setting(limits, "NCCL_IB_DISABLE") == "1":
        yield problem("turned-off", evidence=("NCCL_IB_DISABLE=1", "/sys/class/infiniband: not empty"))
