"""The checks of the nodes as objects of a cluster: they ask for no rights, and the doctor for no GPU."""

import json
from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes.kustomize import QUEUE_LABEL
from devkit.export.kubernetes.manifest import INSTANCE_LABEL, strip_comments
from devkit.export.kubernetes.node_checks import (
    DOCTOR_COMPONENT,
    DONE_MARKER,
    GPU_NODE_LABELS,
    REPORTS_FOLDER,
    VERIFY_COMPONENT,
    build_doctor_daemonset,
    build_verify_job,
)
from devkit.export.kubernetes.settings import KubernetesSettings, validate_kubernetes_settings
from devkit.export.task import Accelerator
from devkit.export.values import GIB
from devkit.solver.plan import Vendor

from .api import problems
from .matrix import every_job
from .rendered import made, objects
from .sample_jobs import task

every_vendor = pytest.mark.parametrize("vendor", list(Vendor), ids=str)


def daemonset(vendor: Vendor = Vendor.NVIDIA, **options: object) -> dict:
    (found,) = build_doctor_daemonset(task(vendor), KubernetesSettings(**options))
    return strip_comments(found)


def job(made_task=None, **options: object) -> dict:
    return strip_comments(build_verify_job(made_task or task(), KubernetesSettings(**options))[-1])


def pod(manifest: dict) -> dict:
    return manifest["spec"]["template"]["spec"]


def container(manifest: dict) -> dict:
    (found,) = pod(manifest)["containers"]
    return found


def both(**options: object) -> list[dict]:
    return [daemonset(**options), job(**options)]


@every_job
def test_a_cluster_takes_the_checks_of_every_job(made_task, options):
    settings = KubernetesSettings(**options)
    found = [*build_doctor_daemonset(made_task, settings), *build_verify_job(made_task, settings)]
    assert [problem for each in found for problem in problems(strip_comments(each))] == []


@every_vendor
def test_the_checks_pass_the_restricted_standard_for_pods(vendor):
    """Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for manifest in (daemonset(vendor), job(task(vendor))):
        spec, inner = pod(manifest), container(manifest)
        assert not {"hostPID", "hostNetwork", "hostIPC", "hostUsers"} & set(spec)
        assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inner["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert "hostPort" not in json.dumps(manifest)


def test_the_checks_ask_nothing_of_the_cluster_and_bring_no_rights():
    assert all(pod(each)["automountServiceAccountToken"] is False for each in both())
    kinds = {each["kind"] for each in objects(made(task(), node_checks=True), "checks/")}
    assert kinds == {"DaemonSet", "Job"}


@every_vendor
def test_the_doctor_takes_no_gpu_and_claims_none(vendor):
    found = daemonset(vendor, **({"device_class": "gpu.nvidia.com"} if vendor is Vendor.NVIDIA else {}))
    assert set(container(found)["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container(found)["resources"]["limits"]) == {"memory"}
    assert "resourceClaims" not in pod(found)
    assert "--deep" not in " ".join(container(found)["command"])


def test_the_doctor_sees_all_of_nvidias_gpus_and_asks_amds_and_no_gpus_for_nothing():
    names = {
        vendor: {each["name"]: each.get("value") for each in container(daemonset(vendor))["env"]} for vendor in Vendor
    }
    assert names[Vendor.NVIDIA] == {
        "NODE_NAME": None,
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    assert set(names[Vendor.ROCM]) == set(names[Vendor.CPU]) == {"NODE_NAME"}


def test_the_runtime_class_is_the_doctors_alone_and_for_nvidias_gpus():
    assert pod(daemonset(runtime_class="nvidia"))["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod(daemonset())
    assert "runtimeClassName" not in pod(daemonset(Vendor.ROCM, runtime_class="nvidia"))
    assert "runtimeClassName" not in pod(job(runtime_class="nvidia"))
    with pytest.raises(DevkitError, match="--runtime-class"):
        validate_kubernetes_settings(KubernetesSettings(runtime_class="NVIDIA runtime"))


@pytest.mark.parametrize(
    ("vendor", "selector", "chosen"),
    [
        (Vendor.NVIDIA, (), {"nvidia.com/gpu.present": "true"}),
        (Vendor.ROCM, (), {"feature.node.kubernetes.io/amd-gpu": "true"}),
        (Vendor.CPU, (), {}),
        (Vendor.NVIDIA, ("pool=a100",), {"pool": "a100"}),
        (Vendor.CPU, ("pool=cpu",), {"pool": "cpu"}),
    ],
    ids=["nvidia", "amd", "no GPU", "nodes that the user names", "nodes without a GPU that the user names"],
)
def test_the_doctor_goes_to_every_node_with_a_gpu(vendor, selector, chosen):
    assert pod(daemonset(vendor, node_selector=selector))["nodeSelector"] == chosen
    assert set(GPU_NODE_LABELS) == set(Vendor) - {Vendor.CPU}


def test_both_bear_the_taints_that_the_job_bears():
    for found in both(toleration=("dedicated=ml:NoSchedule",)):
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod(found)["tolerations"]
        assert "dedicated" in {each["key"] for each in pod(found)["tolerations"]}


def test_every_report_names_its_node():
    for found in both():
        assert container(found)["env"][0] == {
            "name": "NODE_NAME",
            "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        }


def test_the_doctors_pod_is_ready_once_it_has_reported():
    probe = container(daemonset())["readinessProbe"]
    assert probe["exec"]["command"] == ["test", "-e", DONE_MARKER]
    assert DONE_MARKER in container(daemonset())["command"][-1]
    assert {mount["mountPath"] for mount in container(daemonset())["volumeMounts"]} == {REPORTS_FOLDER}


def test_a_proof_takes_the_gpus_that_the_job_takes():
    mig = replace(task(), accelerator=Accelerator(vendor=Vendor.NVIDIA, name="", count=1, memory_bytes=0))
    assert container(job())["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container(job(task(Vendor.ROCM)))["resources"]["limits"]["amd.com/gpu"] == 2
    assert set(container(job(task(Vendor.CPU)))["resources"]["limits"]) == {"memory"}
    found = container(job(mig, gpu_resource="nvidia.com/mig-1g.10gb"))["resources"]["limits"]
    assert found["nvidia.com/mig-1g.10gb"] == 1


def test_a_proofs_claim_is_its_own_so_that_removing_it_leaves_the_jobs():
    template, found = (
        strip_comments(each) for each in build_verify_job(task(), KubernetesSettings(device_class="gpu.nvidia.com"))
    )
    assert template["metadata"]["name"] == "tune-verify-gpu"
    assert pod(found)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "tune-verify-gpu"}]
    assert container(found)["resources"]["claims"] == [{"name": "gpu"}]
    assert "tune-verify-gpu" not in {each["metadata"]["name"] for each in objects(made(task()), "base/")}


def test_shared_memory_is_within_the_memory_that_a_proof_asks_for():
    found = job(task(shm_bytes=16 * GIB))
    assert container(found)["resources"]["limits"]["memory"] == "32Gi"  # 8, 4 for each of two GPUs, and 16
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod(found)["volumes"]


@pytest.mark.parametrize(
    ("nodes", "asked", "proved"), [(1, None, 1), (4, None, 4), (1, 12, 12)], ids=["one", "four", "a dozen asked for"]
)
def test_as_many_nodes_are_proved_as_the_job_has_each_once(nodes, asked, proved):
    found = job(task(nodes=nodes), verify_nodes=asked)
    assert (found["spec"]["completions"], found["spec"]["parallelism"]) == (proved, proved)
    (term,) = pod(found)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_one_failed_proof_leaves_the_others_and_is_not_repeated():
    spec = job(task(nodes=4))["spec"]
    assert (spec["completionMode"], spec["backoffLimitPerIndex"]) == ("Indexed", 0)
    assert pod(job())["restartPolicy"] == "Never"
    assert "activeDeadlineSeconds" not in spec  # it would count the time in the queue


def test_a_queue_counts_the_proofs_gpus_and_not_the_doctors():
    doctor, proof = both(queue="team")
    assert proof["metadata"]["labels"][QUEUE_LABEL] == "team"
    assert proof["spec"]["suspend"] is True
    assert QUEUE_LABEL not in json.dumps(doctor)


def test_several_gpus_are_proved_together_and_one_quickly():
    one = replace(task(), accelerator=replace(task().accelerator, count=1))
    assert "--quick" in container(job(one))["command"][-1]
    assert "--quick" not in container(job())["command"][-1]


def test_the_pods_of_the_checks_are_not_those_of_the_job():
    """The job's Service, its affinity and `kubectl logs` find its pods by this label."""
    labels = [each["spec"]["template"]["metadata"]["labels"][INSTANCE_LABEL] for each in both()]
    assert labels == ["tune-doctor", "tune-verify"]
    assert daemonset()["spec"]["selector"]["matchLabels"] == {INSTANCE_LABEL: "tune-doctor"}


@pytest.mark.parametrize("name", ["t", "t" * 52, f"{'t' * 47}-end"], ids=["a letter", "the longest", "cut at a hyphen"])
def test_names_are_short_enough_for_what_the_controllers_add(name):
    for component, found in ((DOCTOR_COMPONENT, build_doctor_daemonset), (VERIFY_COMPONENT, build_verify_job)):
        (manifest,) = found(task(name=name), KubernetesSettings())
        own = manifest["metadata"]["name"]
        assert own.endswith(f"-{component}")
        assert "--" not in own
        assert len(f"{own}-9999") <= 63
        assert len(manifest["metadata"]["labels"][INSTANCE_LABEL]) <= 63


def test_checks_and_monitoring_can_be_turned_off():
    with_both, without = (made(task(), node_checks=wanted, monitoring=wanted) for wanted in (True, False))
    assert {each.path.split("/")[0] for each in with_both.artifacts} >= {"checks", "monitoring"}
    assert not {each.path.split("/")[0] for each in without.artifacts} & {"checks", "monitoring"}
    assert len(with_both.notes) == len(without.notes) + 2
