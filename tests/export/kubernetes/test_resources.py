"""How pods ask for their GPUs, networks and schedulers, and which nodes they and the check of the nodes go to."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.solver.plan import Reason, Vendor

from .api import problems
from .rendered import container, job_templates, made, named, of_job
from .sample_jobs import every_kind, task


def with_gpus(count, name=""):
    found = task()
    return replace(found, accelerator=replace(found.accelerator, count=count, name=name))


def pod_of(rendered):
    return job_templates(rendered)[0]["spec"]


def has_note(rendered, *words):
    return any(all(word in note for word in words) for note in rendered.notes)


@every_kind
def test_gpus_are_requested_by_the_vendors_resource_and_amds_are_opened_by_their_group(kind):
    for vendor, resource in ((Vendor.NVIDIA, "nvidia.com/gpu"), (Vendor.ROCM, "amd.com/gpu")):
        rendered = made(task(vendor), kind=kind)
        assert container(rendered)["resources"]["limits"][resource] == 2
        assert [each["key"] for each in pod_of(rendered)["tolerations"]] == [resource]
        assert has_note(rendered, "gpu_group") is (vendor is Vendor.ROCM)
    grouped = made(task(Vendor.ROCM), kind=kind, gpu_group=109)
    assert all(each["spec"]["securityContext"]["supplementalGroups"] == [109] for each in job_templates(grouped))
    without = made(task(Vendor.CPU), kind=kind)
    assert container(without)["resources"]["limits"].keys() == {"memory"}
    assert "tolerations" not in pod_of(without)


def test_parts_of_a_gpu_are_requested_one_at_a_time():
    parts = {
        "nvidia.com/mig-1g.10gb": ("does not cover MIG: that instance has 10 GB", "only one MIG instance"),
        "nvidia.com/mig-3g.40gb.me": ("that instance has 40 GB", "only one MIG instance"),
        "nvidia.com/gpu.shared": ("its memory is not divided", "several shares may be on the same GPU"),
    }
    for resource, (noted, refused) in parts.items():
        rendered = made(with_gpus(1), gpu_resource=resource)
        assert container(rendered)["resources"]["limits"][resource] == 1
        assert has_note(rendered, noted)
        with pytest.raises(DevkitError, match=refused):
            made(with_gpus(2), gpu_resource=resource)
    with pytest.raises(DevkitError, match="but no GPU"):
        made(task(Vendor.CPU), gpu_resource="nvidia.com/gpu")


def test_a_node_with_just_as_many_processors_is_taken():
    for cpus, because, asked in ((8, "8 for each GPU", 7), (12, "8 for each GPU", "10500m"), (8, "requested", 8)):
        reasons = (Reason("cpus", "8", because, "devkit estimate", "certain"),)
        assert container(made(task(cpus=cpus, reasons=reasons)))["resources"]["requests"]["cpu"] == asked


def test_nothing_binds_pods_to_a_gpu_by_itself_and_a_note_says_how():
    assert has_note(made(with_gpus(2, "H100")), "the pods are not pinned to H100", "nvidia.com/gpu.product")
    bound = made(with_gpus(2, "H100"), node_selector=("nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",))
    assert pod_of(bound)["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert not bound.notes and not made(with_gpus(2)).notes


@every_kind
def test_spot_nodes_are_found_by_their_labels_or_by_those_that_are_given(kind):
    for template in job_templates(made(task(nodes=2, is_spot=True), kind=kind)):
        assert {each["key"] for each in template["spec"]["tolerations"]} >= {"nvidia.com/gpu", "spot"}
        terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        keys = [term["matchExpressions"][0]["key"] for term in terms["nodeSelectorTerms"]]
        assert {"cloud.google.com/gke-spot", "eks.amazonaws.com/capacityType", "karpenter.sh/capacity-type"} < {*keys}
    assert "affinity" not in pod_of(made(task(is_spot=True), kind=kind, node_selector=("pool=spot",)))


@every_kind
def test_settings_of_the_pod_reach_it_and_labels_are_the_jobs_too_but_devkits_own_win(kind):
    options = {"service_account": "me", "priority_class": "high", "pull_secret": "registry"}
    labels = {"label": ("team=vision", "app.kubernetes.io/name=other"), "annotation": ("owner=a=b",)}
    rendered = made(task(nodes=2), kind=kind, toleration=("pool=a:NoExecute", "spot"), **options, **labels)
    for template in job_templates(rendered):
        spec, metadata = template["spec"], template["metadata"]
        assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("me", "high")
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"][1:] == [
            {"key": "pool", "operator": "Equal", "value": "a", "effect": "NoExecute"},
            {"key": "spot", "operator": "Exists"},
        ]
        assert (metadata["labels"]["team"], metadata["annotations"]["owner"]) == ("vision", "a=b")
    found = {name: of_job(rendered)[-1]["metadata"]["labels"][name] for name in ("team", "app.kubernetes.io/name")}
    assert found == {"team": "vision", "app.kubernetes.io/name": "tune"}


def test_networks_and_schedulers_are_requested_beside_the_gpus_and_memory_may_be_pinned():
    rendered = made(task(), rdma=("rdma/hca", "vpc.amazonaws.com/efa=4"), host_network=True, scheduler="kai-scheduler")
    limits = container(rendered)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/hca"], limits["vpc.amazonaws.com/efa"]) == (2, 1, 4)
    assert container(rendered)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "IPC_LOCK" not in str(named(rendered, "Pod"))
    pod = pod_of(rendered)
    assert (pod["hostNetwork"], pod["dnsPolicy"], pod["schedulerName"]) == (
        True,
        "ClusterFirstWithHostNet",
        "kai-scheduler",
    )
    assert problems(named(rendered, "Job")) == []
    for wrong in ("hca", "rdma/hca=0"):
        with pytest.raises(DevkitError, match=r"--set rdma=.* is not a resource"):
            made(task(), rdma=(wrong,))
