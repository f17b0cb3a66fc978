"""Every object of every job is one that a cluster takes, with no field that it would drop; and what every file says."""

import copy

import pytest

from devkit.export.kubernetes.manifest import strip_comments
from devkit.export.kubernetes.node_checks import build_doctor_daemonset, build_verify_job
from devkit.export.kubernetes.settings import JobKind, KubernetesSettings

from .api import CUSTOM, custom_problems, problems
from .kustomize_model import built
from .matrix import every_job, every_kinds_jobs
from .rendered import made, named, objects, templates
from .sample_jobs import task


@every_kinds_jobs
def test_a_cluster_takes_the_core_objects_of_every_job_and_the_pods_within_others(jobs):
    """The definitions of Trainer, JobSet and the operator copy a pod's fields; these are its own."""
    for name, (made_task, options) in jobs.items():
        for manifest in built(made(made_task, **options)):
            if manifest["kind"] not in CUSTOM:
                assert problems(manifest) == [], name
                continue
            for template in templates(manifest):
                if "runtimePatches" in manifest["spec"]:
                    template["spec"]["containers"][0].setdefault("image", "patched")
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "one"}}
                assert problems(pod | {"spec": template["spec"]}) == [], name


@every_kinds_jobs
def test_the_same_settings_give_the_same_files_and_each_says_who_wrote_it(jobs):
    for name, (made_task, options) in jobs.items():
        found = made(made_task, **options)
        assert found == made(made_task, **options), name
        paths = [artifact.path for artifact in found.artifacts]
        assert len(paths) == len(set(paths))
        assert paths[0] == "kustomization.yaml"
        for artifact in found.artifacts:
            text = artifact.content.decode()
            assert text.startswith("# Written by devkit ")
            assert "devkit export" in text.replace("\n# ", " ").splitlines()[0]
            assert "\t" not in text
            assert text.endswith("\n")


@pytest.mark.full
@every_job
def test_a_cluster_takes_every_object_and_what_is_laid_over_and_the_checks(made_task, options):
    rendered, settings = made(made_task, **options), KubernetesSettings(**options)
    checks = [*build_doctor_daemonset(made_task, settings), *build_verify_job(made_task, settings)]
    found = [*map(strip_comments, checks), *objects(rendered), *built(rendered)]
    assert [problem for manifest in found for problem in problems(manifest)] == []


def spoiled(manifest, path, value):
    changed = copy.deepcopy(manifest)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


REPLICATED = ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec")
SPOILED = [
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "podTemplateOverrides"), [], id="what Trainer 2.2 removed"),
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "trainer", "numNodes"), "2", id="a number as a text"),
    pytest.param(JobKind.TRAINJOB, "TrainJob", ("spec", "runtimeRef"), {"kind": "TrainingRuntime"}, id="no name"),
    pytest.param(JobKind.TRAINJOB, "TrainingRuntime", (*REPLICATED, "retries"), 1, id="an invented field"),
    pytest.param(JobKind.JOBSET, "JobSet", ("spec", "activeDeadlineSeconds"), 60, id="a Job's field on a JobSet"),
    pytest.param(JobKind.PYTORCHJOB, "PyTorchJob", ("spec", "suspend"), True, id="suspend beside runPolicy"),
]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "object_kind", "path", "value"), SPOILED)
def test_what_a_cluster_would_drop_or_refuse_is_found(kind, object_kind, path, value):
    manifest = named(made(task(nodes=2), kind=kind), object_kind)
    assert list(custom_problems(manifest)) == []
    assert list(custom_problems(spoiled(manifest, path, value)))


def test_an_unknown_field_of_a_core_kind_is_found():
    manifest = named(made(task()), "Job")
    assert problems(spoiled(manifest, ("spec", "template", "spec", "shmSize"), "8Gi"))
