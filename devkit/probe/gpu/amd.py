"""AMD GPUs, from the topology that the kernel's compute driver shows; it is there without any tool of AMD's.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the files), kfd_device.c (gfx_target_version); ROCm,
"rocminfo" (Marketing Name).
"""

import re

from devkit.facts.gpu import Amd, AmdGpu
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import parse_int
from devkit.probe.host import Host

TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
ROCM_VERSION = "/opt/rocm/.info/version"
ROCMINFO = ("rocminfo", "/opt/rocm/bin/rocminfo")
MAX_KFD_NODES = 64
_PROPERTY = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
_AMD = 0x1002
_LOCAL_MEMORY = ("1", "2")
"""Heap types of a memory bank: public and private memory of the GPU itself."""
_AGENT = re.compile(r"^\s+Name:\s+(gfx\w+)\s*$(?:(?!^\*{5}).)*?^\s+Marketing Name:[ \t]*(.*?)[ \t]*$", re.M | re.S)


def read_amd(host: Host) -> Amd | None:
    """Read AMD's GPUs; None where the kernel shows none, as on every machine without its compute driver."""
    nodes = sorted(int(name) for name in host.list(TOPOLOGY)[:MAX_KFD_NODES] if name.isdecimal() and len(name) < 6)
    every = [(node, _properties(host, f"{node}/properties")) for node in nodes]
    # Nodes of processors have no target, and a passed-through GPU of another vendor does not count.
    found = [(n, p) for n, p in every if p.get("gfx_target_version", 0) > 0 and p.get("vendor_id", _AMD) == _AMD]
    if not found:
        return None
    gpus = []
    for (node, properties), name in zip(found, _names(host, found), strict=True):
        banks = f"{node}/mem_banks"
        heaps = [_properties(host, f"{banks}/{bank}/properties") for bank in host.list(f"{TOPOLOGY}/{banks}")]
        own = [heap.get("size_in_bytes", 0) for heap in heaps if str(heap.get("heap_type", "")) in _LOCAL_MEMORY]
        gpus.append(
            AmdGpu(
                node=node,
                target=format_gfx_target(properties["gfx_target_version"]),
                name=name,
                device_id=f"0x{properties.get('device_id', 0):04x}",
                memory_bytes=sum(own) or Unknown("the kernel's topology does not list local GPU memory"),
            )
        )
    release = re.match(r"\d+(?:\.\d+)+", (host.read(ROCM_VERSION) or "").strip())
    return Amd(tuple(gpus), host.open_error("/dev/kfd"), Release.parse(release[0]) if release else None)


def _properties(host: Host, path: str) -> dict[str, int]:
    text = host.read(f"{TOPOLOGY}/{path}") or ""
    return {name: value for name, digits in _PROPERTY.findall(text) if (value := parse_int(digits)) is not None}


def _names(host: Host, found: list[tuple[int, dict[str, int]]]) -> list[str]:
    """The name of each GPU: as its card has it, else as rocminfo prints it, "" where neither tells."""
    cards = [f"/sys/class/drm/renderD{properties.get('drm_render_minor', 0)}" for _, properties in found]
    names = [(host.read(f"{card}/device/product_name") or "").strip() for card in cards]
    if all(names):
        return names
    program = next((path for path in ROCMINFO[1:] if host.stat(path) is not None), ROCMINFO[0])
    reply = _AGENT.findall(host.run([program], deadline_s=2.0).out)
    targets = [format_gfx_target(properties["gfx_target_version"]) for _, properties in found]
    if [target for target, _ in reply] != targets:
        return names
    return [name or other for name, (_, other) in zip(names, reply, strict=True)]


def format_gfx_target(version: int) -> str:
    """Format a gfx_target_version as the LLVM target: 90402 is gfx942, and 90010 gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
