"""The folder checks: two sets of manifests, each for `kubectl apply -k`, and the script that fetches their reports."""

import shlex
import textwrap

from devkit.export.kubernetes.checks import DOCTOR, VERIFY, doctor_objects, verify_objects
from devkit.export.kubernetes.labelled import INSTANCE
from devkit.export.kubernetes.layout import WRITTEN_BY, folder_files
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Task
from devkit.render.artifact import Artifact
from devkit.render.resources import rendered

FOLDER = "checks"
COLLECT = f"{FOLDER}/collect.sh"


def check_files(task: Task, settings: KubernetesSettings, folder: str) -> list[Artifact]:
    """The files, relative to `folder`, which is where they will lie as seen from the project."""
    read = "The doctor on every node with a GPU. It takes none, and stays until it is removed."
    proved = "A proof on as many nodes as the job has, with their GPUs. It ends by itself."
    script = rendered(
        "kubernetes/collect.sh.j2",
        written_by="\n# ".join(textwrap.wrap(WRITTEN_BY, width=118)),
        name=task.name,
        namespace=f" --namespace {settings.namespace}" if settings.namespace else "",
        instance=INSTANCE,
        checks=shlex.quote(f"{folder}/{FOLDER}"),
    )
    return [
        *folder_files(f"{FOLDER}/{DOCTOR}", read, {"daemonset.yaml": doctor_objects(task, settings)}, settings),
        *folder_files(f"{FOLDER}/{VERIFY}", proved, {"job.yaml": verify_objects(task, settings)}, settings),
        Artifact.text(COLLECT, script, 0o755),
    ]


def check_notes(folder: str) -> tuple[str, ...]:
    """How to ask the nodes before the job does."""
    where = shlex.quote(f"{folder}/{FOLDER}")
    return (f"to check the nodes first: kubectl apply -k {where}/{DOCTOR}, then sh {where}/collect.sh",)
