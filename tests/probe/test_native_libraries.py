"""The native libraries around a Python, what is installed twice, and a Jetson."""

import pytest

from devkit.facts.model import CudaFolder, Library, Tegra
from devkit.facts.values import Release, Unknown
from devkit.probe.machine.operating_system import read_tegra
from devkit.probe.machine.python import read_cuda_toolkit, read_libstdcxx, read_python, read_shadowing
from tests.hosts import written

SITE = "/venv/lib/python3.12/site-packages"
USERS = "/home/dev/.local/lib/python3.12/site-packages"


def host(tmp_path, files=(), env=(), links=(), nodes=()):
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
    machine = host(
        tmp_path, {"/opt/cuda/bin/nvcc": ""} | files if not links else files, {"CUDA_HOME": "/opt/cuda/"}, links
    )
    found = read_cuda_toolkit(machine)
    said = Release.parse(version) if version else Unknown("/opt/cuda does not say its version")
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
    found = read_cuda_toolkit(host(tmp_path, env=env, nodes=nodes))
    assert (found.found_by if found else None) == found_by


def test_libraries_before_the_wheels_own_carry_their_version(tmp_path):
    links = {"/old/libnvJitLink.so.12": "/old/libnvJitLink.so.12.1.105"}
    machine = host(
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
    found = read_libstdcxx(host(tmp_path, files, env, links), "/conda")
    assert found == Library(f"{path}/libstdc++.so.6", Release.parse("6.0.30"))


def test_no_cpp_library_is_a_fact(tmp_path):
    assert read_libstdcxx(host(tmp_path), "/conda") is None


METADATA = """Metadata-Version: 2.4
Name: torch
Requires-Dist: triton==3.5.1; platform_system == "Linux"
Requires-Dist: Nvidia_CUDNN.cu12==9.10.2.21
Requires-Dist: requests>=2
Requires-Dist: bitsandbytes>=0.46; extra == "quantised"

Requires-Dist: transformers==1
"""


def test_requirements_are_those_that_matter_here(tmp_path):
    (torch,) = read_python(host(tmp_path, {f"{SITE}/torch-2.9.1.dist-info/METADATA": METADATA})).packages
    assert torch.requires == ('triton==3.5.1; platform_system == "Linux"', "Nvidia_CUDNN.cu12==9.10.2.21")


def test_a_package_without_metadata_is_still_a_package(tmp_path):
    (torch,) = read_python(host(tmp_path, {f"{SITE}/torch-2.9.1.dist-info/WHEEL": ""})).packages
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
    found = read_python(host(tmp_path, files, env))
    assert [package.version for package in found.packages] == [version]
    assert len(found.copies) == copies


def test_a_virtual_environment_with_the_systems_packages_shows_them(tmp_path):
    files = SHARES | {"/usr/lib/python3/dist-packages/numpy-1.26.4.dist-info/METADATA": ""}
    assert [package.name for package in read_python(host(tmp_path, files)).packages] == ["numpy"]


@pytest.mark.parametrize(
    ("files", "installer"),
    [
        pytest.param({}, "pip", id="pip"),
        pytest.param({"/venv/pyvenv.cfg": "home = /usr/bin\nuv = 0.9.11\n"}, "uv", id="uv signs its environments"),
        pytest.param({"/venv/conda-meta/history": ""}, "conda", id="conda keeps a history"),
    ],
)
def test_who_installs_here(tmp_path, files, installer):
    assert read_python(host(tmp_path, files)).installer == installer


MODEL = {"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit"}


@pytest.mark.parametrize(
    ("files", "tegra"),
    [
        pytest.param({}, None, id="no device tree"),
        pytest.param({"/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0"}, None, id="another board"),
        pytest.param({"/proc/device-tree/model": "NVIDIA DGX Spark"}, None, id="an NVIDIA machine that is no Tegra"),
        pytest.param(MODEL, Tegra("NVIDIA Jetson AGX Orin Developer Kit", None), id="in a container"),
        pytest.param(
            MODEL | {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, GCID: 42132812"},
            Tegra("NVIDIA Jetson AGX Orin Developer Kit", Release.parse("36.4.7")),
            id="with its release",
        ),
        pytest.param(
            {"/etc/nv_tegra_release": "# R32 (release), REVISION: 7.1"},
            Tegra("", Release.parse("32.7.1")),
            id="an old one",
        ),
        pytest.param({"/etc/nv_tegra_release": "garbage"}, None, id="garbage"),
    ],
)
def test_a_jetson_is_known_by_its_board(tmp_path, files, tegra):
    assert read_tegra(host(tmp_path, files)) == tegra
