"""The Debian packages of a plan: why each is in the image, and what is left out."""

from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    BuildNeed,
    LocalBuild,
    PackageRequirement,
    RequirementRole,
    Resolved,
    SourceBuild,
    SystemPackage,
)
from devkit.solver.plan import CompiledPackage, CompileMode
from devkit.solver.project import strip_line_numbers
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve_project
from devkit.solver.system_packages import add_system_packages

MACHINE = build_machine_from_flags(driver="580.95.05", gpus=("RTX 4090",))


def plan(*needs, apt=(), files=("pyproject.toml",), **fields):
    dependencies = replace(NO_DEPENDENCIES, files=files, needs=needs, **fields)
    return solve_project(build_request(machines=(MACHINE,), apt=apt), dependencies, load_tables())


def need(name, *, marker="", role=RequirementRole.PASSED_THROUGH):
    return PackageRequirement(name, "", "requirements.txt", 1, marker=marker, role=role)


def listed(found):
    return {each.field: each.because for each in found.system_packages}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({"name": "openai-whisper"}, "ffmpeg", id="the project itself"),
        pytest.param({"needs": [need("opencv-python")]}, "libgl1 libglib2.0-0", id="a package of the project"),
        pytest.param({"needs": [need("opencv-python-headless")]}, "", id="a wheel that holds its libraries"),
        pytest.param({"needs": [need("mpi4py", marker="sys_platform == 'win32'")]}, "", id="on another system"),
        pytest.param({"needs": [need("psycopg2", role=RequirementRole.CONSTRAINT)]}, "", id="only limited"),
        pytest.param({"system": [SystemPackage("sox", "README.md", 3)]}, "sox", id="a guide"),
        pytest.param({"system": [SystemPackage("libgl1-mesa-glx", "Dockerfile", 3)]}, "libgl1", id="an older name"),
        pytest.param({"system": [SystemPackage("pandoc", "Dockerfile", 3)]}, "", id="not known"),
        pytest.param({"apt": ["htop"], "files": ()}, "htop", id="requested, without any dependencies"),
        pytest.param({"name": "openai-whisper", "apt": ["ffmpeg-", "sox"]}, "sox", id="left out"),
    ],
)
def test_what_is_in_the_image(arguments, expected):
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    assert " ".join(listed(plan(*given.pop("needs", ()), **given))) == expected


def test_each_says_why_and_the_users_own_wish_goes_first():
    found = plan(
        need("ffmpeg-python"),
        system=(SystemPackage("ffmpeg", "README.md", 3), SystemPackage("libegl1-mesa", "Dockerfile", 9)),
        apt=("sox",),
    )
    assert listed(found) == {
        "ffmpeg": "ffmpeg-python runs the program ffmpeg",
        "libegl1": "Dockerfile:9 installs libegl1-mesa",
        "sox": "requested",
    }


def test_a_program_is_not_for_what_another_package_needs_but_a_library_is():
    base = plan()
    deeper = replace(base, packages=(*base.packages, ("pydub", "0.25.1"), ("opencv-python", "5.0.0.93")))
    assert listed(add_system_packages(deeper, NO_DEPENDENCIES, (), load_tables())).keys() == {"libgl1", "libglib2.0-0"}


@pytest.mark.parametrize(("tag", "expected"), [("none-any", ["libsndfile1"]), ("none-manylinux_2_31_x86_64", [])])
def test_a_library_that_the_wheels_for_linux_hold_is_for_those_of_every_machine(tag, expected):
    wheel = f"https://x.example/soundfile-1-py3-{tag}.whl"
    found = replace(plan(), resolution=Resolved((("soundfile", "1"),), wheels=(("soundfile", wheel),)))
    assert [*listed(add_system_packages(found, NO_DEPENDENCIES, (), load_tables()))] == expected


def test_what_a_build_runs_and_links_is_there_unless_it_is_not_built():
    needs = [("program", "cmake"), ("program", "uname"), ("library", "portaudio"), ("library", "PNG"), ("library", "m")]
    build = SourceBuild("it", tuple(BuildNeed(kind, name, "setup.py:3") for kind, name in needs))
    built = replace(plan(), resolution=Resolved((("it", "1.0"),), ("it",), builds=(build,)))
    because = "it is built from source, and its setup.py:3 names"
    assert listed(add_system_packages(built, NO_DEPENDENCIES, (), load_tables())) == {
        "cmake": f"{because} cmake",
        "portaudio19-dev": f"{because} portaudio",
        "libpng-dev": f"{because} PNG",
    }
    left_out = replace(built, compiled=(CompiledPackage("it", CompileMode.LEFT_OUT, "", ""),))
    assert not listed(add_system_packages(left_out, NO_DEPENDENCIES, (), load_tables()))


@pytest.mark.parametrize(("builds_itself", "expected"), [(True, {"cmake"}), (False, set())])
def test_what_the_projects_own_build_runs_is_there_where_it_is_installed(builds_itself, expected):
    own = LocalBuild(".", "own", "", has_cuda=False, requires=(), needs=(BuildNeed("program", "cmake", "setup.py:3"),))
    dependencies = replace(NO_DEPENDENCIES, builds=(own,), builds_itself=builds_itself)
    assert listed(add_system_packages(plan(), dependencies, (), load_tables())).keys() == expected


def test_what_is_not_taken_is_named_but_for_ci_and_what_every_image_has():
    system = (
        SystemPackage("pandoc", "README.md", 3),
        SystemPackage("bash", "README.md", 3),
        SystemPackage("gcc-12", "README.md", 3),
        SystemPackage("cuda-nvcc-12-8", "Dockerfile", 3),
        SystemPackage("xvfb", ".github/workflows/test.yml", 3, is_from_ci=True),
    )
    says = "not in the image, although apt installs it in README.md: pandoc; --apt NAME takes one"
    assert says in plan(system=system).warnings


def test_what_the_code_starts_is_there_and_what_nobody_knows_is_named():
    names = ("egrep", "explorer", "ffprobe", "nvidia-smi", "odd-tool", "unzip", "where.exe")
    found = plan(programs=tuple(SystemPackage(name, "run.py", 3) for name in names))
    assert listed(found) == {"ffmpeg": "run.py:3 runs ffprobe", "unzip": "run.py:3 runs unzip"}
    assert [each for each in found.warnings if "the code runs" in each] == [
        "not in the image, although the code runs it: odd-tool (run.py:3); --apt NAME adds a package"
    ]


def test_a_stored_plan_has_no_line_numbers():
    found = replace(NO_DEPENDENCIES, system=(SystemPackage("sox", "README.md", 3),))
    found = replace(found, programs=(SystemPackage("unzip", "run.py", 3),))
    stored = strip_line_numbers(plan(system=found.system, programs=found.programs), found)
    assert listed(stored) == {"sox": "README.md installs it", "unzip": "run.py runs unzip"}


@pytest.mark.parametrize("name", ["FFmpeg", "x", "libsox dev", "$(id)", "a;b", "-y", "ffmpeg=7"])
def test_only_names_of_packages_are_taken(name):
    with pytest.raises(DevkitError, match="not the name of a Debian package"):
        build_request(machines=(MACHINE,), apt=(name,))
