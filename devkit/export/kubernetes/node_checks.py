"""Checks of the nodes: the doctor on each of them, and the proof on those that the job would use.

Reports are lines in the pods' logs, which everyone who may start a job may read: the pods need no permissions and no
storage that all nodes can write to. Nothing of the node is mounted, so checks of the node itself are skipped.
"""

import shlex
import textwrap

from devkit.export.kubernetes.kustomize import GENERATED_NOTICE, QUEUE_LABEL, render_folder
from devkit.export.kubernetes.manifest import INSTANCE_LABEL, Commented, Manifest, build_labels
from devkit.export.kubernetes.pod import build_placement, escape_variables
from devkit.export.kubernetes.resources import CLAIM_NAME, build_claim_template, find_gpu_resource, format_quantity
from devkit.export.kubernetes.settings import KubernetesSettings, parse_node_selector
from devkit.export.kubernetes.storage import build_container_security, build_pod_security
from devkit.export.task import Task
from devkit.export.values import GIB, MAX_LABEL_LENGTH
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

CHECKS_FOLDER = "checks"
COLLECT_SCRIPT = f"{CHECKS_FOLDER}/collect.sh"
REPORTS_FOLDER = "/reports"
"""The folder of a pod's reports: a volume of its own."""
DONE_MARKER = f"{REPORTS_FOLDER}/done"
"""A file that exists once everything was printed."""

_REPORT = """\
# One line for each report, the node's name first: the report itself is redacted.
report() {
  [ -s "$1" ] || return 0
  printf '{"node": "%s", ' "$NODE_NAME"
  tail -c +2 "$1" | tr -d '\\n'
  echo
}
"""

_READ = "devkit doctor {flags}--timeout 60 --project . --save-facts facts.json --format json --output doctor.json"


def render_doctor_script() -> str:
    """Render a script that runs the doctor, prints its reports and waits: a DaemonSet restarts what ends. POSIX sh.

    It ends with the doctor's code if that wrote no report; findings are no failure of the pod.
    """
    return f"""\
set -u
# Process 1 ignores signals that it does not trap.
trap 'exit 0' TERM INT
cd {REPORTS_FOLDER} || exit
{_REPORT}
code=0; {_READ.format(flags="")} || code=$?
[ -s facts.json ] && [ -s doctor.json ] || exit "$code"
report facts.json
report doctor.json
: > {DONE_MARKER}
sleep infinity & wait
"""


def render_verify_script(*, is_quick: bool) -> str:
    """Render a script that proves the pod's GPUs, and ends with the proof's code: 0 if it passed. POSIX sh."""
    depth = "--quick " if is_quick else ""
    return f"""\
set -u
cd {REPORTS_FOLDER} || exit
{_REPORT}
# Findings are in the report; the proof decides.
{_READ.format(flags="--deep ")} || :
code=0; devkit verify --here {depth}--timeout 1800 --output verify.json >&2 || code=$?
report facts.json
report verify.json
exit "$code"
"""


DOCTOR_COMPONENT, VERIFY_COMPONENT = "doctor", "verify"
"""The components: names of folders, suffixes of names, and labels."""

GPU_NODE_LABELS = {
    Vendor.NVIDIA: ("nvidia.com/gpu.present", "true"),
    Vendor.ROCM: ("feature.node.kubernetes.io/amd-gpu", "true"),
}
"""Labels of nodes with a GPU. Sources: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
and https://github.com/ROCm/gpu-operator (the rule for Node Feature Discovery)"""

MAX_PROOF_S = 3600
"""Time limit of a proof's pod: pulling the image, 90 s for the doctor, 1800 s for the proof."""
CHECK_TTL_S = 86400
_MIB = 1 << 20
_PROOF_BYTES, _PROOF_BYTES_PER_GPU = 8 * GIB, 4 * GIB
"""torch with CUDA and the reference on the CPU, and a process for each GPU for the all-reduce over NCCL."""
_PROOF_CPUS = 4


def build_doctor_daemonset(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """Build a DaemonSet: the doctor on every node with a GPU, without requesting one."""
    labels = _build_check_labels(task, DOCTOR_COMPONENT)
    spec: Manifest = {
        "selector": {"matchLabels": {INSTANCE_LABEL: labels[INSTANCE_LABEL]}},
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": Commented("100%", "kubectl rollout restart checks all nodes at once.")},
        },
        "template": {"metadata": {"labels": labels}, "spec": _build_doctor_pod(task, settings)},
    }
    metadata = {"name": _name_check(task, DOCTOR_COMPONENT), "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}]


def build_verify_job(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """Build a Job that proves as many nodes as the job would use, each with its GPUs, and their claim template if any.

    Sources: https://kubernetes.io/docs/tasks/job/, backoffLimitPerIndex is stable since Kubernetes 1.33:
    https://kubernetes.io/blog/2025/05/13/kubernetes-v1-33-jobs-backoff-limit-per-index-goes-ga/
    """
    nodes = settings.verify_nodes or task.nodes
    labels = _build_check_labels(task, VERIFY_COMPONENT)
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": Commented(
            nodes, "Nodes to prove: as many as the job has, unless --verify-nodes says otherwise."
        ),
        "parallelism": nodes,
        "backoffLimitPerIndex": Commented(0, "A proof that failed is a result, and the other nodes continue."),
        "ttlSecondsAfterFinished": Commented(CHECK_TTL_S, "A day, in which collect.sh reads the logs."),
        "template": {"metadata": {"labels": labels}, "spec": _build_verify_pod(task, settings)},
    }
    metadata: Manifest = {"name": _name_check(task, VERIFY_COMPONENT), "labels": labels}
    if settings.queue:
        metadata["labels"] = labels | {QUEUE_LABEL: settings.queue}
        spec = {"suspend": Commented(True, "Kueue starts it: its quota counts these GPUs, too."), **spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    if not settings.device_class:
        return [job]
    # A separate claim template, so that deleting the proof keeps the job's.
    return [build_claim_template(task, settings) | {"metadata": {"name": _claim_name(task)}}, job]


def name_check_instance(task: Task, component: str) -> str:
    """Return the instance label of a check: not the job's, which selects its own pods by that."""
    return f"{task.name}-{component}"


def _build_check_labels(task: Task, component: str) -> dict[str, str]:
    return build_labels(task, component) | {INSTANCE_LABEL: name_check_instance(task, component)}


def _name_check(task: Task, component: str) -> str:
    """Return the object's name, short enough for a pod's: the component, an index and five letters follow.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    end = f"-{component}"
    return task.name[: MAX_LABEL_LENGTH - len(f"{end}-9999")].rstrip("-") + end


def _build_doctor_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    nvidia = task.accelerator.vendor is Vendor.NVIDIA and task.accelerator.count > 0
    variables = [_build_node_variable()]
    if nvidia:
        variables += [
            Commented(
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                "To see all GPUs and request none. It works where pods get NVIDIA's runtime: by default, or "
                "by --runtime-class nvidia, which GPU Operator 25.10 and later require. Where clusters forbid it, the "
                "doctor sees no GPU, and the Job in checks/verify sees its own.",
            ),
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ]
    container = {
        **_build_check_container(task, settings, render_doctor_script(), variables),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": Commented(
            {"exec": {"command": ["test", "-e", DONE_MARKER]}, "periodSeconds": 5},
            "Ready means reported: kubectl rollout status waits for every node.",
        ),
    }
    runtime: Manifest = {"runtimeClassName": settings.runtime_class} if settings.runtime_class and nvidia else {}
    places = build_placement(task, settings)
    found: Manifest = {"nodeSelector": _select_gpu_nodes(task, settings), "tolerations": places["tolerations"]}
    return {
        **_build_pod_fields(task, settings),
        **runtime,
        **found,
        "containers": [container],
        "volumes": [_build_reports_volume()],
    }


def _build_verify_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    count = task.accelerator.count
    container = _build_check_container(
        task, settings, render_verify_script(is_quick=count < 2), [_build_node_variable()]
    )
    container["resources"] = _build_proof_resources(task, settings)
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - inside the container
    places = build_placement(task, settings)
    places.pop("affinity", None)
    apart = {
        "labelSelector": {"matchLabels": {INSTANCE_LABEL: name_check_instance(task, VERIFY_COMPONENT)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": Commented(MAX_PROOF_S, "Of each pod, from its start on a node."),
        **_build_pod_fields(task, settings),
        **places,
        "affinity": Commented(
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "One pod per node, even if several would fit on one.",
        ),
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.device_class:
        spec["resourceClaims"] = [{"name": CLAIM_NAME, "resourceClaimTemplateName": _claim_name(task)}]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": format_quantity(task.shm_bytes)}}
    return {**spec, "containers": [container], "volumes": [_build_reports_volume(), shm]}


def _build_proof_resources(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the resources: the GPUs of the job on one node, and the memory of a proof, not of the job."""
    count = task.accelerator.count
    memory = format_quantity(_PROOF_BYTES + _PROOF_BYTES_PER_GPU * count + task.shm_bytes)
    found: Manifest = {
        "requests": {"cpu": min(task.cpus, _PROOF_CPUS), "memory": memory},
        "limits": {"memory": memory},
    }
    resource = find_gpu_resource(task, settings)
    if resource:
        found["limits"][resource] = count
    if settings.device_class:
        found["claims"] = [{"name": CLAIM_NAME}]
    return found


def _select_gpu_nodes(task: Task, settings: KubernetesSettings) -> Manifest | Commented:
    if settings.node_selector or task.accelerator.count == 0:
        return dict(parse_node_selector(settings))
    label = GPU_NODE_LABELS[task.accelerator.vendor]
    return Commented(dict([label]), "Nodes with a GPU, as their discovery labels them; --node-selector replaces it.")


def _claim_name(task: Task) -> str:
    return f"{_name_check(task, VERIFY_COMPONENT)}-gpu"


def _build_pod_fields(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the fields of both kinds of pods: no access to the cluster or the node, no privileges."""
    found: Manifest = {
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": Commented(False, "It does not use the cluster's API."),
        "enableServiceLinks": False,
        "securityContext": build_pod_security(task, settings),
    }
    if settings.service_account:
        found["serviceAccountName"] = settings.service_account
    if settings.pull_secret:
        found["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return found


def _build_check_container(
    task: Task, settings: KubernetesSettings, script: str, variables: list[Manifest | Commented]
) -> Manifest:
    return {
        "name": "check",
        "image": task.image,
        "command": ["sh", "-c", escape_variables(script)],
        "env": variables,
        "workingDir": REPORTS_FOLDER,
        "securityContext": build_container_security(task, settings),
        "volumeMounts": [{"name": "reports", "mountPath": REPORTS_FOLDER}],
    }


def _build_node_variable() -> Manifest | Commented:
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    return Commented(
        {"name": "NODE_NAME", "valueFrom": field}, "Reports name no machine: this says which node each is from."
    )


def _build_reports_volume() -> Manifest:
    return {"name": "reports", "emptyDir": {"sizeLimit": format_quantity(256 * _MIB)}}


def render_node_checks(task: Task, settings: KubernetesSettings, folder: str) -> list[Artifact]:
    """Render both sets of manifests, each for `kubectl apply -k`, and the script that collects their reports.

    `folder` is the folder of the target's files as seen from the project.
    """
    read = "The doctor on every node with a GPU. It requests none, and stays until it is deleted."
    proved = "A proof on as many nodes as the job has, with their GPUs. It ends by itself."
    script = render_template(
        "kubernetes/collect.sh.j2",
        written_by="\n# ".join(textwrap.wrap(GENERATED_NOTICE, width=118)),
        name=task.name,
        namespace=f" --namespace {settings.namespace}" if settings.namespace else "",
        instance=INSTANCE_LABEL,
        checks=shlex.quote(f"{folder}/{CHECKS_FOLDER}"),
    )
    return [
        *render_folder(
            f"{CHECKS_FOLDER}/{DOCTOR_COMPONENT}",
            read,
            {"daemonset.yaml": build_doctor_daemonset(task, settings)},
            settings,
        ),
        *render_folder(
            f"{CHECKS_FOLDER}/{VERIFY_COMPONENT}", proved, {"job.yaml": build_verify_job(task, settings)}, settings
        ),
        Artifact.from_text(COLLECT_SCRIPT, script, 0o755),
    ]


def list_check_notes(folder: str) -> tuple[str, ...]:
    """List the commands that check the nodes before the job."""
    where = shlex.quote(f"{folder}/{CHECKS_FOLDER}")
    return (f"to check the nodes first: kubectl apply -k {where}/{DOCTOR_COMPONENT}, then sh {where}/collect.sh",)
