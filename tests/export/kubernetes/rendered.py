"""The files of a job, read back: the objects of every folder, and what a container of each kind of job gets."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from devkit.export.kubernetes import TARGET, KubernetesSettings
from devkit.export.targets import TargetFiles
from devkit.export.task import Task


def made(task: Task, **options: Any) -> TargetFiles:
    """The files of the job."""
    return TARGET.render(task, KubernetesSettings(**options), ".")


def objects(rendered: TargetFiles, folder: str = "") -> list[dict[str, Any]]:
    """All objects of the folder and those below, kustomizations left out."""
    return [
        document
        for artifact in rendered.artifacts
        if artifact.path.startswith(folder)
        and artifact.path.endswith(".yaml")
        and not artifact.path.endswith("kustomization.yaml")
        for document in yaml.safe_load_all(artifact.content)
    ]


def of_job(rendered: TargetFiles) -> list[dict[str, Any]]:
    """The objects of the job itself."""
    return objects(rendered, "job.yaml")


def named(rendered: TargetFiles, kind: str) -> dict[str, Any]:
    """The one object of that kind: the job's own, or else that of another folder."""
    own, others = ([each for each in objects(rendered, folder) if each["kind"] == kind] for folder in ("job.", ""))
    (found,) = own or others
    return found


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template within."""
    if isinstance(value, Mapping):
        if isinstance(value.get("spec"), Mapping) and "containers" in value["spec"]:
            yield dict(value)
        else:
            for each in value.values():
                yield from templates(each)
    elif isinstance(value, list):
        for each in value:
            yield from templates(each)


def job_templates(rendered: TargetFiles) -> list[dict[str, Any]]:
    """The pod templates of the job: one, or a PyTorchJob's two. A TrainJob's is as its runtime says it."""
    return [each for manifest in of_job(rendered) for each in templates(manifest)]


def container(rendered: TargetFiles) -> dict[str, Any]:
    """The first container, with what a TrainJob puts over its runtime's."""
    (found,) = job_templates(rendered)[0]["spec"]["containers"]
    for manifest in of_job(rendered):
        if manifest["kind"] == "TrainJob":
            trainer = manifest["spec"]["trainer"]
            found = found | {name: trainer[name] for name in ("image", "command", "env")}
            found["resources"] = trainer.get("resourcesPerNode") or found["resources"]
    return found
