"""The system, the Python, its native libraries, the container and the directories of a workload."""

import pytest

from devkit.facts.machine import CudaFolder, Library, Platform, Tegra
from devkit.facts.values import Release, Unknown
from devkit.probe.machine.environment import detect_container, read_container
from devkit.probe.machine.operating_system import read_kernel_and_machine, read_platform, read_system, read_tegra
from devkit.probe.machine.python import read_cuda_toolkit, read_libstdcxx, read_python, read_shadowing
from devkit.probe.machine.resources import find_hub_cache, read_storage
from tests.cases import cases
from tests.hosts import written

# The Python, the container and the directories of a workload.


VERSION = '[[command]]\nargv = ["{python}", "--version"]\nout = "Python 3.12.3\\n"\n'
SITE = "/venv/lib/python3.12/site-packages"


def host(tmp_path, files=(), env=None, nodes="", more="", commands=VERSION):
    paths = "".join(f"\"{path}\" = '''{text}'''\n" for path, text in dict(files).items())
    variables = "".join(f"{name} = '{value}'\n" for name, value in (env or {}).items())
    head = f'python = "/venv/bin/python"\n{more}\n'
    return written(tmp_path, f"{head}[env]\n{variables}[files]\n{paths}[nodes]\n{nodes}\n{commands}")


VERSION_PY = "__version__ = '{0}'\ndebug = False\ncuda: Optional[str] = {1}\nhip: Optional[str] = {2}\n"


@cases(
    "text, version, cuda, hip",
    {
        "CUDA": (VERSION_PY.format("2.9.1+cu130", "'13.0'", "None"), "2.9.1+cu130", Release.parse("13.0"), None),
        "CPU": (VERSION_PY.format("2.9.1+cpu", "None", "None"), "2.9.1+cpu", None, None),
        "ROCm": (VERSION_PY.format("2.9.1+rocm6.4", "None", "'6.4.1'"), "2.9.1+rocm6.4", None, "6.4.1"),
        "an old shape": ("__version__ = '1.13.1'\ncuda = '11.7'\nhip = None\n", "1.13.1", Release.parse("11.7"), None),
        "double quotes": ('__version__ = "2.9.0"\ncuda: str | None = "12.8"\n', "2.9.0", Release.parse("12.8"), None),
    },
)
def test_torch_is_read_from_its_version_file(tmp_path, text, version, cuda, hip):
    torch = read_python(host(tmp_path, {f"{SITE}/torch/version.py": text})).torch
    assert (torch.version, torch.cuda, torch.hip) == (version, cuda, hip)


def test_a_version_file_that_says_nothing_is_unknown(tmp_path):
    assert isinstance(read_python(host(tmp_path, {f"{SITE}/torch/version.py": "x = 1"})).torch, Unknown)


def test_a_python_that_does_not_run_is_unknown(tmp_path):
    assert read_python(host(tmp_path, commands="")) == Unknown("/venv/bin/python --version ended with status 127")


def test_packages_are_read_by_metadata_and_named_as_on_the_index(tmp_path):
    files = {
        f"{SITE}/flash_attn-2.8.3.dist-info/WHEEL": "Tag: cp312-cp312-linux_x86_64\n",
        f"{SITE}/nvidia_cublas_cu12-12.8.4.1.dist-info/WHEEL": "Tag: py3-none-manylinux_2_27_x86_64\n",
        f"{SITE}/torch-2.9.1+cu128.dist-info/METADATA": "",
        f"{SITE}/requests-2.32.dist-info/WHEEL": "Tag: py3-none-any\n",
        f"{SITE}/torch/__init__.py": "raise SystemExit('a probe imported torch')",
    }
    found = read_python(host(tmp_path, files)).packages
    assert [(package.name, package.version, package.tag) for package in found] == [
        ("flash-attn", "2.8.3", "cp312-cp312-linux_x86_64"),
        ("nvidia-cublas-cu12", "12.8.4.1", "py3-none-manylinux_2_27_x86_64"),
        ("torch", "2.9.1+cu128", ""),
    ]


@pytest.mark.parametrize("key", ["version", "version_info"])
def test_the_active_environment_comes_before_devkits_own_and_is_not_started(tmp_path, key):
    nodes = '"/work/venv/bin/python" = { kind = "file", mode = 0o755 }'
    files = {"/work/venv/pyvenv.cfg": f"home = /usr/bin\n{key} = 3.11.9\n"}
    env = {"VIRTUAL_ENV": "/work/venv"}
    found = read_python(host(tmp_path, env=env, nodes=nodes, files=files))
    assert (found.executable, str(found.version)) == ("/work/venv/bin/python", "3.11.9")
    unsaid = read_python(host(tmp_path, env=env, nodes=nodes))
    assert "/work/venv/bin/python was not started" in unsaid.reason


def test_in_an_image_the_first_python_on_path_is_the_projects(tmp_path):
    command = '[[command]]\nargv = ["{0}", "--version"]\nout = "Python 3.10.14\\n"\n'
    nodes = '"/opt/conda/bin/python3" = { kind = "file", mode = 0o755 }'
    env = {"PATH": "/usr/local/bin:/opt/conda/bin"}
    machine = host(tmp_path, env=env, nodes=nodes, commands=command.format("/opt/conda/bin/python3"))
    machine._python = "/opt/devkit/bin/python"
    found = read_python(machine)
    assert (found.executable, str(found.version)) == ("/opt/conda/bin/python3", "3.10.14")


def test_an_environment_that_is_gone_is_passed_over(tmp_path):
    assert read_python(host(tmp_path, env={"VIRTUAL_ENV": "/gone"})).executable == "/venv/bin/python"


def test_libraries_that_hide_the_wheels_own_are_found(tmp_path):
    names = (
        "libcudart.so.12",
        "libcublas.so.12.4.5.8",
        "libcudnn_ops.so.9",
        "libnccl.so.2",
        "libfoo.so",
        "libcuda.so.1",
    )
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64::relative:/empty"}
    found = read_python(host(tmp_path, {f"/usr/local/cuda/lib64/{name}": "" for name in names}, env))
    assert found.ld_library_path == ("/usr/local/cuda/lib64", "/empty")
    assert [path.rpartition("/")[2] for path in found.shadowing_libraries] == sorted(names[:4])


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        pytest.param({}, {}, "", id="no container"),
        pytest.param({"/.dockerenv": ""}, {}, "docker", id="Docker"),
        pytest.param({"/run/.containerenv": ""}, {}, "podman", id="Podman"),
        pytest.param({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", id="Kubernetes"),
        pytest.param({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer", id="Apptainer"),
        pytest.param({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "apptainer", id="its old name"),
        pytest.param({"/proc/1/cgroup": "1:name=systemd:/docker/abc"}, {}, "docker", id="by the cgroup"),
        pytest.param({"/proc/1/cgroup": "0::/init.scope"}, {}, "", id="the cgroup of a plain system"),
        pytest.param({}, {"container": "lxc"}, "lxc", id="LXC by its manager's variable"),
        pytest.param({"/run/systemd/container": "lxc\n"}, {}, "lxc", id="LXC by systemd, in a login shell"),
        pytest.param({"/.flatpak-info": "", "/run/.containerenv": ""}, {}, "flatpak", id="an editor's Flatpak"),
        pytest.param({}, {"container": "systemd-nspawn"}, "unknown", id="some other container"),
    ],
)
def test_the_kind_of_container_is_known_by_its_marks(tmp_path, files, env, kind):
    assert detect_container(host(tmp_path, files, env)) == kind


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        pytest.param("shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0", 64 << 20, id="Docker's default"),
        pytest.param("shm /dev/shm tmpfs rw,size=8g 0 0", 8 << 30, id="in gibibytes"),
        pytest.param("shm /dev/shm tmpfs rw,size=1048576 0 0", 1 << 20, id="in bytes"),
        pytest.param("tmpfs /dev/shm tmpfs rw,inode64 0 0", 500 * 1024, id="the kernel's default is half the memory"),
        pytest.param("tmpfs /dev/shm2 tmpfs rw,size=1k 0 0", Unknown("/dev/shm is not mounted"), id="not mounted"),
    ],
)
def test_shared_memory_is_read_from_the_mounts(tmp_path, mounts, size):
    files = {"/.dockerenv": "", "/proc/mounts": mounts + "\n", "/proc/meminfo": "MemTotal:       1000 kB\n"}
    assert read_container(host(tmp_path, files)).shm_bytes == size


CACHE = '[[command]]\nargv = ["ldconfig", "-p"]\nout = "{0}"\n'


@cases(
    "cache, known",
    {
        "known": (CACHE.format("\\tlibcuda.so (libc6,x86-64) => /usr/lib/libcuda.so\\n"), True),
        "only the versioned name": (CACHE.format("\\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\\n"), False),
        "only for 32 bits": (CACHE.format("\\tlibcuda.so (libc6) => /usr/lib32/libcuda.so\\n"), False),
        "no ldconfig": ("", Unknown("ldconfig -p ended with status 127")),
    },
)
def test_whether_a_linker_finds_libcuda(tmp_path, cache, known):
    found = read_container(host(tmp_path, {"/.dockerenv": ""}, commands=VERSION + cache))
    assert found.libcuda_in_cache == known


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        pytest.param("/usr/local/cuda-12.8/compat", True, id="a compat folder"),
        pytest.param("/usr/lib/x86_64-linux-gnu", False, id="the injected driver"),
    ],
)
def test_a_compat_libcuda_that_would_win_is_named(tmp_path, path, seen):
    files = {"/.dockerenv": "", f"{path}/libcuda.so.1": ""}
    found = read_container(host(tmp_path, files, {"LD_LIBRARY_PATH": path}))
    assert found.compat_libcuda == (f"{path}/libcuda.so.1" if seen else "")


@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param({}, "", id="no home"),
        pytest.param({"HOME": "/h"}, "/h/.cache/huggingface/hub", id="the default"),
        pytest.param({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub", id="a cache elsewhere"),
        pytest.param({"HOME": "/h", "HF_HOME": "/f", "XDG_CACHE_HOME": "/c"}, "/f/hub", id="a hub home"),
        pytest.param({"HF_HOME": "/f", "HF_HUB_CACHE": "/d"}, "/d", id="the cache by name"),
    ],
)
def test_the_hub_cache_is_where_the_hub_library_looks(tmp_path, env, path):
    assert find_hub_cache(host(tmp_path, env=env)) == path


def test_a_directory_that_does_not_exist_yet_is_as_good_as_its_parent(tmp_path):
    files = {"/proc/mounts": "/dev/a / ext4 rw 0 0\n/dev/b /data xfs rw 0 0\n", "/data/x": ""}
    found = read_storage(
        host(tmp_path, files, {"HF_HUB_CACHE": "/data/hub/deep"}, more='writable = ["/data"]'), project="/"
    )
    cache = found.directories[0]
    assert (cache.exists, cache.is_writable, cache.file_system, cache.owner_uid) == (False, True, "xfs", -1)
    assert isinstance(cache.free_bytes, Unknown)


def test_the_folder_that_the_engine_names_is_read_instead_of_the_usual_ones(tmp_path):
    files = {"/var/lib/docker/x": "", "/mnt/small/docker/x": ""}
    for folder, read in (("", "/var/lib/docker"), ("/mnt/small/docker", "/mnt/small/docker")):
        found = read_storage(host(tmp_path, files), project="/", engine_folder=folder)
        assert [one.path for one in found.directories if one.purpose == "engine data"] == [read]


def test_what_graphics_lack_is_read_where_they_are_requested(tmp_path):
    names = ("libEGL.so.1", "libEGL_nvidia.so.0")
    lines = "".join(f"\\t{name} (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/{name}\\n" for name in names)
    files = {"/.dockerenv": "", "/etc/vulkan/icd.d/nvidia_icd.json": "{}"}
    files |= {f"/usr/lib/x86_64-linux-gnu/{name}": "" for name in names}
    env = {"NVIDIA_DRIVER_CAPABILITIES": "compute,graphics"}
    cases = {"with": (env, CACHE.format(lines)), "without": ({}, CACHE.format(lines)), "unread": (env, "")}
    found = {}
    for name, (variables, cache) in cases.items():
        (tmp_path / name).mkdir()
        machine = host(tmp_path / name, files, variables, commands=VERSION + cache)
        found[name] = read_container(machine).missing_graphics
    assert found["with"] == ("libvulkan.so.1", "10_nvidia.json")
    assert isinstance(found["without"], Unknown)
    assert isinstance(found["unread"], Unknown)


# The native libraries around a Python, what is installed twice, and a Jetson.


USERS = "/home/dev/.local/lib/python3.12/site-packages"


def host_with_libraries(tmp_path, files=(), env=(), links=(), nodes=()):
    tables = {"env": dict(env), "files": dict(files), "links": dict(links)}
    text = 'python = "/venv/bin/python"\n'
    for name, values in tables.items():
        text += f"[{name}]\n" + "".join(f"\"{key}\" = '''{value}'''\n" for key, value in values.items())
    text += "[nodes]\n" + "".join(f'"{path}" = {{ kind = "file", mode = 0o755 }}\n' for path in nodes)
    return written(tmp_path, text + '[[command]]\nargv = ["{python}", "--version"]\nout = "Python 3.12.3\\n"\n')


NEW = '{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}, "cuda_nvcc": {"version": "12.8.93"}}'


@pytest.mark.parametrize(
    ("files", "links", "version"),
    [
        pytest.param({"/opt/cuda/version.json": NEW}, {}, "12.8.93", id="by the compiler's own entry"),
        pytest.param({"/opt/cuda/version.json": '{"cuda": {"version": "11.1.0"}}'}, {}, "11.1.0", id="by the whole"),
        pytest.param({"/opt/cuda/version.txt": "CUDA Version 10.2.89\n"}, {}, "10.2.89", id="by the old text file"),
        pytest.param({"/opt/cuda-12.4/bin/nvcc": ""}, {"/opt/cuda": "/opt/cuda-12.4"}, "12.4", id="by its folder"),
        pytest.param({"/opt/cuda/version.json": '{"cuda"'}, {}, None, id="a file that was cut off"),
        pytest.param({"/opt/cuda/version.json": "[1]"}, {}, None, id="another document"),
        pytest.param({"/opt/cuda/version.json": '{"cuda": 12}'}, {}, None, id="another shape"),
        pytest.param({}, {}, None, id="nothing says it"),
    ],
)  # fmt: skip
def test_a_toolkits_version_is_read_from_its_files(tmp_path, files, links, version):
    machine = host_with_libraries(
        tmp_path, {"/opt/cuda/bin/nvcc": ""} | files if not links else files, {"CUDA_HOME": "/opt/cuda/"}, links
    )
    found = read_cuda_toolkit(machine)
    said = Release.parse(version) if version else Unknown("/opt/cuda does not state its version")
    assert found == CudaFolder("/opt/cuda", "CUDA_HOME", said)


@pytest.mark.parametrize(
    ("env", "nodes", "found_by"),
    [
        pytest.param({"CUDA_HOME": "/a"}, ["/a/bin/nvcc", "/b/bin/nvcc"], "CUDA_HOME", id="the variable comes first"),
        pytest.param({"CUDA_HOME": "/gone", "PATH": "/b/bin"}, ["/b/bin/nvcc"], "PATH", id="unless it leads nowhere"),
        pytest.param({}, ["/usr/local/cuda/bin/nvcc"], "the default", id="the default folder comes last"),
        pytest.param({}, ["/usr/local/cuda/lib64/libcudart.so"], None, id="a runtime image has no compiler"),
    ],
)
def test_the_toolkit_of_a_build_is_found_as_torch_finds_it(tmp_path, env, nodes, found_by):
    found = read_cuda_toolkit(host_with_libraries(tmp_path, env=env, nodes=nodes))
    assert (found.found_by if found else None) == found_by


def test_libraries_before_the_wheels_own_carry_their_version(tmp_path):
    links = {"/old/libnvJitLink.so.12": "/old/libnvJitLink.so.12.1.105"}
    machine = host_with_libraries(
        tmp_path, {"/old/libnvJitLink.so.12.1.105": "", "/old/libfoo.so": ""}, {"LD_LIBRARY_PATH": "/old"}, links
    )
    assert read_shadowing(machine)[0] == Library("/old/libnvJitLink.so.12", Release.parse("12.1.105"))
    assert {library.path for library in read_shadowing(machine)} == {*links, *links.values()}


@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param({"LD_LIBRARY_PATH": "/first"}, "/first", id="LD_LIBRARY_PATH"),
        pytest.param({}, "/conda/lib", id="conda's own"),
    ],
)
def test_the_cpp_library_is_the_first_one(tmp_path, env, path):
    folders = ("/first", "/conda/lib", "/usr/lib/x86_64-linux-gnu")
    files = {f"{folder}/libstdc++.so.6.0.30": "" for folder in folders}
    links = {f"{folder}/libstdc++.so.6": f"{folder}/libstdc++.so.6.0.30" for folder in folders}
    found = read_libstdcxx(host_with_libraries(tmp_path, files, env, links), "/conda")
    assert found == Library(f"{path}/libstdc++.so.6", Release.parse("6.0.30"))


METADATA = """Metadata-Version: 2.4
Name: torch
Requires-Dist: triton==3.5.1; platform_system == "Linux"
Requires-Dist: Nvidia_CUDNN.cu12==9.10.2.21
Requires-Dist: requests>=2
Requires-Dist: bitsandbytes>=0.46; extra == "quantized"

Requires-Dist: transformers==1
"""


def test_requirements_are_those_that_matter_here(tmp_path):
    (torch,) = read_python(host_with_libraries(tmp_path, {f"{SITE}/torch-2.9.1.dist-info/METADATA": METADATA})).packages
    assert torch.requires == ('triton==3.5.1; platform_system == "Linux"', "Nvidia_CUDNN.cu12==9.10.2.21")


def test_a_package_without_metadata_is_still_a_package(tmp_path):
    (torch,) = read_python(host_with_libraries(tmp_path, {f"{SITE}/torch-2.9.1.dist-info/WHEEL": ""})).packages
    assert torch.requires == Unknown("the package came without metadata")


TWICE = {f"{SITE}/torch-2.8.0.dist-info/METADATA": "", f"{USERS}/torch-2.9.1.dist-info/METADATA": ""}
HOME = {"HOME": "/home/dev"}
SHARES = {"/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n"}
CLOSED = {"/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n"}


@pytest.mark.parametrize(
    ("files", "env", "version", "copies"),
    [
        pytest.param(TWICE, HOME, "2.9.1", 2, id="the user's own folder comes before the system's"),
        pytest.param(TWICE | SHARES, HOME, "2.8.0", 2, id="but after a virtual environment's"),
        pytest.param(TWICE | CLOSED, HOME, "2.8.0", 0, id="and is not read by a closed one"),
        pytest.param(TWICE, HOME | {"PYTHONNOUSERSITE": "1"}, "2.8.0", 0, id="nor when it is switched off"),
        pytest.param(TWICE, {}, "2.8.0", 0, id="nor without a home"),
    ],
)
def test_the_users_own_packages_stand_where_python_puts_them(tmp_path, files, env, version, copies):
    found = read_python(host_with_libraries(tmp_path, files, env))
    assert [package.version for package in found.packages] == [version]
    assert len(found.copies) == copies


def test_a_virtual_environment_with_the_systems_packages_shows_them(tmp_path):
    files = SHARES | {"/usr/lib/python3/dist-packages/numpy-1.26.4.dist-info/METADATA": ""}
    assert [package.name for package in read_python(host_with_libraries(tmp_path, files)).packages] == ["numpy"]


@pytest.mark.parametrize(
    ("files", "installer"),
    [
        pytest.param({}, "pip", id="pip"),
        pytest.param({"/venv/pyvenv.cfg": "home = /usr/bin\nuv = 0.9.11\n"}, "uv", id="uv signs its environments"),
        pytest.param({"/venv/conda-meta/history": ""}, "conda", id="conda keeps a history"),
    ],
)
def test_who_installs_here(tmp_path, files, installer):
    assert read_python(host_with_libraries(tmp_path, files)).installer == installer


MODEL = {"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit"}


@cases(
    "files, tegra",
    {
        "no device tree": ({}, None),
        "another board": ({"/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0"}, None),
        "an NVIDIA machine that is no Tegra": ({"/proc/device-tree/model": "NVIDIA DGX Spark"}, None),
        "in a container": (MODEL, Tegra("NVIDIA Jetson AGX Orin Developer Kit", None)),
        "with its release": (
            MODEL | {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, GCID: 42132812"},
            Tegra("NVIDIA Jetson AGX Orin Developer Kit", Release.parse("36.4.7")),
        ),
        "an old one": ({"/etc/nv_tegra_release": "# R32 (release), REVISION: 7.1"}, Tegra("", Release.parse("32.7.1"))),
        "garbage": ({"/etc/nv_tegra_release": "garbage"}, None),
    },
)
def test_a_jetson_is_known_by_its_board(tmp_path, files, tegra):
    assert read_tegra(host_with_libraries(tmp_path, files)) == tegra


KERNEL = '[files]\n"/proc/sys/kernel/osrelease" = "{0}\\n"\n'
DXG = '[nodes]\n"/dev/dxg" = {{ kind = "character" }}\n'
UNAME = '[[command]]\nargv = ["uname", "-s", "-r", "-m"]\nout = "{0}"\n'


@cases(
    "text, platform",
    {
        "plain Linux": (KERNEL.format("6.8.0-87-generic"), Platform.LINUX),
        "WSL 2": (KERNEL.format("5.15.167.4-microsoft-standard-WSL2"), Platform.WSL2),
        "WSL 1": (KERNEL.format("4.4.0-19041-Microsoft"), Platform.WSL1),
        "own kernel": ('[env]\nWSL_DISTRO_NAME = "x"\n' + KERNEL.format("6.6.0-mine") + DXG.format(), Platform.WSL2),
        "own kernel, no GPU device": ('[env]\nWSL_DISTRO_NAME = "x"\n' + KERNEL.format("6.6.0-mine"), Platform.LINUX),
        "the device without other signs": (KERNEL.format("6.6.0-azure") + DXG.format(), Platform.LINUX),
        "macOS": (UNAME.format("Darwin 24.6.0 arm64"), Platform.MACOS),
        "Windows": ('[env]\nOS = "Windows_NT"\n', Platform.WINDOWS),
        "a leaked Windows variable": ('[env]\nOS = "Windows_NT"\n' + KERNEL.format("6.8.0"), Platform.LINUX),
    },
)
def test_the_platform_is_known_by_its_kernel(tmp_path, text, platform):
    assert read_platform(written(tmp_path, text)) is platform


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        pytest.param("Linux 6.8.0 x86_64", ("6.8.0", "x86_64"), id="Linux"),
        pytest.param("Darwin 24.6.0 arm64", ("24.6.0", "aarch64"), id="Apple's name for aarch64"),
        pytest.param("", ("", ""), id="no answer"),
    ],
)
def test_the_machine_is_named_as_linux_names_it(tmp_path, printed, expected):
    assert read_kernel_and_machine(written(tmp_path, UNAME.format(printed))) == expected


def status(groups, user=1000):
    ids = "\\t".join([str(user)] * 4)
    return f'"/proc/self/status" = "Uid:\\t{ids}\\nGid:\\t{ids}\\nGroups:\\t{groups}\\n"\n'


ACCOUNTS = '"/etc/passwd" = "ann:x:1000:1000::/home/ann:/bin/sh\\n"\n'
MEMBER = '"/etc/group" = "root:x:0:\\ndocker:x:998:bob,ann\\n"\n'
OUTSIDER = '"/etc/group" = "docker:x:998:bob,joann\\n"\n'


@pytest.mark.parametrize(
    ("files", "member", "active"),
    [
        pytest.param(status("998") + ACCOUNTS + MEMBER, True, True, id="a member in a new session"),
        pytest.param(status("27") + ACCOUNTS + MEMBER, True, False, id="a member whose session is older"),
        pytest.param(status("27") + ACCOUNTS + OUTSIDER, False, False, id="another name that ends the same"),
        pytest.param(status("27") + ACCOUNTS + '"/etc/group" = "root:x:0:\\n"\n', False, False, id="no such group"),
        pytest.param(status("998") + ACCOUNTS + OUTSIDER, True, True, id="a group that a directory service gave"),
    ],
)
def test_group_membership_differs_from_the_groups_of_the_session(tmp_path, files, member, active):
    system = read_system(written(tmp_path, f"[files]\n{files}"))
    assert (system.in_docker_group, system.docker_group_is_active) == (member, active)


@pytest.mark.parametrize(("user", "is_root"), [(0, True), (1000, False)], ids=["root", "anybody else"])
def test_root_is_known_by_number(tmp_path, user, is_root):
    assert read_system(written(tmp_path, "[files]\n" + status("0", user=user))).is_root is is_root


def test_quoted_and_plain_values_of_os_release_are_read(tmp_path):
    text = "ID=fedora\nVERSION_ID=42\nPRETTY_NAME=\"Fedora Linux 42\"\nID_LIKE='rhel centos'\n"
    found = read_system(written(tmp_path, f'[files]\n"/etc/os-release" = """{text}"""\n')).distribution
    assert (found.id, found.version, found.name, found.like) == ("fedora", "42", "Fedora Linux 42", ("rhel", "centos"))
