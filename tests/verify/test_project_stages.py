"""The project imports, what it requires imports, and its command runs; or the first cause is named."""

import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.facts.dependencies import Dependencies, PackageManager, PackageRequirement, RequirementRole
from devkit.facts.values import Release
from devkit.probe.machine.interpreter import WorkloadPython
from devkit.verify import project_stages
from devkit.verify.project_stages import ProjectEnvironment, find_debian_package, find_help_commands, prove_project
from devkit.workload.proof.stages import StageStatus
from tests.cases import cases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the container's paths and shell")

MISSING_LIBRARY = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
RAISE = "raise {}('{}')"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An environment without pip, in which tests install distributions that they make up."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    return WorkloadPython(str(folder / "bin/python"), Release.parse("3.11.7"), (), (), "")


@pytest.fixture
def project(tmp_path, python):
    """Makes a project that requires distributions, each with the source of its module, None for one not installed."""
    site = next(Path(python.executable).parents[1].glob("lib/python3.*/site-packages"))
    made = []

    def make(installed=(), *, files=(), entry_points="", own=""):
        for name, module, source in installed:
            if source is None:
                continue
            folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (folder / "RECORD").write_text(f"{module}.py,,\n{folder.name}/METADATA,,\ntests/test_it.py,,\n")
            (site / f"{module}.py").write_text(source)
            made.extend((folder, site / f"{module}.py"))
            if name == own:
                (folder / "direct_url.json").write_text(f'{{"url": "{tmp_path.as_uri()}", "dir_info": {{}}}}')
                (folder / "entry_points.txt").write_text(entry_points)
        for path, text in files:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        needs = [
            PackageRequirement(name, "", "requirements.txt", line)
            for line, (name, _, _) in enumerate(installed, start=1)
        ]
        elsewhere = PackageRequirement("pywin32", "", "requirements.txt", 99, marker="sys_platform == 'win32'")
        lock = PackageRequirement("locked", "==1", "uv.lock", 1, role=RequirementRole.CONSTRAINT)
        dependencies = Dependencies(PackageManager.PIP, "requirements.txt", needs=(*needs, elsewhere, lock))
        return ProjectEnvironment(tmp_path, dependencies, python)

    yield make
    for path in made:
        subprocess.run(["rm", "-r", str(path)], check=True)


def prove(environment, command="", *, seconds=60.0):
    ends_at = time.monotonic() + seconds
    return {each.name: each for each in prove_project(environment, command, ends_at=ends_at, progress=lambda _: None)}


def test_packages_of_the_project_and_its_requirements_are_imported(project):
    files = [
        ("src/own/__init__.py", "import good"),
        ("src/own/part.py", "import nothing"),
        ("tests/__init__.py", "1/0"),
    ]
    found = prove(project([("good-dist", "good", "print('greetings')")], files=files))["imports"]
    assert (found.status, found.measured) == (StageStatus.PASSED, {"imported": 2, "failed": 0})


@cases(
    "name, module, source, reason",
    {
        "a library of the system": (
            "opencv-python",
            "cv2",
            RAISE.format("ImportError", MISSING_LIBRARY),
            "cv2 (opencv-python): libGL.so.1 is missing; Debian has it in libgl1: devkit init --apt libgl1",
        ),
        "a cause that another error hides": (
            "wrapped",
            "wrapped",
            f"try:\n    {RAISE.format('OSError', MISSING_LIBRARY)}\nexcept OSError:\n    raise RuntimeError('reinstall me')",
            "libGL.so.1 is missing",
        ),
        "a requirement of a requirement": (
            "undeclared",
            "undeclared",
            "import wandb_of_nobody",
            "undeclared: undeclared.py imports wandb_of_nobody, which is not installed",
        ),
        "the second choice is missing, too": (
            "fallback",
            "fallback",
            "try:\n    import ujson_\nexcept ImportError:\n    import simplejson_",
            "imports simplejson_, which is not installed",
        ),
        "an error of CUDA's": (
            "cuda-mismatch",
            "mismatch",
            RAISE.format("RuntimeError", "The detected CUDA version (12.8) mismatches the version that was used to"),
            "RuntimeError: The detected CUDA version (12.8) mismatches",
        ),
        "a crash": (
            "crashing",
            "crashing",
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "crashing: the process was ended by SIGSEGV: Fatal Python error: Segmentation fault",
        ),
        "a module that exits": ("exits", "exits", "raise SystemExit(3)", "exits: SystemExit: 3"),
        "not installed": ("absent", "absent", None, "absent: requirements.txt:2 requires it, but it is not installed"),
    },
)
def test_the_first_cause_of_a_failed_import_is_named(project, name, module, source, reason):
    found = prove(project([("fine", "fine", ""), (name, module, source)]))["imports"]
    assert found.status is StageStatus.FAILED
    assert reason in found.reason
    assert found.measured["imported"] == 1


def test_an_import_that_hangs_is_ended(project, monkeypatch):
    monkeypatch.setattr(project_stages, "IMPORT_DEADLINE_S", 2.0)
    found = prove(project([("hanging", "hanging", "import time; time.sleep(60)"), ("fine", "fine", "")]))["imports"]
    assert found.reason == "hanging: no answer within 2.0 s"
    assert found.measured == {"imported": 1, "failed": 1}


def test_the_package_that_brings_an_undeclared_module_is_named_where_it_is_known(project, python):
    files = [("nerf/__init__.py", "import skimage")]
    found = prove(project(files=files))["imports"]
    assert found.reason == (
        "nerf: nerf/__init__.py imports skimage, which is not installed, and no requirement of the project names it:"
        ' packages = ["scikit-image"] under [project] in devkit.toml'
    )


def test_what_is_required_and_not_installed_is_not_called_undeclared(project):
    files = [("wan/__init__.py", "import not_there")]
    found = prove(project([("not-there", "not_there", None)], files=files))["imports"]
    assert found.reason == (
        "not-there: requirements.txt:1 requires it, but it is not installed;"
        " wan: wan/__init__.py imports not_there, which is not installed"
    )


def test_what_the_plan_leaves_out_is_not_missed(project):
    made = project([("flash-attn", "flash_attn", None), ("good-dist", "good", "")])
    assert prove(made)["imports"].status is StageStatus.FAILED
    found = prove(replace(made, left_out=("flash-attn",)))["imports"]
    assert (found.status, found.measured) == (StageStatus.PASSED, {"imported": 1, "failed": 0})


def test_a_project_without_packages_is_not_checked_and_not_passed(project):
    found = prove(project(files=[("train.py", "1/0")]))
    assert {stage.status for stage in found.values()} == {StageStatus.SKIPPED}
    assert "no folder of it is one" in found["imports"].reason


def test_without_time_nothing_is_started(project):
    found = prove(project([("fine", "fine", "")]), seconds=-1)
    assert {(each.status, each.reason) for each in found.values()} == {(StageStatus.SKIPPED, "the time ran out")}


@cases(
    "command, status, reason",
    {
        "it works": ("python -c 'import fine' && test -f data.txt", StageStatus.PASSED, ""),
        "a module": ("python run.py", StageStatus.FAILED, "run.py imports wandb_of_nobody, which is not"),
        "a status alone": ("exit 3", StageStatus.FAILED, "exit 3: the process ended with status 3"),
        "no such program": ("no-such-program", StageStatus.FAILED, "no-such-program"),
    },
)
def test_the_users_command_decides_by_its_exit_status(project, command, status, reason):
    files = [("data.txt", ""), ("run.py", "import wandb_of_nobody")]
    found = prove(project([("fine", "fine", "")], files=files), command)["command"]
    assert found.status is status
    assert reason in found.reason


HELP = "import argparse\nargparse.ArgumentParser().parse_args()\n"
README = (
    "Train:\n\n    $ OMP_NUM_THREADS=1 python plain.py\n    python3 train.py --config x.yaml\n    python other.py\n"
)


@pytest.mark.parametrize(
    ("train", "status", "reason"),
    [
        pytest.param(HELP, StageStatus.PASSED, "", id="it prints help"),
        pytest.param(f"import wandb_of_nobody\n{HELP}", StageStatus.FAILED, "train.py imports wandb_of_nobody", id="a traceback"),
        pytest.param(f"{HELP}\nraise SystemExit".replace("parse_args()", "parse_args(['--no'])"), StageStatus.SKIPPED,
                     "not checked: python train.py --help: the process ended with status 2", id="a usage of its own"),
    ],
)  # fmt: skip
def test_a_program_of_readme_prints_its_help(project, train, status, reason):
    files = [("README.md", README), ("plain.py", "1/0"), ("train.py", train), ("other.py", HELP)]
    found = prove(project(files=files))["command"]
    assert (found.status, [*found.measured]) == (status, ["python train.py --help"])
    assert reason in found.reason


def test_a_console_script_of_the_project_prints_its_help(project, python):
    script = Path(python.executable).with_name("own-tool")
    script.write_text('#!/bin/sh\ntest "$1" = --help && echo usage\n')
    script.chmod(0o755)
    entry_points = "[console_scripts]\nown-tool = own:main\n"
    found = prove(project([("own", "own", "")], own="own", entry_points=entry_points))["command"]
    assert (found.status, found.measured) == (StageStatus.PASSED, {"own-tool --help": 0})


@cases(
    "readme",
    {
        "a file outside the project": "python ../../outside.py",
        "a file that is not there": "python gone.py",
        "a program that would just run": "python plain.py",
        "words in a sentence": "the python train.py of others",
    },
)
def test_nothing_else_of_readme_is_run(tmp_path, readme):
    project = tmp_path / "a/b"
    project.mkdir(parents=True)
    for path, text in (
        ("README.md", f"{readme}\n"),
        ("plain.py", "1/0"),
        ("train.py", HELP),
        ("../../outside.py", HELP),
    ):
        (project / path).write_text(text)
    assert list(find_help_commands(project, ())) == []


@pytest.mark.parametrize(
    ("library", "version", "package"),
    [
        ("libGL", "1", "libgl1"),
        ("libglib-2.0", "0", "libglib2.0-0"),
        ("libX11", "6", "libx11-6"),
        ("libusb-1.0", "0", "libusb-1.0-0"),
        ("libcudart", "12", ""),
        ("libtorch_cuda", "", ""),
        ("libnccl", "2", ""),
        ("libpython3.10", "1.0", ""),
    ],
)
def test_the_debian_package_of_a_library_follows_from_its_name(library, version, package):
    assert find_debian_package(library, version) == package
