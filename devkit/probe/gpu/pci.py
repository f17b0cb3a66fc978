"""NVIDIA's functions on the PCI bus, which show even when the driver does not work."""

import re

from devkit.facts.gpu import PciGpu
from devkit.facts.values import Unknown
from devkit.probe.documents import parse_int
from devkit.probe.host import Host

PCI_DEVICES = "/sys/bus/pci/devices"
PCI_NAMES = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
DRIVER_GPUS = "/proc/driver/nvidia/gpus"
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA controllers and 3D controllers; 0x0403 is the sound function beside them."""
NVSWITCH_CLASS = "0x0680"
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_REGION = re.compile(r"(0x[0-9a-f]+) (0x[0-9a-f]+) (0x[0-9a-f]+)")
_ID = re.compile(r"0x[0-9a-f]{4}")
_BARS = 6
_COHERENT_DEVICES = ("0x2342", "0x2345", "0x2348", "0x2941")
"""GH200 and GB200, whose memory is not a PCI region. Source: the Linux kernel, drivers/vfio/pci/nvgrace-gpu/main.c."""
_IS_64_BIT = 0x0010_0000
"""IORESOURCE_MEM_64 in the kernel's include/linux/ioport.h: the BAR fills two registers; its second line is empty."""
_IS_UNSET = 0x2000_0000
"""IORESOURCE_UNSET: the kernel knows the size, and has found no address."""


def read_pci(host: Host) -> tuple[tuple[PciGpu, ...] | Unknown, bool | Unknown]:
    """Read NVIDIA GPUs on the bus, and whether an NVSwitch is among its other functions."""
    functions = list_nvidia_functions(host)
    if isinstance(functions, Unknown):
        return functions, functions
    gpus = []
    for address in (address for address, kind in functions if kind.startswith(DISPLAY_CLASSES)):
        device_id, node = _attribute(host, address, "device"), parse_int(_attribute(host, address, "numa_node"))
        said = host.read(f"{DRIVER_GPUS}/{address}/information")
        model = re.search(r"^Model:\s*(NVIDIA .+?)\s*$", said or "", re.MULTILINE)
        is_excluded = re.search(r"^GPU Excluded:\s*Yes", said or "", re.MULTILINE) is not None
        gpus.append(
            PciGpu(
                address=address,
                device_id=device_id,
                kernel_driver=(host.link(f"{PCI_DEVICES}/{address}/driver") or "").rpartition("/")[2],
                max_link_width=_width(_attribute(host, address, "max_link_width")),
                numa_node=Unknown("the firmware does not report it") if node is None or node < 0 else node,
                bridges=_bridges(host.link(f"{PCI_DEVICES}/{address}") or ""),
                name=model[1] if model else _find_name(host, device_id.removeprefix("0x")),
                is_excluded=Unknown("the driver does not describe this GPU") if said is None else is_excluded,
                bar1_bytes=_bar1_bytes(device_id, _attribute(host, address, "resource")),
            )
        )
    return tuple(gpus), any(kind.startswith(NVSWITCH_CLASS) for _, kind in functions)


def _attribute(host: Host, address: str, name: str) -> str:
    return (host.read(f"{PCI_DEVICES}/{address}/{name}") or "").strip()


def _find_name(host: Host, number: str) -> str | Unknown:
    """Find the name of a device by its number of four digits, "" for none."""
    for path in PCI_NAMES if number else ():
        _, _, of_nvidia = (host.read(path) or "").partition("\n10de  ")
        # A device's line: a tab, its number, two spaces, and its name, which ends in the product in brackets.
        if found := re.match(rf"[^\n]*\n(?:[\t#][^\n]*\n)*?\t{re.escape(number)}  ([^\n]+)", of_nvidia):
            product = re.search(r"\[([^]]+)\]$", found[1])
            return f"NVIDIA {product[1] if product else found[1]}"
    return Unknown("neither the driver nor pci.ids names it")


def _width(text: str) -> int | Unknown:
    """Lanes; a function that sleeps or has left the bus reads as 0, 63 or 255."""
    lanes = parse_int(text)
    if lanes in _WIDTHS:
        return lanes
    return Unknown(f"the bus answers {text!r}" if text else "the kernel does not report it")


def _bridges(path: str) -> tuple[str, ...] | Unknown:
    """Return what is above a function: /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0 is below two bridges."""
    above = path.removeprefix("/sys/devices/").split("/")[:-1]
    return tuple(above) if path.startswith("/sys/devices/pci") else Unknown("the kernel does not show the bus above it")


def _bar1_bytes(device_id: str, resource: str) -> int | Unknown:
    """Return the size of the second memory BAR, through which the processor sees GPU memory; 0 if it has no address.

    `resource` has one line of start, end and flags for each 32-bit BAR register. Up to Ada, BAR 0 is 32-bit and the
    window is on line 2; on Hopper and later data center GPUs BAR 0 is 64-bit and the window is on line 3.
    Source: lspci of an H100 in fastfetch-cli/fastfetch issue 1658 and of an H20 in NVIDIA/nvtrust issue 128.
    """
    if device_id in _COHERENT_DEVICES:
        return Unknown("the processor reaches this GPU's memory over NVLink-C2C")
    regions = [_REGION.match(line) for line in resource.splitlines()[:_BARS]]
    first = regions[0] if regions else None
    if first is None or not int(first[2], 16):
        return Unknown("the kernel does not list the function's memory regions")
    window = 2 if int(first[3], 16) & _IS_64_BIT else 1
    region = regions[window] if len(regions) > window else None
    if region is None:
        return Unknown("the kernel does not list the function's memory regions")
    start, end, flags = (int(text, 16) for text in region.groups())
    return end - start + 1 if end and not flags & _IS_UNSET else 0


def has_nvidia_function(host: Host) -> bool:
    """Return whether any GPU or NVSwitch of NVIDIA is on the bus; false where the bus is hidden."""
    functions = list_nvidia_functions(host)
    return not isinstance(functions, Unknown) and any(
        kind.startswith((*DISPLAY_CLASSES, NVSWITCH_CLASS)) for _, kind in functions
    )


def list_nvidia_functions(host: Host) -> tuple[tuple[str, str], ...] | Unknown:
    """List address and class of every NVIDIA function on the bus."""
    addresses = host.list(PCI_DEVICES)
    if not addresses:
        return Unknown(f"{PCI_DEVICES} is not visible here")
    vendors = {name: _attribute(host, name, "vendor") for name in addresses}
    if unread := [name for name, vendor in vendors.items() if not _ID.fullmatch(vendor)]:
        return Unknown(f"{PCI_DEVICES}/{unread[0]}/vendor cannot be read", is_lost=True)
    return tuple((name, _attribute(host, name, "class")) for name, vendor in vendors.items() if vendor == NVIDIA_VENDOR)
