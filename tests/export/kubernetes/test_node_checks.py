"""The checks of the nodes as objects of a cluster: they ask for no rights, and the doctor for no GPU."""

import json
from dataclasses import replace

import pytest

from devkit.export.kubernetes.kustomize import QUEUE_LABEL
from devkit.export.kubernetes.manifest import INSTANCE_LABEL, strip_comments
from devkit.export.kubernetes.node_checks import (
    DOCTOR_COMPONENT,
    DONE_MARKER,
    REPORTS_FOLDER,
    VERIFY_COMPONENT,
    build_doctor_daemonset,
    build_verify_job,
)
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Accelerator
from devkit.export.values import GIB
from devkit.solver.plan import Vendor

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


def test_the_checks_ask_nothing_of_the_cluster_and_bring_no_rights_and_can_be_turned_off():
    assert all(pod(each)["automountServiceAccountToken"] is False for each in both())
    rendered = made(task(), node_checks=True, monitoring=True)
    assert {each["kind"] for each in objects(rendered, "checks/")} == {"DaemonSet", "Job"}
    assert {"checks", "monitoring"} <= {each.path.split("/")[0] for each in rendered.artifacts}
    without = made(task())
    assert not {each.path.split("/")[0] for each in without.artifacts} & {"checks", "monitoring"}
    assert len(rendered.notes) == len(without.notes) + 2


@every_vendor
def test_the_doctor_takes_no_gpu_and_claims_none(vendor):
    found = daemonset(vendor, **({"device_class": "gpu.nvidia.com"} if vendor is Vendor.NVIDIA else {}))
    assert set(container(found)["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container(found)["resources"]["limits"]) == {"memory"}
    assert "resourceClaims" not in pod(found)
    assert "--deep" not in " ".join(container(found)["command"])


def test_the_doctor_sees_all_of_nvidias_gpus_and_asks_amds_and_no_gpus_for_nothing():
    def names(vendor: Vendor) -> dict:
        return {each["name"]: each.get("value") for each in container(daemonset(vendor))["env"]}

    gpus = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert names(Vendor.NVIDIA) == {"NODE_NAME": None} | gpus
    assert set(names(Vendor.ROCM)) == set(names(Vendor.CPU)) == {"NODE_NAME"}


def test_the_runtime_class_is_the_doctors_alone_and_for_nvidias_gpus():
    assert pod(daemonset(runtime_class="nvidia"))["runtimeClassName"] == "nvidia"
    for other in (daemonset(), daemonset(Vendor.ROCM, runtime_class="nvidia"), job(runtime_class="nvidia")):
        assert "runtimeClassName" not in pod(other)


@pytest.mark.parametrize(
    ("vendor", "selector", "chosen"),
    [
        pytest.param(Vendor.NVIDIA, (), {"nvidia.com/gpu.present": "true"}, id="nvidia"),
        pytest.param(Vendor.ROCM, (), {"feature.node.kubernetes.io/amd-gpu": "true"}, id="amd"),
        pytest.param(Vendor.CPU, (), {}, id="no GPU"),
        pytest.param(Vendor.NVIDIA, ("pool=a100",), {"pool": "a100"}, id="nodes that the user names"),
    ],
)
def test_the_doctor_goes_to_every_node_with_a_gpu(vendor, selector, chosen):
    assert pod(daemonset(vendor, node_selector=selector))["nodeSelector"] == chosen


def test_both_bear_the_taints_that_the_job_bears_and_every_report_names_its_node():
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    for found in both(toleration=("dedicated=ml:NoSchedule",)):
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod(found)["tolerations"]
        assert "dedicated" in {each["key"] for each in pod(found)["tolerations"]}
        assert container(found)["env"][0] == node


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


@pytest.mark.parametrize(("nodes", "asked", "proved"), [(1, None, 1), (4, None, 4), (1, 12, 12)])
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


def test_names_are_short_enough_for_what_the_controllers_add():
    for name in ("t", "t" * 52, f"{'t' * 47}-end"):
        for component, found in ((DOCTOR_COMPONENT, build_doctor_daemonset), (VERIFY_COMPONENT, build_verify_job)):
            (manifest,) = found(task(name=name), KubernetesSettings())
            own = manifest["metadata"]["name"]
            assert own.endswith(f"-{component}")
            assert "--" not in own
            assert len(f"{own}-9999") <= 63
            assert len(manifest["metadata"]["labels"][INSTANCE_LABEL]) <= 63
