"""One plan and one job, written down for every engine: what they say is the same but for what is listed here.

Each output is read back into one neutral record, the scripts by running them with programs that record their words.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from devkit.export.kubernetes.settings import JobKind
from devkit.export.slurm.settings import ContainerRuntime
from devkit.export.targets import TARGETS
from devkit.workload.finetune.settings import FinetuneSettings
from tests.export.subjects import CPU, JOB, NVIDIA, PROJECT, made

from .accepted import ACCEPTED
from .read_containers import of_dev_container, of_script
from .read_kubernetes import of_kubernetes
from .read_launchers import of_daytona, of_skypilot
from .read_slurm import of_slurm
from .seen import differences, wanted

RUN = FinetuneSettings(
    model="meta-llama/Llama-3.1-8B", data=("two words.jsonl", "it's $HOME {{x}}.jsonl"), output=Path("tuned")
)
REQUEST = replace(JOB, gpu="H100", grace="90s", env=("NCCL_DEBUG=INFO", "SAID=two words, 'quoted' $HOME ${x} {{y}} #"))
CASES = {
    "one GPU": made(RUN, job=REQUEST).task,
    "four GPUs": made(RUN, job=replace(REQUEST, gpus=4)).task,
    "two nodes with four GPUs": made(RUN, job=replace(REQUEST, gpus=4, nodes=2)).task,
    "no GPU": made(RUN, plan=CPU, job=replace(REQUEST, gpu="")).task,
}


READERS = {
    "dev container": lambda task, _: of_dev_container(NVIDIA if task.accelerator.count else CPU, PROJECT, task),
    "docker": lambda task, scratch: of_script(task, scratch),
    "job": lambda task, _: of_kubernetes(task, kind="job"),
    "trainjob": lambda task, _: of_kubernetes(task, kind="trainjob"),
    "pytorchjob": lambda task, _: of_kubernetes(task, kind="pytorchjob"),
    "rayjob": lambda task, _: of_kubernetes(task, kind="rayjob"),
    "jobset": lambda task, _: of_kubernetes(task, kind="jobset"),
    "slurm, apptainer": lambda task, scratch: of_slurm(task, scratch, flavor=ContainerRuntime.APPTAINER),
    "slurm, singularity": lambda task, scratch: of_slurm(task, scratch, flavor=ContainerRuntime.SINGULARITY),
    "slurm, pyxis": lambda task, scratch: of_slurm(task, scratch, flavor=ContainerRuntime.PYXIS),
    "slurm, none": lambda task, scratch: of_slurm(task, scratch, flavor=ContainerRuntime.NONE),
    "skypilot": lambda task, scratch: of_skypilot(task, "deploy/skypilot", scratch),
    "daytona": lambda task, _: of_daytona(task, "deploy/daytona"),
}
OF_ONE_NODE = ("dev container", "docker", "daytona")
"""They refuse several nodes, or know none."""
FORMS = {"kubernetes": {str(kind) for kind in JobKind}, "slurm": {f"slurm, {flavor}" for flavor in ContainerRuntime}}
"""The outputs of a target that writes the job in several ways; any other target has one, of its name."""


def test_every_output_of_the_product_has_a_reader():
    outputs = {output for target in TARGETS for output in FORMS.get(target, {target})}
    assert set(READERS) == {*outputs, "dev container"}, "give each output a reader, and remove those of others"
    assert set(FORMS) <= set(TARGETS)


def accepts(target, name, value, task):
    expected = ACCEPTED[target][name][0]
    return expected(value, task) if callable(expected) else value == expected


@pytest.mark.parametrize("target", READERS)
def test_an_output_says_what_the_task_says_but_for_what_is_accepted(target, tmp_path):
    accepted, met = ACCEPTED[target], set()
    for case, task in CASES.items():
        if task.nodes > 1 and target in OF_ONE_NODE:
            continue
        found = differences(task, READERS[target](task, tmp_path / case.replace(" ", "-")))
        assert {name: value for name, value in found.items() if name not in accepted} == {}, case
        assert {name: value for name, value in found.items() if not accepts(target, name, value, task)} == {}, case
        met |= set(found)
    assert set(accepted) - met == set(), "no output differs there any longer"
    assert all(reason for _, reason in accepted.values())


def test_a_changed_task_differs():
    task = CASES["two nodes with four GPUs"]
    assert differences(task, wanted(task)) == {}
    changes = {
        "image": "other:1",
        "nodes": 3,
        "shm_bytes": 9 << 30,
        "grace_s": 91,
        "workspace": "/workspaces/other",
        "environment": (("HF_TOKEN_PATH", "/elsewhere"),),
        "command": ("devkit", "finetune"),
        "volumes": (),
    }
    for name, value in changes.items():
        assert differences(replace(task, **{name: value}), wanted(task)), name
