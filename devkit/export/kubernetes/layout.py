"""The folders: base with the job, overlays upon each other, storage and files apart; each for `kubectl apply -k`."""

import json
from collections.abc import Mapping, Sequence

from devkit import __version__
from devkit.export.kubernetes.manifest import Manifest, Noted, bare, yaml_text
from devkit.export.kubernetes.overlays import Overlay
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.render.artifact import Artifact

KUSTOMIZATION = "kustomization.yaml"
WRITTEN_BY = (
    f"Written by devkit {__version__}. To change it, edit [job] and [job.kubernetes] in devkit.toml and run "
    "`devkit export kubernetes` again."
)


def folder_files(
    folder: str, about: str, files: Mapping[str, Sequence[Manifest]], settings: KubernetesSettings
) -> list[Artifact]:
    """A folder of objects with its kustomization."""
    objects = [
        Artifact.text(f"{folder}/{name}", yaml_text(documents, heading=WRITTEN_BY)) for name, documents in files.items()
    ]
    return [kustomization(folder, about, list(files), settings), *objects]


def overlay_files(overlay: Overlay, below: str, settings: KubernetesSettings) -> Artifact:
    """One overlay, upon the folder `below`."""
    patches = []
    for place, operations in overlay.patches:
        target = {"kind": place.kind, "name": place.name}
        patches.append({"target": target, "patch": _patch_text(operations)})
    return kustomization(f"overlays/{overlay.name}", overlay.about, [f"../../{below}"], settings, patches=patches)


def kustomization(
    folder: str,
    about: str,
    resources: Sequence[str],
    settings: KubernetesSettings,
    *,
    patches: Sequence[Manifest] = (),
) -> Artifact:
    """kustomization.yaml of a folder, "" for the topmost."""
    content: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if settings.namespace:
        content["namespace"] = settings.namespace
    order = "As they stand here: a TrainJob whose runtime comes after it is refused."
    content["sortOptions"] = {"order": Noted("fifo", order)}
    content["resources"] = list(resources)
    if patches:
        content["patches"] = list(patches)
    path = f"{folder}/{KUSTOMIZATION}" if folder else KUSTOMIZATION
    return Artifact.text(path, yaml_text([content], heading=f"{WRITTEN_BY}\n{about}"))


def _patch_text(operations: object) -> str:
    """The operations as the text that kustomize wants, the reasons as comments within."""
    reason = ""
    if isinstance(operations, Noted):
        reason, operations = operations.because, operations.value
    lines = [f"# {reason}"] if reason else []
    for each in operations if isinstance(operations, list) else ():
        if isinstance(each, Noted):
            lines.append(f"# {each.because}")
        lines.append(f"- {json.dumps(bare(each))}")
    return "\n".join(lines) + "\n"
