"""`devkit init --prove` from the outside, with small wheels on this disk: a stranger's program runs, sealed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace

import pytest

from devkit.cli.init import repair_by_proof
from devkit.render.project import open_project
from devkit.verify.plan_proof import PlanProof
from tests.cases import cases
from tests.cli.test_init import tree
from tests.package_server import serve_packages
from tests.render.plans import GPU_PLAN
from tests.wheels import make_index, make_wheel

PLAN = ("--vendor", "cpu", "--machine", "x86_64", "--python", f"{sys.version_info[0]}.{sys.version_info[1]}", "--yes")
PROGRAM = """
import argparse
import json
import os
import engine
{more}
parser = argparse.ArgumentParser()
parser.add_argument("--steps")
open("written-by-the-program", "w").close()
json.dump(dict(os.environ), open(engine.REPORT, "w"))
parser.parse_args()
"""


@pytest.fixture
def project(tmp_path):
    """A project with a guide and a program; the index has what it needs, and einops, which no file names."""
    report = tmp_path / "report.json"
    (wheels := tmp_path / "wheels").mkdir()
    releases = [
        make_wheel(wheels, "torch", "2.15.0"),
        make_wheel(wheels, "engine", "1.0", requires=["torch"], files={"engine.py": f"REPORT = {str(report)!r}\n"}),
        make_wheel(wheels, "einops", "0.8.2"),
        make_wheel(wheels, "broken", "1.0", files={"broken.py": "from engine import gone\n"}),
    ]
    make_index(tmp_path / "simple", releases)
    (folder := tmp_path / "project").mkdir()
    (folder / "requirements.txt").write_text("torch\nengine\nbroken\n")
    (folder / "README.md").write_text("```\npython run.py --steps 3\n```\n")
    (tmp_path / "temporary").mkdir()
    return folder


def start(project, *words, program="", **variables) -> subprocess.Popen[str]:
    (project / "run.py").write_text(PROGRAM.format(more=program))
    place = project.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    environment |= {"UV_DEFAULT_INDEX": (place / "simple").as_uri(), "UV_CACHE_DIR": str(place / "cache")}
    environment |= {"UV_FIND_LINKS": str(place / "wheels"), "TMPDIR": str(place / "temporary"), "HF_TOKEN": "hf_secret"}
    argv = [sys.executable, "-m", "devkit", "init", ".", *PLAN, *words]
    return subprocess.Popen(
        argv,
        cwd=project,
        env=environment | {"COLUMNS": "400", "XDG_DATA_HOME": str(place / "data")} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def prove(project, *words, **variables) -> list[str]:
    process = start(project, *words, **variables)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert [path.name for path in (project.parent / "temporary").iterdir()] == []
    return out.splitlines()


def test_a_proof_that_adds_nothing_keeps_what_the_plan_takes(tmp_path, monkeypatch):
    monkeypatch.setattr("devkit.cli.init.try_plan", lambda *_: PlanProof("no network"))
    opened = open_project(tmp_path)
    taken = replace(opened, dependencies=replace(opened.dependencies, extras=("cu128",)))
    project, plan = repair_by_proof(taken, GPU_PLAN, None)
    assert project == replace(taken, proof="not proved: no network")
    assert plan is GPU_PLAN


@pytest.mark.full
def test_what_a_lock_of_the_projects_own_tool_holds_is_proved_too(project):
    (project / "requirements.txt").unlink()
    (project / "Pipfile").write_text('[packages]\ntorch = "*"\nengine = "*"\nbroken = "*"\n')
    held = {"torch": "==2.15.0", "engine": "==1.0", "broken": "==1.0"}
    lock = {"default": {name: {"version": version} for name, version in held.items()}, "develop": {}}
    (project / "Pipfile.lock").write_text(json.dumps(lock))
    assert (
        prove(project, "--dry-run")[0]
        == "resolved; every import in the programs has a package; the programs were not run (--prove runs them)"
    )
    (project / "old.py").write_text("of = = no Python\n")
    assert re.search(
        r"import in the programs has a package, Python 3\.\d+ cannot parse old\.py; the programs were not",
        prove(project, "--dry-run")[0],
    )
    (project / "old.py").unlink()
    assert prove(project, "--prove", "--dry-run")[0].startswith("proved: imports and first command run")


@pytest.mark.full
def test_a_plan_is_proved_by_the_first_command_of_the_guide_and_the_lock_says_so(project):
    before = tree(project)
    said = prove(project, "--prove", "--dry-run")[0]
    assert said == "proved: imports and first command run (python run.py --help)"
    assert tree(project).keys() == {*before, "run.py"}
    environment = json.loads((project.parent / "report.json").read_text())
    assert "hf_secret" not in str(environment) and not any(name.startswith("UV_") for name in environment)
    assert environment["HOME"] != os.environ["HOME"]
    prove(project, "--prove")
    assert json.loads((project / "devkit.lock").read_text())["proof"] == said
    # What was proved stays on record while the packages are the same.
    assert "unchanged" in prove(project)[-1]


@pytest.mark.full
@cases(
    "program, said, packages",
    {
        "a known package is planned": (
            "import einops",
            "proved: imports and first command run (python run.py --help)",
            ["einops"],
        ),
        "a known package that is imported later is added": (
            "__import__('einops')",
            "proved: imports and first command run (python run.py --help); added: einops",
            ["einops"],
        ),
        "a known package before a GPU is needed": (
            "__import__('einops')\nraise AssertionError('Torch not compiled with CUDA enabled')",
            "not proved: it runs without a failure up to run.py:7, which needs a GPU; added: einops",
            ["einops"],
        ),
        "an unknown module": ("import nowhere_found", "run.py:6 needs nowhere_found, which is not installed", []),
        "a package that does not import": (
            "import broken",
            "broken (run.py:6): ImportError: cannot import name 'gone' from 'engine'",
            [],
        ),
        "reached": ("import helpers", "helpers.py:1 needs nowhere_found, which is not installed", []),
        "run": ("open('config.yaml')", "(run.py:6): FileNotFoundError:", []),
        "a GPU is needed": (
            "raise AssertionError('Torch not compiled with CUDA enabled')",
            "not proved: it runs without a failure up to run.py:6, which needs a GPU",
            [],
        ),
        "guarded": (
            "try:\n    import nowhere_found\nexcept ImportError:\n    pass",
            "proved: imports and first command run",
            [],
        ),
    },
)
def test_what_fails_is_repaired_or_named_with_its_line(project, program, said, packages):
    (project / "helpers.py").write_text("import nowhere_found\n")
    first = prove(project, "--prove", program=program)[0]
    assert said in first
    begins = (
        "proved" if said.startswith("proved") else "not proved: it r" if "GPU" in said else "not proved: it was tried; "
    )
    assert first.startswith(begins)
    assert tomllib.loads((project / "devkit.toml").read_text()).get("project", {}).get("packages", []) == packages
    if packages:
        assert "einops" in json.loads((project / "devkit.lock").read_text())["plan"]["packages"]


GONE = "from lib import gone\n"
REFUSES = "raise RuntimeError('the caller is too old')\n"


@pytest.mark.full
@cases(
    "old, new, own, wanted, kept",
    {
        "a name that was removed": ("gone = 1\n", "other = 1\n", GONE, "", ["lib<2.0"]),
        "a release of another time": ("x = 1\n", REFUSES, "import lib\n", "", ["lib<=1.0"]),
        "a name that no release has": ("other = 1\n", "other = 1\n", GONE, "", []),
        "another time does not help": (REFUSES, REFUSES, "import lib\n", "", []),
        "the project asks for the release": ("gone = 1\n", "other = 1\n", GONE, "lib==2.0\n", []),
        "another import needs the newer": ("gone = lost = 1\n", "fresh = 1\n", GONE, "", []),
    },
)
def test_a_release_that_does_not_suit_its_caller_is_replaced_if_that_helps(project, old, new, own, wanted, kept):
    wheels, days = project.parent / "wheels", {}
    for name, version, day, text in (
        ("lib", "1.0", "2023-01-01", old),
        ("lib", "2.0", "2024-06-01", new),
        ("caller", "1.0", "2023-02-01", own),
        ("torch", "2.15.0", "2026-06-01", "x = 1\n"),
    ):
        requires = ["lib>=1.0"] if name == "caller" else []
        days[make_wheel(wheels, name, version, requires=requires, files={f"{name}.py": text})] = f"{day}"
    (project / "requirements.txt").write_text(f"torch\ncaller\nengine\n{wanted}")
    index = [*days, wheels / "engine-1.0-py3-none-any.whl"]
    program = "import caller\n" + "from lib import lost\nfrom lib import fresh\n" * ("fresh" in new)
    with serve_packages(index) as served:
        served.days = {each.name: days.get(each, "2023-01-01") for each in index}
        said = prove(project, "--prove", program=program, UV_DEFAULT_INDEX=served.index)[0]
    assert said.startswith("proved" if kept else "not proved: it was tried; caller (run.py:6): ")
    assert ("; added: " in said) == bool(kept)
    settings = tomllib.loads((project / "devkit.toml").read_text())
    assert settings.get("project", {}).get("packages", []) == kept
    assert json.loads((project / "devkit.lock").read_text())["plan"]["packages"].get("lib") == (
        "1.0" if kept else wanted[5:-1] or None
    )


@pytest.mark.full
@cases(
    "guide, module, said",
    {
        "in a folder": (
            "cd train\npython run.py",
            "train/run.py",
            "proved: imports and first command run (python train/run.py --help)",
        ),
        "a program without arguments": (
            "python go.py",
            "go.py",
            "not proved: the guide's first program prints no help, so devkit did not run it; its",
        ),
        "a library": ("pip install own", "own/__init__.py", "not proved: the guide does not mention a program"),
    },
)
def test_the_first_line_says_proved_only_of_a_program_that_ran(project, guide, module, said):
    (project / "README.md").write_text(f"```\n{guide}\n```\n")
    (project / module).parent.mkdir(exist_ok=True)
    (project / module).write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\n" if "run" in module else ""
    )
    if "run" in module:
        process = start(project, "--prove")
        (project / "run.py").unlink()
        assert process.communicate(timeout=300)[0].startswith(said)
    else:
        assert prove(project, "--prove")[0].startswith(said)


@pytest.mark.full
def test_every_program_that_the_guide_runs_must_import(project):
    (project / "README.md").write_text("```\npython run.py\npython tools/later.py\n```\n")
    (project / "tools").mkdir()
    (project / "tools" / "later.py").write_text("import engine\nimport nowhere_found\n")
    said = "not proved: it was tried; tools/later.py:2 needs nowhere_found, which is not installed"
    assert prove(project, "--prove", "--dry-run")[0] == said


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_control_c_ends_the_program_and_leaves_nothing(project):
    marker = project.parent / "started"
    program = f"import time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    process = start(project, "--prove", program=program)
    while not (marker.exists() and marker.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert sorted(path.name for path in project.iterdir()) == ["README.md", "requirements.txt", "run.py"]
    assert list((project.parent / "temporary").iterdir()) == []
