"""devcontainer.json, and the settings, packages and limits of each editor that reads it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devkit.compat.version_tables import Editor, load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies
from devkit.formats.jsonc import format_json
from devkit.release import __version__
from devkit.render.container.compiled import list_build_variables
from devkit.render.container.packages import KEEP_TORCH
from devkit.render.container.settings import ContainerSettings, FromCheckout, FromIndex, require_safe, slugify
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import CompiledPackage, CompileMode, Plan
from devkit.text import join_words

WHOLE_FILE = "devcontainer.json"
"""The key of the file itself, for tools that do not read it."""

_DEFAULT_EDITORS = ("vscode",)
FETCH_SUBMODULES = (
    "git submodule status | sed -n 's/^-[0-9a-f]* //p' | xargs -r git submodule update --init --recursive --"
    " || echo 'devkit: a git submodule could not be fetched: git submodule update --init --recursive' >&2"
)
"""Fetches the submodules that are missing, and leaves the others as they are."""
_TOKEN_PAGE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens


def render_editor_files(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the files of editors and their clouds. Raises DevkitError for an unknown editor."""
    yield Artifact.from_text(
        f"{DEVCONTAINER_FOLDER}/devcontainer.json", render_devcontainer_json(settings, plan.compiled)
    )
    if "daytona" in settings.editors:
        values = {"devkit_version": __version__, "slug": settings.slug, "vendor": plan.vendor.value}
        script = render_template("devcontainer/daytona/snapshot.sh.j2", **values)
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/daytona/snapshot.sh", script, 0o755)


def render_devcontainer_json(settings: ContainerSettings, compiled: Iterable[CompiledPackage] = ()) -> str:
    """Render devcontainer.json."""
    return format_json(build_devcontainer_document(settings, compiled), width=120) + "\n"


def build_devcontainer_document(
    settings: ContainerSettings, compiled: Iterable[CompiledPackage] = ()
) -> dict[str, object]:
    """Build devcontainer.json. It requests no GPU itself: gpu.sh does, and two requests fail.

    `compiled` are the packages of the plan that compile against torch.
    """
    editors = find_editors(settings.editors)
    project_install = _build_project_install(settings, compiled)
    document: dict[str, object] = {
        "name": settings.name,
        "dockerComposeFile": "docker-compose.yml",
        "service": "dev",
        "workspaceFolder": f"/workspaces/{settings.slug}",
        "remoteUser": "dev",
        # The image is built with the host user's ids already; the editor's own sync would miss the venv.
        "updateRemoteUserUID": False,
        "hostRequirements": build_host_requirements(editors),
        "initializeCommand": build_initialize_command(DEVCONTAINER_FOLDER, for_windows=settings.for_windows),
        # Every editor waits for updateContentCommand by default, and a cloud's prebuilt container includes its result.
        # Commands have names, which editors show while they run.
        "updateContentCommand": {"project": project_install} if project_install else {},
        # A start can change the GPU.
        "postStartCommand": {"doctor": "devkit doctor || true"},
        "shutdownAction": "stopCompose",
        "secrets": {
            "HF_TOKEN": {
                "description": "Token for gated or private models on the Hugging Face hub.",
                "documentationUrl": _TOKEN_PAGE,
            }
        },
        "customizations": build_customizations(editors),
    }
    return {key: value for key, value in document.items() if value != {}}


def build_initialize_command(folder: str, argument: str = "", *, for_windows: bool = False) -> str:
    """Build the command that looks for a GPU on the host before the container starts.

    `argument` is for the script, "" for none. `||` and `echo` mean the same to sh and to cmd.exe: a Windows host
    without sh uses its own PowerShell, where there is a script for it.
    """
    given = f" {argument}" if argument else ""
    powershell = f"powershell -NoProfile -ExecutionPolicy Bypass -File {folder}/gpu.ps1{given}"
    parts = [f"sh {folder}/gpu.sh{given}", *([powershell] if for_windows else [])]
    hint = "" if for_windows else ", see devkit init --set platform=windows"
    return " || ".join([*parts, f"echo devkit: no GPU, because this host has no shell for gpu.sh{hint}"])


def _build_project_install(settings: ContainerSettings, compiled: Iterable[CompiledPackage]) -> str:
    """Return the command that fetches what is missing of the project and installs it, editable, with its other packages.

    Their requirements are in the image already, but for those that only a build knows. Build backends come from the
    index, so nothing is installed where there is none. What compiles against torch comes first, without isolation. Where
    a build fails, the container still opens. Returns "" where there is nothing to do.
    """
    found = settings.dependencies
    if isinstance(settings.source, FromCheckout):
        return "uv pip install --constraints .ci/constraints.txt --group test --editable '.[workload,mcp]'"
    steps = [FETCH_SUBMODULES] if found.submodules else []
    if not settings.uses_wheelhouse:
        planned = {each.path: each for each in compiled if each.path}
        places = (["."] if found.builds_itself else []) + [each.place for each in found.local]
        own = [planned[place] for place in places if place in planned]
        own = [each for each in own if each.mode is not CompileMode.LEFT_OUT]
        if own:
            steps += [f"export {' '.join(list_build_variables(own))}"]
            steps += [_install([each.path for each in own], found, "--no-build-isolation ")]
        ordinary = [place for place in places if place not in planned]
        whole = {each.path for each in found.builds if each.maps_nothing}
        for options, is_whole in (("", False), ("--config-settings editable_mode=compat ", True)):
            # Of a folder in which setuptools finds no package, the folder itself is importable, as `setup.py develop` had it.
            if group := [place for place in ordinary if (place in whole) is is_whole]:
                steps.append(_install(group, found, options))
    return "; ".join(steps)


def _install(places: Sequence[str], found: Dependencies, options: str = "") -> str:
    """Return the command that installs packages of the project; one that fails says so in words."""
    archives = (".whl", ".zip", ".gz", ".bz2")
    targets = " ".join(
        each if each.endswith(archives) else f"--editable {each}"
        for each in (require_safe("path", place) for place in places)
    )
    install = f"uv pip install {options}--no-deps {targets}"
    if found.is_computed or (found.local and not found.lock):
        # No torch but the plan's.
        held = f"uv pip freeze | grep -E '{KEEP_TORCH}' > /tmp/held.txt"
        install = f"{held} && uv pip install {options}--constraint=/tmp/held.txt {targets}"
    what = join_words(["the project itself" if place == "." else place for place in places])
    return f"{install} || echo 'devkit: not installed, because the build failed as the lines above say: {what}' >&2"


def find_editors(names: Iterable[str]) -> tuple[Editor, ...]:
    """Find the editors of these names; VS Code for none. Raises DevkitError for an unknown name."""
    known = load_tables().editors.editors
    wanted = tuple(names) or _DEFAULT_EDITORS
    for name in wanted:
        if name not in known:
            raise DevkitError(
                f"devkit does not write files for the editor {name!r}", f"Choose among {', '.join(known)}."
            )
    return tuple(known[name] for name in dict.fromkeys(wanted))


def find_linter(settings: ContainerSettings) -> str:
    """Find the requirement of the linter whose extension the editors install; "" for none."""
    read = {space for editor in find_editors(settings.editors) for space in editor.customizations}
    if "vscode" not in read or isinstance(settings.source, FromCheckout):
        return ""
    return next(f"{row.name}=={row.version}" for row in load_tables().images.tools if row.name == "ruff")


def build_customizations(editors: Iterable[Editor]) -> dict[str, object]:
    """Build the namespaced settings that these editors read, each namespace once."""
    read = {space for editor in editors for space in editor.customizations}
    extensions = ["ms-python.python", "ms-python.debugpy", "charliermarsh.ruff"]
    settings = {
        "python.defaultInterpreterPath": "/opt/venv/bin/python",
        # The environment is on PATH already; activating it again only slows down every terminal.
        "python.terminal.activateEnvironment": False,
    }
    spaces = {"vscode": {"extensions": extensions, "settings": settings}, "jetbrains": {"backend": "PyCharm"}}
    return {space: value for space, value in spaces.items() if space in read}


def build_host_requirements(editors: Iterable[Editor]) -> dict[str, object]:
    """Build the hostRequirements for clouds; {} when no editor here has its own.

    They include no GPU: gpu.sh requests it, and the reference command would request it a second time.
    """
    clouds = [editor for editor in editors if editor.cpus]
    if not clouds:
        return {}
    return {
        "cpus": max(editor.cpus for editor in clouds),
        "memory": f"{max(editor.memory_gb for editor in clouds)}gb",
        "storage": f"{max(editor.storage_gb for editor in clouds)}gb",
    }


@dataclass(frozen=True)
class IgnoredProperty:
    """A key of the generated devcontainer.json that a tool ignores, and the effect."""

    editor: str
    tool: str
    key: str
    effect: str
    instead: str
    source: str
    is_sure: bool


@dataclass(frozen=True)
class EditorReport:
    """Notes on the generated files for the user of one editor."""

    name: str
    title: str
    note: str
    dropped: tuple[IgnoredProperty, ...]


def build_reports_for_settings(project_settings: ProjectSettings) -> tuple[EditorReport, ...]:
    """Build the report of each editor that the settings name; () for none."""
    if not project_settings.editors:
        return ()
    settings = ContainerSettings(
        name=project_settings.name,
        slug=slugify(project_settings.name),
        source=FromCheckout() if project_settings.install_from else FromIndex(__version__),
        editors=project_settings.editors,
    )
    return build_editor_reports(project_settings.editors, build_devcontainer_document(settings))


def build_editor_reports(names: Iterable[str], document: Mapping[str, object]) -> tuple[EditorReport, ...]:
    """Build the report of each editor on this devcontainer.json."""
    keys = {WHOLE_FILE, *_list_keys(document)}
    rows = [row for row in load_tables().editors.ignored if row.key in keys and row.instead]
    return tuple(
        EditorReport(
            editor.name,
            editor.title,
            editor.note,
            tuple(
                IgnoredProperty(
                    editor.name, row.editor, row.key, row.effect, row.instead, row.source[0], not row.is_inferred
                )
                for row in rows
                if row.editor in editor.tools
            ),
        )
        for editor in find_editors(names)
    )


def _list_keys(document: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _list_keys(value, f"{prefix}{key}.")
