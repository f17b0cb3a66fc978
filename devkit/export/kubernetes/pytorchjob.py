"""PyTorchJob v1, of the training operator that preceded Kubeflow Trainer: for clusters that still run it.

Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/; the fields are those of
v1.9.4's CustomResourceDefinition, the variables those of its pkg/controller.v1/pytorch/{envvar,master}.go. Pods that
were evicted are recreated (https://github.com/kubeflow/trainer/pull/1572), those of a node that is gone stay
(https://github.com/kubeflow/trainer/issues/2072).
"""

from devkit.export.kubernetes.manifest import (
    JOB_TTL_S,
    Commented,
    JobManifests,
    Manifest,
    PatchTarget,
)
from devkit.export.kubernetes.pod import build_container, build_job_labels, build_pod_template
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import ELASTIC_RESTARTS, RENDEZVOUS_PORT, Task

PYTORCH_CONTAINER = "pytorch"
RESTARTS = 10
"""More than elsewhere: the operator counts all restarts of containers, also after a preemption."""


def render_pytorchjob(task: Task, settings: KubernetesSettings) -> JobManifests:
    """Render the PyTorchJob: a master, and workers for the other nodes; workers alone where they are elastic."""
    replicas = {} if task.is_elastic else {"Master": _build_replicas(task, settings, 1)}
    if task.nodes > 1:
        replicas["Worker"] = _build_replicas(task, settings, task.nodes - (not task.is_elastic))
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": task.name, "labels": build_job_labels(task, settings)},
        "spec": {
            "nprocPerNode": Commented(
                str(task.processes_per_node),
                "The operator sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, "
                "which torchrun reads.",
            ),
            "runPolicy": {
                "backoffLimit": Commented(RESTARTS, "Restarts of containers, those after a preemption included."),
                "activeDeadlineSeconds": Commented(task.time_s, "Time limit, restarts included."),
                "ttlSecondsAfterFinished": Commented(
                    JOB_TTL_S, "A week; then the job is deleted with its pods and their logs."
                ),
                "cleanPodPolicy": Commented(
                    "Running", "Pods that still run when the job has ended; ended ones keep their logs."
                ),
            },
            **({"elasticPolicy": _build_elastic_policy(task)} if task.is_elastic else {}),
            "pytorchReplicaSpecs": replicas,
        },
    }
    note = (
        "a PyTorchJob counts every end of a container as a failure, 75 too, and waits forever for a node that is lost "
        "without notice: kubectl delete pod --force lets it continue. --kind trainjob handles both"
    )
    return JobManifests(
        kind="PyTorchJob",
        files={"pytorchjob.yaml": [manifest]},
        owner=PatchTarget("PyTorchJob", task.name, ""),
        suspend=PatchTarget("PyTorchJob", task.name, "/spec/runPolicy/suspend"),
        pods=tuple(
            PatchTarget("PyTorchJob", task.name, f"/spec/pytorchReplicaSpecs/{role}/template") for role in replicas
        ),
        notes=(note,),
    )


def _build_elastic_policy(task: Task) -> Manifest:
    """Build the policy by which workers may be fewer; there is no master then.

    Source: pkg/controller.v1/pytorch/elastic.go and hpa.go: without metrics nothing changes their number.
    """
    return {
        "minReplicas": Commented(task.min_nodes, "torchrun continues with this many when others are lost."),
        "maxReplicas": task.nodes,
        "rdzvBackend": "c10d",
        "rdzvId": task.name,
        "maxRestarts": ELASTIC_RESTARTS,
    }


def _build_replicas(task: Task, settings: KubernetesSettings, count: int) -> Manifest:
    variables = []
    if task.is_elastic:
        # The operator's own variable for it, PET_N_PROC_PER_NODE, is none of torchrun's.
        variables = [{"name": "PET_NPROC_PER_NODE", "value": str(task.processes_per_node)}]
    elif not task.is_distributed:
        # The operator sets RANK and WORLD_SIZE even then.
        variables = [{"name": "LOCAL_RANK", "value": "0"}]
    container = build_container(task, settings, PYTORCH_CONTAINER, variables)
    container["name"] = Commented(PYTORCH_CONTAINER, "The operator requires this name, and that of the port.")
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT}]
    return {
        "replicas": count,
        "restartPolicy": Commented(
            "OnFailure", "75 restarts the container. With ExitCode, 1 to 127 would be permanent failures."
        ),
        "template": build_pod_template(task, settings, container, restart=""),
    }
