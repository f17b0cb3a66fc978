"""The dev container Feature: one line in any devcontainer.json brings devkit, and its doctor at every start.

The folder holds a wheel of the devkit that wrote it, so that publishing it needs no package index to have that release.
Source: https://containers.dev/implementors/features/
"""

import json
from collections.abc import Iterator

from devkit.probe.machine.interpreter import IMAGE_ENVIRONMENT
from devkit.release import DOCUMENTATION_URL, __version__
from devkit.render.container.settings import FromWheel
from devkit.render.files import Artifact
from devkit.render.templates import render_template

FEATURE_ID = "devkit"
START_SCRIPT = "/usr/local/share/devkit/start.sh"
_EXECUTABLE = 0o755

_OPTIONS = {
    "check": {
        "type": "boolean",
        "default": True,
        "description": "Run `devkit doctor` each time the container starts; it never prevents the container from starting.",
    },
    "index": {
        "type": "string",
        "default": "",
        "description": "Package index for devkit's own requirements. If empty, PyPI or the index configured for pip is used.",
    },
}


def render_devcontainer_feature(wheel: FromWheel) -> Iterator[Artifact]:
    """Render the Feature's folder, named by its id."""
    metadata = {
        "id": FEATURE_ID,
        "version": __version__,
        "name": "devkit: diagnosis and proof of GPU dev containers",
        "description": "Reports at every start whether the GPU works in this container and, if not, the cause and the fix.",
        "documentationURL": f"{DOCUMENTATION_URL}/guides/dev-container/",
        "options": _OPTIONS,
        # No installsAfter: the dev container CLI would ask ghcr.io for each, and fail where that is not reachable.
        "postStartCommand": START_SCRIPT,
    }
    install = render_template("feature/install.sh.j2", folder=IMAGE_ENVIRONMENT, script=START_SCRIPT)
    yield Artifact.from_text(f"{FEATURE_ID}/devcontainer-feature.json", json.dumps(metadata, indent=4) + "\n")
    yield Artifact.from_text(f"{FEATURE_ID}/install.sh", install, mode=_EXECUTABLE)
    yield Artifact(f"{FEATURE_ID}/{wheel.filename}", wheel.content)
