"""`plan`, `init` and `update` where uv resolves, with small indexes on this disk: locks, days, and what programs import."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from devkit.cli.init import add_imports, find_missing_imports, find_package_needs, offer_unknown
from devkit.cli.proof import find_unprovided
from devkit.facts.dependencies import ImportedPackage, Resolved
from devkit.facts.values import Unknown
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import open_project
from tests.cases import cases
from tests.cli.test_init import assert_refused, devkit, tree
from tests.forked_commands import run_devkit
from tests.loopback import QuietHandler, serving
from tests.render.plans import GPU_PLAN
from tests.wheels import make_archive, make_index, make_wheel

# `plan`, `init` and `update` where uv resolves: with a small index on this disk.


ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")
RELEASES = (
    ("torch", "2.13.0", []),
    ("torch", "2.14.1", []),
    ("torch", "2.15.0", []),
    ("torchvision", "0.28.0", ["torch==2.13.0"]),
    ("torchvision", "0.29.0", ["torch==2.14.1"]),
    ("torchaudio", "2.8.0", ["torch==2.13.0"]),
    ("torchaudio", "2.11.0", ["torch"]),
    ("torchcodec", "0.10.0", []),
    ("torchcodec", "0.13.0", []),
    ("torchcodec", "0.17.0", []),
    ("engine", "0.1", ["torch>=2"]),
    ("engine", "9.0", ["torch==2.13.0", "transformers"]),
    ("transformers", "4.44.2", ["huggingface-hub<1"]),
    ("huggingface-hub", "0.36.2", []),
    ("huggingface-hub", "2.4.0", []),
)


@pytest.fixture
def index(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    made = [make_wheel(wheels, name, version, requires=requires) for name, version, requires in RELEASES]
    return make_index(tmp_path / "simple", made)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run_with_index(project, *words, index, **variables) -> subprocess.CompletedProcess[str]:
    environment = {"NO_COLOR": "1", "COLUMNS": "200", "UV_OFFLINE": "0", "UV_DEFAULT_INDEX": index}
    environment |= {"UV_CACHE_DIR": str(project.parent / "cache"), **variables}
    return run_devkit(*words, cwd=project, **environment)


def requirements(project, text):
    (project / "requirements.txt").write_text(text)


def test_the_plan_is_what_uv_resolves_for_the_driver(project, index):
    requirements(project, "torch\ntorchvision\nengine\n")
    document = json.loads(run_with_index(project, "plan", *ADA, "--json", index=index).stdout)
    plan = document["plan"]
    assert (document["verdict"], plan["torch"], plan["variant"]) == ("plan", "2.13.0", "cu126")
    assert plan["packages"] == {"torch": "2.13.0", "engine": "9.0", "torchvision": "0.28.0"}
    resolution = document["resolution"]
    assert resolution["status"] == "resolved"
    assert resolution["packages"]["huggingface-hub"] == "0.36.2"


@pytest.mark.full
@cases(
    "wanted, guide, packages, said",
    {
        "imported": (
            "torch",
            "pip install transformers==4.44.2",
            ["transformers==4.44.2"],
            "transformers==4.44.2 (README.md:1 installs it)",
        ),
        # The list has been changed since, and that transformers wants an older huggingface-hub.
        "contradicts the list": (
            "huggingface-hub>=1",
            "pip install transformers==4.44.2",
            [],
            "imported but not listed in any file: transformers==4.44.2",
        ),
        "not imported": ("torch", "pip install engine", [], "installed only by the guide: engine (README.md:1)"),
    },
)
def test_what_a_guide_installs_and_programs_import_is_installed_with_the_list(
    project, index, wanted, guide, packages, said
):
    requirements(project, f"{wanted}\n")
    (project / "README.md").write_text(guide)
    (project / "run.py").write_text("import transformers\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    settings = tomllib.loads((project / "devkit.toml").read_text())
    assert settings.get("project", {}).get("packages", []) == packages
    document = json.loads(run_with_index(project, "init", ".", *ADA, "--dry-run", "--json", index=index).stdout)
    assert document["verdict"] == "unchanged"
    assert [each["requirement"] for each in document["guide"]] == (
        [] if packages else [guide.removeprefix("pip install ")]
    )


@pytest.mark.full
def test_an_environment_of_the_guide_is_not_given_up_for_one_of_its_lines(project, index):
    lines = [
        "dependencies:",
        "- pip:",
        "  - transformers==4.44.2",
        "  - huggingface-hub==2.4.0",
        "  - torch",
        "  - engine",
    ]
    (project / "environment-gpu.yaml").write_text("\n".join(lines) + "\n")
    requirements(project, "torch\n")
    (project / "README.md").write_text("conda env create -f environment-gpu.yaml\n")
    (project / "run.py").write_text("import transformers\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("resolved, but 1 requirement cannot be met as written: huggingface-hub")
    assert "transformers==4.44.2" in (project / ".devcontainer/constraints.txt").read_text()


@pytest.mark.parametrize(("release", "decoder"), [("2.8.0", []), ("2.11.0", ["torchcodec"])])
def test_torchaudio_gets_its_decoder_beside_a_release_that_takes_it(project, index, release, decoder):
    (project / "run.py").write_text("import torchaudio\ntorchaudio.load('a')\n")
    done = run_with_index(project, "init", ".", *ADA, "--pin", f"torchaudio=={release}", "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    packages = tomllib.loads((project / "devkit.toml").read_text())["project"]["packages"]
    assert packages == ["torchaudio", *decoder]


def test_what_packages_import_and_do_not_require_is_installed_too(tmp_path, project, index):
    files = {"tracker/__init__.py": "", "tracker/board.py": "import transformers\nimport nobody_knows\nWriter = 1\n"}
    make_index(tmp_path / "simple", [make_wheel(tmp_path / "wheels", "tracker", "1.0", files=files)])
    requirements(project, "torch\ntracker\n")
    (project / "run.py").write_text("from tracker.board import Writer\nimport first_stop\n")
    (project / "README.md").write_text("python run.py\n")
    (project / "aside.py").write_text("import unreached\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    # What the guide's program reaches comes first.
    said = " ".join(done.stdout.split())
    assert said.startswith(
        "resolved; 3 imports not found: first_stop (run.py:2), nobody_knows (tracker/board.py:2) and unreached (aside.py:1)"
    )
    assert "added: transformers (imported by tracker/board.py:1)" in done.stdout
    assert "read: requirements.txt;" in done.stdout
    assert "transformers==4.44.2" in (project / ".devcontainer/constraints.txt").read_text()
    assert "unchanged" in run_with_index(project, "init", ".", *ADA, "--yes", index=index).stdout


def test_what_programs_import_and_an_extra_lists_comes_with_the_extra(project, index):
    extras = {
        "all": ["transformers", "engine", "torchaudio", "torchcodec"],
        "serve": ["transformers", "engine", "torchcodec"],
        "train": ["transformers<5", "torchcodec"],
        "test": ["transformers"],
    }
    text = '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch"]\n[project.optional-dependencies]\n'
    (project / "pyproject.toml").write_text(text + "".join(f"{name} = {lists}\n" for name, lists in extras.items()))
    (project / "run.py").write_text("import transformers\n")
    (project / "README.md").write_text("python run.py\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "added: the extra train, which lists transformers (imported by run.py:1);" in done.stdout
    assert tomllib.loads((project / "devkit.toml").read_text())["project"] == {"extras": ["train"]}
    assert "torchcodec==" in (project / ".devcontainer/constraints.txt").read_text()
    assert "unchanged" in run_with_index(project, "init", ".", *ADA, "--yes", index=index).stdout


@pytest.mark.full
def test_of_what_programs_import_only_that_is_left_out_which_does_not_fit(project, index):
    requirements(project, "torch\nhuggingface-hub>=2\n")
    (project / "run.py").write_text("import torchvision\n\ndef run():\n    import transformers\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", "--develop", "--add-imports", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imported but not listed in any file: transformers" in done.stdout
    assert tomllib.loads((project / "devkit.toml").read_text())["project"]["packages"] == ["torchvision"]


@pytest.mark.full
def test_of_the_extras_that_programs_import_only_that_is_left_out_which_does_not_fit(project, index):
    (project / "pyproject.toml").write_text(
        '[project]\nname = "own"\nversion = "1"\ndependencies = ["torch", "huggingface-hub>=2"]\n'
        '[project.optional-dependencies]\nsee = ["torchvision"]\nread = ["transformers==4.44.2"]\n'
    )
    (project / "own.py").write_text(
        "try:\n    import torchvision\n    import transformers\nexcept ImportError:\n    pass\n"
    )
    done = run_with_index(project, "init", ".", *ADA, "--yes", "--develop", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not installed: the extra read" in done.stdout
    assert tomllib.loads((project / "devkit.toml").read_text())["project"]["extras"] == ["see"]


@pytest.mark.full
def test_a_version_that_fits_nothing_else_gives_way_and_the_image_installs_the_other(project, index):
    requirements(project, "transformers==4.44.2\nhuggingface-hub==2.4.0\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert done.returncode == 0, done.stdout + done.stderr
    first = " ".join(done.stdout.split())
    assert first.startswith("resolved, but 1 requirement cannot be met as written: huggingface-hub")
    assert "requirements.txt:2 requires huggingface-hub==2.4.0" in first
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    assert "--override=/mnt/work/overrides.txt --constraint=/mnt/constraints.txt" in dockerfile
    (override,) = re.findall(r"printf '%s\\n' (huggingface-hub==\S+) > /mnt/work/overrides.txt", dockerfile)
    assert f"{override}\n" in re.sub(r" --hash=\S+", "", (project / ".devcontainer/constraints.txt").read_text())
    assert run_with_index(project, "update", "--check", index=index).returncode == 0


@pytest.mark.full
def test_a_plan_that_uv_refuses_is_a_conflict(project, index):
    requirements(project, "transformers==4.44.2\n")
    contradiction = ("--pin", "huggingface-hub==2.4.0")
    done = run_with_index(project, "plan", *ADA, *contradiction, index=index)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "uv Python 3.12: " in said
    assert "huggingface-hub<1" in said
    assert "Pass: --pin huggingface-hub==" in said
    refused = run_with_index(project, "init", ".", *ADA, *contradiction, "--yes", index=index)
    assert refused.returncode == 1
    assert sorted(path.name for path in project.iterdir()) == ["requirements.txt"]
    assert run_with_index(project, "plan", *ADA, "--ignore-dependencies", "--no-resolve", index=index).returncode == 0


@cases(
    "words, variables, because",
    {
        "by flag": (("--no-resolve",), {}, "--no-resolve was given"),
        "by uv's own variable": ((), {"UV_OFFLINE": "1"}, "UV_OFFLINE is set"),
        "no network": (
            (),
            {"UV_DEFAULT_INDEX": "http://127.0.0.1:9"},
            "uv cannot reach the package index at 127.0.0.1:9",
        ),
    },
)
def test_without_uv_the_plan_says_that_it_was_not_checked(project, index, words, variables, because):
    requirements(project, "transformers==4.44.2\nhuggingface-hub==2.4.0\n")
    done = run_with_index(project, "plan", *ADA, *words, index=index, **variables)
    assert done.returncode == 0
    assert f"{because}, so devkit did not check whether the project's packages can be installed" in done.stdout
    document = json.loads(run_with_index(project, "plan", *ADA, *words, "--json", index=index, **variables).stdout)
    assert document["resolution"] == {"status": "not checked", "because": because}
    assert document["plan"]["packages"] == {"torch": "2.14.1"}


def test_the_image_installs_the_projects_own_files_with_torch_held(project, index):
    requirements(project, "torch\nengine\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", "--pin", "huggingface-hub==0.36.2", index=index)
    assert done.returncode == 0
    assert "resolved: engine 9.0" in done.stdout
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    assert "torch==2.13.0" in dockerfile
    assert "--requirement=/mnt/project/requirements.txt" in dockerfile
    assert "--constraint=/mnt/constraints.txt --requirement" in dockerfile
    assert "engine" not in dockerfile
    lines = [line.split() for line in (project / ".devcontainer/constraints.txt").read_text().splitlines()[2:]]
    assert all(each.startswith("--hash=sha256:") for _, *hashes in lines for each in hashes)
    assert [version for version, *hashes in lines if not hashes] == ["torch==2.13.0"]
    held = [version for version, *hashes in lines if hashes]
    assert held == ["engine==9.0", "huggingface-hub==0.36.2", "transformers==4.44.2"]
    done = run_with_index(project, "init", ".", "--set", "no_hold=true", "--yes", index=index)
    assert done.returncode == 0, done.stderr
    lines = (project / ".devcontainer/constraints.txt").read_text().splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["huggingface-hub==0.36.2", "torch==2.13.0"]


@pytest.mark.full
def test_update_check_is_what_was_resolved_and_needs_no_network(project, index):
    made = (project.parent / "wheels").glob("*.whl")
    setup = {"setup.py": "subprocess.check_call(['cmake', '.'])", "it.egg-info/PKG-INFO": "Metadata-Version: 1.2\n"}
    index = make_index(project.parent / "with-source", [*made, make_archive(project.parent, "it-1.0", setup)])
    requirements(project, "torch\nengine\nit\n")
    assert run_with_index(project, "init", ".", *ADA, "--yes", index=index).returncode == 0
    assert "# cmake: it is built from source" in (project / ".devcontainer/Dockerfile").read_text()
    for variables in ({}, {"UV_OFFLINE": "1"}, {"UV_DEFAULT_INDEX": "http://127.0.0.1:9"}):
        for words in (("update", "--check"), ("init", ".", "--yes")):
            done = run_with_index(project, *words, index=index, **variables)
            assert done.returncode == 0, done.stdout
            assert "up to date" in done.stdout or "unchanged" in done.stdout


def test_other_requirements_are_resolved_again(project, index):
    requirements(project, "torch\nengine\n")
    run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    requirements(project, "torch\n")
    done = run_with_index(project, "update", "--check", index=index)
    assert done.returncode == 1
    assert "torch==2.14.1" in done.stdout


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_control_c_leaves_the_project_as_it_was(project, index):
    requirements(project, "engine\n")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        env = {name: value for name, value in os.environ.items() if name != "UV_OFFLINE"}
        env |= {"UV_DEFAULT_INDEX": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        argv = [sys.executable, "-m", "devkit", "init", ".", *ADA, "--yes"]
        process = subprocess.Popen(argv, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert process.returncode == 130, err
    assert out == b""
    assert sorted(path.name for path in project.iterdir()) == ["requirements.txt"]


# `devkit init --lock` from the outside, with the real uv and wheels that lie here.


PLAN = ("--vendor", "cpu", "--machine", "x86_64", "--python", "3.11")
LOCKS = {f".devcontainer/{name}.lock" for name in ("requirements", "torch", "tools", "installer")}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A wheel for each package of the plan, and for each that devkit needs."""
    assert devkit("init", tmp_path / "draft", *PLAN).returncode == 0
    text = (tmp_path / "draft/.devcontainer/Dockerfile").read_text()
    folder = tmp_path / "wheels"
    folder.mkdir()
    pins = dict(re.findall(r"(?<!\S)([\w-]+)==([\w.+]+)(?=\s)", text))
    own = [Requirement(line) for line in requires("devkit-gpu") or [] if "extra ==" not in line]
    for name, version in {**{each.name: "999" for each in own}, **pins}.items():
        make_wheel(folder, name, version)
    return folder


@pytest.fixture
def locked(tmp_path: Path, wheels: Path) -> Path:
    root = tmp_path / "project"
    done = devkit("init", root, *PLAN, "--wheelhouse", wheels, "--lock-only", "python")
    assert done.returncode == 0, done.stderr
    return root


def test_the_lock_holds_the_hash_of_every_wheel_and_the_image_is_built_from_it(locked, wheels):
    project, tools = ((locked / f".devcontainer/{name}.lock").read_text() for name in ("requirements", "tools"))
    assert "\nuv==" not in project
    assert set(re.findall(r"sha256:(\w+)", project + tools)) == {
        hashlib.sha256(each.read_bytes()).hexdigest() for each in wheels.iterdir()
    }
    assert "--require-hashes" in (locked / ".devcontainer/Dockerfile").read_text()
    assert set(tree(locked)) >= LOCKS


def test_a_later_run_keeps_the_lock_without_asking_anybody(locked):
    before = tree(locked)
    again = devkit("init", locked, PATH="/nowhere")
    assert again.stdout.splitlines()[-1].startswith("unchanged"), again
    assert tree(locked) == before


def test_another_plan_is_refused_until_the_lock_is_renewed_or_given_up(locked):
    before = tree(locked)
    assert_refused(devkit("init", locked, "--pin", "six==1.17.0"), "six==1.17.0")
    assert tree(locked) == before
    assert devkit("init", locked, "--pin", "six==1.17.0", "--no-lock").returncode == 0
    assert not LOCKS & set(tree(locked))
    assert "--require-hashes" not in (locked / ".devcontainer/Dockerfile").read_text()


def test_an_update_locks_anew_where_the_plan_has_changed_and_a_check_only_says_so(locked):
    settings = locked / "devkit.toml"
    settings.write_text(settings.read_text() + '\n[pins]\nsix = "1.17.0"\n')
    before = tree(locked)
    checked = devkit("update", locked, "--check", PATH="/nowhere")
    assert checked.returncode == 1
    assert (
        "would lock again: .devcontainer/requirements.lock does not fit: it does not contain six==1.17.0"
        in checked.stdout
    )
    assert json.loads(devkit("update", locked, "--dry-run", "--json").stdout)["verdict"] == "would-lock"
    assert tree(locked) == before


@pytest.mark.full
def test_an_update_with_a_changed_plan_takes_the_wheels_that_are_there(locked, wheels):
    settings = locked / "devkit.toml"
    settings.write_text(settings.read_text() + '\n[pins]\nsix = "1.17.0"\n')
    refused = devkit("update", locked, "--yes")
    assert refused.returncode == 2 and "six" in refused.stderr, "no wheel of it is here, so nothing was written"
    make_wheel(wheels, "six", "1.17.0")
    done = devkit("update", locked, "--yes")
    assert done.returncode == 0, done.stderr
    assert "six==1.17.0" in (locked / ".devcontainer/requirements.lock").read_text()
    assert devkit("update", locked, "--check").returncode == 0


# `devkit init` in a project whose code is old, with a package index that says when its files were uploaded.


UPLOADED = {"1.0": "2023-01-05T00:00:00Z", "2.0": "2026-05-05T00:00:00Z"}
PACKAGES = ("demo", "late")


class Index(QuietHandler):
    """Two packages with an old and a new release (PEP 691 and 700), whose metadata stand beside the wheels."""

    def do_GET(self):  # noqa: N802
        if self.path.endswith(".metadata"):
            name, version = self.path.rpartition("/")[2].split("-")[:2]
            return self.reply(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode())
        name = self.path.strip("/")
        if name not in PACKAGES:
            return self.send_error(404)
        files = [
            {
                "filename": f"{name}-{version}-py3-none-any.whl",
                "url": f"/files/{name}-{version}-py3-none-any.whl",
                "hashes": {"sha256": "0" * 64},
                "core-metadata": True,
                "upload-time": UPLOADED[version],
            }
            for version in UPLOADED
        ]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": list(UPLOADED), "files": files}
        kind = "application/vnd.pypi.simple.v1+json"
        return self.reply(json.dumps(page).encode(), headers={"Content-Type": kind})


@pytest.fixture
def dated_index():
    with serving(Index) as url:
        yield f"{url}/"


OLD = ("--driver", "570.124.06", "--gpu", "RTX 4090", "--torch", "2.0.1", "--yes")


def commit_in_2023(folder: Path, index: str) -> dict[str, str]:
    """Commit the project of a folder as of 2023; returns the variables of an index that has its packages' days."""
    day = {"GIT_COMMITTER_DATE": "2023-06-01T12:00:00Z", "GIT_AUTHOR_DATE": "2023-06-01T12:00:00Z"}
    git = ("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True, env=os.environ | day)
    return {"UV_OFFLINE": "0", "UV_CACHE_DIR": str(folder / "cache"), "UV_DEFAULT_INDEX": index}


def test_a_pin_that_no_gpu_runs_is_a_conflict_whatever_the_age_of_the_project(tmp_path, dated_index):
    (tmp_path / "requirements.txt").write_text("torch==1.6.0\n")
    environment = commit_in_2023(tmp_path, dated_index)
    done = run_devkit("plan", ".", *ADA, cwd=tmp_path, **environment)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("✗ conflict: nothing fits torch on NVIDIA GeForce RTX 4090")


def test_where_nothing_of_the_day_fits_the_newest_is_up_to_date_at_once(tmp_path, dated_index):
    (tmp_path / "requirements.txt").write_text("demo>=2\n")
    environment = commit_in_2023(tmp_path, dated_index)
    done = run_devkit("init", ".", *OLD, cwd=tmp_path, **environment)
    assert "no plan fits those released by 2023-06-01" in " ".join(done.stdout.split())
    done = run_devkit("update", ".", "--check", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stdout


def test_packages_are_of_the_day_of_the_last_change_until_devkit_toml_says_otherwise(tmp_path, dated_index):
    (tmp_path / "requirements.txt").write_text("demo\n")
    (tmp_path / "run.py").write_text("import late\n")
    # Later than the code, it does not cost the project its day.
    (tmp_path / "README.md").write_text("pip install late==2.0\n")
    environment = commit_in_2023(tmp_path, dated_index)
    done = run_devkit("init", ".", *OLD, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "as of 2023-06-01: packages released by then" in " ".join(done.stdout.split())
    assert 'as_of = "2023-06-01"' in (tmp_path / "devkit.toml").read_text()
    assert "demo==1.0" in (tmp_path / ".devcontainer" / "constraints.txt").read_text()
    assert "imported but not listed in any file: late==2.0" in " ".join(done.stdout.split())

    done = run_devkit("init", ".", "--as-of", "latest", "--yes", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert 'as_of = "latest"' in (tmp_path / "devkit.toml").read_text()
    assert "demo==1.0" not in (tmp_path / ".devcontainer" / "Dockerfile").read_text()


# What a project imports and uv's resolution lacks.


@cases(
    "resolution, missing",
    {
        "what nothing brings": (
            Resolved((("rich", "14.0"), ("pandas", "2.3.0"), ("setuptools", "81.0.0"))),
            ["einops"],
        ),
        "everything comes with something": (
            Resolved((("einops", "0.8.1"), ("pandas", "2.3.0"), ("setuptools", "81.0.0"))),
            [],
        ),
        "in a version that has the module no more": (
            Resolved((("einops", "0.8.1"), ("pandas", "2.3.0"), ("setuptools", "82.0.0"))),
            ["setuptools"],
        ),
        "not known": (Unknown("--no-resolve was given"), []),
    },
)
def test_what_comes_with_a_requirement_is_not_missing(tmp_path, resolution, missing):
    (tmp_path / "requirements.txt").write_text("rich\n")
    (tmp_path / "train.py").write_text(
        "import rich\nimport pandas\nimport einops\nimport torch\nimport pkg_resources\n"
    )
    project = open_project(tmp_path)
    found = find_missing_imports(project, replace(GPU_PLAN, resolution=resolution))
    assert [each.name for each in found] == missing


@pytest.mark.parametrize("readme", ["README.md", "inner/README.md"])
def test_what_the_guides_programs_import_at_once_is_sure(tmp_path, readme):
    programs = {
        "experiments/fetch.py": "import datasets\nimport nobody_knows\nfrom models import net\nimport rich\nimport tree\n",
        "experiments/models/net.py": "import pandas\ntry:\n    import wandb\nexcept ImportError:\n    wandb = None\n",
        "other/tree.py": "",
        "experiments/unused.py": "import einops\n",
        readme: "```\npython experiments/fetch.py --all\n```\n",
        "requirements.txt": "rich\n",
    }
    for path, text in programs.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    project = open_project(tmp_path)
    found = find_package_needs(project, replace(GPU_PLAN, resolution=Resolved((("rich", "14.0"),))))
    assert [each.name for each in found] == ["datasets", "pandas"]
    assert find_package_needs(project, replace(GPU_PLAN, resolution=Unknown("not asked"))) == []
    # A package that was not read is taken to have the module of its name, in whatever case.
    resolved = Resolved((("datasets", "4.0"), ("nobody-knows", "1.0"), ("pandas", "2.3.0"), ("rich", "14.0")))
    (tmp_path / "experiments/fetch.py").write_text("import datasets\nimport Nobody_Knows\nimport pandas\n")
    assert find_unprovided(tmp_path, project.dependencies, GPU_PLAN, resolved).needed == []


def test_a_project_whose_files_ask_for_nothing_gets_what_it_imports(tmp_path):
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='sam', install_requires=[])\n")
    (tmp_path / "sam.py").write_text("import torch\nimport torchvision\n")
    project = open_project(tmp_path)
    found, imports = add_imports(project, is_wanted=False, is_confirmed=True, asks=False)
    assert (found.settings.packages, [each.name for each in imports]) == (("torchvision",), ["torchvision"])


@pytest.fixture
def known_names(monkeypatch):
    """What each package's newest wheel has; every other package has nothing."""
    known = {"ipdb": {"ipdb", "ipdb.set_trace"}, "ipython": {"IPython", "IPython.embed"}, "unidecode": {"Unidecode"}}
    monkeypatch.setattr(
        "devkit.probe.release_names.has_names", lambda package, names: names <= known.get(package, set())
    )
    monkeypatch.setattr("devkit.probe.package_indexes.find_offline_setting", lambda: "")
    return known


def test_what_only_the_index_knows_is_offered_and_not_installed(tmp_path, known_names, monkeypatch, capsys):
    (tmp_path / "run.py").write_text("import Unidecode, apex\nfrom preprocess.douban import read\n")
    project = open_project(tmp_path, ProjectSettings(packages=("numpy<2",)))
    known_names["preprocess"] = {"preprocess", "preprocess.clean"}
    found = tuple(ImportedPackage(name, "", "run.py", 1) for name in ("Unidecode", "apex", "preprocess"))
    offer_unknown(project, (*found, ImportedPackage("tqdm", "tqdm", "run.py", 2)))
    assert capsys.readouterr().out.splitlines()[-1] == "  devkit init --set 'packages=numpy<2,unidecode'"
    monkeypatch.setattr("devkit.probe.package_indexes.find_offline_setting", lambda: "UV_OFFLINE")
    offer_unknown(project, found)
    assert not capsys.readouterr().out


@cases(
    "program, added",
    {
        "all is there": ("import ipdb\nipdb.set_trace()\nfrom IPython import embed\n", ["ipdb", "ipython"]),
        "an attribute is not": ("import ipdb as debugger\ndebugger.draw()\n", []),
        "a module is not": ("from ipdb.draw import line\n", []),
        "the package is not among the most downloaded": ("from Unidecode import *\n", []),
    },
)
def test_a_popular_package_is_added_where_it_has_what_the_program_uses(tmp_path, known_names, program, added):
    (tmp_path / "run.py").write_text(program)
    project = open_project(tmp_path)
    assert add_imports(project, is_confirmed=True)[0].settings.packages == tuple(added)
    (tmp_path / "requirements.txt").write_text("rich\n")
    (tmp_path / "README.md").write_text("```\npython run.py\n```\n")
    project = open_project(tmp_path)
    found = find_package_needs(project, replace(GPU_PLAN, resolution=Resolved((("rich", "14.0"),))))
    assert [each.name for each in found] == added


def test_versions_that_the_readme_states_are_planned_and_others_are_said_with_their_reason(project, index):
    requirements(project, "torch\nengine\n")
    (project / "README.md").write_text("## Requirements\n- engine 0.1.0\n- torch 1.2.0\n")
    done = run_with_index(project, "init", ".", *ADA, "--yes", index=index)
    assert "engine 0.1\n" in done.stdout
    assert "README.md:3 asks for torch 1.2.0: the plan has 2.14.1, because torch 1.2.0" in done.stdout
    assert run_with_index(project, "update", ".", "--check", index=index).returncode == 0
