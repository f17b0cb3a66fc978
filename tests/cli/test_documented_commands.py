"""Every `devkit` command of README, tutorial, guides and CONTRIBUTING, run as printed, in a folder of its own with an empty HOME.

What needs an engine, a GPU, a network or torch is listed with its reason; the tutorial's training is run with the workload's examples.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from devkit.errors import ExitCode
from tests.forked_commands import run_devkit
from tests.hosts.golden import expected_document

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs/guides").glob("*.md"))
BLOCK = re.compile(r"^(?:<!-- (\w+) -->\n)?```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

NOT_RUN = {
    r"devkit verify": "the proof needs torch or an engine: tests/engine, tests/workload",
    r"devkit (onboard|up|shell|run|down)": "needs an engine: tests/engine/test_opening.py",
    r"devkit bundle": "needs an engine and the package index: tests/engine/test_bundle.py",
    r"devkit estimate --learn (?!--reset)": "needs a measured run: tests/cli/test_estimate.py",
    r"devkit init --compose": "needs a Compose file of the project: tests/cli/test_init.py",
    r"devkit (finetune|generate|serve)": "needs torch and a model: tests/workload/test_examples.py runs the tutorial's and the examples'",
    r"devkit estimate .*--exact": "needs torch: tests/workload/tracing",
    r"devkit fleet doctor --reports": "needs reports of machines: tests/cli/test_fleet.py",
    r"devkit data update": "needs a table of one's own: tests/cli/test_data.py",
}
"""Commands that are not run here, with the reason."""

SAYS_NO = re.compile(r"devkit ((fleet )?doctor|compare|estimate|update .*--check|export --check)")
"""Commands that may answer with 1 on a machine of which nothing is known."""


def list_commands(page):
    """Every `devkit` command in the shell blocks of a page, without comments and pipes, in order."""
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            command = " ".join(line.split("  #")[0].split())
            if kind != "training" and command.startswith("devkit "):
                yield command.partition(" | ")[0]


COMMANDS = {page.relative_to(ROOT).as_posix(): tuple(list_commands(page)) for page in PAGES}
RUN = [
    pytest.param(name, command, id=f"{name}: {command}")
    for name, commands in COMMANDS.items()
    for command in commands
    if not any(re.match(pattern, command) for pattern in NOT_RUN)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project with a dev container, settings of a run, saved machines and reports, as the pages presuppose."""
    root = tmp_path_factory.mktemp("documented")
    (root / "devkit.toml").write_text(
        'name = "tide"\n[target]\ndriver = "580.95.05"\ngpus = ["H100", "A100", "A10G"]\n'
    )
    for name, model in (("run", "Llama-3.1-8B"), ("run-7b", "Llama-2-7b-hf"), ("run-13b", "Llama-2-13b-hf")):
        settings = (
            f'model = "meta-llama/{model}"\nmethod = "qlora"\ndata = ["chats.jsonl"]\noutput = "tuned"\nbatch = 32\n'
        )
        (root / f"{name}.toml").write_text(settings)
    (root / "chats.jsonl").write_text('{"text": "a"}\n')
    shutil.copytree(ROOT / "examples/quickstart", root / "my-project", ignore=shutil.ignore_patterns("expected"))
    (root / "my-model").mkdir()
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    shape |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 500}
    (root / "my-model/config.json").write_text(json.dumps(shape))
    machines = {
        "good": "ubuntu-4090-ok",
        "bad": "toolkit-missing",
        "server": "ubuntu-4090-ok",
        "laptop": "wsl2-desktop",
    }
    for name, machine in machines.items():
        (root / f"{name}.json").write_text(json.dumps(expected_document(machine)))
    for name in ("facts", "reports/facts", "proofs/verify"):
        (root / name).mkdir(parents=True)
        for machine in ("good", "bad"):
            shutil.copy(root / f"{machine}.json", root / name)
    (root / "report.json").write_text(json.dumps(expected_document("ubuntu-4090-ok")))
    (root / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    (root / "build.log").write_text('could not select device driver "" with capabilities: [[gpu]]\n')
    for project in (root, root / "my-project"):
        done = run(["init", ".", "--yes", "--no-resolve"], project)
        assert done.returncode == 0, done.stderr
    done = run(
        [
            "export",
            "kubernetes",
            "--settings",
            "run.toml",
            "--gpu",
            "H100",
            "--image",
            "registry.example.org/tide/tune:1",
        ],
        root,
    )
    assert done.returncode == 0, done.stderr
    return root


def run(words, folder):
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return run_devkit(*words, cwd=folder, HOME=str(home), HF_HOME=str(home / "hf"), UV_OFFLINE="1", COLUMNS="100")


@pytest.mark.parametrize(("page", "command"), RUN)
def test_a_documented_command_does_what_it_says(folder, page, command):
    copy = folder.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, symlinks=True)
    words, text = (
        shlex.split(command.replace("REGISTRY/NAME:TAG", "ghcr.io/me/llama:1").replace("SHARED", "shared"))[1:],
        "",
    )
    if "<" in words:
        text = (copy / words[words.index("<") + 1]).read_text()
        words = words[: words.index("<")]
    home = copy / "home"
    done = run_devkit(*words, cwd=copy, text=text, HOME=str(home), HF_HOME=str(home / "hf"), UV_OFFLINE="1")
    allowed = {ExitCode.DONE, ExitCode.ANSWER_IS_NO} if SAYS_NO.match(command) else {ExitCode.DONE}
    assert done.returncode in allowed, f"{page}: {command}\n{done.stdout[-500:]}{done.stderr[-1500:]}"


def test_what_is_not_run_is_printed_somewhere():
    everything = [command for commands in COMMANDS.values() for command in commands]
    assert len(RUN) > 50
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in everything)] == []
