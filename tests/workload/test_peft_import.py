"""peft without bitsandbytes: a library that is broken, as so often, costs what needs it and nothing else."""

import importlib
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.workload

from devkit.workload.environment import hide_module
from tests.workload.finetune.run_factory import TEXTS, write_base, write_texts

BROKEN = "raise OSError('libcusparse.so.11: cannot open shared object file')"
EACH = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from devkit.cli import devkit
ends = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(devkit, words)
    ends.append([done.exit_code, str(done.exception or "")])
Path(sys.argv[2]).write_text(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What commands did in a process of their own, for which bitsandbytes is broken, by their first words."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "library").mkdir()
    (folder / "library/bitsandbytes.py").write_text(BROKEN)
    model = ["--model", f"{write_base(folder / 'base')}"]
    data = [*model, "--data", f"{write_texts(folder / 'texts.jsonl', TEXTS)}", "--steps", "2"]
    adapter = ["--adapter", f"{folder / 'plain/adapter'}"]
    commands = {
        "lora": ["finetune", *data, "--output", f"{folder / 'plain'}"],
        "full": ["finetune", *data, "--output", f"{folder / 'full'}", "--method", "full"],
        "adapter": ["generate", *adapter, "--prompt", "a", "--max-new-tokens", "2"],
        "merge": ["generate", *adapter, "--merge", f"{folder / 'merged'}"],
        "qlora": ["finetune", *data, "--output", f"{folder / 'packed'}", "--method", "qlora"],
        "8-bit states": ["finetune", *data, "--output", f"{folder / 'states'}", "--optimizer", "adamw-8bit"],
    }
    argv = [sys.executable, "-c", EACH, json.dumps(list(commands.values())), f"{folder / 'ends'}"]
    path = os.pathsep.join([f"{folder / 'library'}", *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads((folder / "ends").read_text()), strict=True))


@pytest.mark.full
def test_what_needs_no_bitsandbytes_does_not_import_it(ran):
    assert [ran[command] for command in ("lora", "full", "adapter", "merge")] == [[0, ""]] * 4


@pytest.mark.full
def test_what_needs_bitsandbytes_says_why_it_does_not_import(ran):
    for command, what in (("qlora", "a base in nf4"), ("8-bit states", "--optimizer adamw-8bit")):
        why = f"{what} needs bitsandbytes, which cannot be imported: {BROKEN.split(chr(39))[1]}"
        assert ran[command][1] == why


@pytest.mark.parametrize("there", [True, False])
def test_a_package_is_hidden_within_the_block(monkeypatch, there):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    if there:
        importlib.import_module("colorsys")
    with hide_module("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    assert ("colorsys" in sys.modules) is there
