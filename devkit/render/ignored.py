"""What git and the image build leave out."""

from collections.abc import Iterator

from devkit.render.artifact import FOLDER, Artifact
from devkit.render.dependencies import WRITTEN, dependency_artifacts
from devkit.render.settings import FromWheel, Settings
from devkit.solver.model import Plan

_IGNORED_BY_GIT = """\
# Written by devkit. What differs from host to host stays out of version control.
.env*
gpu.*.local.yml
!.env.example
.secrets/
.*.devkit-new
wheelhouse/
# What every teammate needs, even where the project ignores such names.
!wheels/
!wheels/*.whl
!certificates/
!certificates/ca.crt
!*.lock
"""
# A shell script and a Dockerfile with carriage returns do not run, whatever git does with the rest.
_GIT_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n*.whl binary\n"


def ignore_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """Files that say what others leave out."""
    yield Artifact.text(f"{FOLDER}/.gitignore", _IGNORED_BY_GIT)
    yield Artifact.text(f"{FOLDER}/.gitattributes", _GIT_ATTRIBUTES)
    yield Artifact.text(f"{FOLDER}/.dockerignore", _dockerignore(plan, settings))


def _dockerignore(plan: Plan, settings: Settings) -> str:
    allowed = ["installer.lock", "torch.lock", "requirements.lock"] if settings.python_lock else ["requirements.txt"]
    allowed += [WRITTEN] if any(dependency_artifacts(plan, settings)) else []
    allowed += ["certificates"] if settings.certificates else []
    allowed += ["wheels"] if isinstance(settings.source, FromWheel) else []
    header = "# Written by devkit. The image is built from these files and nothing else: no .env, no project data.\n*\n"
    return header + "".join(f"!{name}\n" for name in allowed)
