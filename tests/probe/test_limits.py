import pytest

from devkit.facts.machine import Mps
from devkit.facts.values import Unknown
from devkit.probe.machine.resources import read_limits
from tests.hosts import written

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
"""
MEMORY = "MemTotal:       65734656 kB\nMemAvailable:   1048576 kB\nSwapTotal:       2097152 kB\n"
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    "eno1\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eno1\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
)


def limits(tmp_path, files=(), env="", nodes=""):
    both = {"/proc/self/limits": LIMITS, "/proc/meminfo": MEMORY} | dict(files)
    text = "".join(f"\"{path}\" = '''{content}'''\n" for path, content in both.items() if content is not None)
    return read_limits(written(tmp_path, f"[env]\n{env}\n[files]\n{text}\n[nodes]\n{nodes}"))


def test_limits_of_the_process_and_the_machines_memory_are_read(tmp_path):
    found = limits(tmp_path)
    assert (found.locked_memory_bytes, found.swap_bytes) == (None, 2 << 30)


@pytest.mark.parametrize("text", ["", "Max", "Max locked memory", "Max locked memory  x  y", "\ufffd" * 99])
def test_limits_cut_off_or_garbage_are_unknown(tmp_path, text):
    assert isinstance(limits(tmp_path, {"/proc/self/limits": text}).locked_memory_bytes, Unknown)


def test_another_system_has_no_limits_to_read(tmp_path):
    assert "no /proc" in limits(tmp_path, {"/proc/self/limits": None, "/proc/meminfo": None}).reason


V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"
NO_LIMIT = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "limit", "kills"),
    [
        pytest.param(
            {"/proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "1024\n", f"{V2}/memory.events": "oom 3\noom_kill 2\n"},
            1024, 2, id="version 2 in a container",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "max\n", f"{V2}/memory.events": "oom_kill 0\n"},
            None, 0, id="version 2 without a limit",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/user.slice/s.scope\n", f"{V2}/user.slice/s.scope/memory.max": "4096\n",
             f"{V2}/user.slice/memory.max": "2048\n", f"{V2}/user.slice/s.scope/memory.events": "oom_kill 1\n"},
            2048, 1, id="version 2 with the tighter limit further up",
        ),
        pytest.param(
            {"/proc/self/cgroup": "4:memory:/docker/3f\n", f"{V1}/memory.limit_in_bytes": "4096\n",
             f"{V1}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"},
            4096, 5, id="version 1 in a container, whose path is the host's",
        ),
        pytest.param(
            {"/proc/self/cgroup": "4:cpu,memory:/a\n", f"{V1}/a/memory.limit_in_bytes": NO_LIMIT,
             f"{V1}/a/memory.oom_control": "oom_kill 0\n"},
            None, 0, id="version 1 without a limit",
        ),
        pytest.param(
            {"/proc/self/cgroup": "4:memory:/\n0::/\n", f"{V1}/memory.limit_in_bytes": NO_LIMIT,
             f"{V1}/memory.oom_control": "oom_kill 0\n", f"{V2}/unified/cgroup.procs": ""},
            None, 0, id="version 1 beside the unified tree",
        ),
    ],
)  # fmt: skip
def test_the_control_group(tmp_path, files, limit, kills):
    found = limits(tmp_path, files)
    assert (found.group_memory_bytes, found.out_of_memory_kills) == (limit, kills)


@pytest.mark.parametrize("text", ["", "0", "::", "x:y", "0::", "a:b:c:d"])
def test_a_strange_membership_breaks_nothing(tmp_path, text):
    found = limits(tmp_path, {"/proc/self/cgroup": text})
    assert found.group_memory_bytes is None
    assert isinstance(found.out_of_memory_kills, Unknown)


def test_without_a_membership_nothing_is_known_of_the_group(tmp_path):
    assert isinstance(limits(tmp_path).group_memory_bytes, Unknown)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        pytest.param({"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "250000 100000\n"}, 2.5, id="version 2"),
        pytest.param({"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "max 100000\n"}, None, id="version 2, no limit"),
        pytest.param({"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "1 0\n"}, None, id="no period"),
        pytest.param({"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "250000\n"}, None, id="cut off"),
    ],
)
def test_cpus(tmp_path, files, count):
    assert limits(tmp_path, files).cpu_count == count


def test_interfaces_and_the_way_out(tmp_path):
    files = {f"/sys/class/net/{name}/address": "x" for name in ("lo", "eno1", "wlan0")} | {"/proc/net/route": ROUTES}
    found = limits(tmp_path, files)
    assert (found.interfaces, found.default_interface) == (("eno1", "wlan0"), "eno1")


@pytest.mark.parametrize(
    ("text", "interface"),
    [
        pytest.param("", "", id="an empty table"),
        pytest.param(ROUTES.splitlines()[0], "", id="no route"),
        pytest.param(ROUTES[:90], "", id="cut off"),
    ],
)
def test_no_way_out(tmp_path, text, interface):
    assert limits(tmp_path, {"/proc/net/route": text}).default_interface == interface


def test_nccls_settings_come_from_its_files_and_the_environment(tmp_path):
    files = {"/etc/nccl.conf": "NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME=eth9\n# NCCL_P2P_DISABLE=1\nnonsense\n"}
    env = 'NCCL_SOCKET_IFNAME = "eth0"\nNNODES = "2"\nMASTER_ADDR = "gpu-box-7.corp"\nHF_TOKEN = "hf_secret"'
    found = limits(tmp_path, files, env).nccl
    assert found == ("NCCL_SOCKET_IFNAME=eth0", "NCCL_DEBUG=WARN", "NNODES=2", "MASTER_ADDR=another name")


def test_a_master_on_this_machine_is_named_so(tmp_path):
    assert limits(tmp_path, env='MASTER_ADDR = "127.0.0.1"').nccl == ("MASTER_ADDR=this machine",)


def test_the_iommu_domain_of_each_nvidia_gpu_is_read(tmp_path):
    files = {}
    for address, vendor, kind, domain in (
        ("0000:01:00.0", "0x10de", "0x030000", "DMA-FQ"),
        ("0000:01:00.1", "0x10de", "0x040300", "DMA-FQ"),
        ("0000:02:00.0", "0x1022", "0x030000", "identity"),
        ("0000:41:00.0", "0x10de", "0x030200", "identity"),
    ):
        folder = f"/sys/bus/pci/devices/{address}"
        files |= {f"{folder}/vendor": vendor, f"{folder}/class": kind, f"{folder}/iommu_group/type": f"{domain}\n"}
    assert limits(tmp_path, files).iommu_domains == ()
    found = limits(tmp_path, files | {"/sys/kernel/iommu_groups/1/type": "DMA-FQ"})
    assert found.iommu_domains == ("DMA-FQ", "identity")


@pytest.mark.parametrize(
    ("files", "mode", "allows"),
    [
        pytest.param({}, "", None, id="no SELinux"),
        pytest.param({"enforce": "1", "booleans/container_use_devices": "0 0"}, "enforcing", False, id="enforcing"),
        pytest.param({"enforce": "1", "booleans/container_use_devices": "1 1"}, "enforcing", True, id="allowed"),
        pytest.param({"enforce": "0", "booleans/container_use_devices": ""}, "permissive", None, id="permissive"),
    ],
)
def test_selinux(tmp_path, files, mode, allows):
    found = limits(tmp_path, {f"/sys/fs/selinux/{name}": text for name, text in files.items()})
    assert found.selinux == mode
    assert found.selinux_allows_devices is allows or (
        allows is None and isinstance(found.selinux_allows_devices, Unknown)
    )


NODES = """
"/sys/devices/system/node/node0/cpulist" = "0-31,64-95"
"/sys/devices/system/node/node1/cpulist" = "32-63,96-127"
"/sys/devices/system/node/node2/cpulist" = ""
"/sys/devices/system/node/possible" = "0-2"
"/proc/meminfo" = "MemTotal: 16 kB"
"""


@pytest.mark.parametrize(
    ("allowed", "nodes"),
    [
        pytest.param("Cpus_allowed_list:\\t0-127\\n", (0, 1), id="every CPU"),
        pytest.param("Cpus_allowed_list:\\t40,96-99\\n", (1,), id="CPUs of one node"),
        pytest.param("Uid:\\t0\\n", Unknown("the kernel does not list NUMA nodes"), id="CPUs that are not known"),
    ],
)
def test_numa_nodes_of_the_cpus_that_may_be_used(tmp_path, allowed, nodes):
    host = written(tmp_path, f'[files]\n{NODES}\n"/proc/self/status" = "{allowed}"')
    assert read_limits(host).numa_nodes == nodes


def test_what_nodes_of_a_cluster_differ_in(tmp_path):
    port = "/sys/class/infiniband/mlx5_1/ports/1"
    files = {
        f"{port}/state": "1: DOWN\n",
        f"{port}/rate": "10 Gb/sec (4X)\n",
        "/sys/class/infiniband/mlx5_1/device/numa_node": "1\n",
        "/sys/class/net/ens1/mtu": "9000\n",
        "/sys/class/net/ens1/device/vendor": "0x15b3\n",
        "/sys/class/net/veth0/mtu": "1450\n",
        "/proc/sys/kernel/numa_balancing": "2\n",
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nmodel name\t: other\n",
    }
    found = limits(tmp_path, files)
    assert found.fabric_ports == ("mlx5_1/1 DOWN 10 Gb/sec (4X), NUMA node 1",)
    assert found.link_mtus == ("ens1 9000",)
    assert found.numa_balancing is True
    assert found.cpu_model == "Intel(R) Xeon(R) Platinum 8480C"
    nothing = limits(tmp_path)
    assert (nothing.fabric_ports, nothing.link_mtus) == ((), ())
    assert isinstance(nothing.numa_balancing, Unknown)
    assert isinstance(nothing.cpu_model, Unknown)


@pytest.mark.parametrize(
    ("env", "nodes", "mount", "expected"),
    [
        ("", "", "tmpfs", None),
        ("", '"/tmp/nvidia-mps/control" = { kind = "file" }', "tmpfs", None),
        ("", '"/tmp/nvidia-mps/control" = { kind = "socket" }', "shm", Mps("/tmp/nvidia-mps", True, (), True)),
        (
            'CUDA_MPS_PIPE_DIRECTORY = "/mps"',
            '"/mps/control" = { kind = "socket" }',
            "tmpfs",
            Mps("/mps", True, ("CUDA_MPS_PIPE_DIRECTORY=/mps",), False),
        ),
        ('CUDA_MPS_X = "1"', "", "tmpfs", Mps("/tmp/nvidia-mps", False, ("CUDA_MPS_X=1",), False)),
    ],
    ids=["nothing", "no socket", "a socket", "a folder of its own", "settings without a daemon"],
)
def test_mps_is_its_socket_and_its_settings(tmp_path, env, nodes, mount, expected):
    mounts = {"/proc/mounts": f"{mount} /dev/shm tmpfs rw,nosuid 0 0\n"}
    assert limits(tmp_path, mounts, env, nodes).mps == expected
