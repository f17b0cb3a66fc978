"""GGUF files are written by llama.cpp's programs: here by ones that only record what they were given."""

import pytest
from click.testing import CliRunner

from devkit.cli import devkit
from devkit.errors import DevkitError
from devkit.workload.generation.gguf_file import CONVERTER, find_gguf_writer

CONVERT = """#!/usr/bin/env python3
import sys
if "f16" in sys.argv: import package_of_nobody
open(sys.argv[sys.argv.index("--outfile") + 1], "w").write("GGUF " + " ".join(sys.argv[1:2] + sys.argv[-1:]))
"""
QUANTIZE = '#!/bin/sh\n{ cat "$1"; echo " $3"; } > "$2"\n'


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, text in ((CONVERTER, CONVERT), ("llama-quantize", QUANTIZE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "merged").mkdir()
    return tmp_path / "merged"


@pytest.mark.parametrize(("kind", "tail"), [("q8_0", "q8_0"), ("q4_k_m", "bf16 Q4_K_M\n")])
def test_the_file_is_written_in_its_type_with_a_modelfile_beside_it(model, kind, tail):
    file = find_gguf_writer(kind).write(model)
    assert file.read_text() == f"GGUF {model} {tail}"
    assert (model / "Modelfile").read_text() == f"FROM ./merged-{kind}.gguf\n"
    assert sorted(each.name for each in model.iterdir()) == ["Modelfile", f"merged-{kind}.gguf"]


def test_a_converter_that_fails_says_what_to_install_and_leaves_nothing(model):
    with pytest.raises(DevkitError, match="No module named 'package_of_nobody'") as refused:
        find_gguf_writer("f16").write(model)
    assert refused.value.hint == "pip install package_of_nobody"
    assert list(model.iterdir()) == []


@pytest.mark.parametrize(("removed", "kind"), [(CONVERTER, "q8_0"), ("llama-quantize", "q4_k_m")])
def test_a_missing_program_is_reported_before_anything_is_merged(model, monkeypatch, removed, kind):
    (model.parent / removed).unlink()
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(DevkitError, match=removed):
        find_gguf_writer(kind)


def test_without_a_merge_there_is_nothing_to_convert():
    with pytest.raises(DevkitError, match="--gguf converts the merged model"):
        CliRunner().invoke(devkit, ["generate", "--prompt", "a", "--gguf", "q8_0"], catch_exceptions=False)
