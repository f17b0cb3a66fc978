"""PyTorchJob v1, of the training operator that came before Kubeflow Trainer: for clusters that still run it.

Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/; the fields are those of
v1.9.4's CustomResourceDefinition, the variables those of its pkg/controller.v1/pytorch/{envvar,master}.go. Pods that
were evicted are made anew (https://github.com/kubeflow/trainer/pull/1572), those of a node that is gone stay
(https://github.com/kubeflow/trainer/issues/2072).
"""

from devkit.export.kubernetes.labelled import TRAINING, labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.pod import container_of, pod_template
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.workload import KEPT_SECONDS, Place, Workload
from devkit.export.task import RENDEZVOUS_PORT, Task

CONTAINER = "pytorch"
RESTARTS = 10
"""More than elsewhere: the operator counts restarts of containers, a preempted one's, too."""


def pytorchjob(task: Task, settings: KubernetesSettings) -> Workload:
    """The PyTorchJob: a master, and workers for the other nodes."""
    replicas = {"Master": _replicas(task, settings, 1)}
    if task.nodes > 1:
        replicas["Worker"] = _replicas(task, settings, task.nodes - 1)
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": task.name, "labels": labels_of(task, TRAINING)},
        "spec": {
            "nprocPerNode": Noted(
                str(max(1, task.accelerator.count)),
                "The operator sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, "
                "which torchrun reads.",
            ),
            "runPolicy": _policy(task),
            "pytorchReplicaSpecs": replicas,
        },
    }
    note = (
        "a PyTorchJob takes every end of a container for a failure, 75 too, and waits for ever for a node that is gone "
        "without a word: kubectl delete pod --force lets it go on. --kind trainjob knows both apart"
    )
    return Workload(
        kind="PyTorchJob",
        files={"pytorchjob.yaml": [manifest]},
        owner=Place("PyTorchJob", task.name, ""),
        suspend=Place("PyTorchJob", task.name, "/spec/runPolicy/suspend"),
        pods=tuple(Place("PyTorchJob", task.name, f"/spec/pytorchReplicaSpecs/{role}/template") for role in replicas),
        notes=(note,),
    )


def _policy(task: Task) -> Manifest:
    return {
        "backoffLimit": Noted(RESTARTS, "Restarts of containers; those of preempted ones are counted, too."),
        "activeDeadlineSeconds": Noted(task.time_s, "The longest run, restarts included."),
        "ttlSecondsAfterFinished": Noted(KEPT_SECONDS, "A week; then the job goes with its pods and their logs."),
        "cleanPodPolicy": Noted("Running", "What still runs when the job has ended; ended pods keep their logs."),
    }


def _replicas(task: Task, settings: KubernetesSettings, count: int) -> Manifest:
    variables = []
    if not task.is_distributed:
        # The operator sets RANK and WORLD_SIZE even then.
        variables = [{"name": "LOCAL_RANK", "value": "0"}]
    container = container_of(task, settings, CONTAINER, variables)
    container["name"] = Noted(CONTAINER, "The operator looks for this name, and for that of the port.")
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT}]
    return {
        "replicas": count,
        "restartPolicy": Noted(
            "OnFailure", "75 starts the container again. ExitCode would not: it takes 1 to 127 for the end."
        ),
        "template": pod_template(task, settings, container, restart=""),
    }
