"""Error texts: their signatures, what resembles one, and causes ranked by a machine."""

import json
import re
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli.explain import explain
from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Confidence, Fix, Severity
from devkit.doctor.signatures.catalog import load_failures
from devkit.doctor.signatures.engines import fit_to_engine
from devkit.doctor.signatures.log_text import read_words
from devkit.doctor.signatures.nearest import find_nearest
from devkit.doctor.signatures.text_facts import read_text_facts
from devkit.doctor.signatures.witnesses import describe_circumstances, describe_facts
from devkit.facts.machine import Circumstances
from devkit.probe.circumstances import read_circumstances
from devkit.probe.host import LocalHost
from devkit.text import wrap_text
from tests.cases import cases
from tests.hosts import MACHINES, facts_of
from tests.hosts import machine as host_of

# What an error text means: real texts of public threads, the noise around them, and texts that mean nothing.


PASTED = tomllib.loads((Path(__file__).parent / "pasted_errors.toml").read_text(encoding="utf-8"))["error"]

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
REQUIREMENT = (
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer"
    " version, or use an earlier cuda container: unknown"
)
NO_DRIVER = 'could not select device driver "" with capabilities: [[gpu]].'
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
TRAINING = "loss: 0.1234\n" * 20_000
CPU_TORCH = "AssertionError: Torch not compiled with CUDA enabled"


def codes(text, **options):
    """The codes that a text is explained by, best first; one that is no error has its severity in front."""
    return [
        match.code if match.severity is Severity.ERROR else f"{match.severity.value}:{match.code}"
        for match in find_known_errors(text, **options)
    ]


def test_a_text_that_people_pasted_leads_to_its_cause():
    answers = [(error, codes(error["text"], is_ours=True)) for error in PASTED]
    assert [(error["name"], answer) for error, answer in answers if answer != error["expect"]] == []


def test_there_are_many_texts_and_every_one_names_its_source():
    assert len(PASTED) >= 100
    assert len({error["name"] for error in PASTED}) == len(PASTED)
    assert all(re.fullmatch(r"https://github\.com/[\w./-]+/(issues|pull)/\d+", error["source"]) for error in PASTED)
    assert {error["failure"] for error in PASTED} <= {failure.id for failure in load_failures()}


def test_no_text_holds_a_secret_or_a_home():
    texts = "\n".join(error["text"] for error in PASTED)
    assert not re.search(r"hf_[A-Za-z]{20,}|gh[pousr]_\w{20,}|(?:sk|pk)-\w{20,}|[\w.]+@[\w-]+\.(?:com|org|io)\b", texts)
    assert set(re.findall(r"/(?:home|Users)/(\w+)", texts)) <= {"user", "xx", "xxx", "ubuntu"}


def folded(text, *, width):
    """As a terminal breaks it: after `width` characters, wherever that is."""
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


NOISE = [
    (lambda text: text, "plain"),
    (lambda text: f"trainer-1  | {text}", "of Compose"),
    (lambda text: f"\x1b[31;1m{text}\x1b[0m", "in color"),
    (lambda text: f"[31m{text}[0m", "in color whose escape was lost"),
    (lambda text: f"2026-11-21T09:15:02.123Z {text}", "with a time stamp"),
    (lambda text: f"2026-11-21T09:15:02.123Z stderr F {text}", "of Kubernetes"),
    (lambda text: f"#12 0.345 {text}", "of BuildKit"),
    (lambda text: f"> > {text}", "quoted in mail"),
    (lambda text: f"```\n$ train\n{text}\n```", "in a Markdown fence"),
    (lambda text: f"first\r\n{text}\r\nlast\r\n", "with Windows line ends"),
    (lambda text: f" 12%|██        | 3/25\r{text}\r", "between progress bars"),
    (lambda text: repr({"log": f"{text}\n"}), "as Python's repr"),
    (lambda text: '{"msg": "' + text.replace('"', '\\"') + '\\nend"}', "escaped in JSON"),
    (lambda text: '{"msg": "{\\"err\\": \\"x\\\\n' + text.replace('"', '\\\\\\"') + '\\\\n\\"}"}', "escaped twice"),
    (lambda text: text.replace('"', "&quot;").replace(">", "&gt;"), "escaped in HTML"),
    (lambda text: text.replace("'", "\u2019").replace('"', "\u201c"), "with curly quotes"),
    (lambda text: text.replace(" ", "\u00a0"), "with hard blanks"),
    (lambda text: text.upper(), "in capitals"),
    (lambda text: wrap_text(text, width=40), "folded between words"),
    (lambda text: folded(text, width=31), "broken within words"),
    (lambda text: "".join(f"│ {line:<60} │\n" for line in wrap_text(text, width=58).split("\n")), "in a box"),
    (lambda text: f"\ufeff{text}\0", "with a byte order mark and a zero"),
    (lambda text: "\n".join([TRAINING, text, TRAINING]), "in a long log"),
]


@cases(
    "text, code",
    {
        "library mismatch": (MISMATCH, "DRV002"),
        "CUDA requirement": (REQUIREMENT, "CUD001"),
        "no device driver": (NO_DRIVER, "CTK001"),
        "undefined symbol": ("ImportError: libfoo.so: undefined symbol: __nvJitLinkComplete_12_4", "PYT005"),
    },
)
def test_noise_does_not_matter(text, code):
    assert [name for noise, name in NOISE if codes(noise(text)) != [code]] == []


HARMLESS = [
    ("", "nothing"),
    (" \n\t\n", "blanks"),
    ("| NVIDIA-SMI 570.124.06   Driver Version: 570.124.06   CUDA Version: 12.8 |", "the head of nvidia-smi"),
    ("Volatile Uncorr. ECC : N/A\nECC Mode Current : N/A", "no ECC on GeForce"),
    ("SW Power Cap : Active\nHW Slowdown : Not Active", "a power cap at work"),
    ("PCIe Generation Current : 1 Max : 4", "a link at rest"),
    ("{'loss': 1.8, 'grad_norm': 0.9, 'epoch': 0.1}\n 10%|█ | 5/50 [00:10<01:30]", "a training log"),
    ("Loading checkpoint shards: 100%|██████████| 4/4", "loading"),
    ("Traceback (most recent call last):\n  File 'a.py'\nKeyError: 'labels'", "a fault of the program"),
    ("npm error code EACCES\nnpm error EACCES: permission denied, mkdir '/usr/lib/node_modules'", "npm"),
    ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "Java"),
    ("error: failed to push some refs to 'origin'", "git"),
    ("modprobe: ERROR: could not insert 'vboxdrv': Required key not available", "another module's key"),
    ("Error: Cannot find module 'express'", "Node"),
    ("FATAL: out of shared memory\nHINT: You might need to increase max_locks_per_transaction", "PostgreSQL"),
    ("adb: No devices were found", "Android"),
    ("dial tcp 10.0.0.1:6443: connect: connection refused", "Kubernetes"),
    ("failed to fulfil mount request: open /run/secrets/password: no such file or directory", "any bind mount"),
    ("Xid: 42\nrun id 79, 31, 13", "other numbers"),
    ("mesa: nouveau driver loaded for display", "the display's driver"),
    ("The CUDA driver, the bus and shared memory are explained in chapter 13.", "prose"),
]


def test_what_is_no_known_error_is_not_explained():
    assert [name for text, name in HARMLESS if find_known_errors(text)] == []


@cases(
    "text, code",
    {
        "WSL's link": ("/sbin/ldconfig.real: /usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link", "WSL007"),
        "no NVSwitch": ("failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]", "GPU023"),
        "a group without a name": ("groups: cannot find name for group ID 993", "CON014"),
        "Podman": ("Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.", "ENG012"),
    },
)
def test_a_line_that_only_looks_bad_is_a_note(text, code):
    assert codes(text) == [f"note:{code}"]


def test_the_cause_comes_before_what_follows_from_it():
    found = find_known_errors(f"{CPU_TORCH}\nRuntimeError: CUDA Setup failed despite GPU being available.\n")
    assert [(match.code, match.follows_from) for match in found] == [("PYT001", None), ("PYT003", "PYT001")]


def test_consequences_of_consequences_name_the_first_cause():
    text = f"{MISMATCH}\nRuntimeError: No CUDA GPUs are available\nunresolvable CDI devices nvidia.com/gpu=all\n"
    found = find_known_errors(text)
    assert found[0].code == "DRV002"
    assert {match.follows_from for match in found[1:]} == {"DRV002"}


def test_the_last_of_two_unrelated_errors_comes_first():
    early, late = MISMATCH, "GatedRepoError: 401 Client Error"
    assert codes(f"{early}\n{late}") == ["HUB008", "DRV002"]
    assert codes(f"{late}\n{early}") == ["DRV002", "HUB008"]


def test_an_error_comes_before_a_warning_that_stands_later():
    text = "x509: certificate has expired or is not yet valid\nHW Thermal Slowdown : Active"
    assert codes(text) == ["ENG015", "warning:GPU013"]


def test_the_more_specific_text_has_the_last_word():
    found = find_known_errors(
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."
    )
    assert [(match.code, match.cause) for match in found] == [("PYT002", "this torch has no kernels for sm_120")]
    assert found[0].confidence is Confidence.CERTAIN


@cases(
    "text, cause",
    {
        "too little of the text": ("driver on your system is too old (found version 12080)", ""),
        "CUDA": (
            "The NVIDIA driver on your system is too old (found version 12080).",
            "the driver runs CUDA up to 12.8",
        ),
        "a requirement": (REQUIREMENT, "the image requires CUDA 12.8"),
        "two versions over two lines": (
            "NVRM: API mismatch: the client has the version 570.133.07, but\n"
            "NVRM: this kernel module has the version 550.54.14.  Please\n",
            "the libraries are 570.133.07, but the loaded kernel module is 550.54.14",
        ),
        "a symbol version": ("version `GLIBCXX_3.4.32' not found", "(3.4.32)"),
    },
)
def test_the_cause_names_what_the_text_names(text, cause):
    assert cause in "".join(match.cause for match in find_known_errors(text))


def test_one_error_many_times_is_one_match():
    assert codes(f"{NO_KERNEL}\n" * 1000) == ["PYT002"]


def test_what_matched_is_shown_without_control_characters_and_not_at_length():
    found = find_known_errors(f"\x1b[31m{MISMATCH}\x1b[0m\x07\x1b]0;title\x07")
    assert found[0].matched == MISMATCH.partition(": ")[2] or found[0].matched in MISMATCH
    assert all(character.isprintable() for character in found[0].matched)


# What resembles a text in which nothing is known: entries of the catalog, and nothing for other fields.


UNRELATED = (Path(__file__).parent / "unrelated_lines.txt").read_text(encoding="utf-8").splitlines()
NEW = "cuda_shm_exchange: torch worker 3 lost its shared memory segment for nccl, the container is out of shm"


def test_an_unknown_text_about_gpus_has_near_entries_and_ends_with_1():
    assert find_known_errors(NEW) == ()
    result = CliRunner().invoke(explain, [NEW])
    assert result.exit_code == 1
    assert "known errors with the same words" in result.stdout
    assert "shared memory" in result.stdout.lower()
    document = json.loads(CliRunner().invoke(explain, ["--json", NEW]).stdout)
    assert document["matches"] == []
    assert len(document["nearest"]) == 3
    assert any("shared memory" in each["about"].lower() for each in document["nearest"])


def test_a_text_of_another_field_has_no_near_entries():
    ours = ("cuda", "gpu", "torch", "nvidia")
    others = [line.lower() for line in UNRELATED if not any(word in line.lower() for word in ours)]
    assert len(others) > 50
    assert [line for line in others if find_nearest(line)] == []


def test_a_report_of_a_failed_build_of_another_field_is_no_answer():
    report = "error: subprocess-exited-with-error\nwhile building mysqlclient"
    assert find_known_errors(report) == ()
    assert find_known_errors(f"Collecting torch\n{report}\nnvcc warning")


def test_a_long_text_takes_little_time():
    find_nearest("cuda gpu")
    started = time.process_time()
    find_nearest("cuda gpu unknown words " * 100_000)
    assert time.process_time() - started < 2


# Causes of an error text ranked by a machine: this one at a glance, or the one that the text comes from.


NO_GPU = "RuntimeError: No CUDA GPUs are available"
ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"
SM_61 = "GeForce GTX 1080 Ti with CUDA capability sm_61 is not compatible with the current PyTorch installation."

LAPTOP = Circumstances(driver="", has_device=False, is_wsl=False, container="", docker="docker")
SERVER = Circumstances(driver="580.65.06", has_device=True, is_wsl=False, container="", docker="docker")
WSL = Circumstances(driver="", has_device=True, is_wsl=True, container="", docker="docker")
BLIND_CONTAINER = replace(LAPTOP, container="docker", docker="")


@cases(
    "text, here, code, evidence",
    {
        "a container without": (NO_GPU, BLIND_CONTAINER, "CON001", "this Docker container has no GPU"),
        "a server with a driver": (NO_GPU, SERVER, "PYT006", ""),
        "no driver: then not its age": (ERROR_35, LAPTOP, "CON001", ""),
        "a driver": (ERROR_35, SERVER, "CUD004", ""),
    },
)
def test_this_machine_ranks_what_the_text_leaves_open(text, here, code, evidence):
    (match,) = find_known_errors(text, machine=describe_circumstances(here))
    assert match.code == code
    assert evidence in " ".join(match.speaks_for)
    assert match.confidence is not Confidence.CERTAIN


def test_words_of_the_text_outrank_this_machine_but_not_the_one_it_comes_from():
    text = f"{ERROR_35}\nDriver Version: 470.57.02"
    assert find_known_errors(text, machine=describe_circumstances(LAPTOP))[0].code == "CUD004"
    assert find_known_errors(text, machine=describe_facts(facts_of("toolkit-missing")))[0].code in {"CUD004", "CON001"}


def test_a_certain_cause_stays_and_says_what_speaks_against_it():
    text = "Failed to initialize NVML: Driver/library version mismatch"
    alone = find_known_errors(text)[0]
    (match,) = find_known_errors(text, machine=describe_circumstances(LAPTOP))
    assert (match.code, match.confidence) == (alone.code, alone.confidence) == ("DRV002", Confidence.CERTAIN)
    assert match.speaks_against == ("on this machine: no NVIDIA driver is loaded",)


def test_checks_of_the_machine_speak_for_and_against():
    found = find_known_errors(NO_GPU, machine=describe_facts(facts_of("in-container-no-gpu-injected")))[0]
    assert found.code == "CON001"
    assert any(says.startswith("CON001 finds: ") for says in found.speaks_for)
    passed = find_known_errors(NO_GPU, machine=describe_facts(facts_of("in-container-ok")))[0]
    assert passed.code == "PYT006"


def test_the_fix_is_for_the_driver_of_the_machine_that_the_text_comes_from():
    alone = find_known_errors(SM_61)[0].fix.summary
    assert "with driver 525" in alone
    joined = find_known_errors(SM_61, machine=describe_facts(facts_of("ubuntu-4090-ok")))[0].fix.summary
    assert "on a driver of" not in joined


@pytest.mark.full
def test_every_recorded_machine_has_circumstances_and_answers():
    for name in sorted(MACHINES):
        facts = facts_of(name)
        here = read_circumstances(host_of(name))
        assert name in {"wsl2-own-kernel", "wsl1"} or here.is_wsl == (facts.wsl is not None), name
        assert bool(here.container) == (getattr(facts.container, "kind", "") != ""), name
        for machine in (describe_circumstances(here), describe_facts(facts)):
            assert find_known_errors(NO_GPU, machine=machine)[0].code in {"CON001", "PYT006"}, name


def test_a_script_named_docker_is_what_it_hands_over_to(tmp_path, monkeypatch):
    (tmp_path / "docker").write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_circumstances(LocalHost()).docker == "podman"


def test_this_machine_can_be_read():
    assert read_circumstances(LocalHost()).docker in {"docker", "podman", "snap", ""}


def test_kubernetes_is_not_told_to_run_docker():
    text = f"kubectl logs trainer\n{NO_GPU}"
    (match,) = find_known_errors(text)
    commands = [command for cause in (match, *match.alternatives) for command in cause.fix.commands]
    assert not any("docker run" in command for command in commands)
    assert any("nvidia.com/gpu" in command for command in commands)


def test_a_pod_that_has_the_gpus_is_entered_and_another_one_is_started():
    run = Fix("", commands=("docker run --rm --gpus all a/b:1 nvidia-smi", "docker run --rm a/b:1 nvidia-smi"))
    commands = fit_to_engine(run, read_text_facts(read_words("kubectl logs trainer"))).commands
    assert "kubectl exec <pod> -- nvidia-smi" in commands
    assert "kubectl run test --rm -it --restart=Never --image=a/b:1 -- nvidia-smi" in commands
