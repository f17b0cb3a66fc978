"""devcontainer.json and what stands beside it for single editors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from devkit import __version__
from devkit.compat.version_tables import Editor, IgnoredKey, load_tables
from devkit.errors import DevkitError
from devkit.render.container.profiles import build_ports_attributes
from devkit.render.container.settings import ContainerSettings, FromCheckout, FromIndex, slugify
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan

# Editors: what each one's name stands for, what is written for it, and what of the files it passes over.

WHOLE_FILE = "devcontainer.json"
"""The key that stands for the file itself, for tools that do not read it."""

_DEFAULT = ("vscode",)


@dataclass(frozen=True)
class IgnoredProperty:
    """A key of the written devcontainer.json that a tool passes over, and what becomes of it there."""

    editor: str
    tool: str
    key: str
    effect: str
    instead: str
    source: str
    is_sure: bool


@dataclass(frozen=True)
class EditorReport:
    """What the user of one editor must know of the files that were written."""

    name: str
    title: str
    note: str
    ignored: tuple[IgnoredProperty, ...]


def find_editors(names: Iterable[str]) -> tuple[Editor, ...]:
    """The editors of these names; VS Code for none. Raises DevkitError for a name that no editor has."""
    known = load_tables().editors.editors
    wanted = tuple(names) or _DEFAULT
    for name in wanted:
        if name not in known:
            raise DevkitError(
                f"there is no editor {name!r} that devkit writes files for", f"Choose among {', '.join(known)}."
            )
    return tuple(known[name] for name in dict.fromkeys(wanted))


def build_customizations(editors: Iterable[Editor], profiles: Iterable[str]) -> dict[str, object]:
    """The namespaced settings that these editors read, each namespace once."""
    read = dict.fromkeys(space for editor in editors for space in editor.customizations)
    made = {"vscode": _vscode(profiles), "jetbrains": {"backend": "PyCharm"}}
    return {space: made[space] for space in made if space in read}


def find_editor_packages(names: Iterable[str]) -> tuple[str, ...]:
    """The system packages that the chosen editors' own programs need inside the container."""
    return tuple(dict.fromkeys(package for editor in find_editors(names) for package in editor.packages))


def build_host_requirements(editors: Iterable[Editor]) -> dict[str, object]:
    """What a cloud is asked for, as hostRequirements says it; {} when no editor here has one of its own.

    It never asks for a GPU: the Compose overlays do, and the reference command would ask a second time.
    """
    clouds = [editor for editor in editors if editor.cpus]
    if not clouds:
        return {}
    return {
        "cpus": max(editor.cpus for editor in clouds),
        "memory": f"{max(editor.memory_gb for editor in clouds)}gb",
        "storage": f"{max(editor.storage_gb for editor in clouds)}gb",
    }


def build_editor_reports(names: Iterable[str], document: Mapping[str, object]) -> tuple[EditorReport, ...]:
    """For each chosen editor, what it drops of this devcontainer.json."""
    keys = {WHOLE_FILE, *_keys(document)}
    rows = [row for row in load_tables().editors.ignored if row.key in keys and row.instead]
    return tuple(
        EditorReport(editor.name, editor.title, editor.note, tuple(_find_ignored(editor, rows)))
        for editor in find_editors(names)
    )


def _find_ignored(editor: Editor, rows: Iterable[IgnoredKey]) -> Iterator[IgnoredProperty]:
    for row in rows:
        if row.editor in editor.tools:
            yield IgnoredProperty(
                editor=editor.name,
                tool=row.editor,
                key=row.key,
                effect=row.effect,
                instead=row.instead,
                source=row.source[0],
                is_sure=not row.is_inferred,
            )


def _keys(document: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


def _vscode(profiles: Iterable[str]) -> dict[str, object]:
    extensions = ["ms-python.python", "ms-python.debugpy", "charliermarsh.ruff"]
    # Notebooks need a kernel in the image, which comes with the profile.
    extensions += ["ms-toolsai.jupyter"] if "jupyter" in profiles else []
    settings = {
        "python.defaultInterpreterPath": "/opt/venv/bin/python",
        # The environment is on PATH already; activating it again only slows down every terminal.
        "python.terminal.activateEnvironment": False,
    }
    return {"extensions": extensions, "settings": settings}


_TOKEN_PAGE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens


def render_editor_files(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """What editors and their clouds read. Raises DevkitError for an editor or a profile that does not exist."""
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/devcontainer.json", render_devcontainer_json(settings))
    if "daytona" in settings.editors:
        script = render_template("devcontainer/daytona/snapshot.sh.j2", devkit_version=__version__, slug=settings.slug)
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/daytona/snapshot.sh", script, 0o755)


def build_reports_for_settings(choices: ProjectSettings) -> tuple[EditorReport, ...]:
    """What each editor that was chosen by name makes of these files; () when none was."""
    settings = ContainerSettings(
        name=choices.name,
        slug=slugify(choices.name),
        source=FromCheckout() if choices.install_from else FromIndex(__version__),
        editors=choices.editors,
        profiles=choices.profiles,
    )
    return build_editor_reports(choices.editors, build_devcontainer_document(settings)) if choices.editors else ()


def render_devcontainer_json(settings: ContainerSettings) -> str:
    """The text of devcontainer.json."""
    return json.dumps(build_devcontainer_document(settings), indent=2, ensure_ascii=False) + "\n"


def build_devcontainer_document(settings: ContainerSettings) -> dict[str, object]:
    """devcontainer.json. It asks for no GPU itself: the Compose overlays do, and asking twice fails."""
    editors = find_editors(settings.editors)
    document: dict[str, object] = {
        "name": settings.name,
        "dockerComposeFile": "docker-compose.yml",
        "service": "dev",
        "workspaceFolder": f"/workspaces/{settings.slug}",
        "remoteUser": "dev",
        # The image is built with the host user's ids already; the editor's own sync would miss the venv.
        "updateRemoteUserUID": False,
        "hostRequirements": build_host_requirements(editors),
        "portsAttributes": build_ports_attributes(settings.profiles),
        "initializeCommand": build_initialize_command(DEVCONTAINER_FOLDER),
        **_lifecycle(settings),
        "shutdownAction": "stopCompose",
        "secrets": {
            "HF_TOKEN": {
                "description": "Token for gated or private models on the Hugging Face hub.",
                "documentationUrl": _TOKEN_PAGE,
            }
        },
        "customizations": build_customizations(editors, settings.profiles),
    }
    return {key: value for key, value in document.items() if value != {}}


def build_initialize_command(folder: str, argument: str = "", *, env_path: str = f"{DEVCONTAINER_FOLDER}/.env") -> str:
    """What looks for a GPU on the host, before the container starts. `argument` is for the script, "" for none.

    `||` and `echo` mean the same to sh and to cmd.exe: a Windows host without sh uses its own PowerShell.
    """
    given = f" {argument}" if argument else ""
    return (
        f"sh {folder}/gpu.sh{given} || "
        f"powershell -NoProfile -ExecutionPolicy Bypass -File {folder}/gpu.ps1{given} || "
        f"echo devkit: this host has no shell that devkit knows, so choose a GPU with DEVKIT_GPU in {env_path}"
    )


def _lifecycle(settings: ContainerSettings) -> dict[str, object]:
    """Commands by the moment they belong to; each has a name, which editors show while it runs.

    The project itself is installed in updateContentCommand: every editor waits for that one unless told otherwise, and
    a cloud's prebuilt container holds what it did. The doctor looks at every start, because a start can change the GPU.
    """
    commands: dict[str, object] = {}
    if project := _project_install(settings):
        commands["updateContentCommand"] = {"project": project}
    commands["postStartCommand"] = {"doctor": "devkit doctor || true"}
    return commands


def _project_install(settings: ContainerSettings) -> str:
    """How the project itself gets into the environment, editable; "" when it is no package.

    Its packages are in the image already. What builds it comes from the index, so not where there is none.
    """
    if isinstance(settings.source, FromCheckout):
        return "pip install --editable '.[workload,dev]'"
    if settings.dependencies.builds_itself and not settings.uses_wheelhouse:
        return "pip install --no-deps --editable ."
    return ""
