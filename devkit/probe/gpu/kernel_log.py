"""The kernel's messages about GPUs, where this user may read them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from devkit.facts.gpu import KernelLog, Xid
from devkit.facts.machine import Platform
from devkit.facts.values import Unknown
from devkit.probe.circumstances import detect_container
from devkit.probe.gpu.pci import has_nvidia_function
from devkit.probe.host import NOT_FOUND, Host, ProgramResult, explain_failure
from devkit.probe.machine.operating_system import read_platform, read_user_id

GPU_MESSAGES = "NVRM|nvidia|nouveau|is rejected|trusted key|Lockdown|PM: (suspend|hibernation)|assign|Linux version"
JOURNAL = ("journalctl", "-k", "-b", "--no-pager", "--no-hostname", "-o", "short-iso", "-g", GPU_MESSAGES)
"""The journal filters: a busy container host has a hundred thousand lines of veth devices coming and going."""
DMESG_RESTRICT = "/proc/sys/kernel/dmesg_restrict"
KERNEL_LOG_DEADLINE_S = 3.0
MAX_LINES = 40
"""Telling lines that are kept, and as many Xids: the newest say what is wrong now, the first why it began."""
MAX_PARTS = 6
XID_FALLEN_OFF_BUS = 79
_JOURNAL_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (?:\S+ )?kernel: (.*)")
_RING_LINE = re.compile(r"(?:<\d+>)?\[\s*(\d+\.\d+)\] (.*)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)\b")
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), Fatal\b")
_FALLEN = re.compile(r"NVRM:.*fallen off the bus")
_ADDRESS = re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b")
_WOKE = re.compile(r"PM: (?:suspend exit|hibernation: hibernation exit|hibernation exit)")
_TELLING = re.compile(
    r"RmInitAdapter|requires use of the NVIDIA open kernel modules|Legacy drivers|not supported by (?:the|open)"
    r"|probe routine (?:failed|was not called)|GSP firmware|GFW_BOOT|WPR2 already up|No firmware image found"
    r"|firmware.*failed with error|loading of .*is rejected|Loading of .*is rejected|not signed with a trusted key"
    r"|Lockdown:.*modprobe|disagrees about version|version magic|API mismatch|PCI I/O region assigned to your NVIDIA"
    r"|No NVIDIA (?:graphics adapter|GPU|devices)|resize PCIe BARs|BAR 1.*(?:assign|space)|already bound to"
)


@dataclass(frozen=True)
class _Message:
    at: str
    text: str


def read_kernel_log(host: Host) -> KernelLog | Unknown:
    """Read the kernel's messages about GPUs since it started. A refusal is unknown, never "no fault"."""
    if detect_container(host):
        return Unknown("a container does not see the host's kernel log")
    if read_platform(host) is not Platform.LINUX:
        return Unknown("only Linux itself logs the NVIDIA driver's faults in its kernel log")
    if not has_nvidia_function(host):
        return Unknown("only read where an NVIDIA GPU is on the bus")
    journal = host.run(JOURNAL, deadline_s=KERNEL_LOG_DEADLINE_S)
    messages = _messages(journal.out, _JOURNAL_LINE)
    if messages:
        return _understood(messages, "journalctl")
    if read_user_id(host) != 0 and (host.read(DMESG_RESTRICT) or "").strip() != "0":
        return _refused(journal)
    ring = host.run(("dmesg",), deadline_s=KERNEL_LOG_DEADLINE_S)
    messages = _messages(ring.out, _RING_LINE)
    return _understood(messages, "dmesg") if messages else _refused(journal)


def _messages(text: str, shape: re.Pattern[str]) -> tuple[_Message, ...]:
    """The messages, with the lines that continue one joined to it."""
    found: list[_Message] = []
    for line in text.splitlines():
        if match := shape.match(line):
            found.append(_Message(match[1], match[2]))
        elif found and line.startswith(" "):
            found[-1] = _Message(found[-1].at, f"{found[-1].text} {_bare(line)}")
    return tuple(_whole_sentences(found))


def _bare(line: str) -> str:
    return line.strip().removeprefix("NVRM:").strip()


def _whole_sentences(messages: Iterable[_Message]) -> Iterator[_Message]:
    """NVRM breaks a sentence over several messages: "NVRM: The NVIDIA GPU … installed in this system has" …"""
    open_one: _Message | None = None
    parts = 0
    for message in messages:
        if open_one is None:
            open_one, parts = message, 1
        elif (
            open_one.text.startswith("NVRM: The NVIDIA")
            and not open_one.text.rstrip().endswith((".", "probe..."))
            and parts < MAX_PARTS
            and message.text.startswith("NVRM:")
        ):
            open_one, parts = _Message(open_one.at, f"{open_one.text} {_bare(message.text)}"), parts + 1
        else:
            yield open_one
            open_one, parts = message, 1
    if open_one is not None:
        yield open_one


def _understood(messages: tuple[_Message, ...], source: str) -> KernelLog:
    lines = tuple(
        dict.fromkeys(message.text for message in messages if _TELLING.search(message.text) and not _xid(message))
    )
    every = [xid for message in messages if (xid := _xid(message))]
    # The driver repeats a numbered report in words; the words count where they stand alone.
    numbered = {(xid.number, xid.address) for xid in every if _XID.search(xid.line)}
    woken = [message.at for message in messages if _WOKE.search(message.text)]
    fatal = ((message, found) for message in messages if (found := _SXID.search(message.text)))
    return KernelLog(
        xids=_count(xid for xid in every if _XID.search(xid.line) or (xid.number, xid.address) not in numbered),
        # The newest lines say what is wrong now, the first ones why it began.
        driver_lines=lines if len(lines) <= MAX_LINES else (*lines[: MAX_LINES // 2], *lines[-MAX_LINES // 2 :]),
        source=source,
        # The fatal reports of NVSwitches; others are left out.
        switch_errors=_count(
            Xid(int(found[2]), _full_address(found[1]), message.text, 1, _time(message.at)) for message, found in fatal
        ),
        is_whole=any(message.text.startswith("Linux version") for message in messages),
        resumed_at=_time(woken[-1]) if woken else None,
    )


def _count(xids: Iterable[Xid]) -> tuple[Xid, ...]:
    """Return the newest for each number and device, with how often it was reported; in the order of first sight."""
    kinds: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        kinds.setdefault((xid.number, xid.address), []).append(xid)
    return tuple(replace(group[-1], count=len(group)) for group in kinds.values())[:MAX_LINES]


def _xid(message: _Message) -> Xid | None:
    if found := _XID.search(message.text):
        return Xid(int(found[2]), _full_address(found[1]), message.text, 1, _time(message.at))
    if _FALLEN.search(message.text):
        address = _ADDRESS.search(message.text)
        return Xid(XID_FALLEN_OFF_BUS, _full_address(address[0]) if address else "", message.text, 1, _time(message.at))
    return None


def _full_address(text: str) -> str:
    """An address as sysfs writes it: Xid lines leave the function out, and old ones the domain."""
    fields = text.lower().split(":")
    if not 2 <= len(fields) <= 3:
        return text
    domain, slot = ("0", fields[1]) if len(fields) == 2 else (fields[0], fields[2])
    return f"{int(domain, 16):04x}:{fields[-2]}:{slot if '.' in slot else f'{slot}.0'}"


def _time(at: str) -> str:
    return at if "T" in at else f"{at} s after the start"


def _refused(journal: ProgramResult) -> Unknown:
    """Return why no line came. Even a machine without any fault has the line with which its kernel starts."""
    if journal.code == NOT_FOUND:
        return Unknown("journalctl is missing, and this user cannot read the kernel's buffer")
    return explain_failure(JOURNAL[:1], journal, "this user cannot read the kernel log")
