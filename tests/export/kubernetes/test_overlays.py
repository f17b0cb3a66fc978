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
def test_a_queue_holds_the_job_back_until_it_is_its_turn(kind):
    rendered = made(task(nodes=2), kind=kind, queue="team")
    job = owner(built(rendered))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    spec = job["spec"]["runPolicy"] if kind is JobKind.PYTORCHJOB else job["spec"]
    assert spec["suspend"] is True
    below = owner(built(rendered, "base"))
    assert "kueue.x-k8s.io/queue-name" not in below["metadata"]["labels"]


@every_kind
def test_a_queue_keeps_nodes_together_by_kueues_topology(kind):
    found = pod_templates(built(made(task(nodes=2), kind=kind, queue="team", topology=ZONE)))
    assert found
    # Kinds with several pod templates.
    group = "tune" if kind in (JobKind.PYTORCHJOB, JobKind.RAYJOB) else None
    for template in found:
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


def test_one_node_needs_no_company():
    (template,) = pod_templates(built(made(task(), topology=ZONE, queue="team")))
    assert "affinity" not in template["spec"]
    assert "kueue.x-k8s.io/podset-required-topology" not in template["metadata"]["annotations"]


@every_kind
@pytest.mark.parametrize("topology", ["", ZONE])
def test_spot_nodes_are_selected_by_any_of_their_labels(kind, topology):
    rendered = made(task(nodes=2, is_spot=True), kind=kind, topology=topology)
    for template in pod_templates(built(rendered)):
        taints = [each["key"] for each in template["spec"]["tolerations"]]
        clouds = ["cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot"]
        assert taints == ["nvidia.com/gpu", *clouds]
        affinity = template["spec"]["affinity"]
        terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert len(terms) == 4  # any of them is enough
        assert all(len(term["matchExpressions"]) == 1 for term in terms)
        assert ("podAffinity" in affinity) == bool(topology)
    for template in pod_templates(built(rendered, "base")):
        assert "nodeAffinity" not in template["spec"].get("affinity", {})


def test_a_node_selector_says_itself_which_nodes():
    rendered = made(task(is_spot=True), node_selector=("pool=spot",))
    (template,) = pod_templates(built(rendered))
    assert template["spec"]["nodeSelector"] == {"pool": "spot"}
    assert "affinity" not in template["spec"]


def test_folders_lie_upon_each_other_and_each_is_whole():
    rendered = made(task(nodes=2, is_spot=True), queue="team")
    for folder in ("", "overlays/spot", "overlays/queue", "base"):
        assert [each["kind"] for each in built(rendered, folder)] == ["TrainingRuntime", "TrainJob"]
    assert owner(built(rendered, "overlays/spot"))["spec"]["suspend"] is True
    assert built(rendered) == built(rendered, "overlays/spot")


def test_a_namespace_is_in_every_folder():
    rendered = made(task(nodes=2, is_spot=True), queue="team", namespace="ml")
    for folder in ("", "base", "overlays/queue", "overlays/spot", "files"):
        assert {each["metadata"]["namespace"] for each in built(rendered, folder)} == {"ml"}
    assert all("namespace" not in each["metadata"] for each in built(made(task())))


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


@pytest.mark.full
def test_the_real_kustomize_refuses_a_patch_for_nothing(tmp_path):
    """So that the test above can fail."""
    folder = on_disk(made(task(is_spot=True)), tmp_path)
    overlay = folder / "overlays/spot/kustomization.yaml"
    overlay.write_text(overlay.read_text().replace("/spec/template/spec/tolerations", "/spec/template/spec/taints"))
    assert really_built(folder).returncode != 0


def test_every_object_is_listed_in_a_kustomization():
    rendered = made(task(nodes=2, is_spot=True), queue="team", kind=JobKind.JOB, device_class="gpu.nvidia.com")
    listed = [each for folder in ("base", "files") for each in built(rendered, folder)]
    assert len(listed) == len(objects(rendered))
