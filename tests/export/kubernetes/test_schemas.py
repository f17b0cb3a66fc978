"""Every object of every job is one that a cluster takes, with no field that it would drop; and what every file says."""

import pytest

from devkit.export.kubernetes.manifest import strip_comments
from devkit.export.kubernetes.node_checks import build_doctor_daemonset, build_verify_job
from devkit.export.kubernetes.settings import KubernetesSettings

from .api import problems
from .kustomize_model import built
from .matrix import JOBS
from .rendered import made, named, objects
from .sample_jobs import every_kind, task


@every_kind
def test_a_cluster_takes_every_object_of_every_job_and_what_is_laid_over(kind):
    for name, (made_task, options) in JOBS.items():
        if str(kind) in name.split():
            found = built(made(made_task, **options))
            assert [problem for manifest in found for problem in problems(manifest)] == [], name


@pytest.mark.full
def test_a_cluster_takes_what_lies_below_and_the_checks():
    for name, (made_task, options) in JOBS.items():
        settings = KubernetesSettings(**options)
        checks = [*build_doctor_daemonset(made_task, settings), *build_verify_job(made_task, settings)]
        found = [*map(strip_comments, checks), *objects(made(made_task, **options))]
        assert [problem for manifest in found for problem in problems(manifest)] == [], name


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


def test_an_unknown_field_of_a_pod_is_found_in_each_kind():
    for nodes, kind, path in ((1, "Job", ()), (2, "TrainingRuntime", ("template", "spec", "replicatedJobs", 0))):
        manifest = named(made(task(nodes=nodes)), kind)
        assert problems(manifest) == []
        inner = manifest["spec"]
        for key in path:
            inner = inner[key]
        (inner["template"]["spec"] if path else inner)["template"]["spec"]["shmSize"] = "8Gi"
        assert problems(manifest)
