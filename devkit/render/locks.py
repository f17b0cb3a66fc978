"""What holds an image to exact files: the Python lock and the base image's digest, as they lie in a project."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.python_lock import misfit, python_lock_artifacts, wanted
from devkit.render.settings import Settings
from devkit.solver.model import Plan

IMAGE_LOCK_PATH = f"{FOLDER}/image.lock"
PYTHON_LOCK_PATH = f"{FOLDER}/requirements.lock"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Locks:
    """The text of requirements.lock, and the base image as `reference@sha256:…`; "" for what is not locked."""

    python: str = ""
    image: str = ""


def locks_in(python: bytes | None, image: bytes | None) -> Locks:
    """The locks in what the two files hold, None for one that is not there. Raises DevkitError when they are none."""
    try:
        lines = (image or b"").decode("ascii").splitlines()
        return Locks((python or b"").decode(), next((line for line in lines if line and not line.startswith("#")), ""))
    except UnicodeDecodeError:
        raise DevkitError(f"a lock in {FOLDER} is damaged", _RENEW) from None


def with_locks(settings: Settings, plan: Plan, locks: Locks) -> Settings:
    """The settings with these locks. Raises DevkitError for a lock that was made for another plan."""
    for reason in stale_locks(settings, plan, locks).values():
        raise DevkitError(reason, _RENEW)
    digest = locks.image.partition("@")[2]
    if digest and not _DIGEST.fullmatch(digest):
        raise DevkitError(f"{IMAGE_LOCK_PATH} is damaged: {digest!r} is no digest", _RENEW)
    return replace(settings, python_lock=locks.python, image_digest=digest)


def stale_locks(settings: Settings, plan: Plan, locks: Locks) -> dict[str, str]:
    """Why parts of the locks were made for another plan, by the parts' names: "python", "image"."""
    found: dict[str, str] = {}
    if locks.python and (reason := misfit(locks.python, wanted(plan, settings))):
        found["python"] = f"{PYTHON_LOCK_PATH} does not fit: {reason}"
    reference = locks.image.partition("@")[0]
    if locks.image and reference != plan.base_image:
        found["image"] = f"{IMAGE_LOCK_PATH} holds {reference}, the plan is built on {plan.base_image}"
    return found


def lock_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """The files that hold an image to exact files, where the settings have any."""
    yield from python_lock_artifacts(plan, settings)
    if settings.image_digest:
        header = (
            f"# Written by devkit {__version__}: the base image by its digest. Renew it with `devkit init --lock`.\n"
        )
        yield Artifact.text(IMAGE_LOCK_PATH, f"{header}{plan.base_image}@{settings.image_digest}\n")


_RENEW = "Renew the locks with `devkit init --lock`, or give them up with `devkit init --no-lock`."
