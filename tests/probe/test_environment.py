"""The Python, the container and the directories of a workload."""

import pytest

from devkit.facts.values import Release, Unknown
from devkit.probe.machine.environment import detect_container, read_container
from devkit.probe.machine.python import read_python
from devkit.probe.machine.resources import find_hub_cache, read_storage
from tests.hosts import written

VERSION = '[[command]]\nargv = ["{python}", "--version"]\nout = "Python 3.12.3\\n"\n'
SITE = "/venv/lib/python3.12/site-packages"


def host(tmp_path, files=(), env=None, nodes="", more="", commands=VERSION):
    paths = "".join(f"\"{path}\" = '''{text}'''\n" for path, text in dict(files).items())
    variables = "".join(f"{name} = '{value}'\n" for name, value in (env or {}).items())
    head = f'python = "/venv/bin/python"\n{more}\n'
    return written(tmp_path, f"{head}[env]\n{variables}[files]\n{paths}[nodes]\n{nodes}\n{commands}")


VERSION_PY = "__version__ = '{0}'\ndebug = False\ncuda: Optional[str] = {1}\nhip: Optional[str] = {2}\n"


@pytest.mark.parametrize(
    ("text", "version", "cuda", "hip"),
    [
        pytest.param(
            VERSION_PY.format("2.9.1+cu130", "'13.0'", "None"), "2.9.1+cu130", Release.parse("13.0"), None, id="CUDA"
        ),
        pytest.param(VERSION_PY.format("2.9.1+cpu", "None", "None"), "2.9.1+cpu", None, None, id="CPU"),
        pytest.param(VERSION_PY.format("2.9.1+rocm6.4", "None", "'6.4.1'"), "2.9.1+rocm6.4", None, "6.4.1", id="ROCm"),
        pytest.param(
            "__version__ = '1.13.1'\ncuda = '11.7'\nhip = None\n",
            "1.13.1",
            Release.parse("11.7"),
            None,
            id="an old shape",
        ),
        pytest.param(
            '__version__ = "2.9.0"\ncuda: str | None = "12.8"\n',
            "2.9.0",
            Release.parse("12.8"),
            None,
            id="double quotes",
        ),
    ],
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


def test_the_active_environment_comes_before_devkits_own(tmp_path):
    commands = '[[command]]\nargv = ["/work/venv/bin/python", "--version"]\nout = "Python 3.11.9"\n'
    nodes = '"/work/venv/bin/python" = { kind = "file", mode = 0o755 }'
    found = read_python(host(tmp_path, env={"VIRTUAL_ENV": "/work/venv"}, nodes=nodes, commands=commands))
    assert (found.executable, str(found.version)) == ("/work/venv/bin/python", "3.11.9")


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
        pytest.param({}, {"container": "lxc"}, "unknown", id="some other container"),
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


@pytest.mark.parametrize(
    ("cache", "known"),
    [
        pytest.param(CACHE.format("\\tlibcuda.so (libc6,x86-64) => /usr/lib/libcuda.so\\n"), True, id="known"),
        pytest.param(
            CACHE.format("\\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\\n"),
            False,
            id="only the versioned name",
        ),
        pytest.param(CACHE.format("\\tlibcuda.so (libc6) => /usr/lib32/libcuda.so\\n"), False, id="only for 32 bits"),
        pytest.param("", Unknown("ldconfig -p ended with status 127"), id="no ldconfig"),
    ],
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


def test_a_folder_beside_a_mount_point_is_not_on_it(tmp_path):
    files = {"/proc/mounts": "/dev/a / ext4 rw 0 0\nx /data nfs4 rw 0 0\n", "/database/x": ""}
    found = read_storage(host(tmp_path, files), project="/database")
    assert next(d for d in found.directories if d.purpose == "workspace").file_system == "ext4"


def test_the_folder_that_the_engine_names_is_read_instead_of_the_usual_ones(tmp_path):
    files = {"/var/lib/docker/x": "", "/mnt/small/docker/x": ""}
    for folder, read in (("", "/var/lib/docker"), ("/mnt/small/docker", "/mnt/small/docker")):
        found = read_storage(host(tmp_path, files), project="/", engine_folder=folder)
        assert [one.path for one in found.directories if one.purpose == "engine data"] == [read]
