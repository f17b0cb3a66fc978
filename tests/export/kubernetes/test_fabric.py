"""Networks, schedulers and labels that clusters ask for."""

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.kubernetes import KubernetesSettings, render_kubernetes

from .api import problems
from .sample_jobs import context, task


def made(task_, **settings):
    rendered = render_kubernetes(task_, KubernetesSettings(**settings), context())
    return {each.path: each.content.decode() for each in rendered.artifacts}


def job_of(files):
    return yaml.safe_load(files["base/job.yaml"])


def test_network_devices_are_requested_beside_the_gpus_and_memory_may_be_pinned():
    files = made(task(), rdma=("rdma/hca", "vpc.amazonaws.com/efa=4"))
    (container,) = job_of(files)["spec"]["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/hca"], limits["vpc.amazonaws.com/efa"]) == (2, 1, 4)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert problems(job_of(files)) == []
    assert "IPC_LOCK" not in files["files/pod.yaml"]
    assert "IPC_LOCK" not in made(task())["base/job.yaml"]
    for wrong in ("hca", "rdma/hca=0"):
        with pytest.raises(DevkitError, match=r"--rdma .* is no resource"):
            made(task(), rdma=(wrong,))


def test_pods_may_use_the_nodes_network_and_another_scheduler():
    pod = job_of(made(task(), host_network=True, scheduler="kai-scheduler"))["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["schedulerName"] == "kai-scheduler"
    plain = job_of(made(task()))["spec"]["template"]["spec"]
    assert not {"hostNetwork", "dnsPolicy", "schedulerName"} & set(plain)


@pytest.mark.parametrize("kind", ["job", "trainjob", "pytorchjob", "jobset"])
def test_labels_are_the_jobs_and_its_pods_and_devkits_own_win(kind):
    labels = ("team=vision", "app.kubernetes.io/name=other")
    files = made(task(nodes=2), kind=kind, label=labels, annotation=("owner=a=b",))
    texts = "\n".join(text for path, text in files.items() if path.startswith("base/"))
    manifest = next(yaml.safe_load_all(files[f"base/{kind}.yaml"]))
    assert manifest["metadata"]["labels"] | {"team": "vision"} == manifest["metadata"]["labels"]
    assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "tune"
    assert texts.count("team: vision") >= 2
    assert 'owner: "a=b"' in texts or "owner: a=b" in texts or '"owner": "a=b"' in texts


def test_volcano_starts_the_nodes_of_a_trainjob_together():
    runtime = yaml.safe_load(made(task(nodes=2), scheduler="volcano")["base/runtime.yaml"])
    assert runtime["spec"]["podGroupPolicy"] == {"volcano": {}}
    assert "podGroupPolicy" not in made(task(nodes=2))["base/runtime.yaml"]


def test_a_preferred_topology_keeps_no_job_waiting():
    files = made(task(nodes=2), kind="jobset", queue="q", topology="block", topology_preferred=True)
    assert "podset-preferred-topology" in files["overlays/queue/kustomization.yaml"]
    files = made(task(nodes=2), kind="job", topology="block", topology_preferred=True)
    affinity = job_of(files)["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert problems(job_of(files)) == []


def test_only_where_the_order_matters_is_kubectl_told_of_it():
    assert not any("sortOptions" in text for text in made(task()).values())
    with_runtime = made(task(nodes=2))
    assert {path for path, text in with_runtime.items() if "sortOptions" in text} == {
        "kustomization.yaml",
        "base/kustomization.yaml",
    }
