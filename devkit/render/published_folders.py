"""Folders that can be published: dev container Templates, which are devkit's own output with options, and the Feature.

Whoever applies a Template gets its text with each option's value put in, and nothing else: there are no conditions
and nothing is solved. So there is one Template for each kind of machine, and it holds what `devkit init` writes.
Source: https://containers.dev/implementors/templates/
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.probe.machine.interpreter import IMAGE_ENVIRONMENT
from devkit.release import DOCUMENTATION_URL, __version__
from devkit.render.changes import Action, FileChange, compute_change
from devkit.render.container.settings import ContainerSettings, DevkitSource, FromIndex, FromWheel
from devkit.render.devkit_lock import LOCK_PATH, render_lock
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, render_devkit_toml
from devkit.render.files import Artifact
from devkit.render.project import render_devcontainer
from devkit.render.templates import render_template
from devkit.solver.plan import Machine, Plan
from devkit.text import format_count

# A dev container Feature: one line in any devcontainer.json brings devkit, and its doctor at every start.
#
# The folder holds a wheel of the devkit that wrote it, so that publishing it needs no package index to have that release.
# Source: https://containers.dev/implementors/features/

FEATURE_ID = "devkit"
START_SCRIPT = "/usr/local/share/devkit/start.sh"
_EXECUTABLE = 0o755

_OPTIONS = {
    "check": {
        "type": "boolean",
        "default": True,
        "description": "Run `devkit doctor` each time the container starts; it never keeps the container from starting.",
    },
    "index": {
        "type": "string",
        "default": "",
        "description": "Package index for what devkit itself needs. Empty: PyPI, or what pip is set up to use.",
    },
}


def render_devcontainer_feature(wheel: FromWheel) -> Iterator[Artifact]:
    """Render the Feature's folder, named by its id."""
    metadata = {
        "id": FEATURE_ID,
        "version": __version__,
        "name": "devkit: diagnosis and proof of GPU dev containers",
        "description": "Says at every start whether the GPU works in this container, and if not, why and what to do.",
        "documentationURL": f"{DOCUMENTATION_URL}/guides/dev-container/",
        "options": _OPTIONS,
        # No installsAfter: the dev container CLI would ask ghcr.io for each, and fail where that is not reachable.
        "postStartCommand": START_SCRIPT,
    }
    install = render_template("feature/install.sh.j2", folder=IMAGE_ENVIRONMENT, script=START_SCRIPT)
    yield Artifact.from_text(f"{FEATURE_ID}/devcontainer-feature.json", json.dumps(metadata, indent=4) + "\n")
    yield Artifact.from_text(f"{FEATURE_ID}/install.sh", install, mode=_EXECUTABLE)
    yield Artifact(f"{FEATURE_ID}/{wheel.filename}", wheel.content)


METADATA_PATH = "devcontainer-template.json"


@dataclass(frozen=True)
class DevcontainerTemplate:
    """A Template by the id of its folder, and the settings with which `devkit init` writes the same files."""

    id: str
    name: str
    description: str
    settings: ProjectSettings


DEVCONTAINER_TEMPLATES = (
    DevcontainerTemplate(
        "pytorch-cuda",
        "PyTorch with CUDA, by devkit",
        "Fine-tune language models on NVIDIA GPUs from Turing to Blackwell; starts on machines without one, too.",
        ProjectSettings(
            vendor="nvidia",
            driver="580.65.06",
            gpus=("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"),
            machine="x86_64",
            platform="linux",
        ),
    ),
    DevcontainerTemplate(
        "pytorch-rocm",
        "PyTorch with ROCm, by devkit",
        "Fine-tune language models on AMD GPUs; starts on machines without one, too.",
        ProjectSettings(vendor="rocm", machine="x86_64", platform="linux"),
    ),
    DevcontainerTemplate(
        "pytorch-cpu",
        "PyTorch for the CPU, by devkit",
        "Develop and test fine-tuning of language models without a GPU.",
        ProjectSettings(vendor="cpu", machine="x86_64", platform="linux"),
    ),
)
"""Every Template, in the order in which they are listed."""

TEMPLATE_OPTIONS = {
    "projectName": ("my-project", "The project's name, as editors show it. No quotes, backslashes, $ or backticks."),
    "projectFolder": ("my-project", "The project's folder inside, and the front of container names: a-z, 0-9 and -."),
}
"""Option -> (its default, what it means)."""


def find_template(wanted: str) -> DevcontainerTemplate:
    """Find the Template with this id. Raises DevkitError for an unknown id."""
    found = next((template for template in DEVCONTAINER_TEMPLATES if template.id == wanted), None)
    if found is None:
        raise DevkitError(
            f"there is no Template {wanted!r}", f"Choose among {', '.join(each.id for each in DEVCONTAINER_TEMPLATES)}."
        )
    return found


def render_devcontainer_template(
    template: DevcontainerTemplate, plan: Plan, source: DevkitSource, machines: tuple[Machine, ...] = ()
) -> Iterator[Artifact]:
    """Render the Template's folder: its metadata, and devkit's files with options in the place of their values."""
    usual = {option: default for option, (default, _) in TEMPLATE_OPTIONS.items()}
    marked = {option: f"${{templateOption:{option}}}" for option in TEMPLATE_OPTIONS}
    files = {artifact.path: artifact for artifact in _render_files(template, plan, source, machines, marked)}
    # The lock's ids are of the files with the defaults in them: it has no option.
    files[LOCK_PATH] = next(
        each for each in _render_files(template, plan, source, machines, usual) if each.path == LOCK_PATH
    )
    yield Artifact.from_text(f"{template.id}/{METADATA_PATH}", _render_metadata(template))
    for artifact in files.values():
        yield replace(artifact, path=f"{template.id}/{artifact.path}")


def compute_template_changes(root: Path, artifacts: Iterable[Artifact], *, force: bool) -> tuple[FileChange, ...]:
    """Compute the changes that write these folders into `root`. Reads the disk, writes nothing.

    Raises: DevkitError without `force`, when a file would be replaced.
    """
    changes = tuple(compute_change(root, artifact) for artifact in artifacts)
    replaced = [change.path for change in changes if change.action is Action.UPDATE]
    if replaced and not force:
        raise DevkitError(
            f"{format_count(len(replaced), 'file')} there would be replaced, among them {replaced[0]}",
            "Pass --force to replace what another devkit wrote, or somebody changed.",
        )
    return changes


def select_template_source(source: DevkitSource) -> DevkitSource:
    """Select the source of devkit in a Template: options are put into every file as text, so it holds no wheel."""
    return FromIndex(__version__) if isinstance(source, FromWheel) else source


def _render_files(
    template: DevcontainerTemplate,
    plan: Plan,
    source: DevkitSource,
    machines: tuple[Machine, ...],
    values: dict[str, str],
) -> Iterator[Artifact]:
    project_settings = replace(template.settings, name=values["projectName"])
    settings = ContainerSettings(name=project_settings.name, slug=values["projectFolder"], source=source)
    artifacts = render_devcontainer(plan, settings)
    yield from artifacts
    yield render_lock(plan, artifacts, machines)
    yield Artifact.from_text(DEVKIT_TOML, render_devkit_toml(project_settings, None))


def _render_metadata(template: DevcontainerTemplate) -> str:
    options = {
        option: {"type": "string", "description": meaning, "default": default, "proposals": [default]}
        for option, (default, meaning) in TEMPLATE_OPTIONS.items()
    }
    document = {
        "id": template.id,
        "version": __version__,
        "name": template.name,
        "description": template.description,
        "licenseURL": "https://spdx.org/licenses/Apache-2.0.html",
        "options": options,
        "platforms": ["Python"],
        "keywords": ["gpu", "pytorch", "fine-tuning", "lora", template.settings.vendor],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
