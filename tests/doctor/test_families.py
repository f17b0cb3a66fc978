"""Families of errors: sound data, causes ranked by the words of the text, and fixes that the solver would plan."""

import json
import re
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli.explain import explain
from devkit.compat.version_tables import load_tables
from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Confidence
from devkit.doctor.registry import BY_CODE
from devkit.doctor.signatures.families import MAX_CAUSES, _split_families, find_families, load_families
from devkit.doctor.signatures.log_text import read_words
from devkit.doctor.signatures.patterns import compile_pattern
from devkit.doctor.signatures.text_values import COMPUTED_FIXES, TextValues, read_text_values
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.plan import Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.doctor.test_signature_catalog import written_out

FAMILIES = load_families()
WORDS = [words for words, _ in _split_families()]
THREADS = tomllib.loads((Path(__file__).parent / "family_errors.toml").read_text(encoding="utf-8"))["error"]

UNRELATED = (Path(__file__).parent / "unrelated_lines.txt").read_text(encoding="utf-8").splitlines()
"""Errors and lines of other fields, and lines of training that are no errors."""

SM_61 = "NVIDIA GeForce GTX 1080 Ti with CUDA capability sm_61 is not compatible with the current PyTorch installation."
FOUND_12_8 = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize("error", THREADS, ids=lambda error: error["source"].removeprefix("https://github.com/"))
def test_an_error_of_a_public_thread_leads_to_its_cause(error):
    matches = find_known_errors(error["text"])
    assert matches, "no answer"
    assert re.search(error["cause"], f"{matches[0].cause} {matches[0].fix.summary}", re.IGNORECASE)


@pytest.mark.parametrize(
    ("family", "words"), list(zip(FAMILIES, WORDS, strict=True)), ids=[each.id for each in FAMILIES]
)
def test_every_text_of_a_family_is_reached_and_found(family, words):
    assert all(word == word.lower() for word in words)
    for template in family.texts:
        text = written_out(template)
        assert any(word in read_words(text).lowered for word in words), f"no word of the family is in: {text}"
        assert compile_pattern(template).find(text, text.lower()), template


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.id)
def test_every_family_is_whole(family):
    captured = {name for template in family.texts for name in re.findall(r"\{(\w+):", template)}
    assert family.sources
    assert all(source.startswith("https://") for source in family.sources)
    for cause in family.causes:
        named = set(re.findall(r"\{(\w+)\}", cause.cause))
        assert named | set(cause.where) <= captured
        assert not cause.code or cause.code in BY_CODE
        assert not cause.computed or cause.computed in COMPUTED_FIXES
        assert cause.cause == cause.cause.strip(" .")
        assert cause.fix.summary.endswith((".", "`"))
        assert all(re.compile(rule) for rule in cause.where.values())
        for template in (*cause.proof, *cause.speaks_for, *cause.speaks_against):
            compile_pattern(template)


def is_planned(command, **flags):
    """Whether `plan` takes the torch of a printed command for a machine with these flags."""
    version, label = re.search(r"torch==([\d.]+) --index-url \S+/(cu\d+)", command).groups()
    machine = build_machine_from_flags(
        **{"driver": None, "gpus": (), "machine": "x86_64", "platform": "linux", "glibc": None} | flags
    )
    answer = solve(build_request(machines=(machine,), torch=f"{version}+{label}"), load_tables())
    return isinstance(answer, Plan)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        pytest.param(SM_61, {"driver": "535.104.05", "gpus": ("GTX 1080 Ti",)}, id="a GPU that newer wheels left out"),
        pytest.param(
            SM_61.replace("sm_61", "sm_120"), {"driver": "580.65.06", "gpus": ("RTX 5090",)}, id="a newer GPU"
        ),
        pytest.param(FOUND_12_8, {"driver": "570.26", "gpus": ("RTX 4090",)}, id="found version 12080"),
        pytest.param(
            f"{ERROR_35}\nNVIDIA-SMI 470.57.02 Driver Version: 470.57.02 CUDA Version: 11.4",
            {"driver": "470.57.02", "gpus": ("T4",)},
            id="error 35 with the driver's number",
        ),
    ],
)
def test_a_printed_torch_is_one_that_plan_accepts(text, flags):
    command = find_known_errors(text)[0].fix.commands[0]
    assert is_planned(command, **flags)


def test_the_wheel_for_an_old_gpu_is_not_the_newest_index():
    assert "cu128" not in find_known_errors(SM_61)[0].fix.commands[0]
    assert not is_planned("torch==2.9.0 --index-url x/cu128", driver="535.104.05", gpus=("GTX 1080 Ti",))


def test_error_35_without_a_driver_is_no_old_driver():
    bare = find_known_errors(ERROR_35)[0]
    assert bare.confidence is Confidence.LIKELY
    assert {bare.code, *(cause.code for cause in bare.alternatives)} == {"CUD004", "CON001"}
    assert "nvidia-smi" in bare.question
    stub = find_known_errors(f"{ERROR_35}\nLD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs")[0]
    assert (stub.code, stub.confidence) == ("CUD005", Confidence.CERTAIN)
    missing = find_known_errors(f"{ERROR_35}\nbash: nvidia-smi: command not found")[0]
    assert missing.code == "CON001"
    assert missing.speaks_for == ("nvidia-smi: command not found",)
    known = find_known_errors(f"{ERROR_35}\nDriver Version: 470.57.02")[0]
    assert known.code == "CUD004"
    assert next(cause for cause in known.alternatives if cause.code == "CON001").speaks_against


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("kubectl logs trainer", "nvidia.com/gpu: 1"),
        ("podman run trainer", "--device nvidia.com/gpu=all"),
        ("apptainer exec trainer.sif python", "--nv"),
        ("docker run trainer", "--gpus all"),
    ],
)
def test_the_missing_gpu_is_given_as_the_engine_of_the_text_does(engine, command):
    fix = find_known_errors(f"$ {engine}\nCould not find cuda drivers on your machine, GPU will not be used.")[0].fix
    assert command in fix.commands[0]
    assert ("docker" in fix.commands[0]) == engine.startswith("docker")


def test_words_of_the_text_rank_the_causes():
    text = "nvidia-container-cli: mount error: mount operation failed: /tmp/enroot/x/usr/lib/firmware/nvidia/470: operation not permitted"
    first = find_known_errors(text)[0]
    assert "without the rights to mount" in first.cause
    assert "operation not permitted" in first.speaks_for


def test_no_answer_names_more_than_three_causes():
    for family in FAMILIES:
        for template in family.texts:
            for match in find_known_errors(written_out(template)):
                assert len(match.alternatives) < MAX_CAUSES


def test_a_report_of_a_failed_worker_is_no_cause_beside_one():
    report = "RuntimeError: Engine core initialization failed. See root cause above."
    assert "the first error above" in find_known_errors(report)[0].cause
    both = find_known_errors(f"ValueError: No available memory for the cache blocks.\n{report}")
    assert ["KV cache" in match.cause for match in both] == [True]


def test_the_document_has_causes_with_their_evidence():
    document = json.loads(CliRunner().invoke(explain, ["--json", "--no-facts", ERROR_35]).stdout)
    match = document["matches"][0]
    assert match["family"] == "the driver and the CUDA runtime do not fit"
    assert [cause["code"] for cause in match["alternatives"]] == ["CON001"]
    assert all(cause["fix"]["summary"] for cause in match["alternatives"])
    assert match["question"].startswith("nvidia-smi")
    slurm = json.loads(CliRunner().invoke(explain, ["--json", THREADS[0]["text"]]).stdout)["matches"][0]
    assert (slurm["code"], bool(slurm["title"])) == (None, True)


def test_the_text_shows_what_decides():
    out = CliRunner().invoke(explain, ["--no-facts", ERROR_35]).stdout
    assert "or possible: there is no driver here at all" in out
    assert "decides:\n      nvidia-smi, where the program runs" in out


def test_values_of_a_text_are_read_and_contradicting_ones_are_not():
    values = read_text_values(
        "NVIDIA-SMI 550.54.14 Driver Version: 550.54.14 CUDA Version: 12.4 python3.11 torch==2.6.0+cu124"
    )
    assert values.driver == Release.parse("550.54.14")
    assert (values.reported_cuda, values.python) == (Release.parse("12.4"), "3.11")
    assert read_text_values("python3.11 python3.12").python is None
    assert read_text_values("with CUDA capability sm_120").capabilities == (ComputeCapability(12, 0),)


@pytest.mark.parametrize(
    "text",
    [
        "undefined symbol: x" * 100_000,
        "cannot open shared object " * 80_000,
        "permission denied " * 110_000,
        "torch-2.9.0 python3.1 compute capability " * 50_000,
        "fatal error: " + "a/" * 1_000_000,
    ],
    ids=lambda text: text[:20],
)
def test_a_long_text_takes_linear_time(text):
    words = read_words(text[:1000])
    list(find_families(words, TextValues()))
    started = time.process_time()
    find_known_errors(text)
    assert time.process_time() - started < 4


@pytest.mark.parametrize("line", UNRELATED, ids=lambda line: line[:40])
def test_an_error_of_another_field_has_no_answer(line):
    assert find_known_errors(line) == ()


def test_none_of_many_unrelated_errors_in_one_log_is_an_answer():
    assert find_known_errors("\n".join(UNRELATED)) == ()
