"""What source distributions are built with: read within bounds from their build files, which are never run."""

import gzip
import tarfile
import zipfile
from pathlib import Path

import pytest

from devkit.probe import source_distributions
from devkit.probe.dependencies.build_files import read_source_build
from devkit.probe.dependencies.local_builds import find_local_builds
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.source_distributions import read_source_builds
from tests.wheels import make_archive

KNOWN = {"programs": {"cmake", "make", "swig", "cargo", "pkg-config"}, "headers": {"portaudio.h", "mpi.h"}}


def read(files: dict[str, str]) -> dict[str, str]:
    """Read a distribution of these files: what it needs, and where that stands."""
    build = read_source_build("it", files, files, **KNOWN)
    return {f"{each.kind} {each.name}": each.origin for each in build.needs}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"setup.py": "import os, setuptools\nimport torch\n"}, {"module torch": "setup.py:2"}),
        ({"setup.py": "def ext():\n    import numpy, yaml\n"}, {"module numpy": "setup.py:2"}),
        ({"setup.py": "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n"}, {}),
        (
            {"setup.py": "try:\n    from pip._internal.req import x\nexcept ImportError:\n    from pip.req import x\n"},
            {"module pip": "setup.py:2"},
        ),
        (
            {"setup.py": "try:\n    import numpy\nexcept ImportError:\n    raise SystemExit(1)\n"},
            {"module numpy": "setup.py:2"},
        ),
        ({"setup.py": "def ext():\n    import numpy\nsetup(setup_requires=['numpy>=1'])\n"}, {}),
        ({"setup.py": "import own\n", "own/__init__.py": "import yaml\n"}, {"module yaml": "own/__init__.py:1"}),
        ({"setup.py": "sys.path.insert(0, 'gym')\nimport version\n", "gym/version.py": ""}, {}),
        ({"setup.py": "import yaml\n", "own/backends/yaml.py": ""}, {"module yaml": "setup.py:1"}),
        ({"setup.py": "sys.path.insert(0, 'x')\nimport torch\n", "own/torch.py": ""}, {"module torch": "setup.py:2"}),
        (
            {"setup.py": "import numpy\n", "pyproject.toml": "[build-system]\nrequires = ['numpy', 'torch']\n"},
            {"module torch": "pyproject.toml"},
        ),
        (
            {"setup.py": "check_call(['cmake', path])\n", "CMakeLists.txt": "find_package(PNG REQUIRED)\n"},
            {"program cmake": "setup.py:1", "program make": "setup.py:1", "library PNG": "CMakeLists.txt:1"},
        ),
        (
            {
                "pyproject.toml": "[build-system]\nrequires = ['scikit-build-core']\nbuild-backend = 'skbuild'\n",
                "CMakeLists.txt": "# find_package(A REQUIRED)\nif(X)\nfind_package(B REQUIRED)\nendif()\n"
                "find_package(C)\npkg_check_modules(D REQUIRED IMPORTED_TARGET libd>=2)\n",
            },
            {"program pkg-config": "CMakeLists.txt:6", "library libd": "CMakeLists.txt:6"},
        ),
        (
            {
                "pyproject.toml": "[build-system]\nrequires = ['meson-python']\nbuild-backend = 'mesonpy'\n",
                "src/meson.build": "dependency('cairo', required: cc.get_id() != 'msvc')\n"
                "dependency('x', required: false)\n",
            },
            {"program pkg-config": "src/meson.build:1", "library cairo": "src/meson.build:1"},
        ),
        (
            {
                "setup.py": "libraries = ['portaudio']\nif sys.platform == 'win32':\n    libraries = ['user32']\n",
                "src/a.c": "#include <stdio.h>\n#include <portaudio.h>\n",
                "tests/b.c": "#include <mpi.h>\n",
            },
            {"library portaudio": "setup.py:1", "header portaudio.h": "src/a.c:2"},
        ),
        ({"src__a_of_c": '#include "mpi.h"\n', "lib/mpi.h": "", "setup.py": ""}, {}),
        (
            {"setup.py": "setup(ext=[Extension('a', ['a.i'])], install_requires=['cmake'])"},
            {"program swig": "setup.py:1"},
        ),
        ({"pyproject.toml": "[build-system]\nrequires = ['setuptools-rust']\n"}, {"program cargo": "pyproject.toml"}),
        ({"setup.py": "print 'of Python 2'\n", "pyproject.toml": "[[["}, {}),
    ],
)
def test_what_build_files_say(files, expected):
    assert read(files) == expected


def test_a_folder_of_the_project_is_read_the_same_way(tmp_path):
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext/setup.py").write_text("import os\n\nos.system('cmake')\nsetup(name='ext')\n")
    (found,) = find_local_builds(ProjectFiles(LocalHost(), str(tmp_path)), ["ext"])
    assert [(each.name, each.origin) for each in found.needs] == [
        ("cmake", "ext/setup.py:3"),
        ("make", "ext/setup.py:3"),
    ]


def describe(path: Path) -> list[str]:
    source_distributions._read.cache_clear()
    return [each.name for build in read_source_builds({"it": path.as_uri()}) for each in build.needs]


def test_an_archive_is_read_and_nothing_of_it_written(tmp_path):
    files = {"setup.py": "import torch", "../../escape/setup.py": "import yaml", "/etc/x/setup.py": "import yaml"}
    path = make_archive(tmp_path, "it-1", files)
    assert describe(path) == ["torch"]
    assert [*tmp_path.iterdir()] == [path]
    with zipfile.ZipFile(tmp_path / "it-1.zip", "w") as archive:
        archive.writestr("it-1/setup.py", "import numpy")
    assert describe(tmp_path / "it-1.zip") == ["numpy"]


@pytest.mark.parametrize(
    ("files", "provides"),
    [
        ({"src/it/__init__.py": "", "setup.py": "", "it.egg-info/top_level.txt": "mmcv\nops\n"}, {"mmcv", "ops"}),
        ({"lib3/it/__init__.py": "", "more/x.py": ""}, set()),
    ],
)
def test_the_modules_of_an_archive_are_those_that_it_lists(tmp_path, files, provides):
    source_distributions._read.cache_clear()
    path = make_archive(tmp_path, "it-1", files)
    assert read_source_builds({"it": path.as_uri()})[0].provides == provides


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    (tmp_path / "secret.py").write_text("import yaml")
    with tarfile.open(tmp_path / "it-1.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("it-1/setup.py")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.py")
        archive.addfile(link)
    assert describe(tmp_path / "it-1.tar.gz") == []


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_UNPACKED_BYTES", "DEADLINE_S"])
def test_beyond_a_bound_it_is_not_read(tmp_path, monkeypatch, bound):
    path = make_archive(tmp_path, "it-1", {"setup.py": "import torch", "big": "0" * 4096})
    assert describe(path) == ["torch"]
    monkeypatch.setattr(source_distributions, bound, 0 if bound == "DEADLINE_S" else 100)
    assert read_source_builds({"other": path.as_uri()}) == ()


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"no archive" * 99, mtime=0)])
def test_what_is_no_archive_is_left_out(tmp_path, content):
    (tmp_path / "it-1.tar.gz").write_bytes(content)
    assert describe(tmp_path / "it-1.tar.gz") == []
    assert read_source_builds({"a": "ftp://x.example/a-1.tar.gz", "b": "/etc/passwd"}) == ()


def test_nothing_is_downloaded_where_the_user_is_offline(monkeypatch):
    requests = []
    monkeypatch.setattr(source_distributions.urllib.request, "urlopen", lambda *words, **_: requests.append(words))
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert read_source_builds({"offline": "https://example.org/offline-1.0.tar.gz"}) == ()
    assert requests == []
