"""devcontainer.json: what editors read."""

import json
from collections.abc import Iterator

from devkit.render.artifact import FOLDER, Artifact
from devkit.render.settings import FromCheckout, Settings
from devkit.solver.model import Plan

_INITIALIZE = (
    "sh .devcontainer/gpu.sh || "
    "echo devkit: this host has no POSIX shell, so choose a GPU with DEVKIT_GPU in .devcontainer/.env"
)
"""`||` and `echo` mean the same to sh and to cmd.exe, so a Windows host without sh starts too."""

_TOKEN_PAGE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens


def editor_artifacts(_plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What editors and their clouds read."""
    yield Artifact.text(f"{FOLDER}/devcontainer.json", devcontainer_json(settings))


def devcontainer_json(settings: Settings) -> str:
    """devcontainer.json. It asks for no GPU itself: the Compose overlays do, and asking twice fails."""
    document: dict[str, object] = {
        "name": settings.name,
        "dockerComposeFile": "docker-compose.yml",
        "service": "dev",
        "workspaceFolder": f"/workspaces/{settings.slug}",
        "remoteUser": "dev",
        # The image is built with the host user's ids already; the editor's own sync would miss the venv.
        "updateRemoteUserUID": False,
        "initializeCommand": _INITIALIZE,
    }
    if isinstance(settings.source, FromCheckout):
        document["postCreateCommand"] = "pip install --editable '.[workload,dev]'"
    document["postStartCommand"] = "devkit doctor || true"
    document["shutdownAction"] = "stopCompose"
    document["secrets"] = {
        "HF_TOKEN": {
            "description": "Token for gated or private models on the Hugging Face hub.",
            "documentationUrl": _TOKEN_PAGE,
        }
    }
    document["customizations"] = {
        "vscode": {
            "extensions": ["ms-python.python"],
            "settings": {"python.defaultInterpreterPath": "/opt/venv/bin/python"},
        }
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
