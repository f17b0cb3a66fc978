"""Every object of every job is one that a cluster takes, with no field that it would drop."""

import pytest
import yaml

from .api import CUSTOM, custom_problems, problems
from .matrix import JOBS, every_job, every_kinds_jobs
from .rendered import made, named, objects, templates
from .sample_jobs import task


@every_kinds_jobs
def test_a_cluster_takes_the_core_objects_of_every_job_and_the_pods_within_others(jobs):
    """The definitions of Trainer, JobSet and the operator copy a pod's fields; these are its own."""
    for name, (made_task, options) in jobs.items():
        for manifest in objects(made(made_task, **options)):
            if manifest["kind"] not in CUSTOM:
                assert problems(manifest) == [], name
                continue
            for template in templates(manifest):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "one"}}
                assert problems(pod | {"spec": template["spec"]}) == [], name


@pytest.mark.full
@every_job
def test_a_cluster_takes_every_object(made_task, options):
    found = objects(made(made_task, **options))
    assert [problem for manifest in found for problem in problems(manifest)] == []


def test_each_folder_is_applied_by_itself_and_says_who_wrote_it():
    for made_task, options in list(JOBS.values())[::5]:
        files = {each.path: each.content.decode() for each in made(made_task, **options).artifacts}
        for path, text in files.items():
            assert text.startswith("# Written by devkit ")
            assert "\t" not in text and text.endswith("\n") and not text.endswith("\n\n")
            if path.endswith("kustomization.yaml"):
                content = yaml.safe_load(text)
                assert all(f"{path.removesuffix('kustomization.yaml')}{each}" in files for each in content["resources"])
                assert content.get("namespace", "") == options.get("namespace", "")


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
