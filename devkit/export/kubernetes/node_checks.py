"""A check of the nodes before the job: the doctor on each node with a GPU, in the job's image.

The pods request no GPU and need no permissions; nothing of the node is mounted, so checks of the node itself are skipped.
"""

import shlex

from devkit.export.kubernetes.manifest import (
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    Commented,
    Manifest,
    build_labels,
    render_folder,
)
from devkit.export.kubernetes.resources import build_tolerations
from devkit.export.kubernetes.settings import KubernetesSettings, parse_node_selector
from devkit.export.kubernetes.storage import build_container_security, build_pod_security
from devkit.export.task import Task
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

CHECKS_FOLDER = "checks"
DOCTOR_COMPONENT = "doctor"
"""The component of the pods, and the end of the names."""
REPORTS_FOLDER = "/reports"
"""The folder of a pod's reports: a volume of its own."""
DOCTOR_SCRIPT = f"""\
set -u
# Process 1 ignores signals that it does not trap.
trap 'exit 0' TERM INT
cd {REPORTS_FOLDER} || exit
code=0; devkit doctor --timeout 60 --project . --save-facts facts.json --format json --output doctor.json || code=$?
# Findings are no failure of the pod; a doctor without a report is.
[ -s facts.json ] && [ -s doctor.json ] || exit "$code"
: > done
sleep infinity & wait
"""
GPU_NODE_LABELS = {
    Vendor.NVIDIA: ("nvidia.com/gpu.present", "true"),
    Vendor.ROCM: ("feature.node.kubernetes.io/amd-gpu", "true"),
}
"""Labels of nodes with a GPU. Sources: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
and https://github.com/ROCm/gpu-operator (the rule for Node Feature Discovery)"""


def render_node_checks(task: Task, settings: KubernetesSettings, folder: str) -> tuple[list[Artifact], str]:
    """Render the DaemonSet and the script that collects its reports, and the note that says how to use them."""
    where = shlex.quote(f"{folder}/{CHECKS_FOLDER}")
    script = render_template(
        "kubernetes/collect.sh.j2",
        namespace=f" --namespace {settings.namespace}" if settings.namespace else "",
        selector=",".join(f"{name}={value}" for name, value in _build_selector(task).items()),
        reports=REPORTS_FOLDER,
        checks=where,
    )
    about = "The doctor on every node with a GPU. It requests none, and stays until it is deleted."
    artifacts = render_folder(
        CHECKS_FOLDER, about, "daemonset.yaml", [_build_daemonset(task, settings)], settings.namespace
    )
    note = f"to check the nodes first: kubectl apply -k {where}, then sh {where}/collect.sh"
    return [*artifacts, Artifact.from_text(f"{CHECKS_FOLDER}/collect.sh", script, 0o755)], note


def _build_selector(task: Task) -> dict[str, str]:
    return {INSTANCE_LABEL: task.name, COMPONENT_LABEL: DOCTOR_COMPONENT}


def _build_daemonset(task: Task, settings: KubernetesSettings) -> Manifest:
    labels = build_labels(task, DOCTOR_COMPONENT)
    restart = Commented("100%", "kubectl rollout restart checks all nodes at once.")
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"{task.name}-{DOCTOR_COMPONENT}", "labels": labels},
        "spec": {
            "selector": {"matchLabels": _build_selector(task)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": restart}},
            "template": {"metadata": {"labels": labels}, "spec": _build_pod(task, settings)},
        },
    }


def _build_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    vendor, has_gpus = task.accelerator.vendor, task.accelerator.count > 0
    is_nvidia = has_gpus and vendor is Vendor.NVIDIA
    variables = [
        Commented(
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            "To see all GPUs and request none. It works where pods get NVIDIA's runtime: by default, or by "
            "--set runtime_class=nvidia, which GPU Operator 25.10 and later require. Where clusters forbid it, the doctor "
            "sees no GPU.",
        ),
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
    ]
    container = {
        "name": "check",
        "image": task.image,
        "command": ["sh", "-c", DOCTOR_SCRIPT],
        "env": variables if is_nvidia else [],
        "workingDir": REPORTS_FOLDER,
        "securityContext": build_container_security(task, settings),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": Commented(
            {"exec": {"command": ["test", "-e", f"{REPORTS_FOLDER}/done"]}, "periodSeconds": 5},
            "Ready means reported: kubectl rollout status waits for every node.",
        ),
        "volumeMounts": [{"name": "reports", "mountPath": REPORTS_FOLDER}],
    }
    selector: Manifest | Commented = dict(parse_node_selector(settings))
    if has_gpus and not settings.node_selector:
        why = "Nodes with a GPU, as their discovery labels them; --node-selector replaces it."
        selector = Commented(dict([GPU_NODE_LABELS[vendor]]), why)
    optional = {
        "runtimeClassName": settings.runtime_class if is_nvidia else "",
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": settings.pull_secret}] if settings.pull_secret else [],
    }
    return {
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": Commented(False, "It does not use the cluster's API."),
        "enableServiceLinks": False,
        "securityContext": build_pod_security(task, settings),
        **{name: value for name, value in optional.items() if value},
        "nodeSelector": selector,
        "tolerations": build_tolerations(task, settings),
        "containers": [container],
        "volumes": [{"name": "reports", "emptyDir": {"sizeLimit": "256Mi"}}],
    }
