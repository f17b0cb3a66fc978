"""A plan and its settings, as the files of a dev container."""

import json
import re
import textwrap
from typing import assert_never

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.artifact import Artifact
from devkit.render.resources import rendered
from devkit.render.settings import FromCheckout, FromIndex, FromUrl, FromWheel, Settings
from devkit.solver.model import Plan

FOLDER = ".devcontainer"
GPU_MODES = ("cpu", "nvidia", "cdi", "podman")
"""The ways to give a container its GPU; gpu.<mode>.yml holds each."""

_INITIALIZE = (
    "sh .devcontainer/gpu.sh || "
    "echo devkit: this host has no POSIX shell, so choose a GPU with DEVKIT_GPU in .devcontainer/.env"
)
"""`||` and `echo` mean the same to sh and to cmd.exe, so a Windows host without sh starts too."""

_IGNORED_BY_GIT = """\
# Written by devkit. What differs from host to host stays out of version control.
.env*
.*.devkit-new
wheelhouse/
# What every teammate needs, even where the project ignores such names.
!wheels/
!wheels/*.whl
!certificates/
!certificates/ca.crt
"""
# A shell script and a Dockerfile with carriage returns do not run, whatever git does with the rest.
_GIT_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n*.whl binary\n"
_TOKEN_PAGE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens
_PLAIN = {
    "base image": re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII),
    "Python version": re.compile(r"\d+\.\d+"),
    "version": re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII),
    "package name": re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII),
    "wheel index": re.compile(r"https?://[\w.:/@%+~-]+", re.ASCII),
    "devkit URL": re.compile(r"[\w.:/@%+~#=-]+", re.ASCII),
}


def devcontainer_artifacts(plan: Plan, settings: Settings) -> tuple[Artifact, ...]:
    """Every file under .devcontainer, in the order of their paths; the same input gives the same bytes.

    Raises: DevkitError when a value of the plan could not stand in a Dockerfile as it is.
    """
    texts = {
        "devcontainer.json": devcontainer_json(settings),
        "Dockerfile": dockerfile(plan, settings),
        "docker-compose.yml": _from_template("docker-compose.yml", settings),
        "gpu.sh": _from_template("gpu.sh", settings),
        "requirements.txt": requirements(plan),
        ".gitignore": _IGNORED_BY_GIT,
        ".gitattributes": _GIT_ATTRIBUTES,
        ".dockerignore": _dockerignore(settings),
    }
    texts |= {f"gpu.{mode}.yml": _from_template(f"gpu.{mode}.yml", settings) for mode in GPU_MODES}
    if settings.certificates:
        texts["certificates/ca.crt"] = settings.certificates
    artifacts = [
        Artifact.text(f"{FOLDER}/{name}", text, 0o755 if name.endswith(".sh") else 0o644)
        for name, text in texts.items()
    ]
    if isinstance(settings.source, FromWheel):
        artifacts.append(Artifact(f"{FOLDER}/wheels/{settings.source.filename}", settings.source.content))
    return tuple(sorted(artifacts, key=lambda artifact: artifact.path))


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


def dockerfile(plan: Plan, settings: Settings) -> str:
    """The Dockerfile, with the plan's reasons as comments."""
    has_python = re.fullmatch(r"(?:[^:@]*/)?python[:@].*", plan.base_image) is not None
    packages = ["ca-certificates", "g++", "gcc", "git", "libc6-dev"]
    packages += [] if has_python else ["python3", "python3-dev", "python3-venv"]
    requirement, reason = _devkit(settings)
    cached = "--mount=type=cache,id=devkit-pip,target=/root/.cache/pip"
    from_wheelhouse = "--mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse"
    _check_plan(plan)
    return rendered(
        "devcontainer/Dockerfile.j2",
        devkit_version=__version__,
        plan=plan,
        because=lambda field: _comment(_reason(plan, field)),
        has_python=has_python,
        has_certificates=bool(settings.certificates),
        system_packages=packages,
        mounts=from_wheelhouse if settings.uses_wheelhouse else cached,
        pip_options="--no-cache-dir --no-index --find-links=/mnt/wheelhouse " if settings.uses_wheelhouse else "",
        torch_source="" if settings.uses_wheelhouse else f"--index-url={plan.torch_index} ",
        cuda_literal=repr(plan.cuda),
        device=f"CUDA {plan.cuda}" if plan.cuda else "the CPU",
        devkit_requirement=requirement,
        devkit_reason=reason,
        devkit_wheel=isinstance(settings.source, FromWheel),
    )


def requirements(plan: Plan) -> str:
    """requirements.txt: every package of the plan, pinned, with its reason."""
    lines = [
        f"# Written by devkit {__version__}. To change it, edit devkit.toml and run `devkit init` again.",
        f"# torch is installed before, from {plan.torch_index}; its pin here holds it in place.",
    ]
    for name, version in plan.packages:
        lines += ["", f"# {_comment(_reason(plan, name))}", f"{name}=={version}"]
    return "\n".join([*lines, ""])


def _devkit(settings: Settings) -> tuple[str, str]:
    match settings.source:
        case FromIndex(version):
            return f"devkit-gpu=={version}", "devkit itself, in the version that wrote this file."
        case FromUrl(url):
            return f"devkit-gpu @ {_plain('devkit URL', url)}", "devkit itself, from where it was installed."
        case FromWheel(filename, _):
            return (
                f"/mnt/wheels/{filename}",
                "devkit itself, as the wheel that `devkit init` packed from its own files.",
            )
        case FromCheckout():
            return "", ""
        case _:
            assert_never(settings.source)


def _dockerignore(settings: Settings) -> str:
    allowed = ["requirements.txt"]
    allowed += ["certificates"] if settings.certificates else []
    allowed += ["wheels"] if isinstance(settings.source, FromWheel) else []
    header = "# Written by devkit. The image is built from these files and nothing else: no .env, no project data.\n*\n"
    return header + "".join(f"!{name}\n" for name in allowed)


def _from_template(name: str, settings: Settings) -> str:
    return rendered(
        f"devcontainer/{name}.j2",
        devkit_version=__version__,
        slug=settings.slug,
        uses_wheelhouse=settings.uses_wheelhouse,
    )


def _check_plan(plan: Plan) -> None:
    _plain("base image", plan.base_image)
    _plain("Python version", plan.python)
    _plain("wheel index", plan.torch_index)
    _plain("version", plan.torch)
    for name, version in plan.packages:
        _plain("package name", name)
        _plain("version", version)


def _plain(kind: str, value: str) -> str:
    if not _PLAIN[kind].fullmatch(value):
        raise DevkitError(f"{value!r} cannot be a {kind}", "Check the value in devkit.toml and on the command line.")
    return value


def _reason(plan: Plan, field: str) -> str:
    found = next((reason for reason in plan.reasons if reason.field == field), None)
    return f"{field} {found.value}: {found.because}" if found else f"{field}: chosen with the rest of the plan"


def _comment(text: str) -> str:
    return "\n# ".join(textwrap.wrap(text, width=110, break_long_words=False, break_on_hyphens=False))
