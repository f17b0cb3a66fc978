"""How pods ask for their GPUs, and which nodes they go to."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes.settings import JobKind
from devkit.solver.plan import Reason, Vendor

from .rendered import container, job_templates, made, named
from .sample_jobs import every_kind, task


def with_gpus(count, name=""):
    found = task()
    return replace(found, accelerator=replace(found.accelerator, count=count, name=name))


@every_kind
@pytest.mark.parametrize(("vendor", "resource"), [(Vendor.NVIDIA, "nvidia.com/gpu"), (Vendor.ROCM, "amd.com/gpu")])
def test_gpus_are_requested_by_the_vendors_resource(kind, vendor, resource):
    rendered = made(task(vendor), kind=kind)
    assert container(rendered)["resources"]["limits"][resource] == 2
    taints = [each["key"] for each in job_templates(rendered)[0]["spec"]["tolerations"]]
    assert taints == [resource]


def test_without_a_gpu_none_is_requested():
    rendered = made(task(Vendor.CPU))
    assert container(rendered)["resources"]["limits"].keys() == {"memory"}
    assert job_templates(rendered)[0]["spec"]["tolerations"] == []


def test_a_mig_instance_is_a_resource_of_its_own():
    rendered = made(with_gpus(1), gpu_resource="nvidia.com/mig-1g.10gb")
    assert container(rendered)["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == 1
    assert any("knows nothing of MIG: that instance has 10 GB" in note for note in rendered.notes)
    for resource in ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb.me"):
        with pytest.raises(DevkitError, match="a process sees one MIG instance only"):
            made(with_gpus(2), gpu_resource=resource)


def test_shares_of_a_gpu_are_requested_one_at_a_time_and_not_estimated():
    rendered = made(with_gpus(1), gpu_resource="nvidia.com/gpu.shared")
    assert container(rendered)["resources"]["limits"]["nvidia.com/gpu.shared"] == 1
    assert any("its memory is not divided" in note for note in rendered.notes)
    with pytest.raises(DevkitError, match="several shares may be of one GPU"):
        made(with_gpus(2), gpu_resource="nvidia.com/gpu.shared")


@pytest.mark.parametrize("setting", [{"gpu_resource": "nvidia.com/gpu"}, {"device_class": "gpu.nvidia.com"}])
def test_a_resource_without_a_gpu_is_refused(setting):
    with pytest.raises(DevkitError, match="and no GPU"):
        made(task(Vendor.CPU), **setting)


@every_kind
def test_a_claim_of_devices_takes_the_place_of_the_resource(kind):
    rendered = made(task(nodes=2), kind=kind, device_class="gpu.nvidia.com")
    template = named(rendered, "ResourceClaimTemplate")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2}
    (pod,) = {str(each["spec"]["resourceClaims"]) for each in job_templates(rendered)}
    assert pod == str([{"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}])
    resources = container(rendered)["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert "nvidia.com/gpu" not in resources["limits"]
    if kind is JobKind.TRAINJOB:
        trainer = named(rendered, "TrainJob")["spec"]["trainer"]
        assert "resourcesPerNode" not in trainer  # they would take the place of the runtime's, claims and all


def test_a_node_with_just_as_many_processors_is_taken():
    advised = (Reason("cpus", "8", "8 for each GPU", "devkit estimate", "certain"),)
    assert container(made(task(cpus=8, reasons=advised)))["resources"]["requests"]["cpu"] == 7
    assert container(made(task(cpus=12, reasons=advised)))["resources"]["requests"]["cpu"] == "10500m"
    asked = (Reason("cpus", "8", "requested", "devkit estimate", "certain"),)
    assert container(made(task(cpus=8, reasons=asked)))["resources"]["requests"]["cpu"] == 8


def test_the_reasons_of_the_estimate_stand_beside_the_numbers():
    reasons = (Reason("memory", "64 GiB", "by the memory estimate", "devkit estimate", "certain"),)
    (job,) = (each for each in made(task(reasons=reasons)).artifacts if each.path == "base/job.yaml")
    assert "# 64Gi for the processes, by the memory estimate; 8Gi for shared memory" in job.content.decode()


def test_nothing_binds_pods_to_a_gpu_by_itself_and_a_note_says_how():
    rendered = made(with_gpus(2, "H100"))
    assert "nodeSelector" not in job_templates(rendered)[0]["spec"]
    assert any("nothing binds the pods to H100" in note and "nvidia.com/gpu.product" in note for note in rendered.notes)
    bound = made(with_gpus(2, "H100"), node_selector=("nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",))
    assert job_templates(bound)[0]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert not bound.notes
    assert not made(with_gpus(2)).notes


@every_kind
def test_settings_of_the_pod_reach_it(kind):
    options = {"service_account": "me", "priority_class": "high", "pull_secret": "registry"}
    rendered = made(task(), kind=kind, toleration=("pool=a:NoExecute", "spot"), **options)
    for template in job_templates(rendered):
        spec = template["spec"]
        assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("me", "high")
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"][1:] == [
            {"key": "pool", "operator": "Equal", "value": "a", "effect": "NoExecute"},
            {"key": "spot", "operator": "Exists"},
        ]


@every_kind
def test_amds_devices_are_opened_by_their_group(kind):
    rendered = made(task(Vendor.ROCM), kind=kind, gpu_group=109)
    for template in job_templates(rendered):
        assert template["spec"]["securityContext"]["supplementalGroups"] == [109]
    assert not any("--gpu-group" in note for note in rendered.notes)
    unsaid = made(task(Vendor.ROCM), kind=kind)
    assert any("--gpu-group" in note for note in unsaid.notes)
    assert "supplementalGroups" not in job_templates(unsaid)[0]["spec"]["securityContext"]
    assert not any("--gpu-group" in note for note in made(task(), kind=kind).notes)
