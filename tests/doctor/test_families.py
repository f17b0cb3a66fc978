"""Families of errors: sound data, causes ranked by the words of the text, and fixes that the solver would plan."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.cli.explain import explain
from devkit.compat.version_tables import load_tables
from devkit.doctor.known_errors import explain_text, find_known_errors
from devkit.doctor.model import Confidence
from devkit.doctor.signatures.catalog import load_families
from devkit.doctor.signatures.log_text import read_words
from devkit.doctor.signatures.matching import MAX_CAUSES
from devkit.doctor.signatures.text_facts import read_text_facts
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.plan import Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.cases import cases
from tests.doctor.test_signature_catalog import find_slow, written_out

FAMILIES = load_families()
THREADS = tomllib.loads((Path(__file__).parent / "family_errors.toml").read_text(encoding="utf-8"))["error"]

UNRELATED = (Path(__file__).parent / "unrelated_lines.txt").read_text(encoding="utf-8").splitlines()
"""Errors and lines of other fields, and lines of training that are no errors."""

SM_61 = "NVIDIA GeForce GTX 1080 Ti with CUDA capability sm_61 is not compatible with the current PyTorch installation."
FOUND_12_8 = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"


@pytest.fixture(scope="module")
def answers():
    """What is said of each error of a public thread."""
    return [(error, find_known_errors(error["text"], is_ours=True)) for error in THREADS]


def test_every_error_of_a_public_thread_leads_to_its_cause(answers):
    assert len(THREADS) > 400
    assert [
        (error["source"], error["cause"], matches[0].cause if matches else "no answer")
        for error, matches in answers
        if not matches or not re.search(error["cause"], f"{matches[0].cause} {matches[0].fix.summary}", re.IGNORECASE)
    ] == []


def test_no_cause_that_leaves_two_open_is_certain(answers):
    certain = [match.cause for _, matches in answers for match in matches if match.confidence is Confidence.CERTAIN]
    assert len(certain) > 60
    assert not [cause for cause in certain if re.search(r"\b(probably|usually|most often|perhaps)\b", cause)]
    assert not [cause for cause in certain if re.search(r"\bor\b(?! (newer|older|C\+\+|later|more))", cause)]


@cases(
    "text, cause, command",
    {
        "removed": (
            "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (x/transformers/__init__.py)",
            "transformers 5.0 removed AutoModelForVision2Seq",
            "pip install 'transformers<5.0'",
        ),
        "added, with the package that wants it": (
            'File "/venv/lib/python3.11/site-packages/peft/mapping.py", line 2, in <module>\n'
            "ImportError: cannot import name 'EncoderDecoderCache' from 'transformers'",
            "came with transformers 4.43, and peft was written for it",
            "pip install --upgrade 'transformers>=4.43'",
        ),
        "model type": (
            "ValueError: transformers: model type `qwen3_next` but Transformers does not recognize this architecture.",
            "the model type qwen3_next came with transformers 4.57",
            "pip install --upgrade 'transformers>=4.57'",
        ),
        "the release that is named has it": (
            "transformers==4.40.0\nImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama'",
            "",
            "",
        ),
        "a word of every program": ("NameError: name 'inputs' is not defined", "", ""),
    },
)
def test_a_missing_name_leads_to_the_release_that_changed_it(text, cause, command):
    matches = [match for match in find_known_errors(text, is_ours=True) if "release of its library" in match.family]
    assert bool(matches) == bool(cause)
    if cause:
        assert cause in matches[0].cause
        assert command in matches[0].fix.commands


def test_an_exception_that_says_what_to_do_is_passed_on():
    text = (
        "torch and transformers start\nValueError: The chosen plan of the seats does not fit two devices."
        " Please set `plan_size` to one.\n"
    )
    match = find_known_errors(text)[0]
    assert match.cause == "ValueError says: The chosen plan of the seats does not fit two devices"
    assert "Please set `plan_size` to one" in match.fix.summary
    assert not find_known_errors(text.replace("torch and transformers start\n", ""))


def is_planned(command, **flags):
    """Whether `plan` takes the torch of a printed command for a machine with these flags."""
    version, label = re.search(r"torch==([\d.]+) --index-url \S+/(cu\d+)", command).groups()
    machine = build_machine_from_flags(
        **{"driver": None, "gpus": (), "machine": "x86_64", "platform": "linux", "glibc": None} | flags
    )
    answer = solve(build_request(machines=(machine,), torch=f"{version}+{label}"), load_tables())
    return isinstance(answer, Plan)


@cases(
    "text, flags",
    {
        "a GPU that newer wheels left out": (SM_61, {"driver": "535.104.05", "gpus": ("GTX 1080 Ti",)}),
        "a newer GPU": (SM_61.replace("sm_61", "sm_120"), {"driver": "580.65.06", "gpus": ("RTX 5090",)}),
        "found version 12080": (FOUND_12_8, {"driver": "570.26", "gpus": ("RTX 4090",)}),
        "error 35 with the driver's number": (
            f"{ERROR_35}\nNVIDIA-SMI 470.57.02 Driver Version: 470.57.02 CUDA Version: 11.4",
            {"driver": "470.57.02", "gpus": ("T4",)},
        ),
    },
)
def test_a_printed_torch_is_one_that_plan_accepts(text, flags):
    command = find_known_errors(text)[0].fix.commands[0]
    assert is_planned(command, **flags)


def test_the_build_that_a_text_asks_for_names_the_index():
    error = "No solution found when resolving dependencies: there is no version of torch==2.7.1+cpu"
    assert find_known_errors(error)[0].fix.commands[0].endswith("/whl/cpu")


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
    assert ("docker run" in fix.commands[0]) == engine.startswith("docker")


def test_words_of_the_text_rank_the_causes():
    text = "nvidia-container-cli: mount error: mount operation failed: /tmp/enroot/x/usr/lib/firmware/nvidia/470: operation not permitted"
    first = find_known_errors(text)[0]
    assert "without permission to mount" in first.cause
    assert "operation not permitted" in first.speaks_for


def test_no_answer_names_more_than_three_causes(answers):
    assert [
        error["source"] for error, matches in answers if any(len(m.alternatives) >= MAX_CAUSES for m in matches)
    ] == []


@pytest.mark.full
def test_no_answer_to_a_text_of_a_family_names_more_than_three_causes():
    texts = [written_out(template) for family in FAMILIES for template in family.texts]
    assert [text for text in texts for match in find_known_errors(text) if len(match.alternatives) >= MAX_CAUSES] == []


def test_a_report_of_a_failed_worker_is_no_cause_beside_one():
    report = "RuntimeError: Engine core initialization failed. See root cause above."
    assert "the first error above" in find_known_errors(report)[0].cause
    both = find_known_errors(f"ValueError: No available memory for the cache blocks.\n{report}")
    assert ["KV cache" in match.cause for match in both] == [True]


def test_the_document_has_causes_with_their_evidence():
    document = json.loads(CliRunner().invoke(explain, ["--json", "--no-facts", ERROR_35]).stdout)
    match = document["matches"][0]
    assert match["family"] == "the driver and the CUDA runtime do not match"
    assert [cause["code"] for cause in match["alternatives"]] == ["CON001"]
    assert all(cause["fix"]["summary"] for cause in match["alternatives"])
    assert match["question"].startswith("nvidia-smi")
    slurm = json.loads(
        CliRunner().invoke(explain, ["--json", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0"]).stdout
    )["matches"][0]
    assert (slurm["code"], bool(slurm["title"])) == (None, True)


def test_the_text_shows_what_decides():
    out = CliRunner().invoke(explain, ["--no-facts", ERROR_35]).stdout
    assert "or possible: this environment has no driver" in out
    assert "decides:\n      nvidia-smi, where the program runs" in out


def test_a_value_that_the_text_does_not_have_is_one_to_fill_in():
    (found, *_) = find_known_errors("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/")
    assert "pip index versions <package>" in found.question


def test_values_of_a_text_are_read_and_contradicting_ones_are_not():
    values = read_text_facts(
        read_words("NVIDIA-SMI 550.54.14 Driver Version: 550.54.14 CUDA Version: 12.4 python3.11 torch==2.6.0+cu124")
    )
    assert values.driver == Release.parse("550.54.14")
    assert (values.reported_cuda, values.python) == (Release.parse("12.4"), "3.11")
    assert read_text_facts(read_words("python3.11 python3.12")).python is None
    assert read_text_facts(read_words("with CUDA capability sm_120")).capabilities == (ComputeCapability(12, 0),)


LONG_TEXTS = (
    "undefined symbol: x" * 100_000,
    "cannot open shared object " * 80_000,
    "permission denied " * 110_000,
    "torch-2.9.0 python3.1 compute capability " * 50_000,
    "fatal error: " + "a/" * 1_000_000,
)


def cut_texts(size):
    return {text[:20]: text[:size] for text in LONG_TEXTS}


def test_a_text_of_a_hundred_thousand_characters_takes_little_time():
    assert find_slow(find_known_errors, cut_texts(100_000), 0.5) == {}


@pytest.mark.full
def test_a_text_of_two_million_characters_takes_linear_time():
    assert find_slow(find_known_errors, cut_texts(2_000_000), 10) == {}


@cases(
    "error, holds, lacks",
    {
        "old torch": ("satisfies the requirement torch==2.0.1 (from versions: 2.6.0)", "python 3.10", "3.12"),
        "in no table": ("satisfies the requirement torch==0.4.1 (from versions: 2.2.0)", "<version>", "3.12"),
        "metadata": (
            "Package 'x' requires a different Python: 3.12.1 not in '<3.12,>=3.8'",
            "--python '<3.12",
            "3.12 ",
        ),
        "CUDA 11": ("onnxruntime: libcublasLt.so.11: cannot open shared object file", "nvidia-cublas-cu11", "cu12"),
        "cuDNN 8": ("onnxruntime: libcudnn.so.8: cannot open shared object file", "nvidia-cudnn-cu12<9", "cu13"),
        "no such interface": ("NCCL WARN Bootstrap : no socket interface found", "unset NCCL", "eth0"),
        "MSVC": ("#error: -- unsupported Microsoft Visual Studio version!", "vcvars", "gcc"),
        "sm_120 is not sm_12": ("bin/ptxas' -v '--gpu-name=sm_120' failed with code 255", "torch==", "arch"),
    },
)
def test_a_fix_fits_the_values_of_its_error(error, holds, lacks):
    error = error.replace("satisfies the", "ERROR: Could not find a version that satisfies the")
    commands = " ".join(find_known_errors(error)[0].fix.commands)
    assert holds in commands
    assert lacks not in commands


@settings(max_examples=25)
@given(
    st.from_regex(r"[a-z][a-z0-9]{0,12}([-_.][a-z0-9]{1,9}){0,3}", fullmatch=True),
    st.sampled_from((">=", "==", "~=", "<")),
)
def test_the_name_of_a_package_is_never_cut(name, operator):
    text = (
        f"ImportError: {name}{operator}1.2 is required for a normal functioning of this module, but found {name}==1.1."
    )
    first = find_known_errors(text, is_ours=True)[0]
    assert first.cause == f"a package here requires {name}{operator}1.2, but {name} 1.1 is installed"
    assert first.fix.commands[0] == f"pip install --upgrade '{name}{operator}1.2'"


def test_an_index_of_torch_that_exists_is_not_called_missing():
    for label in load_tables().torch.indexes:
        text = f"https://download.pytorch.org/whl/{label} satisfies the requirement torch (from versions: none)"
        assert all("has no index" not in match.cause for match in find_known_errors(text))


def test_an_error_of_another_field_has_no_answer():
    assert [line for line in UNRELATED if find_known_errors(line)] == []


def test_none_of_many_unrelated_errors_in_one_log_is_an_answer():
    assert find_known_errors("\n".join(UNRELATED)) == ()


def test_an_architecture_that_nvcc_dropped_is_told_from_one_that_it_does_not_know_yet():
    for capability, row in load_tables().driver.capabilities.items():
        match = find_known_errors(f"nvcc fatal   : Unsupported gpu architecture 'compute_{capability.sm[3:]}'")[0]
        # 10.1 is 11.0 from CUDA 13 on: an nvcc that does not know it may be too old as well.
        is_dropped = row.last_cuda is not None and capability.major < 10
        assert ("too new for compute capability" in match.cause) == is_dropped, capability


def test_a_driver_image_is_missing_only_where_the_registry_says_so():
    image = 'Failed to pull image "nvcr.io/nvidia/driver:580.105.08-debian13": rpc error: code = '
    missing, unreached = (find_known_errors(image + why)[0] for why in ("NotFound", "Unknown desc = i/o timeout"))
    assert "no image 580.105.08-debian13" in missing.cause
    assert "no image 580.105.08-debian13" not in unreached.cause


def test_a_program_that_is_not_there_has_no_windows_line_ends():
    texts = ("/usr/bin/env: 'python': No such file or directory", "env: node: No such file or directory")
    assert not [match for text in texts for match in find_known_errors(text) if "line ends" in match.cause]


def test_a_driver_that_does_not_know_the_gpu_is_replaced_first():
    fix = find_known_errors(f"{SM_61.replace('sm_61', 'sm_120')}\nDriver Version: 550.54.14 CUDA Version: 12.4")[0].fix
    assert "driver 570" in fix.summary
    assert not fix.commands


@pytest.mark.parametrize("error", ["no CUDA-capable device is detected", "Found no NVIDIA driver on your system"])
def test_a_container_is_named_only_where_the_text_has_one(error):
    assert find_known_errors(f"RuntimeError: {error}")[0].code != "CON001"
    assert find_known_errors(f"$ docker run trainer\nRuntimeError: {error}")[0].code == "CON001"


def test_a_disk_that_is_full_in_a_long_log_of_another_field_is_none_of_ours():
    error = "nginx: write() failed: No space left on device"
    assert find_known_errors(error)[0].code == "STO002"
    assert find_known_errors("GET /index.html 200\n" * 200 + error) == ()
    assert find_known_errors("GET /index.html 200\n" * 200 + error, is_ours=True)
    assert find_known_errors(f"GET /index.html 200\n{error}\n" + "saving the torch checkpoint\n" * 3)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("server.js:12 Error: ENOSPC: No space left on device", "STO002"),
        ("node: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by node)", "PYT010"),
        ("Last State: Terminated\nReason: OOMKilled\nExit Code: 137", "MEM002"),
    ],
)
def test_what_programs_of_any_field_report_is_near_and_no_cause_without_a_word_of_this_field(error, code):
    around = "$ yarn run serve\n$ node ./dist/ee/src/main.js\nnode:internal/modules/cjs/loader:1183\nListening on port 8080\n"
    answer = explain_text(around + error)
    assert answer.matches == ()
    assert answer.nearest[0].name == code
    assert explain_text(f"{around}import torch\n{error}").matches[0].code == code
    assert explain_text(around + error, is_ours=True).matches[0].code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "fatal: detected dubious ownership in repository at '/workspaces/shop'\n" + "> npm run start\n" * 12,
            "CON013",
        ),
        ("dockerfile parse error on line 12: unknown instruction: && \n" + "=> [internal] load context\n" * 6, ""),
    ],
)
def test_an_error_of_containers_is_named_whatever_runs_in_them(text, code):
    assert [match.code for match in find_known_errors(text)][:1] == [code]


def test_a_library_of_which_images_carry_a_part_is_not_surely_of_another_cuda():
    text = (
        "Could not load dynamic library 'libnvrtc.so.10.1'; dlerror: libnvrtc.so.10.1: cannot open shared object file"
    )
    (match,) = find_known_errors(text)
    assert match.confidence is not Confidence.CERTAIN
    assert "NVRTC" in match.cause


@pytest.mark.full
def test_nearly_every_error_of_this_field_shows_its_field():
    unseen = [error["source"] for error in THREADS if not find_known_errors(error["text"])]
    assert len(unseen) <= len(THREADS) // 40


def test_two_errors_of_one_family_are_both_found():
    text = "nvcc fatal : Unknown option '-static'\nggml_cuda: CUDA-capable device(s) is/are busy or unavailable"
    assert {match.code for match in find_known_errors(text)} == {"CUD008", "GPU018"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "error: externally-managed-environment\n\nThis environment is externally managed\n" + "note: x\n" * 20,
            "PEP 668",
        ),
        ("$ kubectl get pod $RAY_HEAD\nexitCode: 137\nreason: OOMKilled\n" + "note: x\n" * 20, "memory"),
    ],
)
def test_an_error_is_named_that_says_its_field_in_other_words(text, cause):
    assert cause in find_known_errors(text)[0].cause


def test_a_fatal_line_comes_before_a_warning_after_it():
    text = (
        "ptxas fatal   : Value 'sm_110a' is not defined for option 'gpu-name'\n"
        "WARNING 09-06 23:24:51 [_ipex_ops.py:16] Import error msg: No module named 'intel_extension_for_pytorch'\n"
    )

    assert "architecture" in find_known_errors(text)[0].cause


def test_what_another_family_says_of_the_same_words_is_an_alternative():
    text = "gcc main.o -lcuda -o async_io.so\nld: cannot find -lcuda: No such file or directory\nimport torch\n"

    first = find_known_errors(text)[0]

    assert any("stub" in each.cause and each.speaks_for for each in first.alternatives), first


@pytest.mark.parametrize(
    ("fact", "error"),
    [
        ("Python 3.11.9", "ImportError: Loading an AWQ quantized model requires auto-awq library"),
        (
            "Linux version 6.8.0-40-generic",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ),
    ],
)
def test_a_fact_does_not_stand_for_a_capture_of_the_same_name(fact, error):
    assert explain_text(f"{fact}\n{error}").matches[0].cause == explain_text(error).matches[0].cause


def test_the_report_of_a_build_is_not_its_first_error():
    error = "AttributeError: module 'tensorflow' has no attribute 'shm'"
    log = f"error: subprocess-exited-with-error\n× Building wheel for x (pyproject.toml) did not run successfully.\n{error}"  # noqa: RUF001
    assert explain_text(log).matches[0].cause == explain_text(error).matches[0].cause


@pytest.mark.parametrize(
    "error", ["invalid reasoning parser: hermes", "is not a valid power limit which should be between 100 W and 350 W"]
)
def test_what_an_error_names_last_ends_with_its_line(error):
    alone = explain_text(error).matches[0].cause
    assert explain_text(f"{error}\nTreating as warning and moving on.").matches[0].cause == alone
