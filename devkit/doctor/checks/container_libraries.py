"""Checks that a container with a GPU's device nodes has the driver's libraries, too."""

from collections.abc import Iterator

from devkit.doctor.applies import a_gpu_in_this_container, container_of, driver_of, known
from devkit.doctor.checks.container import NEEDED_CAPABILITIES
from devkit.doctor.machine import CDI_GUIDE
from devkit.doctor.model import Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts
from devkit.facts.values import Release


@check(
    "PRJ031",
    "GPU devices come with the driver's libraries",
    covers=("J12",),
    symptoms=(
        "libcuda.so.1: cannot open shared object file: No such file or directory",
        "/dev/nvidia0 exists, but nvidia-smi is not there",
        "Daytona sandbox with GPU: Found no NVIDIA driver",
    ),
    causes=("DRV003", "PYT006", "CON002"),
)
def devices_come_with_libraries(facts: Facts) -> Iterator[Finding]:
    """A container that can open the GPU has libcuda and NVML of the same version as the kernel module.

    Why it matters: sandboxes and plain `--device /dev/nvidia0` pass the device nodes on and nothing else. The libraries
    are normally mounted by NVIDIA's hook or by CDI; without them no program finds the driver whose devices are there.
    How it is seen: /dev/nvidiactl opens, neither library is there, and NVIDIA_DRIVER_CAPABILITIES is not the reason.
    Source: daytonaio/daytona pull requests 4672 and 4784; NVIDIA, Container Toolkit, "Support for CDI".
    """
    container = container_of(facts)
    a_gpu_in_this_container(facts)
    driver = driver_of(facts)
    asked = {name.strip() for name in (container.driver_capabilities or "all").split(",")}
    if "all" not in asked and not set(NEEDED_CAPABILITIES) <= asked:
        raise NotApplicable("this container asked for fewer libraries")
    has_nodes = driver.nvidiactl == "open" and any(node.startswith("/dev/nvidia") for node in driver.device_nodes)
    if not has_nodes or known(driver.libcuda) is not None or known(driver.libnvidia_ml) is not None:
        return
    version = str(driver.loaded) if isinstance(driver.loaded, Release) else "of the host's driver"
    branch = version.partition(".")[0]
    yield Finding(
        Severity.ERROR,
        "the GPU's device nodes are in this container, and neither libcuda nor NVML of its driver is",
        Fix(
            "Give the GPU by the Container Toolkit or by CDI, which mount the libraries. Where only device nodes can be"
            f" had, put the libraries of exactly version {version} into the image.",
            (f"apt-get install --no-install-recommends libnvidia-compute-{branch}={version}-*",)
            if branch.isdigit()
            else (),
            where=Side.IMAGE,
            docs=CDI_GUIDE,
        ),
        evidence=(f"device nodes: {', '.join(driver.device_nodes)}", "libcuda.so.1 and libnvidia-ml.so.1 are absent"),
    )
