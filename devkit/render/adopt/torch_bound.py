"""The plan's torch for lifecycle commands that install torch: environment variables of pip and uv, and a constraints file.

The commands themselves stay as they are.
Source: pip, "Environment Variables" and "Constraints Files"; uv, "Environment variables"; containers.dev, `containerEnv`.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping

from devkit import __version__
from devkit.doctor.checks.project.containers import ProjectContainer
from devkit.render.adopt.gpu_overlay import OVERLAY_FOLDER
from devkit.render.files import Artifact
from devkit.render.splice.document import set_value
from devkit.render.splice.jsonc import JSONC, load_jsonc
from devkit.solver.plan import Plan

CONSTRAINTS_PATH = f"{OVERLAY_FOLDER}/constraints.txt"
_LOCAL_FOLDER, _LOCAL_NAME = "${localWorkspaceFolder}", "${localWorkspaceFolderBasename}"
_SUDO = re.compile(r"\bsudo\s+(?:-\S+\s+)*(?:\S*python\S*\s+-m\s+)?(?:uv|pip)\b")
_BIND = re.compile(r"(?:^|,)(?:target|dst)=([^,]+)")


def render_constraints(plan: Plan) -> Artifact:
    """Render the constraints file."""
    return Artifact.from_text(
        CONSTRAINTS_PATH,
        f"# Written by devkit {__version__}: the torch that fits the machines of devkit.lock, from {plan.torch_index}\n"
        f"torch=={plan.torch}+{plan.variant}\n",
    )


def build_environment(plan: Plan, tools: Iterable[str], folder: str) -> dict[str, str]:
    """Build the variables by which these tools take the plan's torch; `folder` is the project's in the container."""
    path = f"{folder}/{CONSTRAINTS_PATH}"
    environment: dict[str, str] = {}
    if "pip" in tools:
        environment |= {"PIP_CONSTRAINT": path, "PIP_EXTRA_INDEX_URL": plan.torch_index}
    if "uv" in tools:
        environment |= {"UV_CONSTRAINT": path, "UV_TORCH_BACKEND": plan.variant}
    return environment


def find_project_folder(container: ProjectContainer, document: Mapping[str, object], *, name: str) -> str | None:
    """Find the project's folder in the container; None where the files do not show it, or pip could not read its name.

    `document` is devcontainer.json, `name` that of the project's folder on the host.
    """
    folder: str | None = "${containerWorkspaceFolder}"
    shown = str(document.get("workspaceFolder", f"/workspaces/{name}"))
    if container.is_compose:
        files = container.dev.compose_files if container.dev else ()
        base = posixpath.dirname(files[0]) if files else "."
        targets = [
            each.target.rstrip("/")
            for each in container.mounts
            if each.source == _LOCAL_FOLDER or posixpath.normpath(posixpath.join(base, each.source)) == "."
        ]
        folder = targets[0] if targets else ""
        shown = folder.replace(_LOCAL_NAME, name)
    elif "workspaceMount" in document:
        mount = str(document["workspaceMount"])
        found = _BIND.search(mount)
        folder = found[1].rstrip("/") if found and f"source={_LOCAL_FOLDER}," in mount else ""
        shown = folder.replace(_LOCAL_NAME, name)
    # pip and uv split these variables at blanks.
    return folder if folder and not re.search(r"\s", shown) else None


def bind_torch(text: str, environment: Mapping[str, str]) -> str | None:
    """Set the variables in devcontainer.json; None where it has other values for them, and where sudo drops them.

    Raises: CannotSplice for a layout that does not allow it.
    """
    document = load_jsonc(text)
    if _SUDO.search(text):
        return None
    present = {**(document.get("remoteEnv") or {}), **(document.get("containerEnv") or {})}
    is_ours = any(str(value).endswith(f"/{CONSTRAINTS_PATH}") for value in present.values())
    if not is_ours and present.keys() & environment.keys():
        return None
    for name, value in environment.items():
        text = set_value(text, ("containerEnv", name), value, JSONC)
    return text
