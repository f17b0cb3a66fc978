"""Editors: what each one's name stands for, what is written for it, and what of the files it passes over."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from devkit.compat.load import tables
from devkit.compat.rows import Editor, IgnoredKey
from devkit.errors import DevkitError

WHOLE_FILE = "devcontainer.json"
"""The key that stands for the file itself, for tools that do not read it."""

_DEFAULT = ("vscode",)


@dataclass(frozen=True)
class Dropped:
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
    dropped: tuple[Dropped, ...]


def chosen_editors(names: Iterable[str]) -> tuple[Editor, ...]:
    """The editors of these names; VS Code for none. Raises DevkitError for a name that no editor has."""
    known = tables().editors.editors
    wanted = tuple(names) or _DEFAULT
    for name in wanted:
        if name not in known:
            raise DevkitError(
                f"there is no editor {name!r} that devkit writes files for", f"Choose among {', '.join(known)}."
            )
    return tuple(known[name] for name in dict.fromkeys(wanted))


def customizations(editors: Iterable[Editor], profiles: Iterable[str]) -> dict[str, object]:
    """The namespaced settings that these editors read, each namespace once."""
    read = dict.fromkeys(space for editor in editors for space in editor.customizations)
    made = {"vscode": _vscode(profiles), "jetbrains": {"backend": "PyCharm"}}
    return {space: made[space] for space in made if space in read}


def editor_packages(names: Iterable[str]) -> tuple[str, ...]:
    """The system packages that the chosen editors' own programs need inside the container."""
    return tuple(dict.fromkeys(package for editor in chosen_editors(names) for package in editor.packages))


def smallest_machine(editors: Iterable[Editor]) -> dict[str, object]:
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


def editor_reports(names: Iterable[str], document: Mapping[str, object]) -> tuple[EditorReport, ...]:
    """For each chosen editor, what it drops of this devcontainer.json."""
    keys = {WHOLE_FILE, *_keys(document)}
    rows = [row for row in tables().editors.ignored if row.key in keys and row.instead]
    return tuple(
        EditorReport(editor.name, editor.title, editor.note, tuple(_dropped(editor, rows)))
        for editor in chosen_editors(names)
    )


def _dropped(editor: Editor, rows: Iterable[IgnoredKey]) -> Iterator[Dropped]:
    for row in rows:
        if row.editor in editor.tools:
            yield Dropped(
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
