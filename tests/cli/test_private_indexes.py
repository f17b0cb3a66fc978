"""Where a package comes from: the index that the project binds it to, with the user's consent, and from no other."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from devkit.probe.package_indexes import find_allowed_indexes
from devkit.probe.uv_resolver import find_uv
from tests.forked_commands import run_devkit
from tests.package_server import serve_packages
from tests.wheels import make_wheel

ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")
PRIVATE, PUBLIC = "1.0+private", "9.0"
UV = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["corp", "other"]\n'
POETRY = '[tool.poetry]\nname = "x"\nversion = "1"\n[tool.poetry.dependencies]\npython = ">=3.11"\n'
PIPFILE = '[[source]]\nurl = "https://pypi.org/simple"\nname = "pypi"\n[[source]]\nurl = "URL"\nname = "own"\n'
PROJECTS = {
    "uv: an index": {"pyproject.toml": UV + '[[tool.uv.index]]\nurl = "URL"\n'},
    "uv: an explicit index": {
        "pyproject.toml": UV
        + '[[tool.uv.index]]\nname = "own"\nurl = "URL"\nexplicit = true\n[tool.uv.sources]\ncorp = { index = "own" }\n'
    },
    "uv: a source as a list": {
        "pyproject.toml": UV
        + '[[tool.uv.index]]\nname = "own"\nurl = "URL"\nexplicit = true\n[tool.uv.sources]\n'
        + 'corp = [{ index = "own", marker = "sys_platform == \'linux\'" }]\n'
    },
    "uv: with a folder beside it": {
        "pyproject.toml": UV.replace('"other"', '"other", "near"')
        + '[[tool.uv.index]]\nname = "own"\nurl = "URL"\nexplicit = true\n[tool.uv.sources]\ncorp = { index = "own" }\n'
        + 'near = { path = "near" }\n',
        "near/pyproject.toml": '[project]\nname = "near"\nversion = "1"\n',
    },
    "uv: uv.toml": {"pyproject.toml": UV, "uv.toml": '[[index]]\nurl = "URL"\n'},
    "uv: older settings": {"pyproject.toml": UV + '[tool.uv]\nextra-index-url = ["URL"]\n'},
    "Poetry: a source": {
        "pyproject.toml": POETRY
        + 'corp = "*"\nother = "*"\n[[tool.poetry.source]]\nname = "own"\nurl = "URL"\npriority = "supplemental"\n'
    },
    "Poetry: an explicit source": {
        "pyproject.toml": POETRY
        + 'corp = { version = "*", source = "own" }\nother = "*"\n'
        + '[[tool.poetry.source]]\nname = "own"\nurl = "URL"\npriority = "explicit"\n'
    },
    "PDM: a source": {"pyproject.toml": UV + '[[tool.pdm.source]]\nname = "own"\nurl = "URL"\n'},
    "Pipenv: an index": {"Pipfile": PIPFILE + '[packages]\ncorp = { version = "*", index = "own" }\nother = "*"\n'},
    "pip: a list": {"requirements.txt": "--index-url URL\ncorp\n"},
    "pip: an extra index": {"requirements.txt": "--extra-index-url URL\ncorp\nother\n"},
    "pip: an index, and torch's": {
        "requirements.txt": "--extra-index-url https://download.pytorch.org/whl/cu121\n--extra-index-url URL\ncorp\nother\n"
    },
    "pip: an index, and the public one": {
        "requirements.txt": "--index-url URL\n--extra-index-url https://pypi.org/simple\ncorp\nother\n"
    },
}


@pytest.fixture
def servers(tmp_path):
    """The private index and the public one, which has a newer package of the same name."""
    folders = [tmp_path / "private-wheels", tmp_path / "public-wheels"]
    for folder in folders:
        folder.mkdir()
    private = [make_wheel(folders[0], "corp", PRIVATE)]
    public = [make_wheel(folders[1], "corp", PUBLIC), make_wheel(folders[1], "other", "3.0")]
    with serve_packages(private) as own, serve_packages(public) as everybody:
        yield own, everybody


def run(tmp_path: Path, project: Path, *words: str, public: str, **variables: str):
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    environment = {"NO_COLOR": "1", "COLUMNS": "200", "UV_OFFLINE": "0", "UV_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"HOME": str(home), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "PIP_FIND_LINKS": ""}
    environment |= {"UV_DEFAULT_INDEX": public} if public else {}
    return run_devkit(*words, cwd=project, **environment, **variables)


def write(project: Path, files: dict[str, str], url: str) -> None:
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text.replace("URL", url))


@pytest.mark.parametrize("files", PROJECTS.values(), ids=PROJECTS)
def test_a_package_comes_from_the_index_that_the_project_names_and_only_with_consent(tmp_path, servers, files):
    private, public = servers
    project = tmp_path / "project"
    write(project, files, private.index)
    refused = run(tmp_path, project, "plan", *ADA, "--json", public=public.index)
    assert refused.returncode == 2
    assert f"taken from {private.index}, which you have not allowed" in refused.stderr
    assert f"--allow-index {private.index}" in refused.stderr
    assert private.requests == public.requests == []
    done = run(tmp_path, project, "plan", *ADA, "--json", "--allow-index", private.index, public=public.index)
    assert done.returncode == 0, done.stderr
    resolution = json.loads(done.stdout)["resolution"]
    assert resolution["packages"]["corp"] == PRIVATE
    assert resolution["asked"] == [private.index]


def test_consent_is_remembered_and_the_index_is_said(tmp_path, servers):
    private, public = servers
    project = tmp_path / "project"
    write(project, PROJECTS["pip: an extra index"], private.index)
    run(tmp_path, project, "plan", *ADA, "--no-resolve", "--allow-index", private.index, public=public.index)
    done = run(tmp_path, project, "plan", *ADA, public=public.index)
    assert f"also queried, in addition to the public index: {private.index}" in done.stdout


def test_a_release_that_the_private_index_lacks_is_refused_although_the_public_one_has_it(tmp_path, servers):
    private, public = servers
    project = tmp_path / "project"
    write(project, {"requirements.txt": "--extra-index-url URL\ncorp>=2\nother\n"}, private.index)
    done = run(tmp_path, project, "plan", *ADA, "--allow-index", private.index, public=public.index)
    assert done.returncode == 1
    assert "only corp==1.0+private is available" in done.stdout


@pytest.mark.parametrize(
    "name", ["uv: an index", "uv: an explicit index", "uv: with a folder beside it", "Poetry: an explicit source"]
)
def test_the_image_takes_the_package_from_there_as_well(tmp_path, servers, name):
    private, public = servers
    project = tmp_path / "project"
    write(project, PROJECTS[name], private.index)
    words = ("init", ".", *ADA, "--yes", "--allow-index", private.index)
    done = run(tmp_path, project, *words, public=public.index)
    assert done.returncode == 0, done.stdout + done.stderr
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    is_bound_in_its_own_file = name == "uv: an explicit index"
    assert (private.index in dockerfile) is not is_bound_in_its_own_file
    assert tomllib.loads((project / "devkit.toml").read_text())["network"]["allow_indexes"] == [private.index]
    if "project.written" in name or "folder" in name or "Poetry" in name:
        written = re.search(r"printf '%s\\n' \\\n((?:.*\n)*?) +> /mnt/work/pyproject.toml", dockerfile)
        assert written and 'index = "own"' in written[1]


@pytest.mark.parametrize("name", [name for name in PROJECTS if name.startswith("pip: an")])
def test_the_options_of_the_image_put_a_private_index_before_public_ones(tmp_path, servers, name):
    private, public = servers
    project = tmp_path / "project"
    write(project, PROJECTS[name], private.index)
    words = ("init", ".", *ADA, "--yes", "--no-resolve", "--allow-index", private.index)
    done = run(tmp_path, project, *words, public=public.index)
    assert done.returncode == 0, done.stdout + done.stderr
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    (command,) = re.findall(r"uv pip install[^&]*--requirement=/mnt/project/requirements.txt[^&]*", dockerfile)
    options = re.findall(r"--(?:default-index|index|index-strategy)=\S+", command)
    # What PyTorch's index has of others is old.
    with serve_packages([make_wheel(tmp_path, "other", "0.1"), make_wheel(tmp_path, "corp", "0.1")]) as torch:
        real = {"https://pypi.org/simple": public.index, "https://download.pytorch.org/whl/cu121": torch.index}
        listed = (project / "requirements.txt").read_text()
        for address, stand_in in real.items():
            listed = listed.replace(address, stand_in)
            options = [each.replace(address, stand_in) for each in options]
        (project / "requirements.txt").write_text(listed)
        environment = {"UV_DEFAULT_INDEX": public.index} if "--index-url" not in listed else {}
        environment |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
        uv = [find_uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "requirements.txt"]
        resolved = subprocess.run([*uv, *options], cwd=project, env=environment, capture_output=True, text=True)
    assert resolved.stdout.split() == [f"corp=={PRIVATE}", "other==3.0"], resolved.stderr


@pytest.mark.parametrize(
    "line", ["--extra-index-url https://download.pytorch.org/whl/cu121", "--find-links https://data.pyg.org/whl/x.html"]
)
def test_with_public_indexes_alone_the_image_takes_the_best_version_of_all(tmp_path, servers, line):
    project = tmp_path / "project"
    write(project, {"requirements.txt": f"{line}\nother\n"}, "")
    done = run(tmp_path, project, "init", ".", *ADA, "--yes", "--no-resolve", public=servers[1].index)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--index-strategy=unsafe-best-match" in (project / ".devcontainer/Dockerfile").read_text()


def test_a_private_package_is_never_looked_for_in_the_public_index(tmp_path, servers):
    private, public = servers
    private.wheels.clear()
    project = tmp_path / "project"
    write(project, PROJECTS["uv: an explicit index"], private.index)
    done = run(tmp_path, project, "plan", *ADA, "--allow-index", private.index, public=public.index)
    assert done.returncode == 1
    assert "corp" in done.stdout
    assert not [each for each in public.requests if "/corp/" in each]


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": UV + '[tool.uv.sources]\ncorp = { index = "gone" }\n'},
        {"pyproject.toml": POETRY + 'corp = { version = "*", source = "gone" }\nother = "*"\n'},
        {"Pipfile": '[packages]\ncorp = { version = "*", index = "gone" }\nother = "*"\n'},
    ],
    ids=["uv", "Poetry", "Pipenv"],
)
def test_a_package_of_an_index_that_no_file_defines_is_refused(tmp_path, servers, files):
    _, public = servers
    project = tmp_path / "project"
    write(project, files, "")
    done = run(tmp_path, project, "plan", *ADA, public=public.index)
    assert done.returncode == 1
    assert "corp" in done.stdout and "gone" in done.stdout
    assert not [each for each in public.requests if "/corp/" in each]


CONDA = "channels:\n- CHANNEL\n- conda-forge\ndependencies:\n- BOUNDcorp\n- BOUNDother\n- pip:\n  - peft\n"
LOGIN = "https://conda.example/t/planted-token/own"


@pytest.mark.parametrize(
    ("channel", "bound", "installed"),
    [
        ("URL", "", ["corp", "other"]),
        ("nodefaults", "URL::", ["URL::corp", "URL::other"]),
        ("nodefaults", "own::", ["own::corp", "own::other"]),
        (LOGIN, "", []),
        ("nodefaults", f"{LOGIN}::", []),
    ],
    ids=["a channel", "bound to an address", "bound to a name", "a channel with a login", "bound, with a login"],
)
def test_a_package_of_a_channel_is_looked_for_in_no_index_and_no_other_channel(
    tmp_path, servers, channel, bound, installed
):
    private, public = servers
    project = tmp_path / "project"
    text = CONDA.replace("CHANNEL", channel).replace("BOUND", bound)
    write(project, {"environment.yml": text.replace("other", "numpy")}, private.url)
    done = run(tmp_path, project, "init", ".", *ADA, "--yes", "--no-resolve", public=public.index)
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text() for path in (project / ".devcontainer").glob("[!w]*") if path.is_file()}
    conda = written.get("conda.yaml", "")
    assert [each.replace("URL", private.url).replace("other", "numpy") for each in installed] == re.findall(
        r'^  - "(.*(?:corp|numpy))"$', conda, re.MULTILINE
    )
    installs = "".join(text for name, text in written.items() if name != "conda.yaml")
    assert "corp" not in installs.replace("conda.yaml", "")
    assert bool(re.search(r"\bnumpy\b", installs)) is (not installed and not bound)
    assert "planted-token" not in "".join(written.values()) + done.stdout + done.stderr


def test_the_consent_of_a_stranger_does_not_count(tmp_path, servers):
    private, public = servers
    project = tmp_path / "project"
    write(project, PROJECTS["uv: an index"], private.index)
    (project / "devkit.toml").write_text(f'[network]\nallow_indexes = ["{private.index}"]\nindex = "{private.index}"\n')
    done = run(tmp_path, project, "plan", *ADA, public=public.index)
    assert done.returncode == 2
    assert private.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "http://HOST#@ALLOWED/simple",
        "http://HOST\\@ALLOWED/simple",
        "http:/HOST/simple",
        "http:HOST/simple",
        "http://HOST/download.pytorch.org/whl",
        "http://ALLOWED/simple/../corp",
        "http://ALLOWED/simple/..%5c..\\%2E%2e/corp",
        "FOLDER",
        "../../..FOLDER",
    ],
)
@pytest.mark.parametrize("option", ["--extra-index-url", "--find-links"])
def test_an_address_that_looks_allowed_or_local_is_asked_with_consent(tmp_path, servers, address, option):
    private, public = servers
    project = tmp_path / "project"
    write(project, {"requirements.txt": "corp\n"}, "")
    run(tmp_path, project, "plan", *ADA, "--no-resolve", "--allow-index", private.index, public=public.index)
    with serve_packages([]) as stranger:
        allowed, host = (each.url.removeprefix("http://") for each in (private, stranger))
        address = (
            address.replace("ALLOWED", allowed).replace("HOST", host).replace("FOLDER", str(tmp_path / "public-wheels"))
        )
        write(project, {"requirements.txt": f"{option} {address}\ncorp\n"}, "")
        refused = run(tmp_path, project, "plan", *ADA, public=public.index)
    assert (refused.returncode, stranger.requests) == (2, [])
    assert "which you have not allowed" in refused.stderr


@pytest.mark.parametrize("content", ["[" * 100_000, '["https://a.example"' + " " * (2 << 20) + "]", "[1", '{"a": 1}'])
def test_a_damaged_memory_allows_nothing(tmp_path, monkeypatch, content):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    write(tmp_path, {"devkit/allowed-indexes.json": content}, "")
    assert "https://a.example" not in find_allowed_indexes()


def test_a_mirror_in_devkit_toml_is_asked_with_consent(tmp_path, servers):
    private, public = servers
    project = tmp_path / "project"
    write(project, {"requirements.txt": "corp\n", "devkit.toml": f'[network]\nindex = "{private.index}"\n'}, "")
    refused = run(tmp_path, project, "plan", *ADA, public=public.index)
    assert refused.returncode == 2 and "devkit.toml" in refused.stderr
    done = run(tmp_path, project, "plan", *ADA, "--json", "--allow-index", private.url, public=public.index)
    assert json.loads(done.stdout)["resolution"]["packages"]["corp"] == PRIVATE


def test_a_mirror_that_the_user_types_is_allowed(tmp_path, servers):
    private, public = servers
    project = tmp_path / "project"
    write(project, {"requirements.txt": "corp\n"}, "")
    done = run(tmp_path, project, "init", ".", *ADA, "--yes", "--set", f"index={private.index}", public=public.index)
    assert done.returncode == 0, done.stderr
    assert f"corp=={PRIVATE}" in (project / ".devcontainer" / "constraints.txt").read_text(encoding="utf-8")
    assert not [each for each in public.requests if "/corp/" in each]


@pytest.mark.parametrize("place", [".config/pip/pip.conf", ".pip/pip.conf"])
def test_the_index_of_the_users_pip_conf_is_asked(tmp_path, servers, place):
    private, public = servers
    project = tmp_path / "project"
    write(project, {"requirements.txt": "corp\n"}, "")
    settings = tmp_path / "home" / place
    settings.parent.mkdir(parents=True)
    # A folder of this machine is no place from which an image gets packages.
    settings.write_text(f"[global]\nindex-url = {private.index}\nextra-index-url = file:///srv/nowhere/simple\n")
    done = run(tmp_path, project, "plan", *ADA, "--json", public="", UV_INDEX="", UV_DEFAULT_INDEX="")
    assert json.loads(done.stdout)["resolution"]["packages"]["corp"] == PRIVATE
    assert public.requests == []


def test_the_login_of_an_index_goes_to_its_host_alone(tmp_path, servers):
    private, public = servers
    folder = tmp_path / "locked-wheels"
    folder.mkdir()
    project = tmp_path / "project"
    with serve_packages([make_wheel(folder, "secured", "1.0")], login="me:planted-password") as locked:
        write(project, PROJECTS["uv: an index"] | {"requirements.txt": "secured\ncorp\nother\n"}, private.index)
        (project / "pyproject.toml").unlink()
        (tmp_path / "home").mkdir()
        host = locked.url.partition("://")[2]
        address = f"http://me:planted-password@{host}/simple"
        done = run(tmp_path, project, "plan", *ADA, "--json", public=public.index, UV_INDEX=address)
        assert json.loads(done.stdout)["resolution"]["packages"]["secured"] == "1.0"
        assert [each for each in locked.requests if "Authorization" in each]
    assert not [each for each in (*private.requests, *public.requests) if "Authorization" in each]
    assert "planted-password" not in done.stdout + done.stderr


def test_addresses_with_a_login_are_not_allowed_and_not_remembered(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    done = run(tmp_path, project, "plan", *ADA, "--allow-index", "https://me:secret@pypi.example/simple", public="")
    assert done.returncode == 2
    assert not [path for path in (tmp_path / "home").rglob("allowed-indexes.json") if path.stat().st_size]
