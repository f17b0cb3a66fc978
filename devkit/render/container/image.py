"""The files from which the image is built: Dockerfile and ignore files."""

import json
import re
from collections.abc import Iterator
from typing import assert_never

from devkit.compat.images import find_image_system
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.values import Release
from devkit.probe.dependencies.conda import DEFAULT_CHANNEL
from devkit.release import __version__
from devkit.render.container.compiled import build_compile_commands
from devkit.render.container.devcontainer import find_editors, find_linter
from devkit.render.container.packages import (
    BUILT_FOR_TORCH,
    CONSTRAINTS,
    DEVKIT_PYTHON,
    build_install_commands,
    build_project_install_commands,
    has_constraints,
    render_constraints,
)
from devkit.render.container.settings import (
    ContainerSettings,
    FromCheckout,
    FromIndex,
    FromUrl,
    FromWheel,
    build_mirror_variables,
    format_reason_comment,
    require_safe,
    validate_plan,
)
from devkit.render.files import DEVCONTAINER_FOLDER, WHEELS_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan
from devkit.solver.system_packages import REQUESTED

_PUBLIC_IMAGE = re.compile(r"(?:python|ubuntu|debian|nvidia/cuda):")
_GIT_IGNORE = """\
# Written by devkit. Host-specific files stay out of version control; the other files are committed.
!*
.env*
gpu.local.yml*
.secrets/
.*.devkit-new
wheels/
wheelhouse/
"""
# A shell script and a Dockerfile with carriage returns do not run, whatever git does with the rest.
_GIT_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n*.whl binary\n"
_DOCKER_IGNORE = "# Written by devkit. The image is built only from these files: no .env, no project data.\n*\n"


def render_image_files(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the files from which the image is built. Raises DevkitError for a value that a Dockerfile cannot hold."""
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/Dockerfile", render_dockerfile(plan, settings))
    yield from render_conda_file(plan, settings)
    yield from render_constraints(plan, settings)
    if settings.certificates:
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/certificates/ca.crt", settings.certificates)
    if isinstance(settings.source, FromWheel):
        yield Artifact(WHEELS_FOLDER + settings.source.filename, settings.source.content, is_local=True)


def render_dockerfile(plan: Plan, settings: ContainerSettings) -> str:
    """Render the Dockerfile, with the plan's reasons as comments."""
    validate_plan(plan)
    has_python = re.fullmatch(r"(?:[^:@]*/)?python[:@].*", plan.base_image) is not None
    requirement, reason = _describe_devkit(settings)
    packages = ["ca-certificates", "curl", "g++", "gcc", "git", "less", "libc6-dev", "openssh-client", "procps"]
    packages += [] if has_python else ["python3", "python3-dev", "python3-venv"]
    has_old_python = Release.parse(plan.python) < Release.parse(DEVKIT_PYTHON)
    if requirement and has_old_python:
        # The project's Python is too old for devkit; where the system has no newer one, uv looks for it.
        system = find_image_system(plan.base_image, load_tables().images.systems)
        packages += [system.newer_python] if system and system.newer_python else []
    packages += ["sudo"] if settings.sudo else []
    compile_commands = build_compile_commands(plan, settings)
    packages += compile_commands.system_packages
    for_editors = [package for editor in find_editors(settings.editors) for package in editor.packages]
    digest = f"@{require_safe('digest', settings.image_digest)}" if settings.image_digest else ""
    install = build_install_commands(plan, settings)
    text = render_template(
        "devcontainer/Dockerfile.j2",
        devkit_version=__version__,
        plan=plan,
        base_image=plan.base_image + digest,
        because=lambda field: format_reason_comment(plan, field),
        has_python=has_python,
        has_certificates=bool(settings.certificates),
        uses_wheelhouse=settings.uses_wheelhouse,
        mirrors=build_mirror_variables(settings),
        system_packages=[*packages, *dict.fromkeys(for_editors)],
        for_editors=bool(for_editors),
        linter=find_linter(settings),
        # A prepared base image may have what the network around it does not serve.
        may_be_prepared=settings.uses_wheelhouse or bool(settings.index) or not _PUBLIC_IMAGE.match(plan.base_image),
        project_packages=plan.system_packages,
        optional_packages=[each.field for each in plan.system_packages if each.because != REQUESTED],
        sudo=settings.sudo,
        install=install,
        compile=compile_commands,
        project=build_project_install_commands(plan, settings, install),
        conda_image=find_conda_image(settings),
        built_for_torch=BUILT_FOR_TORCH,
        devkit_requirement=requirement,
        devkit_reason=reason,
        devkit_python=DEVKIT_PYTHON,
        has_old_python=has_old_python,
        has_locked_devkit=bool(settings.tools_lock) and isinstance(settings.source, FromIndex),
        devkit_wheel=settings.source.filename if isinstance(settings.source, FromWheel) else "",
    )
    # The parts are set apart by an empty line, also where one between them has nothing to say.
    return re.sub(r"\n{3,}", "\n\n", text)


def _describe_devkit(settings: ContainerSettings) -> tuple[str, str]:
    """Return the requirement that installs devkit, and a comment; "" where the project is devkit."""
    match settings.source:
        case FromIndex(version):
            return f"devkit-gpu=={version}", "in the version that wrote this file"
        case FromUrl(url):
            return f"devkit-gpu @ {require_safe('devkit URL', url)}", "from where it was installed"
        case FromWheel(filename, _):
            return (f"/mnt/devcontainer/wheels/{filename}", "from the wheel that `devkit init` packed")
        case FromCheckout():
            return "", ""
        case _:
            assert_never(settings.source)


def render_ignore_files(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the ignore files of git and of the image build."""
    allowed = ["installer.lock", "torch.lock", "requirements.lock", "tools.lock"] if settings.python_lock else []
    allowed += [CONSTRAINTS] if has_constraints(plan, settings) else []
    allowed += [CONDA_FILE] if settings.dependencies.conda else []
    allowed += ["certificates"] if settings.certificates else []
    allowed += ["wheels"] if isinstance(settings.source, FromWheel) else []
    kept = ["!certificates/", "!certificates/ca.crt"] if settings.certificates else []
    # What every teammate needs, even where the project ignores such names.
    kept += ["!*.lock"] if settings.python_lock or settings.image_digest else []
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/.gitignore", _GIT_IGNORE + "".join(f"{line}\n" for line in kept))
    if settings.for_windows:
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/.gitattributes", _GIT_ATTRIBUTES)
    yield Artifact.from_text(
        f"{DEVCONTAINER_FOLDER}/.dockerignore", _DOCKER_IGNORE + "".join(f"!{name}\n" for name in allowed)
    )


# The environment of a conda project: micromamba makes it, and what uv installs goes into it.

CONDA_FILE = "conda.yaml"
"""What micromamba installs, beside the Dockerfile."""


def find_conda_image(settings: ContainerSettings) -> str:
    """Find the image that brings micromamba; "" for a project without conda packages. Raises DevkitError for a wheelhouse."""
    packages = settings.dependencies.conda
    if not packages:
        return ""
    if settings.uses_wheelhouse:
        named = ", ".join(package.spec for package in packages[:3])
        raise DevkitError(
            f"a wheelhouse cannot contain conda packages, but this project needs {named}",
            "Choose a base image that has them with --image, and ignore the project's files with --ignore-dependencies.",
        )
    version = next(row.version for row in load_tables().images.tools if row.name == "micromamba")
    return f"mambaorg/micromamba:{require_safe('version', version)}"


def render_conda_file(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the environment that micromamba makes: the project's, but for torch, with the plan's Python."""
    found = settings.dependencies
    if not found.conda:
        return
    channels = "".join(f"  - {json.dumps(name)}\n" for name in found.conda_channels or (DEFAULT_CHANNEL,))
    packages = "".join(f"  # {each.origin}\n  - {json.dumps(each.spec)}\n" for each in found.conda)
    yield Artifact.from_text(
        f"{DEVCONTAINER_FOLDER}/{CONDA_FILE}",
        f"# Written by devkit {__version__} from the project's own files; torch and CUDA come from the plan.\n"
        "# Change them there, then run `devkit init` again.\n"
        f"channels:\n{channels}dependencies:\n"
        f'  - {json.dumps(f"python={plan.python}")}\n  - "pip"\n{packages}',
    )
