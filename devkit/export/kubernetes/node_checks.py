"""Checks of the nodes: the doctor on each of them, and the proof on those that the job would use.

Reports leave by the pods' logs, since whoever may start a job may read them: no rights of the pods' own, no storage
that every node can write to. Nothing of the node is mounted, so what only the node itself can see is not looked at.
"""

import shlex
import textwrap

from devkit.export.job_settings import MAX_LABEL_LENGTH
from devkit.export.kubernetes.kustomize import GENERATED_NOTICE, QUEUE_LABEL, render_folder
from devkit.export.kubernetes.manifest import INSTANCE_LABEL, Commented, Manifest, build_labels
from devkit.export.kubernetes.pod import build_placement, escape_variables
from devkit.export.kubernetes.resources import CLAIM_NAME, build_claim_template, find_gpu_resource, format_quantity
from devkit.export.kubernetes.settings import KubernetesSettings, parse_node_selector
from devkit.export.kubernetes.storage import SECURE_CONTAINER, SECURE_POD
from devkit.export.quantities import GIB
from devkit.export.task import Task
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

# What the pods of the checks run, and how their reports leave them: as a line of the log that names the node.

REPORTS_FOLDER = "/reports"
"""Where a pod writes its reports: a volume of its own."""
DONE_MARKER = f"{REPORTS_FOLDER}/done"
"""Is there once everything was printed."""

_REPORT = """\
# One line for each report, the node's name before all else: what it holds was cleaned of names.
report() {
  [ -s "$1" ] || return 0
  printf '{"node": "%s", ' "$NODE_NAME"
  tail -c +2 "$1" | tr -d '\\n'
  echo
}
"""

_READ = "devkit doctor {flags}--timeout 60 --project . --save-facts facts.json --format json --output doctor.json"


def render_doctor_script() -> str:
    """Reads the node and says what was found, then waits, since a DaemonSet starts what ends anew. POSIX sh.

    Ends with the doctor's code when it wrote no report; what it found is no failure of the pod.
    """
    return f"""\
set -u
# Process 1 heeds no signal that it has no trap for.
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
    """Proves the GPUs that the pod has, and ends with the proof's code: 0 when it passed. POSIX sh."""
    depth = "--quick " if is_quick else ""
    return f"""\
set -u
cd {REPORTS_FOLDER} || exit
{_REPORT}
# What it finds is in the report; the proof decides.
{_READ.format(flags="--deep ")} || :
code=0; devkit verify --here {depth}--timeout 1800 --output verify.json >&2 || code=$?
report facts.json
report verify.json
exit "$code"
"""


DOCTOR_COMPONENT, VERIFY_COMPONENT = "doctor", "verify"
"""The components: names of folders, ends of names, and labels."""

GPU_NODE_LABELS = {
    Vendor.NVIDIA: ("nvidia.com/gpu.present", "true"),
    Vendor.ROCM: ("feature.node.kubernetes.io/amd-gpu", "true"),
}
"""Labels of nodes with a GPU. Sources: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
and https://github.com/ROCm/gpu-operator (the rule for Node Feature Discovery)"""

MAX_PROOF_S = 3600
"""Longest life of a proof's pod: pulling the image, 90 s for the doctor, 1800 s for the proof."""
CHECK_TTL_S = 86400
_MIB = 1 << 20
_PROOF_BYTES, _PROOF_BYTES_PER_GPU = 8 * GIB, 4 * GIB
"""torch with CUDA and the reference on the CPU, and a process for each GPU that adds up over NCCL."""
_PROOF_CPUS = 4


def build_doctor_daemonset(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """A DaemonSet: the doctor on every node with a GPU, without taking one."""
    labels = _labels(task, DOCTOR_COMPONENT)
    spec: Manifest = {
        "selector": {"matchLabels": {INSTANCE_LABEL: labels[INSTANCE_LABEL]}},
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": Commented("100%", "kubectl rollout restart asks all nodes at once.")},
        },
        "template": {"metadata": {"labels": labels}, "spec": _doctor_pod(task, settings)},
    }
    metadata = {"name": _name(task, DOCTOR_COMPONENT), "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}]


def build_verify_job(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """A Job that proves as many nodes as the job would use, each with its GPUs; with their claim where one is asked.

    Sources: https://kubernetes.io/docs/tasks/job/, backoffLimitPerIndex is stable since Kubernetes 1.33:
    https://kubernetes.io/blog/2025/05/13/kubernetes-v1-33-jobs-backoff-limit-per-index-goes-ga/
    """
    nodes = settings.verify_nodes or task.nodes
    labels = _labels(task, VERIFY_COMPONENT)
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": Commented(
            nodes, "Nodes to prove: as many as the job has, unless --verify-nodes says otherwise."
        ),
        "parallelism": nodes,
        "backoffLimitPerIndex": Commented(0, "A proof that failed is an answer, and the other nodes go on."),
        "ttlSecondsAfterFinished": Commented(CHECK_TTL_S, "A day, in which collect.sh reads the logs."),
        "template": {"metadata": {"labels": labels}, "spec": _verify_pod(task, settings)},
    }
    metadata: Manifest = {"name": _name(task, VERIFY_COMPONENT), "labels": labels}
    if settings.queue:
        metadata["labels"] = labels | {QUEUE_LABEL: settings.queue}
        spec = {"suspend": Commented(True, "Kueue starts it: its quota counts these GPUs, too."), **spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return [_own_claim(task, settings), job] if settings.device_class else [job]


def name_check_instance(task: Task, component: str) -> str:
    """Whose the objects and pods are: not the job's, which finds its own pods by that."""
    return f"{task.name}-{component}"


def _labels(task: Task, component: str) -> dict[str, str]:
    return build_labels(task, component) | {INSTANCE_LABEL: name_check_instance(task, component)}


def _name(task: Task, component: str) -> str:
    """The object's name, short enough for a pod's: the component, an index and five letters come behind.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    end = f"-{component}"
    return task.name[: MAX_LABEL_LENGTH - len(f"{end}-9999")].rstrip("-") + end


def _doctor_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    nvidia = task.accelerator.vendor is Vendor.NVIDIA and task.accelerator.count > 0
    variables = [_node_name()]
    if nvidia:
        variables += [
            Commented(
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                "To look at all GPUs and take none. It works where pods get NVIDIA's runtime: by default, or "
                "by --runtime-class nvidia, which GPU Operator 25.10 and later ask for. Where clusters forbid it, the "
                "doctor sees no GPU, and the Job in checks/verify those it is given.",
            ),
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ]
    container = {
        **_container(task, render_doctor_script(), variables),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": Commented(
            {"exec": {"command": ["test", "-e", DONE_MARKER]}, "periodSeconds": 5},
            "Ready means reported: kubectl rollout status waits for every node.",
        ),
    }
    runtime: Manifest = {"runtimeClassName": settings.runtime_class} if settings.runtime_class and nvidia else {}
    places = build_placement(task, settings)
    found: Manifest = {"nodeSelector": _gpu_nodes(task, settings), "tolerations": places["tolerations"]}
    return {**_pod(settings), **runtime, **found, "containers": [container], "volumes": [_reports()]}


def _verify_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    count = task.accelerator.count
    container = _container(task, render_verify_script(is_quick=count < 2), [_node_name()])
    container["resources"] = _proof_resources(task, settings)
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - inside the container
    places = build_placement(task, settings)
    places.pop("affinity", None)
    apart = {
        "labelSelector": {"matchLabels": {INSTANCE_LABEL: name_check_instance(task, VERIFY_COMPONENT)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": Commented(MAX_PROOF_S, "Of each pod, from when it has a node."),
        **_pod(settings),
        **places,
        "affinity": Commented(
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "A node each, however many of them would fit on one.",
        ),
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.device_class:
        spec["resourceClaims"] = [{"name": CLAIM_NAME, "resourceClaimTemplateName": _claim_name(task)}]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": format_quantity(task.shm_bytes)}}
    return {**spec, "containers": [container], "volumes": [_reports(), shm]}


def _proof_resources(task: Task, settings: KubernetesSettings) -> Manifest:
    """The GPUs of the job on one node; of memory what a proof takes, and not what the job would."""
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


def _gpu_nodes(task: Task, settings: KubernetesSettings) -> Manifest | Commented:
    if settings.node_selector or task.accelerator.count == 0:
        return dict(parse_node_selector(settings))
    label = GPU_NODE_LABELS[task.accelerator.vendor]
    return Commented(
        dict([label]), "Nodes with a GPU, as their discovery labels them; --node-selector takes its place."
    )


def _claim_name(task: Task) -> str:
    return f"{_name(task, VERIFY_COMPONENT)}-gpu"


def _own_claim(task: Task, settings: KubernetesSettings) -> Manifest:
    """A template of its own, so that removing the proof leaves the job's."""
    return build_claim_template(task, settings) | {"metadata": {"name": _claim_name(task)}}


def _pod(settings: KubernetesSettings) -> Manifest:
    """What the pods of both have: nothing of the cluster, nothing of the node, no rights."""
    found: Manifest = {
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": Commented(False, "It asks nothing of the cluster."),
        "enableServiceLinks": False,
        "securityContext": SECURE_POD,
    }
    if settings.service_account:
        found["serviceAccountName"] = settings.service_account
    if settings.pull_secret:
        found["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return found


def _container(task: Task, script: str, variables: list[Manifest | Commented]) -> Manifest:
    return {
        "name": "check",
        "image": task.image,
        "command": ["sh", "-c", escape_variables(script)],
        "env": variables,
        "workingDir": REPORTS_FOLDER,
        "securityContext": SECURE_CONTAINER,
        "volumeMounts": [{"name": "reports", "mountPath": REPORTS_FOLDER}],
    }


def _node_name() -> Manifest | Commented:
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    return Commented({"name": "NODE_NAME", "valueFrom": field}, "Reports name no machine: this says whose each is.")


def _reports() -> Manifest:
    return {"name": "reports", "emptyDir": {"sizeLimit": format_quantity(256 * _MIB)}}


# The folder checks: two sets of manifests, each for `kubectl apply -k`, and the script that fetches their reports.

CHECKS_FOLDER = "checks"
COLLECT_SCRIPT = f"{CHECKS_FOLDER}/collect.sh"


def render_node_checks(task: Task, settings: KubernetesSettings, folder: str) -> list[Artifact]:
    """The files, relative to `folder`, which is where they will lie as seen from the project."""
    read = "The doctor on every node with a GPU. It takes none, and stays until it is removed."
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
    """How to ask the nodes before the job does."""
    where = shlex.quote(f"{folder}/{CHECKS_FOLDER}")
    return (f"to check the nodes first: kubectl apply -k {where}/{DOCTOR_COMPONENT}, then sh {where}/collect.sh",)
