"""devkit.toml: the user's settings of a project. devkit writes it once; after that it belongs to the user."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.facts.decode import InvalidValue, get_field_decoders
from devkit.facts.dependencies import DependencyChoice
from devkit.release import DOCUMENTATION_URL
from devkit.render.toml_tables import find_key_position, parse_file, set_toml_values, write_value
from devkit.text import find_similar, join_words, suggest

if TYPE_CHECKING:
    from tomlkit.items import Item

DEVKIT_TOML = "devkit.toml"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SETTINGS_PAGE = f"{DOCUMENTATION_URL}/settings/"


@dataclass(frozen=True)
class ProjectSettings:
    """The settings of devkit.toml. "" and () leave the choice to devkit.

    `engine` is docker or podman, `gpu_runtime` legacy or cdi, `devices` GPU indices, UUIDs or MIG UUIDs.
    `ca_certificates` is the path of a PEM file, relative to the project. `wheelhouse` builds without an index.
    `index`, `torch_index` and `hub` are mirrors' URLs. `allow_indexes` are those that packages come from besides; each
    user allows them, too. `ignore_dependencies` leaves the project's own packages out.
    `as_of` is the day by which the project's packages were released, or "latest". `no_hold` leaves their versions open.
    `apt` are Debian packages, `sudo`
    lets the user install others inside.
    `install_from` is "" for the origin of the running devkit, or "checkout" in devkit's own repository. `command` is
    one of the project that `devkit verify` runs.
    """

    name: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()
    machine: str = ""
    platform: str = ""
    glibc: str = ""
    vendor: str = ""
    engine: str = ""
    gpu_runtime: str = ""
    devices: tuple[str, ...] = ()
    torch: str = ""
    cuda: str = ""
    python: str = ""
    image: str = ""
    features: tuple[str, ...] = ()
    as_of: str = ""
    no_hold: bool = False
    pins: tuple[tuple[str, str], ...] = ()
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    ignore_dependencies: bool = False
    apt: tuple[str, ...] = ()
    sudo: bool = False
    editors: tuple[str, ...] = ()
    ca_certificates: str = ""
    wheelhouse: bool = False
    index: str = ""
    allow_indexes: tuple[str, ...] = ()
    torch_index: str = ""
    hub: str = ""
    command: str = ""
    install_from: str = ""

    @property
    def choice(self) -> DependencyChoice:
        """The optional parts of the project's requirements to install."""
        return DependencyChoice(self.extras, self.groups, self.requirements, self.packages)

    def with_flags(self, flags: "ProjectSettings") -> "ProjectSettings":
        """Return these settings with those of `flags` in their place."""
        given = {each.name: getattr(flags, each.name) for each in fields(flags) if getattr(flags, each.name)}
        return replace(self, **given | {"packages": tuple(dict.fromkeys((*self.packages, *flags.packages)))})


@dataclass(frozen=True)
class PathOptions:
    """Files outside the project that the command line names."""

    ca_certificate: Path | None = None
    wheelhouse: Path | None = None


SECTIONS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "": ("", {"name": ('"my-project"', "the project's name, shown in editors")}),
    "target": (
        "The machine to plan for. Default: the machine that runs `devkit init`.",
        {
            "driver": ('"570.124.06"', "NVIDIA driver"),
            "gpus": ('["RTX 4090"]', "GPU names, or compute capabilities such as 9.0"),
            "machine": ('"x86_64"', "or aarch64"),
            "platform": ('"linux"', "or wsl2, or windows for hosts without a POSIX shell"),
            "glibc": ('"2.36"', "C library of the base image"),
            "vendor": ('"nvidia"', "or cpu, or auto"),
            "engine": ('"docker"', "or podman; without it the files serve both"),
            "gpu_runtime": ('"cdi"', "or legacy: how the engine passes GPUs"),
            "devices": ('["0", "1"]', "the GPUs to pass on: indices, UUIDs or MIG UUIDs"),
        },
    ),
    "versions": (
        "Exact versions. devkit chooses the others to fit.",
        {
            "torch": ('"2.13.0"', "or with the wheel's CUDA: 2.13.0+cu130"),
            "cuda": ('"13.0"', "CUDA version of the torch wheel"),
            "python": ('"3.12"', "Python version of the container"),
            "image": ('"python:3.12-slim-bookworm"', "base image"),
            "features": ('["nf4"]', "features that must work: bf16, nf4, fp8 …"),
            "as_of": ('"2023-07-24"', 'the project\'s packages as released by this day; "latest" for the newest'),
            "no_hold": ("true", "each build installs the newest packages that fit, ignoring devkit.lock"),
        },
    ),
    "pins": ('Exact versions of other packages, such as: peft = "0.21.2"', {}),
    "project": (
        "Packages that the project needs in addition to its usual ones.",
        {
            "extras": ('["train"]', "the project's extras"),
            "groups": ('["docs"]', "dependency groups; dev is always installed"),
            "requirements": (
                '["requirements/train.txt"]',
                "requirements files to install instead of those that devkit finds",
            ),
            "packages": ('["einops>=0.8"]', "packages that programs import but no file lists"),
            "apt": ('["ffmpeg"]', 'Debian packages; a trailing hyphen, "ffmpeg-", leaves one out'),
            "sudo": ("true", "the container's user can become root without a password"),
        },
    ),
    "dependencies": (
        "Packages that the project needs, according to its requirements files.",
        {"ignore_dependencies": ("true", "do not install it in the image")},
    ),
    "container": (
        "The purpose of the container.",
        {
            "editors": ('["vscode"]', "jetbrains, codespaces, devpod, coder, daytona"),
        },
    ),
    "network": (
        "How the image is built in a closed network.",
        {
            "ca_certificates": ('"certificates/company.pem"', "PEM file of the company's certificate authorities"),
            "wheelhouse": ("true", "install from the folder in DEVKIT_WHEELHOUSE of .devcontainer/.env"),
            "index": ('"https://pypi.example.org/simple"', "mirror of the Python package index"),
            "allow_indexes": ('["https://pypi.example.org/simple"]', "indexes in the project's files"),
            "torch_index": ('"https://pytorch.example.org/whl"', "mirror of PyTorch's wheel indexes"),
            "hub": ('"https://hub.example.org"', "mirror of the Hugging Face hub"),
        },
    ),
    "verify": (
        "What `devkit verify` proves in addition to fine-tuning.",
        {"command": ('"pytest -x tests/quick"', "a command of the project that must work")},
    ),
    "devkit": ("How devkit gets into the image.", {"install_from": ('"checkout"', "for devkit's own repository")}),
}
"""Section -> (its purpose, key -> (an example, its meaning)). "" is the top of the file."""

REMOVED_SETTINGS = {
    "profiles": f"Remove it. Notebooks and a CI job: {DOCUMENTATION_URL}/guides/dev-container/",
    "policy": f"Remove it. What checks its rules: {DOCUMENTATION_URL}/guides/team-lead/",
    "bake": f"Remove it. To publish the image: {DOCUMENTATION_URL}/guides/dev-container/",
}
"""Keys of the last release, and what does their part."""

FOREIGN_TABLES = ("job",)
"""Tables of devkit.toml that other modules parse: [job] belongs to `devkit export`."""

_ONE_OF = {
    "machine": ("x86_64", "aarch64"),
    "platform": ("linux", "wsl2", "windows"),
    "vendor": ("nvidia", "rocm", "cpu", "auto"),
    "engine": ("docker", "podman"),
    "gpu_runtime": ("legacy", "cdi"),
}
"""Setting -> its possible values, the same as those of its flag."""


def parse_devkit_toml(content: bytes) -> ProjectSettings:
    """Parse devkit.toml. Raises DevkitError for TOML errors, unknown keys and wrong types, with line and column."""
    text, document = parse_file(content, DEVKIT_TOML)
    found: dict[str, object] = {}
    for key, value in document.items():
        if key in FOREIGN_TABLES:
            continue
        _refuse_removed(text, key)
        if key == "pins":
            found[key] = _parse_pins(value, text)
        elif isinstance(value, dict):
            found |= {name: _parse_value(key, name, setting, text) for name, setting in value.items()}
        else:
            found[key] = _parse_value("", key, value, text)
    return replace(ProjectSettings(), **found)  # type: ignore[arg-type]


def parse_assignment(assignment: str) -> ProjectSettings:
    """Parse KEY=VALUE, with a key of devkit.toml and a value as TOML, plain text or a list with commas.

    Raises DevkitError for an unknown key or a wrong value.
    """
    key, _, value = assignment.partition("=")
    key = key.strip().rpartition(".")[2].replace("-", "_")
    section = next((name for name, (_, keys) in SECTIONS.items() if key in keys), None)
    if key in REMOVED_SETTINGS:
        raise DevkitError(f"invalid --set {assignment}: {key} was removed", REMOVED_SETTINGS[key])
    if section is None or not value:
        known = [each for _, keys in SECTIONS.values() for each in keys]
        problem = f"{key} is not a setting" if section is None else "expected KEY=VALUE"
        hint = suggest(find_similar(key, known) if section is None else (), f"Known keys: {', '.join(known)}.")
        raise DevkitError(f"invalid --set {assignment}: {problem}", hint)
    if not value.isascii() and _SURROGATE.search(value):
        raise DevkitError(f"invalid --set {assignment}: it is not text", "Write it in UTF-8.")
    written = write_value(value, type(getattr(ProjectSettings, key)))
    try:
        return parse_devkit_toml(f"[{section}]\n{key} = {written}".removeprefix("[]\n").encode())
    except DevkitError as error:
        what = re.sub(rf"^{re.escape(DEVKIT_TOML)}[:0-9]* ?", "", error.message).removeprefix(": ")
        raise DevkitError(f"invalid --set {assignment}: {what}", error.hint) from None


def validate_packages(settings: ProjectSettings) -> None:
    """Raise DevkitError when an entry of project.packages is not a requirement with a plain name."""
    if not settings.packages:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for text in settings.packages:
        try:
            is_plain = text.isascii() and text == text.strip() and not Requirement(text).url
        except InvalidRequirement:
            is_plain = False
        if not is_plain:
            raise DevkitError(
                f"{DEVKIT_TOML}: project.packages contains {text!r}, which is not a package", 'Such as "einops>=0.8".'
            )


def _parse_value(section: str, key: str, value: object, text: str) -> object:
    allowed = SECTIONS.get(section, ("", {}))[1]
    shown = f"{section}.{key}" if section else key
    place = _format_place(find_key_position(text, (section, key) if section else (key,)))
    _refuse_removed(text, section, key)
    if key not in allowed:
        raise _unknown_setting(place, shown)
    try:
        decoded: object = get_field_decoders(ProjectSettings)[key](value)
    except InvalidValue as error:
        wanted = error.expected
        raise DevkitError(f"{place}: {shown} must be {wanted}, not {value!r}", f"Write it as {wanted}.") from None
    if value and key in _ONE_OF and value not in _ONE_OF[key]:
        raise DevkitError(f"{place}: {shown} cannot be {value!r}", f"It can be {join_words(_ONE_OF[key], 'or')}.")
    return decoded


def _parse_pins(value: object, text: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        place = _format_place(find_key_position(text, ("pins",)))
        raise DevkitError(f"{place}: pins must map package names to versions", 'Write, for example, peft = "0.15.2".')
    for name, version in value.items():
        if not isinstance(version, str):
            place = _format_place(find_key_position(text, ("pins", name)))
            raise DevkitError(f"{place}: pins.{name} must be a version in quotes, not {version!r}", "Quote it.")
    return tuple(value.items())


def _refuse_removed(text: str, *path: str) -> None:
    """Raise DevkitError for a key of the last release."""
    if hint := REMOVED_SETTINGS.get(path[-1]):
        shown = ".".join(filter(None, path))
        raise DevkitError(f"{_format_place(find_key_position(text, path))}: the setting {shown} was removed", hint)


def _unknown_setting(place: str, shown: str) -> DevkitError:
    known = [f"{name}.{each}" if name else each for name, (_, keys) in SECTIONS.items() for each in keys]
    misplaced = [each for each in known if each.rpartition(".")[2] == shown.rpartition(".")[2]]
    close = (misplaced or find_similar(shown, known))[:1]
    message = f"{place}: devkit does not have a setting {shown}"
    return DevkitError(message, suggest(close, f"It knows {', '.join(known)}."))


def _format_place(position: str) -> str:
    return f"{DEVKIT_TOML}:{position}" if position else DEVKIT_TOML


def render_devkit_toml(settings: ProjectSettings, existing: bytes | None) -> str:
    """Render devkit.toml with these settings: a new file with comments, or `existing` with the settings that differ.

    Comments, order and spelling of an existing file stay as they are.
    """
    if existing is None:
        return _render_new(settings)
    before = parse_devkit_toml(existing)
    if before == settings:
        return existing.decode()
    values: dict[tuple[str, ...], object] = {
        ((section, key) if section else (key,)): _to_toml_item(value)
        for section, (_, keys) in SECTIONS.items()
        for key in keys
        if (value := getattr(settings, key)) != getattr(before, key)
    }
    pins = settings.pins if settings.pins != before.pins else ()
    values |= {("pins", name): version for name, version in pins}
    return set_toml_values(existing, values, {}, shown_as=DEVKIT_TOML).decode()


def _render_new(settings: ProjectSettings) -> str:
    """Render the settings that were made."""
    lines = [
        "# Settings for this project's dev container. Edit them, then run `devkit init` again.",
        f"# Every setting: {_SETTINGS_PAGE}",
    ]
    for section, (_, keys) in SECTIONS.items():
        chosen = [
            f"{key} = {_format_toml(value)}  # {meaning}"
            for key, (_, meaning) in keys.items()
            if (value := getattr(settings, key))
        ]
        if section == "pins":
            chosen = [f"{_format_toml(name)} = {_format_toml(version)}" for name, version in settings.pins]
        if chosen:
            lines += ["", *([f"[{section}]"] if section else []), *chosen]
    return "\n".join([*lines, ""])


def _to_toml_item(value: object) -> "Item":
    """Return the value as TOML: pairs are a table on one line."""
    import tomlkit

    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        table = tomlkit.inline_table()
        table.update(dict(value))
        return table
    return tomlkit.item(list(value) if isinstance(value, tuple) else value)


def _format_toml(value: object) -> str:
    text: str = _to_toml_item(value).as_string()
    if not text.isascii() and _SURROGATE.search(text):
        raise DevkitError(f"{DEVKIT_TOML} cannot contain {value!r}, which is not text", "Write it in UTF-8.")
    return text
