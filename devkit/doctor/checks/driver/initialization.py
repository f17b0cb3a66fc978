"""Checks of what GPUs need from a loaded driver: device nodes, GSP firmware, and CUDA after suspend or without NVSwitch."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES, NEEDS_DRIVER_CODES, NVML_CODES
from devkit.doctor.checks.gpu.fabric import has_no_nvswitch
from devkit.doctor.danger import find_manager, is_in_job
from devkit.doctor.error_codes import CUDA_SYSTEM_NOT_READY
from devkit.doctor.gpus import MAX_LOG_LINES, find_driver_lines, has_fewer_gpus_than_bus, has_missing_gpus
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    find_cu_init_code,
    is_in_container,
    require,
    require_driver,
    require_host,
    require_loaded_driver,
    require_some,
)
from devkit.doctor.problems import Problem, problem
from devkit.facts.gpu import Driver, KernelLog
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import join_words

_CUDA_ERROR_UNKNOWN = 999
_CUDA_ERROR_NOT_INITIALIZED = 3
_NOT_PRESERVED = "PreserveVideoMemoryAllocations: 0"
FIRMWARE_MISSING_LINES = ("No firmware image found", "failed with error -2")
FIRMWARE_FAILURE_LINES = ("GSP firmware RM", "GFW_BOOT", "WPR2 already up")


def list_missing_nodes(driver: Driver) -> tuple[str, ...]:
    """List the nodes of GPUs that the driver has taken, and that are not under /dev; nodes are numbered from 0."""
    if isinstance(driver.pci_gpus, Unknown):
        return ()
    taken = sum(gpu.kernel_driver == "nvidia" for gpu in driver.pci_gpus)
    there = {node for node in driver.device_nodes if node.removeprefix("/dev/nvidia").isdigit()}
    # Fewer GPUs than nodes is a node left behind; a number that is skipped is another GPU's.
    if len(there) >= taken:
        return ()
    return tuple(f"/dev/nvidia{number}" for number in range(taken) if f"/dev/nvidia{number}" not in there)


@check("DRV005", require_loaded_driver)
def uvm_node_exists(facts: Facts) -> Iterator[Problem]:
    nodes = require_driver(facts).device_nodes
    there = ", ".join(node.removeprefix("/dev/") for node in nodes)
    if missing := () if is_in_container(facts) else list_missing_nodes(require_driver(facts)):
        yield problem(
            "node-missing" if len(missing) == 1 else "nodes-missing",
            nodes=join_words(missing),
            create_nodes=tuple(f"sudo nvidia-modprobe -c={path.removeprefix('/dev/nvidia')}" for path in missing),
            evidence=(f"under /dev: {there or 'none'}",),
        )
    elif not any(node.removeprefix("/dev/nvidia").isdigit() for node in nodes):
        raise NotApplicable("no GPU has a device node here")
    if "/dev/nvidia-uvm" not in nodes:
        yield problem("uvm-missing", evidence=(f"under /dev: {there}",))


@check("DRV006", causes=NEEDS_DRIVER_CODES)
def device_nodes_are_accessible(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    closed = require(driver.closed_nodes)
    if not closed:
        return
    parameters = () if isinstance(driver.parameters, Unknown) else driver.parameters
    options = [line for line in parameters if line.startswith(("DeviceFile", "ModifyDeviceFiles"))]
    nodes = join_words(node.partition(":")[0] for node in closed)
    is_of_group = all(re.search(r"mode 0\d[67]\d, user \d+, group [1-9]", line) for line in closed)
    owner, node = "group" if is_of_group else "other", closed[0].partition(":")[0]
    name = "not-lent" if is_in_job(facts) else "no-access"
    yield problem(name, nodes=nodes, node=node, owner=owner, manager=find_manager(facts), evidence=(*closed, *options))


@check("DRV018", require_loaded_driver, causes=NEEDS_DRIVER_CODES)
def device_nodes_are_the_drivers(facts: Facts) -> Iterator[Problem]:
    stale = require(require_driver(facts).stale_nodes)
    if stale:
        nodes = tuple(line.partition(":")[0] for line in stale)
        yield problem("stale", nodes=nodes, shown_nodes=join_words(nodes), subject=nodes[0], evidence=stale)


@check("DRV007", require_host, causes=(*NVML_CODES, "GPU002", "GPU005", "GPU006"))
def gsp_starts(facts: Facts) -> Iterator[Problem]:
    release = require_loaded_driver(facts)
    driver = require_driver(facts)
    has_lost_gpus = has_fewer_gpus_than_bus(facts)
    unfound = find_driver_lines(facts, *FIRMWARE_MISSING_LINES)
    failing = find_driver_lines(facts, *FIRMWARE_FAILURE_LINES)
    if unfound or (driver.firmware_present is False and driver.is_open is True and has_missing_gpus(facts)):
        known = "present" if driver.firmware_present else "no gsp*.bin"
        folder = "not known" if isinstance(driver.firmware_present, Unknown) else known
        yield problem(
            "no-firmware",
            release=release,
            branch=release.major,
            evidence=(*unfound[:MAX_LOG_LINES], f"/lib/firmware/nvidia/{release}: {folder}"),
            severity=Severity.ERROR if has_lost_gpus else Severity.WARNING,
            confidence=Confidence.CERTAIN if unfound else Confidence.LIKELY,
        )
    elif failing and has_lost_gpus:
        yield problem("not-started", evidence=failing[:MAX_LOG_LINES])


@check("DRV009", require_host, require_loaded_driver, causes=DEEP_CODES)
def cuda_survives_suspend(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    woke = facts.kernel_log.resumed_at if isinstance(facts.kernel_log, KernelLog) else Unknown("not known")
    code = find_cu_init_code(facts)
    if code is not None and woke is None:
        raise NotApplicable("the machine has not slept since it started")
    returned = f"cuInit returned {code}"
    if isinstance(woke, str) and code == _CUDA_ERROR_UNKNOWN:
        yield problem("broken-by-suspend", woke=woke, evidence=(returned, f"woke from suspend: {woke}"))
    elif code == _CUDA_ERROR_UNKNOWN:
        yield problem("broken", evidence=(returned, "woke from suspend: not seen"))
    elif code is None and isinstance(woke, str) and _NOT_PRESERVED in require(driver.parameters):
        yield problem("not-preserved", evidence=(f"woke from suspend: {woke}", _NOT_PRESERVED))
    elif code is None:
        raise NotApplicable("cuInit was not called; run devkit doctor --deep")


@check("DRV010", require_host, causes=DEEP_CODES)
def cuda_starts_without_nvswitch(facts: Facts) -> Iterator[Problem]:
    release = require_loaded_driver(facts)
    code = require_some(find_cu_init_code(facts), "cuInit was not called; run devkit doctor --deep")
    if code not in (CUDA_SYSTEM_NOT_READY, _CUDA_ERROR_NOT_INITIALIZED):
        return
    if not require(has_no_nvswitch(facts)):
        raise NotApplicable("this machine has an NVSwitch; another check covers its Fabric Manager")
    is_likely = require_driver(facts).is_open is True and code == _CUDA_ERROR_NOT_INITIALIZED
    yield problem(
        "no-shared-memory",
        code=code,
        release=release,
        evidence=(f"cuInit returned {code}", "no PCI function of class 0x0680", f"driver {release}"),
        confidence=Confidence.LIKELY if is_likely else Confidence.POSSIBLE,
    )
