"""The Dockerfile and the requirements that it installs."""

import re
from collections.abc import Iterator
from typing import assert_never

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.dependencies import BUILT_FOR_TORCH, dependency_artifacts, project_packages
from devkit.render.editors import editor_packages
from devkit.render.installation import INSTALLER, installation, installer_version
from devkit.render.labels import label_words
from devkit.render.mirrors import mirror_variables, torch_index
from devkit.render.plain import check_plan, plain, reason_comment
from devkit.render.profiles import profile_packages
from devkit.render.resources import rendered
from devkit.render.settings import FromCheckout, FromIndex, FromUrl, FromWheel, Settings
from devkit.solver.model import Plan


def image_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What the image is built from. Raises DevkitError when a value of the plan could not stand in a Dockerfile."""
    yield Artifact.text(f"{FOLDER}/Dockerfile", dockerfile(plan, settings))
    yield Artifact.text(f"{FOLDER}/requirements.txt", requirements(plan, settings))
    yield from dependency_artifacts(plan, settings)
    if settings.certificates:
        yield Artifact.text(f"{FOLDER}/certificates/ca.crt", settings.certificates)
    if isinstance(settings.source, FromWheel):
        yield Artifact(f"{FOLDER}/wheels/{settings.source.filename}", settings.source.content)


def dockerfile(plan: Plan, settings: Settings) -> str:
    """The Dockerfile, with the plan's reasons as comments."""
    has_python = re.fullmatch(r"(?:[^:@]*/)?python[:@].*", plan.base_image) is not None
    packages = ["ca-certificates", "g++", "gcc", "git", "libc6-dev"]
    packages += [] if has_python else ["python3", "python3-dev", "python3-venv"]
    for_editors = editor_packages(settings.editors)
    requirement, reason = _devkit(settings)
    check_plan(plan)
    digest = f"@{plain('digest', settings.image_digest)}" if settings.image_digest else ""
    install = installation(plan, settings)
    return rendered(
        "devcontainer/Dockerfile.j2",
        devkit_version=__version__,
        plan=plan,
        base_image=plan.base_image + digest,
        because=lambda field: reason_comment(plan, field),
        has_python=has_python,
        has_certificates=bool(settings.certificates),
        uses_wheelhouse=settings.uses_wheelhouse,
        mirrors=mirror_variables(settings),
        labels=label_words(settings),
        system_packages=[*packages, *for_editors],
        for_editors=bool(for_editors),
        install=install,
        project=project_packages(plan, settings, install),
        built_for_torch=BUILT_FOR_TORCH,
        devkit_requirement=requirement,
        devkit_reason=reason,
        devkit_wheel=isinstance(settings.source, FromWheel),
    )


def requirements(plan: Plan, settings: Settings) -> str:
    """requirements.txt: every package of the plan, pinned, with its reason."""
    lines = [
        f"# Written by devkit {__version__}. To change it, edit devkit.toml and run `devkit init` again.",
        f"# torch is installed before, from {torch_index(plan, settings)}; its pin here holds it in place.",
    ]
    if INSTALLER not in dict(plan.packages):
        lines += ["", f"# {INSTALLER} installs the others.", f"{INSTALLER}=={installer_version(plan)}"]
    for name, version in plan.packages:
        lines += ["", f"# {reason_comment(plan, name)}", f"{name}=={version}"]
    for row in profile_packages(plan, settings):
        lines += ["", f"# {row.name} {row.version}: {row.because}", f"{row.name}=={row.version}"]
    return "\n".join([*lines, ""])


def _devkit(settings: Settings) -> tuple[str, str]:
    match settings.source:
        case FromIndex() if settings.python_lock:
            return "", ""  # The index has it, so the lock has it.
        case FromIndex(version):
            return f"devkit-gpu=={version}", "devkit itself, in the version that wrote this file."
        case FromUrl(url):
            return f"devkit-gpu @ {plain('devkit URL', url)}", "devkit itself, from where it was installed."
        case FromWheel(filename, _):
            return (
                f"/mnt/wheels/{filename}",
                "devkit itself, as the wheel that `devkit init` packed from its own files.",
            )
        case FromCheckout():
            return "", ""
        case _:
            assert_never(settings.source)
