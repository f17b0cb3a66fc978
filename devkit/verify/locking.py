"""Locks the image: uv finds the hashes of every package, an engine or a registry the digest of the base image."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devkit.errors import DevkitError
from devkit.probe.uv_resolver import build_uv_environment, explain_unreachable, find_uv
from devkit.render.container.image_locks import LockRequirements, render_python_lock
from devkit.render.container.packages import BUILT_FOR_TORCH
from devkit.verify.process import CompletedCommand, Progress, run_streaming

RESOLVE_DEADLINE_S = 600.0
IMAGE_DEADLINE_S = 60.0
_PROJECT_NAME = "devkit-image"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NEXT_PART = re.compile(r"\s*(cause|caused by|hint):", re.IGNORECASE)
_WITHOUT_IMAGE = (
    "Pull the image on a machine with a network, then run this again; or lock only the packages: "
    "devkit init --lock-only python"
)
_NO_NETWORK = (
    "Lock on a machine with a network, from a folder of wheels (devkit init --wheelhouse DIR), or from a mirror (devkit init\n"
    "--set index=URL --set torch_index=URL). Without locks, devkit does not need a network. Nothing was written."
)


@dataclass(frozen=True)
class PackageSources:
    """The sources of wheels: torch's index, the mirror of the package index or "", or a folder instead of both.

    `own` are the project's own indexes, and `bound` the packages that come from one of them alone, as [tool.uv] has both.
    """

    torch_index: str
    index: str = ""
    wheelhouse: Path | None = None
    own: Sequence[Mapping[str, object]] = ()
    bound: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def resolve_lock(
    wanted: LockRequirements, sources: PackageSources, *, progress: Progress, deadline_s: float = RESOLVE_DEADLINE_S
) -> str:
    """Return the text of a lock: every package that `wanted` needs, for each machine, with hashes.

    uv resolves from wheels alone, so no code of a package runs on this machine. Its own settings for mirrors,
    certificates and logins apply. Raises: DevkitError without uv, without an answer in time, and without a solution.
    """
    uv = find_uv()
    if uv is None:
        raise DevkitError(
            "uv is not installed, but only uv can find the packages' hashes",
            "Install it: pip install uv. Or lock only the image: devkit init --lock-only image",
        )
    with tempfile.TemporaryDirectory(prefix="devkit-lock-") as folder:
        project, output = Path(folder), Path(folder, "requirements.txt")
        (project / "pyproject.toml").write_text(_render_project(wanted, sources), encoding="utf-8")
        options = ["--universal", f"--python-version={wanted.python}", "--generate-hashes", "--no-build", "--upgrade"]
        options += ["--annotation-style=line", "--no-header", "--no-progress", "--no-python-downloads"]
        options += ["--index-strategy=unsafe-best-match"] if wanted.variant.startswith("rocm") else []
        options += ["--no-index", f"--find-links={sources.wheelhouse}"] if sources.wheelhouse else []
        command = ["pip", "compile", *options, f"--directory={folder}", f"--output-file={output}", "pyproject.toml"]
        inherited = build_uv_environment()
        done = run_streaming([uv, *command], progress=progress, timeout_s=deadline_s, inherited=inherited)
        if done.code != 0:
            raise _explain_failure(done, deadline_s)
        resolved = output.read_text(encoding="utf-8")
        # The annotations name the requiring project, which exists only here.
        return render_python_lock(wanted, resolved.replace(f"{_PROJECT_NAME} (pyproject.toml)", "the plan"))


def _render_project(wanted: LockRequirements, sources: PackageSources) -> str:
    """Render the pyproject.toml to resolve. torch may come from its index alone, and as few others as possible."""
    import tomlkit

    uv: dict[str, object] = {
        "environments": list(wanted.environments),
        "constraint-dependencies": list(wanted.constraints),
    }
    if not sources.wheelhouse and not wanted.variant:
        uv["index"] = [{"name": "packages", "url": sources.index, "default": True}] if sources.index else []
    elif not sources.wheelhouse:
        # For ROCm the image needs more of it than torch: only there is a Triton that fits.
        is_explicit = not wanted.variant.startswith("rocm")
        torch_index = {"name": "torch", "url": sources.torch_index, "explicit": is_explicit}
        default = [{"name": "packages", "url": sources.index, "default": True}] if sources.index else []
        names = {re.split(r"[^\w.-]", requirement)[0] for requirement in wanted.requirements}
        uv["index"] = [*sources.own, torch_index, *default]
        of_torch = {name: {"index": "torch"} for name in ("torch", *BUILT_FOR_TORCH) if name in names}
        uv["sources"] = {**{name: each for name, each in sources.bound.items() if name in names}, **of_torch}
    project = {
        "name": _PROJECT_NAME,
        "version": "0",
        "requires-python": wanted.requires_python,
        "dependencies": list(wanted.requirements),
    }
    return tomlkit.dumps({"project": project, "tool": {"uv": uv}})


def _explain_failure(done: CompletedCommand, deadline_s: float) -> DevkitError:
    if done.code is None:
        return DevkitError(f"uv found no answer within {deadline_s:.0f} s", _NO_NETWORK)
    lines = [line.rstrip() for line in done.log if line.strip()]
    start = next((index for index, line in enumerate(lines) if line.startswith("error:")), len(lines) - 1)
    end = next((index for index in range(start + 1, len(lines)) if _NEXT_PART.match(lines[index])), len(lines))
    error = " ".join(line.strip() for line in lines[start:end]).removeprefix("error: ") or done.last_line
    if reason := explain_unreachable("\n".join(lines)):
        return DevkitError(f"{reason}: {error}", _NO_NETWORK)
    return DevkitError(f"the packages cannot be locked: {error}", "\n".join(lines[end:]) or "Nothing was written.")


def pin_image(reference: str, *, program: str, deadline_s: float = IMAGE_DEADLINE_S) -> str:
    """Return the image as `reference@sha256:…`: as the engine has it, or else as its registry does.

    `program` is docker or podman. Raises: DevkitError when neither knows the image.
    """
    name, _, digest = reference.partition("@")
    if digest:
        return reference
    if shutil.which(program) is None:
        raise DevkitError(f"{program} is not installed, but devkit needs it for the digest of {name}", _WITHOUT_IMAGE)

    def query(*arguments: str) -> CompletedCommand:
        return run_streaming([program, *arguments, name], timeout_s=deadline_s)

    local = query("image", "inspect", "--format", "{{json .RepoDigests}}")
    if local.code == 0 and (found := _parse_repository_digest(local.out, name)):
        return f"{name}@{found}"
    remote = query("buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}")
    try:
        manifest = json.loads(remote.out or "{}") if remote.code == 0 else {}
        found = str(manifest.get("digest", ""))
    except (ValueError, AttributeError):
        found = ""
    if _DIGEST.fullmatch(found):
        return f"{name}@{found}"
    reason = remote.last_line if remote.code is not None else f"no answer within {deadline_s:.0f} s"
    raise DevkitError(f"neither {program} nor a registry has the digest of {name}: {reason}", _WITHOUT_IMAGE)


def _parse_repository_digest(document: str, name: str) -> str:
    """Return the digest in the JSON list `document` that belongs to the repository of `name`; "" for none."""
    try:
        entries = json.loads(document or "[]") or []
    except ValueError:
        return ""
    repository = re.sub(r":[^:/]*$", "", name)
    pairs = [str(entry).partition("@") for entry in entries]
    own = [digest for found, _, digest in pairs if found == repository or found.endswith(f"/{repository}")]
    return own[0] if own and _DIGEST.fullmatch(own[0]) else ""
