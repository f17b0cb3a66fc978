"""Asks who knows: uv for the hashes of every package, an engine or a registry for the digest of the base image."""

import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.render.container.image_locks import LockRequirements, render_python_lock
from devkit.render.container.packages import BUILT_FOR_TORCH
from devkit.verify.process import CompletedCommand, run_streaming

RESOLVE_DEADLINE_S = 600.0
IMAGE_DEADLINE_S = 60.0
_ROOT = "devkit-image"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NEXT_PART = re.compile(r"\s*(cause|caused by|hint):", re.IGNORECASE)
_UNREACHABLE = ("error sending request", "failed to fetch", "dns error", "network connectivity", "connection refused")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PackageSources:
    """Where wheels come from: torch's index, the mirror of the package index or "", or a folder instead of both."""

    torch_index: str
    index: str = ""
    wheelhouse: Path | None = None


def resolve_lock(
    wanted: LockRequirements, sources: PackageSources, *, progress: Progress, deadline_s: float = RESOLVE_DEADLINE_S
) -> str:
    """The text of requirements.lock: every package that `wanted` needs, for each machine, with hashes.

    uv resolves from wheels alone, so no code of a package runs on this machine. Its own settings for mirrors,
    certificates and logins apply. Raises: DevkitError without uv, without an answer in time, and without a solution.
    """
    argv = find_uv()
    with tempfile.TemporaryDirectory(prefix="devkit-lock-") as folder:
        project, answer = Path(folder), Path(folder, "requirements.txt")
        (project / "pyproject.toml").write_text(_project(wanted, sources), encoding="utf-8")
        options = ["--universal", f"--python-version={wanted.python}", "--generate-hashes", "--no-build", "--upgrade"]
        options += ["--annotation-style=line", "--no-header", "--no-progress", "--no-python-downloads"]
        options += ["--index-strategy=unsafe-best-match"] if _needs_all_of(wanted) else []
        options += ["--no-index", f"--find-links={sources.wheelhouse}"] if sources.wheelhouse else []
        words = ["pip", "compile", *options, f"--directory={folder}", f"--output-file={answer}", "pyproject.toml"]
        done = run_streaming([*argv, *words], progress=progress, timeout_s=deadline_s)
        if done.code != 0:
            raise _unresolved(done, deadline_s)
        resolved = answer.read_text(encoding="utf-8")
        # The annotations name the project that asked, which exists only here.
        return render_python_lock(wanted, resolved.replace(f"{_ROOT} (pyproject.toml)", "the plan"))


def find_uv() -> list[str]:
    """How to start uv: beside this Python, on PATH, or as its module. Raises DevkitError when it is not installed."""
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    if found := beside or shutil.which("uv"):
        return [found]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    raise DevkitError(
        "uv is not installed, and it is what finds the hashes of the packages",
        "Install it, such as with: pip install uv. Or lock the image alone: devkit init --lock-only image",
    )


def pin_image(reference: str, *, program: str, deadline_s: float = IMAGE_DEADLINE_S) -> str:
    """The image as `reference@sha256:…`: as the engine has it, or else as its registry does.

    `program` is docker or podman. Raises: DevkitError when neither knows the image.
    """
    name, _, digest = reference.partition("@")
    if digest:
        return reference
    if shutil.which(program) is None:
        raise DevkitError(f"{program} is not installed, and it is what knows the digest of {name}", _WITHOUT_IMAGE)
    inspected = _ask([program, "image", "inspect", "--format", "{{json .RepoDigests}}", name], deadline_s)
    found = _repository_digest(inspected.out if inspected.code == 0 else "", name)
    if not found:
        asked = _ask([program, "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", name], deadline_s)
        found = _manifest_digest(asked.out if asked.code == 0 else "")
        if not found:
            said = asked.last_line if asked.code is not None else f"no answer within {deadline_s:.0f} s"
            raise DevkitError(f"neither {program} nor a registry tells the digest of {name}: {said}", _WITHOUT_IMAGE)
    return f"{name}@{found}"


_WITHOUT_IMAGE = (
    "Pull the image where there is a network, then run this again; or lock the packages alone: "
    "devkit init --lock-only python"
)


def _needs_all_of(wanted: LockRequirements) -> bool:
    """Whether torch's index has more than torch for the image: for ROCm, the only Triton that fits lies there."""
    return wanted.variant.startswith("rocm")


def _project(wanted: LockRequirements, sources: PackageSources) -> str:
    """A project that asks for what is wanted. torch may come from its index alone, and as little else as can be."""
    import tomlkit

    uv: dict[str, object] = {
        "environments": list(wanted.environments),
        "constraint-dependencies": list(wanted.limits),
    }
    if not sources.wheelhouse:
        default = [{"name": "packages", "url": sources.index, "default": True}] if sources.index else []
        uv["index"] = [{"name": "torch", "url": sources.torch_index, "explicit": not _needs_all_of(wanted)}, *default]
        asked = {re.split(r"[^\w.-]", line)[0] for line in wanted.requirements}
        uv["sources"] = {name: {"index": "torch"} for name in ("torch", *BUILT_FOR_TORCH) if name in asked}
    document = {
        "project": {
            "name": _ROOT,
            "version": "0",
            "requires-python": f"=={wanted.python}.*",
            "dependencies": list(wanted.requirements),
        },
        "tool": {"uv": uv},
    }
    return tomlkit.dumps(document)


def _unresolved(done: CompletedCommand, deadline_s: float) -> DevkitError:
    if done.code is None:
        return DevkitError(f"uv found no answer within {deadline_s:.0f} s", _NO_NETWORK)
    lines = [line.rstrip() for line in done.log if line.strip()]
    start = next((at for at, line in enumerate(lines) if line.startswith("error:")), len(lines) - 1)
    end = next((at for at in range(start + 1, len(lines)) if _NEXT_PART.match(lines[at])), len(lines))
    said = " ".join(line.strip() for line in lines[start:end]).removeprefix("error: ") or done.last_line
    if any(word in line.lower() for line in lines for word in _UNREACHABLE):
        return DevkitError(f"the package index cannot be reached: {said}", _NO_NETWORK)
    return DevkitError(f"the packages cannot be locked: {said}", "\n".join(lines[end:]) or "Nothing was written.")


_NO_NETWORK = (
    "Lock where there is a network, or from a folder of wheels with --wheelhouse DIR, or from a mirror with --index\n"
    "and --torch-index. Without --lock devkit needs no network. Nothing was written."
)


def _ask(argv: Sequence[str], deadline_s: float) -> CompletedCommand:
    return run_streaming(argv, progress=lambda _line: None, timeout_s=deadline_s)


def _repository_digest(document: str, name: str) -> str:
    """The digest among an image's repositories that belongs to the one in `name`; "" when there is none."""
    try:
        found = json.loads(document or "[]") or []
    except ValueError:
        return ""
    repository = re.sub(r":[^:/]*$", "", name)
    pairs = [str(entry).partition("@") for entry in found]
    mine = [digest for place, _, digest in pairs if place == repository or place.endswith(f"/{repository}")]
    return mine[0] if mine and _DIGEST.fullmatch(mine[0]) else ""


def _manifest_digest(document: str) -> str:
    try:
        digest = str(json.loads(document or "{}").get("digest", ""))
    except (ValueError, AttributeError):
        return ""
    return digest if _DIGEST.fullmatch(digest) else ""
