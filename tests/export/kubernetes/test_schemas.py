"""Every object of every job is one that a cluster takes, with no field that it would drop."""

import copy

import pytest

from devkit.export.kubernetes.settings import JobKind

from .api import CUSTOM, custom_problems, problems
from .matrix import every_job
from .rendered import made, named, objects, templates
from .sample_jobs import task


@every_job
@pytest.mark.turns(3)
def test_a_cluster_takes_every_object(made_task, options):
    found = [problem for manifest in objects(made(made_task, **options)) for problem in problems(manifest)]
    assert found == []


@every_job
@pytest.mark.turns(3)
def test_the_pods_within_objects_of_others_are_pods_of_kubernetes(made_task, options):
    """The definitions of Trainer, JobSet and the operator copy a pod's fields; these are its own."""
    for manifest in objects(made(made_task, **options)):
        if manifest["kind"] not in CUSTOM:
            continue
        for template in templates(manifest):
            if "runtimePatches" in manifest["spec"]:
                template["spec"]["containers"][0].setdefault("image", "patched")
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "one"}}
            assert problems(pod | {"spec": template["spec"]}) == []


def spoiled(manifest, path, value):
    changed = copy.deepcopy(manifest)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


REPLICATED = ("spec", "template", "spec", "replicatedJobs", 0)
SPOILED = [
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "podTemplateOverrides"), [], id="what Trainer 2.2 removed"),
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "trainer", "numNodes"), "2", id="a number as a text"),
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "trainer", "workingDir"), "/", id="a field of a container"),
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "runtimeRef"), {"kind": "TrainingRuntime"}, id="no name"),
    pytest.param(
        JobKind.TRAINJOB,
        "TrainingRuntime",
        ("spec", "mlPolicy", "torch", "numProcPerNode"),
        2,
        id="what the torch policy lost",
    ),
    pytest.param(
        JobKind.TRAINJOB, "TrainingRuntime", (*REPLICATED, "template", "spec", "retries"), 1, id="an invented field"
    ),
    pytest.param(JobKind.JOBSET, "JobSet", ("spec", "activeDeadlineSeconds"), 60, id="a Job's field on a JobSet"),
    pytest.param(JobKind.JOBSET, "JobSet", ("spec", "failurePolicy", "rules", 0, "action"), "Restart", id="no action"),
    pytest.param(JobKind.PYTORCHJOB, "PyTorchJob", ("spec", "suspend"), True, id="suspend beside runPolicy"),
    pytest.param(JobKind.PYTORCHJOB, "PyTorchJob", ("spec", "nprocPerNode"), 2, id="a text as a number"),
]


@pytest.mark.parametrize(("kind", "object_kind", "path", "value"), SPOILED)
def test_what_a_cluster_would_drop_or_refuse_is_found(kind, object_kind, path, value):
    manifest = named(made(task(nodes=2), kind=kind), object_kind)
    assert list(custom_problems(manifest)) == []
    assert list(custom_problems(spoiled(manifest, path, value)))


def test_an_unknown_field_of_a_core_kind_is_found():
    manifest = named(made(task()), "Job")
    assert problems(spoiled(manifest, ("spec", "template", "spec", "shmSize"), "8Gi"))
