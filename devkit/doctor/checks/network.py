"""Checks of the paths between GPUs and between nodes, as NCCL will find them."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cuda import CONSUMER_BRANDS
from devkit.doctor.fixes import list_commands
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import is_in_container, require, require_nvml, require_visible_gpu
from devkit.doctor.problems import Problem, problem
from devkit.facts.model import Facts, Limits
from devkit.facts.values import Unknown
from devkit.text import join_words

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html"

_NCCL_VARIABLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def _find_setting(limits: Limits, name: str) -> str | None:
    """What an NCCL_* variable or its like says; None when it is not set."""
    settings = dict(entry.partition("=")[::2] for entry in require(limits.nccl))
    return settings.get(name)


@check("NET001")
def gpus_reach_each_other(facts: Facts) -> Iterator[Finding]:
    answer = require_nvml(facts)
    require_visible_gpu(facts)
    if len(answer.gpus) < 2:
        raise NotApplicable("one GPU has no other to reach")
    if not isinstance(facts.driver, Unknown) and facts.driver.nvswitch_present is True:
        raise NotApplicable("the GPUs are joined by an NVSwitch")
    limits = require(facts.limits)
    translated = [kind for kind in require(limits.iommu_domains) if kind.startswith("DMA")]
    if len(translated) < 2 or _find_setting(limits, "NCCL_P2P_DISABLE") == "1":
        return
    # The driver offers direct transfers on few GeForce GPUs: for them it is only good to know.
    is_direct = not any(brand in gpu.name.lower() for gpu in facts.gpus for brand in CONSUMER_BRANDS)
    yield Finding(
        Severity.WARNING if is_direct else Severity.NOTE,
        "the IOMMU translates what the GPUs send each other: NCCL may be slow or hang in its first all_reduce",
        Fix(
            "Try a run with NCCL_P2P_DISABLE=1. If that cures it, let the IOMMU pass traffic through, or switch ACS off"
            " in the firmware.",
            ("export NCCL_P2P_DISABLE=1", *list_commands(facts, "add_kernel_argument", argument="iommu=pt")),
            where=Side.HOST,
            root=True,
            restart=Restart.HOST,
            docs=_NCCL_GUIDE,
        ),
        evidence=tuple(f"iommu_group/type: {kind}" for kind in translated[:4]),
        confidence=Confidence.POSSIBLE,
    )


@check("NET002")
def nccl_interface_exists(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    limits = require(facts.limits)
    wanted = _find_setting(limits, "NCCL_SOCKET_IFNAME")
    if not wanted or wanted.startswith("^"):
        raise NotApplicable("NCCL_SOCKET_IFNAME names no interface")
    interfaces = ("lo", *require(limits.interfaces))
    names = [name.strip() for name in wanted.removeprefix("=").split(",") if name.strip()]
    is_exact = wanted.startswith("=")
    if any(one == name or (not is_exact and one.startswith(name)) for one in interfaces for name in names):
        return
    yield Finding(
        Severity.ERROR,
        f"NCCL_SOCKET_IFNAME={wanted}, but there is no such interface here: NCCL finds no way to other processes",
        Fix(
            "Name an interface of this side, or leave the variable unset.",
            (f"export NCCL_SOCKET_IFNAME={quote(interfaces[-1])}",),
            where=Side.CONTAINER if is_in_container(facts) else Side.HOST,
            docs=_NCCL_VARIABLES,
        ),
        evidence=(f"NCCL_SOCKET_IFNAME={wanted}", f"/sys/class/net: {join_words(interfaces)}"),
    )


@check("NET003")
def nodes_reach_each_other(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    limits = require(facts.limits)
    signs = _find_multi_node_signs(limits)
    if not signs:
        raise NotApplicable("nothing speaks of a run over several nodes")
    if _find_setting(limits, "NCCL_SOCKET_IFNAME"):
        return
    interfaces = require(limits.interfaces)
    is_bridged = is_in_container(facts) and interfaces == ("eth0",)
    if len(interfaces) > 1 or is_bridged:
        yield _unreachable_finding(facts, limits, signs, is_bridged=is_bridged)


def _find_multi_node_signs(limits: Limits) -> tuple[str, ...]:
    """What the launchers' variables say of several nodes."""
    counts = {name: _find_setting(limits, name) or "" for name in ("NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")}
    signs = [f"{name}={value}" for name, value in counts.items() if value.isdigit() and int(value) > 1]
    world, local = _find_setting(limits, "WORLD_SIZE") or "", _find_setting(limits, "LOCAL_WORLD_SIZE") or ""
    if world.isdigit() and local.isdigit() and int(world) > int(local):
        signs.append(f"WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local}")
    return tuple(signs)


def _unreachable_finding(facts: Facts, limits: Limits, signs: tuple[str, ...], *, is_bridged: bool) -> Finding:
    interfaces = require(limits.interfaces)
    default = limits.default_interface if isinstance(limits.default_interface, str) else ""
    return Finding(
        Severity.WARNING,
        "this container has a network of its own, whose address other nodes cannot reach"
        if is_bridged
        else f"NCCL will choose among {join_words(interfaces)} by itself, and may offer other nodes the wrong address",
        Fix(
            "Share the host's network with the container (network_mode: host), and name the interface that reaches the"
            " other nodes."
            if is_in_container(facts)
            else "Name the interface that reaches the other nodes.",
            (
                *(("--network=host",) if is_in_container(facts) else ()),
                f"export NCCL_SOCKET_IFNAME={quote(default or interfaces[0])}",
            ),
            where=Side.PROJECT if is_in_container(facts) else Side.HOST,
            docs=_NCCL_VARIABLES,
        ),
        evidence=(*signs, f"/sys/class/net: {join_words(interfaces)}", "NCCL_SOCKET_IFNAME is not set"),
        confidence=Confidence.LIKELY if is_bridged else Confidence.POSSIBLE,
    )


@check("NET004")
def nccl_may_use_infiniband(facts: Facts) -> Iterator[Problem]:
    require_visible_gpu(facts)
    limits = require(facts.limits)
    if not require(limits.has_infiniband):
        raise NotApplicable("this machine has no InfiniBand")
    if _find_setting(limits, "NCCL_IB_DISABLE") == "1":
        yield problem("turned-off", evidence=("NCCL_IB_DISABLE=1", "/sys/class/infiniband: not empty"))
