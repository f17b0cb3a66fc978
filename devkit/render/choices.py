"""devkit.toml: what the user chose. devkit writes it once; after that it belongs to the user."""

import tomllib
from dataclasses import dataclass, fields, replace

from devkit.errors import DevkitError

CHOICES_PATH = "devkit.toml"


@dataclass(frozen=True)
class Choices:
    """Everything devkit.toml can say. "" and () leave the choice to devkit.

    `engine` is docker or podman, `gpu_runtime` legacy or cdi, `devices` GPU indices, UUIDs or MIG UUIDs.
    `ca_certificates` is the path of a PEM file, relative to the project. `wheelhouse` builds without an index.
    `index`, `torch_index` and `hub` are mirrors' URLs. `ignore_dependencies` leaves the project's own packages out.
    `install_from` is "" for where devkit itself came from, or "checkout" in devkit's own repository.
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
    pins: tuple[tuple[str, str], ...] = ()
    ignore_dependencies: bool = False
    editors: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    ca_certificates: str = ""
    wheelhouse: bool = False
    index: str = ""
    torch_index: str = ""
    hub: str = ""
    install_from: str = ""

    def with_flags(self, flags: "Choices") -> "Choices":
        """These choices, with every one that `flags` makes in its place."""
        made = {each.name: getattr(flags, each.name) for each in fields(flags) if getattr(flags, each.name)}
        return replace(self, **made)


SECTIONS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "": ("", {"name": ('"my-project"', "the project's name, as editors show it")}),
    "target": (
        "The machine to plan for. Without any of these it is the one that runs `devkit init`.",
        {
            "driver": ('"570.124.06"', "NVIDIA driver"),
            "gpus": ('["RTX 4090"]', "GPU names, or compute capabilities such as 9.0"),
            "machine": ('"x86_64"', "or aarch64"),
            "platform": ('"linux"', "or wsl2"),
            "glibc": ('"2.36"', "C library of the base image"),
            "vendor": ('"nvidia"', "or cpu, or auto"),
            "engine": ('"docker"', "or podman; without it the files serve both"),
            "gpu_runtime": ('"cdi"', "or legacy: how the engine passes on GPUs"),
            "devices": ('["0", "1"]', "the GPUs to pass on: indices, UUIDs or MIG UUIDs"),
        },
    ),
    "versions": (
        "Versions that must be just so. devkit chooses the others to fit.",
        {
            "torch": ('"2.13.0"', "or with the CUDA of its wheel: 2.13.0+cu130"),
            "cuda": ('"13.0"', "CUDA of the torch wheel"),
            "python": ('"3.12"', "Python of the container"),
            "image": ('"python:3.12-slim-bookworm"', "base image"),
            "features": ('["nf4"]', "what must work: bf16, nf4, fp8 …"),
        },
    ),
    "pins": ('Other packages that must be just so, such as: peft = "0.21.2"', {}),
    "dependencies": (
        "What the project itself needs, as its requirement files say.",
        {"ignore_dependencies": ("true", "leave it out of the image")},
    ),
    "container": (
        "What the container is for.",
        {
            "editors": ('["vscode"]', "jetbrains, codespaces, devpod, coder, daytona"),
            "profiles": ('["jupyter"]', "monitoring"),
        },
    ),
    "network": (
        "How the image is built in a closed network.",
        {
            "ca_certificates": ('"certificates/company.pem"', "PEM file of the company's certificate authorities"),
            "wheelhouse": ("true", "install from the folder DEVKIT_WHEELHOUSE in .devcontainer/.env names"),
            "index": ('"https://pypi.example.org/simple"', "mirror of the Python package index"),
            "torch_index": ('"https://pytorch.example.org/whl"', "mirror of PyTorch's wheel indexes"),
            "hub": ('"https://hub.example.org"', "mirror of the Hugging Face hub"),
        },
    ),
    "devkit": ("How devkit gets into the image.", {"install_from": ('"checkout"', "for devkit's own repository")}),
}
"""Section -> (what it is for, key -> (an example, what it means)). "" is the top of the file."""


def read_choices(content: bytes) -> Choices:
    """What a devkit.toml says. Raises DevkitError for TOML errors, unknown keys and wrong types."""
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DevkitError(f"{CHOICES_PATH} is not TOML: {error}", "Correct that line.") from None
    found: dict[str, object] = {}
    for key, value in document.items():
        if key == "pins":
            found["pins"] = _pins(value)
        elif isinstance(value, dict):
            for inner, setting in value.items():
                found[inner] = _checked(key, inner, setting)
        else:
            found[key] = _checked("", key, value)
    return replace(Choices(), **found)  # type: ignore[arg-type]


def choices_text(choices: Choices, existing: bytes | None) -> str:
    """devkit.toml with these choices: written anew with comments, or edited in place where one differs.

    Comments, order and spelling of an existing file stay as they are.
    """
    if existing is None:
        return _new_text(choices)
    if read_choices(existing) == choices:
        return existing.decode()
    return _edited(choices, existing.decode())


def _new_text(choices: Choices) -> str:
    lines = ["# What this project asks of its dev container. Edit it, then run `devkit init` again."]
    for section, (purpose, keys) in SECTIONS.items():
        if section == "devkit" and not choices.install_from:
            continue
        lines += ["", f"[{section}]", f"# {purpose}"] if section else [""]
        for key, (example, meaning) in keys.items():
            value = getattr(choices, key)
            lines.append(f"{key} = {_toml(value)}  # {meaning}" if value else f"# {key} = {example}  # {meaning}")
        if section == "pins":
            lines += [f"{_toml(name)} = {_toml(version)}" for name, version in choices.pins]
    return "\n".join([*lines, ""])


def _edited(choices: Choices, text: str) -> str:
    import tomlkit

    before = read_choices(text.encode())
    document = tomlkit.parse(text)
    for section, (_, keys) in SECTIONS.items():
        for key in keys:
            value = getattr(choices, key)
            if value == getattr(before, key):
                continue
            table = document.setdefault(section, tomlkit.table()) if section else document
            table[key] = list(value) if isinstance(value, tuple) else value
    if choices.pins != before.pins:
        document.setdefault("pins", tomlkit.table()).update(dict(choices.pins))
    return tomlkit.dumps(document)


def _toml(value: object) -> str:
    import tomlkit

    return tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()


def _checked(section: str, key: str, value: object) -> object:
    allowed = SECTIONS.get(section, ("", {}))[1]
    shown = f"{section}.{key}" if section else key
    if key not in allowed:
        import difflib

        known = [f"{name}.{each}" if name else each for name, (_, keys) in SECTIONS.items() for each in keys]
        close = difflib.get_close_matches(shown, known, n=1, cutoff=0.4)
        raise DevkitError(
            f"{CHOICES_PATH} has a setting that devkit does not know: {shown}",
            f"Did you mean {close[0]}?" if close else f"It knows {', '.join(known)}.",
        )
    expected = type(getattr(Choices(), key))
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if not (is_list if expected is tuple else isinstance(value, expected)):
        wanted = {str: "a string in quotes", bool: "true or false", tuple: "a list of strings"}[expected]
        raise DevkitError(f"{CHOICES_PATH}: {shown} must be {wanted}, not {value!r}", f"Write it as {wanted}.")
    return tuple(value) if isinstance(value, list) else value


def _pins(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(version, str) for version in value.values()):
        raise DevkitError(
            f"{CHOICES_PATH}: pins must map package names to versions", 'Write, for example, peft = "0.15.2".'
        )
    return tuple(value.items())
