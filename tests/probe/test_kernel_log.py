import json

import pytest

from devkit.facts.gpu import KernelLog
from devkit.facts.values import Unknown
from devkit.probe.gpu.kernel_log import JOURNAL, MAX_LINES, read_kernel_log
from tests.cases import cases
from tests.hosts import written

GPU_ON_BUS = """
"/sys/bus/pci/devices/0000:01:00.0/vendor" = "0x10de"
"/sys/bus/pci/devices/0000:01:00.0/class" = "0x030000"
"/proc/sys/kernel/osrelease" = "6.8.0-87-generic"
"/proc/self/status" = "Uid:\\t1000\\t1000\\nGid:\\t1000\\t1000\\n"
"""
BOOT = "2025-12-31T07:58:04+0000 kernel: Linux version 6.8.0-87-generic"
HINT = "Hint: You are currently not seeing messages from other users and the system."


def command(argv, out="", code=0, err=""):
    printed = f"out = {json.dumps(out)}\nerr = {json.dumps(err)}\n"
    return f"[[command]]\nargv = {json.dumps(list(argv))}\ncode = {code}\n{printed}"


def read(tmp_path, *commands, files="", gpu=GPU_ON_BUS):
    return read_kernel_log(written(tmp_path, f"[files]\n{gpu}\n{files}\n" + "\n".join(commands)))


def journal(tmp_path, *lines, files=""):
    found = read(tmp_path, command(JOURNAL, "\n".join((BOOT, *lines)) + "\n"), files=files)
    assert isinstance(found, KernelLog)
    return found


def said(text, at="2025-12-31T20:14:09+0000"):
    return f"{at} kernel: {text}"


@cases(
    "text, number, address",
    {
        "as drivers write it today": (
            "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0000:02:00.0",
        ),
        "an older driver": ("NVRM: Xid (0000:02:00): 31, Ch 00000010", 31, "0000:02:00.0"),
        "without a domain": ("NVRM: Xid (PCI:02:00): 13, Graphics", 13, "0000:02:00.0"),
        "in another domain": ("NVRM: Xid (PCI:000f:01:00): 119, Timeout", 119, "000f:01:00.0"),
        "with a function": ("NVRM: Xid (PCI:0000:C1:00.1): 74, NVLink", 74, "0000:c1:00.1"),
        "in words, long ago": ("NVRM: GPU at 0000:02:00.0 has fallen off the bus.", 79, "0000:02:00.0"),
        "in words, today": ("NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.", 79, "0000:02:00.0"),
    },
)
def test_a_report_is_known_in_all_its_shapes(tmp_path, text, number, address):
    (xid,) = journal(tmp_path, said(text)).xids
    assert (xid.number, xid.address, xid.count, xid.at) == (number, address, 1, "2025-12-31T20:14:09+0000")
    assert xid.line == text


FALLEN = "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus and is"


@cases(
    "lines",
    {
        "one message of three lines": (
            said("NVRM: The NVIDIA GPU 0000:b3:00.0"),
            "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "               NVRM: fallen off the bus and is not responding to commands.",
        ),
        "three messages": (
            said("NVRM: The NVIDIA GPU 0000:b3:00.0"),
            said("NVRM: (PCI ID: 10de:26b5) installed in this system has"),
            said("NVRM: fallen off the bus and is not responding to commands."),
        ),
    },
)
def test_a_gpu_off_the_bus_without_a_number_counts_as_79(tmp_path, lines):
    (xid,) = journal(tmp_path, *lines).xids
    assert (xid.number, xid.address) == (79, "0000:b3:00.0")
    assert xid.line.startswith(FALLEN)


def test_a_numbered_report_and_its_repetition_in_words_are_one(tmp_path):
    numbered = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
    (xid,) = journal(tmp_path, said(numbered), said("NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.")).xids
    assert (xid.count, xid.line) == (1, numbered)


def test_reports_are_counted_by_number_and_gpu_and_the_newest_is_kept(tmp_path):
    lines = [
        said(f"NVRM: Xid (PCI:0000:0{bus}:00): 31, no {turn}", f"2025-12-31T20:0{turn}:00+0000")
        for turn in (1, 2, 3)
        for bus in (1, 2)
    ]
    xids = journal(tmp_path, *lines).xids
    assert [(xid.address, xid.count, xid.at[11:16], xid.line[-4:]) for xid in xids] == [
        ("0000:01:00.0", 3, "20:03", "no 3"),
        ("0000:02:00.0", 3, "20:03", "no 3"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)",
        "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "Loading of module with unavailable key is rejected",
        "nvidia: loading of module with unavailable key is rejected",
        "nvidia 0000:01:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2",
        "NVRM: API mismatch: the client has the version 580.95.05, but",
        "nvidia: disagrees about version of symbol module_layout",
        "pci 0000:01:00.0: BAR 1 [mem size 0x10000000 64bit pref]: can't assign; no space",
    ],
)
def test_a_telling_line_is_kept(tmp_path, text):
    assert journal(tmp_path, said(text)).driver_lines == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
        "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1",
    ],
)
def test_what_a_healthy_driver_says_is_left_out(tmp_path, text):
    log = journal(tmp_path, said(text))
    assert (log.xids, log.driver_lines, log.resumed_at) == ((), (), None)


def test_a_sentence_over_many_messages_is_one_line(tmp_path):
    (line,) = journal(
        tmp_path,
        said("NVRM: The NVIDIA GeForce GT 1030 GPU installed in this system is"),
        said("NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please"),
        said("NVRM:  visit http://www.nvidia.com/object/unix.html for more"),
        said("NVRM:  information.  The 610.43.02 NVIDIA driver will ignore"),
        said("NVRM:  this GPU.  Continuing probe..."),
        said("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  610.43.02"),
    ).driver_lines
    assert line.startswith("NVRM: The NVIDIA GeForce GT 1030 GPU installed in this system is supported through")
    assert line.endswith("Continuing probe...")


def test_the_name_of_the_host_is_left_out(tmp_path):
    log = journal(tmp_path, "2025-12-31T20:14:09+0000 pluto kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=7")
    assert "pluto" not in repr(log)


@cases(
    "text, resumed",
    {
        "woke up": ("PM: suspend exit", True),
        "woke up from disk": ("PM: hibernation: hibernation exit", True),
        "fell asleep": ("PM: suspend entry (deep)", False),
    },
)
def test_the_last_awakening_is_known(tmp_path, text, resumed):
    assert journal(tmp_path, said(text)).resumed_at == ("2025-12-31T20:14:09+0000" if resumed else None)


def test_a_log_that_lost_its_beginning_says_so(tmp_path):
    rest = read(tmp_path, command(JOURNAL, said("NVRM: Xid (PCI:0000:01:00): 31, pid=7") + "\n"))
    assert rest.is_whole is False
    assert journal(tmp_path).is_whole is True


OPEN_RING = '"/proc/sys/kernel/dmesg_restrict" = "0\\n"'
RING = (
    "[    0.000000] Linux version 6.8.0-87-generic\n[   12.345678] NVRM: Xid (PCI:0000:01:00): 31, pid=7\n"
    "<4>[   13.000000] NVRM: RmInitAdapter failed!\n"
)


def refused(out="-- No entries --\n"):
    return command(JOURNAL, out, 1, HINT)


def test_the_ring_buffer_is_read_where_the_journal_is_closed(tmp_path):
    log = read(tmp_path, refused(), command(["dmesg"], RING), files=OPEN_RING)
    assert (log.source, log.is_whole, log.driver_lines) == ("dmesg", True, ("NVRM: RmInitAdapter failed!",))
    assert log.xids[0].at == "12.345678 s after the start"


@cases(
    "commands, files, reason",
    {
        "refused": ((refused(),), "", "this user cannot read the kernel log"),
        "refused without a word": ((refused(""),), "", "this user cannot read the kernel log"),
        "missing,": ((), "", "journalctl is missing,"),
        "too slow": ((command(JOURNAL, code=124),), "", "did not answer in time"),
        "both refused": (
            (refused(), command(["dmesg"], "", 1, "dmesg: read kernel buffer failed: Operation not permitted")),
            OPEN_RING,
            "this user cannot read the kernel log",
        ),
        "a closed buffer is not tried": ((refused(), command(["dmesg"], RING)), "", "this user cannot"),
        "garbage is no log": ((command(JOURNAL, "\x00\ufffd\n" * 9),), "", "this user cannot"),
    },
)
def test_a_refusal_is_unknown_and_never_a_clean_log(tmp_path, commands, files, reason):
    found = read(tmp_path, *commands, files=files)
    assert isinstance(found, Unknown)
    assert reason in found.reason


@cases(
    "files, gpu, reason",
    {
        "inside a container": ('"/.dockerenv" = ""', GPU_ON_BUS, "container"),
        "without a GPU": ("", '"/proc/sys/kernel/osrelease" = "6.8.0"', "on the bus"),
        "under WSL": ("", '"/proc/sys/kernel/osrelease" = "6.6-microsoft-standard-WSL2"', "only Linux"),
    },
)
def test_the_log_is_read_only_where_it_can_tell_something(tmp_path, files, gpu, reason):
    found = read(tmp_path, command(JOURNAL, BOOT + "\n"), files=files, gpu=gpu)
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_a_flood_is_cut_and_keeps_both_ends(tmp_path):
    lines = [said(f"NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x0:0x0:{turn})") for turn in range(200)]
    kept = journal(tmp_path, *lines).driver_lines
    assert len(kept) == MAX_LINES
    assert (kept[0][-4:], kept[-1][-5:]) == ("0:0)", ":199)")


def test_fatal_reports_of_switches_are_kept_with_their_number_and_how_often(tmp_path):
    fatal = "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    minor = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"
    data = "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Data {0x0000002b, 0x0000002b}"
    found = journal(tmp_path, said(fatal), said(data), said(minor), said(fatal))
    ((number, address, count),) = [(each.number, each.address, each.count) for each in found.switch_errors]
    assert (number, address, count) == (20034, "0000:84:00.0", 2)
    assert found.xids == ()
