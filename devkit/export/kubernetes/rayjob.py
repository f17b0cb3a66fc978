"""RayJob of KubeRay: a Ray cluster of the job's nodes, on each of which Ray starts the same command.

Source: https://github.com/ray-project/kuberay/blob/master/ray-operator/apis/ray/v1/rayjob_types.go. The image must
have Ray, and its operator starts Ray in the containers.
"""

import shlex

from devkit.export.kubernetes.manifest import JOB_TTL_S, RETRIES, Commented, JobManifests, Manifest, PatchTarget
from devkit.export.kubernetes.pod import build_container, build_job_labels, build_pod_template
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Task, build_rendezvous_variables
from devkit.render.templates import render_template

MAX_RAYJOB_NAME_LENGTH = 47
"""Source: ray-operator/controllers/ray/utils/constant.go of KubeRay; pods add a suffix of 16."""
SCRIPT_FOLDER = "/etc/devkit"
_RANK_VARIABLES = ("PET_NODE_RANK", "PET_MASTER_ADDR")
"""Those that the script sets, which alone knows the nodes."""


def render_rayjob(task: Task, settings: KubernetesSettings) -> JobManifests:
    """Render the RayJob, and the script that starts the command on each node."""
    scripts = {"nodes.py": render_template("kubernetes/ray_nodes.py.j2")}
    script = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{task.name}-nodes", "labels": build_job_labels(task, settings)},
        "data": scripts,
    }
    words = ["python", f"{SCRIPT_FOLDER}/nodes.py", str(task.nodes), str(task.accelerator.count), *task.command]
    cluster: Manifest = {
        "headGroupSpec": {
            "rayStartParams": Commented({}, "The head is a node like the others: it has GPUs, and works."),
            "template": _build_template(task, settings, "ray-head"),
        }
    }
    pods = ["headGroupSpec"]
    if task.nodes > 1:
        workers = {
            "groupName": "node",
            **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), task.nodes - 1),
            "rayStartParams": {},
            "template": _build_template(task, settings, "ray-worker"),
        }
        cluster["workerGroupSpecs"] = [workers]
        pods.append("workerGroupSpecs/0")
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": task.name, "labels": build_job_labels(task, settings)},
        "spec": {
            "entrypoint": shlex.join(words),
            "backoffLimit": Commented(RETRIES, "Attempts, each with a new cluster; it resumes from its checkpoint."),
            "activeDeadlineSeconds": Commented(task.time_s, "Time limit."),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": Commented(JOB_TTL_S, "A week; then the cluster is deleted with its logs."),
            "submissionMode": Commented("HTTPMode", "By the operator: another mode's pod is not restricted."),
            "rayClusterSpec": cluster,
        },
    }
    notes = (
        "the image must have Ray, in the project's requirements, of a release that the operator supports",
        "Ray ends a command without a signal first: a RayJob that is preempted resumes from its last checkpoint",
    )
    return JobManifests(
        kind="RayJob",
        files={"script.yaml": [script], "rayjob.yaml": [manifest]},
        owner=PatchTarget("RayJob", task.name, ""),
        suspend=PatchTarget("RayJob", task.name, "/spec/suspend"),
        pods=tuple(PatchTarget("RayJob", task.name, f"/spec/rayClusterSpec/{path}/template") for path in pods),
        notes=notes,
    )


def _build_template(task: Task, settings: KubernetesSettings, name: str) -> Manifest:
    variables = build_rendezvous_variables(task, address="", rank="")
    entries: list[Manifest] = [
        {"name": name, "value": value} for name, value in variables if name not in _RANK_VARIABLES
    ]
    entries.append({"name": "RAY_LOG_TO_STDERR", "value": "1"})  # for kubectl logs
    container = build_container(task, settings, name, entries)
    # The operator writes the command: ray start.
    del container["command"]
    container["volumeMounts"].append({"name": "nodes", "mountPath": SCRIPT_FOLDER})
    template = build_pod_template(task, settings, container, restart="")
    template["spec"]["volumes"].append({"name": "nodes", "configMap": {"name": f"{task.name}-nodes"}})
    return template
