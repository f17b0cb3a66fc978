"""devcontainer.json and what stands beside it for single editors."""

import json
from collections.abc import Iterator

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.choices import Choices
from devkit.render.editors import (
    EditorReport,
    chosen_editors,
    customizations,
    editor_reports,
    smallest_machine,
)
from devkit.render.names import slug_of
from devkit.render.profiles import labelled_ports
from devkit.render.resources import rendered
from devkit.render.settings import FromCheckout, FromIndex, Settings
from devkit.solver.model import Plan

_TOKEN_PAGE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens


def editor_artifacts(_plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What editors and their clouds read. Raises DevkitError for an editor or a profile that does not exist."""
    yield Artifact.text(f"{FOLDER}/devcontainer.json", devcontainer_json(settings))
    if "daytona" in settings.editors:
        script = rendered("devcontainer/daytona/snapshot.sh.j2", devkit_version=__version__, slug=settings.slug)
        yield Artifact.text(f"{FOLDER}/daytona/snapshot.sh", script, 0o755)


def reports_of(choices: Choices) -> tuple[EditorReport, ...]:
    """What each editor that was chosen by name makes of these files; () when none was."""
    settings = Settings(
        name=choices.name,
        slug=slug_of(choices.name),
        source=FromCheckout() if choices.install_from else FromIndex(__version__),
        editors=choices.editors,
        profiles=choices.profiles,
    )
    return editor_reports(choices.editors, devcontainer_document(settings)) if choices.editors else ()


def devcontainer_json(settings: Settings) -> str:
    """The text of devcontainer.json."""
    return json.dumps(devcontainer_document(settings), indent=2, ensure_ascii=False) + "\n"


def devcontainer_document(settings: Settings) -> dict[str, object]:
    """devcontainer.json. It asks for no GPU itself: the Compose overlays do, and asking twice fails."""
    editors = chosen_editors(settings.editors)
    document: dict[str, object] = {
        "name": settings.name,
        "dockerComposeFile": "docker-compose.yml",
        "service": "dev",
        "workspaceFolder": f"/workspaces/{settings.slug}",
        "remoteUser": "dev",
        # The image is built with the host user's ids already; the editor's own sync would miss the venv.
        "updateRemoteUserUID": False,
        "hostRequirements": smallest_machine(editors),
        "portsAttributes": labelled_ports(settings.profiles),
        "initializeCommand": initialize_command(FOLDER),
        **_lifecycle(settings),
        "shutdownAction": "stopCompose",
        "secrets": {
            "HF_TOKEN": {
                "description": "Token for gated or private models on the Hugging Face hub.",
                "documentationUrl": _TOKEN_PAGE,
            }
        },
        "customizations": customizations(editors, settings.profiles),
    }
    return {key: value for key, value in document.items() if value != {}}


def initialize_command(folder: str, argument: str = "", *, env_path: str = f"{FOLDER}/.env") -> str:
    """What looks for a GPU on the host, before the container starts. `argument` is for the script, "" for none.

    `||` and `echo` mean the same to sh and to cmd.exe: a Windows host without sh uses its own PowerShell.
    """
    given = f" {argument}" if argument else ""
    return (
        f"sh {folder}/gpu.sh{given} || "
        f"powershell -NoProfile -ExecutionPolicy Bypass -File {folder}/gpu.ps1{given} || "
        f"echo devkit: this host has no shell that devkit knows, so choose a GPU with DEVKIT_GPU in {env_path}"
    )


def _lifecycle(settings: Settings) -> dict[str, object]:
    """Commands by the moment they belong to; each has a name, which editors show while it runs.

    The project itself is installed in updateContentCommand: every editor waits for that one unless told otherwise, and
    a cloud's prebuilt container holds what it did. The doctor looks at every start, because a start can change the GPU.
    """
    commands: dict[str, object] = {}
    if project := _project_install(settings):
        commands["updateContentCommand"] = {"project": project}
    commands["postStartCommand"] = {"doctor": "devkit doctor || true"}
    return commands


def _project_install(settings: Settings) -> str:
    """How the project itself gets into the environment, editable; "" when it is no package.

    Its packages are in the image already. What builds it comes from the index, so not where there is none.
    """
    if isinstance(settings.source, FromCheckout):
        return "pip install --editable '.[workload,dev]'"
    if settings.dependencies.builds_itself and not settings.uses_wheelhouse:
        return "pip install --no-deps --editable ."
    return ""
