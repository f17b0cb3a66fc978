"""The dev container as a workspace: a Job that people enter by kubectl, or a pod for DevPod or Coder; home and caches survive.

A Job and no StatefulSet, which never ends: when it is idle, it gives its GPU back. Both start a pod anew elsewhere.
For Coder it is a template: Terraform, with the pod in Terraform's JSON, made of the same structure.
Sources: https://coder.com/docs/admin/templates/creating-templates,
https://registry.terraform.io/providers/hashicorp/kubernetes/latest/docs/resources/pod_v1
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from devkit.errors import DevkitError
from devkit.export.kubernetes.batch_job import render_batch_job
from devkit.export.kubernetes.kustomize import QUEUE_LABEL, render_folder
from devkit.export.kubernetes.manifest import COMPONENT_LABEL, Commented, Manifest, render_yaml, strip_comments
from devkit.export.kubernetes.pod import build_container, build_pod_template
from devkit.export.kubernetes.resources import build_claim_template, format_quantity
from devkit.export.kubernetes.settings import KubernetesSettings, WorkspaceEntry
from devkit.export.kubernetes.storage import build_container_security, build_new_claims
from devkit.export.targets import ExportContext, TargetFiles
from devkit.export.task import COMPILE_CACHE, HUB_CACHE, TOKEN_FOLDER, Task, Volume
from devkit.export.values import parse_duration, parse_size, validate_dns_label
from devkit.export.workspace import HOME_FOLDER, WorkspaceRole, build_workspace, plan_home
from devkit.formats.jsonc import format_json
from devkit.release import __version__
from devkit.render.container.devcontainer import build_devcontainer_document
from devkit.render.files import Artifact
from devkit.render.templates import render_template

FOLDER = "workspace"
ENDED_TTL_S = 60
"""The time after which a workspace that has ended is removed, so that `kubectl apply` starts it again."""
_TOKEN_FOLDER = TOKEN_FOLDER.removeprefix(HOME_FOLDER)
_SEED_HOME = f"[ -e /seed/.devkit-home ] || {{ cp -R {HOME_FOLDER}/. /seed/ && mkdir -p /seed{_TOKEN_FOLDER} && : >/seed/.devkit-home; }}"
"""Copies the image's home once. The folder below which a Secret is mounted would else be created by root."""
_OF_COMPOSE = ("dockerComposeFile", "service", "initializeCommand", "shutdownAction", "hostRequirements")


def render_workspace(task: Task, settings: KubernetesSettings, context: ExportContext) -> TargetFiles:
    """Render the workspace of the job `task`. Raises DevkitError for what no cluster accepts."""
    workspace = build_workspace(task, idle=settings.idle)
    workspace = replace(workspace, volumes=plan_home(workspace, size=settings.workspace_size))
    validate_dns_label(workspace.name, "--name")
    return _RENDERERS[settings.workspace or WorkspaceEntry.KUBECTL](workspace, settings, context)


def _build_job(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build a Job that waits."""
    job: Manifest
    (job,) = render_batch_job(task, settings).files["job.yaml"]
    spec: Manifest = job["spec"]
    pod = spec["template"]
    for labels in (job["metadata"]["labels"], pod["metadata"]["labels"]):
        labels[COMPONENT_LABEL] = FOLDER
    if settings.queue:
        job["metadata"]["labels"][QUEUE_LABEL] = settings.queue
        spec["suspend"] = Commented(True, "Kueue starts it once its quota covers it.")
    spec["ttlSecondsAfterFinished"] = Commented(
        ENDED_TTL_S, "Then `kubectl apply -k` starts it again: an ended Job would stay as it is."
    )
    (home,) = (each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == HOME_FOLDER)
    seed = {
        "name": "home",
        "image": task.image,
        "command": ["sh", "-c", _SEED_HOME],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": build_container_security(task, settings),
        "volumeMounts": [{**home, "mountPath": "/seed"}],
    }
    why = "The image's own home, once: the volume hides it."
    pod["spec"] = {"initContainers": Commented([seed], why), **pod["spec"]}
    return job


def _find_home(task: Task) -> Volume:
    return next(each for each in task.volumes if each.role is WorkspaceRole.HOME)


def _render_job(task: Task, settings: KubernetesSettings, context: ExportContext) -> TargetFiles:
    """Render the Job, and the claim of its home."""
    files = {"job.yaml": [_build_job(task, settings)]}
    if settings.device_class:
        files["gpu.yaml"] = [build_claim_template(task, settings)]
    about = "The dev container, to work in. It ends, and gives its GPU back, when it is idle."
    artifacts = render_folder(FOLDER, about, files, settings)
    claim = build_new_claims(replace(task, volumes=(replace(_find_home(task), source=""),)), settings)
    about = "Home, project and caches. Apart from the workspace, so that `kubectl delete -k` of it leaves them."
    artifacts += render_folder(f"{FOLDER}/storage", about, {"claims.yaml": claim}, settings)
    kubectl = f"kubectl --namespace {settings.namespace}" if settings.namespace else "kubectl"
    where, name = shlex.quote(f"{context.folder}/{FOLDER}"), f"job/{task.name}"
    installs: Any = build_devcontainer_document(context.project, context.plan.compiled).get("updateContentCommand", {})
    steps = [
        f"kubectl apply -k {where}/storage",
        f"kubectl apply -k {where}",
        f"{kubectl} wait --for=jsonpath='{{.status.ready}}'=1 --timeout=15m {name}",
        f"tar --create . | {kubectl} exec --stdin {name} -- tar --extract --directory {task.workspace}",
        *(f"{kubectl} exec {name} -- sh -c {shlex.quote(each)}" for each in installs.values()),
        f"{kubectl} exec --stdin --tty {name} -- bash",
    ]
    return TargetFiles(tuple(artifacts), tuple(steps), (f"the workspace ends after {settings.idle} without work",))


def _render_devpod(task: Task, settings: KubernetesSettings, context: ExportContext) -> TargetFiles:
    """Render what DevPod's provider lacks: a devcontainer.json without Compose, and GPU, memory and taints of the pod.

    Of the container of a template it takes resources, variables and mounts, and it has a claim of its own.
    Source: https://github.com/loft-sh/devpod-provider-kubernetes/blob/main/pkg/kubernetes/run.go
    """
    own = tuple(each for each in task.volumes if each.source != f"{task.name}-home")
    # The login lasts, since home does. The Secret would be mounted into a home that is not there yet.
    variables = tuple(each for each in task.environment if each[0] != "HF_TOKEN_PATH")
    task = replace(task, volumes=own, environment=variables, needs_token=False)
    container = build_container(task, settings, "devpod", [])
    kept = {name: container[name] for name in ("name", "env", "resources", "volumeMounts")}
    template = build_pod_template(task, settings, kept, restart="Never")
    for each in (kept, template["spec"]):
        field = "volumeMounts" if each is kept else "volumes"
        each[field] = [at for at in each[field] if strip_comments(at)["name"] != "compile-cache"]
    template["metadata"]["labels"][COMPONENT_LABEL] = FOLDER
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": task.name, **template["metadata"]}}
    heading = "Written by `devkit export kubernetes --workspace devpod`. DevPod adds image, command and its own volume."
    mounts = {"home": HOME_FOLDER, "models": HUB_CACHE, "compiled": COMPILE_CACHE}
    taken = {each.path for each in own}
    document = build_devcontainer_document(context.project, context.plan.compiled)
    document = {name: value for name, value in document.items() if name not in _OF_COMPOSE} | {
        "image": task.image,
        "mounts": [f"source={name},target={path},type=volume" for name, path in mounts.items() if path not in taken],
    }
    artifacts = (
        Artifact.from_text(f"{FOLDER}/devpod.yaml", render_yaml([pod | {"spec": template["spec"]}], heading=heading)),
        Artifact.from_text(f"{FOLDER}/devcontainer.json", format_json(document, width=120) + "\n"),
    )
    where = f"{context.folder}/{FOLDER}"
    options = {
        "DISK_SIZE": format_quantity(parse_size(settings.workspace_size, "--workspace-size")),
        "INACTIVITY_TIMEOUT": _format_idle(settings),
        "KUBERNETES_NAMESPACE": settings.namespace,
        "STORAGE_CLASS": settings.storage_class,
    }
    words = ["devpod", "up", ".", "--provider", "kubernetes", "--devcontainer-path", f"{where}/devcontainer.json"]
    for name, value in options.items():
        words += ["--provider-option", f"{name}={value}"] if value else []
    notes = (
        "DevPod works as root in the pod, and as dev for you: a namespace with the restricted Pod Security Standard refuses it",
        "models that need a token: hf auth login in the workspace, once",
    )
    # The provider runs elsewhere.
    template_option = f'--provider-option POD_MANIFEST_TEMPLATE="$PWD"/{shlex.quote(f"{where}/devpod.yaml")}'
    return TargetFiles(artifacts, ("devpod provider add kubernetes", f"{shlex.join(words)} {template_option}"), notes)


def _render_coder(task: Task, settings: KubernetesSettings, context: ExportContext) -> TargetFiles:
    """Render a template of Coder, which stops workspaces by a schedule of its own."""
    pod = _build_job(task, settings)["spec"]["template"]
    artifacts = render_coder_template(task, settings, pod, _find_home(task), FOLDER)
    where, name = shlex.quote(f"{context.folder}/{FOLDER}"), task.name
    idle = _format_idle(settings)
    steps = (
        f"coder templates push {name} --directory {where}",
        f"coder templates edit {name} --default-ttl {idle} --activity-bump {idle}",
        f"coder create --template {name} {name}",
    )
    return TargetFiles(artifacts, steps, ("Coder counts connections, and no processes, as work in a workspace",))


def _format_idle(settings: KubernetesSettings) -> str:
    """Format the time for programs in Go, which know no days."""
    return f"{parse_duration(settings.idle, '--idle')}s"


_RENDERERS: dict[WorkspaceEntry, Callable[[Task, KubernetesSettings, ExportContext], TargetFiles]] = {
    WorkspaceEntry.KUBECTL: _render_job,
    WorkspaceEntry.DEVPOD: _render_devpod,
    WorkspaceEntry.CODER: _render_coder,
}


_HOME_CLAIM = "${kubernetes_persistent_volume_claim_v1.home.metadata[0].name}"
_BLOCKS = {"containers": "container", "initContainers": "init_container", "volumes": "volume"}
_BLOCKS |= {"volumeMounts": "volume_mount", "tolerations": "toleration"}
_MAPS = ("labels", "annotations", "limits", "requests", "nodeSelector")
"""Fields whose keys are the user's, and stay as they are."""


def render_coder_template(
    task: Task, settings: KubernetesSettings, pod: Manifest, home: Volume, folder: str
) -> tuple[Artifact, ...]:
    """Render main.tf and pod.tf.json of the workspace's pod. Raises DevkitError for what the provider lacks.

    Args:
        task: the workspace.
        settings: the target's settings.
        pod: metadata and spec of the pod.
        home: the volume for home and caches.
        folder: the folder of both files.
    """
    if settings.device_class:
        raise DevkitError(
            "Terraform's provider has no resource claims: --device-class cannot be used with --workspace coder",
            "Leave it out: the GPU's resource is requested then.",
        )
    metadata, spec = strip_comments(pod["metadata"]), strip_comments(pod["spec"])
    body = {"metadata": _to_terraform(metadata), "spec": _to_terraform(spec)}
    body["metadata"] |= {"name": "${local.name}"} | ({"namespace": settings.namespace} if settings.namespace else {})
    (container,) = body["spec"]["container"]
    container["command"] = ["sh", "-c", "${coder_agent.main.init_script}"]
    container["env"].append({"name": "CODER_AGENT_TOKEN", "value": "${coder_agent.main.token}"})
    for volume in body["spec"]["volume"]:
        claim = volume.get("persistent_volume_claim", {})
        if claim.get("claim_name") == home.source:
            claim["claim_name"] = _HOME_CLAIM
    document = {
        "resource": {"kubernetes_pod_v1": {"main": {"count": "${data.coder_workspace.me.start_count}", **body}}}
    }
    main = render_template(
        "kubernetes/coder.tf.j2",
        devkit_version=__version__,
        workspace=task.workspace,
        namespace=settings.namespace,
        storage_class=settings.storage_class,
        size=format_quantity(home.size_bytes),
    )
    return (
        Artifact.from_text(f"{folder}/main.tf", main),
        Artifact.from_text(f"{folder}/pod.tf.json", format_json(document, width=120) + "\n"),
    )


def _to_terraform(value: Any, *, is_map: bool = False) -> Any:  # noqa: ANN401 - any value of a manifest
    """Return a structure of the API as the provider names it: snake_case, a block for each of a list, modes in octal."""
    if isinstance(value, Mapping):
        found = {}
        for key, each in value.items():
            name = key if is_map else _BLOCKS.get(key) or re.sub(r"[A-Z]", lambda at: f"_{at[0].lower()}", key)
            found[name] = f"0{each:o}" if name == "default_mode" else _to_terraform(each, is_map=key in _MAPS)
        return found
    if isinstance(value, list):
        return [_to_terraform(each) for each in value]
    return value.replace("${", "$${").replace("%{", "%%{") if isinstance(value, str) else value
