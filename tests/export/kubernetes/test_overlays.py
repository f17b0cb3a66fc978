"""What is laid over the job, by a model of kustomize, which the real one is held against."""

import pytest
import yaml

from devkit.export.kubernetes.settings import JobKind

from .kubectl import built as really_built
from .kustomize_model import built
from .matrix import JOBS
from .rendered import made, objects, on_disk, templates
from .sample_jobs import every_kind, task

JOB_KINDS = {"Job", "TrainJob", "JobSet", "PyTorchJob", "RayJob"}
ZONE = "topology.kubernetes.io/zone"


def owner(found):
    (one,) = (each for each in found if each["kind"] in JOB_KINDS)
    return one


def pod_templates(found):
    return [template for each in found for template in templates(each)]


@every_kind
def test_a_queue_holds_the_job_back_and_keeps_its_nodes_together_by_kueues_topology(kind):
    rendered = made(task(nodes=2), kind=kind, queue="team", topology=ZONE)
    job = owner(built(rendered))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    spec = job["spec"]["runPolicy"] if kind is JobKind.PYTORCHJOB else job["spec"]
    assert spec["suspend"] is True
    assert "kueue.x-k8s.io/queue-name" not in owner(built(rendered, "base"))["metadata"]["labels"]
    # Kinds with several pod templates.
    group = "tune" if kind in (JobKind.PYTORCHJOB, JobKind.RAYJOB) else None
    for template in pod_templates(built(rendered)):
        annotations = template["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/podset-required-topology"] == ZONE
        assert annotations.get("kueue.x-k8s.io/podset-group-name") == group
        assert "affinity" not in template["spec"]


@every_kind
def test_without_a_queue_nodes_stay_together_by_affinity(kind):
    for template in pod_templates(built(made(task(nodes=2), kind=kind, topology=ZONE))):
        (term,) = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == ZONE
        assert term["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_one_node_needs_no_company_and_a_preferred_topology_keeps_no_job_waiting():
    (template,) = pod_templates(built(made(task(), topology=ZONE, queue="team")))
    assert "affinity" not in template["spec"]
    assert "kueue.x-k8s.io/podset-required-topology" not in template["metadata"]["annotations"]
    preferred = {"topology": ZONE, "topology_preferred": True, "kind": JobKind.JOB}
    for queue in ("", "team"):
        (template,) = pod_templates(built(made(task(nodes=2), queue=queue, **preferred)))
        annotations = template["metadata"].get("annotations", {})
        assert ("kueue.x-k8s.io/podset-preferred-topology" in annotations) is bool(queue)
        affinity = template["spec"].get("affinity", {}).get("podAffinity", {})
        assert list(affinity) == ([] if queue else ["preferredDuringSchedulingIgnoredDuringExecution"])


@every_kind
def test_spot_nodes_are_selected_by_any_of_their_labels(kind):
    rendered = made(task(nodes=2, is_spot=True), kind=kind, topology=ZONE)
    for template in pod_templates(built(rendered)):
        taints = [each["key"] for each in template["spec"]["tolerations"]]
        clouds = ["cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot"]
        assert taints == ["nvidia.com/gpu", *clouds]
        affinity = template["spec"]["affinity"]
        terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [len(term["matchExpressions"]) for term in terms] == [1] * 4  # any of them is enough
        assert "podAffinity" in affinity
    for template in pod_templates(built(rendered, "base")):
        assert "nodeAffinity" not in template["spec"].get("affinity", {})
    (alone, *_) = pod_templates(built(made(task(nodes=2, is_spot=True), kind=kind)))
    assert list(alone["spec"]["affinity"]) == ["nodeAffinity"]
    (said, *_) = pod_templates(built(made(task(is_spot=True), kind=kind, node_selector=("pool=spot",))))
    assert (said["spec"]["nodeSelector"], "affinity" in said["spec"]) == ({"pool": "spot"}, False)


def test_folders_lie_upon_each_other_and_each_is_whole_and_in_the_namespace():
    rendered = made(task(nodes=2, is_spot=True), queue="team", namespace="ml")
    for folder in ("", "overlays/spot", "overlays/queue", "base", "files"):
        found = built(rendered, folder)
        assert {each["metadata"]["namespace"] for each in found} == {"ml"}
        assert folder == "files" or [each["kind"] for each in found] == ["TrainingRuntime", "TrainJob"]
    assert owner(built(rendered, "overlays/spot"))["spec"]["suspend"] is True
    assert built(rendered) == built(rendered, "overlays/spot")
    assert all("namespace" not in each["metadata"] for each in built(made(task())))
    assert len(built(rendered, "base") + built(rendered, "files")) == len(objects(rendered))
    # Only where the order matters is kubectl told of it.
    for job, paths in ((made(task()), set()), (made(task(nodes=2)), {"kustomization.yaml", "base/kustomization.yaml"})):
        assert {each.path for each in job.artifacts if b"sortOptions" in each.content} == paths


@pytest.mark.full
@every_kind
def test_the_real_kustomize_makes_the_same_of_it(kind, tmp_path):
    """Of the jobs of several nodes, which have the most laid over them."""
    for number, name in enumerate(name for name in JOBS if f"a {kind} of 3" in name):
        rendered = made(JOBS[name][0], **JOBS[name][1])
        folder = on_disk(rendered, tmp_path / str(number))
        for part in ("", "files"):
            answer = really_built(folder / part)
            assert (answer.returncode, answer.stderr) == (0, ""), name
            assert list(yaml.safe_load_all(answer.stdout)) == built(rendered, part), name
