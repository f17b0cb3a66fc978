"""Files of the user's that `devkit init` changes or adds to: a Compose service, a Dockerfile, ignore files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.formats.jsonc import load_jsonc
from devkit.render.adopt.dev_container import TorchPin, pin_dockerfile, pin_requirements
from devkit.render.text_edits import merge_ignore_file, update_gitignore
from tests.cases import cases
from tests.cli.test_init import GPU, tree
from tests.render.test_repositories import devkit

# `devkit init --compose`: a dev container of a service in the project's own Compose file, which stays as it is.


COMPOSE = """\
services:
  controller:
    build: .
  worker:
    build: .
    entrypoint: [python3, -m, serve]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]
"""
PATH = ".devcontainer/devcontainer.json"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "chat"
    (folder / "docker").mkdir(parents=True)
    (folder / "docker/docker-compose.yml").write_text(COMPOSE)
    (folder / "docker/Dockerfile").write_text("FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\n")
    return folder


def test_the_service_becomes_a_dev_container_and_no_file_changes(root):
    before = tree(root)
    done = devkit("init", root, *GPU, "--compose", "docker/docker-compose.yml")
    assert done.return_value == 0
    assert "torch 2.3.0 (cu121), as docker/Dockerfile:1 brings it, and stays so" in " ".join(done.stdout.split())
    after = tree(root)
    assert {path: after[path] for path in before} == before
    dev = load_jsonc(after[PATH].decode())
    assert dev["dockerComposeFile"][0] == "../docker/docker-compose.yml"
    assert (dev["service"], dev["overrideCommand"]) == ("worker", True)
    assert dev["mounts"] == [f"source=${{localWorkspaceFolder}},target={dev['workspaceFolder']},type=bind"]
    assert devkit("init", root).stdout.splitlines()[-1].startswith("unchanged")
    assert devkit("update", root, "--check").return_value == 0
    assert tree(root) == after


def test_a_mounted_project_is_not_mounted_again(root):
    path = root / "docker/docker-compose.yml"
    path.write_text(COMPOSE.replace("    entrypoint", '    volumes: ["../:/app:cached"]\n    entrypoint'))
    devkit("init", root, *GPU, "--compose", path)
    dev = load_jsonc((root / PATH).read_text())
    assert dev["workspaceFolder"] == "/app"
    assert "mounts" not in dev


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--compose", "docker/compose.yml"), "docker/compose.yml does not exist"),
        (("--compose", "../elsewhere.yml"), "is outside the project"),
        (("--compose", "docker/Dockerfile"), "docker/Dockerfile "),
        (("--compose", "docker/docker-compose.yml", "--service", "api"), "has no service 'api'"),
        (("--compose", "docker/docker-compose.yml", "--torch", "2.9.1"), "--torch would change nothing"),
        (("--service", "worker"), "--service needs --compose"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_opened_is_refused(root, words, says):
    before = tree(root)
    with pytest.raises(DevkitError, match=says):
        devkit("init", root, *GPU, *words)
    assert tree(root) == before


def test_one_of_several_services_has_to_be_chosen(root):
    path = root / "docker/docker-compose.yml"
    path.write_text(
        path.read_text()
        + path.read_text().partition("services:\n")[2].replace("worker", "other").replace("controller", "c2")
    )
    with pytest.raises(DevkitError, match="several services ask for a GPU"):
        devkit("init", root, *GPU, "--compose", path)
    assert devkit("init", root, *GPU, "--compose", path, "--service", "other").return_value == 0


def test_init_offers_the_service_where_it_writes_a_dev_container_of_its_own(root):
    said = " ".join(devkit("init", root, *GPU).stdout.split())
    assert "To open it: devkit init --compose docker/docker-compose.yml --service worker" in said
    assert "To open it" not in devkit("init", root, "--force").stdout


# Changes of somebody's Dockerfile: the words that must change, and no other byte.


CU130 = "https://download.pytorch.org/whl/cu130"
PIN = TorchPin("2.13.0", "cu130", CU130)
ADDED = f"--extra-index-url {CU130}"


@cases(
    "run, becomes",
    {
        "one package": ("pip install torch", f"pip install {ADDED} torch==2.13.0+cu130"),
        "a version of the user's": ("pip install torch==2.9.1", "pip install torch==2.9.1"),
        "quotes stay": ("pip install \"torch\" 'peft'", f"pip install {ADDED} \"torch==2.13.0+cu130\" 'peft'"),
        "extras stay": ("pip install 'torch[opt]'", f"pip install {ADDED} 'torch[opt]==2.13.0+cu130'"),
        "another package": ("pip install transformers[torch]", "pip install transformers[torch]"),
        "another installer": ("apt-get install -y torch", "apt-get install -y torch"),
        "torch's index of another CUDA": (
            "pip install --index-url https://download.pytorch.org/whl/cu118 torch",
            f"pip install --index-url {CU130} torch==2.13.0+cu130",
        ),
        "uv gets its backend": (
            "uv pip install --system torch",
            "uv pip install --torch-backend=cu130 --system torch==2.13.0",
        ),
        "an option's value is no package": (
            "python3 -m pip install -t torch torch",
            f"python3 -m pip install {ADDED} -t torch torch==2.13.0+cu130",
        ),
        "a file that holds torch": ("pip install -r requirements.txt", f"pip install {ADDED} -r requirements.txt"),
        "a file that holds torch and is not edited": (
            "pip install -r theirs.txt",
            f"pip install {ADDED} torch==2.13.0+cu130 -r theirs.txt",
        ),
        "a file that holds none": ("pip install -r others.txt", "pip install -r others.txt"),
    },
)
def test_versions_and_index(run, becomes):
    text = f"FROM x\n# torch\nRUN {run}\nENV A=torch\n"
    changed = pin_dockerfile(text, PIN, files={"requirements.txt": True, "theirs.txt": False})
    assert changed == f"FROM x\n# torch\nRUN {becomes}\nENV A=torch\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_words_on_lines_of_their_own(end):
    lines = ["FROM x", "RUN pip install \\", "    # torch, the newest", "    torch \\", "    peft", "USER y", ""]
    pinned = [line.replace("    torch \\", "    torch==2.13.0+cu130 \\") for line in lines]
    pinned[1] = f"RUN pip install {ADDED} \\"
    assert pin_dockerfile(end.join(lines), PIN) == end.join(pinned)


def test_a_here_document_is_a_script_too():
    text = "FROM x\nRUN <<EOF\npip install torch\necho torch\nEOF\nCMD torch\n"
    assert pin_dockerfile(text, PIN) == text.replace("install torch", f"install {ADDED} torch==2.13.0+cu130")


def test_a_renewal_touches_only_what_was_pinned_before():
    text = "FROM x\nRUN pip install torch==2.12.0+cu126 peft\nRUN pip install torch==2.11.0\n"
    renewed = pin_dockerfile(text, replace(PIN, before=("==2.12.0+cu126",)))
    assert renewed == text.replace("install torch==2.12.0+cu126", f"install {ADDED} torch==2.13.0+cu130")


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("torch", "torch==2.13.0"),
        ("torch  # newest", "torch==2.13.0  # newest"),
        ('torch[opt] ; python_version > "3.8"', 'torch[opt]==2.13.0 ; python_version > "3.8"'),
        ("torch>=2", "torch>=2"),
        ("torch @ https://example.org/torch.whl", "torch @ https://example.org/torch.whl"),
        ("torchmetrics", "torchmetrics"),
        ("# torch", "# torch"),
        ("-r torch", "-r torch"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_requirement_files(line, becomes, end):
    assert pin_requirements(f"a{end}{line}{end}b", PIN) == f"a{end}{becomes}{end}b"


WORDS = ["FROM x\n", "RUN ", "pip install ", "torch ", "'torch ", '"', "\\\n", "# torch\n", "&& ", "<<E\n", "E\n", "é"]
SNIPPETS = st.lists(st.sampled_from(WORDS), max_size=20)


@given(SNIPPETS)
def test_whatever_the_file_is_nothing_is_lost_and_a_second_time_changes_nothing(parts):
    text = "".join(parts)
    changed = pin_dockerfile(text, PIN)
    rest = iter(changed)
    assert all(char in rest for char in text), "the text is still there, with something added"
    assert pin_dockerfile(changed, PIN) == changed


# Lines in ignore files that a project has already: what devkit needs is appended, and theirs stay.


@cases(
    "before, added",
    {
        "nothing about it": ("*.pyc\n", ["/.env"]),
        "its name": (".env\n", []),
        "a pattern": ("**/.env*\n", []),
        "its path, without a line end": ("/.env", []),
        "a line that takes it back": (".env\n!.env\n", ["/.env"]),
        "a pattern that hides the lock by accident": (".env\n*.lock\n", ["!/devkit.lock"]),
        "names of devkit's files: a decision": (".env\n.devcontainer/\ndevkit.lock\n", []),
        "a pattern that hides the folder of every teammate's container": (".env\n.*\n", ["!/.devcontainer"]),
    },
)
def test_what_is_missing_is_appended(tmp_path, before, added):
    (tmp_path / ".gitignore").write_text(before)
    changed, ours = update_gitignore(tmp_path, (".env",), {})
    text = changed[0].content.decode() if changed else before
    assert text.startswith(before)
    assert [line for line in text.removeprefix(before).splitlines() if line and line[0] != "#"] == added
    assert ours == ({".gitignore": tuple(added)} if added else {})


def test_a_second_time_nothing_is_appended_and_what_was_taken_out_stays_out(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"*.pyc\r\n")
    (artifact,), ours = update_gitignore(tmp_path, (".env",), {})
    assert artifact.content.endswith(b"\r\n/.env\r\n")
    (tmp_path / ".gitignore").write_bytes(artifact.content)
    assert update_gitignore(tmp_path, (".env",), ours) == ([], ours)
    (tmp_path / ".gitignore").write_bytes(b"*.pyc\r\n")
    assert update_gitignore(tmp_path, (".env",), ours) == ([], ours)


def test_a_line_that_is_needed_no_more_goes(tmp_path):
    (tmp_path / ".gitignore").write_text("*.pyc\n/docker/.env\n")
    (artifact,), ours = update_gitignore(tmp_path, (), {".gitignore": ("/docker/.env",)})
    assert (artifact.content, ours) == (b"*.pyc\n", {})


@pytest.mark.parametrize(("is_git", "makes"), [(True, 1), (False, 0)], ids=["in a repository", "elsewhere"])
def test_a_file_is_made_only_where_git_would_read_it(tmp_path, is_git, makes):
    if is_git:
        (tmp_path / ".git").mkdir()
    assert len(update_gitignore(tmp_path, (".env",), {})[0]) == makes


def test_the_last_line_that_fits_counts_so_devkits_own_come_last():
    joined = merge_ignore_file(b"!secrets\n*.md", b"# Written by devkit.\n*\n!requirements.txt\n")
    assert joined == b"!secrets\n*.md\n# Written by devkit.\n*\n!requirements.txt\n"
    assert merge_ignore_file(joined, b"# Written by devkit 2.\n*\n!requirements.txt\n") == joined


def test_a_folder_with_ignore_files_of_its_own_gets_devkits_dev_container(tmp_path: Path):
    """Ignore files alone are no dev container of somebody else's; they are joined, now and at every update."""
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    (folder / ".gitignore").write_text("scratch/\n")
    (folder / ".dockerignore").write_text("**/*.md\n")
    assert "\nNext: " in devkit("init", tmp_path, *GPU).stdout
    for name, first in ((".gitignore", "scratch/"), (".dockerignore", "**/*.md")):
        lines = (folder / name).read_text().splitlines()
        assert lines[0] == first
        assert len(lines) > 2
    assert devkit("update", tmp_path, "--check").return_value == 0
    with (folder / ".gitignore").open("a") as file:
        file.write("more/\n")
    assert devkit("update", tmp_path, "--check").return_value == 0
    assert json.loads((tmp_path / "devkit.lock").read_text())["files"][".devcontainer/.gitignore"]
