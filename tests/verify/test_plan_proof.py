"""Which program the proof of a plan runs, and what that program imports."""

import os

import pytest

from devkit.reading import MAX_CONFIG_BYTES
from devkit.verify.plan_proof import choose_program, list_reached_imports
from devkit.verify.project_stages import find_programs
from tests.cases import cases


def project(tmp_path, *names, readme=""):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import argparse\n")
    (tmp_path / "README.md").write_text(f"```\n{readme}\n```\n")
    return tmp_path


@cases(
    "command, chosen",
    {
        "a file": ("python train.py --steps 1", (["train.py", "--steps", "1"], "train.py")),
        "a module": ("python3 -m own.run", (["-m", "own.run"], "own/run.py")),
        "a package": ("python -m own", (["-m", "own"], "own/__main__.py")),
        "a module below src": ("python -m kit.go", (["-m", "kit.go"], "src/kit/go.py")),
        "somebody else's": ("python -m torch.utils.collect_env", (["-m", "torch.utils.collect_env"], "")),
        "a line of Python": ("python -c 'import own'", (["-c", "import own"], "")),
        "half a command": ("python -m", (["-m"], "")),
        "a quotation without an end": ("python 'train.py", (["train.py", "--help"], "train.py")),
        "another language: the guide's": ("bash run.sh", (["train.py", "--help"], "train.py")),
        "the guide's": ("", (["train.py", "--help"], "train.py")),
    },
)
def test_the_program_is_the_users_or_the_first_of_the_guide(tmp_path, command, chosen):
    files = ("train.py", "own/__init__.py", "own/__main__.py", "own/run.py", "src/kit/go.py")
    assert choose_program(project(tmp_path, *files, readme="python train.py"), command)[:2] == chosen


@pytest.mark.parametrize(
    "line",
    [
        "uvicorn app.main:app --reload",
        "python -m uvicorn app.main:app",
        "streamlit run app/main.py",
        "$ uvicorn app.main:x",
    ],
)
def test_a_server_that_the_guide_starts_is_read_and_not_run(tmp_path, line):
    assert choose_program(project(tmp_path, "app/main.py", readme=line), "") == ([], "app/main.py", "")
    (tmp_path / "backend").mkdir()
    (tmp_path / "app").rename(tmp_path / "backend/app")
    assert choose_program(tmp_path, "") == ([], "backend/app/main.py", "")


@cases(
    "readme, found",
    {
        "in the folder that cd leads to": ("cd sub\npython train.py", "python sub/train.py"),
        "by a shell script with variables": ("bash run.sh train", "python sub/train.py"),
        "by a launcher with options": ("$ torchrun --nproc_per_node 2 -m sub.train", "python -m sub.train"),
        "by uv alone": ("uv run --extra gpu sub/train.py", "python sub/train.py"),
        "a console script": ("own-tool fit", "own-tool"),
        "a console script by uv": ("uv run own-tool fit", "own-tool"),
        "a console script of setup.py": ("old-tool fit", "old-tool"),
        "a console script of a workspace's member": ("uv run inner-tool fit", "inner-tool"),
        "in a sentence": (
            "other-tool fit\n```\nown-tool is a tool. Run `python sub/train.py`.\n```",
            "python sub/train.py",
        ),
        "outside of the project": ("cd ..\npython ../outside.py\nsh gone.sh", None),
    },
)
def test_programs_that_a_guide_runs(tmp_path, readme, found):
    root = project(tmp_path / "root", "sub/train.py", "src/own/cli.py", "src/own/__init__.py", readme=readme)
    (tmp_path / "outside.py").touch()
    (root / "run.sh").write_text(
        'DIR=sub\nsh run.sh\nCUDA_VISIBLE_DEVICES=0 python -u "$ROOT/$DIR/train.py" \\\n --lr 1\n'
    )
    project(root / "parts/inner", "src/inner/cli.py")
    (root / "pyproject.toml").write_text(
        '[project.scripts]\nown-tool = "own.cli:main.run"\ngone-tool = "gone:main"\n[tool.uv.workspace]\nmembers = ["parts/*", "/"]\n'
    )
    (root / "parts/inner/pyproject.toml").write_text('[project.scripts]\ninner-tool = "inner.cli:main"\n')
    (root / "setup.py").write_text('setup(entry_points={"console_scripts": [\n"old-tool = own.cli:main",\n]})\n')
    assert next((command for command, _ in find_programs(root)), None) == found


def test_scripts_that_would_grow_without_end_are_read_once(tmp_path):
    root = project(tmp_path, "train.py", readme="sh run.sh")
    (root / "run.sh").write_text(f"A={'a' * 100_000}\n" + "sh run.sh\n" * 5_000 + f"{'$A' * 5_000}\npython train.py\n")
    assert [command for command, _ in find_programs(root)] == ["python train.py"]
    for number in range(2_000):
        (root / f"{number}.sh").write_text(f"sh {number + 1}.sh\n")
    (root / "README.md").write_text("```\nsh 0.sh\npython train.py\n```\n")
    assert [command for command, _ in find_programs(root)] == ["python train.py"]


def test_a_console_script_is_called_as_its_entry_point_says(tmp_path):
    root = project(tmp_path, "own.py", readme="own-tool fit")
    (root / "pyproject.toml").write_text('[tool.poetry.scripts]\nown-tool = "own:app.main"\n')
    words = ["-c", "import sys; from own import app; sys.exit(app.main())", "--help"]
    assert choose_program(root, "") == (words, "own.py", "own-tool --help")


def test_imports_are_followed_through_the_project_and_not_below_try(tmp_path):
    project(tmp_path, "train.py", "own/__init__.py", "own/model.py")
    (tmp_path / "train.py").write_text(
        "import json, numpy\nfrom own import model\ntry:\n    import apex\nexcept ImportError: ...\n"
    )
    (tmp_path / "own/model.py").write_text("from . import train\nimport torch.nn as nn\n")
    assert list_reached_imports(tmp_path, ["train.py"]) == (("numpy", "train.py", 1), ("torch.nn", "own/model.py", 2))
    (tmp_path / "own/data").mkdir()
    (tmp_path / "own/data/seed.py").write_text("import model\n")
    assert list_reached_imports(tmp_path, ["own/data/seed.py"])[-1] == ("torch.nn", "own/model.py", 2)
    (tmp_path / "own2.2").mkdir()
    (tmp_path / "own2.2/run.py").write_text("from . import model\nimport scipy\n")
    assert list_reached_imports(tmp_path, ["own2.2/run.py"]) == (("scipy", "own2.2/run.py", 2),)


def test_a_folder_without_init_is_a_package_of_the_project(tmp_path):
    project(tmp_path, "app/api/routes.py", "main.py")
    (tmp_path / "main.py").write_text("from app.api import routes\n")
    (tmp_path / "app/api/routes.py").write_text("import numpy\n")
    assert list_reached_imports(tmp_path, ["main.py"]) == (("numpy", "app/api/routes.py", 1),)


@pytest.mark.parametrize("name", ["link.py", "pipe.py", "large.py"])
def test_a_program_that_leads_out_of_the_project_or_never_ends_is_not_read(tmp_path, name):
    outside, root = tmp_path / "outside.py", tmp_path / "project"
    root.mkdir()
    outside.write_text("import numpy\n")
    (root / "link.py").symlink_to(outside)
    os.mkfifo(root / "pipe.py")
    (root / "large.py").write_text("import numpy\n" + "#" * MAX_CONFIG_BYTES)
    assert list_reached_imports(root, [name]) == ()
