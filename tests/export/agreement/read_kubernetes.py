"""What the manifests of a job say, read back as a controller and the kubelet would start its first pod."""

from typing import Any

from devkit.export.task import Task
from devkit.export.values import parse_size
from tests.export.kubernetes.operators import started
from tests.export.kubernetes.rendered import container, job_templates, made, of_job

from .seen import COMPILED, FIRST, TOKEN, Seen


def of_kubernetes(task: Task, *, kind: str) -> Seen:
    """The first pod of the job, with what the kind's controller adds to it."""
    rendered = made(task, kind=kind)
    command, variables = started(rendered, 0)
    found = container(rendered)
    pod = job_templates(rendered)[0]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    roles = {each["mountPath"]: _role(volumes[each["name"]]) for each in found["volumeMounts"]}
    (shm,) = (volumes[each["name"]] for each in found["volumeMounts"] if each["mountPath"] == "/dev/shm")
    assert shm["emptyDir"]["medium"] == "Memory"
    if task.nodes > 1 and "PET_MASTER_ADDR" in variables:
        assert variables["PET_MASTER_ADDR"].startswith(f"{task.name}-")
        variables["PET_MASTER_ADDR"] = FIRST
    return Seen(
        image=found["image"],
        command=tuple(command),
        environment=variables,
        gpus=int(found["resources"]["limits"].get("nvidia.com/gpu", 0)),
        nodes=_nodes(of_job(rendered)),
        mounts={path: role for path, role in roles.items() if path != "/dev/shm"},
        shm_bytes=parse_size(shm["emptyDir"]["sizeLimit"], "sizeLimit"),
        stop="SIGTERM" if "lifecycle" not in found else "another",
        grace_s=pod["terminationGracePeriodSeconds"],
        folder=found["workingDir"],
    )


def _nodes(manifests: list[dict[str, Any]]) -> int:
    by_kind = {each["kind"]: each.get("spec") for each in manifests}
    if "TrainJob" in by_kind:
        return int(by_kind["TrainJob"]["trainer"]["numNodes"])
    if "PyTorchJob" in by_kind:
        return sum(each["replicas"] for each in by_kind["PyTorchJob"]["pytorchReplicaSpecs"].values())
    if "RayJob" in by_kind:
        return int(by_kind["RayJob"]["entrypoint"].split()[2])
    spec = by_kind["Job"] if "Job" in by_kind else by_kind["JobSet"]["replicatedJobs"][0]["template"]["spec"]
    return int(spec.get("parallelism", 1))


def _role(volume: dict[str, Any]) -> str:
    if "secret" in volume:
        return TOKEN
    if "persistentVolumeClaim" in volume:
        return str(volume["persistentVolumeClaim"]["claimName"]).rpartition("-")[2]
    return COMPILED if volume["name"] == "compile-cache" else str(volume["name"])
