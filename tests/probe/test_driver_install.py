import json

from devkit.facts.gpu import DriverPackage
from devkit.facts.values import Release, Unknown
from devkit.probe.gpu.driver import read_driver
from tests.cases import cases
from tests.hosts import written

FOLDER = "/sys/bus/pci/devices/0000:01:00.0"
BASE = {
    f"{FOLDER}/vendor": "0x10de\n",
    f"{FOLDER}/class": "0x030000\n",
    f"{FOLDER}/device": "0x2684\n",
    "/proc/sys/kernel/osrelease": "6.8.0-1\n",
    "/proc/self/status": "Uid:\t1000\t1000\t1000\nGid:\t1000\t1000\nGroups:\t27 998\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n",
}
BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def command(*argv, code=0, out="", err=""):
    return f"[[command]]\nargv = {json.dumps(argv)}\ncode = {code}\nout = {json.dumps(out)}\nerr = {json.dumps(err)}\n"


UNAME = command("uname", "-s", "-r", "-m", out="Linux 6.8.0-1 x86_64")


def driver(tmp_path, *commands, loaded=True, nodes="", **files):
    known = {path: text for path, text in BASE.items() if loaded or not path.startswith("/proc/driver")}
    table = "\n".join(
        f"{json.dumps(path)} = {json.dumps(text)}" for path, text in {**known, **files.get("at", {})}.items()
    )
    return read_driver(written(tmp_path, f"[files]\n{table}\n\n[nodes]\n{nodes}\n\n{UNAME}\n" + "\n".join(commands)))


GPU_FILES = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "1"}


def window(first, second):
    return f"0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n{first} {second} 0x000000000014220c\n"


# The addresses of an H100 in fastfetch-cli/fastfetch issue 1658: regions 0, 2 and 4 of 16 MiB, 128 GiB and 32 MiB.
HOPPER = """\
0x0000088042000000 0x0000088042ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000084000000000 0x0000085fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000088040000000 0x0000088041ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""


def regions(*sizes_mib, wide=()):
    """Lines as the kernel writes them: sizes of regions 0 to 5 in MiB, 64-bit where `wide` names the region."""
    lines = []
    for number, mib in enumerate(sizes_mib):
        start, flags = 0x2000000000 * (number + 1), 0x14220C if number in wide else 0x40200
        end = start + (mib << 20) - 1
        lines.append(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" if mib else f"0x{0:016x} 0x{0:016x} 0x{0:016x}")
    return "\n".join(lines) + "\n"


@cases(
    "device, resource, gib",
    {
        # https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/480
        "Turing, RTX 8000": ("0x1e30", regions(16, 256, 0, 32, 0, 0, wide=(1, 3)), 0.25),
        # https://github.com/pciutils/pciutils/issues/151
        # https://github.com/triton-inference-server/server/issues/4154
        "Ampere, A100": ("0x20b0", regions(16, 65536, 0, 32, 0, 0, wide=(1, 3)), 64),
        # https://github.com/NVIDIA/gds-nvidia-fs/issues/60
        # https://github.com/fastfetch-cli/fastfetch/issues/1658
        "Hopper, H100": ("0x2330", regions(16, 0, 131072, 0, 32, 0, wide=(0, 2, 4)), 128),
        # https://github.com/NVIDIA/nvtrust/issues/128
        # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/935
        "Blackwell, RTX 5090 Mobile": ("0x2c18", regions(64, 32768, 0, 32, 0, 0, wide=(1, 3)), 32),
        # https://forum.proxmox.com/threads/179366/ shows this machine, whose window found no room.
        "Blackwell, B300 without a window": ("0x3182", regions(64, 0, 0, 0, 32, 0, wide=(0, 4)), 0),
        # https://lore.kernel.org/all/20230822202303.19661-1-ankita@nvidia.com/
        "Grace Hopper, GH200": ("0x2342", regions(16, 0, 0, 0, 0, 0, wide=(0,)), None),
    },
)
def test_the_memory_window_of_real_gpus(tmp_path, device, resource, gib):
    (gpu,) = driver(tmp_path, at={f"{FOLDER}/resource": resource, f"{FOLDER}/device": device}).pci_gpus
    known = Unknown("the processor reaches this GPU's memory over NVLink-C2C") if gib is None else int(gib * (1 << 30))
    assert gpu.bar1_bytes == known


@cases(
    "resource, bar1_bytes",
    {
        "32 GiB": (window("0x0000007000000000", "0x00000077ffffffff"), 32 << 30),
        "none was assigned": (window("0x0000000000000000", "0x0000000000000000"), 0),
        "128 GiB behind a 64-bit BAR 0, as on Hopper": (HOPPER, 128 << 30),
        "a size without an address": (
            window("0x0000000000000000", "0x00000003ffffffff").replace("0x000000000014220c", "0x000000002014220c"),
            0,
        ),
        "no BAR at all": (
            "0x0 0x0 0x0\n0x0 0x0 0x0\n",
            Unknown("the kernel does not list the function's memory regions"),
        ),
        "cut off": ("0x1 0x2 0x3\n", Unknown("the kernel does not list the function's memory regions")),
        "garbage": ("garbage\ngarbage\n", Unknown("the kernel does not list the function's memory regions")),
    },
)
def test_the_memory_window_is_the_second_bar(tmp_path, resource, bar1_bytes):
    assert driver(tmp_path, at={f"{FOLDER}/resource": resource}).pci_gpus[0].bar1_bytes == bar1_bytes


@cases(
    "text, width",
    {
        "all lanes": ("16\n", 16),
        "a GPU that has left the bus": ("63\n", Unknown("the bus answers '63'")),
        "no number": ("Unknown\n", Unknown("the bus answers 'Unknown'")),
    },
)
def test_lanes(tmp_path, text, width):
    assert driver(tmp_path, at={f"{FOLDER}/max_link_width": text}).pci_gpus[0].max_link_width == width


DPKG = """\
Package: libc6
Status: install ok installed
Version: 2.39-0ubuntu8.6

Package: nvidia-driver-580-open
Status: install ok unpacked
Priority: optional
Architecture: amd64
Version: 580.95.05-0ubuntu0.24.04.2
Description: NVIDIA driver (open kernel) metapackage
 This metapackage depends on the NVIDIA binary driver.

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.18.1-1

Package: cuda-drivers
Status: deinstall ok config-files
Conffiles:
 /etc/x 0123
Version: 580.95.05-0ubuntu1

Package: nvidia-cut-off
Status: install ok insta"""


def test_packages_of_the_driver_with_their_state(tmp_path):
    assert driver(tmp_path, at={"/var/lib/dpkg/status": DPKG}).packages == (
        DriverPackage("nvidia-driver-580-open", "580.95.05-0ubuntu0.24.04.2", "unpacked"),
        DriverPackage("cuda-drivers", "580.95.05-0ubuntu1", "config-files"),
    )


RPM = ("rpm", "-qa", "--qf", "%{NAME}=%{VERSION}-%{RELEASE} ", "*nvidia*", "cuda-drivers*")
CUDA_REPOSITORY = {"/etc/yum.repos.d/cuda-fedora42.repo": "[cuda]\n"}
BOTH_REPOSITORIES = {**CUDA_REPOSITORY, "/etc/yum.repos.d/rpmfusion-nonfree.repo": "[rpmfusion]\n"}


def test_rpm_is_queried_only_where_two_repositories_compete(tmp_path):
    answer = command(*RPM, out="cuda-drivers=580.95.05-1.fc42 akmod-nvidia=580.95.05-1.fc42 ")
    assert isinstance(driver(tmp_path, answer, at=CUDA_REPOSITORY).packages, Unknown)
    assert [package.name for package in driver(tmp_path, answer, at=BOTH_REPOSITORIES).packages] == [
        "akmod-nvidia",
        "cuda-drivers",
    ]
    assert isinstance(driver(tmp_path, at=BOTH_REPOSITORIES).packages, Unknown)


TOOLKIT = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"


@cases(
    "name, text, entries",
    {
        "no key": ("a.list", f"deb {TOOLKIT} /\n", [(TOOLKIT, "")]),
        "a key": ("a.list", f"deb [arch=amd64 signed-by=/k.gpg] {TOOLKIT} /\n", [(TOOLKIT, "/k.gpg")]),
        "commented out": ("a.list", f"# deb {TOOLKIT} /\n", []),
        "a file that apt does not read": ("a.list.save", f"deb {TOOLKIT} /\n", []),
        "the newer format": (
            "a.sources",
            f"Types: deb\nURIs: {TOOLKIT}\nSuites: /\nSigned-By: /k.gpg\n\nTypes: deb\nURIs: http://x\n",
            [(TOOLKIT, "/k.gpg")],
        ),
    },
)
def test_package_lists_of_the_toolkit(tmp_path, name, text, entries):
    found = driver(tmp_path, at={f"/etc/apt/sources.list.d/{name}": text}).apt_sources
    assert [(source.url, source.signed_by) for source in found] == entries


@cases(
    "mode, uid, gid, is_closed",
    {
        "open to all": ("0o666", 0, 0, False),
        "open to a group of this user": ("0o660", 0, 27, False),
        "open to another group": ("0o660", 0, 44, True),
        "closed to a group of this user, though open to all others": ("0o606", 0, 27, True),
        "only to be read": ("0o664", 0, 0, True),
    },
)
def test_closed_device_nodes(tmp_path, mode, uid, gid, is_closed):
    nodes = f'"/dev/nvidia0" = {{ kind = "character", mode = {mode}, uid = {uid}, gid = {gid} }}'
    assert bool(driver(tmp_path, nodes=nodes).closed_nodes) is is_closed


def test_root_is_never_kept_out(tmp_path):
    nodes = '"/dev/nvidia0" = { kind = "character", mode = 0o000 }'
    assert driver(tmp_path, nodes=nodes, at={"/proc/self/status": "Uid:\t0\t0\nGid:\t0\t0\n"}).closed_nodes == ()


LOG = "/var/lib/dkms/nvidia/580.95.05/build/make.log"
UNBUILT = command("dkms", "status", out="nvidia/580.95.05: added\n")


@cases(
    "text, error",
    {
        "a compiler's": (
            "ok\nx.c:1:2: error: too many arguments\nmake: *** Error 1\n",
            "x.c:1:2: error: too many arguments",
        ),
        "the linker's": ("ERROR: modpost: x undefined!\n", "ERROR: modpost: x undefined!"),
        "none": ("all went well\n", ""),
    },
)
def test_the_first_error_of_the_build(tmp_path, text, error):
    assert driver(tmp_path, UNBUILT, loaded=False, at={LOG: text}).build_error == error


def test_a_build_log_is_not_read_where_the_module_is_loaded(tmp_path):
    assert isinstance(driver(tmp_path, UNBUILT, at={LOG: "x: error: y\n"}).build_error, Unknown)


SECURE = {BOOT: "\x06\x00\x00\x00\x01"}
ON_DISK = command("modinfo", "-F", "version", "nvidia", out="580.95.05\n")
SIGNER = ("modinfo", "-F", "signer", "nvidia")
KEYS = ("mokutil", "--list-enrolled")


@cases(
    "commands, signer, enrolled",
    {
        "enrolled": (
            (
                command(*SIGNER, out="DKMS module signing key\n"),
                command(*KEYS, out="Subject: CN=DKMS module signing key\n"),
            ),
            "DKMS module signing key",
            True,
        ),
        "not enrolled": (
            (command(*SIGNER, out="DKMS module signing key\n"), command(*KEYS, out="Subject: CN=Canonical Ltd.\n")),
            "DKMS module signing key",
            False,
        ),
        "keys unknown, and the host's name left out": (
            (command(*SIGNER, out="pluto Secure Boot Module Signature key\n"), command(*KEYS, code=1)),
            "(host) Secure Boot Module Signature key",
            Unknown("mokutil did not list the enrolled keys"),
        ),
        "not signed": (
            (command(*SIGNER, out="\n"), command(*KEYS, out="Subject: CN=x\n")),
            "",
            Unknown("mokutil did not list the enrolled keys"),
        ),
        "no tools": (
            (),
            Unknown("modinfo is missing or did not answer"),
            Unknown("modinfo is missing or did not answer"),
        ),
    },
)
def test_who_signed_the_module(tmp_path, commands, signer, enrolled):
    found = driver(tmp_path, ON_DISK, *commands, loaded=False, at=SECURE)
    assert (found.module_signer, found.signer_is_enrolled) == (signer, enrolled)


@cases(
    "path, present",
    {
        "of this version": ("/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin", True),
        "compressed": ("/usr/lib/firmware/nvidia/580.95.05/gsp_tu10x.bin.zst", True),
        "of another version": ("/lib/firmware/nvidia/570.172.08/gsp_ga10x.bin", False),
    },
)
def test_firmware(tmp_path, path, present):
    assert driver(tmp_path, at={path: "x"}).firmware_present is present


def test_only_telling_parameters_are_kept(tmp_path):
    text = 'ResmanDebugLevel: 4294967295\nDeviceFileMode: 438\nRegistryDwords: ""\nPreserveVideoMemoryAllocations: 0\n'
    found = driver(tmp_path, at={"/proc/driver/nvidia/params": text}).parameters
    assert found == ("DeviceFileMode: 438", "PreserveVideoMemoryAllocations: 0")


SWITCH = {
    "/sys/bus/pci/devices/0000:07:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:07:00.0/class": "0x068000\n",
}
PROGRAM = '"/usr/bin/nv-fabricmanager" = { kind = "file", mode = 0o755 }'
VERSION = ("/usr/bin/nv-fabricmanager", "--version")


@cases(
    "nodes, commands, version",
    {
        "it says so": (
            PROGRAM,
            (command(*VERSION, out="Fabric Manager version is : 580.95.05\n"),),
            Release.parse("580.95.05"),
        ),
        "not installed": ("", (), None),
        "it fails": (
            PROGRAM,
            (command(*VERSION, code=1),),
            Unknown("nv-fabricmanager --version ended with status 1 and did not print a version"),
        ),
    },
)
def test_the_fabric_managers_version(tmp_path, nodes, commands, version):
    assert driver(tmp_path, *commands, nodes=nodes, at=SWITCH).fabric_manager_version == version


def test_the_fabric_manager_is_read_where_it_is_installed_without_a_switch(tmp_path):
    asked = command("systemctl", "is-active", "nvidia-fabricmanager", code=3, out="failed\n")
    unit = {"/lib/systemd/system/nvidia-fabricmanager.service": "[Unit]\n"}
    assert driver(tmp_path, asked, at=unit).fabric_manager == "failed"
    assert isinstance(driver(tmp_path, asked).fabric_manager, Unknown)


def test_modules_that_matter_to_gpus(tmp_path):
    lines = ("nvidia_uvm 1 0 - Live (OE)", "nvidia 2 1 nvidia_uvm, Live (OE)", "ext4 3 0 - Live", "ib_core 4 0 - Live")
    text = "\n".join(lines)
    assert driver(tmp_path, at={"/proc/modules": text}).modules == ("ib_core", "nvidia", "nvidia_uvm")


def test_the_start_of_the_machine(tmp_path):
    assert driver(tmp_path, at={"/proc/stat": "cpu 1\nbtime 1767167884\n"}).booted_at == "2025-12-31T07:58:04+00:00"
    assert isinstance(driver(tmp_path, at={"/proc/stat": "cpu 1\nbtime soon\n"}).booted_at, Unknown)


def test_nothing_of_it_is_read_without_a_gpu(tmp_path):
    text = "\n".join(
        ("[files]", '"/proc/sys/kernel/osrelease" = "6.8.0"', f'"/var/lib/dpkg/status" = {json.dumps(DPKG)}', UNAME)
    )
    found = read_driver(written(tmp_path, text))
    assert isinstance(found.packages, Unknown)
    assert isinstance(found.closed_nodes, Unknown)


def test_the_bridges_above_a_gpu_and_its_numa_node(tmp_path):
    real = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    files = "".join(f'"{real}/{name}" = "{text}"\n' for name, text in GPU_FILES.items())
    (gpu,) = read_driver(written(tmp_path, f'[files]\n{files}\n[links]\n"{FOLDER}" = "{real}"\n')).pci_gpus
    assert (gpu.bridges, gpu.numa_node) == (("pci0000:00", "0000:00:01.0"), 1)
