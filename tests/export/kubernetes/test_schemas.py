"""Every object of every job is one that a cluster takes, with no field that it would drop; and what every file says."""

import pytest

from devkit.export.kubernetes.manifest import strip_comments
from devkit.export.kubernetes.node_checks import build_doctor_daemonset, build_verify_job
from devkit.export.kubernetes.settings import KubernetesSettings

from .api import CUSTOM, custom_problems, problems
from .kustomize_model import built
from .matrix import JOBS, every_job, every_kinds_jobs
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


def test_the_same_settings_give_the_same_files_and_each_says_who_wrote_it():
    for name, (made_task, options) in list(JOBS.items())[::5]:
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


@pytest.mark.full
def test_what_a_cluster_would_drop_or_refuse_is_found():
    manifest = named(made(task(nodes=2)), "TrainJob")
    assert list(custom_problems(manifest)) == []
    for field, value in (("podTemplateOverrides", []), ("trainer", {"numNodes": "2"})):
        assert list(custom_problems(manifest | {"spec": manifest["spec"] | {field: value}}))


def test_an_unknown_field_of_a_core_kind_is_found():
    manifest = named(made(task()), "Job")
    manifest["spec"]["template"]["spec"]["shmSize"] = "8Gi"
    assert problems(manifest)
