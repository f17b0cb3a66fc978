"""Projects written down as files, read as devkit reads them, and put onto a machine."""

import json

from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from tests.doctor.machines import changed, healthy

DEV = ".devcontainer/devcontainer.json"
DOCKERFILE = ".devcontainer/Dockerfile"
COMPOSE = ".devcontainer/compose.yaml"

GOOD = {"build": {"dockerfile": "Dockerfile"}, "runArgs": ["--gpus", "all", "--shm-size=8g"], "remoteUser": "dev"}
IMAGE = """\
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y gcc libc6-dev
RUN useradd --create-home dev && install --directory --owner=dev /opt/cache
RUN pip install --index-url https://download.pytorch.org/whl/cu128 torch==2.9.1
USER dev
"""
RESERVED = """\
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
"""


def dev(**changes):
    """devcontainer.json with keys replaced; None takes one away. `_` in a name stands for itself."""
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value is not None}, indent=2)


def service(*lines, request=RESERVED, shm="    shm_size: 8gb\n"):
    """A Compose file with one service, dev."""
    return "services:\n  dev:\n    build: .\n" + shm + "".join(f"    {line}\n" for line in lines) + request


def compose_dev(**changes):
    keys = {"dockerComposeFile": "compose.yaml", "service": "dev", "workspaceFolder": "/w", "remoteUser": "dev"}
    return json.dumps(keys | changes, indent=2)


def files_of(**named):
    """The three usual files: dev, image, compose."""
    paths = {"dev": DEV, "image": DOCKERFILE, "compose": COMPOSE}
    return {paths[name]: text for name, text in named.items()}


def read(folder, files):
    """The project that these files make."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return read_project(LocalHost(), project=str(folder))


def on(folder, files, machine=None, **changes):
    """A machine with this project. Changes are named by their path, with __ for the dot."""
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return changed(machine or healthy(), {"project": read(folder, files), **named})
